"""The program ``forkpoint`` as its users have it: a process of its own, with a store and settings of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.nursery import nursery

from forkpoint import Agent
from forkpoint.llm import LLM, Retries
from forkpoint.testing import Reply, Script

TOOLS = '''
import os, signal
import anyio
from forkpoint import Agent, tool
from forkpoint.llm import LLM, Retries

@tool(repeatable=True)
def read_log(build: int) -> str:
    """Reads the log of a build."""
    return f"log of {build}: disk full"

@tool(risky=True)
def restart(build: int) -> str:
    """Restarts a build."""
    with open("restarted", "a") as file:
        file.write(f"{build}\\n")
    return f"{build} restarted"

@tool
def restart_or_die(build: int) -> str:
    """Restarts a build, unless the process dies of it."""
    if os.path.exists("deadly"):
        os.kill(os.getpid(), signal.SIGKILL)
    return restart.function(build)

@tool
async def press_ctrl_c() -> str:
    """Does what a user does who has waited long enough."""
    os.kill(os.getpid(), signal.SIGINT)
    await anyio.sleep_forever()

agent = Agent(
    LLM("scripted/script.json", retries=Retries(attempts=1)),
    tools=[read_log, restart, press_ctrl_c],
    approval="risky",
)
mortal = Agent("scripted/script.json", tools=[restart_or_die])
'''


class Program:
    """Runs ``forkpoint`` in a folder that has nothing in it but what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = f"sqlite:///{folder / 'store.db'}"
        self.settings = folder / "config" / "forkpoint" / "config.toml"
        ours = ("FORKPOINT_", "OPENAI_", "ANTHROPIC_", "XDG_")
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(ours) and not name.lower().endswith("_proxy")
        } | {
            "FORKPOINT_STORE": self.store,
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_DATA_HOME": str(folder / "data"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "COLUMNS": "160",
            "NO_COLOR": "1",
            "PYTHONWARNINGS": "error",
            "PYTHONUNBUFFERED": "",
        }

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "forkpoint", *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, stdin: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
        """Runs it to its end, in a process that has loaded its modules already."""
        files = [self.folder / f".{name}" for name in ("stdin", "stdout", "stderr")]
        files[0].write_text(stdin)
        status = nursery().run(["forkpoint", *arguments], self.folder, self.environment | environment, files)
        out, err = (file.read_bytes().decode() for file in files[1:])
        for file in files:
            file.unlink()
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(arguments, status, out, err)

    def text(self, *arguments: str, **environment: str) -> str:
        """What a command prints that works."""
        done = self.run(*arguments, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str, status: int = 0) -> Any:
        """What a command gives a program."""
        done = self.run(*arguments, "--json")
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout)

    def seen(self, name: str, *options: str) -> list[str]:
        """The options of ``approve`` that name each call that waits, with the digest of what was seen."""
        turn = self.json("show", name, "--turns", *options)["turns"][-1]
        waiting = [call for call in turn["calls"] if call["status"] == "waiting"]
        return [part for call in waiting for part in ("--call", call["id"], "--digest", call["digest"])]

    def python(self, code: str) -> str:
        """What a program of the user's prints, in the same folder."""
        code = f"import builds\nfrom forkpoint import Conversation\n{code}"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=self.folder, env=self.environment, check=True, stdout=subprocess.PIPE
        )
        return done.stdout.decode()

    def script(self, *replies: Reply) -> None:
        """What the model of `TOOLS` says from now on. Each process begins with the first reply."""
        from msgspec import to_builtins

        (self.folder / "builds.py").write_text(TOOLS)
        (self.folder / "script.json").write_text(json.dumps(to_builtins(replies)))


def agent(script: str, /, *replies: Reply, **options: Any) -> Agent:
    """An agent whose model, in this process, says what a test wants, or repeats what it hears."""
    model = Script(replies).register(script) if replies else "scripted/echo"
    return Agent(LLM(model, retries=Retries(attempts=1)), **options)


def one_line(text: str) -> str:
    """A text on one line, however it was wrapped."""
    return " ".join(text.split())
