"""A backup is a whole and sound copy of a store in use, or there is none."""
# ruff: noqa: ASYNC220, ASYNC240 - nothing else runs on these loops, so blocking them holds nobody up

import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from tests.store.support.killed_copies import killed_at_each_moment

from forkpoint.errors import CopyRefused, ForkpointError, NotFound, StoreDamaged
from forkpoint.ids import new_id
from forkpoint.store import copy_file
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.copies import page_copy
from forkpoint.store.sqlite.files import FORMAT
from forkpoint.store.values import CopyStep, NewConversation, OpenTurn
from forkpoint.testing.samples import answers, exchange, says

pytestmark = pytest.mark.anyio

RESTLESS = Path(__file__).parent / "support" / "second_process.py"


async def filled(path: Path, conversations: int = 3, text: str = "hello " * 200) -> None:
    async with await SqliteStore.open(path) as store:
        for number in range(conversations):
            await store.create(NewConversation(id=new_id(), name=f"c{number}"), exchange(text))


async def names(path: Path) -> list[str]:
    """The conversations of a copy, which has to be sound. Nothing is written."""
    async with await SqliteStore.open(path, access="read") as store:
        assert (await store.verify()).ok
        return sorted(one.name for one in (await store.conversations(limit=1000)).items)


async def refused(store: SqliteStore, path: Path, *, force: bool = False) -> ForkpointError:
    with pytest.raises(ForkpointError) as error:
        await store.backup(path, force=force)
    return error.value


async def test_a_backup_has_what_is_only_in_the_log_and_every_tenant(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await filled(path)
    async with await SqliteStore.open(path) as store:
        await store.create(NewConversation(id=new_id(), name="late"), exchange("late"))
        await store.within("other").create(NewConversation(id=new_id(), name="theirs"), exchange("theirs"))
        steps: list[CopyStep] = []
        made = await store.backup(tmp_path / "copy.db", progress=steps.append)
    assert await names(tmp_path / "copy.db") == ["c0", "c1", "c2", "late"]
    size = (tmp_path / "copy.db").stat().st_size
    assert (made.path, made.bytes, made.format) == (str(tmp_path / "copy.db"), size, FORMAT)
    assert (made.conversations, made.events) == (5, 10)
    assert [step.stage for step in steps][-2:] == ["checking", "checking"]
    assert steps[-1].done == steps[-1].total == size
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    assert not list(tmp_path.glob(".*")), "the copy's first name is still there"


async def test_a_backup_can_be_opened_and_written_as_a_store(tmp_path: Path) -> None:
    await filled(tmp_path / "store.db")
    async with await SqliteStore.open(tmp_path / "store.db") as store:
        await store.backup(tmp_path / "copy.db")
    await filled(tmp_path / "copy.db", 0)
    async with await SqliteStore.open(tmp_path / "copy.db") as copy:
        await copy.create(NewConversation(id=new_id(), name="more"), exchange("more"))
    with closing(sqlite3.connect(tmp_path / "copy.db")) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_a_store_in_memory_and_one_that_is_read_only_can_be_backed_up(tmp_path: Path) -> None:
    async with await SqliteStore.open(None) as store:
        await store.create(NewConversation(id=new_id(), name="kept"), exchange("hello"))
        await store.backup(tmp_path / "one.db")
    async with await SqliteStore.open(tmp_path / "one.db", access="read") as store:
        await store.backup(tmp_path / "two.db")
    assert await names(tmp_path / "two.db") == ["kept"]


async def test_nothing_is_replaced_unless_that_is_asked_for(tmp_path: Path) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "copy.db"
    await filled(path)
    copy.write_text("a diary")
    async with await SqliteStore.open(path) as store:
        assert CopyRefused.file_exists.made(await refused(store, copy))
        assert copy.read_text() == "a diary"
        await store.backup(copy, force=True)
        assert len(await names(copy)) == 3
        for other in (path, Path(f"{path}-wal"), Path(f"{path}-write"), tmp_path / "no" / "copy.db", tmp_path):
            assert isinstance(await refused(store, other, force=True), CopyRefused), other
        (tmp_path / "hard.db").hardlink_to(path)
        assert isinstance(await refused(store, tmp_path / "hard.db", force=True), CopyRefused)
        (tmp_path / "used.db-wal").write_bytes(b"a log")
        assert "a store in use" in str(await refused(store, tmp_path / "used.db", force=True))
    assert len(await names(path)) == 3


async def test_a_file_that_appears_while_the_backup_is_made_is_not_replaced(tmp_path: Path) -> None:
    await filled(tmp_path / "store.db")
    copy = tmp_path / "copy.db"

    def appear(step: CopyStep) -> None:
        copy.write_text("a diary")

    async with await SqliteStore.open(tmp_path / "store.db") as store:
        with pytest.raises(CopyRefused) as error:
            await store.backup(copy, progress=appear)
    assert CopyRefused.file_exists.made(error.value)
    assert copy.read_text() == "a diary"
    assert not list(tmp_path.glob(".*"))


async def test_there_is_no_backup_of_a_store_that_is_not_there(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "store.db", access="as_needed") as store:
        assert isinstance(await refused(store, tmp_path / "copy.db"), NotFound)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "sql",
    ["UPDATE event SET payload = replace(payload, 'hello', 'howdy')", "UPDATE conversation SET head = head + 900"],
)
async def test_a_store_that_is_not_sound_gives_no_backup(tmp_path: Path, sql: str) -> None:
    path = tmp_path / "store.db"
    await filled(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute(sql)
        db.commit()
    async with await SqliteStore.open(path) as store:
        error = await refused(store, tmp_path / "copy.db")
    assert isinstance(error, StoreDamaged), error
    assert error.path == str(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["store.db", "store.db-write"]


async def test_a_backup_that_is_cancelled_stops_between_two_steps_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_copy, "STEP", 1)
    await filled(tmp_path / "store.db")
    steps: list[CopyStep] = []
    async with await SqliteStore.open(tmp_path / "store.db") as store:
        with anyio.CancelScope() as scope:

            def cancel(step: CopyStep) -> None:
                steps.append(step)
                anyio.from_thread.run_sync(scope.cancel)

            await store.backup(tmp_path / "copy.db", progress=cancel)
        assert scope.cancelled_caught
        assert len(steps) == 1, "it went on although it was cancelled"
        assert not list(tmp_path.glob("*copy*"))
        assert (await store.verify()).ok


async def test_what_a_killed_backup_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    await filled(tmp_path / "store.db")
    (tmp_path / ".copy.db-copy-01234567").write_bytes(b"half")
    async with await SqliteStore.open(tmp_path / "store.db") as store:
        with copy_file.new_copy(tmp_path / "copy.db") as other:
            await store.backup(tmp_path / "copy.db")
            assert sorted(file.name for file in tmp_path.glob(".*")) == [other.name]


async def test_a_backup_while_others_commit_has_every_turn_that_was_acknowledged_before_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes and this one write without a pause. The backup is taken in many small steps meanwhile."""
    monkeypatch.setattr(page_copy, "STEP", 4)
    path = tmp_path / "store.db"
    await filled(path, 20, "hello " * 2000)
    shared = [new_id(), new_id()]
    others = [
        subprocess.Popen(
            [sys.executable, str(RESTLESS), str(path), "write", *shared],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for other in others:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
    acknowledged: list[str] = []
    done = anyio.Event()

    async def commit(store: SqliteStore) -> None:
        conversation = (await store.create(NewConversation(id=new_id(), name="mine"))).id
        while not done.is_set():
            turn = new_id()
            held = await store.begin(conversation, turn)
            assert isinstance(held, OpenTurn)
            await store.commit(held, [says("hi"), answers("hello")])
            acknowledged.append(turn)

    async with await SqliteStore.open(path) as store:
        for other in others:
            assert other.stdin is not None
            other.stdin.write("\n")
            other.stdin.flush()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit, store)
            for number in range(3):
                while len(acknowledged) < 5 * (number + 1):
                    await anyio.lowlevel.checkpoint()
                before = list(acknowledged)
                steps: list[CopyStep] = []
                await store.backup(tmp_path / f"{number}.db", progress=steps.append)
                assert len(steps) > 20, "it was over in a few steps, so that this proved little"
                assert len(acknowledged) > len(before), "nobody could commit while the backup was taken"
                async with await SqliteStore.open(tmp_path / f"{number}.db", access="read") as copy:
                    assert (await copy.verify()).ok
                    for turn in before:
                        assert (await copy.turn(turn)).outcome == "committed"
            done.set()
        for other in others:
            other.communicate(timeout=60)
            assert other.returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
async def test_a_backup_that_is_killed_at_any_moment_leaves_nothing_or_a_whole_one_and_never_harms_the_store(
    tmp_path: Path,
) -> None:
    await filled(tmp_path / "store.db", 3)
    whole = await names(tmp_path / "store.db")
    moments = 32
    ends = killed_at_each_moment(tmp_path, "backup", moments)
    made = [moment for moment in range(moments + 1) if (tmp_path / f"{moment}.db").exists()]
    for moment in made:
        assert await names(tmp_path / f"{moment}.db") == whole, f"killed at moment {moment}"
    assert {moment for moment in range(moments + 1) if ends[moment] == "0"} <= set(made)
    assert await names(tmp_path / "store.db") == whole
