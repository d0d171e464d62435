"""The updates of a turn, as a stream. Tests: tests/conversation/test_streaming.py."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from forkpoint.backend.callbacks import Callback, Update
from forkpoint.backend.results import Turn
from forkpoint.conversation.portal import wait_for
from forkpoint.errors import UseWith


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


class StreamedTurn(AbstractAsyncContextManager[TurnStream]):
    """A turn that runs while it is entered: ``async with conversation.run_stream("...") as stream``."""

    def __init__(self, method: str, context: AbstractAsyncContextManager[TurnStream]) -> None:
        self._method = method
        self._context = context

    async def __aenter__(self) -> TurnStream:
        return await self._context.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._context.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # a type checker says it first

        def __aiter__(self) -> NoReturn:
            """Raises `UseWith`: a loop that is left early could not cancel the turn."""
            line = f"async with conversation.{self._method}(...) as stream, then: async for update in stream"
            raise UseWith(f"{self._method}()", line)

        __iter__ = __await__ = __aiter__


class SyncTurnStream:
    """The updates of a turn while it runs: an iterator whose last item is the turn."""

    def __init__(self, stream: TurnStream) -> None:
        self._stream = stream

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Update:
        try:
            return wait_for("run_stream()", self._stream.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    @property
    def turn(self) -> Turn | None:
        """The turn, once it was told."""
        return self._stream.turn


class SyncStreamedTurn(AbstractContextManager["SyncTurnStream"]):
    """A turn that runs while it is entered: ``with conversation.run_stream("...") as stream``."""

    def __init__(self, method: str, context: AbstractContextManager[TurnStream]) -> None:
        self._method = method
        self._context = context

    def __enter__(self) -> "SyncTurnStream":
        return SyncTurnStream(self._context.__enter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._context.__exit__(kind, error, trace)

    if not TYPE_CHECKING:  # a type checker says it first

        def __iter__(self) -> NoReturn:
            """Raises `UseWith`: a loop that is left early could not cancel the turn."""
            line = f"with conversation.{self._method}(...) as stream, then: for update in stream"
            raise UseWith(f"{self._method}()", line)

        __next__ = __iter__


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
