"""Reading a store without writing anything: no log, no index of a log, no lock, no heartbeat, no migration.

SQLite reads a database in WAL mode through an index of the log, and makes both files if they are not there. That cannot
be done on a disk that is mounted read-only, and must not be done with ``?mode=ro``. So:

- **If the log is empty or missing**, all that was committed is in the file, and SQLite is told that the file does not
  change (``immutable``). Another process may begin to write all the same. Its commits go to the log first, so they do
  not disturb a read. Moving the log into the file would: then the file's time or size has changed when the read is
  over, and the read is done again.
- **If the log has something in it**, the log is read too, with its index. Where the index is missing and cannot be
  made, `StoreUnusable.log_not_readable` says what to do.

Every read has a connection of its own, so that it finds the files as they are now.
Tests: tests/store/test_read_only.py.
"""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeAlias, TypeVar

from forkpoint.errors import ForkpointError, StoreUnavailable, StoreUnusable
from forkpoint.store.sqlite.connection import PATIENCE, Database, code_of, translated
from forkpoint.store.sqlite.reader import Readers

T = TypeVar("T")

_TRIES = 3
_State: TypeAlias = tuple[int, int, int]


def is_logged(path: Path) -> bool:
    """Whether a database has a log that is not empty, so that its file may lag behind."""
    try:
        return Path(f"{path}-wal").stat().st_size > 0
    except FileNotFoundError:
        return False


def connect_quietly(path: Path, *, logged: bool) -> Database:
    """A connection that writes nothing. With ``logged`` it reads the log too."""
    query = "mode=ro" if logged else "mode=ro&immutable=1"
    db = sqlite3.connect(
        f"{path.as_uri()}?{query}",
        uri=True,
        timeout=PATIENCE,
        isolation_level=None,
        check_same_thread=False,
        factory=Database,
    )
    db.path = str(path)
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA query_only = ON")
    return db


def read_quietly(path: Path, read: Callable[[Database], T]) -> T:
    """What a function reads from one snapshot of a file. It is called again if the file was written meanwhile."""
    for _ in range(_TRIES):
        before, logged = _state(path), is_logged(path)
        try:
            result = _read(path, read, logged=logged)
        except ForkpointError as error:
            if logged or _state(path) == before or isinstance(error, StoreUnavailable):
                raise
        else:
            if logged or _state(path) == before:
                return result
    raise StoreUnavailable(str(path), "another process wrote to it while it was read")


def unwritable(path: Path) -> str | None:
    """Why a store that exists cannot be written by this process; None if it can."""
    for what, there in ((f"the folder {str(path.parent)!r}", path.parent), ("the file", path)):
        if not os.access(there, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            mounted = hasattr(os, "statvfs") and os.statvfs(there).f_flag & os.ST_RDONLY
            return f"{what} is on a disk that is mounted read-only" if mounted else f"{what} may not be written"
    return None


class QuietReaders(Readers):
    """Reads of a store that nothing is written to."""

    def __init__(self, path: str, most: int) -> None:
        super().__init__(path, lambda name: connect_quietly(Path(name), logged=True), most)

    def _run(self, read: Callable[[Database], T]) -> T:
        return read_quietly(Path(self._path), read)


class QuietPulse:
    """The pulse of such a store: a number that changes when its file or its log has changed.

    It is negative: a store that is made later has another pulse from then on, and no number of it is one of these.
    """

    is_ready = True

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: object = None
        self._count = 0
        self._closed = False

    def prepare(self) -> None:
        """Nothing has to be opened."""

    def read(self) -> int:
        """The number as it is now."""
        if self._closed:
            raise StoreUnavailable.store_closed(self._path)
        now = [_state(Path(name)) for name in (self._path, f"{self._path}-wal") if os.path.exists(name)]
        if now != self._seen:
            self._seen = now
            self._count -= 1
        return self._count

    def close(self) -> None:
        self._closed = True


def _read(path: Path, read: Callable[[Database], T], *, logged: bool) -> T:
    with translated(str(path)), closing(connect_quietly(path, logged=logged)) as db:
        db.execute("BEGIN")
        try:
            db.execute("PRAGMA schema_version").fetchone()  # the snapshot is of now
        except sqlite3.OperationalError as error:
            if logged and code_of(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise StoreUnusable.log_not_readable(str(path), str(error)) from error
            raise
        return read(db)


def _state(path: Path) -> _State:
    """What changes when a file is written or replaced."""
    try:
        found = path.stat()
    except OSError as error:
        raise StoreUnavailable(str(path), error.strerror or str(error)) from error
    return found.st_ino, found.st_size, found.st_mtime_ns
