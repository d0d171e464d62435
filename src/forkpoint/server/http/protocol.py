"""HTTP as it comes from the socket. Bytes that are not HTTP, and a head that does not end, are refused here.

The refusal has the one envelope. It comes before there is a request, so the door does not see it; its line in the log
has the same request id. While a request before it is still being answered, the refusal is not written: the client would
take it for that answer. Tests: tests/server/test_patience.py, test_limits.py, test_pipelining.py.
"""

import asyncio
import logging
import sys
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from forkpoint.errors import BadRequest, ForkpointError, TooLarge, TooSlow
from forkpoint.ids import new_id
from forkpoint.server.http.door import refusal

LONGEST_HEAD = 64 * 1024
"""Bytes of a request before its body: its address and its headers."""

SLOWEST_HEAD = 30.0
"""Seconds within which it must have come, once there is a connection or its first byte."""

_END = b"\r\n\r\n"  # of a head, and of a body in chunks
_STEP = 1024  # bytes of such a body that are handed on at once

_log = logging.getLogger("forkpoint.server")
_socket_log = logging.getLogger("forkpoint.server.websocket")
_socket_log.setLevel(logging.WARNING)


class SocketProtocol(WebSocketsSansIOProtocol):
    """A WebSocket of uvicorn. The door logs it, and never with the query of its address."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _socket_log

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body":  # it was refused, and there will be no handshake
            self.handshake_complete = True


class HttpProtocol(HttpToolsProtocol):
    """A connection of uvicorn.

    What comes is handed to the parser in pieces that end where a head or a body ends, as far as that can be told from
    outside. So the bytes of each head are counted exactly, however the client splits what it sends.
    """

    _head: int | None = 0  # how many bytes of a head have come; None while a body comes
    _tail: bytes = b""  # the last bytes that came, in which half of an end may stand
    _left: int | None = None  # how many bytes of the body are to come; None if its head does not say it
    _late: asyncio.TimerHandle | None = None  # what ends a connection that says nothing
    _is_over: bool = False  # whether the connection closes after the requests that came whole; it is not read any more
    _is_socket: bool = False  # whether the connection is a WebSocket now, which another protocol reads
    _is_last: bool = False  # whether the connection closes after the request whose head is coming

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        start = 0
        while start < len(data) and not self._is_over and not self.transport.is_closing():
            if self._is_socket:  # what came together with the request to upgrade
                self.transport.get_protocol().data_received(data[start:])  # type: ignore[attr-defined]
                return
            if self._head is None:
                start += self._receive_body(data[start:] if start else data)
            else:
                start += self._receive_head(data[start:] if start else data)

    def _receive_head(self, data: bytes) -> int:
        """Takes what belongs to the head. Returns how many bytes that were."""
        assert self._head is not None
        piece = self._until((self._tail + data).find(_END), data)
        self._head += len(piece)
        if self._head > LONGEST_HEAD:
            self._refuse(TooLarge("head of the request", self._head, LONGEST_HEAD))
        else:
            super().data_received(piece)
        return len(piece)

    def _receive_body(self, data: bytes) -> int:
        """Takes what belongs to the body, or a part of it. Returns how many bytes that were."""
        if self._left:
            piece = data[: self._left]
        else:  # in chunks, the last of which ends like a head; within the others that may stand too, and means nothing
            some = data[:_STEP]
            piece = self._until((self._tail + some).rfind(_END), some)
        super().data_received(piece)
        return len(piece)

    def _until(self, found: int, data: bytes) -> bytes:
        """The data up to the end that was found in the tail with the data behind it; all of it if there is no end."""
        piece = data if found < 0 else data[: found + len(_END) - len(self._tail)]
        self._tail = (self._tail + piece)[1 - len(_END) :]
        return piece

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._left = None
        self._wait_for_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is None:  # what comes after the body means nothing here, and may be without end
            return
        if name.lower() == b"content-length":
            self._left = int(value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head, self._tail = None, b""
        self._stop_waiting()
        super().on_headers_complete()
        if self._is_last and self.cycle is not None:  # it is None before an upgrade
            self.cycle.keep_alive = False

    def _should_upgrade(self) -> bool:
        # An answer that is under way, to a request that came before, cannot be written to a WebSocket.
        return super()._should_upgrade() and not self._is_answering and self.scope["method"] == "GET"

    def handle_websocket_upgrade(self) -> None:
        self._stop_waiting()
        self._is_socket = True
        super().handle_websocket_upgrade()

    def on_body(self, body: bytes) -> None:
        if self._left is not None:
            self._left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head, self._tail, self._left = 0, b"", None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._is_over and (not self.pipeline or self.pipeline[-1][0].more_body):  # the rest of a body never comes
            self.transport.close()
        super().on_response_complete()

    def shutdown(self) -> None:
        """The server stops: the connection closes, but a request of which some has come is answered first."""
        if self._head and not self._is_answering:
            self._is_last = True
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        said = f" ({error})" if (error := sys.exception()) is not None else ""  # the parser's words have no values
        self._refuse(BadRequest(f"it is not HTTP/1.1 as this server understands it{said}"))

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
        """Answers with an error and closes the connection; or only closes it, after the answers that are under way."""
        id = new_id()
        status, body, headers = refusal(error, id)
        fields: dict[str, object] = {"request_id": id}
        if self._is_answering:
            self._is_over = True
            self.cycle.keep_alive = False  # so that the last answer says that the connection closes
            _log.info("%s", error, extra={"fields": fields})
            return
        _log.info("%s", error, extra={"fields": fields | {"status": status}})
        headers |= {"Content-Length": str(len(body)), "Connection": "close", "X-Request-Id": id}
        lines = b"".join(f"{name.lower()}: {value}\r\n".encode() for name, value in headers.items())
        self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + body)
        self.transport.close()

    @property
    def _is_answering(self) -> bool:
        """Whether an answer is under way. A request whose body has not come whole has none, unless it has begun."""
        if self.cycle is None or self.cycle.response_complete:  # type: ignore[redundant-expr]  # None at first
            return False
        return bool(self.pipeline) or self.cycle.response_started or not self.cycle.more_body
