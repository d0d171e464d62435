"""Work in other threads, and tasks that wait for it, on asyncio and on trio.

anyio can call into an event loop from a thread, but only by blocking that thread until the loop has answered. It can
run a blocking call in a thread, but asyncio's `cancel()` then leaves the thread behind, still at work. So this module
uses what each loop has for a call from outside, one that returns at once, and can wait for a thread to its end.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

import anyio

T = TypeVar("T")

Soon: TypeAlias = Callable[..., Any]
"""Has a function called in an event loop, from any thread, and does not wait for that. Raises `RuntimeError` if the
loop has ended."""


def soon_here() -> Soon:
    """How to call something in the event loop that runs here."""
    if _is_asyncio():
        return asyncio.get_running_loop().call_soon_threadsafe
    import trio

    return trio.lowlevel.current_trio_token().run_sync_soon


class Wakeup:
    """One task waits for it; any thread may set it off."""

    def __init__(self) -> None:
        self._call_soon = soon_here()
        self.rearm()

    def rearm(self) -> None:
        """Makes the next `wait` wait for the next time that it is set off."""
        self._event = asyncio.Event() if _is_asyncio() else anyio.Event()

    async def wait(self) -> None:
        await self._event.wait()

    async def wait_shielded(self) -> None:
        """Waits although the task is being cancelled. asyncio's `cancel()`, which no shield stops, is passed on."""
        cancelled: asyncio.CancelledError | None = None
        while not self._event.is_set():
            try:
                with anyio.CancelScope(shield=True):
                    await self._event.wait()
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def wake(self) -> None:
        """Sets it off."""
        Wakeup.wake_all([self])

    @staticmethod
    def wake_all(wakeups: "Iterable[Wakeup]") -> None:
        """Sets off many at once, with one call into each loop."""
        loops: dict[Soon, list[Wakeup]] = {}
        for wakeup in wakeups:
            loops.setdefault(wakeup._call_soon, []).append(wakeup)
        for call_soon, waiting in loops.items():
            with suppress(RuntimeError):  # that loop has ended, and nobody waits there any more
                call_soon(_set, waiting)


def in_thread(name: str, work: Callable[[], T]) -> "Future[T]":
    """Starts blocking work in a thread of its own.

    It is no thread of a pool, which such long calls would use up; and no daemon, which Python would leave behind in the
    midst of its work when it exits.
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
    except RuntimeError:  # the process ends, and Python 3.12 starts no thread any more: the work is done here
        run()
    return future


async def result_of(future: "Future[T]") -> T:
    """The result of a future of another thread, or its exception. If the caller is cancelled, the future goes on.

    Whatever that thread had called in the caller's loop before it set the result has run by then, also if the result
    is there already: the progress of a call comes before its end.
    """
    await _done(future).wait()
    return future.result()


async def end_of(future: "Future[Any]") -> None:
    """Waits for a future of another thread to its end, although the caller may be cancelled meanwhile."""
    if not future.done():
        await _done(future).wait_shielded()


async def finish_in_thread(work: Callable[[], None]) -> None:
    """Does blocking work in a thread of its own, to its end, although the caller may be cancelled meanwhile."""
    future = in_thread("forkpoint finishing", work)
    await end_of(future)
    future.result()


def _is_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _done(future: "Future[Any]") -> Wakeup:
    wakeup = Wakeup()
    future.add_done_callback(lambda _: wakeup.wake())
    return wakeup


def _set(waiting: list[Wakeup]) -> None:
    for wakeup in waiting:
        wakeup._event.set()
