"""Faults at every statement: a call is done, or it is not and can be made again, and nothing is ever there in part.

`Disk` stands between the store and SQLite and lets a chosen statement fail as SQLite would report it. A `Story` is
everything that a store can be asked to write, one call after the other; each call is tried with the fault at its
first statement, then at its second, and so on until it goes through without meeting one.
"""

import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeAlias

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.errors import ForkpointError, NotFound, OutcomeUnknown, StoreUnavailable
from forkpoint.events import NewEvent, Usage
from forkpoint.history.budgets import Amount, Budget, BudgetScope
from forkpoint.ids import new_id
from forkpoint.store.erasure import Erasing
from forkpoint.store.sqlite import SqliteSettings, SqliteStore
from forkpoint.store.sqlite.connection import Connect, Database
from forkpoint.store.sqlite.files import lock_path
from forkpoint.store.tables.seals import rows
from forkpoint.store.values import (
    Announcement,
    Collected,
    IdempotencyKey,
    Lineage,
    NewConversation,
    NewFork,
    Onto,
    OpenTurn,
    Outcome,
    TurnError,
)
from forkpoint.system.file_lock import FileLock
from forkpoint.testing.samples import answers, calls, exchange, remembers, returns, says

PATIENCE = 60.0  # seconds for one scenario; a writer that died would let its callers wait for good
Watched: TypeAlias = Callable[[Callable[[Database, str, Callable[[], sqlite3.Cursor]], sqlite3.Cursor]], Connect]
Rows: TypeAlias = dict[str, set[tuple[object, ...]]]
More: TypeAlias = Literal["again", "anew", "next", "next, anew"]
Answer: TypeAlias = Literal["done", "refused", "unknown"]


class Fault(Struct, frozen=True):
    """How a statement fails, and what it has done by then."""

    name: str
    code: int
    effect: Literal["none", "rolled back", "done"] = "none"
    only: str = ""  # strikes such statements only
    lasting: bool = False  # nothing works from then on, until the disk is mended

    def __str__(self) -> str:
        return self.name

    def error(self) -> sqlite3.OperationalError:
        error = sqlite3.OperationalError(self.name)
        error.sqlite_errorcode = self.code
        return error


BROKEN = Fault("disk I/O error", sqlite3.SQLITE_IOERR_WRITE)
BROKEN_AND_GONE = Fault("disk I/O error that rolls back", sqlite3.SQLITE_IOERR_WRITE, effect="rolled back")
FULL = Fault("database or disk is full", sqlite3.SQLITE_FULL)
FULL_AND_GONE = Fault("full disk that rolls back", sqlite3.SQLITE_FULL, effect="rolled back")
BUSY = Fault("database is locked", sqlite3.SQLITE_BUSY, only="BEGIN")
NOT_IN_THE_LOG = Fault("failed fsync", sqlite3.SQLITE_IOERR_FSYNC, effect="rolled back", only="COMMIT")
IN_THE_LOG = Fault("failed fsync of a commit that landed", sqlite3.SQLITE_IOERR_FSYNC, effect="done", only="COMMIT")


def lasting(fault: Fault) -> Fault:
    return replace(fault, name=f"{fault.name}, lasting", lasting=True)


ONCE = [BROKEN, BROKEN_AND_GONE, FULL, FULL_AND_GONE, BUSY, IN_THE_LOG]
LASTING = [lasting(BROKEN), lasting(BROKEN_AND_GONE), lasting(FULL), lasting(IN_THE_LOG)]


NO_RETENTION = SqliteSettings(keep_tries=0)  # so that a collection has failed tries to expire

Faults: TypeAlias = tuple[tuple[Fault, int], ...]


class Disk:
    """What a store's connections meet. Opening a connection counts as a statement: it can fail like one."""

    def __init__(self, watched: Watched) -> None:
        self._open = watched(self._execute)
        self._faults: list[tuple[Fault, int]] = []
        self._passed = 0
        self._broken: Fault | None = None
        self.struck: list[str] = []  # statements that failed
        self._executed: list[str] = []
        self._reached = threading.Event()
        self._release: threading.Event | None = None

    def connect(self, path: str) -> Database:
        if fault := self._strikes("a new connection"):
            raise fault.error()
        return self._open(path)

    def arm(self, *faults: tuple[Fault, int]) -> None:
        """Each fault strikes at the n-th statement after the one before it struck."""
        self._faults = list(faults)
        self._passed = 0
        self.struck = []
        self._executed = []

    def mend(self) -> bool:
        """Nothing fails any more. Returns whether all faults had struck."""
        all_struck = not self._faults
        self._faults, self._broken = [], None
        return all_struck

    @property
    def transactions(self) -> int:
        """How many were begun since it was armed."""
        return sum(sql.startswith("BEGIN") for sql in self._executed)

    @contextmanager
    def holding_back(self) -> Iterator[threading.Event]:
        """The next transaction waits until the block is left. Gives what is set when it does."""
        self._release = threading.Event()
        self._reached.clear()
        try:
            yield self._reached
        finally:
            self._release.set()

    def _execute(self, db: Database, sql: str, execute: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
        if self._release is not None and not self._reached.is_set() and sql.startswith("BEGIN"):
            self._reached.set()
            self._release.wait(PATIENCE)
        self._executed.append(sql)
        fault = self._strikes(sql)
        if fault is None:
            return execute()
        if fault.effect == "done":
            execute()
        elif fault.effect == "rolled back" and db.in_transaction:
            sqlite3.Cursor(db).execute("ROLLBACK")
        raise fault.error()

    def _strikes(self, sql: str) -> Fault | None:
        if self._broken is not None:
            return self._broken
        if not self._faults:
            return None
        fault, nth = self._faults[0]
        if not sql.startswith(fault.only):
            return None
        self._passed += 1
        if self._passed < nth:
            return None
        self._faults.pop(0)
        self._passed = 0
        self.struck.append(" ".join(sql.split()))
        if fault.lasting:
            self._broken = replace(fault, effect="none")
        return fault


class Step(Struct, frozen=True):
    """One call of a story, and how to find out whether it had its effect."""

    name: str
    call: Callable[[], Awaitable[object]]
    there: Callable[[], Awaitable[bool]]
    recover: Callable[[], Awaitable[None]] | None = None  # before it is called again
    turn: str | Callable[[], str] | None = None
    exact: bool = True  # refused means that not one row is another
    in_parts: bool = False  # it is a series of transactions, each of which may be done when a later one is refused


class Story:
    """All that can be written to a store, in an order in which each call has something to do."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.held: dict[str, OpenTurn] = {}
        self.root, self.fork, self.aside, self.draft, self.left = (new_id() for _ in range(5))
        self.kept_aside, self.ahead = new_id(), new_id()
        self.elsewhere = new_id()  # a turn that stands elsewhere than at the head; another one, if it is sent again

    def steps(self) -> Iterator[Step]:
        store, root, fork = self.store, self.root, self.fork
        yield self.create(root)
        with_tools, on_fork, parked, dropped, cancelled, superseded, first, retry, ahead = (new_id() for _ in range(9))
        yield self.begin(with_tools, root, key=IdempotencyKey("key of a turn", b"digest"))
        yield self.journal(with_tools, says("Look."), calls("call", response=1))
        yield self.spawn(with_tools, root)
        yield self.spend(with_tools, Usage(calls=1, output=7))
        yield self.charge(root)
        yield self.set_budget(root, Budget(tokens=10**6, seconds=10**6), "family")
        yield self.reserve(with_tools)
        yield self.journal(with_tools, returns("call"), remembers("seen", "true"))
        yield self.commit(with_tools, answers("Seen.", response=2))
        yield self.fork_of(root, fork, key=IdempotencyKey("key of a fork", b"digest"))
        yield self.fork_with_a_result(root, new_id())
        yield self.note(root)
        yield self.announce(new_id(), fork, root)
        yield self.set_budget(fork, Budget(turns=100), "conversation")
        yield self.begin(on_fork, fork)
        yield self.commit(on_fork, *exchange("And here?"))
        rewind = NewFork(id=self.aside, cache="{}")
        yield Step("rewind", lambda: store.rewind(root, rewind, at=with_tools), lambda: self.exists(self.aside))
        yield self.begin(parked, root)
        yield self.wait(parked, says("May I?"), calls("risky", response=1))
        yield self.resume(parked)
        error = TurnError("denied", "It was not allowed.")
        yield self.end(parked, "failed", lambda held: store.fail(held, error))
        yield self.begin(cancelled, root)
        yield Step("ask to cancel", lambda: store.ask_cancel(cancelled), self.to_stop(cancelled), turn=cancelled)
        yield self.end(cancelled, "cancelled", store.cancel)
        yield self.begin(dropped, root)
        yield self.wait(dropped, says("May I now?"))
        yield Step("discard", lambda: store.discard(dropped), self.ended(dropped, "cancelled"), turn=dropped)
        yield self.begin(superseded, root)
        yield self.wait(superseded, says("And now?"))
        yield self.begin(retry, root, supersede=True, retry_of=parked)
        yield self.commit(retry, *exchange("Once more."))
        yield self.begin(first, self.draft, create=NewConversation(id=self.draft))
        yield self.commit(first, *exchange("Hello."))
        onto = Onto(root, self.held[retry].base.position)
        yield self.begin_elsewhere(root, onto)
        yield self.commit_elsewhere(root, onto, *exchange("Instead."))
        keep = NewFork(id=self.kept_aside, cache="{}")
        settings = '{"kept":true}'
        yield Step("keep", lambda: store.keep(root, fork, keep, settings=settings), lambda: self.exists(keep.id))
        yield self.fork_of(root, self.ahead)
        yield self.begin(ahead, self.ahead)
        yield self.commit(ahead, *exchange("Further."))
        new = NewFork(id=new_id(), cache="{}")
        yield Step(
            "keep without a branch", lambda: store.keep(root, self.ahead, new), self.at_head_of(root, self.ahead)
        )
        yield Step("rename", lambda: store.rename(root, "renamed"), self.named(root, "renamed"))
        yield self.charge(None)
        yield Step("describe", lambda: store.describe(root, title="A title"), self.titled(root, "A title"))
        allow = partial(store.change_approvals, root, '["x"]', if_approvals="[]")
        yield Step("change approvals", allow, self.allowed(root, '["x"]'))
        yield Step("anchor", store.anchor, self.all_sealed)
        yield self.charge(self.aside)
        held, erased = new_id(), new_id()
        yield Step("hold", lambda: store.hold(root, held, "a case"), self.holds(held))
        yield Step("release", lambda: store.release(root, held), self.holds(held, stands=False))
        chosen = Erasing(conversations=(self.draft,), turn=first)
        erase = partial(store.erase, erased, chosen, reason="a request", more_follow=True)
        yield Step("erase", erase, self.erased(erased))
        yield Step("delete", lambda: store.delete(self.aside), self.gone(self.aside))
        yield Step("collect", store.collect, self.nothing_to_collect, in_parts=True)
        yield Step("anchor of the store", partial(store.anchor, all_tenants=True), self.all_anchored, in_parts=True)

    # The calls.

    def set_budget(self, conversation: str, budget: Budget, scope: BudgetScope) -> Step:
        async def there() -> bool:
            return any(one.limits == budget for one in await self.store.budgets(conversation))

        return Step("set budget", lambda: self.store.set_budget(conversation, budget, scope=scope), there)

    def reserve(self, turn: str) -> Step:
        most = Amount(100, 100)

        async def there() -> bool:
            return all(one.reserved.tokens == 100 for one in await self.store.budgets(self.root))

        return Step("reserve", lambda: self.store.reserve(self.held[turn], most, most), there)

    def create(self, id: str) -> Step:
        return Step(
            "create",
            lambda: self.store.create(NewConversation(id=id), [remembers("made", "true")]),
            lambda: self.exists(id),
        )

    def begin(self, turn: str, conversation: str, **options: Any) -> Step:
        async def call() -> None:
            held = await self.store.begin(conversation, turn, **options)
            assert isinstance(held, OpenTurn), f"begin was not done, and yet its repetition finds it done: {held}"
            self.held[turn] = held

        async def there() -> bool:
            return turn in self.held and await self.outcome(turn) == "running"

        async def recover() -> None:
            if await self.outcome(turn) is not None:
                self.held[turn] = await self.store.resume(turn)

        return Step("begin", call, there, recover, turn)

    def journal(self, turn: str, *events: NewEvent) -> Step:
        before = len(events)
        wanted = before + (self.held[turn].staged if turn in self.held else 0)

        async def call() -> None:
            self.held[turn] = await self.store.journal(self.held[turn], events)

        async def there() -> bool:
            return len(await self.store.steps(turn)) == wanted

        async def recover() -> None:
            """It may be there although nobody has its handle: the journal says how far the turn has come."""
            if await self.outcome(turn) == "running":
                await self.store.fail(self.held[turn], TurnError("unknown", "Whether it was stored is not known."))
            await self.regain(turn)

        return Step("journal", call, there, recover, turn)

    def spend(self, turn: str, usage: Usage) -> Step:
        async def call() -> None:
            self.held[turn] = await self.store.journal(self.held[turn], (), usage=usage)

        async def there() -> bool:
            return (await self.store.turn(turn)).usage == usage

        return Step("journal of usage alone", call, there, lambda: self.regain(turn), turn)

    def commit(self, turn: str, *events: NewEvent) -> Step:
        return Step(
            "commit",
            lambda: self.store.commit(self.held[turn], events),
            self.ended(turn, "committed"),
            lambda: self.regain(turn),
            turn,
            exact=False,  # if its COMMIT failed, the turn is written down as failed
        )

    def begin_elsewhere(self, conversation: str, onto: Onto) -> Step:
        async def call() -> None:
            held = await self.store.begin(conversation, self.elsewhere, onto=onto)
            assert isinstance(held, OpenTurn)
            assert held.branch is not None, "it stands at the head, so this proves nothing"
            self.held[self.elsewhere] = held

        async def there() -> bool:
            return self.elsewhere in self.held and await self.outcome(self.elsewhere) == "running"

        async def recover() -> None:
            if await self.outcome(self.elsewhere) is not None:
                self.elsewhere = new_id()

        return Step("begin elsewhere", call, there, recover, lambda: self.elsewhere)

    def commit_elsewhere(self, conversation: str, onto: Onto, *events: NewEvent) -> Step:
        begin = self.begin_elsewhere(conversation, onto)
        aside = NewFork(id=self.left, cache="{}")

        async def there() -> bool:
            committed = await self.outcome(self.elsewhere) == "committed"
            assert committed == await self.exists(self.left), "the commit and what it sets aside are not one"
            head = (await self.store.read(conversation)).head
            assert committed == (head.turn == self.elsewhere), "the commit and its head are not one"
            return committed

        async def recover() -> None:
            if await self.outcome(self.elsewhere) == "failed":
                self.elsewhere = new_id()
                await begin.call()

        return Step(
            "commit elsewhere",
            lambda: self.store.commit(self.held[self.elsewhere], events, aside=aside),
            there,
            recover,
            lambda: self.elsewhere,
            exact=False,
        )

    def spawn(self, turn: str, parent: str) -> Step:
        """As a turn would that is resumed each time: it knows its call, and no id of a sub-agent."""
        events = [says("Look."), calls("call", response=1), returns("call"), remembers("spawned", "true")]

        def call() -> Awaitable[object]:
            lineage = Lineage("sub_agent", parent, None, turn, "call")
            onto = Onto(parent, self.held[turn].base.position)
            return self.store.create(NewConversation(id=new_id(), family=parent, lineage=lineage, onto=onto), events)

        async def there() -> bool:
            children = (await self.store.conversations(parent=parent)).items
            assert len(children) <= 1, "a call has spawned twice"
            for child in children:
                inherited = self.held[turn].base.ordinal
                assert child.head.ordinal == inherited + len(events), "the sub-agent is there without its first note"
            return bool(children)

        return Step("spawn", call, there)

    def announce(self, child: str, parent: str, family: str) -> Step:
        """A sub-agent that nobody's call has spawned: its parent has a note of it."""
        new = NewConversation(id=child, family=family, lineage=Lineage("sub_agent", parent))
        told = Announcement(conversation=parent, events=(remembers("announced", "true"),))

        async def there() -> bool:
            is_made = await self.exists(child)
            is_noted = child in [turn.id for turn in (await self.store.turns(parent)).items]
            assert is_made == is_noted, "a sub-agent and the note of it are not one"
            return is_made

        return Step("announce", lambda: self.store.create(new, announced=told), there)

    def wait(self, turn: str, *events: NewEvent) -> Step:
        return Step(
            "wait",
            lambda: self.store.wait(self.held[turn], events),
            self.ended(turn, "awaiting_approval"),
            lambda: self.regain(turn),
            turn,
        )

    def resume(self, turn: str) -> Step:
        async def call() -> None:
            self.held[turn] = await self.store.resume(turn)

        return Step("resume", call, self.ended(turn, "running"), call, turn)

    def end(self, turn: str, outcome: Outcome, verb: Callable[[OpenTurn], Awaitable[object]]) -> Step:
        return Step(
            f"end as {outcome}",
            lambda: verb(self.held[turn]),
            self.ended(turn, outcome),
            lambda: self.regain(turn),
            turn,
        )

    def note(self, conversation: str) -> Step:
        note = new_id()
        return Step(
            "note", lambda: self.store.note(conversation, note, [remembers("note", "1")]), self.ended(note, "committed")
        )

    def charge(self, conversation: str | None) -> Step:
        charge, usage = new_id(), Usage(written=5)

        async def there() -> bool:
            charged = (await self.store.spent(conversation)).written  # nothing else in a story writes to a cache
            assert charged in (0, usage.written), "the charge was counted twice"
            return charged == usage.written

        return Step("charge", lambda: self.store.charge(conversation, charge, usage), there)

    def fork_of(self, conversation: str, id: str, key: IdempotencyKey | None = None) -> Step:
        new = NewFork(id=id, cache="{}")
        return Step("fork", lambda: self.store.fork(conversation, new, key=key), lambda: self.exists(id))

    def fork_with_a_result(self, conversation: str, id: str) -> Step:
        """A fork that ends after a call, and a note that answers it."""
        new = NewFork(id=id, cache="{}")

        async def call() -> None:
            events = await self.store.events(conversation, kinds=("tool_call",))
            key = IdempotencyKey("key of another fork", b"digest")
            await self.store.fork(conversation, new, at=events[0].id, events=[returns("call", "other")], key=key)

        async def there() -> bool:
            if not await self.exists(id):
                return False
            assert [event.kind for event in await self.store.events(id)][-2:] == ["tool_call", "tool_result"]
            return True

        return Step("fork with a result", call, there)

    # What became of them.

    async def regain(self, turn: str) -> None:
        """A turn that was settled as failed can be resumed, as far as its journal goes."""
        if await self.outcome(turn) == "failed":
            self.held[turn] = await self.store.resume(turn)

    async def exists(self, id: str) -> bool:
        try:
            await self.store.read(id)
        except NotFound:
            return False
        return True

    async def outcome(self, turn: str) -> Outcome | None:
        try:
            return (await self.store.turn(turn)).outcome
        except NotFound:
            return None

    def ended(self, turn: str, outcome: Outcome) -> Callable[[], Awaitable[bool]]:
        async def there() -> bool:
            return await self.outcome(turn) == outcome

        return there

    def gone(self, conversation: str) -> Callable[[], Awaitable[bool]]:
        async def there() -> bool:
            return not await self.exists(conversation)

        return there

    def titled(self, conversation: str, title: str) -> Callable[[], Awaitable[bool]]:
        async def there() -> bool:
            return (await self.store.read(conversation)).title == title

        return there

    def to_stop(self, turn: str) -> Callable[[], Awaitable[bool]]:
        async def there() -> bool:
            return await self.store.stops([self.held[turn]]) == {turn: "cancel"}

        return there

    def allowed(self, conversation: str, approvals: str) -> Callable[[], Awaitable[bool]]:
        async def there() -> bool:
            return await self.store.approvals(conversation) == approvals

        return there

    def holds(self, id: str, *, stands: bool = True) -> Callable[[], Awaitable[bool]]:
        async def there() -> bool:
            return any(one.id == id for one in await self.store.holds()) == stands

        return there

    def erased(self, id: str) -> Callable[[], Awaitable[bool]]:
        async def there() -> bool:
            return any(one.id == id for one in (await self.store.erasures()).items)

        return there

    def named(self, conversation: str, name: str) -> Callable[[], Awaitable[bool]]:
        async def there() -> bool:
            return (await self.store.read(conversation)).name == name

        return there

    def at_head_of(self, conversation: str, branch: str) -> Callable[[], Awaitable[bool]]:
        async def there() -> bool:
            return (await self.store.read(conversation)).head == (await self.store.read(branch)).head

        return there

    async def all_sealed(self) -> bool:
        return await self.store._view.read(partial(rows.next_seals, upto=1 << 62)) is None

    async def all_anchored(self) -> bool:
        return await self.all_sealed() and await self.store._view.read(rows.next_store_seal) is None

    async def nothing_to_collect(self) -> bool:
        return await self.store.collect(dry_run=True) == Collected()


async def attempt(step: Step) -> Answer:
    """Makes the call. Lets nothing pass but the errors that a caller is promised."""
    try:
        await step.call()
    except OutcomeUnknown:
        return "unknown"
    except ForkpointError:
        return "refused"
    return "done"


async def settle(story: Story, step: Step) -> Answer:
    """Once the disk answers, what was unknown can be found out."""
    if step.turn is not None:
        try:
            await story.store.settle(step.turn() if callable(step.turn) else step.turn)
        except NotFound:
            assert step.name.startswith("begin"), (
                f"settle does not know the turn after a {step.name} of unknown outcome"
            )
    return "done" if await step.there() else "refused"


def stored(path: Path) -> Rows:
    """Every row of the file, as another program would read it; not what says who is alive."""
    with closing(sqlite3.connect(path)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: set(db.execute(f"SELECT * FROM {name}"))
            for name in tables
            if name not in ("holder", "meta") and not name.startswith("sqlite_")
        }


class Trial:
    """A story told under faults. What is wrong is collected, and the story goes on with a fresh store."""

    def __init__(
        self, folder: Path, watched: Watched, faults_at: Callable[[int], Faults], *, only: Sequence[str] = ()
    ) -> None:
        self._folder = folder
        self._watched = watched
        self._faults_at = faults_at  # placed by a number that grows until not all of them strike
        self._only = only  # the names of the calls to try, once each; all calls if there are none
        self._files = count(1)
        self._tried: set[str] = set()
        self.problems: list[str] = []

    async def run(self) -> None:
        place, nth = 0, 1
        while True:
            path = self._folder / f"{next(self._files)}.db"
            disk = Disk(self._watched)
            try:
                async with await SqliteStore.open(path, connect=disk.connect, settings=NO_RETENTION) as store:
                    where = await self._tell(Story(store), disk, path, place, nth)
                    await store.collect()  # as closing would do
                    before_closing = stored(path)
                async with await SqliteStore.open(path) as opened_again:
                    found = await opened_again.verify()
                assert found.ok, f"verify finds flaws in a store opened anew: {found.flaws}"
                assert stored(path) == before_closing, "the store holds something else once it was opened anew"
            except Exception as error:
                self.problems.append(f"after call {place}, fault {nth}, the store is of no use: {error!r}")
                where = place + 1, 1
            if where is None:
                return
            place, nth = where

    async def _tell(self, story: Story, disk: Disk, path: Path, start: int, nth: int) -> tuple[int, int] | None:
        """Goes through the story from a call on. Returns where to start anew, or None at its end."""
        for place, step in enumerate(story.steps()):
            if place < start or (self._only and (step.name not in self._only or step.name in self._tried)):
                await step.call()
                continue
            while True:
                more = await self._try(story, step, disk, path, nth)
                nth += 1
                if more == "anew":
                    return place, nth
                if more == "next, anew":
                    return place + 1, 1
                if more == "next":
                    nth = 1
                    break
            self._tried.add(step.name)
        return None

    async def _try(self, story: Story, step: Step, disk: Disk, path: Path, nth: int) -> More:
        """Makes one call under faults. Returns whether it is to be made again, in a fresh store, or not any more."""
        before = stored(path)
        disk.arm(*self._faults_at(nth))
        all_struck = False
        try:
            try:
                answer = await attempt(step)
            finally:
                all_struck = disk.mend()
            await self._judge(story, step, answer, before, path)
            there = await step.there()
            if not all_struck and not there:
                await step.call()
        except Exception as error:
            self.problems.append(f"{step.name}, fault {nth} at {disk.struck}: {type(error).__name__}: {error}")
            return "anew" if all_struck else "next, anew"
        if all_struck:
            return "anew" if there else "again"
        return "next"

    async def _judge(self, story: Story, step: Step, answer: Answer, before: Rows, path: Path) -> None:
        after = stored(path) if answer == "refused" and step.exact else None
        if after != before:  # else they were verified after the call that wrote them
            found = await story.store.verify()
            assert found.ok, f"verify finds flaws: {found.flaws}"
        if answer == "unknown":
            answer = await settle(story, step)
            if answer == "refused" and step.recover is not None:
                await step.recover()
        elif answer == "refused" and not step.in_parts:
            assert not await step.there(), "the call said that nothing was changed, and yet its effect is there"
            if after is not None:
                changed = {table for table in after if after[table] != before[table]}
                assert not changed, f"the call said that nothing was changed, and yet rows are others in {changed}"
            elif step.recover is not None:
                await step.recover()
        if answer == "done":
            assert await step.there(), "the call said that it was done, and yet its effect is not there"


def finish(scenario: Callable[[], Awaitable[None]]) -> None:
    """Runs a scenario to its end in a thread of its own, so that one that hangs is a failure and not a hang."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            anyio.run(scenario)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "a caller waits for good: the writer's thread has died or waits for it"
    if raised:
        raise raised[0]


def assert_none(problems: list[str]) -> None:
    assert not problems, f"{len(problems)} faults were not handled:\n" + "\n".join(problems)


@pytest.mark.parametrize("fault", [*ONCE, *LASTING], ids=str)
def test_a_fault_at_any_statement_leaves_a_call_done_or_undone_and_repeatable(
    tmp_path: Path, watched: Watched, fault: Fault
) -> None:
    trial = Trial(tmp_path, watched, lambda nth: ((fault, nth),))
    finish(trial.run)
    assert_none(trial.problems)


@pytest.mark.parametrize("first", [NOT_IN_THE_LOG, IN_THE_LOG], ids=str)
@pytest.mark.parametrize("second", [BROKEN, lasting(BROKEN)], ids=str)
def test_a_second_fault_while_the_store_finds_out_about_the_first_is_never_taken_for_an_answer(
    tmp_path: Path, watched: Watched, first: Fault, second: Fault
) -> None:
    names = (
        "begin",
        "journal",
        "commit",
        "commit elsewhere",
        "spawn",
        "announce",
        "fork",
        "rewind",
        "keep",
        "keep without a branch",
        "resume",
        "end as failed",
        "describe",
        "charge",
        "anchor",
    )
    trial = Trial(tmp_path, watched, lambda nth: ((first, 1), (second, nth)), only=names)
    finish(trial.run)
    assert_none(trial.problems)


@pytest.mark.parametrize("fault", [BROKEN, BROKEN_AND_GONE, FULL, IN_THE_LOG, lasting(BROKEN)], ids=str)
def test_a_fault_at_any_statement_of_a_group_commit_fails_calls_one_by_one(
    tmp_path: Path, watched: Watched, fault: Fault
) -> None:
    path = tmp_path / "store.db"
    disk = Disk(watched)
    problems: list[str] = []

    async def scenario() -> None:
        async with await SqliteStore.open(path, connect=disk.connect) as store:
            for nth in count(1):
                story = Story(store)
                steps = await members(story)
                answers = await in_one_group(story, steps, disk, path, (fault, nth))
                all_struck = disk.mend()
                for step, answer in zip(steps, answers, strict=True):
                    try:
                        await judge_member(story, step, answer)
                    except Exception as error:
                        problems.append(f"{step.name}, fault {nth} at {disk.struck}: {type(error).__name__}: {error}")
                found = await store.verify()
                assert found.ok, f"after a fault at {disk.struck}, verify finds flaws: {found.flaws}"
                if not all_struck:
                    assert set(answers) == {"done"}, "calls were refused without a fault"
                    assert disk.transactions == 2, "the calls did not share a transaction, so this proved nothing"
                    return

    finish(scenario)
    assert_none(problems)


def test_a_call_of_a_group_that_is_refused_half_way_leaves_no_trace_and_the_others_alone(
    tmp_path: Path, watched: Watched
) -> None:
    path = tmp_path / "store.db"
    disk = Disk(watched)
    key = IdempotencyKey("key of a fork", b"digest")

    async def scenario() -> None:
        async with await SqliteStore.open(path, connect=disk.connect) as store:
            story = Story(store)
            steps = await members(story)
            refused = story.fork_of(story.root, story.root, key=key)  # takes its key, and then finds the name taken
            await story.create(story.root).call()
            answers = await in_one_group(story, [*steps[:2], refused, *steps[2:]], disk, path)
            assert answers == ["done", "done", "refused", "done", "done", "done", "done"]
            for step in steps:
                assert await step.there(), f"the {step.name} was done, and yet its effect is not there"
            again = story.fork_of(story.root, story.fork, key=key)
            await again.call()
            assert await again.there(), "the refused fork has kept its key"
            found = await store.verify()
            assert found.ok, found.flaws

    finish(scenario)


async def members(story: Story) -> list[Step]:
    """Calls on conversations of their own, so that nothing but a shared transaction connects them."""
    conversations = [new_id() for _ in range(6)]
    for conversation in conversations:
        await story.create(conversation).call()
    with_tools, journalling, beginning = new_id(), new_id(), new_id()
    await story.begin(with_tools, conversations[0]).call()
    await story.journal(with_tools, says("Look."), calls("call")).call()
    await story.begin(journalling, conversations[1]).call()
    return [
        story.commit(with_tools, returns("call"), answers("Seen.")),
        story.journal(journalling, says("Look here."), calls("another")),
        story.note(conversations[2]),
        story.fork_of(conversations[3], new_id()),
        story.begin(beginning, conversations[4]),
        story.charge(conversations[5]),
    ]


async def in_one_group(
    story: Story, steps: list[Step], disk: Disk, path: Path, *faults: tuple[Fault, int]
) -> list[Answer]:
    """Makes the calls while the writer is busy with another one, so that they queue and then go together."""
    given: dict[int, Answer] = {}

    async def call(place: int) -> None:
        given[place] = await attempt(steps[place])

    lock = FileLock(lock_path(path))
    lock.acquire()  # so that nothing can be run in place, and the writer is not held back at a checkpoint of its own
    async with anyio.create_task_group() as tasks:
        with disk.holding_back() as reached:
            tasks.start_soon(attempt, story.create(new_id()))
            await all_have_asked()
            lock.close()
            await anyio.to_thread.run_sync(reached.wait)
            for place in range(len(steps)):
                tasks.start_soon(call, place)
            await all_have_asked()
            disk.arm(*faults)
    return [given[place] for place in range(len(steps))]


async def all_have_asked() -> None:
    """Lets other tasks run until their calls wait for the writer: that takes a few rounds of the loop, not a time."""
    for _ in range(20):
        await checkpoint()


async def judge_member(story: Story, step: Step, answer: Answer) -> None:
    unknown = answer == "unknown"
    if unknown:
        answer = await settle(story, step)
    there = await step.there()
    assert there or answer == "refused", "the call said that it was done, and yet its effect is not there"
    assert not there or answer == "done", "the call said that nothing was changed, and yet its effect is there"
    if answer == "refused":
        if step.recover is not None and (unknown or not step.exact):
            await step.recover()
        if not await step.there():
            await step.call()
        assert await step.there(), "the call was refused, and cannot be made again"


def test_a_store_on_a_broken_disk_can_be_closed_and_lets_go_of_its_turns(tmp_path: Path, watched: Watched) -> None:
    path = tmp_path / "store.db"
    disk = Disk(watched)

    async def scenario() -> None:
        store = await SqliteStore.open(path, connect=disk.connect)
        story = Story(store)
        turn = new_id()
        await story.create(story.root).call()
        await story.begin(turn, story.root).call()
        disk.arm((lasting(BROKEN), 1))
        await store.close()
        async with await SqliteStore.open(path) as other:
            assert (await other.turn(turn)).outcome == "interrupted", "the closed store still holds its turn"
            await other.discard(turn)

    finish(scenario)


def test_a_full_disk_refuses_what_does_not_fit_and_takes_it_once_there_is_space(
    tmp_path: Path, watched: Watched
) -> None:
    """No fault is made up here: SQLite itself runs out of the pages that it may use."""
    path = tmp_path / "store.db"
    connections: list[Database] = []
    connect = watched(lambda db, sql, execute: execute())

    def connect_to_a_small_disk(path: str) -> Database:
        db = connect(path)
        db.execute("PRAGMA max_page_count = 100")
        connections.append(db)
        return db

    async def scenario() -> None:
        async with await SqliteStore.open(path, connect=connect_to_a_small_disk) as store:
            story = Story(store)
            turn = new_id()
            commit = story.commit(turn, *exchange("x" * 10_000))
            await story.create(story.root).call()
            await story.begin(turn, story.root).call()
            await story.create(story.fork).call()
            noted = [(await store.read(story.fork)).head.turn]

            async def fill() -> None:
                while True:
                    note = new_id()
                    await store.note(story.fork, note, exchange("y" * 10_000))
                    noted.append(note)

            with pytest.raises(StoreUnavailable, check=StoreUnavailable.disk_full.made):
                await fill()
            with pytest.raises(StoreUnavailable, check=StoreUnavailable.disk_full.made):
                await commit.call()
            assert await story.outcome(turn) == "running", "the turn did not survive the full disk"

            for db in connections:
                db.execute("PRAGMA max_page_count = 10000")
            await commit.call()
            assert await commit.there()
            written = dict.fromkeys(event.turn for event in await store.events(story.fork))
            assert list(written) == noted, "what was reported and what is there are not the same"
            found = await store.verify()
            assert found.ok, found.flaws

    finish(scenario)
