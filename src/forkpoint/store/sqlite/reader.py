"""Readers: connections that only read, each used by one thread at a time.

Every read is one function that runs to its end in a thread: no cursor is ever open across an await, so no reader
holds back the log. Each read sees one snapshot. Tests: tests/store/test_reading.py.
"""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread

from forkpoint.errors import StoreUnavailable
from forkpoint.store.sqlite.connection import Connect, Database, translated
from forkpoint.store.sqlite.writer import Writer

T = TypeVar("T")


class Readers:
    """A few connections to a file, opened when they are needed."""

    def __init__(self, path: str, connect: Connect, most: int) -> None:
        self._path = path
        self._connect = connect
        self._idle: deque[Database] = deque()
        self._limiter: anyio.CapacityLimiter | None = None
        self._most = most
        self._keeps = True  # whether a connection stays open for the next read
        self._closed = False
        self._lock = threading.Lock()

    async def run(self, read: Callable[[Database], T]) -> T:
        """What a function reads from one snapshot."""
        if self._closed:
            raise StoreUnavailable.store_closed(self._path)
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(self._most)
        return await anyio.to_thread.run_sync(partial(self._run, read), limiter=self._limiter)

    def close(self) -> None:
        """Closes the connections. A read that is under way closes its own, and none begins any more."""
        self._closed = True
        self.retire()

    def retire(self) -> None:
        """Closes the connections, and keeps none from now on: others read in its place. Late reads still work."""
        with self._lock:
            self._keeps = False
        while self._idle:
            self._idle.pop().close()

    def _run(self, read: Callable[[Database], T]) -> T:
        with translated(self._path):
            try:
                db = self._idle.pop()
            except IndexError:
                db = self._connect(self._path)
            whole = False
            try:
                db.execute("BEGIN")
                try:
                    return read(db)
                finally:
                    if db.in_transaction:  # SQLite may have ended it, when it could not read a page
                        db.execute("COMMIT")
                        whole = True
            finally:
                with self._lock:
                    if kept := whole and self._keeps:
                        self._idle.append(db)
                if not kept:
                    db.close()


class SharedReaders(Readers):
    """Reads of a store in memory: through the writer's connection, between two transactions."""

    def __init__(self, writer: Writer) -> None:
        super().__init__("memory:", lambda path: writer.connection, most=1)
        self._writer = writer

    def _run(self, read: Callable[[Database], T]) -> T:
        with translated(self._path), self._writer.writing:
            return read(self._writer.connection)

    def close(self) -> None:
        self._closed = True
