"""A damaged file: `verify` and reads say `StoreDamaged`, whatever page is damaged."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from forkpoint.errors import StoreDamaged
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import Connect, connect, connect_reader
from forkpoint.testing.conformance.base import create, run

pytestmark = pytest.mark.anyio

TABLES = ["event", "turn", "step", "record", "conversation", "ledger", "segment"]
INDEXES = ["record_chain", "record_subject", "conversation_family", "turn_end"]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose tables have several pages each."""
    path = tmp_path_factory.mktemp("damage") / "store.db"
    anyio.run(_fill, path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture
def path(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(filled, tmp_path / "store.db"))


async def _fill(path: Path) -> None:
    async with await SqliteStore.open(path) as store:
        for number in range(40):
            made = await create(store)
            await run(store, made.id, f"{number} " * 100)


def pages(path: Path, name: str) -> list[int]:
    """The pages of a table or an index."""
    with closing(sqlite3.connect(path)) as db:
        if "dbstat" not in {row[0] for row in db.execute("SELECT name FROM pragma_module_list")}:
            (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()
            return [root]
        return [row[0] for row in db.execute("SELECT pageno FROM dbstat WHERE name = ?", (name,))]


def damage(path: Path, page: int, rubbish: bytes) -> None:
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(rubbish)


async def used(path: Path) -> None:
    async with await SqliteStore.open(path) as store:
        await store.verify()


@pytest.mark.parametrize("name", [*TABLES, *INDEXES])
@pytest.mark.parametrize("rubbish", [b"\xff" * 4096, bytes(4096)], ids=["ones", "zeros"])
async def test_a_damaged_page_is_damage(path: Path, name: str, rubbish: bytes) -> None:
    damage(path, pages(path, name)[-1], rubbish)
    with pytest.raises(StoreDamaged) as raised:
        await used(path)
    assert raised.value.code == "store_damaged"
    assert "backup" in str(raised.value)


def with_rubbish(path: Path) -> Iterator[Path]:
    """Copies of a store, each with a few bytes of rubbish in the middle of one of its pages."""
    for offset in range(4096 + 2000, path.stat().st_size, 4096 * 7):
        copied = Path(shutil.copy(path, path.with_name("copy.db")))
        with copied.open("r+b") as file:
            file.seek(offset)
            file.write(b"\xfe\xff\xfe\xff" * 8)
        yield copied


async def test_rubbish_inside_a_page_is_damage_or_a_flaw_and_never_another_error(path: Path) -> None:
    damaged = 0
    for copied in with_rubbish(path):
        try:
            await used(copied)
        except StoreDamaged:
            damaged += 1
    assert damaged, "no rubbish was found, so this proves nothing"


async def test_an_index_that_lost_a_row_is_damage(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute(
            "UPDATE sqlite_master SET sql = replace(sql, 'draft = 1', 'draft = 0') WHERE name = 'conversation_draft'"
        )
    with pytest.raises(StoreDamaged):
        await used(path)


@pytest.mark.parametrize("opens", [connect, connect_reader])
def test_a_connection_to_what_is_no_database_is_closed(
    opens: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[sqlite3.Connection] = []

    def remembered(*args: Any, real: Any = sqlite3.connect, **options: Any) -> sqlite3.Connection:
        made.append(real(*args, **options))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", remembered)
    (path := tmp_path / "store.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 8000)
    with pytest.raises(sqlite3.DatabaseError):
        opens(str(path))
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        made[0].execute("SELECT 1")
