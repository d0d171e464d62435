"""A disk that fails at a chosen statement: the store's own connections, each statement watched."""

import os
import signal
import sqlite3
from collections.abc import Callable
from typing import Any, Literal, Self

from msgspec import Struct
from tests.conversation.faults.points import Point

from forkpoint.store.sqlite.connection import Database, connect


class Flaw(Struct, frozen=True):
    """How a statement fails, and what it has done by then."""

    says: str
    code: int
    effect: Literal["none", "rolled back", "done"] = "none"
    lasting: bool = False  # nothing works from then on, until the disk is mended
    commits: bool = False  # happens to a COMMIT only


FLAWS = {
    "i/o error": Flaw("disk I/O error", sqlite3.SQLITE_IOERR_WRITE),
    "i/o error, rolled back": Flaw("disk I/O error", sqlite3.SQLITE_IOERR_WRITE, "rolled back"),
    "disk full": Flaw("database or disk is full", sqlite3.SQLITE_FULL),
    "i/o errors from here on": Flaw("disk I/O error", sqlite3.SQLITE_IOERR_WRITE, lasting=True),
    "disk full from here on": Flaw("database or disk is full", sqlite3.SQLITE_FULL, lasting=True),
    "fsync failed, not landed": Flaw("failed fsync", sqlite3.SQLITE_IOERR_FSYNC, "rolled back", commits=True),
    "fsync failed, landed": Flaw("failed fsync", sqlite3.SQLITE_IOERR_FSYNC, "done", commits=True),
    "fsync failed from here on, landed": Flaw(
        "failed fsync", sqlite3.SQLITE_IOERR_FSYNC, "done", lasting=True, commits=True
    ),
    "fsync failed from here on, not landed": Flaw(
        "failed fsync", sqlite3.SQLITE_IOERR_FSYNC, "rolled back", lasting=True, commits=True
    ),
}


class Disk:
    """What a store's connections meet."""

    def __init__(self, meets: Callable[[str], Point | None]) -> None:
        self._meets = meets  # is told of each statement
        self._next: Flaw | None = None
        self._broken: Flaw | None = None
        self._kill_after = False

    def connect(self, path: str) -> Database:
        """What `SqliteStore.open` takes: the connection that the store would use, watched."""
        if self._broken is not None:
            raise _error(self._broken)
        db = connect(path)
        db.__class__ = _WatchedConnection
        assert isinstance(db, _WatchedConnection)
        db.disk = self
        return db

    def strike(self, flaw: Flaw) -> None:
        """The statement that is met now fails."""
        self._next = flaw

    def kill_after(self) -> None:
        """The process is killed when the statement that is met now has been executed."""
        self._kill_after = True

    def mend(self) -> None:
        self._next = self._broken = None

    def execute(self, db: Database, sql: str, execute: Callable[[], Any]) -> None:
        self._meets(sql)
        flaw, self._next = self._next or self._broken, None
        if flaw is None:
            execute()
            if self._kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
            return
        if flaw.effect == "done":
            execute()
        elif flaw.effect == "rolled back" and db.in_transaction:
            sqlite3.Cursor(db).execute("ROLLBACK")
        if flaw.lasting:
            self._broken = Flaw(flaw.says, flaw.code, lasting=True)
        raise _error(flaw)


def _error(flaw: Flaw) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(flaw.says)
    error.sqlite_errorcode = flaw.code
    return error


class _WatchedCursor(sqlite3.Cursor):
    connection: "_WatchedConnection"

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        db = self.connection
        db.disk.execute(db, sql, lambda: super(_WatchedCursor, self).execute(sql, parameters))
        return self

    def executemany(self, sql: str, parameters: Any, /) -> Self:
        db = self.connection
        db.disk.execute(db, sql, lambda: super(_WatchedCursor, self).executemany(sql, parameters))
        return self


class _WatchedConnection(Database):
    disk: Disk

    def cursor(self, factory: Any = _WatchedCursor) -> Any:
        return super().cursor(factory)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor().execute(sql, parameters)
        return cursor

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor().executemany(sql, parameters)
        return cursor
