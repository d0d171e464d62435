"""An agent for servers that are processes of their own: what it does, and where it waits, is in the messages.

A message is JSON, a list of steps, each a list of ``[TOOL, ARGUMENTS]``; the model asks for one step after the other.
``hang`` as a step is a model that never answers, and ``die`` one that kills its server, unless there is a file
``awake`` in the server's folder. Tools write
to ``log`` in the server's folder when they run. Gates are named pipes there: `hold` waits until somebody opens the
other end.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.server.support.serving import ServerProcess
from tests.server.support.turning import PATIENCE

from forkpoint.agent import Agent, tool
from forkpoint.llm import LLM, Retries
from forkpoint.testing import Fault, Heard, Reply, Script, ScriptedCall

ROOT = Path(__file__).parents[3]


def obedient(heard: Heard) -> Reply:
    messages: list[dict[str, Any]] = heard.body["messages"]
    asked = max(n for n, message in enumerate(messages) if message["role"] == "user")
    since = messages[asked + 1 :]
    steps = json.loads(heard.text) if heard.text.startswith("[") else []
    done = sum(bool(message.get("tool_calls")) for message in since)
    results = [message["content"] for message in since if message["role"] == "tool"]
    if done >= len(steps):
        return Reply(f"Done: {' | '.join(results)}" if steps else f"You said: {heard.text}")
    if steps[done] in ("hang", "die") and Path("awake").exists():
        return Reply("Awake.")
    if steps[done] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if steps[done] == "hang":
        return Reply("Well", fault=Fault("hang", after=1))
    calls = enumerate(steps[done])
    return Reply(calls=tuple(ScriptedCall(name, json.dumps(args), f"c{done}-{n}") for n, (name, args) in calls))


@tool
def note(line: str) -> str:
    """Notes a line down."""
    with open("log", "a") as log:
        log.write(line + "\n")
    return f"noted {line}"


@tool
def hold(gate: str) -> str:
    """Waits at a gate, in a thread that nobody can stop."""
    note.function(f"at {gate}")
    with open(gate) as pipe:
        return f"was told {pipe.read()}"


@tool(repeatable=True)
def look(gate: str) -> str:
    """Waits at a gate too, but may be run again."""
    return str(hold.function(gate))


@tool(risky=True)
def erase(file: str) -> str:
    """Erases something, if somebody lets it."""
    note.function(f"erased {file}")
    return "erased"


agent = Agent(
    LLM(Script(obedient).register("doing"), retries=Retries(attempts=1)),
    tools=[note, hold, look, erase],
    approval="risky",
)


# What tests do with it.


def steps(*steps: Any) -> str:
    """A message that makes the model ask for these calls, step by step."""
    return json.dumps(steps)


def start(folder: Path, *options: str, grace: float = 30, orphans_every: float = 0.1) -> ServerProcess:
    """A server with this agent, on ``server.db`` in a folder."""
    file = folder / f"server-{os.urandom(4).hex()}.toml"
    said = f"[server]\ngrace = {grace}\nresume_orphans_every = {orphans_every}\n"
    file.write_text(f'{said}[agents.doing]\nagent = "tests.server.support.doing:agent"\n')
    return ServerProcess("--config", str(file), *options, folder=folder, env={"PYTHONPATH": str(ROOT)})


class Gate:
    """A place in a folder where turns of another process wait."""

    def __init__(self, folder: Path, name: str = "gate") -> None:
        self.name = name
        self._path = folder / name
        os.mkfifo(self._path)

    def step(self) -> list[Any]:
        """A step that waits here."""
        return [["hold", {"gate": self.name}]]

    @contextmanager
    def reached(self) -> Iterator["Pass"]:
        """Within the block somebody waits here, and can be let go."""
        deadline = time.monotonic() + PATIENCE
        while (pipe := self._pipe()) is None:
            assert time.monotonic() < deadline, f"nobody came to gate {self.name}"
            time.sleep(0.005)
        with open(pipe, "w") as writes:
            yield Pass(writes)

    def _pipe(self) -> int | None:
        """This end of the pipe, if the other end is open: without that it cannot be opened."""
        with suppress(OSError):
            return os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
        return None


class Pass:
    """Somebody who waits at a gate."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    def go(self, word: str = "go") -> None:
        self._pipe.write(word)
        self._pipe.close()


def logged(folder: Path) -> list[str]:
    """What the tools wrote, in order."""
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []
