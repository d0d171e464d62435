"""Budgets in a file: what somebody with SQL can do to one, what a kill leaves, what a turn without a budget costs.

What every store does with budgets is in `forkpoint.testing.conformance.budgets`.
"""

import signal
import sqlite3
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from forkpoint.errors import BudgetExceeded, ImportRefused
from forkpoint.events import Usage
from forkpoint.history.budgets import Amount, Budget, Figures
from forkpoint.ids import new_id
from forkpoint.store.actor import acting
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import Database, connect
from forkpoint.store.sqlite.copies.restore import restore
from forkpoint.store.values import NewConversation, NewFork, OpenTurn, TurnError
from forkpoint.testing.conformance.base import begin, create, fork_of, run
from forkpoint.testing.conformance.evidence.copies import exported, imported
from forkpoint.testing.samples import calls, exchange, returns, says

pytestmark = pytest.mark.anyio

TEN = Usage(calls=1, input=8, output=2, nanodollars=10)
CALL = Amount(100, 100)
NOTHING = Figures(0, 0, 0, 0)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def another() -> AsyncIterator[SqliteStore]:
    async with await SqliteStore.open(None) as store:
        yield store


async def fill(file: Path) -> str:
    """A family that has spent 20 tokens, with a budget of both kinds. Gives the conversation."""
    async with await SqliteStore.open(file) as store:
        made = await create(store)
        await run(store, made.id, "one", TEN)
        await store.set_budget(made.id, Budget(tokens=500, turns=9))
        await store.set_budget(made.id, Budget(dollars=1.5), scope="family")
        await run(store, made.id, "two", TEN)
    return made.id


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("UPDATE budget SET apart = apart", None),
        ("UPDATE budget SET most_tokens = 5000 WHERE scope = 'conversation'", "other limits than its record says"),
        ("UPDATE budget SET most_nanodollars = NULL WHERE scope = 'family'", "other limits than its record says"),
        ("UPDATE budget SET most_micros = 7", "other limits than its record says"),
        ("UPDATE budget SET apart = 1 WHERE scope = 'conversation'", "other limits than its record says"),
        ("DELETE FROM budget WHERE scope = 'family'", "is missing, and no record says that it was removed"),
        ("DELETE FROM budget", "is missing, and no record says that it was removed"),
        ("UPDATE budget SET subject = randomblob(16) WHERE scope = 'conversation'", "no record says so"),
        ("UPDATE budget SET spent_tokens = spent_tokens - 1", "other tokens spent than turns and ledger do"),
        ("UPDATE budget SET spent_tokens = spent_tokens + 1", "other tokens spent than turns and ledger do"),
        ("UPDATE budget SET spent_nanodollars = 0", "other dollars spent than turns and ledger do"),
        ("UPDATE budget SET spent_turns = 1", "other turns spent than turns and ledger do"),
        ("UPDATE budget SET spent_micros = 0", "other seconds spent than turns and ledger do"),
        ("UPDATE budget SET reserved_tokens = 7", "not the sum of its reservations"),
        ("UPDATE record SET body = replace(body, '500', '900') WHERE kind = 'budget'", ""),
    ],
)
async def test_whatever_is_changed_in_a_budget_is_found(tmp_path: Path, change: str, found: str | None) -> None:
    file = tmp_path / "x.db"
    made = await fill(file)
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("PRAGMA foreign_keys = ON")
        db.execute(change)
    async with await SqliteStore.open(file) as store:
        for verified in (await store.verify(), await store.verify(made)):
            flaws = [flaw.what for flaw in verified.flaws]
            assert (flaws == []) == (found is None)
            assert found is None or any(found in what for what in flaws), flaws


async def test_who_has_set_a_budget_is_in_its_record(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    async with await SqliteStore.open(file) as store:
        made = await create(store)
        with acting("ann"):
            await store.set_budget(made.id, Budget(dollars=5), scope="family")
        with acting("ben"):
            await store.set_budget(made.id, None, scope="family")
    with closing(sqlite3.connect(file)) as db:
        bodies = [row[0] for row in db.execute("SELECT body FROM record WHERE kind = 'budget' ORDER BY id")]
    assert '"by":"ann"' in bodies[0]
    assert '"dollars":5' in bodies[0]
    assert '"by":"ben"' in bodies[1]


# What a turn costs.


def spoken(said: list[str]) -> list[str]:
    """What was said to the database, without what depends on the moment: heartbeats, transactions."""
    return [
        one for one in said if not one.startswith(("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "INSERT INTO holder"))
    ]


async def turn_with_tools(store: SqliteStore, conversation: str) -> None:
    turn = await begin(store, conversation)
    turn = await store.journal(turn, [says("one"), calls("c")], usage=TEN)
    turn = await store.journal(turn, [returns("c")])
    await store.commit(turn, exchange("two")[1:], usage=TEN)


async def test_a_turn_without_a_budget_says_what_it_said_before_there_were_budgets(tmp_path: Path) -> None:
    said: list[str] = []

    def listening(path: str) -> Database:
        db = connect(path)
        db.set_trace_callback(said.append)
        return db

    async with await SqliteStore.open(tmp_path / "x.db", connect=listening) as store:
        made, other = await create(store), await create(store)
        await turn_with_tools(store, made.id)
        said.clear()
        await turn_with_tools(store, made.id)
        without = spoken(said)
        assert not [
            one for one in without if "reservation" in one or one.startswith(("SELECT 1 FROM budget", "UPDATE budget"))
        ]
        assert len(without) == STATEMENTS, without
        await store.set_budget(other.id, Budget(tokens=10**6), scope="family")
        said.clear()
        await turn_with_tools(store, made.id)
        assert len(spoken(said)) == len(without), "the budget of another family costs nothing either"


STATEMENTS = 17
"""That a turn with one tool says to the database, budgets or not: counted before there were any."""


# Copies.


async def test_a_budget_travels_with_its_family_and_counts_what_was_spent_there(
    tmp_path: Path, another: SqliteStore
) -> None:
    async with await SqliteStore.open(tmp_path / "x.db") as store:
        made = await create(store)
        await run(store, made.id, "one", TEN)
        await store.set_budget(made.id, Budget(tokens=50, turns=5), scope="family")
        fork = await store.fork(made.id, NewFork(id=new_id(), cache="{}", budget=Budget(tokens=20)))
        await run(store, fork.id, "two", TEN)
        await imported(another, await exported(store))
        assert (await another.verify()).flaws == ()
        (family,), (own,) = await another.budgets(made.id), await another.budgets(fork.id)
        assert (family.limits, family.spent.tokens, family.spent.turns) == (Budget(tokens=50, turns=5), 10, 1)
        assert (own.limits, own.spent.tokens, own.apart) == (Budget(tokens=20), 10, True)
        await run(another, made.id, "three", TEN)
        await imported(store, await exported(another))
        assert [one.spent.tokens for one in await store.budgets(made.id)] == [20], "what it spent there counts here"
        assert [one.spent.tokens for one in await store.budgets(fork.id)] == [10]
        assert (await store.verify()).flaws == ()


async def test_what_an_import_brings_comes_on_top_of_what_was_deleted_here(
    tmp_path: Path, another: SqliteStore
) -> None:
    async with await SqliteStore.open(tmp_path / "x.db") as store:
        made = await create(store)
        await store.set_budget(made.id, Budget(tokens=500))
        await store.set_budget(made.id, Budget(tokens=500), scope="family")
        first = await run(store, made.id, "one", TEN)
        await run(store, made.id, "two", TEN)
        _, aside = await store.rewind(made.id, fork_of(), at=first.turn)
        assert aside is not None
        await store.delete(aside.id)
        await store.collect()
        await imported(another, await exported(store))
        await run(another, made.id, "three", TEN)
        await imported(store, await exported(another))
        spent = [(one.spent.tokens, one.spent.turns) for one in await store.budgets(made.id)]
        assert spent == [(30, 3), (30, 3)]
        assert (await store.verify()).flaws == ()


async def test_an_import_does_not_change_a_budget_that_stands_here(tmp_path: Path, another: SqliteStore) -> None:
    async with await SqliteStore.open(tmp_path / "x.db") as store:
        made = await create(store)
        await run(store, made.id, "one", TEN)
        await store.set_budget(made.id, Budget(tokens=50), scope="family")
        await imported(another, await exported(store))
        await another.set_budget(made.id, Budget(tokens=10**6), scope="family")
        await run(another, made.id, "two", TEN)
        with pytest.raises(ImportRefused, match="the budget of the family was changed there"):
            await imported(store, await exported(another))
        assert [one.limits.tokens for one in await store.budgets(made.id)] == [50]


async def test_a_restored_backup_and_a_collection_keep_what_was_spent(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    async with await SqliteStore.open(file) as store:
        made = await create(store)
        await store.set_budget(made.id, Budget(tokens=500))
        first = await run(store, made.id, "one", TEN)
        await run(store, made.id, "two", TEN)
        _, aside = await store.rewind(made.id, fork_of(), at=first.turn)
        assert aside is not None
        await store.delete(aside.id)
        await store.collect()
        (own,) = await store.budgets(made.id)
        assert (own.spent.tokens, own.spent.turns) == (20, 2), "rewound, deleted and collected, it was still spent"
        assert (await store.verify()).flaws == ()
        await store.backup(tmp_path / "copy.db")
    async with await SqliteStore.open(tmp_path / "copy.db") as copy:
        assert await copy.budgets(made.id) == (own,)
        assert (await copy.verify()).flaws == ()


@pytest.mark.parametrize("how", ["opened", "restored"])
async def test_in_a_copy_nobody_holds_what_was_reserved_when_it_was_made_and_in_the_store_it_stays(
    tmp_path: Path, how: str
) -> None:
    file, backup, there = tmp_path / "x.db", tmp_path / "backup.db", tmp_path / "there.db"
    async with await SqliteStore.open(file) as store:
        made = await create(store)
        await run(store, made.id, "one", TEN)
        await store.set_budget(made.id, Budget(tokens=200, turns=9))
        await store.set_budget(made.id, Budget(dollars=1, tokens=150), scope="family")
        fork = await store.fork(made.id, NewFork(id=new_id(), cache="{}", budget=Budget(tokens=120)))
        open = await begin(store, made.id)
        open = await store.journal(open, [says("two"), calls("c")], usage=TEN)
        await store.reserve(open, CALL, CALL)
        await store.reserve(await begin(store, fork.id), CALL, CALL)
        await store.reserve_beside(made.id, new_id(), Amount(30, 30), Amount(30, 30))
        held = await store.budgets(made.id), await store.budgets(fork.id)
        assert [[one.reserved.tokens for one in budgets] for budgets in held] == [[130, 130], [100]]
        await store.backup(backup)
        assert (await store.budgets(made.id), await store.budgets(fork.id)) == held, "a backup takes nothing away"
        if how == "restored":
            await anyio.to_thread.run_sync(partial(restore, backup, there, forget_erasures=True))
        async with await SqliteStore.open(backup if how == "opened" else there) as copy:
            assert (await copy.verify()).flaws == ()
            for id, budgets in zip((made.id, fork.id), held, strict=True):
                free = [(one.limits, one.spent, one.apart, NOTHING) for one in budgets]
                assert [(one.limits, one.spent, one.apart, one.reserved) for one in await copy.budgets(id)] == free
            again = await copy.resume(open.id)
            assert (await copy.reserve(again, CALL, CALL)).tokens == 100, "whoever needs the room takes it"
            with pytest.raises(BudgetExceeded):
                await copy.reserve_beside(made.id, new_id(), CALL, CALL)
            assert (await copy.verify()).flaws == ()
            await copy.fail(again, TurnError("x", "y"), usage=TEN)
            ended = [(one.spent.tokens, one.reserved) for one in await copy.budgets(made.id)]
            assert ended == [(30, NOTHING), (30, NOTHING)], "of the turn before, of its journal, and of its end"
            assert (await copy.verify()).flaws == ()
        assert (await store.budgets(made.id), await store.budgets(fork.id)) == held, "the copy is another store"
        await store.cancel(await store.refresh(open), usage=TEN)
        assert [one.reserved.tokens for one in await store.budgets(made.id)] == [30, 30]
        assert (await store.verify()).flaws == ()


# A process that is killed.

DIES = """
    import os, signal, sys
    import anyio
    from forkpoint.history.budgets import Amount, Budget
    from forkpoint.events import Usage
    from forkpoint.ids import new_id
    from forkpoint.store.sqlite import SqliteStore
    from forkpoint.testing.samples import says, calls

    async def main(file, conversation, journalled):
        store = await SqliteStore.open(file)
        turn = await store.begin(conversation, new_id())
        await store.reserve(turn, Amount(100, 100), Amount(100, 100))
        await store.reserve_beside(conversation, new_id(), Amount(30, 30), Amount(30, 30))
        if journalled:
            used = Usage(calls=1, input=8, output=2, nanodollars=10)
            await store.journal(turn, [says("one"), calls("c")], usage=used)
            await store.reserve(turn, Amount(100, 100), Amount(100, 100))
        os.kill(os.getpid(), signal.SIGKILL)

    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3] == "True")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.parametrize("journalled", [False, True])
async def test_what_a_killed_process_had_reserved_is_free_and_what_it_recorded_is_spent(
    tmp_path: Path, journalled: bool
) -> None:
    file = tmp_path / "x.db"
    async with await SqliteStore.open(file) as store:
        made = await create(store)
        await store.set_budget(made.id, Budget(tokens=150, turns=2, seconds=60), scope="family")
        fork = await store.fork(made.id, fork_of())
        command = [sys.executable, "-c", textwrap.dedent(DIES), str(file), made.id, str(journalled)]
        killed = await anyio.run_process(command, check=False)
        assert killed.returncode == -signal.SIGKILL
        recorded = 10 if journalled else 0
        (family,) = await store.budgets(made.id)
        assert (family.reserved.tokens, family.spent.tokens) == (0, recorded)
        assert (await store.verify()).flaws == ()
        alive = await begin(store, fork.id)
        assert (await store.reserve(alive, CALL, CALL)).tokens == 100, "whoever needs the room takes it"
        await store.cancel(alive)
        open = (await store.read(made.id)).open_turn
        assert open is not None
        resumed = await store.resume(open)
        (family,) = await store.budgets(made.id)
        assert family.reserved.turns == (0 if journalled else 1), "it is one turn, however often it is taken over"
        await store.fail(resumed, TurnError("x", "y"), usage=TEN)
        (family,) = await store.budgets(made.id)
        assert (family.spent.tokens, family.spent.turns, family.reserved.turns) == (recorded + 10, 1, 0)
        assert (await store.verify()).flaws == ()


async def test_a_begin_that_a_budget_refuses_leaves_nothing_behind(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "x.db") as store:
        made = await create(store)
        await store.set_budget(made.id, Budget(turns=1))
        held = await begin(store, made.id)
        await store.cancel(held, usage=TEN)
        with pytest.raises(BudgetExceeded):
            await store.begin(made.id, new_id(), supersede=True)
        new = NewConversation(id=new_id(), name="fresh", budget=Budget(turns=0))
        with pytest.raises(BudgetExceeded):
            await store.begin(new.id, new_id(), create=new)
        assert [one.name for one in (await store.conversations()).items] == [made.name]
        other = await store.begin(new.id, new_id(), create=NewConversation(id=new.id, name="fresh"))
        assert isinstance(other, OpenTurn)
        assert (await store.verify()).flaws == ()
