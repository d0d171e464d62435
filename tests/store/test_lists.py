"""Lists in SQLite: which index finds a page, what a use, a fork and a commit write, and what a page far down costs."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from forkpoint.ids import id_to_bytes, new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import MEMORY, SQL, Database, connect
from forkpoint.store.sqlite.files import make_tables
from forkpoint.store.tables.operations import conversations, lists
from forkpoint.store.tables.rows import Scope
from forkpoint.store.values import DEFAULT_TENANT, NewConversation, NewFork, OpenTurn
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.samples import exchange

pytestmark = pytest.mark.anyio

# The whole of each key is used: a place in the list is found at once, and what follows is read in order.
RANGES = {
    "list_by_creation": "INDEX conversation_created (tenant=? AND lineage_kind=? AND id<?)",
    "list_by_use": "INDEX conversation_used (tenant=? AND lineage_kind=? AND (used,id)<(?,?))",
    "list_tagged_by_creation": "PRIMARY KEY (tenant=? AND key=? AND value=? AND conversation<?)",
    "list_tagged_by_use": "INDEX tag_used (tenant=? AND key=? AND value=? AND (used,conversation)<(?,?))",
    "count_tagged": "(tenant=? AND key=? AND value=?)",
    "list_open": "INDEX conversation_open (tenant=? AND id<?)",
    "list_family": "INDEX conversation_family (family=? AND id<?)",
    "count_folded": "COVERING INDEX conversation_folded (tenant=? AND lineage_source=? AND lineage_kind=? AND draft=?)",
    "list_children": "INDEX conversation_parent (lineage_source=? AND id<?)",
    "newest_turns_in_span": "INDEX turn_end (end>? AND end<?)",
    "newest_tries": "INDEX turn_ended (conversation=? AND id<?)",
}
LISTED_BY = ("conversation_created", "conversation_used", "tag", "tag_used", "sqlite_autoindex_conversation_1")


@pytest.fixture(scope="module")
def db() -> Iterator[Database]:
    """A fresh database of the current format."""
    connection = connect(MEMORY)
    make_tables(connection)
    yield connection
    connection.close()


@pytest.mark.parametrize("name", RANGES)
def test_a_page_is_a_range_of_an_index(db: Database, name: str) -> None:
    parameters = {"tenant": "t", "kind": "fork", "used": 1, "id": b"x", "of": b"x", "limit": 5, "status": "running"}
    parameters |= {"tag": '{"k":"v"}', "tags": "{}", "sub_agents": True, "sides": True, "dead": "[]"}
    parameters |= {"asides": True, "drafts": False}
    parameters |= {"first": 1, "last": 9, "notes": True, "conversation": b"x", "before": b"x", "since": 0}
    plan = [row["detail"] for row in db.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", parameters)]
    assert any(step.startswith("SEARCH") and step.endswith(RANGES[name]) for step in plan), plan
    assert not [step for step in plan if "TEMP B-TREE" in step], f"{name} sorts what an index has in order: {plan}"


@pytest.mark.parametrize("name", ["move_head", "take_lock", "release_lock"])
def test_no_turn_writes_an_index_of_lists_that_stays_as_it_is(db: Database, name: str) -> None:
    roots = dict(db.execute("SELECT rootpage, name FROM sqlite_master WHERE rootpage > 0").fetchall())
    assert set(LISTED_BY) <= set(roots.values())
    sql = SQL[name]
    program = db.execute(f"EXPLAIN {sql}", _Nulls()).fetchall()
    written = {roots[step["p2"]] for step in program if step["opcode"] == "OpenWrite"}
    assert "conversation" in written
    assert not written & set(LISTED_BY), f"{name} writes {written & set(LISTED_BY)} each time"


class _Nulls(dict[str, None]):
    def __missing__(self, name: str) -> None:
        return None


async def test_a_fork_writes_one_row_and_one_for_each_tag(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with await SqliteStore.open(path) as store:
        made = await store.create(NewConversation(id=new_id(), tags=(("a", "1"),)), exchange("hi"))
        before = rows(path)
        await store.fork(made.id, NewFork(id=new_id(), cache="{}"))
        one = rows(path)
        assert Counter(table for table, *_ in (one - before)) == {"conversation": 1}
        assert before <= one
        await store.fork(made.id, NewFork(id=new_id(), cache="{}", tags=(("a", "1"), ("b", "2"))))
        assert Counter(table for table, *_ in (rows(path) - one)) == {"conversation": 1, "tag": 2}
        for info in (await store.conversations()).items:
            await store.delete(info.id)
        assert not [row for row in rows(path) if row[0] in ("conversation", "tag")]


async def test_a_use_is_written_once_a_minute(tmp_path: Path) -> None:
    path, clock = tmp_path / "store.db", ManualClock()
    async with await SqliteStore.open(path, clock=clock) as store:
        made = await store.create(NewConversation(id=new_id(), tags=(("a", "1"),)))
        written = []
        for _ in range(9):
            clock.pass_by(20)
            turn = await store.begin(made.id, new_id())
            assert isinstance(turn, OpenTurn)
            await store.commit(turn, exchange("hi"))
            written.append((await store.read(made.id)).used)
            assert {row[-1] for row in rows(path) if row[0] == "tag"} == {written[-1]}, "the tag says another time"
        assert len(set(written)) == 4, "at its making, and after one, two and three minutes"


async def test_damaged_tags_keep_no_conversation_from_being_deleted(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with await SqliteStore.open(path) as store:
        made = await store.create(NewConversation(id=new_id(), tags=(("a", "1"),)))
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE conversation SET tags = 'rubbish'")
        await store.delete(made.id)
    assert not [row for row in rows(path) if row[0] in ("conversation", "tag")]


async def test_a_page_far_down_reads_no_more_than_the_first(tmp_path: Path) -> None:
    ids = await _fill(tmp_path / "store.db", 3000)
    with closing(connect(str(tmp_path / "store.db"))) as db:
        for hidden in (True, False):
            first, deep = steps(db, hidden=hidden), steps(db, hidden=hidden, cursor=ids[900])
            assert 0 < deep < 1.2 * first, f"by creation: {first} steps for the first page, and {deep} for this one"
            first, deep = (steps(db, hidden=hidden, order="used", cursor=at) for at in (None, f"900:{ids[900]}"))
            assert 0 < deep < 1.2 * first, f"by use: {first} steps for the first page, and {deep} for this one"


async def test_a_filter_that_finds_nothing_does_not_look_at_everything(tmp_path: Path) -> None:
    await _fill(tmp_path / "store.db", 3000)
    with closing(connect(str(tmp_path / "store.db"))) as db:
        page = steps(db)
        for order in ("created", "used"):
            assert steps(db, order=order, tags=(("a", "nobody"),)) < page
            assert steps(db, order=order, tags=(("a", "everybody"), ("b", "nobody"))) < 5 * page
            assert steps(db, order=order, status="running") < page


def steps(db: Database, *, hidden: bool = True, order: Any = "created", cursor: str | None = None, **which: Any) -> int:
    """How many steps SQLite's machine takes for a page, the same on every run. ``hidden``: with sub-agents."""
    filters: dict[str, Any] = {"tags": (), "status": None, "family": None, "parent": None}
    wanted = lists.Wanted(**filters | which, sub_agents=hidden, sides=hidden, asides=True, drafts=False)
    scope = Scope(DEFAULT_TENANT, 1, b"", lambda holder, seen: False)
    taken = 0

    def step() -> int:
        nonlocal taken
        taken += 1
        return 0

    db.set_progress_handler(step, 1)
    try:
        lists.page(db, scope, order=order, cursor=cursor, limit=20, wanted=wanted)
    finally:
        db.set_progress_handler(None, 0)
    return taken


async def _fill(path: Path, count: int) -> list[str]:
    """A store with many conversations, nearly all of them sub-agents; `used` is their number."""
    async with await SqliteStore.open(path) as store:
        root = await store.create(NewConversation(id=new_id()), exchange("hi"))
    ids = [new_id(number * 1000) for number in range(1, count)]
    with closing(connect(str(path))) as db:
        db.execute("BEGIN")
        for number, id in enumerate(ids):
            scope = Scope(DEFAULT_TENANT, number, b"", lambda holder, seen: False)
            new = NewFork(id=id, cache="{}", tags=(("a", "everybody"),))
            conversations.fork(db, scope, root.id, new, at=None, before=None, if_revision=None, key=None, draft=False)
        hidden = [(id_to_bytes(id),) for number, id in enumerate(ids) if number % 30]
        db.executemany(
            f"UPDATE conversation SET lineage_kind = 'sub_agent' WHERE tenant = '{DEFAULT_TENANT}' AND id = ?", hidden
        )
        db.execute("COMMIT")
    return ids


def rows(path: Path) -> Counter[tuple[Any, ...]]:
    """Every row of the database."""
    found: Counter[tuple[Any, ...]] = Counter()
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            found.update((table, *row) for row in db.execute(f"SELECT * FROM {table}"))
    return found
