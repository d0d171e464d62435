"""Which process holds a turn: heartbeats by the database's clock, expiry, leaving, and turns that nobody here knows."""

import asyncio
import os
from typing import Any

import anyio
import psycopg
import pytest

from forkpoint.errors import OutcomeUnknown
from forkpoint.ids import id_to_bytes, new_id
from forkpoint.store.postgres.session.hot_link import HotLink
from forkpoint.store.postgres.settings import PostgresSettings
from forkpoint.store.postgres.store import PostgresStore
from forkpoint.store.values import OpenTurn
from forkpoint.testing.conformance.base import begin, create

pytestmark = pytest.mark.anyio

QUICK = PostgresSettings(heartbeat=20_000)

FAIL_ONCE = """CREATE SEQUENCE tries;
CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN IF nextval(''tries'') = 1 THEN RAISE EXCEPTION ''not now''; END IF; RETURN NEW; END';
CREATE TRIGGER fail_once BEFORE UPDATE ON turn FOR EACH ROW EXECUTE FUNCTION fail_once();
"""
"""Lets the next change of a turn fail, and no other."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def ask(url: str, statement: str, *parameters: object) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as db:
        cursor = db.execute(statement.encode(), parameters)
        return cursor.fetchall() if cursor.description is not None else []


async def until(url: str, statement: str) -> None:
    """Returns once a statement finds a row."""
    with anyio.fail_after(20):
        while not ask(url, statement):  # noqa: ASYNC110 - the database tells nobody
            await anyio.sleep(0.01)


async def test_a_process_says_that_it_is_alive_while_it_holds_a_turn(postgres: str) -> None:
    async with await PostgresStore.open(postgres, settings=QUICK) as store:
        await begin(store, (await create(store)).id)
        ask(postgres, "UPDATE holder SET seen = 0")
        clock = "floor(extract(epoch FROM clock_timestamp()) * 1000000)"
        await until(postgres, f"SELECT 1 FROM holder WHERE seen BETWEEN {clock} - 10000000 AND {clock} + 1000000")
    assert ask(postgres, "SELECT id FROM holder") == [], "who closes the store leaves"


async def test_a_process_says_that_it_is_alive_while_others_use_all_its_connections(postgres: str) -> None:
    async with await PostgresStore.open(f"{postgres}?pool=1", settings=QUICK) as store:
        await begin(store, (await create(store)).id)
        async with store._view.opened.connections.slot():
            for _ in range(3):  # one heartbeat could get through before it waits
                ask(postgres, "UPDATE holder SET seen = 0")
                await until(postgres, "SELECT 1 FROM holder WHERE seen > 0")


async def test_a_store_that_is_closed_leaves_nothing_running(postgres: str) -> None:
    before = asyncio.all_tasks()
    store = await PostgresStore.open(postgres, settings=PostgresSettings(heartbeat=1_000))
    await begin(store, (await create(store)).id)
    with psycopg.connect(postgres) as db:
        db.execute("LOCK TABLE turn IN ACCESS EXCLUSIVE MODE")  # the search for strays waits
        await until(postgres, "SELECT 1 FROM pg_locks WHERE relation = 'turn'::regclass AND NOT granted")
        closing = asyncio.create_task(store.close())
        await until(postgres, "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM holder)")
        await anyio.wait_all_tasks_blocked()
    await closing
    assert asyncio.all_tasks() == before


async def test_a_turn_of_a_silent_process_is_interrupted_and_can_be_taken_over(postgres: str) -> None:
    async with await PostgresStore.open(postgres) as ours, await PostgresStore.open(postgres) as theirs:
        made = await create(ours)
        turn = await begin(ours, made.id)
        assert (await theirs.read(made.id)).status == "running"
        ask(postgres, "UPDATE holder SET seen = seen - 31000000")
        assert (await theirs.read(made.id)).status == "interrupted"
        assert isinstance(await theirs.resume(turn.id), OpenTurn)
        assert set(await ours.stops([turn])) == {turn.id}


async def test_a_turn_that_only_the_database_knows_of_is_given_back(postgres: str) -> None:
    """A begin that was given up because nobody answered may reach the server afterwards."""
    async with await PostgresStore.open(postgres, settings=QUICK) as store:
        known, late = await begin(store, (await create(store)).id), await begin(store, (await create(store)).id)
        store._view.opened.running.discard(late.token)
        await until(postgres, "SELECT 1 FROM turn WHERE outcome = 'cancelled'")
        assert (await store.turn(known.id)).outcome == "running"
        assert (await store.turn(late.id)).outcome == "cancelled"
        assert isinstance(await store.begin(late.conversation, new_id()), OpenTurn)


async def test_a_promised_turn_that_only_the_database_knows_of_is_left_for_another_process(postgres: str) -> None:
    """Its caller heard that the outcome is unknown, and a repeated request on another node may have been answered."""
    async with await PostgresStore.open(postgres, settings=QUICK) as store:
        known = await begin(store, (await create(store)).id)
        late = await store.begin((await create(store)).id, new_id(), accepted=True)
        assert isinstance(late, OpenTurn)
        store._view.opened.running.discard(late.token)
        await until(postgres, "SELECT 1 FROM turn WHERE accepted = 1 AND holder IS NULL")
        assert [orphan.id for orphan in (await store.orphans(accepted=True)).items] == [late.id]
        assert (await store.turn(known.id)).outcome == "running"


@pytest.mark.parametrize("runs_another", [True, False])
async def test_a_begin_whose_outcome_is_unknown_holds_its_conversation_for_a_moment_only(
    runs_another: bool, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn is there, the process that began it lives, and nobody runs it."""
    async with await PostgresStore.open(postgres, settings=QUICK) as store:
        if runs_another:
            await begin(store, (await create(store)).id)
        made = await create(store)
        with monkeypatch.context() as broken:
            say: Any = HotLink.say

            async def unheard(self: HotLink, *arguments: Any, **more: Any) -> Any:
                await say(self, *arguments, **more)
                raise OutcomeUnknown(postgres, "turn", "", "nobody has confirmed it")

            broken.setattr(HotLink, "say", unheard)
            with pytest.raises(OutcomeUnknown):
                await store.begin(made.id, new_id(), accepted=True)
        assert (await store.read(made.id)).status == "running"
        await until(postgres, "SELECT 1 FROM turn WHERE accepted = 1 AND holder IS NULL")
        assert (await store.read(made.id)).status == "interrupted"


async def test_a_resumed_turn_that_nobody_runs_stays_open_although_giving_it_back_fails_at_first(postgres: str) -> None:
    async with await PostgresStore.open(postgres) as ours, await PostgresStore.open(postgres, settings=QUICK) as theirs:
        turn = await begin(ours, (await create(ours)).id)
        ask(postgres, "UPDATE holder SET seen = seen - 31000000")
        resumed = await theirs.resume(turn.id)
        ask(postgres, FAIL_ONCE)
        theirs._view.opened.running.discard(resumed.token)
        theirs._view.opened.doubt(resumed.token, begun=False)
        await until(postgres, "SELECT 1 FROM turn WHERE outcome <> 'running' OR holder IS NULL")
        assert ask(postgres, "SELECT last_value > 1 FROM tries") == [(True,)], "the first try has failed"
        assert (await theirs.turn(turn.id)).outcome == "interrupted"


async def test_a_begin_that_never_reached_the_database_is_forgotten(postgres: str) -> None:
    async with await PostgresStore.open(postgres, settings=QUICK) as store:
        await begin(store, (await create(store)).id)
        opened = store._view.opened
        opened.doubt(b"never begun     ", begun=True)
        with anyio.fail_after(20):
            while opened._doubted:  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(0.01)


async def test_the_clock_is_the_database_s(postgres: str) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        before = ask(postgres, "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint")[0][0]
        turn = await begin(store, made.id)
        after = ask(postgres, "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint")[0][0]
        found = ask(postgres, "SELECT started FROM turn WHERE id = %s", id_to_bytes(turn.id))[0][0]
        assert isinstance(before, int)
        assert isinstance(found, int)
        assert isinstance(after, int)
        assert before - 50_000 <= found <= after + 50_000
        assert ask(postgres, "SELECT process FROM holder") == [(os.getpid(),)]
