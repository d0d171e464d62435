"""Races of several writers: what SQLite's one writer promises, PostgreSQL's row locks promise too.

Two stores on one database stand for two processes. Where the order counts, a hand holds a conversation's row until all
writers wait for it, so that they meet for certain and not by luck.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import psycopg
import pytest

from forkpoint.errors import AlreadyExists, BudgetExceeded, Busy, ForkpointError, Held, NotFound, NotResumable, Stale
from forkpoint.events import Text, Usage, UserMessage
from forkpoint.history.budgets import Amount, Budget
from forkpoint.ids import new_id
from forkpoint.store.postgres.store import PostgresStore
from forkpoint.store.values import Committed, IdempotencyKey, Lineage, NewConversation, OpenTurn, StoredTurn, TurnError
from forkpoint.testing.conformance.base import begin, create, fork_of, run
from forkpoint.testing.samples import answers, calls, exchange, returns, says

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Nodes:
    """Two processes with a store each on one database, and a hand that can hold a conversation."""

    def __init__(self, address: str, one: PostgresStore, two: PostgresStore) -> None:
        self.address = address
        self.one = one
        self.two = two

    @asynccontextmanager
    async def held(self, conversation: str, waiting: int) -> AsyncIterator[None]:
        """Holds a conversation's row until so many others wait for something."""
        async with await psycopg.AsyncConnection.connect(self.address) as hand:
            found = await hand.execute("SELECT id FROM conversation WHERE name = %s FOR UPDATE", [conversation])
            assert await found.fetchone() is not None
            async with anyio.create_task_group() as tasks:

                async def let_go() -> None:
                    with anyio.fail_after(20):
                        while await self._waiting(hand) < waiting:  # noqa: ASYNC110 - the server tells nobody
                            await anyio.sleep(0.01)
                    await hand.rollback()

                tasks.start_soon(let_go)
                yield

    async def _waiting(self, hand: psycopg.AsyncConnection[Any]) -> int:
        found = await hand.execute(
            """SELECT count(DISTINCT pid) FROM pg_locks JOIN pg_stat_activity USING (pid)
            WHERE NOT granted AND datname = current_database()"""
        )
        row = await found.fetchone()
        assert row is not None
        return int(row[0])

    async def rows(self, statement: str) -> list[Any]:
        async with await psycopg.AsyncConnection.connect(self.address) as db:
            return await (await db.execute(statement.encode())).fetchall()

    async def verify(self) -> None:
        assert (await self.one.verify()).flaws == ()


@pytest.fixture
async def nodes(postgres: str) -> AsyncIterator[Nodes]:
    async with await PostgresStore.open(postgres) as one, await PostgresStore.open(postgres) as two:
        yield Nodes(postgres, one, two)


async def all_at_once(*works: Callable[[], Awaitable[object]]) -> list[Any]:
    """What each of these works returns or raises, in their order, if all of them run at once."""
    results: dict[int, object] = {}

    async def do(number: int, work: Callable[[], Awaitable[object]]) -> None:
        try:
            results[number] = await work()
        except ForkpointError as error:
            results[number] = error

    async with anyio.create_task_group() as tasks:
        for number, work in enumerate(works):
            tasks.start_soon(do, number, work)
    return [results[number] for number in range(len(works))]


def of(kind: type[Any], results: Sequence[object]) -> list[Any]:
    return [one for one in results if isinstance(one, kind)]


async def test_of_two_conversations_that_want_one_name_one_gets_it(nodes: Nodes) -> None:
    first, second = await create(nodes.one), await create(nodes.one)
    results = await all_at_once(
        lambda: nodes.one.rename(first.id, "wanted"), lambda: nodes.two.rename(second.id, "wanted")
    )
    assert len(of(AlreadyExists, results)) == 1
    assert (await nodes.one.find("wanted")).id in (first.id, second.id)
    await nodes.verify()


async def test_a_conversation_that_two_rename_has_both_records(nodes: Nodes) -> None:
    made = await create(nodes.one)
    async with nodes.held(made.id, waiting=2):
        results = await all_at_once(lambda: nodes.one.rename(made.id, "a"), lambda: nodes.two.rename(made.id, "b"))
    assert of(ForkpointError, results) == []
    records = await nodes.one.records(made.id)
    assert [record.kind for record in records.items] == ["born", "renamed", "renamed"]
    await nodes.verify()


async def test_a_rename_beside_a_commit_refuses_nothing_that_was_paid_for(nodes: Nodes) -> None:
    made = await create(nodes.one)
    turn = await begin(nodes.one, made.id)
    async with nodes.held(made.id, waiting=2):
        results = await all_at_once(
            lambda: nodes.one.commit(turn, exchange("hello"), usage=Usage(calls=1)),
            lambda: nodes.two.rename(made.id, "another"),
            lambda: nodes.two.describe(made.id, title="a title"),
        )
    assert of(ForkpointError, results) == []
    found = await nodes.two.read(made.id)
    assert (found.name, found.title, found.revision, found.head.ordinal) == ("another", "a title", 1, 2)
    await nodes.verify()


async def test_two_notes_with_one_id_are_one_note(nodes: Nodes) -> None:
    made = await create(nodes.one)
    note = new_id()
    async with nodes.held(made.id, waiting=2):
        results = await all_at_once(
            lambda: nodes.one.note(made.id, note, [says("once")], if_revision=0),
            lambda: nodes.two.note(made.id, note, [says("once")], if_revision=0),
        )
    assert len(of(Committed, results)) == 2, results
    assert (await nodes.one.read(made.id)).head.ordinal == 1
    await nodes.verify()


async def test_of_two_notes_that_expect_one_revision_one_is_stale(nodes: Nodes) -> None:
    made = await create(nodes.one)
    async with nodes.held(made.id, waiting=2):
        results = await all_at_once(
            lambda: nodes.one.note(made.id, new_id(), [says("a")], if_revision=0),
            lambda: nodes.two.note(made.id, new_id(), [says("b")], if_revision=0),
        )
    assert len(of(Stale, results)) == 1, results
    assert (await nodes.one.read(made.id)).head.ordinal == 1
    await nodes.verify()


async def test_creates_with_one_key_make_one_conversation(nodes: Nodes) -> None:
    key = IdempotencyKey("once", b"request")
    stores = (nodes.one, nodes.two) * 4
    results = await all_at_once(
        *(lambda store=store: store.create(NewConversation(id=new_id()), key=key) for store in stores)
    )
    assert of(ForkpointError, results) == []
    assert len({made.id for made in results}) == 1
    await nodes.verify()


async def test_forks_with_one_key_make_one_fork(nodes: Nodes) -> None:
    made = await create(nodes.one)
    await run(nodes.one, made.id, "hello")
    key = IdempotencyKey("once", b"request")
    stores = (nodes.one, nodes.two) * 3
    results = await all_at_once(
        *(lambda store=store: store.fork(made.id, fork_of(), key=key, if_revision=1) for store in stores)
    )
    assert of(ForkpointError, results) == []
    assert len({fork.id for fork in results}) == 1


async def test_a_call_spawns_one_sub_agent(nodes: Nodes) -> None:
    made = await create(nodes.one)
    turn = await begin(nodes.one, made.id)

    def spawn(store: PostgresStore) -> Callable[[], Awaitable[Any]]:
        lineage = Lineage("sub_agent", made.id, turn=turn.id, call="c1")
        return lambda: store.create(NewConversation(id=new_id(), family=made.family, lineage=lineage))

    results = await all_at_once(*(spawn(store) for store in (nodes.one, nodes.two) * 3))
    assert of(ForkpointError, results) == []
    assert len({child.id for child in results}) == 1


async def test_of_two_turns_one_begins_and_the_other_hears_who_is_busy(nodes: Nodes) -> None:
    made = await create(nodes.one)
    async with nodes.held(made.id, waiting=2):
        results = await all_at_once(
            lambda: nodes.one.begin(made.id, new_id()), lambda: nodes.two.begin(made.id, new_id())
        )
    assert len(of(OpenTurn, results)) == 1, results
    assert [type(one) for one in of(ForkpointError, results)] == [Busy]


async def test_a_turn_that_is_asked_for_twice_with_one_key_is_joined(nodes: Nodes) -> None:
    made = await create(nodes.one)
    key = IdempotencyKey("once", b"request")
    async with nodes.held(made.id, waiting=2):
        results = await all_at_once(
            lambda: nodes.one.begin(made.id, new_id(), key=key), lambda: nodes.two.begin(made.id, new_id(), key=key)
        )
    opened, joined = of(OpenTurn, results), of(StoredTurn, results)
    assert len(opened) == len(joined) == 1, results
    assert opened[0].id == joined[0].id


async def test_charges_beside_turns_keep_the_chain_whole_and_refuse_no_turn(nodes: Nodes) -> None:
    made = await create(nodes.one)
    charges, turns, chargers = 120, 12, 6

    async def charge(store: PostgresStore) -> None:
        for _ in range(charges // chargers):
            await store.charge(made.id, new_id(), Usage(calls=1, input=1))

    async with anyio.create_task_group() as tasks:
        for number in range(chargers):
            tasks.start_soon(charge, (nodes.one, nodes.two)[number % 2])
        commits = [await run(nodes.one, made.id, f"question {number}") for number in range(turns)]
    assert [commit.revision for commit in commits] == list(range(1, turns + 1))
    assert (await nodes.two.spent(made.id)).input == charges + 10 * turns
    numbers = await nodes.rows("SELECT number FROM record WHERE kind <> 'born' ORDER BY number")
    assert [number for (number,) in numbers] == list(range(1, charges + turns + 1))
    await nodes.verify()


async def test_the_last_two_branches_of_a_family_can_be_deleted_at_once(nodes: Nodes) -> None:
    made = await create(nodes.one)
    await run(nodes.one, made.id, "hello")
    fork = await nodes.one.fork(made.id, fork_of())
    results = await all_at_once(lambda: nodes.one.delete(made.id), lambda: nodes.two.delete(fork.id))
    assert of(ForkpointError, results) == []
    deleted = await nodes.rows("SELECT number FROM record WHERE kind = 'deleted' ORDER BY number")
    assert deleted == [(1,), (2,)]
    assert (await nodes.two.usage()).input == 10
    await nodes.verify()


async def test_a_conversation_that_two_delete_is_gone_once(nodes: Nodes) -> None:
    made = await create(nodes.one)
    await run(nodes.one, made.id, "hello")
    async with nodes.held(made.id, waiting=2):
        results = await all_at_once(lambda: nodes.one.delete(made.id), lambda: nodes.two.delete(made.id))
    assert len(of(NotFound, results)) == 1, results
    assert (await nodes.two.usage()).input == 10
    await nodes.verify()


async def test_what_is_held_and_deleted_at_once_is_one_of_the_two(nodes: Nodes) -> None:
    made = await create(nodes.one)
    async with nodes.held(made.id, waiting=2):
        results = await all_at_once(
            lambda: nodes.one.hold(made.id, new_id(), "a lawsuit"), lambda: nodes.two.delete(made.id)
        )
    errors = of(ForkpointError, results)
    assert [type(error) for error in errors] in ([Held], [NotFound]), results
    await nodes.verify()


async def test_a_fork_beside_a_deletion_and_a_collection_is_whole_or_not_there(nodes: Nodes) -> None:
    for _ in range(5):
        made = await create(nodes.one)
        await run(nodes.one, made.id, "hello")

        async def remove() -> None:
            await nodes.one.delete(made.id)  # noqa: B023
            await nodes.one.collect()

        works: list[Callable[[], Awaitable[object]]] = [lambda: nodes.two.fork(made.id, fork_of())] * 3  # noqa: B023
        results = await all_at_once(remove, *works)
        assert {type(one) for one in of(ForkpointError, results)} <= {NotFound}, results
    await nodes.verify()
    await nodes.two.collect()
    await nodes.verify()


async def test_a_turn_that_waits_is_resumed_once(nodes: Nodes) -> None:
    made = await create(nodes.one)
    turn = await begin(nodes.one, made.id)
    await nodes.one.wait(turn, [says("please"), calls("c1", response=1)])
    async with nodes.held(made.id, waiting=2):
        results = await all_at_once(lambda: nodes.one.resume(turn.id), lambda: nodes.two.resume(turn.id))
    assert len(of(OpenTurn, results)) == 1, results
    assert [type(one) in (Busy, NotResumable) for one in of(ForkpointError, results)] == [True], results
    winner = nodes.one if isinstance(results[0], OpenTurn) else nodes.two
    await winner.commit(of(OpenTurn, results)[0], [returns("c1"), answers("done", response=2)])
    await nodes.verify()


async def test_no_message_that_is_steered_beside_a_journal_is_lost(nodes: Nodes) -> None:
    made = await create(nodes.one)
    turn = await begin(nodes.one, made.id)
    messages = [new_id() for _ in range(12)]

    async def steer() -> None:
        for id in messages:
            await nodes.two.steer(made.id, id, UserMessage((Text(id),)))

    async def journal() -> OpenTurn:
        here = await nodes.one.journal(turn, [says("go on")])
        for number in range(6):
            here = await nodes.one.journal(here, [calls(f"c{number}", response=number + 1), returns(f"c{number}")])
        return here

    results: list[Any] = await all_at_once(steer, journal)
    assert of(ForkpointError, results) == []
    assert [steer.id for steer in (await nodes.one.turn(turn.id)).steered] == messages
    await nodes.one.fail(await nodes.one.refresh(results[1]), TurnError("over", "over"))
    await nodes.verify()


async def test_branches_on_all_nodes_reserve_no_more_than_the_budget_has(nodes: Nodes) -> None:
    made = await create(nodes.one)
    await run(nodes.one, made.id, "hello")
    await nodes.one.set_budget(made.id, Budget(tokens=110), scope="family")
    forks = [await nodes.one.fork(made.id, fork_of()) for _ in range(20)]

    async def ask(store: PostgresStore, fork: str) -> None:
        turn = await begin(store, fork)
        await store.reserve(turn, Amount(tokens=10), Amount(tokens=10))

    works = [lambda n=n, fork=fork: ask((nodes.one, nodes.two)[n % 2], fork.id) for n, fork in enumerate(forks)]
    results = await all_at_once(*works)
    refused = of(ForkpointError, results)
    assert {type(error) for error in refused} == {BudgetExceeded}
    assert len(refused) == 10


async def test_nobody_who_reads_waits_for_a_deletion(nodes: Nodes) -> None:
    made = await create(nodes.one)
    async with await psycopg.AsyncConnection.connect(nodes.address) as hand:
        await hand.execute("LOCK TABLE conversation IN EXCLUSIVE MODE")
        with anyio.fail_after(3):
            assert (await nodes.two.read(made.id)).id == made.id
            assert len((await nodes.two.conversations()).items) == 1
