"""Waking a task from another thread, on asyncio and on trio.

anyio can call into an event loop from a thread, but only by blocking that thread until the loop has answered.
The writer must not wait for its callers, so it uses what each loop has for this: one call that returns at once.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import anyio


class Wakeup:
    """One task waits for it; any thread may set it off."""

    def __init__(self) -> None:
        self._event: asyncio.Event | anyio.Event
        self._call_soon: Callable[..., Any]
        try:
            self._call_soon = asyncio.get_running_loop().call_soon_threadsafe
            self._event = asyncio.Event()
        except RuntimeError:
            import trio

            self._call_soon = trio.lowlevel.current_trio_token().run_sync_soon
            self._event = anyio.Event()

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

    @staticmethod
    def wake_all(wakeups: "Iterable[Wakeup]") -> None:
        """Sets off many at once, with one call into each loop."""
        loops: dict[Callable[..., Any], list[Wakeup]] = {}
        for wakeup in wakeups:
            loops.setdefault(wakeup._call_soon, []).append(wakeup)
        for call_soon, waiting in loops.items():
            with suppress(RuntimeError):  # that loop has ended, and nobody waits there any more
                call_soon(_set, waiting)


async def finish_in_thread(work: Callable[[], None]) -> None:
    """Does blocking work in a thread of its own, to its end, although the caller may be cancelled meanwhile."""
    wakeup = Wakeup()

    def run() -> None:
        try:
            work()
        finally:
            Wakeup.wake_all([wakeup])

    try:
        threading.Thread(target=run, name="forkpoint finishing").start()
    except RuntimeError:  # the process ends, and Python 3.12 starts no thread any more: then here
        run()
    await wakeup.wait_shielded()


def _set(waiting: list[Wakeup]) -> None:
    for wakeup in waiting:
        wakeup._event.set()
