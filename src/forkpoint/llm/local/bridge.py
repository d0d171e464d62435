"""Between a thread that blocks and a loop that must not, on asyncio and on trio.

anyio can run a blocking call in a thread, but asyncio's `cancel()` then leaves the thread behind, still at work. Here a
cancelled call is told to stop, and has stopped before its caller goes on.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


class Bell:
    """One task waits for it; any thread may ring it, any number of times."""

    def __init__(self) -> None:
        self._call_soon: Callable[..., Any]
        self._make: Callable[[], asyncio.Event | anyio.Event]
        try:
            self._call_soon = asyncio.get_running_loop().call_soon_threadsafe
            self._make = asyncio.Event
        except RuntimeError:
            import trio

            self._call_soon = trio.lowlevel.current_trio_token().run_sync_soon
            self._make = anyio.Event
        self._event = self._make()

    def ring(self) -> None:
        with suppress(RuntimeError):  # that loop has ended, and nobody waits there any more
            self._call_soon(self._rung)

    async def wait(self) -> None:
        """Returns after the bell was rung, once for any number of rings since the last time."""
        await self._event.wait()
        self._event = self._make()

    def _rung(self) -> None:
        self._event.set()


async def result_of(future: "Future[T]") -> T:
    """What a future of another thread comes to. Cancelled meanwhile, the future is left as it is."""
    bell = Bell()
    future.add_done_callback(lambda _: bell.ring())
    while not future.done():
        await bell.wait()
    return future.result()


async def end_of(future: "Future[Any]") -> None:
    """Waits although the task is being cancelled. asyncio's `cancel()`, which no shield stops, is passed on."""
    bell = Bell()
    future.add_done_callback(lambda _: bell.ring())
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            with anyio.CancelScope(shield=True):
                await bell.wait()
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def in_thread(name: str, work: Callable[[], T]) -> "Future[T]":
    """Starts blocking work in a thread of its own.

    Not in a pool, whose threads such long calls would use up; and no daemon, which Python would leave behind inside of
    llama.cpp when it exits.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    try:
        threading.Thread(target=run, name=name).start()
    except RuntimeError:  # the process ends, and Python 3.12 starts no thread any more: then here
        run()
    return future


async def converse(name: str, work: Callable[[Callable[[T], bool]], None], heard: Callable[[T], None]) -> None:
    """Does blocking work in a thread, and hears in this task what it tells.

    The work gets a function to tell things with, which returns whether to stop. When this task is cancelled, or
    ``heard`` raises, the work is asked to stop, and the task goes on only when the thread has ended.
    """
    bell = Bell()
    told: deque[T] = deque()  # no limit: an answer is no longer than the model's context
    stop = threading.Event()

    def tell(something: T) -> bool:
        told.append(something)
        bell.ring()
        return stop.is_set()

    done = in_thread(name, lambda: work(tell))
    done.add_done_callback(lambda _: bell.ring())
    try:
        while True:
            ended = done.done()  # asked before the last things told are taken, so that none is left behind
            while told:
                heard(told.popleft())
            if ended:
                break
            await bell.wait()
    except BaseException:
        stop.set()
        await end_of(done)
        raise
    done.result()
