"""The pulse of a store: a number that changes with every commit.

A file has a connection of its own for this, which never writes. SQLite tells it, from memory that all processes share,
whether another connection has committed since the last look. That takes a few microseconds and waits for nobody, so it
runs in the caller's thread. If SQLite cannot tell, the number changes: something may have been committed.
Tests: tests/store/test_pulse.py."""

import sqlite3
import threading
from contextlib import suppress

from forkpoint.errors import StoreUnavailable
from forkpoint.store.sqlite.connection import MEMORY, Connect, Database, code_of, translated
from forkpoint.store.sqlite.writer import Writer


class Pulse:
    """Counts how often it saw a new commit."""

    def __init__(self, path: str, connect: Connect, writer: Writer) -> None:
        self._path = path
        self._connect = connect
        self._writer = writer
        self._db: Database | None = None
        self._seen: int | None = None  # SQLite's own number, which means nothing to another connection
        self._count = 0
        self._closed = False
        self._looking = threading.Lock()

    @property
    def is_ready(self) -> bool:
        """Whether it can be read without opening anything."""
        return self._db is not None or self._path == MEMORY or self._closed

    def prepare(self) -> None:
        """Opens the connection that it is read from."""
        with self._looking, translated(self._path):
            if self._db is None and not self._closed and self._path != MEMORY:
                self._db = self._connect(self._path)
                self._db.execute("PRAGMA busy_timeout = 0")
                self._seen = None

    def read(self) -> int:
        """The number as it is now."""
        if self._closed:
            raise StoreUnavailable.store_closed(self._path)
        if self._path == MEMORY:  # its one connection is told nothing of itself, and nobody else has any
            return self._writer.commits
        with self._looking, translated(self._path):
            seen = self._look()
            if seen is None or seen != self._seen:
                self._seen = seen
                self._count += 1
            return self._count

    def close(self) -> None:
        self._closed = True
        with self._looking:
            self._let_go()

    def _look(self) -> int | None:
        """SQLite's number; None if it cannot be had, or not now."""
        if self._db is None:
            return None
        try:
            number: int = self._db.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error as error:
            if code_of(error) == sqlite3.SQLITE_BUSY:  # somebody recovers the log, or closes the file
                return None
            self._let_go()
            raise
        return number

    def _let_go(self) -> None:
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
        self._db = self._seen = None
