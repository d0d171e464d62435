"""Barriers: what many wait for is raised once, and nothing waits for it that need not."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import psycopg
import pytest
from tests.postgres.fixtures import Databases
from tests.postgres.modes import DIRECT, new_store
from tests.postgres.server import Server

from forkpoint.errors import OutcomeUnknown
from forkpoint.ids import new_id
from forkpoint.store.postgres.session.connections import Connections
from forkpoint.store.postgres.session.database import WRITING
from forkpoint.store.postgres.session.link import Link
from forkpoint.store.postgres.settings import PostgresSettings
from forkpoint.store.postgres.store import PostgresStore
from forkpoint.store.values import OpenTurn
from forkpoint.testing.conformance.base import begin, create, run
from forkpoint.testing.samples import exchange

pytestmark = pytest.mark.anyio

WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' OR wait_event_type = 'Lock'"
LAST_TRANSACTION = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"
MANY = 24


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def databases() -> Iterator[Databases]:
    """A server of this module's own, since its settings are changed."""
    server = Server.make(autovacuum="off")
    yield Databases(server)
    server.stop("immediate")


@pytest.fixture
def server(databases: Databases) -> Server:
    return databases.server


@pytest.fixture
def url(databases: Databases, request: pytest.FixtureRequest) -> Iterator[str]:
    with new_store(DIRECT, databases, request) as url:
        yield url
        databases.server.configure(synchronous_standby_names="")


@asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[PostgresStore]:
    async with await PostgresStore.open(url, settings=PostgresSettings(**settings)) as store:
        yield store


async def test_many_readers_wait_for_one_barrier(url: str, server: Server) -> None:
    async with opened(url) as store:
        turn = (await run(store, (await create(store)).id, "one")).turn
        await in_thread(server.configure, synchronous_standby_names="absent")
        readers = [asyncio.create_task(store.settle(turn)) for _ in range(MANY)]
        await wait_until_all_have_read(store)
        await in_thread(server.wait_for_sessions, "SyncRep")
        assert len(await in_thread(server.execute, WAITING)) == 1
        await in_thread(server.configure, synchronous_standby_names="")
        assert await asyncio.gather(*readers) == ["committed"] * MANY


async def test_a_commit_is_unknown_within_its_limits_however_many_readers_wait(url: str, server: Server) -> None:
    async with opened(url, commit_within=0.2, settle_within=0.5) as store:
        done = (await run(store, (await create(store)).id, "one")).turn
        turn = await begin(store, (await create(store)).id)
        await in_thread(server.configure, synchronous_standby_names="absent")
        with anyio.fail_after(10):  # the readers one after the other would take more
            readers = [asyncio.create_task(store.settle(done)) for _ in range(MANY)]
            await wait_until_all_have_read(store)
            with pytest.raises(OutcomeUnknown):
                await store.commit(turn, exchange("hi"))
            told = await asyncio.gather(*readers, return_exceptions=True)
        assert all(isinstance(one, OutcomeUnknown) for one in told), told
        await in_thread(server.wait_for_no_session, "SyncRep")


async def test_who_reads_while_a_barrier_is_raised_waits_for_the_next(url: str, server: Server) -> None:
    async with opened(url) as store:
        turn = (await run(store, (await create(store)).id, "one")).turn
        await in_thread(server.configure, synchronous_standby_names="absent")
        first = asyncio.create_task(store.settle(turn))
        await in_thread(server.wait_for_sessions, "SyncRep")
        second = asyncio.create_task(store.settle(turn))
        await wait_until_all_have_read(store)
        await in_thread(server.execute, f"SELECT pg_terminate_backend(pid) FROM ({WAITING}) AS barrier")
        with pytest.raises(OutcomeUnknown):
            await first
        await in_thread(server.wait_for_sessions, "SyncRep")
        assert not second.done()
        await in_thread(server.configure, synchronous_standby_names="")
        assert await second == "committed"


async def test_a_reader_that_gives_up_leaves_the_barrier_to_the_others(url: str, server: Server) -> None:
    async with opened(url) as store:
        turn = (await run(store, (await create(store)).id, "one")).turn
        await in_thread(server.configure, synchronous_standby_names="absent")
        one, other = (asyncio.create_task(store.settle(turn)) for _ in range(2))
        await wait_until_all_have_read(store)
        one.cancel()
        await asyncio.wait([one])
        assert one.cancelled()
        await in_thread(server.configure, synchronous_standby_names="")
        assert await other == "committed"


async def test_a_barrier_waits_for_no_lock_of_another_barrier(url: str, server: Server) -> None:
    async with opened(url) as store:
        made, turn = await create(store), new_id()
        await in_thread(server.configure, synchronous_standby_names="absent")
        beginning = asyncio.create_task(store.begin(made.id, turn, accepted=True))
        await in_thread(server.wait_for_sessions, "SyncRep")
        older = await in_thread(server.lock, "UPDATE meta SET barrier = barrier + 1", url.rpartition("/")[2])
        await in_thread(server.execute, f"SELECT pg_terminate_backend(pid) FROM ({WAITING}) AS commit")
        await in_thread(server.configure, synchronous_standby_names="")
        assert isinstance(await beginning, OpenTurn)
        older.close()


async def test_a_reader_waits_for_no_standby_if_no_commit_does(url: str, server: Server) -> None:
    await in_thread(server.configure, synchronous_standby_names="absent", synchronous_commit="local")
    try:
        async with opened(url) as store:
            turn = (await run(store, (await create(store)).id, "one")).turn
            before = await in_thread(server.execute, LAST_TRANSACTION)
            assert await store.settle(turn) == "committed"
            assert await in_thread(server.execute, LAST_TRANSACTION) == before
    finally:
        await in_thread(server.configure, synchronous_commit="on")


async def test_a_server_that_only_reads_refuses_a_barrier(url: str) -> None:
    def attempt(link: Link) -> None:
        link.begin("READ ONLY")
        try:
            link.connection.execute(WRITING["raise_barrier"].encode())
        finally:
            link.rollback()

    async with opened(url) as store:
        connections: Connections = store._view.opened.connections
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            await connections.run(attempt)


async def wait_until_all_have_read(store: PostgresStore) -> None:
    """Returns when no reader has a connection any more: then each of them waits for a barrier."""
    await asyncio.sleep(0)  # so that they have begun
    with anyio.fail_after(20):
        while store._view.opened.connections._used:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


async def in_thread(function: Any, *arguments: Any, **named: Any) -> Any:
    return await asyncio.to_thread(function, *arguments, **named)
