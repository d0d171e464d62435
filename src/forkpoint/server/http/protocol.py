"""HTTP as it comes from the socket. Bytes that are not HTTP, and a head that does not end, are refused here.

The refusal has the one envelope. It comes before there is a request, so the door does not see it; its line in the log
has the same request id. Tests: tests/server/test_patience.py.
"""

import asyncio
import logging

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from forkpoint.errors import BadRequest, ForkpointError, TooLarge, TooSlow
from forkpoint.ids import new_id
from forkpoint.server.http.door import refusal

LONGEST_HEAD = 64 * 1024
"""Bytes of a request before its body: its address and its headers."""

SLOWEST_HEAD = 30.0
"""Seconds within which it must have come, once there is a connection or its first byte."""

_log = logging.getLogger("forkpoint.server")


class HttpProtocol(HttpToolsProtocol):
    """A connection of uvicorn."""

    _head: int | None = 0  # how many bytes of a head have come; None while a body comes
    _late: asyncio.TimerHandle | None = None  # what ends a connection that says nothing

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._head += len(data)
        super().data_received(data)
        if self._head is not None and self._head > LONGEST_HEAD and not self.transport.is_closing():
            self._refuse(TooLarge("head of the request", self._head, LONGEST_HEAD))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head = self._head or 0
        self._wait_for_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is not None:  # what comes after the body means nothing here, and may be without end
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head = None
        self._stop_waiting()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(BadRequest("it is not HTTP/1.1 as this server understands it"))

    def _wait_for_head(self) -> None:
        self._stop_waiting()
        self._late = self.loop.call_later(SLOWEST_HEAD, self._too_late)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        if not self.transport.is_closing():
            self._refuse(TooSlow("head", SLOWEST_HEAD))

    def _refuse(self, error: ForkpointError) -> None:
        id = new_id()
        status, body, headers = refusal(error, id)
        _log.info("%s", error, extra={"fields": {"request_id": id, "status": status}})
        headers |= {"Content-Length": str(len(body)), "Connection": "close", "X-Request-Id": id}
        lines = b"".join(f"{name.lower()}: {value}\r\n".encode() for name, value in headers.items())
        self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + body)
        self.transport.close()
