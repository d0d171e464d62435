"""The pulse of a SQLite file: other processes move it, it holds up nobody, and nothing of it stays behind."""

import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from tests.store.conftest import Watch

from forkpoint.errors import StoreUnavailable
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import Connect, Database
from forkpoint.store.sqlite.pulse import Pulse
from forkpoint.testing.conformance.base import create, run

pytestmark = pytest.mark.anyio

ANOTHER_TURN = """
import sys, anyio
from forkpoint.store.sqlite import SqliteStore
from forkpoint.testing.conformance.base import run

async def main():
    async with await SqliteStore.open(sys.argv[1]) as store:
        await run(store, sys.argv[2], "from another process")

anyio.run(main)
"""


async def test_a_commit_of_another_process_changes_the_pulse(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "a.db") as store:
        made = await create(store)
        for number in (1, 2):
            pulse = await store.pulse()
            done = await anyio.run_process([sys.executable, "-c", ANOTHER_TURN, str(tmp_path / "a.db"), made.id])
            assert done.returncode == 0
            assert await store.pulse() != pulse
            assert await store.revisions([made.id]) == {made.id: number}


async def test_the_pulse_waits_for_no_writer_and_no_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with await SqliteStore.open(path) as store:
        await create(store)
        pulse = await store.pulse()
        writing = sqlite3.connect(path, isolation_level=None)
        writing.execute("BEGIN IMMEDIATE")
        writing.execute("UPDATE conversation SET title = 'x'")
        with anyio.fail_after(5):
            assert await store.pulse() == pulse, "nothing is committed yet"
        writing.execute("COMMIT")
        assert await store.pulse() != pulse
        writing.close()


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR])
async def test_a_number_that_cannot_be_had_counts_as_a_change(
    tmp_path: Path, watched: Callable[[Watch], Connect], code: int
) -> None:
    broken = False

    def watch(db: Database, sql: str, execute: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
        if broken and "data_version" in sql:
            error = sqlite3.OperationalError("not now")
            error.sqlite_errorcode = code
            raise error
        return execute()

    async with await SqliteStore.open(tmp_path / "a.db") as store:
        pulse = Pulse(str(tmp_path / "a.db"), watched(watch), store._view.opened.writer)
        pulse.prepare()
        before = pulse.read()
        assert pulse.read() == before
        broken = True
        if code == sqlite3.SQLITE_BUSY:
            busy = pulse.read()
            assert busy != before
            assert pulse.read() != busy, "nor is it known to be the same as before"
        else:
            with pytest.raises(StoreUnavailable):
                pulse.read()
            assert not pulse.is_ready, "the next one who asks takes another connection"
        broken = False
        pulse.prepare()
        after = pulse.read()
        assert after != before
        assert pulse.read() == after
        pulse.close()


async def test_a_checkpoint_hides_no_commit(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with await SqliteStore.open(path) as store, await SqliteStore.open(path) as other:
        made = await create(store)
        for _ in range(3):
            pulse = await store.pulse()
            await run(other, made.id, "hello")
            with sqlite3.connect(path) as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            db.close()
            assert await store.pulse() != pulse


async def test_nothing_is_left_open_and_a_closed_store_has_no_pulse(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = await SqliteStore.open(path)
    await store.pulse()
    await store.close()
    assert [file.name for file in left_in(tmp_path) if "-wal" in file.name] == [], "the last one to close leaves no log"
    with pytest.raises(StoreUnavailable, check=StoreUnavailable.store_closed.made):
        await store.pulse()


def left_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())
