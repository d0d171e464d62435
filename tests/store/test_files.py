"""The database file: whatever stands at its path, it is opened whole or refused with nothing touched."""
# ruff: noqa: ASYNC221, ASYNC240 - nothing else runs on these loops, so blocking them holds nobody up

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint.errors import BadStoreUrl, ForkpointError, NotFound, StoreDamaged, StoreError, StoreUnusable
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import MEMORY, connect
from forkpoint.store.sqlite.disk.quiet import is_logged
from forkpoint.store.sqlite.files import (
    APPLICATION_ID,
    FORMAT,
    MIGRATIONS,
    lock_path,
    make_tables,
    network_file_system,
    split,
)
from forkpoint.store.values import NewConversation
from forkpoint.testing.samples import exchange

pytestmark = pytest.mark.anyio

IDS = [new_id(n * 1000) for n in range(4)]


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a real store that was used and closed."""
    path = tmp_path_factory.mktemp("closed") / "store.db"

    async def use() -> None:
        async with await SqliteStore.open(path) as store:
            for n in range(len(IDS)):
                await store.create(NewConversation(id=IDS[n], name=f"c{n}"), exchange("hello " * 400))

    anyio.run(use)
    assert sorted(file.name for file in path.parent.iterdir()) == ["store.db", "store.db-write"]
    return path.read_bytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def snapshot(folder: Path) -> dict[str, bytes]:
    """All files of a folder that hold data, with their bytes; not the lock, an empty log, nor the index of a log."""
    return {
        file.name: content
        for file in folder.iterdir()
        if file.is_file() and not file.name.endswith(("-write", "-shm"))
        if (content := file.read_bytes()) or not file.name.endswith("-wal")
    }


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Fails if a file in the folder was changed, added or removed."""
    before = snapshot(folder)
    yield
    after = snapshot(folder)
    changed = sorted(name for name in before | after if before.get(name) != after.get(name))
    assert not changed, f"said that it left everything untouched, and changed {changed}"


async def refused(path: Path) -> ForkpointError:
    """The error with which a path is refused, and nothing else may come out of it."""
    try:
        store = await SqliteStore.open(path)
    except ForkpointError as error:
        return error
    await store.close()
    pytest.fail(f"opened {path.name} as if it were a store")


async def names(path: Path) -> list[str]:
    """The conversations in a store, after making sure that it is sound and can be written."""
    async with await SqliteStore.open(path) as store:
        page = await store.conversations(limit=1000)
        assert (await store.verify()).flaws == ()
        made = await store.create(NewConversation(id=new_id()), exchange("still writable"))
        await store.delete(made.id)
        return sorted(item.name for item in page.items)


# What is there, and is no store.


@pytest.mark.parametrize("kept", [0, 1, 16, 99, 100, 512, 4095, 4096, 4097, 8192, 50_000, -4096, -1])
async def test_a_store_that_was_cut_off_is_refused_and_left_as_it_is(path: Path, closed: bytes, kept: int) -> None:
    size = kept % len(closed)
    path.write_bytes(closed[:size])
    with untouched(path.parent):
        error = await refused(path)
    assert isinstance(error, StoreDamaged | StoreUnusable), (
        f"the first {size} bytes of a store were refused as {error!r}"
    )
    assert error.path == str(path)


async def test_a_store_that_another_process_makes_shorter_while_it_is_opened_was_not_cut_off(
    path: Path, closed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(closed)
    with closing(connect(str(path))) as db:
        db.execute("CREATE TABLE more AS SELECT zeroblob(500000)")
        db.execute("DROP TABLE more")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        long = path.stat().st_size

        def is_logged_after_it_became_shorter(path: Path) -> bool:
            db.executescript("PRAGMA incremental_vacuum")  # `execute` would remove one page only
            assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
            return is_logged(path)

        monkeypatch.setattr("forkpoint.store.sqlite.files.is_logged", is_logged_after_it_became_shorter)
        async with await SqliteStore.open(path) as store:
            assert len((await store.conversations()).items) == len(IDS)
        assert path.stat().st_size < long - 400_000


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b"x", "too short"),
        (b"Dear diary,\n" * 1000, "not a SQLite database"),
        (b"SQLite format 3\0", "too short"),
        (b"SQLite format 3\0" + bytes(8176), ""),
        (b"SQLite format 3\0" + b"\xff" * 8176, ""),
        (b"\0" * 8192, "not a SQLite database"),
        (b"sqlite format 3\0" + bytes(8176), "not a SQLite database"),
    ],
    ids=["nothing", "a byte", "a text", "a magic alone", "zeros", "ones", "only zeros", "another magic"],
)
async def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path, content: bytes, why: str) -> None:
    path.write_bytes(content)
    with untouched(path.parent):
        error = await refused(path)
    assert isinstance(error, StoreUnusable | StoreDamaged), f"refused as {error!r}"
    assert why in error.detail


@contextmanager
def foreign(path: Path, *, wal: bool = False) -> Iterator[sqlite3.Connection]:
    """A database of another program, in use."""
    with closing(sqlite3.connect(path)) as db:
        if wal:
            db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE bookmarks (url TEXT)")
        db.execute("INSERT INTO bookmarks VALUES ('kept')")
        db.commit()
        yield db


async def test_a_database_of_another_program_is_refused_and_left_as_it_is(path: Path) -> None:
    with foreign(path):
        pass
    with untouched(path.parent):
        error = await refused(path)
    assert isinstance(error, StoreUnusable)
    assert "another program" in error.detail


async def test_a_database_of_another_program_that_crashed_keeps_its_log(tmp_path: Path) -> None:
    """Closing the last connection to a database moves its log into it: even looking at it would change it."""
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    with foreign(tmp_path / "store.db", wal=True):
        for name in ("store.db", "store.db-wal"):
            shutil.copy(tmp_path / name, crashed / name)
    with untouched(crashed):
        error = await refused(crashed / "store.db")
    assert isinstance(error, StoreUnusable)


async def test_a_database_that_another_program_has_marked_and_not_filled_yet_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA application_id = 1234")
        db.execute("VACUUM")
    with untouched(path.parent):
        assert isinstance(await refused(path), StoreUnusable)


async def test_a_folder_is_refused(path: Path) -> None:
    path.mkdir()
    error = await refused(path)
    assert isinstance(error, BadStoreUrl)
    assert "folder" in error.why
    assert list(path.iterdir()) == []


async def test_a_missing_folder_is_named_and_not_made(tmp_path: Path) -> None:
    error = await refused(tmp_path / "missing" / "store.db")
    assert isinstance(error, BadStoreUrl)
    assert str(tmp_path / "missing") in error.why
    assert list(tmp_path.iterdir()) == []


async def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with untouched(tmp_path):
        assert isinstance(await refused(tmp_path / "file" / "store.db"), BadStoreUrl)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with a name here")
async def test_a_pipe_is_refused_and_nothing_is_read_from_it(path: Path) -> None:
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # open at both ends, so that nobody can hang on it
    try:
        os.write(pipe, b"a message for somebody else" * 10)
        error = await refused(path)
        assert len(os.read(pipe, 4096)) == 270, f"{error!r} took from the pipe what was meant for its reader"
    finally:
        os.close(pipe)


@pytest.mark.parametrize(
    "name",
    ["x" * 300, "\ud800.db", "a\0b.db", "/".join(["y" * 200] * 30)],
    ids=["too long", "not Unicode", "with a NUL", "too deep"],
)
async def test_a_name_that_no_file_can_have_is_refused_cleanly(tmp_path: Path, name: str) -> None:
    try:
        error = await refused(tmp_path / name)
    except (OSError, ValueError) as raw:
        pytest.fail(f"the caller gets a bare {type(raw).__name__}, not an error with a code: {raw!a}")
    assert isinstance(error, BadStoreUrl) or StoreUnusable.read_only.made(error)
    assert list(tmp_path.iterdir()) == []


# Newer, older, damaged.


def change(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(sql)
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def test_a_store_that_only_a_newer_program_may_write_is_refused_and_left_as_it_is(
    path: Path, closed: bytes
) -> None:
    path.write_bytes(closed)
    change(path, f"UPDATE meta SET format = {FORMAT + 4}, writable_from = {FORMAT + 1}")
    with untouched(path.parent):
        error = await refused(path)
    assert StoreUnusable.store_newer.made(error)
    assert (error.fields["found"], error.fields["known"]) == (FORMAT + 4, FORMAT)


async def test_a_newer_store_whose_program_crashed_keeps_its_log(tmp_path: Path, closed: bytes) -> None:
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    (tmp_path / "store.db").write_bytes(closed)
    with closing(sqlite3.connect(tmp_path / "store.db")) as db:
        db.execute(f"UPDATE meta SET format = {FORMAT + 1}, writable_from = {FORMAT + 1}")
        db.commit()
        for name in ("store.db", "store.db-wal"):
            shutil.copy(tmp_path / name, crashed / name)
    with untouched(crashed):
        error = await refused(crashed / "store.db")
    assert StoreUnusable.store_newer.made(error)


async def test_a_newer_store_that_this_program_may_write_opens_and_keeps_its_format(path: Path, closed: bytes) -> None:
    path.write_bytes(closed)
    change(path, f"UPDATE meta SET format = {FORMAT + 4}")
    assert len(await names(path)) == len(IDS)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT format FROM meta").fetchall() == [(FORMAT + 4,)]


@pytest.mark.parametrize("sql", ["DELETE FROM meta", "DROP TABLE meta"])
async def test_a_store_that_does_not_state_its_format_is_damaged(path: Path, closed: bytes, sql: str) -> None:
    path.write_bytes(closed)
    change(path, sql)
    with untouched(path.parent):
        error = await refused(path)
    assert isinstance(error, StoreDamaged), f"trying again, as {error!r} advises, will never help"


async def bare_errors(path: Path) -> list[str]:
    """What a reader of a store meets that is none of our errors."""
    bare = []
    try:
        async with await SqliteStore.open(path) as store:
            for read in (
                store.verify,
                store.conversations,
                partial(store.find, "c3"),
                partial(store.collect, dry_run=True),
                *(partial(read, id) for id in IDS for read in (store.read, store.events, store.turns, store.state)),
            ):
                try:
                    await read()
                except ForkpointError:
                    pass
                except Exception as error:
                    bare.append(repr(error))
    except ForkpointError:
        pass
    except Exception as error:
        bare.append(repr(error))
    return bare


async def test_a_store_with_any_page_destroyed_never_gives_a_bare_error(tmp_path: Path, closed: bytes) -> None:
    """It is refused, or what is still there can be read; a reader meets errors with a code, never SQLite's own."""
    bare = {}
    for number in range(len(closed) // 4096):
        for filler in (b"\0", b"\xff"):
            path = tmp_path / f"{number}-{filler.hex()}.db"
            start = number * 4096 + (100 if number == 0 else 0)
            path.write_bytes(closed[:start] + filler * (4096 * (number + 1) - start) + closed[4096 * (number + 1) :])
            bare[path.name] = await bare_errors(path)
    assert not any(bare.values()), f"by page and filler: { {name: found for name, found in bare.items() if found} }"


async def test_a_store_with_a_page_of_rubbish_is_damaged_and_not_busy(path: Path, closed: bytes) -> None:
    """`StoreUnavailable` says "try again", which never helps here."""
    chance = random.Random(7)
    wrong = {}
    for number in range(1, len(closed) // 4096):
        for kept in (0, 2048):
            start, end = number * 4096 + kept, number * 4096 + 4096
            path.write_bytes(closed[:start] + chance.randbytes(end - start) + closed[end:])
            for beside in ("-wal", "-shm"):
                Path(f"{path}{beside}").unlink(missing_ok=True)
            try:
                async with await SqliteStore.open(path) as store:
                    for read in (store.verify, store.conversations, store.usage, partial(store.events, IDS[0])):
                        try:
                            await read()
                        except (StoreDamaged, NotFound):
                            pass
                        except ForkpointError as error:
                            wrong[number, kept] = repr(error)
            except (StoreDamaged, StoreUnusable):
                pass
    assert not wrong, f"by page, and bytes that were kept of it: {wrong}"


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE event SET envelope = 'rubbish'",
        "UPDATE event SET payload = 'rubbish'",
        "UPDATE conversation SET tags = 'rubbish'",
        "UPDATE conversation SET head_totals = '[]'",
        "UPDATE conversation SET head = head + 7",
        "UPDATE turn SET usage = 'rubbish', totals = ''",
        "UPDATE turn SET id = randomblob(3)",
        "UPDATE event SET envelope = CAST(x'ff' AS TEXT)",
        "DELETE FROM turn",
        "DELETE FROM segment",
    ],
)
async def test_a_store_with_rubbish_in_its_rows_never_gives_a_bare_error(path: Path, closed: bytes, sql: str) -> None:
    path.write_bytes(closed)
    change(path, sql)
    bare = await bare_errors(path)
    assert not bare, f"after {sql!r} readers meet {set(bare)} where StoreDamaged would say what to do"


# Made whole, or not at all.


async def test_a_new_store_leaves_nothing_beside_it_but_its_lock(path: Path) -> None:
    async with await SqliteStore.open(path):
        pass
    assert sorted(file.name for file in path.parent.iterdir()) == ["store.db", "store.db-write"]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("SELECT format FROM meta").fetchall() == [(FORMAT,)]


DYING = """
import os, signal, sys
from pathlib import Path
from forkpoint.store.sqlite.files import prepare

prepare(Path(sys.argv[1]) / "warm.db")  # so that all is imported
for moment in range(int(sys.argv[2])):
    if os.fork() == 0:
        seen = 0
        def die(event, arguments):
            global seen
            seen += 1
            if seen == moment + 1:
                os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(die)
        prepare(Path(sys.argv[1]) / f"{moment}.db")
        os._exit(0)
    print(os.wait()[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
async def test_a_store_whose_making_was_killed_at_any_moment_can_be_opened_afterwards(tmp_path: Path) -> None:
    """A moment is whatever Python tells an audit hook: a file opened, renamed or removed, a database connected."""
    moments = 40
    run = subprocess.run(
        [sys.executable, "-c", DYING, str(tmp_path), str(moments)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    ends = run.stdout.split()
    assert ends.count("9") >= 5, "hardly any was killed, so this proved nothing"
    assert ends[-1] == "0", "the last one was to be let through to the end: raise the number of moments"
    for moment in range(ends.index("0")):
        assert await names(tmp_path / f"{moment}.db") == [], f"killed at moment {moment}"


async def test_leftovers_of_a_making_that_was_interrupted_are_in_nobody_s_way(path: Path) -> None:
    for name in (".store.db-new-01234567", ".store.db-new-01234567-journal", "store.db-write"):
        (path.parent / name).write_bytes(b"half")
    assert await names(path) == []


async def test_a_log_without_its_database_never_mixes_into_a_new_store(tmp_path: Path, closed: bytes) -> None:
    """SQLite replays a log into whatever file has the name, and a removed store leaves one behind if it crashed."""
    (tmp_path / "old.db").write_bytes(closed)
    async with await SqliteStore.open(tmp_path / "old.db") as old:
        await old.create(NewConversation(id=new_id(), name="ghost"), exchange("boo"))
        shutil.copy(tmp_path / "old.db-wal", tmp_path / "store.db-wal")
    try:
        found = await names(tmp_path / "store.db")
    except StoreError:
        return
    assert found == [], f"a store that was just made holds {found}, out of the log of a removed one"


async def test_many_that_open_a_store_at_once_while_it_does_not_exist_share_one(path: Path) -> None:
    async def use(n: int) -> None:
        async with await SqliteStore.open(path) as store:
            await store.create(NewConversation(id=new_id(), name=f"c{n}"), exchange("hi"))

    async with anyio.create_task_group() as tasks:
        for n in range(6):
            tasks.start_soon(use, n)
    assert await names(path) == [f"c{n}" for n in range(6)]


CROWD = """
import os, sys
import anyio
from forkpoint.ids import new_id
from forkpoint.store.values import NewConversation
from forkpoint.store.sqlite import SqliteStore

async def use(n):
    async with await SqliteStore.open(sys.argv[1]) as store:
        await store.create(NewConversation(id=new_id(), name=f"c{n}"))

ready, go = os.pipe()
for n in range(6):
    if os.fork() == 0:
        os.close(go)
        os.read(ready, 1)  # until the last writer is gone: then all start at once
        anyio.run(use, n)
        os._exit(0)
os.close(go)
sys.exit(any([os.wait()[1] for _ in range(6)]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
async def test_many_processes_that_open_a_store_at_once_while_it_does_not_exist_share_one(path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", CROWD, str(path)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert await names(path) == [f"c{n}" for n in range(6)]


# Places where nothing can be written, even by root.


@pytest.mark.parametrize("folder", ["/proc", "/sys"])
async def test_a_place_where_nothing_can_be_written_is_refused_as_such(folder: str) -> None:
    if not os.path.ismount(folder):  # else it is a folder like any other, as in a chroot
        pytest.skip(f"there is no {folder} here")
    error = await refused(Path(folder) / "forkpoint-test.db")
    assert StoreUnusable.read_only.made(error), f"{folder} was refused as {error!r}"


async def test_a_lock_file_that_cannot_be_opened_is_named(path: Path, closed: bytes) -> None:
    path.write_bytes(closed)
    lock_path(path).mkdir()
    with untouched(path.parent):
        assert StoreUnusable.read_only.made(await refused(path))


async def test_a_log_that_cannot_be_written_is_refused(path: Path, closed: bytes) -> None:
    path.write_bytes(closed)
    Path(f"{path}-wal").mkdir()
    with untouched(path.parent):
        assert StoreUnusable.read_only.made(await refused(path))


async def test_a_turn_cannot_begin_where_its_process_cannot_say_that_it_lives(path: Path, closed: bytes) -> None:
    path.write_bytes(closed)
    async with await SqliteStore.open(path) as store:
        Path(f"{path}-holders").write_text("in the way")
        conversation = (await store.find("c0")).id
        try:
            await store.begin(conversation, new_id())
        except OSError as raw:
            pytest.fail(f"the caller gets a bare {raw!r}, not an error with a code")
        except StoreError:
            pass
        assert (await store.read(conversation)).status == "idle"


# One store, several names.


async def test_a_turn_is_seen_to_run_through_a_link_to_the_store_too(tmp_path: Path, closed: bytes) -> None:
    """Locks stand beside the file: whoever comes by another name must find the same ones."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "store.db").write_bytes(closed)
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "store.db")
    async with await SqliteStore.open(tmp_path / "real" / "store.db") as store:
        conversation = (await store.find("c0")).id
        await store.begin(conversation, new_id())
        async with await SqliteStore.open(tmp_path / "link.db") as other:
            status = (await other.read(conversation)).status
    assert status == "running", f"a turn whose process lives is {status} for whoever opened the store by a link"


async def test_a_link_to_a_file_that_is_not_there_yet_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "store.db")
    assert await names(tmp_path / "link.db") == []
    assert (tmp_path / "link.db").is_symlink(), "the link was replaced, and the store is not where it was to be"
    assert (tmp_path / "real" / "store.db").is_file()


async def test_a_linked_folder_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert await names(tmp_path / "link" / "store.db") == []
    assert (tmp_path / "real" / "store.db").is_file()


@pytest.mark.parametrize(
    "name", ["with space.db", "ünï.db", "a'b\"c.db", "-dash.db", ".hidden", "no-ending", "%41?x#y"]
)
async def test_a_store_may_have_any_name_that_a_file_can_have(tmp_path: Path, name: str) -> None:
    assert await names(tmp_path / name) == []
    assert (tmp_path / name).is_file()


# Network file systems.


def mounted(*mounts: tuple[str, str]) -> str:
    """What Linux says of mounts in /proc/self/mountinfo, for mount points and their types."""
    root = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    lines = (
        f"{number} 22 0:{number} / {point} rw,nosuid shared:{number} master:2 - {kind} server:/export rw,vers=4.2"
        for number, (point, kind) in enumerate(mounts, start=30)
    )
    return root + "\n".join(lines)


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "fuse.sshfs", "fuse.rclone"]
)
def test_a_network_file_system_is_recognised(kind: str) -> None:
    assert network_file_system(Path("/mnt/share/store.db"), mounted(("/mnt/share", kind))) == kind


@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "apfs", "fuseblk", "fuse.ntfs", "fuse", "ntfs3", "nfsd"]
)
def test_a_local_file_system_is_fine(kind: str) -> None:
    assert network_file_system(Path("/mnt/disk/store.db"), mounted(("/mnt/disk", kind))) is None


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/mnt/store.db", None),
        ("/mnt/share/store.db", "nfs"),
        ("/mnt/share/deep/down/store.db", "nfs"),
        ("/mnt/share/disk/store.db", None),
        ("/mnt/share/disk/cifs/store.db", "cifs"),
        ("/mnt/shared/store.db", None),
        ("/mnt/share.db", None),
        ("/mnt/share", "nfs"),
        ("/mnt/share/disk", None),
    ],
)
def test_the_innermost_mount_counts(path: str, kind: str | None) -> None:
    mounts = [("/mnt/share/disk/cifs", "cifs"), ("/mnt/share", "nfs"), ("/mnt/share/disk", "ext4")]
    for order in (mounts, mounts[::-1]):
        assert network_file_system(Path(path), mounted(*order)) == kind


def test_of_two_mounts_at_one_place_the_later_counts() -> None:
    assert network_file_system(Path("/mnt/x/store.db"), mounted(("/mnt/x", "nfs"), ("/mnt/x", "ext4"))) is None
    assert network_file_system(Path("/mnt/x/store.db"), mounted(("/mnt/x", "ext4"), ("/mnt/x", "nfs"))) == "nfs"


@pytest.mark.parametrize(
    ("folder", "escaped"),
    [
        ("/mnt/my share", "/mnt/my\\040share"),
        ("/mnt/tab\there", "/mnt/tab\\011here"),
        ("/mnt/back\\slash", "/mnt/back\\134slash"),
        ("/mnt/données", "/mnt/données"),
        ("/mnt/共有 フォルダ", "/mnt/共有\\040フォルダ"),
        (os.fsdecode(b"/mnt/not-utf-8-\xff"), os.fsdecode(b"/mnt/not-utf-8-\xff")),
    ],
    ids=["space", "tab", "backslash", "accent", "Japanese", "not UTF-8"],
)
def test_a_mount_point_is_recognised_whatever_it_is_called(folder: str, escaped: str) -> None:
    path = Path(folder) / "store.db"
    try:
        found = network_file_system(path, mounted((escaped, "nfs")))
    except UnicodeError as raw:
        pytest.fail(f"no store can be opened on a machine that has such a mount: {raw!a}")
    assert found == "nfs", f"a store at {str(path)!a} would be kept on nfs"


def test_what_is_not_mountinfo_is_ignored() -> None:
    for text in ("", "\n\n", "rubbish", "22 1 8:1 / / rw", mounted() + "\n30 22 rubbish\n"):
        assert network_file_system(Path("/mnt/store.db"), text) is None


@pytest.mark.skipif(sys.platform != "linux", reason="mounts are told like this on Linux only")
def test_a_link_leads_to_where_it_points(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "share")
    mounts = mounted((str(tmp_path / "share").replace(" ", "\\040"), "nfs"))
    assert network_file_system(tmp_path / "link" / "store.db", mounts) == "nfs"


# Scripts.

parts = st.sampled_from(
    [
        "CREATE TABLE a (b TEXT);",
        "-- a comment; with a semicolon",
        "INSERT INTO a VALUES ('one; two');",
        "INSERT INTO a VALUES ('--');",
        "CREATE TRIGGER t AFTER INSERT ON a BEGIN\n  DELETE FROM a;\n  DELETE FROM a;\nEND;",
        "UPDATE a\nSET b = 1 -- ;\nWHERE 1;",
    ]
)


@settings(max_examples=60, deadline=None, database=None)
@given(script=st.lists(parts, max_size=8))
def test_a_script_is_split_into_its_statements(script: list[str]) -> None:
    statements = [part for part in script if not part.startswith("--")]
    found = list(split("\n".join(script) + "\n"))
    assert len(found) == len(statements)
    for text, statement in zip(found, statements, strict=True):
        assert text.rstrip().endswith(statement)
        assert sqlite3.complete_statement(text)


def test_a_last_statement_without_its_semicolon_is_not_lost() -> None:
    found = "".join(split("CREATE TABLE a (b);\nCREATE TABLE c (d)\n"))
    assert "CREATE TABLE c" in found, "a migration would be recorded as done although its last statement never ran"


def test_no_migration_loses_a_statement_in_splitting() -> None:
    for number, script in enumerate(MIGRATIONS, start=1):
        rest = script.removeprefix("".join(split(script)))
        lost = [line for line in rest.splitlines() if line.strip() and not line.startswith("--")]
        assert not lost, f"migration {number} ends with {lost}"


def test_each_new_store_has_an_id_of_its_own() -> None:
    with closing(connect(MEMORY)) as one, closing(connect(MEMORY)) as other:
        ids = set[bytes]()
        for db in (one, other):
            make_tables(db)
            ids.add(db.execute("SELECT store FROM meta").fetchone()["store"])
        assert [len(id) for id in ids] == [16, 16]


def test_making_tables_twice_changes_nothing() -> None:
    with closing(connect(MEMORY)) as db:
        make_tables(db)
        before = list(db.iterdump())
        make_tables(db)
        assert list(db.iterdump()) == before
