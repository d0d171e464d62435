"""Cancelling a call: while it is queued it is withdrawn; once the writer has taken it, it is finished first.

`Held` stops the writer before a statement, so that each test knows where the call is when it is cancelled.
"""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from msgspec import Struct

from forkpoint.errors import NotFound
from forkpoint.events import Usage
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import Connect, Database
from forkpoint.store.sqlite.files import lock_path
from forkpoint.store.values import NewConversation, NewFork, Onto, OpenTurn, TurnError
from forkpoint.system.file_lock import HAS_LOCKS, FileLock
from forkpoint.testing.samples import exchange, says

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not HAS_LOCKS, reason="without file locks the writer cannot be kept from running in place"),
]

PATIENCE = 10.0  # seconds after which a test gives up on something that should come at once
Watched: TypeAlias = Callable[[Callable[[Database, str, Callable[[], sqlite3.Cursor]], sqlite3.Cursor]], Connect]


@pytest.fixture(params=["asyncio, a cancel scope", "asyncio, task.cancel()", "trio, a cancel scope"])
def way(request: pytest.FixtureRequest) -> str:
    """The loop, and how a call is cancelled there."""
    return str(request.param)


@pytest.fixture
def anyio_backend(way: str) -> str:
    return way.partition(",")[0]


class Held:
    """A writer that stops before chosen statements until it is let go, each time in its own thread."""

    def __init__(self, watched: Watched) -> None:
        self.connect = watched(self._execute)
        self._stops: list[tuple[str, threading.Event, threading.Event]] = []

    @contextmanager
    def before(self, statement: str) -> Iterator["Stop"]:
        """The next such statement waits until the block is left."""
        reached, released = threading.Event(), threading.Event()
        self._stops.append((statement, reached, released))
        try:
            yield Stop(reached, released)
        finally:
            released.set()

    def _execute(self, db: Database, sql: str, execute: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
        if self._stops and sql.startswith(self._stops[0][0]):
            _, reached, released = self._stops.pop(0)
            reached.set()
            assert threading.current_thread() is not threading.main_thread(), f"{sql!r} would stop the loop itself"
            released.wait(2 * PATIENCE)
        return execute()


class Stop(Struct):
    reached_event: threading.Event
    released: threading.Event

    async def reached(self) -> None:
        found = await anyio.to_thread.run_sync(self.reached_event.wait, PATIENCE)
        assert found, "the writer never came here"

    def release(self) -> None:
        self.released.set()


class Call:
    """A call in a task of its own that can be cancelled."""

    def __init__(self, call: Callable[[], Awaitable[object]], way: str, *, at_once: bool = False) -> None:
        self._call = call
        self._way = way
        self._at_once = at_once
        self._scope = anyio.CancelScope()
        self._task: asyncio.Task[object] | None = None
        self._ended = anyio.Event()
        self.was_cancelled = False

    async def run(self) -> None:
        if "task" in self._way:
            self._task = asyncio.current_task()
        with self._scope:
            try:
                if self._at_once:
                    self.cancel()
                await self._call()
            except anyio.get_cancelled_exc_class():
                self.was_cancelled = True
                if self._task is None:
                    raise
            finally:
                self._ended.set()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            self._scope.cancel()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    async def ended(self) -> None:
        with anyio.move_on_after(PATIENCE):
            await self._ended.wait()
            return
        pytest.fail("the cancelled call never came back")


class Act(Struct, frozen=True):
    """Something to ask of a store, and how to find out whether it was done."""

    call: Callable[[], Coroutine[Any, Any, object]]
    there: Callable[[], Awaitable[bool]]


class Scene:
    """A store with a conversation of two turns, an open turn in another, one that is free, and one to be left."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.told, self.running, self.free, self.left = (new_id() for _ in range(4))
        self.first = ""
        self.turn = new_id()

    async def set(self) -> None:
        for id in (self.told, self.running, self.free, self.left):
            await self.store.create(NewConversation(id=id))
        self.first = await self.run_a_turn(self.told)
        await self.run_a_turn(self.told)
        self.early = (await self.store.fork(self.told, NewFork(id=new_id(), cache="{}"), at=self.first)).id
        self.held = await begin(self.store, self.running, self.turn)
        await self.run_a_turn(self.left)
        self.elsewhere = await begin(self.store, self.left, new_id(), Onto(self.left, None))

    async def run_a_turn(self, conversation: str) -> str:
        held = await begin(self.store, conversation, new_id())
        await self.store.commit(held, exchange("Hello."))
        return held.id

    def act(self, name: str) -> Act:
        store, new = self.store, new_id()
        branch = NewFork(id=new, cache="{}")
        match name:
            case "create":
                return Act(lambda: store.create(NewConversation(id=new)), lambda: self.exists(new))
            case "fork":
                return Act(lambda: store.fork(self.told, branch), lambda: self.exists(new))
            case "rewind":
                return Act(lambda: store.rewind(self.told, branch, at=self.first), lambda: self.exists(new))
            case "keep":
                return Act(lambda: store.keep(self.told, self.early, branch, cache="{}"), lambda: self.exists(new))
            case "note":
                return Act(
                    lambda: store.note(self.told, new, exchange("Noted.")), lambda: self.is_turn(new, "committed")
                )
            case "delete":
                return Act(lambda: store.delete(self.told), self.is_gone)
            case "journal":
                return Act(lambda: store.journal(self.held, [says("Look.")]), self.has_a_step)
            case "commit":
                return Act(
                    lambda: store.commit(self.held, exchange("Look.")), lambda: self.is_turn(self.turn, "committed")
                )
            case "commit elsewhere":
                return Act(
                    lambda: store.commit(self.elsewhere, exchange("Instead."), aside=branch), lambda: self.has_left(new)
                )
            case "rename":
                return Act(lambda: store.rename(self.told, "renamed"), lambda: self.is_named("renamed"))
            case "fail":
                error = TurnError("failed", "It was to fail.")
                return Act(lambda: store.fail(self.held, error), lambda: self.is_turn(self.turn, "failed"))
            case "charge":
                usage = Usage(calls=1, input=3)
                return Act(lambda: store.charge(self.running, new, usage), lambda: self.has_spent(usage))
            case _:
                raise ValueError(name)

    async def exists(self, id: str) -> bool:
        try:
            await self.store.read(id)
        except NotFound:
            return False
        return True

    async def is_gone(self) -> bool:
        return not await self.exists(self.told)

    async def is_turn(self, turn: str, outcome: str) -> bool:
        try:
            return (await self.store.turn(turn)).outcome == outcome
        except NotFound:
            return False

    async def has_left(self, branch: str) -> bool:
        committed = await self.is_turn(self.elsewhere.id, "committed")
        assert committed == await self.exists(branch), "the commit and what it sets aside are not one"
        return committed

    async def is_named(self, name: str) -> bool:
        return (await self.store.read(self.told)).name == name

    async def has_a_step(self) -> bool:
        return len(await self.store.steps(self.turn)) == 1

    async def has_spent(self, usage: Usage) -> bool:
        return await self.store.spent(self.running) == usage

    async def assert_whole(self) -> None:
        found = await self.store.verify()
        assert found.ok, f"verify finds flaws: {found.flaws}"


ACTS = [
    *("create", "fork", "rewind", "keep", "rename", "note", "delete"),
    *("journal", "commit", "commit elsewhere", "fail", "charge"),
]


async def begin(store: SqliteStore, conversation: str, turn: str, onto: Onto | None = None) -> OpenTurn:
    held = await store.begin(conversation, turn, onto=onto)
    assert isinstance(held, OpenTurn)
    return held


async def rounds() -> None:
    """Lets other tasks go as far as they can without the writer: that takes a few rounds of the loop, not a time."""
    for _ in range(20):
        await checkpoint()


@asynccontextmanager
async def scene(path: Path, watched: Watched) -> AsyncIterator[tuple[Scene, Held]]:
    held = Held(watched)
    async with await SqliteStore.open(path, connect=held.connect) as store:
        made = Scene(store)
        await made.set()
        yield made, held
        await made.assert_whole()


async def start_in_the_writers_thread(
    tasks: TaskGroup, path: Path, call: Callable[[], Coroutine[Any, Any, object]]
) -> None:
    """Starts a call while another program seems to be writing, so that it is not run where it is made."""
    lock = FileLock(lock_path(path))
    with lock:
        tasks.start_soon(call)
        await rounds()
    lock.close()


@asynccontextmanager
async def busy_writer(scene: Scene, held: Held, path: Path) -> AsyncIterator[TaskGroup]:
    """Within it the writer is at work on something else, so that calls queue."""
    async with anyio.create_task_group() as tasks:
        with held.before("BEGIN") as stop:
            await start_in_the_writers_thread(tasks, path, scene.act("create").call)
            await stop.reached()
            yield tasks


@pytest.mark.parametrize("name", ACTS)
async def test_a_queued_call_that_is_cancelled_has_no_effect_and_can_be_made_again(
    tmp_path: Path, watched: Watched, way: str, name: str
) -> None:
    path = tmp_path / "store.db"
    async with scene(path, watched) as (made, held):
        act = made.act(name)
        call = Call(act.call, way)
        async with busy_writer(made, held, path) as tasks:
            tasks.start_soon(call.run)
            await rounds()
            call.cancel()
            await call.ended()  # although the writer has not moved: nobody waits for it in vain
        assert call.was_cancelled
        assert not await act.there(), f"the {name} was withdrawn, and yet it was done"
        await act.call()
        assert await act.there()


@pytest.mark.parametrize("statement", ["BEGIN", "COMMIT"])
@pytest.mark.parametrize("name", ACTS)
async def test_a_call_that_the_writer_has_taken_is_finished_before_its_cancellation_goes_on(
    tmp_path: Path, watched: Watched, way: str, name: str, statement: str
) -> None:
    path = tmp_path / "store.db"
    async with scene(path, watched) as (made, held):
        act = made.act(name)
        call = Call(act.call, way)
        async with anyio.create_task_group() as tasks:
            with held.before(statement) as stop:
                await start_in_the_writers_thread(tasks, path, call.run)
                await stop.reached()
                call.cancel()
                await rounds()
                call.cancel()
                await rounds()
                assert not call.has_ended, f"the {name} is still being written, and yet its caller went on"
            await call.ended()
        assert call.was_cancelled
        assert await act.there(), f"the writer had taken the {name}, and yet it was not done"


@pytest.mark.parametrize("name", ACTS)
async def test_a_call_that_is_cancelled_before_it_asks_is_done_or_not_and_nothing_in_between(
    tmp_path: Path, watched: Watched, way: str, name: str
) -> None:
    path = tmp_path / "store.db"
    async with scene(path, watched) as (made, _):
        act = made.act(name)
        call = Call(act.call, way, at_once=True)
        await call.run()
        assert call.was_cancelled
        if not await act.there():
            await act.call()
        assert await act.there()


async def test_a_withdrawn_call_leaves_those_before_and_after_it_alone(
    tmp_path: Path, watched: Watched, way: str
) -> None:
    path = tmp_path / "store.db"
    async with scene(path, watched) as (made, held):
        acts = [made.act(name) for name in ("create", "fork", "commit")]
        queued = [Call(act.call, way) for act in acts]
        async with busy_writer(made, held, path) as tasks:
            for call in queued:
                tasks.start_soon(call.run)
                await rounds()
            queued[1].cancel()
            await queued[1].ended()
        assert [await act.there() for act in acts] == [True, False, True]


async def test_a_begin_that_is_cancelled_while_queued_leaves_the_conversation_free(
    tmp_path: Path, watched: Watched, way: str
) -> None:
    path, turn = tmp_path / "store.db", new_id()
    async with scene(path, watched) as (made, held):
        call = Call(lambda: made.store.begin(made.free, turn), way)
        async with busy_writer(made, held, path) as tasks:
            tasks.start_soon(call.run)
            await rounds()
            call.cancel()
        assert call.was_cancelled
        assert (await made.store.read(made.free)).status == "idle", "nobody has the turn, and yet the lock is taken"
        await made.run_a_turn(made.free)


@pytest.mark.parametrize("statement", ["BEGIN", "COMMIT"])
async def test_a_begin_that_is_cancelled_while_it_is_written_leaves_the_conversation_free(
    tmp_path: Path, watched: Watched, way: str, statement: str
) -> None:
    path, turn = tmp_path / "store.db", new_id()
    async with scene(path, watched) as (made, held):
        call = Call(lambda: made.store.begin(made.free, turn), way)
        async with anyio.create_task_group() as tasks:
            with held.before(statement) as stop:
                await start_in_the_writers_thread(tasks, path, call.run)
                await stop.reached()
                call.cancel()
                await rounds()
        assert call.was_cancelled
        assert (await made.store.read(made.free)).status == "idle", "nobody has the turn, and yet the lock is taken"
        await made.run_a_turn(made.free)


async def test_a_begin_that_is_cancelled_again_while_it_lets_go_leaves_the_conversation_free(
    tmp_path: Path, watched: Watched, way: str
) -> None:
    path, turn = tmp_path / "store.db", new_id()
    async with scene(path, watched) as (made, held):
        call = Call(lambda: made.store.begin(made.free, turn), way)
        async with anyio.create_task_group() as tasks:
            with held.before("COMMIT") as written, held.before("BEGIN") as following:
                await start_in_the_writers_thread(tasks, path, call.run)
                await written.reached()
                tasks.start_soon(made.act("create").call)  # what the writer does next, so that letting go has to queue
                await rounds()
                call.cancel()
                await rounds()
                written.release()
                await following.reached()
                await rounds()
                call.cancel()
                await rounds()
        assert call.was_cancelled
        assert (await made.store.read(made.free)).status == "idle", "nobody has the turn, and yet the lock is taken"
        await made.run_a_turn(made.free)


async def test_a_begin_that_is_cancelled_before_it_asks_leaves_the_conversation_free(
    tmp_path: Path, watched: Watched, way: str
) -> None:
    path, turn = tmp_path / "store.db", new_id()
    async with scene(path, watched) as (made, _):
        call = Call(lambda: made.store.begin(made.free, turn), way, at_once=True)
        await call.run()
        assert call.was_cancelled
        assert (await made.store.read(made.free)).status == "idle", "nobody has the turn, and yet the lock is taken"
        await made.run_a_turn(made.free)


async def test_a_resume_that_is_cancelled_while_it_is_written_can_be_made_again(
    tmp_path: Path, watched: Watched, way: str
) -> None:
    path = tmp_path / "store.db"
    async with scene(path, watched) as (made, held):
        await made.store.wait(made.held, [says("May I?")])
        call = Call(lambda: made.store.resume(made.turn), way)
        async with anyio.create_task_group() as tasks:
            with held.before("COMMIT") as stop:
                await start_in_the_writers_thread(tasks, path, call.run)
                await stop.reached()
                call.cancel()
                await rounds()
        assert call.was_cancelled
        resumed = await made.store.resume(made.turn)
        await made.store.commit(resumed, exchange("Yes."))
        assert await made.is_turn(made.turn, "committed")


async def test_a_store_that_is_closed_during_a_cancellation_lets_go_of_its_turns(tmp_path: Path, way: str) -> None:
    path, conversation, turn = tmp_path / "store.db", new_id(), new_id()
    store = await SqliteStore.open(path)
    await store.create(NewConversation(id=conversation))
    await begin(store, conversation, turn)
    call = Call(store.close, way, at_once=True)
    await call.run()
    async with await SqliteStore.open(path) as other:
        status = (await other.read(conversation)).status
        assert status == "interrupted", f"the store was closed, and yet the conversation is {status}"
        await other.discard(turn)
    writers = [thread.name for thread in threading.enumerate() if str(path) in thread.name]
    assert not writers, f"the store was closed, and yet its threads go on: {writers}"
