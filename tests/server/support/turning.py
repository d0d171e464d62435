"""A client of a server as tests need one: few words for each call, streams as lists, and places where turns wait."""

import asyncio
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Self, TypeAlias

import anyio
import httpx2
from tests.server.support.serving import Served

from forkpoint.agent import Agent, Tool, ToolContext, tool
from forkpoint.llm import LLM, Retries
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.http.keys import ApiKey, Keyring, OneKey
from forkpoint.testing import Heard, Reply, Script, ScriptedCall

PATIENCE = 20
"""Seconds until a test that hangs is a failed one; none waits for it."""

Frame: TypeAlias = tuple[str, dict[str, Any]]


class Stream:
    """Server-sent events as they come."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()

    def __iter__(self) -> Iterator[Frame]:
        kind, data = "", ""
        for line in self._lines:
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                data = value
            elif not line and kind:
                yield kind, json.loads(data)
                kind, data = "", ""

    def until(self, *wanted: str) -> list[Frame]:
        """All frames up to the first of these kinds, it included."""
        seen: list[Frame] = []
        for kind, data in self:
            seen.append((kind, data))
            if kind in wanted:
                return seen
        raise AssertionError(f"none of {wanted} came, but {[kind for kind, _ in seen]}")


class Api:
    """A client that knows the calls."""

    def __init__(self, url: str, key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx2.Client(base_url=url, headers=headers, timeout=PATIENCE)
        self._threads = ThreadPoolExecutor(32)

    def create(self, **body: Any) -> str:
        made = self.http.post("/api/conversations", json=body)
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    def run(
        self, id: str, message: Any = "Hello", *, key: str | None = None, prefer: str | None = None, **body: Any
    ) -> httpx2.Response:
        """Runs a turn. Gives the answer."""
        return self.post(f"{id}/turns", key=key, prefer=prefer, message=message, **body)

    def post(self, path: str, *, key: str | None = None, prefer: str | None = None, **body: Any) -> httpx2.Response:
        return self.http.post(f"/api/conversations/{path}", json=body, headers=_headers(key, prefer))

    def get(self, path: str, **query: Any) -> Any:
        found = self.http.get(f"/api/conversations/{path}", params=query)
        assert found.status_code == 200, found.text
        return found.json()

    def seen(self, id: str, turn: str) -> list[dict[str, str]]:
        """The calls that wait in a turn, with the digests of what was seen, as ``approve`` takes them."""
        waiting = [call for call in self.turn(id, turn)["calls"] if call["status"] == "waiting"]
        return [{"id": call["id"], "digest": call["digest"]} for call in waiting]

    def turn(self, id: str, turn: str, *, wait: float = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"{id}/turns/{turn}", wait=wait)
        return found

    def outcomes(self, id: str) -> list[str]:
        """Of all its turns, in order."""
        return [turn["outcome"] for turn in self.get(f"{id}/turns")["items"]]

    def said(self, id: str) -> list[str]:
        """What stands in its committed history, in words."""
        found = self.get(f"{id}/events")["items"]
        parts = [part for event in found for part in event["body"].get("parts", ()) if event["kind"] != "tool_result"]
        return [part["text"] for part in parts]

    @contextmanager
    def stream(self, id: str, message: Any = "Hello", *, key: str | None = None, **body: Any) -> Iterator[Stream]:
        """Runs a turn as a stream. Leaving the block closes the connection."""
        with self.streamed("POST", f"{id}/turns", key=key, message=message, **body) as stream:
            yield stream

    @contextmanager
    def streamed(self, method: str, path: str, *, key: str | None = None, **body: Any) -> Iterator[Stream]:
        headers = {"Accept": "text/event-stream", **_headers(key, None)}
        sent: dict[str, Any] = {"json": body} if method == "POST" else {}
        with self.http.stream(method, f"/api/conversations/{path}", headers=headers, **sent) as response:
            yield Stream(response)

    def soon(self, call: Any, *args: Any, **options: Any) -> "Future[Any]":
        """A call in a thread of its own, while the test goes on."""
        return self._threads.submit(call, *args, **options)

    def close(self) -> None:
        self.http.close()
        self._threads.shutdown()


@contextmanager
def using(url: str, key: str | None = None) -> Iterator[Api]:
    api = Api(url, key)
    try:
        yield api
    finally:
        api.close()


def stopping(api: Api) -> None:
    """Waits until the server says that it is about to stop."""
    deadline = time.monotonic() + PATIENCE
    while api.http.get("/ready").status_code == 200:
        assert time.monotonic() < deadline, "the server does not stop"


def asked_for(server: Served, requests: int) -> None:
    """Waits until so many requests for turns are there at once, those that wait for others too."""
    deadline = time.monotonic() + PATIENCE
    while server.services.turns._count.total() < requests:
        assert time.monotonic() < deadline, "nothing was asked for"
        time.sleep(0.002)


def waiting(server: Served, conversation: str, requests: int) -> None:
    """Waits until so many requests wait for the turn that runs there."""
    feed = server.services.turns.feed("default", conversation)
    assert feed is not None
    deadline = time.monotonic() + PATIENCE
    while feed._waiters < requests:
        assert time.monotonic() < deadline, "nobody waits for the turn"
        time.sleep(0.002)


def left_nothing(server: Served) -> None:
    """Waits until nothing runs there, and looks for what may be left of it."""
    turns = server.services.turns
    asyncio.run_coroutine_threadsafe(turns.ended(), server.loop).result(PATIENCE)
    assert turns.is_idle


class Gate:
    """A tool that waits until the test lets it go on."""

    def __init__(self) -> None:
        self.runs: list[str] = []  # the lines that it was called with
        self._reached = threading.Semaphore(0)
        self._open = threading.Event()

    def reached(self, times: int = 1) -> None:
        """Returns when so many calls more have come here."""
        for _ in range(times):
            assert self._reached.acquire(timeout=PATIENCE), "nobody came to the gate"

    def open(self) -> None:
        self._open.set()

    @property
    def tool(self) -> Tool:
        @tool(name="hold")
        def hold(ctx: ToolContext, line: str) -> str:
            """Waits."""
            self.runs.append(line)
            self._reached.release()
            assert self._open.wait(PATIENCE)
            return f"held {line}"

        return hold


class SlowEnd:
    """A tool that waits, the first time that it runs, and that takes its time to stop if it is cancelled."""

    def __init__(self) -> None:
        self.runs = 0
        self._reached = threading.Event()
        self._stopping = threading.Event()
        self._end = threading.Event()

    def reached(self) -> None:
        """Returns when the first call has come here."""
        assert self._reached.wait(PATIENCE), "nobody came here"

    def stopping(self) -> None:
        """Returns when the first call was cancelled, and has not stopped yet."""
        assert self._stopping.wait(PATIENCE), "nobody cancelled it"

    def end(self) -> None:
        """Lets it stop."""
        self._end.set()

    @property
    def tool(self) -> Tool:
        @tool(name="hold")
        async def hold(line: str) -> str:
            """Waits."""
            self.runs += 1
            if self.runs == 1:
                self._reached.set()
                try:
                    await anyio.sleep_forever()
                finally:
                    self._stopping.set()
                    with anyio.CancelScope(shield=True):
                        await anyio.to_thread.run_sync(self._end.wait, PATIENCE)
            return f"held {line}"

        return hold


def obedient(heard: Heard) -> Reply:
    """A model whose orders are in the message: ``[[TOOL, ARGUMENTS], ...]`` is called at once, else it is repeated."""
    messages: list[dict[str, Any]] = heard.body["messages"]
    asked = max(n for n, message in enumerate(messages) if message["role"] == "user")
    done = [message["content"] for message in messages[asked + 1 :] if message["role"] == "tool"]
    if heard.text.startswith("[") and not done:
        calls = enumerate(json.loads(heard.text))
        return Reply(calls=tuple(ScriptedCall(name, json.dumps(args), f"c{n}") for n, (name, args) in calls))
    return Reply(f"Done: {' | '.join(done)}" if done else f"You said: {heard.text}", piece=4)


def asks(*calls: tuple[str, dict[str, Any]]) -> str:
    """A message that makes the obedient model ask for these calls."""
    return json.dumps(calls)


def holds(line: str) -> str:
    """A message that makes a turn wait at the gate."""
    return asks(("hold", {"line": line}))


def model(answers: Any, name: str) -> LLM:
    """A scripted model that is asked once: one fault is one failed turn."""
    script = Script(answers)
    return LLM(script.register(f"{name}-{os.getpid()}"), retries=Retries(attempts=1))


def agents_of(*tools: Tool, answers: Any = obedient, name: str = "obedient-server", **settings: Any) -> Catalog:
    """One agent with these tools."""
    return Catalog({"helper": Agent(model(answers, name), tools=list(tools), **settings)})


def two_tenants() -> Keyring:
    """Tenants one and two, with the keys ``key-of-one`` and ``key-of-two``."""
    return Keyring([OneKey(f"key-of-{name}", ApiKey(name, name, name)) for name in ("one", "two")])


class Visits(logging.Handler):
    """Hears of every request that a server in this process is done with: ``POST /api/... 200``."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: queue.Queue[str] = queue.Queue()
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self.errors.append(record.getMessage())
        self._lines.put(record.getMessage())

    def until(self, line: str) -> None:
        """Returns when the server has said this."""
        while self._lines.get(timeout=PATIENCE) != line:
            pass

    def until_begins(self, start: str) -> None:
        """Returns when the server has said something that begins like this."""
        while not self._lines.get(timeout=PATIENCE).startswith(start):
            pass

    def __enter__(self) -> Self:
        logger = logging.getLogger("forkpoint.server")
        self._level = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("forkpoint.server")
        logger.removeHandler(self)
        logger.setLevel(self._level)


def _headers(key: str | None, prefer: str | None) -> dict[str, str]:
    headers = {} if key is None else {"Idempotency-Key": key}
    return headers if prefer is None else {**headers, "Prefer": prefer}
