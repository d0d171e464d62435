"""The thread in which the synchronous API does its work: one event loop for the whole process.

So a synchronous call works anywhere: in a script, in a thread of a web server, or in a notebook whose own loop is
running. A call differs from one of `agent.mcp.thread`: its caller is a thread that blocks, and Ctrl-C may interrupt it
at any moment. The call runs in the caller's context, so that its spans are within the caller's.
Tests: tests/conversation/test_sync.py.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from forkpoint.conversation.place import close_all
from forkpoint.errors import UseAsync
from forkpoint.threads.thread_loop import ThreadLoop

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_PIECE = 0.5  # seconds


def wait_for(what: str, call: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any) -> T:
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


def waits(call: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """A method that runs ``call``, a method of an async face, in the portal's thread and waits for what it returns.

    The method has the parameters, the docstring and the name of ``call``. Its object has the async face as ``_async``.
    """

    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return wait_for(f"{call.__name__}()", call, self._async, *args, **kwargs)

    return like(call, method)


def waits_in_class(call: Callable[P, Awaitable[T]]) -> "classmethod[Any, P, T]":
    """The same for a class method."""

    def method(cls: type[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return wait_for(f"{method.__qualname__}()", call, *args, **kwargs)

    return classmethod(like(call, method))


def takes(call: Callable[Concatenate[Any, P], Any]) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Gives a method of a sync face the parameters of its async twin, and leaves it its own docstring."""

    def dressed(method: Callable[..., T]) -> Callable[Concatenate[Any, P], T]:
        method.__dict__["__signature__"] = inspect.signature(call)
        return method

    return dressed


def like(call: Callable[..., Any], method: F) -> F:
    """Gives a method of a sync face the name, the parameters and the docstring of ``call``, its async twin."""
    function = getattr(call, "__func__", call)  # of a class method, the function with ``cls``
    update_wrapper(method, function)
    del method.__dict__["__wrapped__"]  # whoever unwraps it would take it for a coroutine function
    method.__dict__["__signature__"] = inspect.signature(function)
    method.__qualname__ = function.__qualname__.removeprefix("Async")
    return method


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
        value, left = _result(entered)
    except BaseException:
        running.stop()
        raise
    try:
        yield value
    except BaseException as error:
        raised.append(error)
        raise
    finally:
        if not _loop.is_ending:  # else its task has been ended already, and so has the thread
            try:
                portal.call(left.set)
                running.result()
            except BaseException:
                running.stop()
                raise


def check(what: str) -> BlockingPortal:
    """The portal, for a caller who may wait for it. Raises `UseAsync` in its own thread, that would wait for itself."""
    portal = _loop.handle()
    if _loop.is_here:
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
        return _result(self._value)

    def stop(self) -> None:
        """Cancels it, and waits for its end, if it was started at all."""
        if not self._value.done() and not _loop.is_ending and self._portal.call(self._cancel):
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


def _result(future: "Future[T]") -> T:
    """The result of a future, waited for in pieces.

    A signal that arrives between Python's last look for signals and the wait does not end the wait: the Ctrl-C would
    have no effect before the call has ended. So Python looks again after each piece.
    """
    while True:
        try:
            return future.result(_PIECE)
        except TimeoutError:
            if future.done():  # what was called raised it, or has just ended
                return future.result()


async def _serve(started: Callable[[BlockingPortal], None]) -> None:
    async with BlockingPortal() as portal:
        started(portal)
        await portal.sleep_until_stopped()


def _stop(portal: BlockingPortal) -> None:
    """Closes what is open, so that no turn is left as if it were running."""
    try:
        portal.call(close_all)
    finally:
        portal.call(portal.stop, True)


_loop = ThreadLoop("forkpoint", _serve, _stop)
