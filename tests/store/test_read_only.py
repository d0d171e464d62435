"""A store is read where nothing may be written, and then nothing is: no lock, no log, no heartbeat, no migration."""
# ruff: noqa: ASYNC240 - nothing else runs on these loops, so blocking them holds nobody up

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from forkpoint.errors import BadStoreUrl, StoreDamaged, StoreError, StoreUnavailable, StoreUnusable
from forkpoint.ids import new_id
from forkpoint.store import open_store
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import connect
from forkpoint.store.sqlite.disk.quiet import read_quietly
from forkpoint.store.sqlite.files import APPLICATION_ID, FORMAT, MIGRATIONS, split
from forkpoint.store.values import Access, NewConversation
from forkpoint.testing.samples import exchange

pytestmark = pytest.mark.anyio


async def filled(path: Path) -> str:
    """A store with one conversation, closed. Returns the conversation's id."""
    async with await SqliteStore.open(path) as store:
        return (await store.create(NewConversation(id=new_id(), name="kept"), exchange("hello"))).id


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Each file of a folder: its bytes, and when it was written."""
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir() if file.is_file()}


@asynccontextmanager
async def untouched(folder: Path) -> AsyncIterator[None]:
    before = everything(folder)
    yield
    assert everything(folder) == before, "something was written"


async def read_all(store: SqliteStore, id: str) -> None:
    """Reads whatever can be read."""
    assert [one.name for one in (await store.conversations()).items] == ["kept"]
    assert (await store.find("kept")).id == id
    assert len(await store.events(id)) == 2
    assert (await store.verify()).ok
    assert (await store.turns(id)).items
    await store.usage()
    await store.collect(dry_run=True)
    assert await store.pulse() == await store.pulse()


async def refused_writes(store: SqliteStore, id: str) -> None:
    """Tries writes of each kind: each has to be refused with the reason."""
    with pytest.raises(StoreUnusable) as begun:
        await store.begin(id, new_id())
    assert StoreUnusable.opened_to_read.made(begun.value)
    for write in (
        store.create(NewConversation(id=new_id())),
        store.describe(id, title="other"),
        store.note(id, new_id(), exchange("more")),
        store.delete(id),
        store.collect(),
    ):
        with pytest.raises(StoreUnusable) as refused:
            await write
        assert StoreUnusable.opened_to_read.made(refused.value)


async def test_mode_ro_reads_a_closed_store_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    id = await filled(path)
    (tmp_path / "store.db-write").unlink()
    async with untouched(tmp_path), await open_store(f"sqlite:///{path}?mode=ro") as store:
        assert isinstance(store, SqliteStore)
        await read_all(store, id)
        await refused_writes(store, id)
    assert [file.name for file in tmp_path.iterdir()] == ["store.db"]


async def test_mode_ro_sees_what_another_process_commits_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    id = await filled(path)
    async with await SqliteStore.open(path, access="read") as store:
        await read_all(store, id)
        before = await store.pulse()
        async with await SqliteStore.open(path) as writer:
            await writer.note(id, new_id(), exchange("more"))
            assert len(await store.events(id)) == 4, "what is only in the log was not read"
            assert await store.pulse() != before
        assert len(await store.events(id)) == 4, "what was moved into the file was not read"


async def test_a_turn_that_another_process_runs_is_seen_and_its_lock_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    id = await filled(path)
    async with await SqliteStore.open(path) as writer, await SqliteStore.open(path, access="read") as store:
        await writer.begin(id, new_id())
        assert (await store.read(id)).status == "running"
    async with await SqliteStore.open(path, access="read") as store:
        assert (await store.read(id)).status == "interrupted"


async def test_a_read_is_done_again_if_the_file_was_written_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await filled(path)
    tries = []

    def read(db: sqlite3.Connection) -> int:
        tries.append(db.execute("SELECT count(*) FROM conversation").fetchone()[0])
        if len(tries) == 1:
            with closing(sqlite3.connect(path)) as other:
                other.execute("UPDATE conversation SET title = 'changed'")
                other.commit()
        return len(tries)

    assert read_quietly(path, read) == 2

    def read_while_it_is_written(db: sqlite3.Connection) -> None:
        tries.append(0)
        os.utime(path, ns=(len(tries), len(tries)))

    with pytest.raises(StoreUnavailable):
        read_quietly(path, read_while_it_is_written)


async def test_an_older_format_is_refused_and_not_migrated(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with closing(connect(str(path))) as db:
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for statement in split(MIGRATIONS[0]):
            db.execute(statement)
        db.execute("INSERT INTO meta (format, writable_from) VALUES (1, 1)")
    async with untouched(tmp_path):
        with pytest.raises(StoreUnusable) as refused:
            await SqliteStore.open(path, access="read")
    assert StoreUnusable.store_older.made(refused.value)
    assert (refused.value.fields["found"], refused.value.fields["known"]) == (1, FORMAT)
    assert "Copy the file" in str(refused.value)


async def test_a_file_that_is_not_there_is_no_store_to_read(tmp_path: Path) -> None:
    with pytest.raises(BadStoreUrl, match="no such file"):
        await open_store(f"sqlite:///{tmp_path}/nope.db?mode=ro")
    (tmp_path / "nope.db-wal").write_bytes(b"left over")
    with pytest.raises(StoreDamaged) as refused:
        await open_store(f"sqlite:///{tmp_path}/nope.db?mode=ro")
    assert StoreDamaged.log_alone.made(refused.value)


@pytest.mark.parametrize("options", ["mode=rw", "mode=ro&cache=shared", "", "MODE=RO", "immutable=1"])
async def test_other_options_of_an_address_are_refused(tmp_path: Path, options: str) -> None:
    with pytest.raises(BadStoreUrl, match="mode=ro"):
        await open_store(f"sqlite:///{tmp_path}/store.db?{options}")
    assert list(tmp_path.iterdir()) == []


# On a disk that is mounted read-only, as a real one.


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A small disk of its own, and what makes it read-only."""
    place = tmp_path / "disk"
    place.mkdir()
    if sys.platform != "linux" or os.geteuid() or _run("mount", "-t", "tmpfs", "tmpfs", str(place)):
        pytest.skip("no disk can be mounted here")
    yield (
        place,
        lambda: (
            pytest.skip("no disk can be mounted read-only here")
            if _run("mount", "-o", "remount,ro", str(place))
            else None
        ),
    )
    _run("umount", "-l", str(place))


def _run(*command: str) -> int:
    return subprocess.run(command, capture_output=True, check=False).returncode


@pytest.mark.parametrize("access", ["as_needed", "read"])
async def test_a_store_on_a_read_only_disk_is_read(disk: tuple[Path, Callable[[], None]], access: Access) -> None:
    place, protect = disk
    id = await filled(place / "store.db")
    protect()
    async with await SqliteStore.open(place / "store.db", access=access) as store:
        await read_all(store, id)
        await refused_writes(store, id)
    with pytest.raises(StoreUnusable) as refused:
        await SqliteStore.open(place / "store.db")
    assert StoreUnusable.read_only.made(refused.value), "whoever has to write must hear it at once"


@pytest.mark.parametrize("index", [True, False], ids=["with its index", "without its index"])
async def test_the_log_of_a_crashed_store_on_a_read_only_disk_is_read_or_the_error_says_how(
    disk: tuple[Path, Callable[[], None]], tmp_path: Path, index: bool
) -> None:
    place, protect = disk
    async with await SqliteStore.open(tmp_path / "store.db") as live:
        id = (await live.create(NewConversation(id=new_id(), name="kept"), exchange("hello"))).id
        for end in ("", "-wal", "-shm") if index else ("", "-wal"):
            shutil.copy(f"{tmp_path / 'store.db'}{end}", place)
    protect()
    if index:
        async with await SqliteStore.open(place / "store.db", access="as_needed") as store:
            await read_all(store, id)
        return
    with pytest.raises(StoreError) as refused:
        await SqliteStore.open(place / "store.db", access="as_needed")
    assert StoreUnusable.log_not_readable.made(refused.value)
    assert "Copy the file and its -wal" in str(refused.value)


async def test_a_file_that_its_mode_protects_is_read_by_whoever_may_read_it(tmp_path: Path) -> None:
    """Root may write everything, so another user reads here."""
    if os.name == "nt" or os.geteuid():
        pytest.skip("only root can be another user")
    folder = Path("/tmp") / f"forkpoint-{new_id()}"  # where another user can go
    folder.mkdir(mode=0o755)
    try:
        id = await filled(folder / "store.db")
        (folder / "store.db").chmod(0o644)
        nobody = 65534
        os.seteuid(nobody)
        try:
            async with await SqliteStore.open(folder / "store.db", access="as_needed") as store:
                await read_all(store, id)
                await refused_writes(store, id)
        finally:
            os.seteuid(0)
    finally:
        shutil.rmtree(folder)
