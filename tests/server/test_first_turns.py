"""Once a server is ready, a turn loads no module: what takes a second is done before anybody waits for an answer."""

import json
import os
import subprocess
import sys
from pathlib import Path

from forkpoint.testing import ModelServer, Reply, Script

ROOT = Path(__file__).parents[2]


def test_the_first_turns_of_a_server_load_no_module(tmp_path: Path) -> None:
    with ModelServer(Script([Reply("Hello", reasoning="Hm.")], repeat=True)) as models:
        config = tmp_path / "server.toml"
        config.write_text(f"""
[agents.chat]
model = "openai/gpt-5"
base_url = "{models.url}"
api = "chat"
[agents.responses]
model = "openai/gpt-5"
base_url = "{models.url}"
api = "responses"
[agents.messages]
model = "anthropic/claude-sonnet-5"
base_url = "{models.root}"
[agents.scripted]
model = "scripted/echo"
""")
        agents = "chat,responses,messages,scripted"
        flags = ["--config", str(config), "--store", f"sqlite:///{tmp_path / 'turns.db'}"]
        done = subprocess.run(
            [sys.executable, "-m", "tests.server.support.first_turns", agents, *flags],
            cwd=ROOT,
            env={**os.environ, "OPENAI_API_KEY": "one", "ANTHROPIC_API_KEY": "two"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.stdout, done.stderr
    assert json.loads(done.stdout) == {name: [] for name in agents.split(",")}
