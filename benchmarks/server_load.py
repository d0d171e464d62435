"""The load on a server: so many conversations at once, each on a connection of its own, turn after turn.

It runs in a process of its own, on bare sockets with a parser in C, so that it takes little from what it measures; how
much it took is part of what it reports. Tasks come as lines of JSON on standard input, one at a time.
"""

import asyncio
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias, cast
from urllib.parse import urlsplit

import httptools
import msgspec
import uvloop
from msgspec import Struct

Form: TypeAlias = Literal["json", "sse"]

FORKPOINT = "forkpoint"
QUESTION = "What does the log say about the build that failed this morning, and what else was there?"
SAID = re.compile(rb"said of (\d+) messages in (\d+) us\.")
_ROOT = Path(__file__).parents[1]


class Task(Struct, frozen=True):
    """What to do: so many clients against a server, each with some conversations, one after another."""

    server: str  # its address
    path: str  # of the proxy's call; `FORKPOINT` for ours
    form: Form
    clients: int
    conversations: int  # of each client
    turns: int  # of each conversation
    prefix: str = ""  # of the newest message
    spread: float = 0.0  # seconds over which the clients begin


class Report(Struct, frozen=True):
    """What came of it. Times are in seconds, one for each turn."""

    seconds: float
    whole: list[float]  # as the client saw it
    own: list[float]  # without the model's
    cpu: float  # of this process
    failures: list[str]


class Load:
    """The process, from outside."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def run(self, task: Task) -> Report:
        """Runs a task to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(task) + b"\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline(), type=Report)


@contextmanager
def loading() -> Iterator[Load]:
    """The process, for as long as the block lasts."""
    command = [sys.executable, "-m", "benchmarks.server_load"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT) as process:
        assert process.stdin is not None
        with process.stdin:
            yield Load(process)


class Connection(asyncio.Protocol):
    """One connection with one request on it at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._body: list[bytes] = []
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by their class

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), b"".join(self._body)))
        self._body.clear()
        self._parser = httptools.HttpResponseParser(self)

    def ask(self, request: bytes) -> "asyncio.Future[tuple[int, bytes]]":
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        self._transport.close()


def post(path: str, host: str, body: object, form: Form = "json") -> bytes:
    """A request, written out."""
    content = msgspec.json.encode(body)
    accept = "text/event-stream" if form == "sse" else "application/json"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAccept: {accept}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class _Clients:
    """All who ask at once, and what they saw."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._host = urlsplit(task.server).netloc
        self._path = task.path
        self._message = f"{task.prefix} {QUESTION}".strip()
        self._sent: dict[int, bytes] = {}
        self.whole: list[float] = []
        self.own: list[float] = []
        self.failures: list[str] = []

    async def run(self) -> Report:
        paths = await self._prepared()
        connections = [None if self._task.spread else await self._connected() for _ in paths]
        pause = self._task.spread / len(paths)
        used, started = cpu(), time.perf_counter()
        clients = enumerate(zip(connections, paths, strict=True))
        await asyncio.gather(*(self._client(*client, number * pause) for number, client in clients))
        return Report(time.perf_counter() - started, self.whole, self.own, cpu() - used, self.failures[:5])

    async def _connected(self) -> Connection:
        host, _, port = self._host.rpartition(":")
        _, connection = await asyncio.get_running_loop().create_connection(Connection, host, int(port))
        return connection

    async def _prepared(self) -> list[list[str]]:
        """The paths that each client asks at. Forkpoint has the conversations made first."""
        each = range(self._task.conversations)
        if self._path != FORKPOINT:
            return [[self._path for _ in each] for _ in range(self._task.clients)]
        connection = await self._connected()
        create = post("/api/conversations", self._host, {})

        async def made() -> str:
            _, body = await connection.ask(create)
            return f"/api/conversations/{msgspec.json.decode(body)['id']}/turns"

        paths = [[await made() for _ in each] for _ in range(self._task.clients)]
        connection.close()
        return paths

    async def _client(self, connection: Connection | None, paths: list[str], later: float) -> None:
        if connection is None:  # made when it is used: a server closes one that is idle for some seconds
            await asyncio.sleep(later)
            connection = await self._connected()
        try:
            for path in paths:
                for number in range(self._task.turns):
                    await self._turn(connection, self._request(path, number), number)
        except (OSError, RuntimeError, ValueError) as error:  # uvloop's word for a connection that was closed
            self.failures.append(str(error))
        finally:
            connection.close()

    async def _turn(self, connection: Connection, request: bytes, number: int) -> None:
        started = time.perf_counter()
        status, body = await connection.ask(request)
        whole = time.perf_counter() - started
        found = SAID.search(body)
        if status != 200 or found is None or int(found[1]) != 2 * number + 2:
            raise ValueError(f"{status}: {body[-300:]!r}")
        self.whole.append(whole)
        self.own.append(whole - int(found[2]) / 1e6)

    def _request(self, path: str, number: int) -> bytes:
        """The request of a turn with so many before it. A proxy knows none of them, so it is sent all."""
        if self._path == FORKPOINT:
            return post(path, self._host, {"message": self._message}, self._task.form)
        if number not in self._sent:  # the same for all clients, so that making it costs no time here
            answer = {"role": "assistant", "content": "Nothing unusual is in the log, " * 20 + "said of it."}
            question = {"role": "user", "content": self._message}
            messages = [{"role": "system", "content": "Be short."}, *[question, answer] * number, question]
            self._sent[number] = post(path, self._host, {"messages": messages}, self._task.form)
        return self._sent[number]


def cpu() -> float:
    """Seconds of processor time that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin.buffer:
            report = runner.run(_Clients(msgspec.json.decode(line, type=Task)).run())
            sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
