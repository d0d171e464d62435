"""The thread in which MCP connections live: one event loop for the whole process, started when it is first needed.

The SDK's context managers must be entered and left by one task, and that task must outlive the turn that first needed
the server. A conversation's backend has no task group to start such a task in, and its event loop may be asyncio's or
trio's, and may end long before the process does: with each ``asyncio.run`` of a script. So connections have a loop of
their own, which whoever makes a call hands its work to. The price is one hop from thread to thread for each call; the
gain is that a server is started once a process, and not once an event loop.

A call differs from one of `conversation.portal`: its caller is an event loop, which must not block, and a cancelled
caller does not wait for the end of its call. Tests: tests/agent/mcp/test_connections.py.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from forkpoint.threads.thread_loop import ThreadLoop
from forkpoint.threads.wakeup import Soon, result_of

T = TypeVar("T")

ENDING = 5.0
"""Seconds that the process waits for servers to end, when it ends itself."""


async def there(call: Callable[[TaskGroup], Awaitable[T]]) -> T:
    """What a coroutine function returns or raises, run in the thread with its task group. A cancellation is passed on,
    and not waited for: a server that does not listen keeps nobody."""
    work = _Work(call)
    group, soon = _loop.handle()
    soon(group.start_soon, work.run, group)
    try:
        return await result_of(work.value)
    finally:
        if not work.value.done():
            with suppress(RuntimeError):  # the thread has ended, and so has the work
                soon(work.cancel)


class _Work(Generic[T]):
    """Something to be done in the thread for somebody elsewhere. If it is cancelled it has no value: nobody waits for
    one any more, or is about to be cancelled as well because the process ends."""

    def __init__(self, call: Callable[[TaskGroup], Awaitable[T]]) -> None:
        self.value: Future[T] = Future()
        self._call = call
        self._cancelled = False
        self._scope: anyio.CancelScope | None = None  # of the thread's loop, so it is made there

    async def run(self, group: TaskGroup) -> None:
        if self._cancelled:
            return
        with anyio.CancelScope() as self._scope:
            try:
                value = await self._call(group)
            except Exception as error:
                self.value.set_exception(error)
            else:
                self.value.set_result(value)

    def cancel(self) -> None:
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()


async def _serve(started: Callable[[tuple[TaskGroup, Soon]], None]) -> None:
    async with anyio.create_task_group() as group:
        # Within the thread's own context: that of a caller may say that trio runs here.
        soon = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, context=copy_context())
        started((group, soon))
        await anyio.sleep_forever()


def _stop(loop: tuple[TaskGroup, Soon]) -> None:
    group, soon = loop
    soon(group.cancel_scope.cancel)


_loop = ThreadLoop("forkpoint mcp", _serve, _stop, patience=ENDING)
