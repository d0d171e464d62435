"""A thread with an event loop of its own, one for the whole process.

The synchronous API (`conversation.portal`) and the connections to MCP servers (`agent.mcp.thread`) have one each. How
such a thread starts, ends and survives a fork is here. How a call gets there is not: a synchronous call blocks its
thread, and an interruption waits until the call has ended; an MCP call comes from another event loop, which must never
block, and nobody waits for a call that was cancelled.
"""

import atexit
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Generic, TypeVar

import anyio

H = TypeVar("H")


class ThreadLoop(Generic[H]):
    """Starts the thread when it is first needed, and ends it with the process.

    ``serve`` runs on asyncio in the thread. It calls its argument with a handle for callers, and goes on until ``stop``
    ends it, which gets that handle in another thread when the process ends. The process then waits for the thread, but
    no longer than ``patience`` seconds.
    """

    _lock: threading.Lock
    _handle: H | None
    _thread: threading.Thread | None

    def __init__(
        self,
        name: str,
        serve: Callable[[Callable[[H], None]], Awaitable[None]],
        stop: Callable[[H], None],
        *,
        patience: float | None = None,
    ) -> None:
        self._name, self._serve, self._stop, self._patience = name, serve, stop, patience
        self.is_ending = False  # the process ends: no thread is started any more
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    @property
    def is_here(self) -> bool:
        """Whether the caller runs in the thread."""
        return threading.current_thread() is self._thread

    def handle(self) -> H:
        """The handle of the thread, which is started if need be. Raises `RuntimeError` if the process ends."""
        with self._lock:
            if self.is_ending:
                raise RuntimeError(f"the process ends, and its thread {self._name!r} has ended already")
            if self._handle is None or self._thread is None or not self._thread.is_alive():
                started: Future[H] = Future()
                self._thread = threading.Thread(target=self._run, args=(started,), name=self._name, daemon=True)
                self._thread.start()
                self._handle = started.result()
                atexit.register(self._end, self._handle, self._thread)
            return self._handle

    def _run(self, started: "Future[H]") -> None:
        try:
            anyio.run(self._serve, started.set_result, backend="asyncio")
        except BaseException as error:
            if not started.done():
                started.set_exception(error)

    def _end(self, handle: H, thread: threading.Thread) -> None:
        if handle is self._handle:  # else the thread is another process's, or has died and has a successor
            self.is_ending = True
            with suppress(RuntimeError):  # its loop has ended already
                self._stop(handle)
            thread.join(self._patience)

    def _forget(self) -> None:
        """In a child made by ``os.fork`` the thread is not there: the next call starts another."""
        self._lock, self._handle, self._thread = threading.Lock(), None, None
