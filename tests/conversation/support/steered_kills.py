"""A turn that is steered from inside its tool and killed at a write::

    python -m tests.conversation.support.steered_kills

makes a child for each line of JSON on standard input, by ``os.fork``: ``[FILE, LOG, N]``. The child runs the turn in
the store FILE and is killed before it commits its N-th transaction. It adds a line to LOG when a message was accepted.
The program answers with whether the child was killed.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import anyio

from forkpoint import Agent, AsyncConversation, tool
from forkpoint.backend.options import Draft
from forkpoint.backend.settings import Settings
from forkpoint.engine import Engine
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import Database, connect
from forkpoint.testing import Heard, Reply, Script, ScriptedCall

ROOT = Path(__file__).parents[3]
MESSAGES = ["first", "second", "third"]


def answers(heard: Heard) -> Reply:
    """Looks twice, and then says what it was told, in order: by what it is shown, and by nothing else."""
    messages: list[dict[str, Any]] = heard.body["messages"]
    looked = sum(message["role"] == "tool" for message in messages)
    if looked < 2:
        return Reply(calls=(ScriptedCall("look", "{}", f"c{looked}"),))
    return Reply(" ".join(message["content"] for message in messages if message["role"] == "user"))


MODEL = Script(answers).register("steered-kills")


def agent(steer: Any = None) -> Agent:
    @tool(repeatable=True)
    async def look() -> str:
        """Looks, while somebody sends messages."""
        if steer is not None:
            await steer()
        return "seen"

    return Agent(MODEL, tools=[look])


async def run(file: str, log: str, dies_at: int) -> None:
    written = 0

    def count(statement: str) -> None:
        nonlocal written
        if statement.startswith("COMMIT"):  # a transaction that is cut off before leaves the same
            written += 1
            if written == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def dying(path: str) -> Database:
        db = connect(path)
        db.set_trace_callback(count)
        return db

    store = await SqliteStore.open(file, connect=dying)
    engine = Engine(store)
    found, settings = await engine.find("steered")
    left = list(MESSAGES)

    async def steer() -> None:
        for _ in range(2):
            if left:
                text = left.pop(0)
                await conversation.steer(text)
                with open(log, "a") as accepted:  # noqa: ASYNC230 - a line that must be there if the process dies next
                    accepted.write(text + "\n")

    conversation = AsyncConversation.over(engine, found, settings, agent(steer))
    await conversation.run("Look.")
    await engine.close()


async def prepared(file: Path) -> None:
    """Makes the conversation, in a process that nobody kills."""
    engine = Engine(await SqliteStore.open(file))
    draft = Draft(id="0197b1f2-7a10-7000-8000-000000000001", name="steered", settings=Settings.of(agent(), None))
    await engine.create(draft)
    await engine.close()


class Children:
    """The program, started."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.conversation.support.steered_kills"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, file: Path, log: Path, dies_at: int) -> bool:
        """Runs the turn; whether it was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(file), str(log), dies_at]) + "\n")
        self._process.stdin.flush()
        return bool(json.loads(self._process.stdout.readline()))


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                anyio.run(run, *json.loads(line))
            except BaseException as error:  # whatever it is, it must not go on as the parent
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            raise SystemExit("a child failed that nobody killed")
        print(json.dumps(os.WIFSIGNALED(status)), flush=True)


if __name__ == "__main__":
    main()
