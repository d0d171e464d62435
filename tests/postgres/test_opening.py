"""Opening a store in PostgreSQL: its tables are made, found, migrated or refused, and nothing else is touched."""

from collections.abc import Callable

import anyio
import psycopg
import pytest
from tests.postgres.server import Server

from forkpoint.errors import BadStoreUrl, StoreUnavailable, StoreUnusable
from forkpoint.ids import new_id
from forkpoint.store import open_store
from forkpoint.store.postgres.schema import FORMAT
from forkpoint.store.postgres.store import PostgresStore
from forkpoint.store.values import NewConversation
from forkpoint.testing.samples import exchange

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def ask(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as db:
        cursor = db.execute(statement.encode())
        return cursor.fetchall() if cursor.description is not None else []


async def test_an_empty_database_becomes_a_store_and_is_found_as_one(postgres: str) -> None:
    async with await open_store(postgres) as store:
        made = await store.create(NewConversation(id=new_id(), name="here"), exchange("hi"))
    async with await open_store(postgres) as store:
        assert (await store.find("here")).id == made.id
        assert len(await store.events(made.id)) == 2


async def test_many_that_open_an_empty_database_at_once_make_one_store(postgres: str) -> None:
    stores: list[PostgresStore] = []

    async def open_one() -> None:
        stores.append(await PostgresStore.open(postgres))

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(open_one)
    assert len({await store.identity() for store in stores}) == 1
    for store in stores:
        await store.close()


async def test_events_have_the_partitions_that_the_address_says(postgres: str) -> None:
    await (await PostgresStore.open(f"{postgres}?partitions=3")).close()
    await (await PostgresStore.open(postgres)).close()
    count = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'event'::regclass"
    assert ask(postgres, count) == [(3,)]


async def test_tables_of_another_program_are_refused_and_left_alone(postgres: str) -> None:
    ask(postgres, "CREATE TABLE meta (version int)")
    with pytest.raises(StoreUnusable, match="another program"):
        await PostgresStore.open(postgres)
    assert ask(postgres, "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace") == [("meta",)]


async def test_a_store_can_stand_in_a_schema_of_its_own(postgres: str) -> None:
    ask(postgres, "CREATE TABLE theirs (version int)")
    ask(postgres, "CREATE SCHEMA forkpoint")
    async with await PostgresStore.open(f"{postgres}?options=-csearch_path%3Dforkpoint") as store:
        await store.create(NewConversation(id=new_id()))
    assert ask(postgres, "SELECT count(*) FROM forkpoint.conversation") == [(1,)]


async def test_a_store_that_only_a_newer_program_may_write_is_refused(postgres: str) -> None:
    await (await PostgresStore.open(postgres)).close()
    ask(postgres, f"UPDATE meta SET format = {FORMAT + 2}, writable_from = {FORMAT + 1}")
    with pytest.raises(StoreUnusable, match=f"format {FORMAT + 2}"):
        await PostgresStore.open(postgres)


async def test_a_store_that_a_newer_program_has_only_added_to_is_written(postgres: str) -> None:
    await (await PostgresStore.open(postgres)).close()
    ask(postgres, f"UPDATE meta SET format = {FORMAT + 2}")
    async with await PostgresStore.open(postgres) as store:
        await store.create(NewConversation(id=new_id()))
    assert ask(postgres, "SELECT format FROM meta") == [(FORMAT + 2,)]


async def test_nothing_is_made_where_nothing_may_be_written(postgres: str) -> None:
    with pytest.raises(BadStoreUrl, match="no store"):
        await PostgresStore.open(f"{postgres}?mode=ro")
    assert ask(postgres, "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace") == [(0,)]


async def test_a_store_that_is_opened_to_read_refuses_writes(postgres: str) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await store.create(NewConversation(id=new_id()), exchange("hi"))
    async with await PostgresStore.open(f"{postgres}?mode=ro") as store:
        assert len(await store.events(made.id)) == 2
        with pytest.raises(StoreUnusable, match="reading only"):
            await store.create(NewConversation(id=new_id()))


async def test_a_standby_is_read_and_not_written(make_server: Callable[..., Server]) -> None:
    server = make_server()
    async with await PostgresStore.open(server.url()) as store:
        made = await store.create(NewConversation(id=new_id()), exchange("hi"))
    standby = server.standby()
    with pytest.raises(StoreUnavailable):
        await PostgresStore.open(standby.url())
    async with await PostgresStore.open(f"{standby.url()}?mode=ro") as store:
        assert len(await store.events(made.id)) == 2


async def test_a_server_that_is_not_there_is_unavailable_and_no_password_shows() -> None:
    with pytest.raises(StoreUnavailable) as error:
        await open_store("postgresql://me:s3cret@127.0.0.1:1/db")
    assert "s3cret" not in str(error.value)
    with pytest.raises(BadStoreUrl) as bad:
        await open_store("postgresql://me:s3c/ret@127.0.0.1:1/db")
    assert "s3c" not in str(bad.value)


async def test_a_closed_store_says_so(postgres: str) -> None:
    store = await PostgresStore.open(postgres)
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.identity()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.pulse()


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_another_event_loop_than_asyncio_is_refused(postgres: str) -> None:
    with pytest.raises(StoreUnusable, match="asyncio"):
        await open_store(postgres)
