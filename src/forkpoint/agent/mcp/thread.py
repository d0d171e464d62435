"""The thread in which MCP connections live: one event loop for the whole process, started when it is first needed.

The SDK's context managers must be entered and left by one task, and that task must outlive the turn that first needed
the server. A conversation's backend has no task group to start such a task in, and its event loop may be asyncio's or
trio's, and may end long before the process does: with each ``asyncio.run`` of a script. So connections have a loop of
their own, which whoever makes a call hands its work to. The price is one hop from thread to thread for each call; the
gain is that a server is started once a process, and not once an event loop.
"""

import asyncio
import atexit
import functools
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Generic, TypeVar

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

T = TypeVar("T")
Soon = Callable[..., Any]
"""Has a function called in an event loop, from any thread, and does not wait for that."""

ENDING = 5.0
"""Seconds that the process waits for servers to end, when it ends itself."""


async def there(call: Callable[[TaskGroup], Awaitable[T]]) -> T:
    """What a coroutine function returns or raises, run in the thread with its task group. A cancellation is passed on,
    and not waited for: a server that does not listen keeps nobody."""
    work = _Work(call, here())
    group, soon = _the_loop()
    soon(group.start_soon, work.run, group)
    try:
        await work.done.wait()
    finally:
        if not work.done.is_set():
            with suppress(RuntimeError):  # the thread has ended, and so has the work
                soon(work.cancel)
    return work.outcome()


def here() -> Soon:
    """How to call something in the event loop that runs here, without waiting for it: that loop may wait for us."""
    native: Any = anyio.lowlevel.current_token().native_token
    soon: Soon = native.call_soon_threadsafe if hasattr(native, "call_soon_threadsafe") else native.run_sync_soon
    return soon


class _Work(Generic[T]):
    """Something to be done in the thread for somebody elsewhere."""

    def __init__(self, call: Callable[[TaskGroup], Awaitable[T]], tell: Soon) -> None:
        self._call = call
        self._tell = tell
        self._value: tuple[T, ...] = ()
        self._error: Exception | None = None
        self._cancelled = False
        self._scope: anyio.CancelScope | None = None  # of the thread's loop, so it is made there
        self.done = anyio.Event()

    async def run(self, group: TaskGroup) -> None:
        if self._cancelled:
            return
        with anyio.CancelScope() as self._scope:
            try:
                self._value = (await self._call(group),)
            except Exception as error:
                self._error = error
        if not (group.cancel_scope.cancel_called or self._cancelled):  # else nobody is there to be told
            with suppress(RuntimeError):  # that loop has ended
                self._tell(self.done.set)

    def cancel(self) -> None:
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        (value,) = self._value
        return value


_lock = threading.Lock()
_loop: tuple[TaskGroup, Soon] | None = None
_thread: threading.Thread | None = None
_ending = False  # the process is: nothing is started any more


def _the_loop() -> tuple[TaskGroup, Soon]:
    global _loop, _thread
    with _lock:
        if _ending:
            raise RuntimeError("the process ends, and so have its MCP servers")
        if _loop is None or _thread is None or not _thread.is_alive():
            started: Future[tuple[TaskGroup, Soon]] = Future()
            _thread = threading.Thread(target=_serve, args=(started,), name="forkpoint mcp", daemon=True)
            _thread.start()
            _loop = started.result()
            atexit.register(_stop, _loop, _thread)
        return _loop


def _serve(started: "Future[tuple[TaskGroup, Soon]]") -> None:
    async def main() -> None:
        async with anyio.create_task_group() as group:
            # Within the thread's own context: that of a caller may say that trio runs here.
            soon = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, context=copy_context())
            started.set_result((group, soon))
            await anyio.sleep_forever()

    try:
        anyio.run(main, backend="asyncio")
    except BaseException as error:
        if not started.done():
            started.set_exception(error)


def _stop(loop: tuple[TaskGroup, Soon], thread: threading.Thread) -> None:
    """The process ends, and its servers with it. Calls that are under way get no result any more: whoever waits for
    one is about to be cancelled."""
    global _ending
    if loop is _loop:
        _ending = True
        group, soon = loop
        with suppress(RuntimeError):  # it has stopped already
            soon(group.cancel_scope.cancel)
        thread.join(ENDING)


def _forget() -> None:
    """In a child made by ``os.fork`` the thread is not there: the next call starts another."""
    global _loop, _thread, _lock
    _loop, _thread, _lock = None, None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
