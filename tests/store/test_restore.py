"""A store is made of a backup: whole or not at all, and never in the place of another unless that is asked for."""
# ruff: noqa: ASYNC220, ASYNC240 - nothing else runs on these loops, so blocking them holds nobody up

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.store.support.killed_copies import killed_at_each_moment

from forkpoint.errors import (
    BadArgument,
    BadStoreUrl,
    CopyRefused,
    ForkpointError,
    NotFound,
    StoreDamaged,
    StoreUnusable,
)
from forkpoint.ids import new_id
from forkpoint.store.erasure import Receipt, encode_receipt
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import connect
from forkpoint.store.sqlite.copies.restore import restore
from forkpoint.store.sqlite.files import APPLICATION_ID, FORMAT, MIGRATIONS, renew_store_id, split
from forkpoint.store.values import CopyStep, NewConversation
from forkpoint.testing.samples import exchange

pytestmark = pytest.mark.anyio


async def filled(path: Path, *names: str) -> None:
    async with await SqliteStore.open(path) as store:
        for name in names:
            await store.create(NewConversation(id=new_id(), name=name), exchange("hello " * 200))


async def names(path: Path) -> list[str]:
    """The conversations of a store, which has to be sound and writable."""
    async with await SqliteStore.open(path) as store:
        assert (await store.verify()).ok
        found = sorted(one.name for one in (await store.conversations(limit=1000)).items)
        made = await store.create(NewConversation(id=new_id()), exchange("still writable"))
        await store.delete(made.id)
        return found


@pytest.fixture
async def backup(tmp_path: Path) -> Path:
    """A backup with the conversation "saved"."""
    path = tmp_path / "backup.db"
    async with await SqliteStore.open(None) as store:
        await store.create(NewConversation(id=new_id(), name="saved"), exchange("hello " * 200))
        await store.backup(path)
    return path


def refused(backup: Path, target: Path, **options: Any) -> ForkpointError:
    with pytest.raises(ForkpointError) as error:
        restore(backup, target, **{"forget_erasures": True} | options)
    return error.value


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file() and "-write" not in file.name}


async def test_a_backup_becomes_a_store(backup: Path, tmp_path: Path) -> None:
    target = tmp_path / "store.db"
    steps: list[CopyStep] = []
    made = restore(backup, target, forget_erasures=True, progress=steps.append)
    assert (made.path, made.conversations, made.events, made.format) == (str(target), 1, 2, FORMAT)
    assert (made.erasures, made.kept, made.bytes) == (0, None, target.stat().st_size)
    assert {step.stage for step in steps} == {"copying", "checking"}
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert sorted(file.name for file in tmp_path.iterdir()) == ["backup.db", "store.db", "store.db-write"]
    assert await names(target) == ["saved"]


async def test_a_turn_that_ran_when_the_backup_was_made_is_interrupted_in_the_new_store(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "old.db") as store:
        conversation = (await store.create(NewConversation(id=new_id()), exchange("hello"))).id
        await store.begin(conversation, new_id())
        await store.backup(tmp_path / "backup.db")
        restore(tmp_path / "backup.db", tmp_path / "store.db", forget_erasures=True)
        async with await SqliteStore.open(tmp_path / "store.db") as restored:
            assert (await restored.read(conversation)).status == "interrupted"
        assert (await store.read(conversation)).status == "running"


async def test_a_restored_store_has_an_id_of_its_own_where_the_format_has_one(tmp_path: Path) -> None:
    await filled(tmp_path / "store.db")
    with closing(connect(str(tmp_path / "store.db"))) as db:
        renew_store_id(db)  # a format without ids stays as it is
        if not any(column["name"] == "store" for column in db.execute("PRAGMA table_info(meta)")):
            db.execute("ALTER TABLE meta ADD COLUMN store BLOB")
        renew_store_id(db)
        first = db.execute("SELECT store FROM meta").fetchone()[0]
        renew_store_id(db)
        second = db.execute("SELECT store FROM meta").fetchone()[0]
    assert (len(first), len(second)) == (16, 16)
    assert first != second


async def test_what_was_erased_since_has_to_be_said(backup: Path, tmp_path: Path) -> None:
    target, receipts = tmp_path / "store.db", tmp_path / "erasures.jsonl"
    before = contents(tmp_path)
    assert CopyRefused.erasures_not_named.made(refused(backup, target, forget_erasures=False))
    assert isinstance(refused(backup, target, erasures=receipts), BadArgument), "both were given"
    assert isinstance(refused(backup, target, erasures=receipts, forget_erasures=False), CopyRefused), "no such file"
    real = Receipt(id=new_id(), tenant="default", family=new_id(), reason="a test", time=1)
    for wrong in ("not a receipt", '{"what": "an erasure"}', encode_receipt(replace(real, done=False))):
        receipts.write_text(f"{encode_receipt(real)}\n{wrong}\n")
        assert "line 2" in str(refused(backup, target, erasures=receipts, forget_erasures=False)), wrong
    receipts.unlink()
    assert contents(tmp_path) == before, "something was written"
    receipts.write_text("\n")
    assert restore(backup, target, erasures=receipts).erasures == 0


async def test_a_store_that_is_there_stays_unless_it_is_to_be_replaced_and_then_it_is_kept(
    backup: Path, tmp_path: Path
) -> None:
    target = tmp_path / "store.db"
    await filled(target, "mine")
    before = contents(tmp_path)
    assert CopyRefused.store_exists.made(refused(backup, target))
    assert contents(tmp_path) == before
    made = restore(backup, target, forget_erasures=True, force=True, clock=lambda: 1_800_000_000_000_000)
    assert made.kept == f"{target}.before-20270115T080000Z"
    assert await names(target) == ["saved"]
    assert await names(Path(made.kept)) == ["mine"]
    again = restore(backup, target, forget_erasures=True, force=True, clock=lambda: 1_800_000_000_000_000)
    assert again.kept == f"{made.kept}-2"
    assert await names(Path(made.kept)) == ["mine"]


async def test_a_store_that_was_not_closed_is_kept_with_what_is_in_its_log(backup: Path, tmp_path: Path) -> None:
    target = tmp_path / "store.db"
    async with await SqliteStore.open(tmp_path / "live.db") as live:
        await live.create(NewConversation(id=new_id(), name="mine"), exchange("hello"))
        for end in ("", "-wal"):
            shutil.copy(f"{tmp_path / 'live.db'}{end}", f"{target}{end}")
    made = restore(backup, target, forget_erasures=True, force=True)
    assert await names(target) == ["saved"]
    assert made.kept is not None
    assert await names(Path(made.kept)) == ["mine"]


async def test_a_damaged_store_and_a_log_alone_are_replaced_and_kept_as_they_were(backup: Path, tmp_path: Path) -> None:
    target = tmp_path / "store.db"
    target.write_bytes(b"SQLite format 3\0" + b"\xff" * 8000)
    Path(f"{target}-wal").write_bytes(b"its log")
    made = restore(backup, target, forget_erasures=True, force=True)
    assert made.kept is not None
    assert Path(made.kept).read_bytes().endswith(b"\xff" * 8000)
    assert Path(f"{made.kept}-wal").read_bytes() == b"its log"
    assert await names(target) == ["saved"]
    target.unlink()
    Path(f"{target}-wal").write_bytes(b"its log")
    assert CopyRefused.store_exists.made(refused(backup, target))
    made = restore(backup, target, forget_erasures=True, force=True)
    assert Path(f"{made.kept}-wal").read_bytes() == b"its log"
    assert await names(target) == ["saved"]


HOLDING = """
import sys
import anyio
from forkpoint.store.sqlite import SqliteStore

async def hold():
    async with await SqliteStore.open(sys.argv[1], access=sys.argv[2]) as store:
        await store.conversations()
        print("open", flush=True)
        sys.stdin.read()

anyio.run(hold)
"""


async def test_a_store_that_another_process_has_open_is_not_replaced(backup: Path, tmp_path: Path) -> None:
    target = tmp_path / "store.db"
    await filled(target, "mine")
    holding = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(target), "write"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holding.stdout is not None
    assert holding.stdout.readline() == "open\n"
    assert CopyRefused.store_in_use.made(refused(backup, target, force=True))
    holding.communicate(timeout=30)
    assert holding.returncode == 0
    assert await names(target) == ["mine"]
    assert not list(tmp_path.glob("*before*"))


@pytest.mark.parametrize("what", ["damaged", "tampered with", "no store", "empty", "missing", "itself", "newer"])
async def test_a_backup_that_is_not_sound_is_refused_and_nothing_is_made(
    backup: Path, tmp_path: Path, what: str
) -> None:
    target, expected = (
        tmp_path / "store.db",
        {
            "damaged": StoreDamaged,
            "tampered with": StoreDamaged,
            "no store": StoreUnusable,
            "empty": StoreUnusable,
            "missing": NotFound,
            "itself": BadStoreUrl,
            "newer": StoreUnusable,
        },
    )
    content = backup.read_bytes()
    match what:
        case "damaged":
            backup.write_bytes(content[:8192] + b"\xff" * 4096 + content[12288:])
        case "tampered with" | "newer":
            with closing(sqlite3.connect(backup)) as db:
                newer = f"UPDATE meta SET format = {FORMAT + 1}, writable_from = {FORMAT + 1}"
                other = "UPDATE event SET payload = replace(payload, 'hello', 'howdy')"
                db.execute(newer if what == "newer" else other)
                db.commit()
        case "no store":
            backup.write_text("Dear diary,\n" * 1000)
        case "empty":
            backup.write_bytes(b"")
        case "missing":
            backup.unlink()
        case "itself":
            target = backup
    error = refused(backup, target, force=True)
    assert isinstance(error, expected[what]), error
    left = sorted(file.name for file in tmp_path.iterdir() if file != backup)
    assert left == [], "something was made"


async def test_an_older_backup_is_migrated(tmp_path: Path) -> None:
    backup = tmp_path / "old.db"
    with closing(connect(str(backup))) as db:
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for statement in split(MIGRATIONS[0]):
            db.execute(statement)
        db.execute("INSERT INTO meta (format, writable_from) VALUES (1, 1)")
    before = backup.read_bytes()
    assert restore(backup, tmp_path / "store.db", forget_erasures=True).format == FORMAT
    assert await names(tmp_path / "store.db") == []
    assert backup.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
async def test_a_restore_that_is_killed_at_any_moment_leaves_the_old_store_or_the_new_one_and_never_harms_the_backup(
    tmp_path: Path,
) -> None:
    await filled(tmp_path / "store.db", "saved")  # what is restored
    (tmp_path / "live").mkdir()
    async with await SqliteStore.open(tmp_path / "live" / "old.db") as live:
        await live.create(NewConversation(id=new_id(), name="old"), exchange("hello"))
        for end in ("", "-wal"):  # as a crash leaves it: the conversation is only in the log
            shutil.copy(tmp_path / "live" / f"old.db{end}", tmp_path)
    before = (tmp_path / "store.db").read_bytes()
    moments = 60
    ends = killed_at_each_moment(tmp_path, "restore", moments)
    for moment in range(ends.count("-9") + 1):
        found = await names(tmp_path / f"{moment}.db")
        assert found in (["saved"], ["old"]), f"killed at moment {moment}"
        kept = list(tmp_path.glob(f"{moment}.db.before-*"))
        if found == ["saved"]:
            assert [await names(one) for one in kept if not one.name.endswith("-write")] == [["old"]]
    assert (tmp_path / "store.db").read_bytes() == before
