"""Hints between processes: heard where LISTEN delivers, and never promised where it does not."""

from collections.abc import AsyncIterator, Callable

import anyio
import pytest
from tests.postgres.fixtures import Databases
from tests.postgres.server import Server

from forkpoint.errors import TooLarge
from forkpoint.store.postgres.settings import PostgresSettings
from forkpoint.store.postgres.store import PostgresStore

pytestmark = pytest.mark.anyio

HASTY = PostgresSettings(listen_within=0.3)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Ear:
    """Waits for hints."""

    def __init__(self) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[str](100)

    def __call__(self, text: str) -> None:
        self._send.send_nowait(text)

    async def next(self) -> str:
        with anyio.fail_after(10):
            return await self._receive.receive()

    def close(self) -> None:
        self._send.close()
        self._receive.close()


@pytest.fixture
async def ear() -> AsyncIterator[Ear]:
    ear = Ear()
    yield ear
    ear.close()


async def test_every_process_hears_a_hint_of_any(postgres: str, ear: Ear) -> None:
    async with await PostgresStore.open(postgres) as ours, await PostgresStore.open(postgres) as theirs:
        assert ours.capabilities.notify
        with ours.hear(ear), theirs.hear(ear):
            await theirs.tell("one")
            assert [await ear.next(), await ear.next()] == ["one", "one"]
            await ours.within("another-tenant").tell("x" * 7_999)
            assert {await ear.next(), await ear.next()} == {"x" * 7_999}
            with pytest.raises(TooLarge):
                await ours.tell("x" * 8_000)


async def test_a_hint_is_for_the_store_and_not_for_another_in_the_same_database(
    postgres_databases: Databases, postgres: str, ear: Ear
) -> None:
    name = postgres.rpartition("/")[2]
    postgres_databases.server.execute("CREATE SCHEMA other", database=name)
    other = f"{postgres}?options=-csearch_path%3Dother"
    async with await PostgresStore.open(postgres) as ours, await PostgresStore.open(other) as theirs:
        with ours.hear(ear):
            await theirs.tell("not for us")
            await ours.tell("for us")
            assert await ear.next() == "for us"


async def test_hints_go_on_after_the_connection_was_lost(
    postgres_databases: Databases, postgres: str, ear: Ear
) -> None:
    async with await PostgresStore.open(postgres) as store:
        name = postgres.rpartition("/")[2]
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND query LIKE 'LISTEN%%'"
        assert postgres_databases.server.execute(end, name) == [(True,)]
        with store.hear(ear):
            for number in range(1000):
                await store.tell(str(number))
                with anyio.move_on_after(0.05):
                    await ear.next()
                    break
            else:
                pytest.fail("no hint was heard any more")


async def test_no_hints_are_promised_where_none_are_wanted_or_a_pooler_swallows_them(
    pgbouncer: str, postgres: str
) -> None:
    for url in (f"{postgres}?listen=off", f"{pgbouncer}?pooler=transaction"):
        async with await PostgresStore.open(url) as store:
            assert not store.capabilities.notify
            await store.tell("to nobody")


async def test_a_store_behind_a_pooler_hears_hints_past_it(pgbouncer: str, postgres: str, ear: Ear) -> None:
    direct = postgres.replace("%", "%25").replace("?", "%3F")
    async with await PostgresStore.open(f"{pgbouncer}?pooler=transaction&listen={direct}") as store:
        assert store.capabilities.notify
        with store.hear(ear):
            await store.tell("one")
            assert await ear.next() == "one"


async def test_an_address_to_listen_at_that_delivers_nothing_is_found_out(
    postgres: str, make_server: Callable[..., Server]
) -> None:
    elsewhere = make_server().url().replace("%", "%25")
    async with await PostgresStore.open(f"{postgres}?listen={elsewhere}", settings=HASTY) as store:
        assert not store.capabilities.notify
