"""Hot statements that nobody confirms: the connection is lost, the caller is cancelled, a standby does not answer."""

from typing import Any

import anyio
import psycopg
import pytest
from tests.postgres.hot_support import contents, someone_waits

from forkpoint.events import Usage
from forkpoint.store.postgres.session.hot_link import HotLink
from forkpoint.store.postgres.store import PostgresStore
from forkpoint.store.values import TurnError
from forkpoint.testing.conformance.base import begin, create, run
from forkpoint.testing.samples import exchange

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def losing(monkeypatch: pytest.MonkeyPatch, *, done: bool) -> list[None]:
    """The next hot statement is done or not done, and the connection is lost before anybody hears of it."""
    execute: Any = HotLink.say
    lost: list[None] = []

    async def broken(self: HotLink, statement: bytes, parameters: Any, *, within: float) -> Any:
        if lost:
            return await execute(self, statement, parameters, within=within)
        lost.append(None)
        if done:
            await execute(self, statement, parameters, within=within)
        self.cut()
        return await execute(self, statement, parameters, within=within)

    monkeypatch.setattr(HotLink, "say", broken)
    return lost


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("what", ["begin", "journal", "commit", "fail"])
async def test_a_lost_connection_loses_no_write_and_repeats_none(
    postgres: str, monkeypatch: pytest.MonkeyPatch, what: str, done: bool
) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        await run(store, made.id, "first")
        turn = None if what == "begin" else await begin(store, made.id)
        lost = losing(monkeypatch, done=done)
        if turn is None:
            turn = await begin(store, made.id)
            assert await store.refresh(turn) == turn
        elif what == "journal":
            turn = await store.journal(turn, exchange("hi"), usage=Usage(calls=1))
            assert len(await store.steps(turn.id)) == 2
        elif what == "commit":
            committed = await store.commit(turn, exchange("hi"))
            assert (await store.read(made.id)).head == committed.head
        else:
            assert (await store.fail(turn, TurnError("x", "y"))).outcome == "failed"
        assert lost
        assert (await store.verify(made.id)).ok
        assert (await store.read(made.id)).revision == (2 if what == "commit" else 1)


async def test_a_cancelled_commit_is_done_or_not_and_the_store_knows_which(postgres: str) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        turn = await begin(store, made.id)
        with psycopg.connect(postgres) as held:
            held.execute("SELECT 1 FROM conversation FOR UPDATE")
            async with anyio.create_task_group() as group:
                group.start_soon(store.commit, turn, exchange("hi"))
                await someone_waits(postgres)
                group.cancel_scope.cancel()
                held.rollback()
        assert (await store.turn(turn.id)).outcome == "committed"
        assert (await store.verify(made.id)).ok


async def test_a_session_that_waits_for_a_lock_when_its_connection_is_lost_writes_nothing_later(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever settles ends that session first: otherwise it would journal what the caller was told is not there."""
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        turn = await begin(store, made.id)
        links: list[HotLink] = []
        execute: Any = HotLink.say

        async def watched(self: HotLink, *said: Any, within: float) -> Any:
            links.append(self)
            return await execute(self, *said, within=within)

        monkeypatch.setattr(HotLink, "say", watched)
        with psycopg.connect(postgres) as held:
            held.execute("SELECT 1 FROM turn FOR UPDATE")
            async with anyio.create_task_group() as group:
                group.start_soon(store.journal, turn, exchange("hi"))
                await someone_waits(postgres)
                links[0].cut()
                with anyio.fail_after(10):
                    while _is_there(postgres, links[0]):  # noqa: ASYNC110
                        await anyio.sleep(0.01)
                assert not contents(postgres)["step"]
                held.rollback()
        assert len(await store.steps(turn.id)) == 2, "the shared operation has written them, once"


def _is_there(url: str, link: HotLink) -> bool:
    assert link.session is not None
    with psycopg.connect(url) as db:
        return bool(db.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [link.session.pid]).fetchall())
