"""Runs the Codex CLI against a server, without a network, and kills the server while Codex waits for an answer.

    ./run python -m benchmarks.clients

Codex comes from the npm registry once (`npm install @openai/codex`), unless `--codex` names one. It runs a question, a
command, and `resume`, over HTTP and over a WebSocket. Then the server is killed (SIGKILL) while the model is asked, and
started again at the same address: Codex tries again by itself, and the model must read the user's message once, and so
must the next question.
Codex says `store: false`, so no conversation may be left on the server.

`--agents-tests DIR` runs the Agents SDK's own tests instead; DIR is a clone of openai/openai-agents-python.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx2
from tests.server.support.serving import ServerProcess, free_port

from benchmarks import agents_tests
from benchmarks.progress import Progress
from forkpoint.testing import Heard, ModelServer, Reply, Script, ScriptedCall

VERSION = "0.166.0"
PATIENCE = 120.0
"""Seconds for one run of Codex, its retries included."""

CONFIG = """\
model = "{model}"
model_provider = "forkpoint"
approval_policy = "never"
sandbox_mode = "danger-full-access"

[model_providers.forkpoint]
name = "Forkpoint"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "FORKPOINT_KEY"
supports_websockets = {websockets}
"""


class Wrong(Exception):
    """Codex or the server did not do what they should."""


class Codex:
    """The program, with a home folder of its own."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program = program
        self._home, self._work = folder / "codex", folder / "work"
        self._home.mkdir()
        self._work.mkdir()

    def point_at(self, url: str, model: str, *, websockets: bool = False) -> None:
        config = CONFIG.format(url=url, model=model, websockets=str(websockets).lower())
        (self._home / "config.toml").write_text(config, encoding="utf-8")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._work), "CODEX_HOME": str(self._home)}
        return subprocess.Popen(
            [self._program, "exec", "--skip-git-repo-check", "--json", *arguments],
            env={**environment, "FORKPOINT_KEY": "any"},
            cwd=self._work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> list[dict[str, Any]]:
        return ended(self.start(*arguments))


def ended(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """What Codex said, once it has ended well."""
    try:
        said, complaints = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise Wrong(f"Codex did not end within {PATIENCE:g} s") from None
    if process.returncode:
        raise Wrong(f"Codex ended with status {process.returncode}:\n{said[-2000:]}\n{complaints[-2000:]}")
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def answer(heard: Heard) -> Reply:
    """Runs a command if it is asked to, and says what came of it; else repeats the message."""
    last = heard.body["messages"][-1]
    if last["role"] == "tool":
        return Reply(f"It printed {'snow' if 'snow' in last['content'] else 'nothing'}")
    if heard.text == "Run it":
        return Reply(calls=(ScriptedCall("exec_command", '{"cmd":"echo snow"}', "call_1"),))
    return Reply(f"You said: {heard.text}")


def run(program: str, folder: Path, progress: Progress) -> None:
    """Raises `Wrong` for the first thing that is not as it should be."""
    codex, port = Codex(program, folder), free_port()
    with ModelServer(Script(answer)) as models:
        with _server(folder, models, port) as server:
            model = httpx2.get(f"{server.url}/v1/models").json()["data"][0]["id"]
            codex.point_at(server.url, model)
            progress.say("exec: a question")
            _expect(_words(codex.run("Hello")), "You said: Hello")
            progress.say("exec: a command")
            _expect(_words(codex.run("Run it")), "It printed snow")
            progress.say("resume")
            _expect(_words(codex.run("resume", "--last", "And now?")), "You said: And now?")
            _expect(_asked(models, "Run it", "And now?"), ["Run it", "And now?"])
            progress.say("the same over a WebSocket")
            codex.point_at(server.url, model, websockets=True)
            _expect(_words(codex.run("Run it")), "It printed snow")
            _expect(_words(codex.run("resume", "--last", "And then?")), "You said: And then?")
            _expect(_asked(models, "Run it", "And then?"), ["Run it", "And then?"])
            opened = [line for line in httpx2.get(f"{server.url}/metrics").text.splitlines() if 'status="101"' in line]
            _expect(bool(opened), True)
            codex.point_at(server.url, model)
            progress.say("the server is killed while the model is asked")
            with models.holding():
                asked = len(models.requests)
                waiting = codex.start("Only once")
                models.wait_for(asked + 1, timeout=PATIENCE)
                server.kill()
        progress.say("the server starts again")
        with _server(folder, models, port) as server:
            _expect(_words(ended(waiting)), "You said: Only once")
            tries = len(models.requests) - asked
            if tries < 2:
                raise Wrong(f"the model was asked {tries} times, so nothing was tried again")
            _expect(_asked(models, "Only once"), ["Only once"])
            progress.say(f"Codex tried again by itself (the model was asked {tries} times); resume")
            _expect(_words(codex.run("resume", "--last", "Next")), "You said: Next")
            _expect(_asked(models, "Only once", "Next"), ["Only once", "Next"])
            _expect(httpx2.get(f"{server.url}/api/conversations").json()["items"], [])


def _server(folder: Path, models: ModelServer, port: int) -> ServerProcess:
    model = ("--model", "openai/test", "--api", "chat", "--base-url", models.url, "--api-key-env", "FORKPOINT_KEY")
    return ServerProcess(*model, "--port", str(port), folder=folder, env={"FORKPOINT_KEY": "any"})


def _words(said: list[dict[str, Any]]) -> str:
    """The last message of the agent."""
    items = [event["item"] for event in said if event["type"] == "item.completed"]
    return str([item["text"] for item in items if item["type"] == "agent_message"][-1])


def _asked(models: ModelServer, *wanted: str) -> list[str]:
    """Which of these messages of the user the model was sent last, in order, each as often as it was there."""
    messages = [one["content"] for one in models.last.json["messages"] if one["role"] == "user"]
    return [text for text in messages if text in wanted]


def _expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise Wrong(f"expected {wanted!r}, and found {found!r}")


def _installed(folder: Path, progress: Progress) -> str:
    """Codex from the npm registry. Raises `Wrong` if npm cannot get it."""
    npm = shutil.which("npm")
    if npm is None:
        raise Wrong("there is no npm on the PATH; install Node, or name a program with --codex")
    progress.say(f"npm installs @openai/codex {VERSION}")
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), f"@openai/codex@{VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Wrong(f"npm could not install Codex; name a program with --codex:\n{done.stderr[-2000:]}")
    return str(folder / "node_modules" / ".bin" / "codex")


def _agents_tests(clone: Path, folder: Path, progress: Progress) -> int:
    """Prints how each test ended. Gives the exit status: 0 if each ended as it must."""
    outcomes = agents_tests.run(clone, folder, progress)
    for outcome in outcomes:
        print(f"passed  {outcome.name}" if outcome.why is None else f"failed  {outcome.name}: {outcome.why}")
    surprises = [outcome.name for outcome in outcomes if not outcome.is_known]
    print(f"{len(outcomes)} tests of the Agents SDK; not as expected: {', '.join(surprises) or 'none'}.")
    return 1 if surprises or not outcomes else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.clients", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--codex", metavar="PROGRAM", help=f"default: {VERSION}, which npm installs for this run")
    parser.add_argument("--agents-tests", metavar="DIR", type=Path, help="run the Agents SDK's tests of this clone")
    parser.add_argument("--quiet", action="store_true", help="say only how it ended")
    given = parser.parse_args()
    progress = Progress(quiet=given.quiet)
    with tempfile.TemporaryDirectory(prefix="forkpoint-clients-") as folder:
        try:
            if given.agents_tests is not None:
                return _agents_tests(given.agents_tests.absolute(), Path(folder), progress)
            program = given.codex or _installed(Path(folder), progress)
            run(program, Path(folder), progress)
        except (Wrong, AssertionError, TimeoutError, ValueError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 1
    print("Codex was served: exec, a command, resume; and a kill in the middle left its message once.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
