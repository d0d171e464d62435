"""A statement that was sent is seen through, however often its caller is cancelled."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import psycopg
import pytest
from tests.postgres.hot_support import someone_waits

from forkpoint.store.postgres.session.hot_link import HotLink
from forkpoint.store.postgres.store import PostgresStore

pytestmark = pytest.mark.anyio

_LOCK = "SELECT pg_advisory_xact_lock(1)"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def locked_link(url: str) -> AsyncIterator[tuple[HotLink, psycopg.AsyncConnection[tuple[object]]]]:
    """A link, and another session that has a lock until its transaction ends."""
    async with await PostgresStore.open(url) as store, await psycopg.AsyncConnection.connect(url) as other:
        await other.execute(_LOCK)
        async with store._view.opened.connections.hot() as link:
            yield link, other


async def _say(link: HotLink) -> int:
    rows = await link.say(
        b"WITH got AS MATERIALIZED (" + _LOCK.encode() + b") SELECT 7::int8 AS n FROM got", [], within=30
    )
    number: int = rows[0]["n"]
    return number


async def test_a_statement_survives_two_cancellations_and_its_answer_is_heard(postgres: str) -> None:
    async with locked_link(postgres) as (link, other):
        saying = asyncio.create_task(_say(link))
        await someone_waits(postgres)
        for _ in range(2):
            saying.cancel()
            await asyncio.sleep(0)
        assert not saying.done()
        await other.rollback()
        assert await saying == 7
        assert link.cancelled is not None
        assert link.is_usable


async def test_a_cancelled_scope_hears_the_answer_first_and_is_cancelled_then(postgres: str) -> None:
    async with locked_link(postgres) as (link, other):
        answers = []
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def cancel() -> None:
                    with anyio.CancelScope(shield=True):
                        await someone_waits(postgres)
                        scope.cancel()
                        await other.rollback()

                group.start_soon(cancel)
                answers.append(await _say(link))
                await anyio.lowlevel.checkpoint()
                answers.append(-1)
        assert answers == [7], "the answer came, and the cancellation after it"
        assert scope.cancelled_caught


async def test_the_next_statement_of_a_link_knows_nothing_of_an_earlier_cancellation(postgres: str) -> None:
    async with locked_link(postgres) as (link, other):
        saying = asyncio.create_task(_say(link))
        await someone_waits(postgres)
        saying.cancel()
        await asyncio.sleep(0)
        await other.rollback()
        await saying
        assert await _say(link) == 7
        assert link.cancelled is None


async def test_a_statement_that_takes_too_long_is_cut_off_although_it_was_cancelled(postgres: str) -> None:
    async with locked_link(postgres) as (link, _):
        saying = asyncio.create_task(_say(link))
        await someone_waits(postgres)
        saying.cancel()
        await asyncio.sleep(0)
        link.cut()
        with pytest.raises(psycopg.OperationalError):
            await saying
        assert not link.is_usable


async def test_a_session_compiles_nothing_and_gathers_nothing_before_it_sorts(postgres: str) -> None:
    """Compiled by a server that can, a statement took seconds: 1 turn a second on Debian's PostgreSQL, not 14."""
    off = {"jit": "off", "enable_bitmapscan": "off"}
    ask = "SELECT name, setting FROM pg_settings WHERE name IN ('jit', 'enable_bitmapscan')"
    async with await PostgresStore.open(postgres) as store:
        connections = store._view.opened.connections
        async with connections.hot() as link:
            rows = await link.say(ask.encode(), [], within=30)
        assert {row["name"]: row["setting"] for row in rows} == off
        found = await connections.run(lambda link: link.connection.execute(ask.encode()).fetchall())
        assert {row["name"]: row["setting"] for row in found} == off
