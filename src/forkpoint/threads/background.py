"""A task that belongs to nobody here: it goes on beside whoever started it, on asyncio and on trio."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

import anyio


class Background:
    """A task that was started with `start`. Whoever has no use for it any more cancels it."""

    def __init__(self) -> None:
        self._scope = anyio.CancelScope()
        self._task: asyncio.Task[None] | None = None  # asyncio itself would let go of a task that nobody holds

    @classmethod
    def start(cls, work: Callable[[], Coroutine[Any, Any, None]]) -> "Background":
        """Starts a task. ``work`` must raise nothing: nobody would hear of it."""
        made = cls()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            import trio

            trio.lowlevel.spawn_system_task(made._run, work)
        else:
            made._task = loop.create_task(made._run(work), context=Context())  # no turn or span is around it
        return made

    def cancel(self) -> None:
        """Stops the task soon, if it has not ended."""
        self._scope.cancel()

    async def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with self._scope:
            await work()
