"""The thread in which the synchronous API does its work: one event loop for the whole process.

It is started when it is first needed and ends with the process. So a synchronous call works anywhere: in a script, in a
thread of a web server, or in a notebook whose own loop is running.
"""

import atexit
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from forkpoint.errors import UseAsync

T = TypeVar("T")


def wait_for(what: str, call: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
    """What a coroutine function returns, run in the portal's thread.

    If the wait is interrupted, as by Ctrl-C, the call is cancelled and ends before the interruption goes on: what it
    was about to do is done or not done, but never still under way.
    """
    portal = check(what)
    ended = threading.Event()

    async def run() -> T:
        try:
            return await call(*args, **kwargs)
        finally:
            ended.set()

    future: Future[T] = portal.start_task_soon(run)
    try:
        return future.result()
    except BaseException:
        if not future.done():
            future.cancel()
            ended.wait()
        raise


def check(what: str) -> BlockingPortal:
    """The portal, for a caller who may wait for it. Raises `UseAsync` in its own thread, that would wait for itself."""
    portal = _the_portal()
    if threading.get_ident() == _thread:
        raise UseAsync(what)
    return portal


_lock = threading.Lock()
_portal: BlockingPortal | None = None
_thread: int | None = None


def _the_portal() -> BlockingPortal:
    global _portal, _thread
    with _lock:
        if _portal is None:
            stack = ExitStack()
            _portal = stack.enter_context(start_blocking_portal("asyncio", name="forkpoint"))
            _thread = _portal.call(threading.get_ident)
            atexit.register(partial(_stop, stack, _portal))
        return _portal


def _stop(stack: ExitStack, portal: BlockingPortal) -> None:
    """The process ends: what is open is closed, so that no turn is left as if it were running."""
    from forkpoint.conversation.places import close_all

    if portal is _portal:
        portal.call(close_all)
        stack.close()


def _forget() -> None:
    """In a child made by ``os.fork`` the thread is not there: the next call starts another."""
    global _portal, _thread, _lock
    _portal, _thread, _lock = None, None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
