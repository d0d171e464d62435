"""Connections whose every statement a test can watch, hold back or break."""

import sqlite3
from collections.abc import Callable
from typing import Any, Self, TypeAlias

import pytest

from forkpoint.store.sqlite.connection import Connect, Database, connect

Watch: TypeAlias = Callable[[Database, str, Callable[[], sqlite3.Cursor]], sqlite3.Cursor]
"""Is called with the connection, the statement, and what executes it; returns what that returns, or raises."""


class WatchedCursor(sqlite3.Cursor):
    connection: "WatchedConnection"

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        self.connection.watch(self.connection, sql, lambda: super(WatchedCursor, self).execute(sql, parameters))
        return self

    def executemany(self, sql: str, parameters: Any, /) -> Self:
        self.connection.watch(self.connection, sql, lambda: super(WatchedCursor, self).executemany(sql, parameters))
        return self


class WatchedConnection(Database):
    watch: Watch

    def cursor(self, factory: Any = WatchedCursor) -> Any:
        return super().cursor(factory)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor().execute(sql, parameters)
        return cursor

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor().executemany(sql, parameters)
        return cursor


@pytest.fixture
def watched() -> Callable[[Watch], Connect]:
    """Makes what `SqliteStore.open` takes as ``connect``: the store's own connections, with a watch on each."""

    def with_watch(watch: Watch) -> Connect:
        def make(path: str) -> Database:
            db = connect(path)
            db.__class__ = WatchedConnection  # the very connection that the store would use, set up by the store
            assert isinstance(db, WatchedConnection)
            db.watch = watch
            return db

        return make

    return with_watch
