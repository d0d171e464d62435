"""Connections to a database file, and what its errors mean. Tests: tests/store/test_failed_commit.py, test_files.py."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeAlias

import msgspec

from forkpoint.errors import ForkpointError, StoreDamaged, StoreUnavailable, StoreUnusable
from forkpoint.store.sql import statements
from forkpoint.store.sqlite.disk.pages import flaws_of_pages, loose_rows

SQL = statements("sqlite")
"""Every statement, by name."""

PATIENCE = 5.0
"""Seconds to wait for a program that writes to the file without queueing at our lock."""

MEMORY = ":memory:"

_SHOWN = 3  # of all that is wrong with the pages of a file


_DUPLICATES = (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)


class Database(sqlite3.Connection):
    """A connection that knows which file it is to, and the statements that are said to it."""

    path: str

    def within(self, tenant: str, /) -> Self:
        return self  # ids are of one tenant only, so that no statement needs to name it

    def run(self, name: str, parameters: Mapping[str, Any] | Sequence[Any] = (), /) -> sqlite3.Cursor:
        return self.execute(SQL[name], parameters)

    def run_many(self, name: str, rows: Iterable[Sequence[Any]], /) -> sqlite3.Cursor:
        return self.executemany(SQL[name], rows)

    def tuples(self, name: str, parameters: Mapping[str, Any] | Sequence[Any] = (), /) -> sqlite3.Cursor:
        cursor = self.cursor()
        cursor.row_factory = None
        return cursor.execute(SQL[name], parameters)

    def insert(self, name: str, parameters: Mapping[str, Any], /) -> int:
        number = self.execute(SQL[name], parameters).lastrowid
        assert number is not None
        return number

    def flaws(self) -> Iterator[tuple[str, str]]:
        if flaws := flaws_of_pages(self, most=_SHOWN):
            raise StoreDamaged(self.path, "; ".join(flaws))
        for loose in loose_rows(self):
            yield f"row {loose.row} of {loose.table}", f"it names a row of {loose.parent} that is missing"

    def is_duplicate(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.IntegrityError) and error.sqlite_errorcode in _DUPLICATES


Connect: TypeAlias = Callable[[str], Database]


def connect(path: str) -> Database:
    """A connection for reading and writing in explicit transactions, set up for durability."""
    db = sqlite3.connect(
        path, timeout=PATIENCE, isolation_level=None, check_same_thread=False, cached_statements=256, factory=Database
    )
    with closed_on_failure(db):
        db.path = path
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA secure_delete = ON")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA wal_autocheckpoint = 0")  # the writer does, between two groups
        db.execute("PRAGMA fullfsync = ON")  # macOS: an fsync that reaches the disk; elsewhere without effect
    return db


def connect_reader(path: str) -> Database:
    """A connection that can only read."""
    db = connect(path)
    with closed_on_failure(db):
        db.execute("PRAGMA query_only = ON")
    return db


@contextmanager
def closed_on_failure(db: Database) -> Iterator[None]:
    """Within it a connection is made ready. If that fails, it is closed: nobody else has it."""
    try:
        yield
    except BaseException:
        db.close()
        raise


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Within it, what SQLite raises becomes an error that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from error
    except msgspec.DecodeError as error:
        raise StoreDamaged(path, f"a row cannot be read ({error})") from error


def translate(error: sqlite3.Error, path: str) -> ForkpointError:
    """What an error of SQLite means to a caller."""
    detail = str(error)
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHORT_READ:
        return StoreDamaged(path, "a page that it refers to is not in the file")
    if detail.startswith("Could not decode to UTF-8"):  # Python's own error; it quotes what stands there
        return StoreDamaged(path, "a row has bytes in it that are no text")
    match code_of(error):
        case sqlite3.SQLITE_FULL:
            return StoreUnavailable.disk_full(path, detail)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
            return StoreUnusable.read_only(path, detail)
        case sqlite3.SQLITE_NOTADB:
            return StoreUnusable(path, "it is not a SQLite database")
        case sqlite3.SQLITE_CORRUPT:
            return StoreDamaged(path, detail)
        case _:
            return StoreUnavailable(path, detail)


def code_of(error: sqlite3.Error) -> int:
    """The primary result code, without the extended part; 0 if SQLite gave none."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF
