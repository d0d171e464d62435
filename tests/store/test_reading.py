"""Reading part of a path reads no more of it: what comes before could be missing, and nobody would notice."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from forkpoint.errors import StoreDamaged
from forkpoint.store.sqlite import SqliteStore
from forkpoint.testing.conformance.base import begin, create, fork_of, run

pytestmark = pytest.mark.anyio


async def build(path: Path) -> str:
    """A fork of a fork, each with a turn of two events in a segment of its own, and a try. Returns its id."""
    async with await SqliteStore.open(path) as store:
        id = (await create(store)).id
        await run(store, id, "one")
        for question in ("two", "three"):
            id = (await store.fork(id, fork_of())).id
            await run(store, id, question)
        await store.cancel(await begin(store, id))
        return id


def remove_segments(path: Path, which: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute(f"DELETE FROM segment WHERE {which}").rowcount, "nothing was removed, so this proves nothing"


@pytest.mark.parametrize(("since", "missing", "found"), [(6, "true", 1), (4, "id < 3", 2), (2, "id < 2", 3)])
async def test_turns_since_an_ordinal_are_listed_without_what_comes_before(
    tmp_path: Path, since: int, missing: str, found: int
) -> None:
    path = tmp_path / "store.db"
    id = await build(path)
    remove_segments(path, missing)
    async with await SqliteStore.open(path) as store:
        assert len((await store.turns(id, since=since)).items) == found
        with pytest.raises(StoreDamaged):
            await store.turns(id)


async def test_a_page_of_turns_is_read_from_its_cursor_on(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    id = await build(path)
    async with await SqliteStore.open(path) as store:
        first = await store.turns(id, limit=2)
        remove_segments(path, "id < 2")
        assert len((await store.turns(id, cursor=first.next)).items) == 2


async def test_a_gap_in_what_is_read_is_found(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    id = await build(path)
    remove_segments(path, "id = 2")
    async with await SqliteStore.open(path) as store:
        with pytest.raises(StoreDamaged):
            await store.turns(id, since=2)
