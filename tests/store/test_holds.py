"""What somebody with SQL can do to a hold, and how it is found."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from forkpoint.ids import id_to_bytes, new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import connect
from forkpoint.store.tables.operations.holds import flaws_in_holds
from forkpoint.store.tables.rows import Scope
from forkpoint.store.values import NewConversation

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("UPDATE hold SET since = since", []),
        ("DELETE FROM hold", ["is missing, and no record says that it was released"]),
        ("UPDATE hold SET reason = 'none'", ["says something else than its record"]),
        ("UPDATE hold SET \"by\" = 'somebody'", ["says something else than its record"]),
        ("UPDATE hold SET since = since - 1", ["says something else than its record"]),
        ("INSERT INTO hold SELECT tenant, family, randomblob(16), '', NULL, 0 FROM hold", ["no record says so"]),
    ],
)
async def test_holds_must_be_those_that_the_familys_records_tell_of(
    tmp_path: Path, change: str, found: list[str]
) -> None:
    file = tmp_path / "x.db"
    async with await SqliteStore.open(file) as store:
        made = await store.create(NewConversation(id=new_id()))
        ended = await store.hold(made.id, new_id(), "an earlier case")
        await store.hold(made.id, new_id(), "a case")
        await store.release(made.id, ended.id)
    with closing(sqlite3.connect(file)) as db, db:
        db.execute(change)
    with closing(connect(str(file))) as db:
        flaws = flaws_in_holds(db, Scope("default", 0, b"", lambda holder, seen: False), id_to_bytes(made.id))
    assert len(flaws) == len(found)
    assert all(text in flaw for text, flaw in zip(found, flaws, strict=True))
