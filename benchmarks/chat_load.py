"""The load of chat completions and responses: so many clients at once, each with a conversation and a connection of its
own.

It runs in a process of its own, on bare sockets with a parser in C, so that it takes little from what it measures; how
much it took is part of what it reports. Orders come as lines of JSON on standard input, one at a time. A load is
prepared first, and says so: connections are made, and conversations forked; then it runs.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
import uvloop
from msgspec import Struct

from benchmarks.server_load import QUESTION, SAID, Connection, Form, cpu
from benchmarks.server_model import MODEL, PIECES, WORDS

Way: TypeAlias = Literal["latest", "full", "bare", "response"]
"""What a client sends: its newest message, its whole list, the whole list to a server that keeps none, or its newest
message as a request for a response."""

PATH = "/v1/chat/completions"
_ROOT = Path(__file__).parents[1]


class Build(Struct, frozen=True, tag=True):
    """A history to be made: a conversation of Forkpoint with so many turns, each a request of its own."""

    server: str
    stored: int


class Task(Struct, frozen=True, tag=True):
    """So many clients against a server, each with some conversations, one after another, that have turns already."""

    server: str  # its address
    path: str
    way: Way
    form: Form
    clients: int
    conversations: int  # of each client
    turns: int  # of each conversation, beyond those that it has
    stored: int  # that it has
    seconds: float  # after which no turn begins, however few there were


class Report(Struct, frozen=True):
    """What came of it. Times are in seconds, one for each turn."""

    seconds: float
    own: list[float]  # as the client saw it, without the model's
    cpu: float  # of this process
    failures: list[str]


class Load:
    """The process, from outside."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def build(self, order: Build) -> None:
        """Makes a history."""
        self._ask(order)

    def prepare(self, task: Task) -> None:
        """Makes all ready that is not to be measured."""
        self._ask(task)

    def run(self) -> Report:
        """Runs what was prepared."""
        return msgspec.json.decode(self._ask(None), type=Report)

    def _ask(self, order: object) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the load has died")
        return answer


@contextmanager
def loading() -> Iterator[Load]:
    """The process, for as long as the block lasts."""
    command = [sys.executable, "-m", "benchmarks.chat_load"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT) as process:
        assert process.stdin is not None
        with process.stdin:
            yield Load(process)


# In the process.


class _History(Struct):
    """A conversation as its client has it: messages written out, ready to be sent."""

    turns: int = 0
    messages: bytes = b""

    def then(self, answer: bytes) -> "_History":
        """One turn more."""
        said = b'%b,{"role":"assistant","content":"%b"}' % (_USER, answer)
        return _History(self.turns + 1, self.messages + said + b",")


_USER = msgspec.json.encode({"role": "user", "content": QUESTION})
_SYSTEM = msgspec.json.encode({"role": "system", "content": "Be short."})
_ANSWER = (WORDS * PIECES).encode()  # and its last words, which say how it was made


async def _connected(server: str) -> Connection:
    host, _, port = urlsplit(server).netloc.rpartition(":")
    _, connection = await asyncio.get_running_loop().create_connection(Connection, host, int(port))
    return connection


class _Talk:
    """One conversation of a client, on the client's connection."""

    def __init__(self, task: Task, connection: Connection, name: str, history: _History) -> None:
        self._task = task
        self._connection = connection
        self._name = name
        self.history = history

    async def turn(self, way: Way, **headers: str) -> float:
        """Runs one, checks its answer, and gives what it took without the model. Raises `ValueError`."""
        request = self._request(way, headers)
        started = time.perf_counter()
        status, body = await self._connection.ask(request)
        whole = time.perf_counter() - started
        found = SAID.search(body)
        if status != 200 or found is None or int(found[1]) != 2 * self.history.turns + 2:
            raise ValueError(f"{status}: {body[-300:]!r}")
        if self._task.form == "sse" and not _ends(way, body):
            raise ValueError(f"it does not end: {body[-300:]!r}")
        self.history = self.history.then(_ANSWER + found[0])
        return whole - int(found[2]) / 1e6

    def _request(self, way: Way, headers: dict[str, str]) -> bytes:
        messages = {
            "latest": (_USER,),
            "response": (_USER,),
            "full": (self.history.messages, _USER),
            "bare": (_SYSTEM, b",", self.history.messages, _USER),
        }[way]
        stream = b',"stream":true' if self._task.form == "sse" else b""
        field = b"input" if way == "response" else b"messages"
        body = b"".join((b'{"model":"%b"%b,"%b":[' % (MODEL.encode(), stream, field), *messages, b"]}"))
        lines = [
            f"POST {self._task.path} HTTP/1.1",
            f"Host: {urlsplit(self._task.server).netloc}",
            "Content-Type: application/json",
        ]
        if way != "bare":
            headers = {"X-Conversation-Id": self._name, **headers}
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return "\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode() + body


def _ends(way: Way, body: bytes) -> bool:
    """Whether a stream has its last event."""
    if way == "response":
        return body[body.rfind(b"event: ") :].startswith(b"event: response.completed\n")
    return body.endswith(b"data: [DONE]\n\n")


class _Clients:
    """All who ask at once, and what they saw."""

    def __init__(self, task: Task, history: _History, number: int) -> None:
        self._task = task
        self._history = history
        self._number = number
        self._more = {"X_Conversation_History": "full"} if task.way == "full" else {}
        self._talks: list[list[_Talk]] = []  # of each client
        self._connections: list[Connection] = []
        self._own: list[float] = []
        self._failures: list[str] = []

    async def prepare(self) -> None:
        """Each has turns that are not measured. With them Forkpoint forks the history, so that all have one alike."""
        for client in range(self._task.clients):
            connection = await _connected(self._task.server)
            names = [f"chat-{self._number}-{client}-{talk}" for talk in range(self._task.conversations)]
            self._connections.append(connection)
            self._talks.append([_Talk(self._task, connection, name, self._history) for name in names])
        await asyncio.gather(*map(self._first_turns, self._talks))

    async def _first_turns(self, talks: list[_Talk]) -> None:
        if self._task.way == "bare":
            await talks[0].turn("bare")
            for talk in talks[1:]:
                talk.history = talks[0].history
        else:
            for talk in talks:
                await talk.turn(self._task.way, X_Fork_From=_name(self._task.stored), **self._more)

    async def run(self) -> Report:
        used, started = cpu(), time.perf_counter()
        await asyncio.gather(*(self._client(talks, started + self._task.seconds) for talks in self._talks))
        report = Report(time.perf_counter() - started, self._own, cpu() - used, self._failures[:5])
        for connection in self._connections:
            connection.close()
        return report

    async def _client(self, talks: list[_Talk], until: float) -> None:
        try:
            for talk in talks:
                for _ in range(self._task.turns):
                    if time.perf_counter() > until:
                        return
                    self._own.append(await talk.turn(self._task.way, **self._more))
        except (OSError, RuntimeError, ValueError) as error:  # uvloop's word for a connection that was closed
            self._failures.append(str(error))


async def _built(order: Build) -> _History:
    connection = await _connected(order.server)
    task = Task(order.server, PATH, "latest", "json", 1, 1, 0, 0, 0.0)
    talk = _Talk(task, connection, _name(order.stored), _History())
    for _ in range(order.stored):
        await talk.turn("latest")
    connection.close()
    return talk.history


def _name(stored: int) -> str:
    return f"stored-{stored}"


def main() -> None:
    histories: dict[int, _History] = {}
    prepared: _Clients | None = None
    decode = msgspec.json.Decoder(Build | Task | None).decode
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for number, line in enumerate(sys.stdin.buffer):
            answer: Report | None = None
            match decode(line):
                case Build() as order:
                    histories[order.stored] = runner.run(_built(order))
                case Task() as task:
                    prepared = _Clients(task, histories[task.stored], number)
                    runner.run(prepared.prepare())
                case None:
                    assert prepared is not None
                    answer = runner.run(prepared.run())
            sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
