"""HTTP/1.1 on one connection: requests in, whole or chunked responses out, and ways to break off."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import h11
import msgspec
from msgspec import Struct

_READ = 1 << 16

Headers = Sequence[tuple[str, str]]


class HttpRequest(Struct, frozen=True):
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Peer:
    """One client's connection. It is used for one request after another until either side ends it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER)

    async def request(self) -> HttpRequest | None:
        """The next request; None if the client has no more. Raises `h11.RemoteProtocolError` if it is not HTTP."""
        if self._http.our_state is h11.MUST_CLOSE:
            return None
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        head: h11.Request | None = None
        body: list[bytes] = []
        while True:
            match self._http.next_event():
                case h11.Request() as head:
                    pass
                case h11.Data(data=data):
                    body.append(bytes(data))
                case h11.EndOfMessage() if head is not None:
                    return _request(head, b"".join(body))
                case event if event is h11.NEED_DATA:
                    if self._http.they_are_waiting_for_100_continue:
                        await self._write(h11.InformationalResponse(status_code=100, headers=[]))
                    self._http.receive_data(await self._reader.read(_READ))
                case _:
                    return None  # closed, by them or by us

    async def left(self) -> None:
        """Returns when the client has left. What it sends meanwhile is kept for the next request."""
        while data := await self._reader.read(_READ):
            self._http.receive_data(data)

    async def send_json(self, status: int, document: Any, headers: Headers = ()) -> None:
        """A whole response."""
        await self.send_whole(status, msgspec.json.encode(document), headers)

    async def send_whole(self, status: int, body: bytes, headers: Headers = (), *, only: int | None = None) -> None:
        """A whole response, or only so many bytes of one that promises more."""
        sent = (*headers, ("content-type", "application/json"), ("content-length", str(len(body))))
        await self._write(h11.Response(status_code=status, headers=list(sent)))
        await self._write(h11.Data(data=body[:only]))
        if only is None:
            await self._write(h11.EndOfMessage())

    async def start_stream(self, headers: Headers = ()) -> None:
        """The head of a stream of events."""
        sent = (*headers, ("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache"))
        await self._write(h11.Response(status_code=200, headers=[*sent, ("transfer-encoding", "chunked")]))

    async def send(self, data: bytes) -> None:
        """Some of a stream."""
        await self._write(h11.Data(data=data))

    async def end_stream(self) -> None:
        await self._write(h11.EndOfMessage())

    async def close(self) -> None:
        """Ends the connection once everything is sent. In the middle of a response the client sees it cut."""
        self._writer.close()
        await self._closed()

    async def abort(self) -> None:
        """Ends the connection at once."""
        self._writer.transport.abort()
        await self._closed()

    async def _closed(self) -> None:
        with suppress(OSError):  # the client was faster
            await self._writer.wait_closed()

    async def _write(self, event: h11.Event) -> None:
        if data := self._http.send(event):
            self._writer.write(data)
            await self._writer.drain()


def _request(head: h11.Request, body: bytes) -> HttpRequest:
    headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers.raw_items())
    return HttpRequest(head.method.decode(), head.target.decode("latin-1"), headers, body)
