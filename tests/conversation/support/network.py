"""A network that a test has in its hand: lines that can be cut, and servers that answer what they are told to."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import msgspec
from tests.conversation.support.agents import PATIENCE
from tests.server.support.serving import Served


class Line:
    """A connection to a server that a test can cut: where a marker stands in what one side sends."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.url = ""
        self.after: list[bytes] = []  # what the server says, told, and then cut
        self.lost: list[bytes] = []  # what the server says, not told
        self.down = False
        self.refused: Callable[[], None] = lambda: None
        self.requests: list[str] = []
        self.open: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}
        self._said = b""
        self._more = asyncio.Event()

    async def until(self, marker: bytes) -> None:
        """Returns when the client has said this."""
        with anyio.fail_after(PATIENCE):
            while marker not in self._said:
                self._more.clear()
                await self._more.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.open[task] = writer
        try:
            await self._pass_on(reader, writer)
        finally:
            del self.open[task]
            await hung_up(writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.down:
            self.refused()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._port)

        async def asked() -> None:
            while some := await reader.read(65536):
                self.requests.append(some.partition(b" HTTP/")[0].decode(errors="replace"))
                self._said += some
                self._more.set()
                back.write(some)
                await back.drain()

        async def answered() -> None:
            while some := await there.read(65536):
                if self.lost and self.lost[0] in some:
                    del self.lost[0]
                    return
                writer.write(some)
                await writer.drain()
                if self.after and self.after[0] in some:
                    del self.after[0]
                    return

        ways = [asyncio.create_task(asked()), asyncio.create_task(answered())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            await hung_up(back)


async def hung_up(writer: asyncio.StreamWriter) -> None:
    """Closes one end: what was passed on arrives, and nothing more does."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def line(server: Served) -> AsyncIterator[Line]:
    made = Line(server.port)
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        listening.close()
        for writer in made.open.values():
            writer.transport.abort()
        await asyncio.gather(*made.open)


@asynccontextmanager
async def canned(*answers: bytes | None) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Something that answers these, one for each request, and keeps what it was asked. None hangs up."""
    left, asked = list(answers), []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head)
        answer = left.pop(0) if left else None
        if answer is not None:
            writer.write(answer)
            await writer.drain()
        await hung_up(writer)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", asked
    finally:
        listening.close()


def answer(body: Any, status: str = "200 OK", kind: str = "application/json", *headers: str) -> bytes:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    lines = [
        f"HTTP/1.1 {status}",
        f"content-type: {kind}",
        f"content-length: {len(data)}",
        "connection: close",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + data


def problem(code: str, status: str, *headers: str, **details: Any) -> bytes:
    error = {"code": code, "message": "no", "param": None, "request_id": "r-1", "details": details}
    return answer({"error": error}, status, "application/json", *headers)
