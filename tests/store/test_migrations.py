"""Migrations: from every earlier format the same database comes out, or the old one stays as it was."""
# ruff: noqa: ASYNC221 - nothing else runs on these loops, so blocking them holds nobody up

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.store.support.full_store import fill

from forkpoint.errors import ForkpointError, StoreUnusable
from forkpoint.events import Usage
from forkpoint.ids import id_to_bytes, new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.files import APPLICATION_ID, FORMAT, MIGRATIONS, split
from forkpoint.store.values import NewConversation
from forkpoint.testing.samples import exchange

pytestmark = pytest.mark.anyio

WRITABLE_FROM = 14
"""The oldest format that a program must know to write to a store of today."""

# What a later version might bring.
HARMLESS = "ALTER TABLE conversation ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue';\nCREATE TABLE extra (a TEXT);\n"
BREAKING = "CREATE TABLE needed (a TEXT);\nUPDATE meta SET writable_from = {format};\n"
FAILING = "ALTER TABLE conversation ADD COLUMN colour TEXT;\nDROP TABLE holder;\nINSERT INTO nowhere VALUES (1);\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def later_version(monkeypatch: pytest.MonkeyPatch, *scripts: str) -> int:
    """Makes this program one that has more migrations; returns the format that it knows."""
    known = FORMAT + len(scripts)
    monkeypatch.setattr("forkpoint.store.sqlite.files.MIGRATIONS", [*MIGRATIONS, *scripts])
    monkeypatch.setattr("forkpoint.store.sqlite.files.FORMAT", known)
    return known


def build(path: Path, format: int) -> None:
    """A database as a program that knew only the first so many migrations would have left it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for number, script in enumerate(MIGRATIONS[:format], start=1):
            for statement in split(script):
                db.execute(statement)
            if number == 1:
                db.execute("INSERT INTO meta (format, writable_from) VALUES (1, 1)")
        if format:
            db.execute("UPDATE meta SET format = ?", (format,))
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("VACUUM")


def build_with_content(path: Path, format: int, filled: Path) -> None:
    """A database of an earlier format that holds what a store of today holds, as far as that format has room for it."""
    build(path, format)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("ATTACH ? AS today", (str(filled),))
        tables = [row[0] for row in db.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")]
        for table in tables:
            if table == "meta" or table.startswith("sqlite_"):
                continue
            known = [row[1] for row in db.execute(f"PRAGMA main.table_info({table})")]
            columns = ", ".join(f'"{name}"' for name in known)
            charges = " WHERE id IS NULL" if table == "ledger" and "id" not in known else ""
            db.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM today.{table}{charges}")


def schema(path: Path) -> list[tuple[Any, ...]]:
    """All tables and indexes, as SQLite keeps them, and every column of each table."""
    with closing(sqlite3.connect(path)) as db:
        objects = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name").fetchall()
        tables = [name for kind, name, *_ in objects if kind == "table"]
        columns = [(table, *row) for table in tables for row in db.execute(f"PRAGMA table_xinfo({table})")]
        return objects + columns


def stated(path: Path) -> list[tuple[int, int]]:
    """The format that a database states, and the oldest that may write it."""
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT format, writable_from FROM meta").fetchall()


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


async def use(path: Path, name: str = "c") -> None:
    """Opens a store, writes to it and finds it sound."""
    async with await SqliteStore.open(path) as store:
        made = await store.create(NewConversation(id=new_id(), name=name), exchange("hi"))
        assert len(await store.events(made.id)) == 2
        assert (await store.verify()).flaws == ()


async def refused(path: Path) -> ForkpointError:
    try:
        store = await SqliteStore.open(path)
    except ForkpointError as error:
        return error
    await store.close()
    pytest.fail("the store was opened although its migration failed")


@pytest.mark.parametrize("format", range(FORMAT + 1))
async def test_a_store_of_every_earlier_format_becomes_the_same_as_a_new_one(tmp_path: Path, format: int) -> None:
    build(tmp_path / "old.db", format)
    await use(tmp_path / "old.db")
    await use(tmp_path / "new.db")
    assert schema(tmp_path / "old.db") == schema(tmp_path / "new.db"), f"format {format} migrates to something else"
    assert stated(tmp_path / "old.db") == stated(tmp_path / "new.db")


async def test_a_store_keeps_what_it_holds_through_a_migration(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await use(path, "before")
    known = later_version(monkeypatch, HARMLESS, "CREATE INDEX extra_a ON extra (a);")
    await use(path, "after")
    async with await SqliteStore.open(path) as store:
        assert {item.name for item in (await store.conversations()).items} == {"before", "after"}
        assert (await store.find("before")).head.ordinal == 2
    assert stated(path) == [(known, WRITABLE_FROM)]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of today with something of every kind."""
    path = tmp_path_factory.mktemp("filled") / "store.db"
    anyio.run(fill, path)
    return path


@pytest.mark.parametrize("format", range(1, 6))
async def test_what_an_earlier_format_holds_gets_records_that_vouch_for_it(
    path: Path, filled: Path, format: int
) -> None:
    build_with_content(path, format, filled)
    async with await SqliteStore.open(path) as store:
        found = await store.verify()
        assert found.flaws == ()
        assert found.records > found.conversations
        for item in (await store.conversations(limit=100)).items:
            assert (await store.verify(item.id)).flaws == (), f"{item.name} alone"
    await use(path, "later")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE turn SET input = NULL WHERE outcome = 'failed'")
    async with await SqliteStore.open(path) as store:
        assert not (await store.verify()).ok


OLD_WRITE_OFF = "INSERT INTO ledger (tenant, family, conversation, usage, deleted) VALUES (?, ?, ?, ?, 1)"


async def test_what_deleted_conversations_had_spent_before_there_were_charges_is_still_counted(path: Path) -> None:
    build(path, 1)
    family, usage = new_id(), Usage(calls=1, input=5)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(OLD_WRITE_OFF, ("default", id_to_bytes(family), id_to_bytes(family), '{"calls":1,"input":5}'))
    async with await SqliteStore.open(path) as store:
        assert await store.usage(family) == usage
        await store.create(NewConversation(id=family))
        assert await store.spent(family) == Usage()
        await store.charge(family, new_id(), usage)
        assert await store.spent(family) == usage
        assert await store.usage(family) == usage + usage


async def test_what_programs_of_formats_1_and_2_have_written_to_one_store_is_counted_once(path: Path) -> None:
    """Format 1 may write to format 2: it writes off a conversation that format 2 has charged, and leaves the charge."""
    build(path, 2)
    family = new_id()
    id = id_to_bytes(family)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "INSERT INTO ledger (tenant, family, conversation, usage, deleted, id) VALUES (?, ?, ?, ?, 0, ?)",
            ("default", id, id, '{"calls":1,"input":5}', id_to_bytes(new_id())),
        )
        db.execute(OLD_WRITE_OFF, ("default", id, id, '{"calls":1,"input":2}'))
    async with await SqliteStore.open(path) as store:
        assert await store.usage(family) == Usage(calls=2, input=7)


async def test_a_turn_that_an_earlier_program_left_running_is_interrupted_and_can_be_resumed(path: Path) -> None:
    build(path, 2)
    conversation, turn = new_id(), new_id()
    async with await SqliteStore.open(path) as store:
        await store.create(NewConversation(id=conversation))
        await store.begin(conversation, turn)
    with closing(sqlite3.connect(path)) as db, db:  # as the earlier program has it: a holder without host and process
        db.execute("INSERT INTO holder (id, seen) SELECT holder, 0 FROM turn")
    async with await SqliteStore.open(path) as store:
        assert (await store.turn(turn)).outcome == "interrupted"
        await store.commit(await store.resume(turn), exchange("hi"))


@pytest.mark.parametrize("format", [1, 5, 6])
async def test_conversations_of_an_earlier_program_are_listed_by_their_tags_and_by_their_last_change(
    path: Path, format: int
) -> None:
    build(path, format)
    columns = "id, family, name, tags, draft, created, updated, tenant, revision, head_digest, head_totals"
    columns += ", head_open_calls, settings, cache, lineage_kind, own_from, inherited, carries_metrics"
    rest = ("default", 0, b"", "{}", "{}", "{}", "{}", "root", 0, "{}", 0)
    with closing(sqlite3.connect(path)) as db, db:
        for name, tags, draft, created, updated in (
            ("first", '{"team":"ci","kind":"a"}', 0, 1, 30),
            ("second", "{}", 0, 2, 10),
            ("third", '{"team":"ci"}', 0, 3, 20),
            ("draft", '{"team":"ci"}', 1, 4, 40),
            ("damaged", "rubbish", 1, 5, 50),
        ):
            row = (id := id_to_bytes(new_id(created)), id, name, tags, draft, created, updated, *rest)
            db.execute(f"INSERT INTO conversation ({columns}) VALUES ({', '.join('?' * len(row))})", row)

    async with await SqliteStore.open(path) as store:

        async def names(**which: Any) -> list[str]:
            return [one.name for one in (await store.conversations(**which)).items]

        assert await names() == ["third", "second", "first"]
        assert await names(order="used") == ["first", "third", "second"]
        assert await names(tags=(("team", "ci"),)) == ["third", "first"]
        assert await names(order="used", tags=(("team", "ci"),)) == ["first", "third"]
        await store.begin((await store.find("second")).id, new_id())
        assert await names(order="used") == ["second", "first", "third"]
        await store.describe((await store.find("first")).id, tags=())
        assert await names(tags=(("team", "ci"),)) == ["third"]


async def test_a_program_that_would_not_see_that_a_turn_is_to_be_cancelled_is_shut_out(path: Path) -> None:
    build(path, 2)
    assert stated(path) == [(2, 1)]
    await use(path)
    assert stated(path) == [(FORMAT, WRITABLE_FROM)]


async def test_migrating_step_by_step_and_at_once_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = [HARMLESS, "CREATE INDEX extra_a ON extra (a);", "DROP INDEX extra_a;\nALTER TABLE extra ADD b TEXT;"]
    for count in range(len(scripts) + 1):
        with monkeypatch.context() as version:
            later_version(version, *scripts[:count])
            await use(tmp_path / "steps.db", f"c{count}")
    later_version(monkeypatch, *scripts)
    await use(tmp_path / "new.db")
    assert schema(tmp_path / "steps.db") == schema(tmp_path / "new.db")
    assert stated(tmp_path / "steps.db") == stated(tmp_path / "new.db")


async def test_a_store_made_by_a_later_version_shuts_out_the_same_programs_as_one_migrated_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await use(tmp_path / "old.db")
    with monkeypatch.context() as version:
        known = later_version(version, BREAKING.format(format=FORMAT + 1))
        await use(tmp_path / "old.db", "again")
        await use(tmp_path / "new.db")
    assert stated(tmp_path / "old.db") == [(known, known)]
    assert StoreUnusable.store_newer.made(await refused(tmp_path / "old.db"))
    assert stated(tmp_path / "new.db") == [(known, known)], (
        "a migration shut older programs out of migrated stores, but not out of stores that are new: "
        "they would write to a format that they do not know"
    )


async def test_a_migration_that_fails_half_way_leaves_the_database_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await use(path)
    before = dump(path)
    with monkeypatch.context() as version:
        later_version(version, HARMLESS, FAILING)
        error = await refused(path)
    assert error.code.startswith("store_"), f"refused as {error!r}"
    assert dump(path) == before, "half of a migration is in the database"
    assert stated(path) == [(FORMAT, WRITABLE_FROM)]
    await use(path, "again")


async def test_a_migration_that_failed_runs_whole_the_next_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await use(path)
    with monkeypatch.context() as version:
        later_version(version, HARMLESS, FAILING)
        await refused(path)
    known = later_version(monkeypatch, HARMLESS)
    await use(path, "again")
    assert stated(path) == [(known, WRITABLE_FROM)]


async def test_a_store_whose_making_fails_is_not_there_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later_version(monkeypatch, FAILING)
    await refused(path)
    left = sorted(file.name for file in path.parent.iterdir() if not file.name.endswith("-write"))
    assert left == [], f"a store that could not be made left {left}"


KILLED = """
import os, signal, sys
from pathlib import Path
from forkpoint.store.sqlite import files

def connect(path, connect=files.connect):
    db = connect(path)
    db.set_trace_callback(lambda sql: os.kill(os.getpid(), signal.SIGKILL) if "last_straw" in sql else None)
    return db

files.connect = connect
files.MIGRATIONS = [*files.MIGRATIONS, sys.argv[2]]
files.FORMAT += 1
files.prepare(Path(sys.argv[1]))
"""


async def test_a_program_that_is_killed_in_a_migration_leaves_the_database_as_it_was(path: Path) -> None:
    await use(path)
    before = dump(path)
    script = HARMLESS + "CREATE TABLE last_straw (a);\n"
    run = subprocess.run([sys.executable, "-c", KILLED, str(path), script], capture_output=True, text=True, check=False)
    assert run.returncode == -9, f"it was to be killed in the middle: {run.stderr}"
    assert dump(path) == before
    await use(path, "again")


async def test_many_that_open_an_older_store_at_once_migrate_it_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await use(path)
    known = later_version(monkeypatch, HARMLESS)
    async with anyio.create_task_group() as tasks:
        for n in range(5):
            tasks.start_soon(use, path, f"c{n}")
    assert stated(path) == [(known, WRITABLE_FROM)]
