"""Begin, journal, fail and cancel in one statement: what they write, and when the shared operation does it instead."""

import anyio
import psycopg
import pytest
from tests.postgres.hot_support import contents, heard, someone_waits, threads_heard, two_stores

from forkpoint.errors import Busy, NotFound, Stale, TurnBehind, TurnLost
from forkpoint.events import Usage
from forkpoint.history.budgets import Budget
from forkpoint.ids import id_to_bytes, new_id
from forkpoint.store.postgres.store import PostgresStore
from forkpoint.store.values import IdempotencyKey, OpenTurn, StoredTurn, TurnError
from forkpoint.testing.conformance.base import begin, create, run
from forkpoint.testing.samples import exchange

pytestmark = pytest.mark.anyio

KEY = IdempotencyKey("key", b"request")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_the_handle_of_a_begin_is_the_one_that_the_database_has(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        await run(store, made.id, "first")
        transactions = threads_heard(monkeypatch)
        turn = await store.begin(made.id, new_id(), input='"hi"', key=KEY, by="me", if_revision=1, if_name=made.name)
        assert not transactions
        assert isinstance(turn, OpenTurn)
        assert await store.refresh(turn) == turn
        again = await store.begin(made.id, new_id(), key=KEY)
        assert isinstance(again, StoredTurn)
        assert again.id == turn.id


async def test_a_begin_that_must_not_be_changes_nothing(postgres: str) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        await begin(store, (await create(store)).id)  # and says that this process is alive
        before = contents(postgres)
        with pytest.raises(Stale):
            await store.begin(made.id, new_id(), if_revision=3)
        with pytest.raises(NotFound):
            await store.begin(made.id, new_id(), if_name="another")
        with pytest.raises(NotFound):
            await store.begin(new_id(), new_id())
        assert contents(postgres) == before
        await begin(store, made.id)
        with pytest.raises(Busy):
            await store.begin(made.id, new_id())


async def test_of_many_begins_with_one_key_one_makes_a_turn_and_the_others_join_it(postgres: str) -> None:
    async with two_stores(postgres) as (one, other):
        for _ in range(3):
            made, key = await create(one), IdempotencyKey(new_id(), b"request")
            found: set[str] = set()

            async def ask(
                store: PostgresStore, id: str = made.id, key: IdempotencyKey = key, found: set[str] = found
            ) -> None:
                found.add((await store.begin(id, new_id(), key=key)).id)

            async with anyio.create_task_group() as group:
                for store in (one, other, one, other):
                    group.start_soon(ask, store)
            assert len(found) == 1


async def test_a_begin_that_waited_for_a_commit_has_the_state_that_it_left(postgres: str) -> None:
    """The statement sees the tables as they were before it waited, and the state stands in the row of another turn."""
    async with two_stores(postgres) as (one, other):
        made = await create(one)
        turn = await begin(one, made.id)
        with psycopg.connect(postgres) as held:
            held.execute("SELECT 1 FROM conversation FOR UPDATE")
            begun: list[OpenTurn | StoredTurn] = []

            async def begin_next() -> None:
                begun.append(await other.begin(made.id, new_id()))

            async with anyio.create_task_group() as group:
                group.start_soon(one.commit, turn, exchange("hi"))
                await someone_waits(postgres)
                group.start_soon(begin_next)
                await someone_waits(postgres, 2)
                held.rollback()
        taken = begun[0]
        assert isinstance(taken, OpenTurn)
        assert await other.refresh(taken) == taken


async def test_a_begin_waits_for_no_disk_unless_it_is_accepted(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await PostgresStore.open(postgres) as store:
        made, other = await create(store), await create(store)
        said = heard(monkeypatch)
        await store.begin(made.id, new_id())
        await store.begin(other.id, new_id(), accepted=True)
        assert all("set_config('synchronous_commit', 'off', true)" in text for text in said)
        with psycopg.connect(postgres) as db:
            rows = db.execute("SELECT conversation, accepted FROM turn ORDER BY accepted").fetchall()
        assert rows == [(id_to_bytes(made.id), 0), (id_to_bytes(other.id), 1)]


async def test_a_budget_that_comes_while_a_turn_runs_is_seen_by_the_next_write(postgres: str) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        turn = await begin(store, made.id)
        await store.set_budget(made.id, Budget(tokens=1000))
        turn = await store.journal(turn, exchange("hi")[:1], usage=Usage(calls=1, input=10))
        assert turn.budgeted
        await store.commit(turn, exchange("hi")[1:], usage=Usage(calls=1, input=10))
        assert (await store.budgets(made.id))[0].spent.tokens == 20
        turn = await begin(store, made.id)
        assert turn.budgeted
        await store.cancel(turn)


async def test_a_journal_is_one_statement_and_fenced(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        turn = await begin(store, made.id)
        said, transactions = heard(monkeypatch), threads_heard(monkeypatch)
        after = await store.journal(turn, exchange("hi"), usage=Usage(calls=1))
        after = await store.journal(after, [], usage=Usage(calls=1))
        assert (len(said), transactions) == (2, [])
        assert await store.refresh(after) == after
        before = contents(postgres)
        with pytest.raises(TurnBehind):
            await store.journal(turn, exchange("late"))
        with psycopg.connect(postgres, autocommit=True) as db:
            db.execute("UPDATE turn SET token = 'another'")
        with pytest.raises(TurnLost):
            await store.journal(after, exchange("late"))
        assert contents(postgres)["step"] == before["step"]


async def test_a_journal_that_waited_for_a_take_over_writes_nothing(postgres: str) -> None:
    async with await PostgresStore.open(postgres) as store:
        turn = await begin(store, (await create(store)).id)
        with psycopg.connect(postgres) as other:
            other.execute("UPDATE turn SET token = 'another'")

            async def journal() -> None:
                with pytest.raises(TurnLost):
                    await store.journal(turn, exchange("never"))

            async with anyio.create_task_group() as group:
                group.start_soon(journal)
                await someone_waits(postgres)
                other.commit()
        assert not contents(postgres)["step"]


@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_a_turn_ends_in_one_statement(postgres: str, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        await run(store, made.id, "first")
        turn = await store.begin(made.id, new_id(), key=KEY, input='"x"')
        assert isinstance(turn, OpenTurn)
        turn = await store.journal(turn, exchange("hi"), usage=Usage(calls=1))
        said, transactions = heard(monkeypatch), threads_heard(monkeypatch)
        usage = Usage(calls=2)
        error = TurnError("code", "why")
        ended = await (store.fail(turn, error, usage=usage) if how == "failed" else store.cancel(turn, usage=usage))
        assert (len(said), transactions) == (1, [])
        assert ended == await store.turn(turn.id)
        assert (ended.outcome, ended.usage.calls) == (how, 3)
        assert (await store.read(made.id)).open_turn is None
        assert (await store.verify(made.id)).ok
        fresh = await store.begin(made.id, new_id(), key=KEY)
        assert isinstance(fresh, OpenTurn), "its key is free again"


async def test_an_end_that_waited_for_a_take_over_writes_nothing(postgres: str) -> None:
    async with await PostgresStore.open(postgres) as store:
        turn = await begin(store, (await create(store)).id)
        with psycopg.connect(postgres) as other:
            other.execute("SELECT 1 FROM conversation FOR UPDATE")

            async def fail() -> None:
                with pytest.raises(TurnLost):
                    await store.fail(turn, TurnError("x", "y"))

            async with anyio.create_task_group() as group:
                group.start_soon(fail)
                await someone_waits(postgres)
                other.execute("UPDATE turn SET token = 'another'")
                other.commit()
                before = contents(postgres)
        assert contents(postgres) == before
