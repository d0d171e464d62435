"""Server-sent events: how a stream is written, and how it ends when its reader has gone.
Tests: tests/server/test_feed.py."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

TYPE = "text/event-stream"
STALLED = 300.0
"""Seconds after which a reader that takes nothing is given up. It can come back, and loses nothing committed."""
HEARTBEAT = b": heartbeat\n\n"
OPENING = b"retry: 1000\n\n"  # how long a client is to wait before it reconnects, in milliseconds
_COME_BACK = 500, 3000  # the same, for readers of a server that stops: at least and at most
_HEADERS = (
    (b"content-type", TYPE.encode()),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),  # so that a proxy does not wait for more before it passes anything on
)
PARKED = "forkpoint.streams"
"""The key of a list in a request's scope: the door follows the streams in it once the framework is done."""


def closing() -> bytes:
    """The last event of a stream whose server stops. It asks each reader to come back at another moment: thousands
    reconnect at once otherwise, to the servers that are left."""
    return f"retry: {random.randint(*_COME_BACK)}\n".encode() + frame("closing", b"{}")  # noqa: S311


def frame(event: str, data: bytes, *, id: str | None = None) -> bytes:
    """One event of a stream. ``data`` is JSON, in which a line break is no more than a blank."""
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\r", b" ").replace(b"\n", b" ")
    head = f"event: {event}\n" if id is None else f"id: {id}\nevent: {event}\n"
    return b"".join((head.encode(), b"data: ", data, b"\n\n"))


class EventStream(Response):
    """An answer that writes the frames of an async iterator, until it ends or the client has gone.

    Thousands of streams wait at once, so each holds little: no task group, no queue, and not the last frame. If the
    request's scope has a list for streams, the stream parks there, and the door calls `follow` when the framework is
    done: most of a stream's memory would be what the framework keeps for each request.
    """

    def __init__(self, frames: AsyncIterator[bytes], *, left: Callable[[], None] | None = None) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._frames = frames
        self._left = left  # called at the end, however it came
        self.raw_headers = list(_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parked: list[EventStream] | None = scope.get(PARKED)
        if parked is not None:
            parked.append(self)
        else:
            await self.follow(receive, send)

    async def follow(self, receive: Receive, send: Send, is_allowed: Callable[[], bool] = lambda: True) -> None:
        """Writes the stream until it ends, the client has gone, or ``is_allowed`` says that it may read no more.

        That is asked before each frame, heartbeats too. A client that may read no more has gone, as far as its turn is
        concerned.
        """
        try:
            await _while_there(self._write(send, is_allowed), receive)
        finally:
            try:
                with suppress(Exception):
                    await _closed(self._frames)
            finally:
                if self._left is not None:
                    self._left()

    async def _write(self, send: Send, is_allowed: Callable[[], bool]) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        with suppress(OSError):  # the client has gone, or takes nothing (a timeout is one of these): it can come back
            async for some in self._frames:
                if not is_allowed():
                    break
                if some:
                    async with asyncio.timeout(STALLED):
                        await send({"type": "http.response.body", "body": some, "more_body": True})
                del some  # it may be large, and the next may be hours away
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_gone(receive: Receive) -> None:
    """Waits until the client has closed the connection."""
    while True:
        message: Any = await receive()
        if message["type"] == "http.disconnect":
            return


async def _while_there(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Does some work, to its end or until the client has gone."""
    worker = asyncio.current_task()
    assert worker is not None
    stopped = False

    def stop(_: object) -> None:
        nonlocal stopped
        if not done:
            stopped = True
            worker.cancel()

    done = False
    watch = asyncio.ensure_future(until_gone(receive))
    watch.add_done_callback(stop)
    try:
        await work
    except asyncio.CancelledError:
        if not stopped or worker.uncancel() > 0:
            raise  # somebody else wants it to stop
    finally:
        done = True
        watch.cancel()


async def _closed(frames: AsyncIterator[bytes]) -> None:
    close = getattr(frames, "aclose", None)
    if close is not None:
        await close()
