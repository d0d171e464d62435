"""The updates of a turn, as a stream. Tests: tests/conversation/test_streaming.py."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Self

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from forkpoint.backend.callbacks import Callback, Update
from forkpoint.backend.results import Turn


class TurnStream:
    """The updates of a turn while it runs: an async iterator whose last item is the turn.

    If the turn fails, the iterator raises what `run` would raise.
    """

    def __init__(self, receive: MemoryObjectReceiveStream[Update], failed: "list[Exception]") -> None:
        self._receive = receive
        self._failed = failed
        self.turn: Turn | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Update:
        with suppress(anyio.EndOfStream):
            return await self._receive.receive()
        if self._failed:
            raise self._failed[0]
        raise StopAsyncIteration


@asynccontextmanager
async def streamed(start: Callable[[Callback], Awaitable[Turn]]) -> AsyncIterator[TurnStream]:
    """Runs a turn in a task of its own and streams its updates. A slow reader does not hold up the turn."""
    send, receive = anyio.create_memory_object_stream[Update](math.inf)
    failed: list[Exception] = []
    raised: BaseException | None = None

    def tell(update: Update) -> None:
        if not isinstance(update, Turn):
            send.send_nowait(update)

    stream = TurnStream(receive, failed)

    async def work() -> None:
        with send:
            try:
                stream.turn = await start(tell)  # set even if the reader has left: the turn may have committed
                send.send_nowait(stream.turn)
            except Exception as error:
                failed.append(error)

    try:
        with receive:
            async with anyio.create_task_group() as group:
                group.start_soon(work)
                try:
                    yield stream
                except BaseException as error:
                    raised = error
                    raise
                finally:
                    group.cancel_scope.cancel()
    except BaseExceptionGroup:
        if raised is not None:
            raise raised from None  # the reader's own error, without the group around it
        raise
