"""Counts the files and functions of Forkpoint that a turn, a fork, a sub-agent and a chat completion pass through.

    ./run python -m benchmarks.walks [SRC]      # prints JSON; `python -m benchmarks.house --walks` shows a table

Python's profiler reports each call, in all threads. Every walk is done once before it is counted, so that nothing is
loaded or cached for the first time while it is counted. The store is in memory and the model is scripted.

The module uses only the public names of Forkpoint, so that it can measure any version of the package: the one that is
first on the path. If SRC is given, the command checks that the package comes from there. Only the server's app has no
public name: `_app` searches for the module that defines it.
"""

import ast
import importlib
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import anyio
import httpx2
import msgspec

import forkpoint
from benchmarks.house import Walk
from forkpoint import Agent, AsyncConversation, Role, SubAgents
from forkpoint.store import open_store
from forkpoint.testing import Reply, Script, ScriptedCall

PACKAGE = Path(forkpoint.__file__).parent


class Recorder:
    """Notes which functions of the package are called while it records."""

    def __init__(self) -> None:
        self._inside = f"{PACKAGE}/"
        self._seen: set[tuple[str, str]] = set()
        self._records = False

    def start(self) -> None:
        """Watches this thread, and all threads that are started from now on."""
        threading.setprofile(self._notice)
        sys.setprofile(self._notice)

    @contextmanager
    def recording(self) -> Iterator[None]:
        self._seen.clear()
        self._records = True
        try:
            yield
        finally:
            self._records = False

    def walk(self, name: str) -> Walk:
        """What was recorded last."""
        files = {file for file, _ in self._seen}
        folders = Counter(file.removeprefix(self._inside).partition("/")[0] for file in files)
        most_first = sorted(folders.items(), key=lambda item: (-item[1], item[0]))
        return Walk(name, len(files), len(self._seen), dict(most_first))

    def _notice(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if not self._records or event != "call" or not code.co_filename.startswith(self._inside):
            return
        if not code.co_name.startswith("<"):  # a lambda or a comprehension is part of the function around it
            self._seen.add((code.co_filename, code.co_qualname))


Operation: TypeAlias = Callable[[Recorder], Awaitable[None]]


async def second_turn(recorder: Recorder) -> None:
    async with AsyncConversation(Agent("scripted/echo"), store="memory:") as conversation:
        await conversation.run("What failed?")
        with recorder.recording():
            await conversation.run("And why?")


async def fork(recorder: Recorder) -> None:
    async with AsyncConversation(Agent("scripted/echo"), store="memory:") as conversation:
        await conversation.run("What failed?")
        with recorder.recording():
            branch = await conversation.fork()
        await branch.close()


async def turn_with_a_sub_agent(recorder: Recorder) -> None:
    spawn = ScriptedCall("spawn_agent", '{"task": "Read the log.", "role": "reader"}')
    replies = [Reply("Hello."), Reply(calls=(spawn,)), Reply(calls=(ScriptedCall("wait_agent"),)), Reply("It is read.")]
    reader = Role("reads a log", agent=Agent("scripted/echo"))
    agent = Agent(Script(replies).register("walks"), sub_agents=SubAgents(roles={"reader": reader}))
    async with AsyncConversation(agent, store="memory:") as conversation:
        await conversation.run("Hello.")
        with recorder.recording():
            turn = await conversation.run("Let somebody read the log.")
    assert "You said: Read the log." in str(turn.calls[1].result), f"the sub-agent did not answer: {turn.calls}"


async def chat_completion(recorder: Recorder) -> None:
    app = await _app()
    transport = httpx2.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        await _complete(client, "What failed?")
        with recorder.recording():
            await _complete(client, "And why?")


async def _complete(client: httpx2.AsyncClient, message: str) -> None:
    body = {"model": "echo", "messages": [{"role": "user", "content": message}]}
    response = await client.post("/v1/chat/completions", json=body, headers={"X-Conversation-Id": "walk"})
    response.raise_for_status()


async def _app() -> Any:
    """A server's app with one agent, the scripted model."""
    create_app = _server_name(lambda node: isinstance(node, ast.FunctionDef) and node.name == "create_app")
    agents = _server_name(lambda node: isinstance(node, ast.ClassDef) and _has_method(node, "of_model"))
    return create_app(await open_store("memory:"), agents.of_model("scripted/echo"))


def _server_name(fits: Callable[[ast.stmt], bool]) -> Any:
    """The function or class of the server whose definition fits, wherever its module stands."""
    for path in sorted((PACKAGE / "server").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and fits(node):
                module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
                return getattr(importlib.import_module(module.removesuffix(".__init__")), node.name)
    raise LookupError("the server's app is not where it was: see _app in benchmarks/walks.py")


def _has_method(node: ast.ClassDef, name: str) -> bool:
    return any(isinstance(statement, ast.FunctionDef) and statement.name == name for statement in node.body)


OPERATIONS: dict[str, Operation] = {
    "second turn": second_turn,
    "fork": fork,
    "turn with one sub-agent": turn_with_a_sub_agent,
    "chat completion in a conversation": chat_completion,
}


async def measure() -> list[Walk]:
    """Does each operation twice, and counts the second."""
    recorder = Recorder()
    recorder.start()
    walks = []
    for name, operation in OPERATIONS.items():
        await operation(recorder)
        await operation(recorder)
        walks.append(recorder.walk(name))
    return walks


def main() -> None:
    src = [Path(argument).resolve() for argument in sys.argv[1:]]
    if src and PACKAGE.parent.resolve() not in src:
        sys.exit(f"{forkpoint.__name__} was imported from {PACKAGE.parent}, and not from {src[0]}")
    print(msgspec.json.encode(anyio.run(measure)).decode())


if __name__ == "__main__":
    main()
