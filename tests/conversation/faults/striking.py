"""Striking: a fault happens when the turn comes to its point."""

import asyncio
import contextvars
import errno
import os
import signal
import threading
from collections.abc import Callable
from typing import assert_never

import anyio
from tests.conversation.faults.disk import FLAWS, Disk
from tests.conversation.faults.kinds import Fault
from tests.conversation.faults.points import Point, Watch
from tests.conversation.faults.scenario import MODEL, SECONDS

from forkpoint import AsyncConversation
from forkpoint.conversation import Turn
from forkpoint.errors import ModelUnavailable, StoreUnavailable
from forkpoint.store.sqlite import SqliteStore

PATIENCE = 10.0
"""Seconds after which something that was struck hangs."""


class Unforeseen(Exception):
    """Something that nobody expects, such as a thread that the system cannot start."""


class Striker:
    """Watches a turn and strikes at one point of it. Made in the turn's loop.

    It strikes once; or, if the caller is to be cancelled after that too, once more at the next await.
    """

    store: SqliteStore
    conversation: AsyncConversation

    def __init__(self, fault: Fault | None, folder: str) -> None:
        self.watch = Watch(self._meets, folder)
        self.disk = Disk(self.watch.statement)
        self.struck = False
        self.scope = anyio.CancelScope()  # around the caller
        self.cancelled: asyncio.Task[Turn] | None = None  # somebody else's `cancel()`
        self.closing: asyncio.Task[None] | None = None  # somebody else's `close()`
        self._fault = fault
        self._once_more = fault is not None and fault.how in ("task, twice", "unforeseen, then cancelled")
        self._thread = threading.get_ident()
        self._loop = asyncio.get_running_loop()
        self._outside = contextvars.copy_context()  # somebody else acts, and not the turn itself

    def start(self) -> None:
        """What runs from now on is the turn. Called in its loop."""
        self.watch.start(self._loop)

    def stop(self) -> None:
        """The turn is over, and the disk is mended."""
        self.watch.stop(self._loop)
        self.disk.mend()

    def _meets(self, point: Point) -> BaseException | None:
        fault = self._fault
        if fault is None:
            return None
        if self.struck:
            if point.kind == "await" and self._once_more:
                self._once_more = False
                self._cancel("task")
            if point.kind == "await" and point.raises and point.layer == "store" and fault.lasting:
                return None if fault.how in FLAWS else _raised(fault.how)
            return None
        if not point.same(fault.point):
            return None
        self.struck = True
        match fault.kind:
            case "kill" if fault.how == "after":
                self.disk.kill_after()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "cancel":
                self._in_the_loop(lambda: self._cancel(fault.how))
            case "exception" if fault.point.kind == "statement":
                self.disk.strike(FLAWS[fault.how])
            case "exception" if fault.how == "store closed":
                self.closing = self._loop.create_task(self.store.close(), context=self._outside)
            case "exception":
                return _raised(fault.how)
            case _ as never:
                assert_never(never)
        return None

    def _cancel(self, how: str) -> None:
        match how:
            case "scope":
                self.scope.cancel()
            case "cancel()":
                self.cancelled = self._loop.create_task(self.conversation.cancel(), context=self._outside)
            case "close()":
                self.closing = self._loop.create_task(self.conversation.close(), context=self._outside)
            case "time runs out":
                self._skip(2 * SECONDS)
            case "Ctrl-C":
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            case _:
                assert self.watch.root is not None
                self.watch.root.cancel()

    def _skip(self, seconds: float) -> None:
        """Time passes in the loop: whatever has a deadline within it meets it now."""
        earlier = self._loop.time
        self._loop.time = lambda: earlier() + seconds  # type: ignore[method-assign]

    def _in_the_loop(self, act: Callable[[], None]) -> None:
        """Does something in the loop's thread. The writer's thread waits for it, so that it happens at this point."""
        if threading.get_ident() == self._thread:
            act()
            return
        done = threading.Event()

        def run() -> None:
            act()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait(PATIENCE)


def _raised(how: str) -> BaseException:
    match how:
        case "refused" | "refused from here on":
            return StoreUnavailable("store.db", "as the test wants it")
        case "connection lost":
            return ModelUnavailable.model_connection(MODEL, "as the test wants it")
        case "os error":
            return OSError(errno.ENOLCK, "as the test wants it")
        case _:
            return Unforeseen("as the test wants it")
