"""A parent's turn with sub-agents that is struck, and what must hold of the whole family afterwards.

The turn forks two sub-agents at once, then has a fresh one that has one of its own, waits for all, gives one of them
more to do, and waits again. It is struck once: by the disk at one statement, by a cancellation at one await. Then the
file is read through a connection of its own, and somebody goes on with the turn, in this process or in another.
`test_team_faults.py` tries a sample; this tries them all, which takes some minutes::

    python -m tests.conversation.faults.family [disk] [cancel]
"""

import asyncio
import os
import shutil
import sys
import tempfile
import threading
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, get_args

import anyio
from msgspec import Struct
from msgspec.structs import replace
from tests.conversation.faults.disk import FLAWS, Disk
from tests.conversation.faults.judge import Broken, check, check_pairing
from tests.conversation.faults.points import Point, Watch
from tests.conversation.support.agents import call, said, scripted
from tests.conversation.support.team import obedient, orders, send, spawn, told, wait

from forkpoint.agent import Agent, SubAgents, tool
from forkpoint.agent.team.tools import NAMES
from forkpoint.backend.callbacks import Callback, Update
from forkpoint.backend.messages import as_message, caller_of
from forkpoint.backend.options import Continuation, Draft, NewTurn
from forkpoint.backend.results import Call
from forkpoint.backend.settings import Settings
from forkpoint.conversation import Turn
from forkpoint.engine.engine import Engine
from forkpoint.engine.resources import EngineOptions
from forkpoint.engine.turns.reader import read_turn
from forkpoint.errors import Busy, ForkpointError, NoSuchTurn, NotFound, OutcomeUnknown, TurnCancelled, TurnFailed
from forkpoint.events import SubAgentFinished, SubAgentSpawned, Usage
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import StoredConversation
from forkpoint.testing import Heard, Reply
from forkpoint.updates import Answered

PATIENCE = 10.0
"""Seconds after which something that was struck hangs."""

PAID = Usage(calls=1, input=100, output=10)

ORDER = orders(
    [
        spawn(orders([call("look", "l1")], say="looked"), "c1", fork="all", nickname="one"),
        spawn("two", "c2", fork="all", nickname="two"),
    ],
    [spawn(orders([spawn("deep", "d1", nickname="deep")], [wait("d2")], say="Did three"), "c3", nickname="three")],
    [wait("c4")],
    [send("one", "more", "c5")],
    [wait("c6", agents=["one", "two", "three"])],
)
ANSWERS = {"one": "Did more", "two": "Did two", "three": "Did three"}
MAKES = {"c1", "c2", "c3"}
"""The calls that make a sub-agent."""

Kind: TypeAlias = Literal["disk", "cancel"]
Way: TypeAlias = Literal["resume", "retry", "supersede"]
WAYS: tuple[Way, ...] = get_args(Way)
CANCELLED = "task", "task, twice", "scope", "cancel()", "close()"


class Blow(Struct, frozen=True):
    """What happens at which point, how somebody goes on, and whether it is another process."""

    kind: Kind
    how: str
    at: Point
    way: Way = "resume"
    elsewhere: bool = False

    def __str__(self) -> str:
        where = "elsewhere" if self.elsewhere else "here"
        return f"{self.kind} ({self.how}) at {self.at}; then {self.way} {where}"


class Start(Struct, frozen=True):
    """A folder to be copied, with a conversation in it that has one turn."""

    folder: Path
    parent: str

    def copy(self, to: Path) -> Path:
        shutil.copytree(self.folder, to)
        return to / "store.db"


async def make_start(folder: Path) -> Start:
    os.makedirs(folder)
    family = Family(folder / "store.db")
    async with await SqliteStore.open(family.file) as store, family.open(store) as backend:
        draft = Draft(id=new_id(), name=None, settings=Settings.of(family.agent, None))
        turn = await backend.turns.run(
            draft.id, family.agent, NewTurn(given=(as_message("Hello"),), draft=draft), family.told
        )
    return Start(folder, turn.conversation)


class Family:
    """A family in a file, and what its models have reported."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.paid = Usage()
        self.agent = agent_of_all()

    def told(self, update: Update) -> None:
        if isinstance(update, Answered):
            self.paid += update.called.usage

    def beside(self, _: str) -> Callback:
        return self.told

    @asynccontextmanager
    async def open(self, store: SqliteStore) -> AsyncIterator[Engine]:
        backend = Engine(store, options=EngineOptions(beside=self.beside), owns_store=False)
        try:
            yield backend
        finally:
            await backend.close()


def agent_of_all() -> Agent:
    """Who answers in all of the family: does what it is told, and what it costs is known."""

    @tool(repeatable=True)
    async def look() -> str:
        """Looks."""
        await anyio.lowlevel.checkpoint()
        return "seen"

    def model(heard: Heard) -> Reply:
        reply = obedient(heard)
        return Reply(reply.text, calls=reply.calls, usage=PAID)

    return Agent(scripted(model), tools=[look], sub_agents=SubAgents(most=3))


class Struck:
    """A turn of a parent that was struck, and what its caller was told."""

    def __init__(self, start: Start, folder: Path, blow: Blow | None, reference: str | None = None) -> None:
        self.reference = reference
        self.family = Family(start.copy(folder))
        self.parent = start.parent
        self.blow = blow
        self.hit = False
        self.turn: Turn | None = None
        self.error: BaseException | None = None
        self.points: list[Point] = []
        self.closed = False
        self._watch = Watch(self._meets, str(folder))
        self._disk = Disk(self._watch.statement)
        self._scope = anyio.CancelScope()
        self._twice = blow is not None and blow.how == "task, twice"
        self._others: list[asyncio.Task[Any]] = []

    async def judged(self) -> str:
        """Strikes, judges, goes on. Raises `Broken`; says how the turn stood otherwise."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        before = asyncio.all_tasks()
        store = await SqliteStore.open(self.family.file, connect=self._disk.connect)
        try:
            backend = self._backend = Engine(store, options=EngineOptions(beside=self.family.beside), owns_store=False)
            task = self._loop.create_task(self._hit(backend), name="the caller")
            await within("the turn", asyncio.wait([task]))
            await within("what struck it", self._settled())
            if looks := [one for one in asyncio.all_tasks() - before if "Background._run" in repr(one)]:
                await asyncio.wait(looks, timeout=PATIENCE)  # a look for cancels ends its read of the disk first
            left = [one for one in asyncio.all_tasks() - before if not one.done() and one is not task]
            check(not left, f"still at work: {left}")
            stood = await self._look(backend, store)
            if self.blow is not None:
                await within("going on", self._go_on(backend, store))
            await within("closing", backend.close())
        finally:
            await within("closing the store", store.close())
        return stood

    async def _hit(self, backend: Engine) -> None:
        self._watch.start(self._loop)
        run = self._loop.create_task(self._run(backend))
        try:
            await asyncio.wait([run])
        finally:
            self._watch.stop(self._loop)
            self._disk.mend()
            self.points = self._watch.points
        try:
            run.result()
        except BaseException as error:
            self.error = error

    async def _run(self, backend: Engine) -> None:
        with self._scope:
            given = (as_message(ORDER),)
            self.turn = await backend.turns.run(self.parent, self.family.agent, NewTurn(given=given), self.family.told)

    async def _settled(self) -> None:
        for one in self._others:
            with suppress(NoSuchTurn, Busy):
                await one

    def _meets(self, point: Point) -> BaseException | None:
        if self.blow is None:
            return None
        if self.hit:
            if self._twice and point.kind == "await":
                self._twice = False
                self._cancel("task")
            return None
        if not point.same(self.blow.at):
            return None
        self.hit = True
        if self.blow.kind == "disk":
            self._disk.strike(FLAWS[self.blow.how])
        else:
            how = self.blow.how
            self._in_the_loop(lambda: self._cancel(how))
        return None

    def _cancel(self, how: str) -> None:
        match how:
            case "scope":
                self._scope.cancel()
            case "cancel()":
                self._others.append(self._loop.create_task(self._backend.turns.cancel(self.parent)))
            case "close()":
                self.closed = True
                self._others.append(self._loop.create_task(self._backend.close()))
            case _:
                assert self._watch.root is not None
                self._watch.root.cancel()

    def _in_the_loop(self, act: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            act()
            return
        done = threading.Event()

        def run() -> None:
            act()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait(PATIENCE)

    # What must hold.

    async def _look(self, backend: Engine, store: SqliteStore) -> str:
        if isinstance(self.error, OutcomeUnknown):
            with suppress(NotFound):
                await within("settling", backend.turns.settle(self.parent, self.error.id))
        async with await SqliteStore.open(self.family.file) as other:
            return await self._compare(other)

    @property
    def _lasting(self) -> bool:
        return self.blow is not None and "from here on" in self.blow.how

    async def _compare(self, store: SqliteStore) -> str:
        """What another process reads, beside what the caller was told."""
        turn = await self._tried(store)
        stood = "never begun" if turn is None else turn.outcome
        match self.error:
            case None if self.turn is not None:
                check(stood == self.turn.outcome == "committed", f"it returned {self.turn.outcome}, and is {stood}")
                check(self.turn.text == turn.text, "it returned another answer than it has") if turn else None
            case TurnCancelled():
                check(stood == "cancelled", f"it was cancelled, and is {stood}")
            case TurnFailed():
                check(stood == "failed" or (self._lasting and stood == "running"), f"it failed, and is {stood}")
            case None | asyncio.CancelledError():  # which says nothing of the turn
                check(stood in ("cancelled", "never begun", "committed"), f"it was cancelled, and is {stood}")
            case OutcomeUnknown():
                check(stood in ("committed", "failed", "never begun"), f"it is settled, and is {stood}")
            case ForkpointError():
                check(stood == "never begun", f"it was refused ({self.error}), and is {stood}")
            case error:
                raise Broken(f"it raised {error!r}")
        verified = await store.verify()
        check(verified.ok, f"verify finds flaws: {verified.flaws}")
        record = await store.read(self.parent)
        check(record.status != "running" or stood == "running", f"the parent is {record.status}")
        events = await store.events(self.parent)
        spawned = [event.body for event in events if isinstance(event.body, SubAgentSpawned)]
        check(bool(spawned) == (stood == "committed"), f"it is {stood}, and its history has {len(spawned)} spawns")
        for one in (await store.conversations()).items:
            check(self._lasting or one.status == "idle", f"{one.id} is left {one.status}")
        for child in await self._children(store):
            await self._check_whole(store, child)
        if not self._lasting:
            await self._check_usage(store)
        return stood

    async def _tried(self, store: SqliteStore) -> Turn | None:
        """The turn that was struck, as the file has it."""
        found = [one for one in (await store.turns(self.parent)).items if one.kind == "turn"][1:]
        check(len(found) <= 1, f"there are {len(found)} turns")
        return await read_turn(store, found[0].id) if found else None

    async def _children(self, store: SqliteStore) -> list[StoredConversation]:
        children = list((await store.conversations(parent=self.parent)).items)
        made = [(child.lineage.turn, child.lineage.call) for child in children]
        check(len(made) == len(set(made)), f"two sub-agents are of one call: {made}")
        check({call for _, call in made} <= MAKES, f"sub-agents of calls that make none: {made}")
        return children

    async def _check_whole(self, store: SqliteStore, child: StoredConversation) -> None:
        """A sub-agent is all there: a forked one begins with what its parent had before it."""
        events = await store.events(child.id)
        check_pairing(events)
        words = said(events)
        if child.lineage.call in ("c1", "c2"):
            began = [("user", "Hello"), ("assistant", "Did Hello"), ("user", ORDER)]
            check(words[:3] == began, f"a forked sub-agent begins with {words[:3]}")
            check([role for role, _ in words[3:5]] == ["tool", "tool"], "the calls of its parent are not answered")
            words = words[5:]
        record = await store.read(child.id)
        for turn in (await store.turns(child.id)).items:
            if turn.kind == "turn" and turn.conversation == child.id:
                is_over = turn.outcome in ("committed", "failed", "cancelled") or self._lasting
                check(is_over, f"its turn is {turn.outcome}")
                check(caller_of(turn.input) is not None, "its turn does not say whose it is")
        check(record.draft is False, "it is a draft")
        spoken = [text for role, text in words if role == "user"]
        check(len(spoken) == len(set(spoken)), f"it was told the same twice: {words}")

    async def _check_usage(self, store: SqliteStore) -> None:
        family = (await store.read(self.parent)).family
        counted = await store.usage(family)
        paid = self.family.paid + PAID  # for Hello
        check(counted == paid, f"{paid.calls} calls were paid for, and {counted.calls} are counted")

    # Going on.

    async def _go_on(self, backend: Engine, store: SqliteStore) -> None:
        blow = self.blow
        assert blow is not None
        if blow.elsewhere or self.closed:
            await backend.close()
            await store.close()
            async with await SqliteStore.open(self.family.file) as other:
                again = Engine(other, options=EngineOptions(beside=self.family.beside), owns_store=False)
                await self._finish(again, other, blow.way)
                await again.close()
            return
        await self._finish(backend, store, blow.way)

    async def _finish(self, backend: Engine, store: SqliteStore, way: Way) -> None:
        agent, tell = self.family.agent, self.family.told
        await backend.turns.unended.end(self.parent)
        turn = await self._tried(store)
        if turn is not None and turn.outcome == "committed":
            done = turn
        elif turn is None:
            done = await backend.turns.run(self.parent, agent, NewTurn(given=(as_message(ORDER),)), tell)
        elif way == "resume":
            done = await backend.turns.resume(self.parent, turn.id, agent, Continuation(), tell)
            check(done.id == turn.id, "another turn was resumed")
        else:
            done = await backend.turns.run(
                self.parent,
                agent,
                NewTurn(given=(as_message(ORDER),), retry_of=turn.id, supersede=way == "supersede"),
                tell,
            )
        check(done.outcome == "committed", f"it went on, and is {done.outcome}")
        was_told = turn is not None and turn.id == done.id and any(map(_tells_of_a_fault, turn.calls))
        check(done.text == self.reference or was_told, f"the answer is {done.text}")
        await self._check_heard(store, done)
        verified = await store.verify()
        check(verified.ok, f"at the end verify finds flaws: {verified.flaws}")
        for one in (await store.conversations()).items:
            begun = self._lasting and one.status == "interrupted" and was_told  # its beginning landed, unknown to all
            check(one.status == "idle" or begun, f"at the end {one.id} is {one.status}")
        for child in await self._children(store):
            await self._check_whole(store, child)
        members = await backend.team.members(self.parent)
        check({one.nickname for one in members} <= set(ANSWERS), f"there are {members}")
        await self._check_usage(store)

    async def _check_heard(self, store: SqliteStore, done: Turn) -> None:
        """What a turn has heard of its sub-agents is so."""
        for event in done.events:
            match event.body:
                case SubAgentFinished(outcome=heard, turn=str(turn)):
                    is_so = (await store.turn(turn)).outcome
                    check(heard == is_so, f"it was heard that a sub-agent's turn is {heard}, and it is {is_so}")
                case _:
                    pass


def _tells_of_a_fault(one: Call) -> bool:
    """Whether a model was told that something went wrong with a sub-agent: then it is free to go on from that."""
    if one.tool not in NAMES or one.status != "done":
        return one.tool in NAMES and one.status == "failed"
    return any(member["status"] not in ("done", "running") for member in told(one.result or "[]"))


class Verdict(Struct, frozen=True):
    """What came of one blow."""

    blow: Blow
    hit: bool  # False: this time the turn did not come to that point, and went through
    stood: str = ""
    problem: str | None = None

    def __str__(self) -> str:
        return f"{self.blow}: {self.problem or self.stood}"


class Matrix:
    """All blows at all points that the turn passes where nothing goes wrong."""

    def __init__(self, folder: Path, start: Start, points: Sequence[Point], reference: str) -> None:
        self.reference = reference  # what the turn comes to where nothing goes wrong
        self._folder = folder
        self._start = start
        self._points = points
        self._runs = 0

    @classmethod
    async def make(cls, folder: Path) -> Self:
        start = await make_start(folder / "start")
        whole = Struck(start, folder / "reference", None)
        await whole.judged()
        assert whole.turn is not None
        check(dict.fromkeys(ANSWERS, "done") == {one["agent"]: one["status"] for one in told(whole.turn.text)}, "no")
        return cls(folder, start, whole.points, whole.turn.text)

    def blows(self, kind: Kind) -> list[Blow]:
        """All of a kind, in an order of which any beginning is a fair sample. How somebody goes on is part of it."""
        found: list[Blow] = []
        for point in self._points:
            hows: Sequence[str] = ()
            if kind == "disk" and point.kind == "statement":
                hows = [how for how, flaw in FLAWS.items() if point.name == "COMMIT" or not flaw.commits]
            elif kind == "cancel" and point.kind != "file":
                hows = CANCELLED
            found += [Blow(kind, how, point) for how in hows]
        return [self._with_a_way(blow) for blow in sorted(found, key=_number)]

    def _with_a_way(self, blow: Blow) -> Blow:
        number = _number(blow)
        return replace(blow, way=WAYS[number % len(WAYS)], elsewhere=number // len(WAYS) % 2 == 1)

    async def try_one(self, blow: Blow) -> Verdict:
        self._runs += 1
        folder = self._folder / f"run {self._runs}"
        struck = Struck(self._start, folder, blow, self.reference)
        try:
            stood = await struck.judged()
        except Exception as error:
            problem = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
            return Verdict(blow, struck.hit, problem=f"{problem} (the caller heard {type(struck.error).__name__})")
        shutil.rmtree(folder)
        return Verdict(blow, struck.hit, stood)


async def within(what: str, work: Awaitable[Any]) -> Any:
    """What the work comes to. Raises `Broken` if it hangs. The time is the system's own."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait([task], timeout=PATIENCE)
    if not done:
        stack = [str(frame) for frame in task.get_stack()[-3:]]
        task.cancel()
        raise Broken(f"{what} hangs, at {stack}")
    return task.result()


def _number(blow: Blow) -> int:
    """A number that is always the same for a blow, and says nothing about it."""
    return zlib.crc32(f"{blow.kind} {blow.how} {blow.at.name} {blow.at.nth}".encode())


async def main() -> int:
    """Tries all of it, or what the arguments name (``disk``, ``cancel``), and says what was not handled."""
    problems = tries = 0
    with tempfile.TemporaryDirectory() as folder:
        matrix = await Matrix.make(Path(folder))
        for kind in get_args(Kind):
            for blow in matrix.blows(kind) if kind in (sys.argv[1:] or get_args(Kind)) else ():
                verdict = await matrix.try_one(blow)
                tries += 1
                problems += verdict.problem is not None
                if verdict.problem is not None:
                    print(verdict, flush=True)
    print(f"{tries:,} tried, {problems:,} not handled")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(anyio.run(main))
