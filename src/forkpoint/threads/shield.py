"""Doing something to its end although whoever waits for it is being cancelled.
Tests: tests/conversation/test_turns.py, test_place.py."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def finished(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What the work comes to. A cancellation waits for that, and then goes on.

    A shield is not enough on asyncio: its own ``cancel()`` goes through, and a second one, as when a timeout and a
    shutdown meet, would stop the very end of a turn. So there the work has a task of its own.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # trio, where a shield stops everything
        with anyio.CancelScope(shield=True):
            return await work()
    task = loop.create_task(work())
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])  # cancelled itself, it leaves the task alone
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # it was looked at
        raise cancelled
    return task.result()
