"""A connection as operations use it, inside a transaction: `forkpoint.store.tables.database.Database` on psycopg.
Tests: forkpoint.testing.conformance, tests/postgres/test_transactions.py."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import psycopg
from psycopg.rows import Row, tuple_row

from forkpoint.store.postgres.session.link import STATEMENT, Link
from forkpoint.store.postgres.session.rows import NamedRow, NamedRows
from forkpoint.store.sql import postgres_preludes, postgres_statements

READING = postgres_statements(locking=False)
"""Every statement, by name."""

WRITING = postgres_statements(locking=True)
"""The same for writers, who lock the rows by which they decide."""

_PRELUDES = postgres_preludes()  # what a writer says before another statement, to take its locks

_ACROSS = frozenset(name for name, text in READING.items() if "%(tenant)s" not in text)  # goes over all tenants

_ROWS = 64  # rows that one INSERT takes; beyond that, another one follows
_WAIT = STATEMENT + 5  # seconds: PostgreSQL ends a statement itself before
_VALUES = re.compile(r"\bVALUES\s*(\((?:[^()]|\([^()]*\))*\))", re.IGNORECASE)


class Answer(psycopg.Cursor[Row]):
    """What a statement has answered. A statement that answers with no rows at all has none, which is no error."""

    def fetchone(self) -> Row | None:
        return None if self.description is None else super().fetchone()

    def fetchall(self) -> list[Row]:
        return [] if self.description is None else super().fetchall()


class PostgresDatabase:
    """One transaction of one tenant. It adds the tenant to the parameters of every statement."""

    def __init__(self, link: Link, tenant: str, sql: Mapping[str, str]) -> None:
        self.path = link.address.shown
        self._link = link
        self._tenant = tenant
        self._sql = sql

    def within(self, tenant: str, /) -> "PostgresDatabase":
        return PostgresDatabase(self._link, tenant, self._sql)

    def run(self, name: str, parameters: Mapping[str, Any] | Sequence[Any] = (), /) -> Answer[NamedRow]:
        cursor = Answer(self._link.connection, row_factory=NamedRows)
        named = self._named(parameters)
        self._show(cursor, name, named)
        if self._sql is WRITING and (prelude := _PRELUDES.get(name)) is not None:
            self._say(cursor, self._sql[prelude], named)
        self._say(cursor, self._sql[name], named)
        return cursor

    def tuples(self, name: str, parameters: Mapping[str, Any] | Sequence[Any] = (), /) -> Answer[tuple[Any, ...]]:
        cursor = Answer(self._link.connection, row_factory=tuple_row)
        named = self._named(parameters)
        self._show(cursor, name, named)
        self._say(cursor, self._sql[name], named)
        return cursor

    def run_many(self, name: str, rows: Iterable[Sequence[Any]], /) -> Answer[NamedRow]:
        """An INSERT of several rows says them all at once: each round trip costs as much as the rows do."""
        cursor = Answer(self._link.connection, row_factory=NamedRows)
        every = list(rows)
        self._show(cursor, name, self._named(()))
        for first in range(0, len(every), _ROWS):
            some = every[first : first + _ROWS]
            if (text := _for_rows(self._sql[name], len(some))) is None:
                for row in some:
                    self._say(cursor, self._sql[name], self._named(row))
            else:
                self._say(cursor, text, self._named([value for row in some for value in row]))
        return cursor

    def insert(self, name: str, parameters: Mapping[str, Any], /) -> int:
        """The statement ends in ``RETURNING id``."""
        row = self.run(name, parameters).fetchone()
        assert row is not None
        number: int = row["id"]
        return number

    def flaws(self) -> Iterator[tuple[str, str]]:
        """None: PostgreSQL checks what rows refer to whenever they are written. For its pages there is pg_amcheck."""
        return iter(())

    def is_duplicate(self, error: Exception) -> bool:
        return isinstance(error, psycopg.errors.UniqueViolation)

    def _show(self, cursor: "psycopg.Cursor[Any]", name: str, named: Mapping[str, Any]) -> None:
        """Lets the server show the rows that a statement is about, if the server itself guards tenants."""
        wanted = "*" if name in _ACROSS else named["tenant"]
        if self._link.address.has_row_security and self._link.tenancy != wanted:
            self._say(cursor, self._sql["set_tenant"], {"tenant": wanted})
            self._link.tenancy = wanted

    def _say(self, cursor: "psycopg.Cursor[Any]", statement: str, parameters: Mapping[str, Any]) -> None:
        try:
            with self._link.waiting(_WAIT):
                cursor.execute(statement.encode(), parameters)
        except psycopg.errors.UniqueViolation:
            self._link.has_clashed = True
            raise

    def _named(self, parameters: Mapping[str, Any] | Sequence[Any]) -> Mapping[str, Any]:
        if isinstance(parameters, Mapping):
            return {"tenant": self._tenant, **parameters}
        return {"tenant": self._tenant, **{str(place): value for place, value in enumerate(parameters)}}


@lru_cache(maxsize=1024)
def _for_rows(statement: str, count: int) -> str | None:
    """An INSERT of one row, for so many rows; None if it is no such statement."""
    found = _VALUES.findall(statement)
    if len(found) != 1 or (places := len(re.findall(r"%\(\d+\)s", found[0]))) == 0:
        return None

    def shifted(row: int) -> str:
        return re.sub(r"%\((\d+)\)s", lambda place: f"%({int(place[1]) + row * places})s", str(found[0]))

    return statement.replace(found[0], ", ".join(map(shifted, range(count))), 1)
