"""The log of a store: a log of another file is found before SQLite mixes the two."""
# ruff: noqa: ASYNC230, ASYNC240 - nothing else runs on these loops, so blocking them holds nobody up

import os
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from forkpoint.errors import ForkpointError, StoreDamaged
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import Database, connect
from forkpoint.store.sqlite.disk.log import check_log, check_remains, read_frames, read_head
from forkpoint.store.sqlite.disk.quiet import connect_quietly
from forkpoint.store.sqlite.glance import glance
from forkpoint.store.values import NewConversation
from forkpoint.testing.samples import exchange

pytestmark = pytest.mark.anyio


async def write(store: SqliteStore, conversations: int, size: int = 2000) -> None:
    for _ in range(conversations):
        await store.create(NewConversation(id=new_id()), exchange("x" * size))


def copy(source: Path, target: Path, *ends: str) -> None:
    for end in ends:
        shutil.copy(f"{source}{end}", f"{target}{end}")


def everything(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith(("-shm", "-write"))}


def overwrite(path: Path, content: bytes) -> None:
    """Gives a file another content as a program does that has it open: others who have it open read the new one."""
    with open(path, "r+b") as file:
        file.write(content)
        file.truncate()


def during_the_look(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Lets something happen once: after a look at a log has begun to read, and before it reads the file alone."""
    left = [happens]

    def connect_later(path: Path, *, logged: bool) -> Database:
        if left:
            left.pop()()
        return connect_quietly(path, logged=logged)

    monkeypatch.setattr("forkpoint.store.sqlite.disk.log.connect_quietly", connect_later)


async def opened(path: Path) -> ForkpointError | None:
    """The error with which a store is refused; None if it opens."""
    try:
        await (await SqliteStore.open(path)).close()
    except ForkpointError as error:
        return error
    return None


@pytest.fixture
async def mixed(tmp_path: Path) -> Path:
    """An old file with a newer log beside it: somebody has put yesterday's copy in the place of the file."""
    live, path = tmp_path / "live.db", tmp_path / "mixed" / "store.db"
    path.parent.mkdir()
    async with await SqliteStore.open(live) as store:
        await write(store, 5)
    copy(live, path, "")
    async with await SqliteStore.open(live) as store:
        await write(store, 30)
    async with await SqliteStore.open(live) as store:  # what was written until then is in the file, and not in the log
        await write(store, 3)
        copy(live, path, "-wal")
    return path


async def test_an_old_file_with_a_newer_log_is_refused_and_left_as_it_is(mixed: Path) -> None:
    before = everything(mixed.parent)
    error = await opened(mixed)
    assert StoreDamaged.log_foreign.made(error), error
    assert f"mv {mixed}-wal" in str(error)
    with pytest.raises(StoreDamaged) as damage:
        glance(mixed)
    assert StoreDamaged.log_foreign.made(damage.value)
    assert everything(mixed.parent) == before
    Path(f"{mixed}-wal").rename(f"{mixed}-wal.old")
    Path(f"{mixed}-shm").unlink(missing_ok=True)
    assert await opened(mixed) is None, "what the error advises did not help"
    assert glance(mixed).conversations == 5


async def test_a_log_of_another_store_is_refused_though_all_pages_are_there(tmp_path: Path) -> None:
    """SQLite would read the other store's conversations out of the log, and find nothing wrong with them."""
    path, other = tmp_path / "store.db", tmp_path / "other.db"
    async with await SqliteStore.open(path) as store:
        await write(store, 40)
    async with await SqliteStore.open(other) as store:
        await write(store, 3)
        copy(other, tmp_path / "log", "-wal")
    shutil.move(tmp_path / "log-wal", f"{path}-wal")
    before = everything(tmp_path)
    assert StoreDamaged.log_foreign.made(await opened(path))
    assert everything(tmp_path) == before


async def deleted(store: SqliteStore) -> None:
    for one in (await store.conversations(limit=20)).items:
        await store.delete(one.id)
    await write(store, 10, 200)


async def collected(store: SqliteStore) -> None:
    await deleted(store)
    await store.collect()


async def described(store: SqliteStore) -> None:
    for one in (await store.conversations(limit=20)).items:
        await store.describe(one.id, title="y" * 500)


@pytest.mark.parametrize("change", [deleted, collected, described])
async def test_an_old_file_with_a_newer_log_is_found_whatever_was_done_in_between(
    tmp_path: Path, change: Callable[[SqliteStore], Awaitable[None]]
) -> None:
    path, live = tmp_path / "store.db", tmp_path / "live.db"
    async with await SqliteStore.open(live) as store:
        await write(store, 20)
    copy(live, path, "")
    async with await SqliteStore.open(live) as store:
        await change(store)
    async with await SqliteStore.open(live) as store:
        await write(store, 1, 10)
        copy(live, path, "-wal")
    with pytest.raises(StoreDamaged) as damage:
        glance(path)
    assert StoreDamaged.log_foreign.made(damage.value), damage.value


async def test_a_log_whose_pages_have_another_size_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "store.db", tmp_path / "other.db"
    async with await SqliteStore.open(path) as store:
        await write(store, 3)
    with closing(sqlite3.connect(other, isolation_level=None)) as db:
        db.execute("PRAGMA page_size = 1024")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE other (thing)")
        shutil.copy(f"{other}-wal", f"{path}-wal")
    before = everything(tmp_path)
    assert await opened(path) is not None
    with pytest.raises(StoreDamaged) as damage:
        glance(path)
    assert StoreDamaged.log_foreign.made(damage.value)
    assert everything(tmp_path) == before


async def test_a_log_without_its_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "store.db-wal").write_bytes(b"left over")
    error = await opened(tmp_path / "store.db")
    assert StoreDamaged.log_alone.made(error)
    assert "forkpoint restore BACKUP" in str(error)


async def test_an_index_without_its_log_is_noticed_and_does_not_keep_the_store_from_being_opened(
    tmp_path: Path,
) -> None:
    """After a power cut this is harmless, so only `doctor` says it."""
    path, live = tmp_path / "store.db", tmp_path / "live.db"
    async with await SqliteStore.open(live) as store:
        await write(store, 3)
        copy(live, path, "", "-shm")
    with pytest.raises(StoreDamaged) as damage:
        glance(path)
    assert StoreDamaged.log_missing.made(damage.value)
    assert await opened(path) is None


async def test_a_store_that_is_closed_during_a_look_has_lost_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.db"
    async with await SqliteStore.open(path) as store:
        await write(store, 3)
    db = connect(str(path))
    db.execute("SELECT * FROM meta").fetchall()
    exists = Path.exists

    def exists_until_it_is_closed(file: Path) -> bool:
        there = exists(file)
        if file.name == "store.db-shm" and there:
            db.close()
        return there

    monkeypatch.setattr(Path, "exists", exists_until_it_is_closed)
    check_remains(path)
    assert sorted(os.listdir(tmp_path)) == ["store.db", "store.db-write"]


async def test_a_log_whose_head_is_torn_is_noticed(tmp_path: Path) -> None:
    path, live = tmp_path / "store.db", tmp_path / "live.db"
    async with await SqliteStore.open(live) as store:
        await write(store, 3)
        copy(live, path, "", "-wal")
    log = Path(f"{path}-wal").read_bytes()
    Path(f"{path}-wal").write_bytes(log[:17] + b"torn" + log[21:])
    assert read_head(Path(f"{path}-wal")) is None
    with pytest.raises(StoreDamaged) as damage:
        check_remains(path)
    assert StoreDamaged.log_missing.made(damage.value)


async def test_what_a_crash_leaves_is_never_refused(tmp_path: Path) -> None:
    """The log is cut at any place, as a crash cuts it."""
    live, path = tmp_path / "live.db", tmp_path / "store.db"
    async with await SqliteStore.open(live) as store:
        await write(store, 4)
        log = Path(f"{live}-wal").read_bytes()
        content = live.read_bytes()
    for kept in (0, 7, 32, 33, 56, 4151, 4152, len(log) // 2, len(log) - 4000, len(log) - 1, len(log)):
        for end in ("-wal", "-shm", "-write"):
            Path(f"{path}{end}").unlink(missing_ok=True)
        path.write_bytes(content)
        Path(f"{path}-wal").write_bytes(log[:kept])
        check_log(path)
        error = await opened(path)
        assert error is None, f"the first {kept} bytes of {len(log)}: {error}"


@pytest.mark.parametrize("anew", [False, True], ids=["the log goes on", "the log begins anew"])
async def test_a_commit_that_a_kill_kept_out_of_the_index_of_the_log_is_no_foreign_log(
    tmp_path: Path, anew: bool
) -> None:
    """A commit is in the log first, and in its index (-shm) after an fsync. Who has the store open reads the index."""
    path, twin = tmp_path / "store.db", tmp_path / "twin.db"
    async with await SqliteStore.open(path) as store:
        await write(store, 4)
        if anew:
            with closing(sqlite3.connect(path)) as db:
                assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
        copy(path, twin, "", "-wal")
        with closing(connect(str(twin))) as db:  # what the process that is killed has written
            db.execute("CREATE TABLE more AS SELECT zeroblob(50000)")
            log = Path(f"{twin}-wal").read_bytes()
        assert anew or log.startswith(Path(f"{path}-wal").read_bytes())
        overwrite(Path(f"{path}-wal"), log)

        check_log(path)
        assert await opened(path) is None
        assert glance(path).conversations == 4
        await write(store, 1)
        assert (await store.verify()).flaws == ()
    assert await opened(path) is None
    assert glance(path).conversations == 5


async def test_a_store_that_grows_beyond_a_gigabyte_is_not_refused_for_the_page_that_sqlite_never_writes(
    tmp_path: Path,
) -> None:
    """The bytes that SQLite locks stand there. The file is one with a hole, so that it takes no room."""
    path, size, pages = tmp_path / "store.db", 4096, (1 << 30) // 4096 - 3
    async with await SqliteStore.open(path) as store:
        await write(store, 1)
    with open(path, "r+b") as file:
        file.truncate(pages * size)
        file.seek(28)  # where the first page says how many there are
        file.write(pages.to_bytes(4, "big"))
    with closing(connect(str(path))) as db:
        db.execute("CREATE TABLE more AS SELECT zeroblob(50000)")
        assert db.execute("PRAGMA page_count").fetchone()[0] > pages + 10
        check_log(path)


async def test_a_log_that_is_emptied_during_a_look_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    async with await SqliteStore.open(path) as store:
        await write(store, 4)
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # so that nobody needs the log any more
            emptied: list[tuple[int, int, int]] = []
            during_the_look(
                monkeypatch, lambda: emptied.append(db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone())
            )
            check_log(path)
    assert emptied == [(0, 0, 0)]


async def test_a_log_that_is_removed_during_a_look_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    async with await SqliteStore.open(path) as store:
        await write(store, 4)
        during_the_look(monkeypatch, Path(f"{path}-wal").unlink)
        check_log(path)


async def test_a_log_that_is_begun_anew_during_a_look_is_looked_at_again(
    tmp_path: Path, mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have the size of the one before, and the same time: clocks of file systems tick every few milliseconds."""
    sound, foreign = tmp_path / "sound.db", Path(f"{mixed}-wal")
    copy(mixed, sound, "")
    with closing(connect(str(sound))) as db:
        db.execute("CREATE TABLE more (thing)")
        log = Path(f"{sound}-wal").read_bytes()
    length = max(len(log), foreign.stat().st_size)
    overwrite(foreign, foreign.read_bytes().ljust(length, b"\0"))
    time = foreign.stat().st_mtime_ns

    def begin_anew() -> None:
        overwrite(foreign, log.ljust(length, b"\0"))
        os.utime(foreign, ns=(time, time))
        Path(f"{mixed}-shm").unlink(missing_ok=True)

    during_the_look(monkeypatch, begin_anew)
    check_log(mixed)


async def test_a_store_in_use_is_never_taken_for_one_with_a_foreign_log(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    looks = 0
    async with await SqliteStore.open(path) as store:
        done = anyio.Event()

        async def look() -> None:
            nonlocal looks
            while not done.is_set():
                await anyio.to_thread.run_sync(glance, path)
                looks += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            await write(store, 150, 40_000)  # long enough for the log to begin anew several times
            done.set()
    assert looks > 3


async def test_the_pages_of_a_log_are_read_from_its_heads(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with await SqliteStore.open(path) as store:
        await write(store, 3)
        log = Path(f"{path}-wal")
        head = read_head(log)
        assert head is not None
        frames = read_frames(log, head, checked=False)
        assert read_frames(log, head, checked=True) == frames
    assert head.page_size == 4096
    assert frames.size == frames.stated == path.stat().st_size // 4096
    assert max(frames.pages) <= frames.size
