"""What the tests of hot writes share: what was said to the server, what all tables hold, who waits for a lock."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import psycopg
import pytest

from forkpoint.store.postgres.session.hot_link import HotLink
from forkpoint.store.postgres.store import PostgresStore

TABLES = (
    *("conversation", "turn", "segment", "event", "step", "record", "landmark", "copy", "idempotency", "garbage"),
    *("pin", "ledger", "chain", "tag"),
)


@asynccontextmanager
async def two_stores(url: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Two processes, as it were, on one database."""
    async with await PostgresStore.open(url) as one, await PostgresStore.open(url) as other:
        yield one, other


def contents(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """All that stands in the tables of a store, but for heartbeats."""
    with psycopg.connect(url) as db:
        return {
            table: db.execute(f"SELECT {table}::text FROM {table} ORDER BY 1".encode()).fetchall() for table in TABLES
        }


async def someone_waits(url: str, count: int = 1) -> None:
    """Returns when so many sessions of a database wait for a lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as db:
        with anyio.fail_after(10):
            while (await (await db.execute(waiting)).fetchone() or (0,))[0] < count:  # noqa: ASYNC110
                await anyio.sleep(0.002)


def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said to the server by hot links from now on, statement by statement."""
    said: list[str] = []
    execute: Callable[..., Any] = HotLink.say

    async def listening(self: HotLink, statement: bytes, parameters: Any, *, within: float) -> Any:
        said.append(statement.decode())
        return await execute(self, statement, parameters, within=within)

    monkeypatch.setattr(HotLink, "say", listening)
    return said


def threads_heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The same for whole transactions of shared operations, in threads: BEGIN stands for each."""
    from forkpoint.store.postgres.session.link import Link

    said: list[str] = []
    begin: Callable[..., Any] = Link.begin

    def listening(self: Link, how: str = "", *settings: str, **more: Any) -> Any:
        said.append(f"BEGIN {how}")
        return begin(self, how, *settings, **more)

    monkeypatch.setattr(Link, "begin", listening)
    return said
