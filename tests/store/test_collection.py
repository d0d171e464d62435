"""Collection: its work follows the garbage and not the store, it gives space back, and it keeps to its retention."""
# ruff: noqa: ASYNC240 - nothing else runs on these loops, so blocking them holds nobody up

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.store.support.grep import found_in

from forkpoint.errors import NotResumable
from forkpoint.history.records import decode_fact
from forkpoint.ids import id_to_bytes, new_id
from forkpoint.store import open_store
from forkpoint.store.sqlite import SqliteSettings, SqliteStore
from forkpoint.store.sqlite.connection import SQL, Connect, Database, connect
from forkpoint.store.sqlite.files import make_tables
from forkpoint.store.values import Collected, NewConversation, NewFork, Onto, OpenTurn, Retention, TurnError
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.samples import exchange

pytestmark = pytest.mark.anyio

A_MONTH = 31 * 24 * 3600


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


async def make(store: SqliteStore, *questions: str) -> str:
    made = await store.create(NewConversation(id=new_id()))
    for question in questions:
        await store.note(made.id, new_id(), exchange(question))
    return made.id


async def begin(store: SqliteStore, conversation: str, **options: Any) -> OpenTurn:
    held = await store.begin(conversation, new_id(), **options)
    assert isinstance(held, OpenTurn)
    return held


async def fail(store: SqliteStore, conversation: str) -> str:
    held = await begin(store, conversation, input='{"asked":"something"}')
    return (await store.fail(held, TurnError("x", "y"))).id


def rows(path: Path, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql, parameters).fetchall()


async def test_a_collection_that_finds_nothing_is_six_reads_and_no_write(
    path: Path, watched: Callable[..., Connect], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def watch(db: Database, sql: str, execute: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
        said.append(sql)
        return execute()

    made = watched(watch)
    monkeypatch.setattr("forkpoint.store.sqlite.open_file.connect_reader", made)
    async with await SqliteStore.open(path, connect=made) as store:
        await make(store, "one")
        said.clear()
        assert await store.collect(every_tenant=True) == Collected()
        assert [sql for sql in said if sql not in ("BEGIN", "COMMIT")] == [
            SQL[name] for name in ("old_drafts", "old_keys", "old_tries", "old_responses", "owed", "next_garbage")
        ]


@pytest.mark.parametrize(
    "name",
    [
        "old_drafts",
        "old_keys",
        "old_tries",
        "old_responses",
        "next_garbage",
        "highest_place",
        "last_events",
        "last_event_between",
    ],
)
def test_each_look_for_something_to_do_is_a_range_of_an_index(name: str) -> None:
    with closing(connect(":memory:")) as db:
        make_tables(db)
        wanted = dict.fromkeys(("low", "high", "before", "limit", "first", "last"), 0)
        plan = [row["detail"] for row in db.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", wanted)]
    rows_at_hand = {"SCAN CONSTANT ROW", "SCAN one"}  # of no table: `one` has a row for each tenant
    reads = [step for step in plan if step.startswith(("SCAN", "SEARCH")) and step not in rows_at_hand]
    assert reads, plan
    assert all(step.startswith("SEARCH") for step in reads), plan


async def test_space_goes_back_to_the_file_system(path: Path) -> None:
    async with await SqliteStore.open(path) as store:
        kept = await make(store, "x" * 1000)
        before = path.stat().st_size
        doomed = await make(store, *("y" * 200_000 for _ in range(20)))
        await store.delete(doomed)
        running = await begin(store, kept)  # so that it is not compacted: this is what a busy store does
        assert (await store.collect()).events == 40
        assert path.stat().st_size < before + 200_000, "the file has kept what was freed"
        await store.commit(running, exchange("on"))


async def test_an_old_store_gives_space_back_once_it_was_compacted(path: Path) -> None:
    with closing(connect(str(path))) as db:
        make_tables(db)
        db.execute("PRAGMA journal_mode = WAL")
    async with await SqliteStore.open(path) as store:
        kept = await make(store, "kept")
        doomed = await make(store, *("y" * 200_000 for _ in range(20)))
        await store.delete(doomed)
        running = await begin(store, kept)
        await store.collect()
        assert rows(path, "PRAGMA auto_vacuum") == [(0,)], "an old store is changed only if somebody asks for it"
        assert path.stat().st_size > 4_000_000
        await store.collect(compact=True)
        assert rows(path, "PRAGMA auto_vacuum") == [(2,)]
        assert path.stat().st_size < 1_000_000
        await store.commit(running, exchange("on"))
        assert (await store.verify()).ok


async def test_a_turn_that_stood_on_a_deleted_branch_leaves_its_base_to_the_collector(path: Path) -> None:
    async with await SqliteStore.open(path) as store:
        root = await make(store, "one")
        fork = await store.fork(root, NewFork(id=new_id(), cache="{}"))
        first = await store.note(fork.id, new_id(), exchange("two"))
        await store.note(fork.id, new_id(), exchange("three"))
        held = await begin(store, root, onto=Onto(fork.id, first.last))
        await store.delete(fork.id)
        assert (await store.collect()).events == 2, "it took what the turn stands on, or left what nobody does"
        await store.cancel(held)
        assert (await store.collect()).events == 2
        assert rows(path, "SELECT count(*) FROM event") == [(2,)]
        assert rows(path, "SELECT count(*) FROM pin") == [(0,)]


async def test_a_tenant_collects_its_own_and_the_operator_everybodys(path: Path) -> None:
    async with await SqliteStore.open(path) as store:
        for tenant in ("one", "two"):
            within = store.within(tenant)
            await within.delete(await make(within, "hi"))
        assert (await store.collect()).events == 0
        assert (await store.within("one").collect()).events == 2
        assert (await store.collect(every_tenant=True)).events == 2


async def test_a_dry_run_is_not_followed_by_a_removal_when_the_store_is_closed(path: Path) -> None:
    async with await SqliteStore.open(path) as store:
        await store.delete(await make(store, "hi"))
        assert (await store.collect(dry_run=True)).events == 2
    assert rows(path, "SELECT count(*) FROM event") == [(2,)]


async def test_expired_tries_are_named_in_the_familys_chain_and_cannot_be_resumed(path: Path) -> None:
    clock = ManualClock()
    async with await SqliteStore.open(path, clock=clock) as store:
        conversation = await make(store, "one")
        tries = [await fail(store, conversation) for _ in range(3)]
        clock.pass_by(A_MONTH)
        young = await fail(store, conversation)
        assert (await store.collect()).tries == 3
        with pytest.raises(NotResumable, match="too old"):
            await store.resume(tries[-1])
        with pytest.raises(NotResumable, match="too old"):
            await store.begin(conversation, new_id(), retry_of=tries[-1])
        assert (await store.turn(young)).error is not None
        await store.cancel(await store.resume(young))
        assert (await store.verify()).ok
    chain = b"f" + id_to_bytes(conversation)
    ((body,),) = rows(path, "SELECT body FROM record WHERE chain = ? AND kind = 'expired'", chain)
    expired = decode_fact(body).expired
    assert expired is not None
    assert sorted(expired.turns) == sorted(tries)
    salts = "SELECT count(*) FROM record WHERE subject = ? AND salt IS NOT NULL"
    assert [rows(path, salts, id_to_bytes(turn)) for turn in tries] == [[(0,)]] * 3


async def test_tries_expire_in_batches(path: Path) -> None:
    clock = ManualClock()
    async with await SqliteStore.open(path, clock=clock) as store:
        conversation = await make(store, "one")
        for _ in range(205):
            await fail(store, conversation)
        clock.pass_by(A_MONTH)
        assert (await store.collect()).tries == 205
        assert rows(path, "SELECT count(*) FROM record WHERE kind = 'expired'") == [(2,)]


async def test_retention_is_a_setting_of_the_store(path: Path) -> None:
    assert SqliteSettings.with_retention(Retention()) == SqliteSettings()
    kept = Retention(tries=0.0)
    async with await open_store(f"sqlite:///{path}", retention=kept) as store:
        assert isinstance(store, SqliteStore)
        conversation = await make(store, "one")
        await fail(store, conversation)
        assert (await store.collect()).tries == 1
        assert found_in(path, ["something"]) == set()
