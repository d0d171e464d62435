"""A store that is to be made when it is needed: reads find nothing and make nothing, the first write makes the file."""
# ruff: noqa: ASYNC240 - nothing else runs on these loops, so blocking them holds nobody up

import os
import sqlite3
from pathlib import Path

import anyio
import pytest

from forkpoint.errors import BadStoreUrl, NotFound, StoreDamaged, StoreUnavailable, StoreUnusable
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore, open_file
from forkpoint.store.sqlite.connection import Database
from forkpoint.store.sqlite.open_file import connect_to_nothing
from forkpoint.store.values import NewConversation
from forkpoint.testing.samples import exchange

pytestmark = pytest.mark.anyio


async def opened(path: Path) -> SqliteStore:
    return await SqliteStore.open(path, access="as_needed")


async def test_reading_finds_an_empty_store_and_makes_none(tmp_path: Path) -> None:
    async with await opened(tmp_path / "store.db") as store:
        assert (await store.conversations()).items == ()
        with pytest.raises(NotFound):
            await store.find("nope")
        with pytest.raises(NotFound):
            await store.read(new_id())
        assert (await store.verify()).events == 0
        assert (await store.usage()).input == 0
        await store.pulse()
        await store.collect(dry_run=True)
        assert store.capabilities.durable
    assert list(tmp_path.iterdir()) == []


async def test_the_first_write_makes_it_and_reads_find_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with await opened(path) as store:
        await store.conversations()
        before = await store.pulse()
        made = await store.create(NewConversation(id=new_id()), exchange("hello"))
        assert path.is_file()
        assert len(await store.events(made.id)) == 2
        assert await store.pulse() != before
    async with await opened(path) as store:
        assert len(await store.events(made.id)) == 2


async def test_what_read_the_empty_store_is_closed_once_there_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections: list[Database] = []

    def remembered(path: str) -> Database:
        connections.append(connect_to_nothing(path))
        return connections[-1]

    monkeypatch.setattr(open_file, "connect_to_nothing", remembered)
    async with await opened(tmp_path / "store.db") as store:
        await store.conversations()
        await store.create(NewConversation(id=new_id()))
        assert len(connections) == 1
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connections[0].execute("SELECT 1")


async def test_a_read_that_comes_late_to_an_empty_store_is_answered(tmp_path: Path) -> None:
    async with await opened(tmp_path / "store.db") as store:
        late = await store._view.opened.to_read()
        await store.create(NewConversation(id=new_id()))
        assert await late.run(lambda db: db.execute("SELECT count(*) FROM conversation").fetchone()[0]) == 0
        assert not late._idle, "it leaves no connection open"


async def test_a_turn_makes_it_too(tmp_path: Path) -> None:
    async with await opened(tmp_path / "store.db") as store:
        id = new_id()
        await store.begin(id, new_id(), create=NewConversation(id=id))
        assert (await store.read(id)).status == "running"


async def test_a_write_that_is_refused_for_its_form_makes_nothing(tmp_path: Path) -> None:
    async with await opened(tmp_path / "store.db") as store:
        with pytest.raises(Exception, match="not-an-id"):
            await store.create(NewConversation(id="not-an-id"))
    assert list(tmp_path.iterdir()) == []


async def test_what_another_process_makes_meanwhile_is_read(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with await opened(path) as store:
        assert (await store.conversations()).items == ()
        async with await SqliteStore.open(path) as other:
            made = await other.create(NewConversation(id=new_id(), name="there"), exchange("hello"))
        assert (await store.find("there")).id == made.id
        await store.describe(made.id, title="both write")


async def test_many_first_writes_at_once_make_one_store(tmp_path: Path) -> None:
    async with await opened(tmp_path / "store.db") as store:
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(store.create, NewConversation(id=new_id()))
        assert len((await store.conversations()).items) == 8


async def test_a_store_that_was_closed_before_it_was_made_is_closed(tmp_path: Path) -> None:
    store = await opened(tmp_path / "store.db")
    await store.close()
    for call in (store.conversations(), store.create(NewConversation(id=new_id())), store.pulse()):
        with pytest.raises(StoreUnavailable, match="closed"):
            await call
    assert list(tmp_path.iterdir()) == []


async def test_a_missing_folder_and_a_log_alone_are_errors_from_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadStoreUrl, match="no folder"):
        await opened(tmp_path / "missing" / "store.db")
    (tmp_path / "store.db-wal").write_bytes(b"left over")
    with pytest.raises(StoreDamaged) as refused:
        await opened(tmp_path / "store.db")
    assert StoreDamaged.log_alone.made(refused.value)


async def test_a_file_that_comes_to_be_a_log_alone_is_an_error_for_readers(tmp_path: Path) -> None:
    async with await opened(tmp_path / "store.db") as store:
        (tmp_path / "store.db-wal").write_bytes(b"left over")
        with pytest.raises(StoreDamaged):
            await store.conversations()


@pytest.mark.skipif(not os.path.ismount("/proc"), reason="there is no /proc here")
async def test_where_no_file_can_be_made_only_the_write_fails() -> None:
    async with await opened(Path("/proc/forkpoint-test.db")) as store:
        assert (await store.conversations()).items == ()
        with pytest.raises(StoreUnusable) as refused:
            await store.create(NewConversation(id=new_id()))
        assert StoreUnusable.read_only.made(refused.value)
