"""The thread in which the synchronous API does its work: one event loop for the whole process.

It is started when it is first needed and ends with the process. So a synchronous call works anywhere: in a script, in a
thread of a web server, or in a notebook whose own loop is running.
"""

import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Any, Generic, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from forkpoint.conversation.place import close_all
from forkpoint.errors import UseAsync

T = TypeVar("T")


def wait_for(what: str, call: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
    """What a coroutine function returns, run in the portal's thread.

    If the wait is interrupted, as by Ctrl-C, the call is cancelled and ends before the interruption goes on: what it
    was about to do is done or not done, but never still under way.
    """
    running = _PortalCall(check(what), lambda: call(*args, **kwargs))
    try:
        running.start()
        return running.result()
    except BaseException:
        running.stop()
        raise


@contextmanager
def inside(what: str, context: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """An async context manager, entered and left in the portal's thread by one task."""
    entered: Future[tuple[T, anyio.Event]] = Future()
    raised: list[BaseException] = []

    async def run() -> None:
        try:
            async with context as value:
                left = anyio.Event()
                entered.set_result((value, left))
                await left.wait()
                if raised:
                    raise raised[0]
        except BaseException as error:
            if not entered.done():
                entered.set_exception(error)
            if not (raised and error is raised[0]):
                raise

    portal = check(what)
    running = _PortalCall(portal, run)
    try:
        running.start()
        value, left = entered.result()
    except BaseException:
        running.stop()
        raise
    try:
        yield value
    except BaseException as error:
        raised.append(error)
        raise
    finally:
        if not _ending:  # else its task has been ended already, and so has the thread
            try:
                portal.call(left.set)
                running.result()
            except BaseException:
                running.stop()
                raise


def check(what: str) -> BlockingPortal:
    """The portal, for a caller who may wait for it. Raises `UseAsync` in its own thread, that would wait for itself."""
    portal = _the_portal()
    if threading.current_thread() is _thread:
        raise UseAsync(what)
    return portal


class _PortalCall(Generic[T]):
    """A coroutine that runs in the portal's thread, or is about to: an interruption may come at any moment."""

    def __init__(self, portal: BlockingPortal, call: Callable[[], Awaitable[T]]) -> None:
        self._portal = portal
        self._call = call
        self._scope: anyio.CancelScope | None = None
        self._value: Future[T] = Future()

    def start(self) -> None:
        self._portal.start_task_soon(self._run)

    def result(self) -> T:
        """What it came to."""
        return self._value.result()

    def stop(self) -> None:
        """Cancels it, and waits for its end, if it was started at all."""
        if not self._value.done() and not _ending and self._portal.call(self._cancel):
            wait([self._value])

    async def _cancel(self) -> bool:
        """Says whether it was started: tasks begin in the order they were asked for, so this one is later."""
        if self._scope is not None:
            self._scope.cancel()
        return self._scope is not None

    async def _run(self) -> None:
        self._scope = anyio.CancelScope()
        try:
            with self._scope:
                self._value.set_result(await self._call())
        except Exception as error:
            self._value.set_exception(error)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # SystemExit and the like would end the portal for everybody
            self._value.set_exception(error)
        finally:
            if not self._value.done():
                self._value.set_exception(CancelledError())


_lock = threading.Lock()
_portal: BlockingPortal | None = None
_thread: threading.Thread | None = None
_ending = False  # the process is: nothing is started any more


def _the_portal() -> BlockingPortal:
    global _portal, _thread
    with _lock:
        if _ending:
            raise RuntimeError("the process ends, and Forkpoint has ended already")
        if _portal is None or _thread is None or not _thread.is_alive():
            started: Future[BlockingPortal] = Future()
            _thread = threading.Thread(target=_serve, args=(started,), name="forkpoint", daemon=True)
            _thread.start()
            _portal = started.result()
            atexit.register(_stop, _portal, _thread)
        return _portal


def _serve(started: "Future[BlockingPortal]") -> None:
    async def main() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    try:
        anyio.run(main, backend="asyncio")
    except BaseException as error:
        if not started.done():
            started.set_exception(error)


def _stop(portal: BlockingPortal, thread: threading.Thread) -> None:
    """The process ends: what is open is closed, so that no turn is left as if it were running."""
    global _ending
    if portal is _portal:
        _ending = True
        with suppress(RuntimeError):  # it has stopped already
            try:
                portal.call(close_all)
            finally:
                portal.call(portal.stop, True)
        thread.join()


def _forget() -> None:
    """In a child made by ``os.fork`` the thread is not there: the next call starts another."""
    global _portal, _thread, _lock
    _portal, _thread, _lock = None, None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
