"""A COMMIT that fails, and what its callers hear: each the truth about its own call, and every token is counted."""

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from forkpoint.errors import CommitFailed, ForkpointError, NotFound, StoreUnavailable
from forkpoint.events import Usage
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import Connect, Database
from forkpoint.store.sqlite.files import lock_path
from forkpoint.store.values import Lineage, NewConversation, Onto, OpenTurn, StoredConversation
from forkpoint.system.file_lock import FileLock
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.conformance.base import begin, create, run
from forkpoint.testing.samples import answers, exchange, says

pytestmark = pytest.mark.anyio

Watch = Callable[[Database, str, Callable[[], sqlite3.Cursor]], sqlite3.Cursor]


class Disk:
    """Lets the next COMMIT fail, before or after it had its effect."""

    def __init__(self) -> None:
        self.fails: str | None = None

    def __call__(self, db: Database, sql: str, execute: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
        if self.fails is None or not sql.startswith("COMMIT"):
            return execute()
        landed, self.fails = self.fails == "landed", None
        if landed:
            execute()
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def connect(disk: Disk, watched: Callable[[Watch], Connect]) -> Connect:
    return watched(disk)


async def test_what_a_turn_cost_is_kept_when_its_commit_fails(tmp_path: Path, disk: Disk, connect: Connect) -> None:
    async with await SqliteStore.open(tmp_path / "store.db", connect=connect) as store:
        made = await create(store)
        turn = await store.journal(await begin(store, made.id), [says("look")], usage=Usage(calls=1, input=1))
        disk.fails = "lost"
        with pytest.raises(CommitFailed):
            await store.commit(turn, [answers("seen")], usage=Usage(calls=1, input=1000))
        assert (await store.turn(turn.id)).outcome == "failed"
        assert await store.usage(made.family) == Usage(calls=2, input=1001)
        taken = await store.resume(turn.id)
        await store.commit(taken, [answers("seen")])
        assert (await store.read(made.id)).spent == Usage(calls=2, input=1001)


async def test_a_commit_that_landed_although_it_failed_is_a_commit(
    tmp_path: Path, disk: Disk, connect: Connect
) -> None:
    async with await SqliteStore.open(tmp_path / "store.db", connect=connect) as store:
        made = await create(store)
        turn = await begin(store, made.id)
        disk.fails = "landed"
        await store.commit(turn, exchange("there"), usage=Usage(calls=1, input=5))
        assert len(await store.events(made.id)) == 2
        assert await store.usage(made.family) == Usage(calls=1, input=5)


@pytest.mark.parametrize("effect", ["lost", "landed"])
async def test_a_charge_whose_commit_failed_is_counted_once_however_often_it_is_made_again(
    tmp_path: Path, disk: Disk, connect: Connect, effect: str
) -> None:
    async with await SqliteStore.open(tmp_path / "store.db", connect=connect) as store:
        made, charge, usage = await create(store), new_id(), Usage(calls=1, input=5)
        disk.fails = effect
        if effect == "lost":
            with pytest.raises(StoreUnavailable):
                await store.charge(made.id, charge, usage)
            assert await store.spent(made.id) == Usage()
        for _ in range(2):
            await store.charge(made.id, charge, usage)
            assert await store.spent(made.id) == await store.usage(made.family) == usage


@pytest.mark.parametrize("effect", ["lost", "landed"])
async def test_in_a_group_each_caller_hears_what_became_of_its_own_call(
    tmp_path: Path, disk: Disk, connect: Connect, effect: str
) -> None:
    path = tmp_path / "store.db"
    async with await SqliteStore.open(path, connect=connect) as store:
        doomed, other = await create(store), await create(store)
        turn = await begin(store, other.id)
        heard: dict[str, bool] = {}

        async def call(name: str, work: Callable[[], Awaitable[object]]) -> None:
            try:
                await work()
                heard[name] = True
            except ForkpointError:
                heard[name] = False

        gate = FileLock(lock_path(path))
        async with anyio.create_task_group() as tasks:
            with gate:
                tasks.start_soon(call, "describe", lambda: store.describe(doomed.id, title="x"))
                tasks.start_soon(call, "delete", lambda: store.delete(doomed.id))
                tasks.start_soon(call, "commit", lambda: store.commit(turn, exchange("paid for")))
                for _ in range(20):
                    await checkpoint()
                disk.fails = effect
        gate.close()
        assert heard["commit"] == (len(await store.events(other.id)) == 2)
        try:
            await store.read(doomed.id)
            assert not heard["delete"]
        except NotFound:
            assert heard["delete"]
        await run(store, other.id, "on")


@pytest.mark.parametrize("effect", ["lost", "landed"])
async def test_in_a_group_all_that_ask_for_the_sub_agent_of_a_call_hear_the_same_and_it_is_whole_or_not_there(
    tmp_path: Path, disk: Disk, connect: Connect, effect: str
) -> None:
    path = tmp_path / "store.db"
    async with await SqliteStore.open(path, connect=connect) as store:
        parent = await create(store)
        one = await run(store, parent.id, "one")
        turn = await begin(store, parent.id)
        heard: list[StoredConversation | str] = []

        async def spawn() -> None:
            lineage = Lineage("sub_agent", parent.id, None, turn.id, "c1")
            onto = Onto(parent.id, one.last)
            new = NewConversation(id=new_id(), family=parent.id, lineage=lineage, onto=onto)
            try:
                heard.append(await store.create(new, exchange("inherited")))
            except ForkpointError as error:
                heard.append(error.code)

        gate = FileLock(lock_path(path))
        async with anyio.create_task_group() as tasks:
            with gate:
                for _ in range(3):
                    tasks.start_soon(spawn)
                for _ in range(20):
                    await checkpoint()
                disk.fails = effect
        gate.close()
        assert disk.fails is None, "no COMMIT has failed, so this proved nothing"
        children = (await store.conversations(parent=parent.id)).items
        assert len(children) == (1 if effect == "landed" else 0)
        assert heard == [*(children or ["store_unavailable"])] * 3
        await spawn()
        (child,) = (await store.conversations(parent=parent.id)).items
        assert heard[-1] == child
        assert child.head.ordinal == 4, "it is there without its first note"
        assert (await store.verify()).ok


async def test_a_draft_that_commits_while_drafts_are_collected_is_kept(tmp_path: Path) -> None:
    clock = ManualClock()
    async with await SqliteStore.open(tmp_path / "store.db", clock=clock) as store:
        drafts = [NewConversation(id=new_id()) for _ in range(20)]
        for draft in drafts:
            await store.cancel(await begin_draft(store, draft))
        clock.pass_by(31 * 24 * 3600)
        committed: list[str] = []

        async def commit_some() -> None:
            for draft in reversed(drafts):
                try:
                    turn = await begin(store, draft.id)
                except NotFound:
                    return
                await store.commit(turn, exchange("at last"))
                committed.append(draft.id)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.collect)
            tasks.start_soon(commit_some)
        for id in committed:
            assert len(await store.events(id)) == 2, "a committed conversation was collected as a draft"


async def begin_draft(store: SqliteStore, draft: NewConversation) -> OpenTurn:
    turn = await store.begin(draft.id, new_id(), create=draft)
    assert isinstance(turn, OpenTurn)
    return turn
