"""Commits of which nobody hears what became of them: what a caller is told and what is there never contradict.

A server that waits for a standby which does not exist lets every commit hang after it is on its own disk. Then its
session is ended, or the wait is cancelled, or the store's own time limit passes.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias, get_args

import anyio
import pytest
from msgspec import Struct
from tests.postgres.fixtures import Databases
from tests.postgres.modes import DIRECT, new_store
from tests.postgres.server import Server

from forkpoint.errors import NotFound, OutcomeUnknown
from forkpoint.events import Text, Usage, UserMessage
from forkpoint.ids import new_id
from forkpoint.store.postgres.settings import PostgresSettings
from forkpoint.store.postgres.store import PostgresStore
from forkpoint.store.values import IdempotencyKey, NewConversation, OpenTurn, StoredConversation, TurnError
from forkpoint.testing.conformance.base import begin, create, fork_of, run
from forkpoint.testing.samples import exchange, says

pytestmark = pytest.mark.anyio

SPENT = Usage(calls=1, input=5)

Mishap: TypeAlias = Literal["the session is ended", "the wait is cancelled", "the time limit passes"]


class Case(Struct, frozen=True):
    """A write that waits to be done, and how often it was done."""

    write: Callable[[], Awaitable[object]]
    times: Callable[[], Awaitable[int]]


async def begins(store: PostgresStore) -> Case:
    made, turn = await create(store), new_id()

    async def times() -> int:
        return len([one for one in (await store.turns(made.id)).items if one.id == turn])

    return Case(lambda: store.begin(made.id, turn, accepted=True), times)


async def journals(store: PostgresStore) -> Case:
    turn = await begin(store, (await create(store)).id)

    async def times() -> int:
        return len(await store.steps(turn.id))

    return Case(lambda: store.journal(turn, [says("a step")], usage=SPENT), times)


async def commits(store: PostgresStore) -> Case:
    made = await create(store)
    turn = await begin(store, made.id)

    async def times() -> int:
        found = await store.read(made.id)
        assert (found.status == "idle") == bool(found.revision), "half a turn"
        assert (await store.usage()).calls == found.revision, "usage without its turn"
        assert len(await store.events(made.id)) == 2 * found.revision
        return found.revision

    return Case(lambda: store.commit(turn, exchange("hi"), usage=SPENT), times)


async def fails(store: PostgresStore) -> Case:
    turn = await begin(store, (await create(store)).id)

    async def times() -> int:
        return int((await store.turn(turn.id)).outcome == "failed")

    return Case(lambda: store.fail(turn, TurnError("x", "y"), usage=SPENT), times)


async def forks(store: PostgresStore) -> Case:
    made, new = await create(store), fork_of()
    await run(store, made.id, "one")
    return Case(lambda: store.fork(made.id, new), lambda: is_there(store, new.id))


async def rewinds(store: PostgresStore) -> Case:
    made, aside = await create(store), fork_of()
    first = await run(store, made.id, "one")
    await run(store, made.id, "two")

    async def times() -> int:
        assert len(await store.events(made.id)) == (2 if await is_there(store, aside.id) else 4)
        return await is_there(store, aside.id)

    return Case(lambda: store.rewind(made.id, aside, at=first.last), times)


async def notes(store: PostgresStore) -> Case:
    made, note = await create(store), new_id()

    async def times() -> int:
        return len(await store.events(made.id))

    return Case(lambda: store.note(made.id, note, [says("by the way")]), times)


async def deletes(store: PostgresStore) -> Case:
    made = await create(store)
    await run(store, made.id, "one")

    async def times() -> int:
        return 1 - await is_there(store, made.id)

    return Case(lambda: store.delete(made.id), times)


async def charges(store: PostgresStore) -> Case:
    made, id = await create(store), new_id()

    async def times() -> int:
        return (await store.spent(made.id)).calls

    return Case(lambda: store.charge(made.id, id, SPENT), times)


KINDS = [begins, journals, commits, fails, forks, rewinds, notes, deletes, charges]
MISHAPS: tuple[Mishap, ...] = get_args(Mishap)


@pytest.fixture(scope="module")
def databases() -> Iterator[Databases]:
    """A server of this module's own, since its settings are changed."""
    server = Server.make(autovacuum="off")
    yield Databases(server)
    server.stop("immediate")


@pytest.fixture
def url(databases: Databases, request: pytest.FixtureRequest) -> Iterator[str]:
    with new_store(DIRECT, databases, request) as url:
        yield url
        databases.server.configure(synchronous_standby_names="")


@asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[PostgresStore]:
    async with await PostgresStore.open(url, settings=PostgresSettings(**settings)) as store:
        yield store


@pytest.mark.parametrize("mishap", MISHAPS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_write_that_is_there_is_told_once_a_standby_need_not_confirm_it(
    kind: Callable[[PostgresStore], Awaitable[Case]], mishap: Mishap, url: str, databases: Databases
) -> None:
    server = databases.server
    async with opened(url, commit_within=0.5 if mishap == "the time limit passes" else 20.0) as store:
        case = await kind(store)
        async with hanging(case.write, server) as told:
            await happen(mishap, server)
            await in_thread(server.configure, synchronous_standby_names="")
        assert told.error is None, told.error
        assert await case.times() == 1
        assert (await store.verify()).ok


@pytest.mark.parametrize("kind", KINDS)
async def test_a_write_that_no_standby_confirms_is_unknown_and_there_once_the_server_goes_on(
    kind: Callable[[PostgresStore], Awaitable[Case]], url: str, databases: Databases
) -> None:
    server = databases.server
    async with opened(url, commit_within=0.2, settle_within=0.5) as store:
        case = await kind(store)
        async with hanging(case.write, server) as told:
            await happen("the session is ended", server)
        assert isinstance(told.error, OutcomeUnknown), told.error
        await in_thread(server.configure, synchronous_standby_names="")
        assert await case.times() == 1
        assert (await store.verify()).ok


async def test_a_repeated_key_is_answered_only_after_a_standby_has_what_it_stands_for(
    url: str, databases: Databases
) -> None:
    server, key = databases.server, IdempotencyKey("create-1", b"what was asked")
    async with opened(url, commit_within=0.2, settle_within=0.5) as store:

        async def make() -> StoredConversation:
            return await store.create(NewConversation(id=new_id()), key=key)

        async with hanging(make, server) as told:
            await happen("the session is ended", server)
        assert isinstance(told.error, OutcomeUnknown), told.error
        with pytest.raises(OutcomeUnknown):
            await make()  # what the first one made is there, and on this server alone
        await in_thread(server.configure, synchronous_standby_names="")
        assert (await make()).id == (await make()).id


KEY = IdempotencyKey("the same key", b"what was asked")

Request: TypeAlias = Callable[[PostgresStore], Awaitable[object]]
"""A request that may be sent again, to any node."""


async def a_creation(store: PostgresStore) -> Request:
    return lambda node: node.create(NewConversation(id=new_id()), key=KEY)


async def a_fork(store: PostgresStore) -> Request:
    made = await create(store)
    await run(store, made.id, "one")
    return lambda node: node.fork(made.id, fork_of(), key=KEY)


async def a_rewind(store: PostgresStore) -> Request:
    made = await create(store)
    first = await run(store, made.id, "one")
    await run(store, made.id, "two")
    return lambda node: node.rewind(made.id, fork_of(), at=first.last, key=KEY)


async def a_note(store: PostgresStore) -> Request:
    made = await create(store)
    return lambda node: node.note(made.id, new_id(), [says("by the way")], key=KEY)


async def a_steer(store: PostgresStore) -> Request:
    made = await create(store)
    await begin(store, made.id)
    return lambda node: node.steer(made.id, new_id(), UserMessage((Text("also"),)), key=KEY)


async def a_turn(store: PostgresStore) -> Request:
    made = await create(store)
    turn = await store.begin(made.id, new_id(), key=KEY)
    assert isinstance(turn, OpenTurn)
    await store.commit(turn, exchange("hi"), usage=SPENT)
    return lambda node: node.begin(made.id, new_id(), key=KEY)


async def a_search_by_key(store: PostgresStore) -> Request:
    await a_turn(store)
    return lambda node: node.made_with(KEY, "turn")


async def a_settlement(store: PostgresStore) -> Request:
    turn = await begin(store, (await create(store)).id)
    await store.fail(turn, TurnError("x", "y"))
    return lambda node: node.settle(turn.id)


async def an_acceptance(store: PostgresStore) -> Request:
    turn = await begin(store, (await create(store)).id)
    return lambda node: node.accept(turn.id)


REQUESTS = [a_creation, a_fork, a_rewind, a_note, a_steer, a_turn, a_search_by_key, a_settlement, an_acceptance]


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_request_that_is_sent_again_is_answered_only_once_a_standby_has_what_it_did(
    kind: Callable[[PostgresStore], Awaitable[Request]], url: str, databases: Databases
) -> None:
    server = databases.server
    async with opened(url) as one, opened(url, commit_within=0.2, settle_within=0.5) as other:
        request = await kind(one)
        await request(one)
        await in_thread(server.configure, synchronous_standby_names="absent")
        with pytest.raises(OutcomeUnknown):
            await request(other)
        async with hanging(lambda: request(one), server) as told:
            await in_thread(server.configure, synchronous_standby_names="")
        assert told.error is None, told.error


async def test_a_request_that_is_sent_again_raises_no_barrier_if_no_standby_has_to_confirm_it(
    url: str, databases: Databases
) -> None:
    def transactions() -> object:
        """A number that every transaction raises that writes, a barrier among them."""
        return databases.server.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")

    async with opened(url) as store:
        requests = [await a_search_by_key(store), await a_settlement(store), await an_acceptance(store)]
        for request in requests:
            await request(store)
        before = transactions()
        for request in requests:
            await request(store)
        assert transactions() == before


async def test_a_turn_whose_commit_is_unknown_is_settled_later(url: str, databases: Databases) -> None:
    server = databases.server
    async with opened(url, commit_within=0.2, settle_within=0.5) as store:
        made = await create(store)
        turn = await begin(store, made.id)
        async with hanging(lambda: store.commit(turn, exchange("hi"), usage=SPENT), server) as told:
            await happen("the session is ended", server)
        assert isinstance(told.error, OutcomeUnknown), told.error
        with pytest.raises(OutcomeUnknown):
            await store.settle(turn.id)
        await in_thread(server.configure, synchronous_standby_names="")
        assert await store.settle(turn.id) == "committed"


async def test_a_cancelled_task_hears_of_it_after_its_commit_is_settled(url: str, databases: Databases) -> None:
    server = databases.server
    async with opened(url) as store:
        case = await commits(store)
        await in_thread(server.configure, synchronous_standby_names="absent")
        task = asyncio.ensure_future(case.write())
        await in_thread(server.wait_for_sessions, "SyncRep")
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=0.2)
        assert not done, "the commit cannot be called back, so the caller has to wait for it"
        await in_thread(server.configure, synchronous_standby_names="")
        await asyncio.wait([task])
        assert task.cancelled()
        assert await case.times() == 1


async def test_an_attended_begin_waits_for_no_standby(url: str, databases: Databases) -> None:
    async with opened(url) as store:
        made = await create(store)
        await in_thread(databases.server.configure, synchronous_standby_names="absent")
        assert isinstance(await store.begin(made.id, new_id()), OpenTurn)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_session_that_ends_before_its_commit_leaves_nothing_and_the_write_is_done_once(
    kind: Callable[[PostgresStore], Awaitable[Case]], url: str, databases: Databases
) -> None:
    server, database = databases.server, url.rpartition("/")[2]
    async with opened(url) as store:
        case = await kind(store)
        lock = await in_thread(server.lock, "LOCK TABLE turn, conversation, record IN EXCLUSIVE MODE", database)
        task = asyncio.ensure_future(case.write())
        await in_thread(server.wait_for_sessions, "Lock")
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        lock.close()
        await task
        assert await case.times() == 1
        assert (await store.verify()).ok


class Told(Struct):
    """What the caller of a write heard."""

    error: Exception | None = None


@asynccontextmanager
async def hanging(write: Callable[[], Awaitable[object]], server: Server) -> AsyncIterator[Told]:
    """Within it a write is done, and its commit hangs. Afterwards its caller has heard what became of it."""
    await in_thread(server.configure, synchronous_standby_names="absent")
    told = Told()

    async def attempt() -> None:
        try:
            await write()
        except Exception as error:
            told.error = error

    async with anyio.create_task_group() as group:
        group.start_soon(attempt)
        await in_thread(server.wait_for_sessions, "SyncRep")
        yield told


async def happen(mishap: Mishap, server: Server) -> None:
    those = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    match mishap:
        case "the session is ended":
            await in_thread(server.execute, f"SELECT pg_terminate_backend(pid) {those}")
        case "the wait is cancelled":
            await in_thread(server.execute, f"SELECT pg_cancel_backend(pid) {those}")
        case "the time limit passes":
            waiting = await in_thread(server.execute, f"SELECT pid {those}")  # the store ends that session itself
            for (pid,) in waiting:
                await in_thread(server.wait_for_end_of_wait, pid, "SyncRep")


async def is_there(store: PostgresStore, id: str) -> int:
    try:
        await store.read(id)
    except NotFound:
        return 0
    return 1


async def in_thread(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return await asyncio.to_thread(function, *arguments, **named)
