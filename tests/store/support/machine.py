"""The store against a simple model in memory: whatever is done to it, in whatever order, the two agree.

The model is a list of events for each conversation, and nothing else: no segments, no heads, no sharing. What the
store promises (DESIGN 3) are the invariants, checked after every step.

A subclass of `StoreMachine` says which database it is: how a place for one run is made and removed, how a store is
opened there, and how to look at its tables past the store.
"""

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any, TypeVar, cast

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from msgspec import Struct, field
from msgspec.structs import replace

from forkpoint.engine.exports.archive import import_archive, write_archive
from forkpoint.engine.exports.selection import Selection
from forkpoint.errors import (
    BadArgument,
    BadPosition,
    Busy,
    CannotKeep,
    NoSuchTurn,
    NotFound,
    NotResumable,
    Stale,
    TurnLost,
    TurnOpen,
    TurnSteered,
)
from forkpoint.events import NewEvent, Position, StateChange, Text, Usage, UserMessage, kind_of
from forkpoint.history.anchors import Anchor
from forkpoint.history.budgets import Amount, Budget
from forkpoint.history.exports.check import check
from forkpoint.history.exports.lines import Chain, End, FamilyEnd, Header, Line, RecordLine, decoded, parted
from forkpoint.history.steers import read_steers
from forkpoint.ids import new_id
from forkpoint.store.protocol import Store
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import (
    Collected,
    Committed,
    Lineage,
    NewConversation,
    NewFork,
    Onto,
    OpenTurn,
    StoredTurn,
    TurnError,
)
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.conformance.base import texts
from forkpoint.testing.samples import answers, calls, remembers, returns, says, thinks

T = TypeVar("T")

LONG = 3600.0
ENOUGH = 10**9  # that no budget here refuses anything
SPENT = Usage(calls=1, input=1)
CHARGED = Usage(calls=1, output=1)
RESPONSES = count(1)
NOTHING: Any = multiple()  # what a rule returns that added nothing to its bundle


class Block(Struct, frozen=True):
    """Events that belong together: a path may be cut after a block, never inside."""

    events: tuple[NewEvent, ...]


class Item(Struct, frozen=True):
    """One committed event, as the model sees it."""

    position: Position
    text: str
    safe: bool  # a path may end here
    sets: tuple[str, str] | None  # the state that it sets
    ends: Usage | None  # what its turn cost, on the turn's last event


class Branch(Struct):
    """A conversation, as the model sees it."""

    id: str
    family: str
    path: list[Item] = field(default_factory=list)
    revision: int = 0
    open: "Try | None" = None
    charged: Usage = Usage()
    named: bool = False
    parent: str | None = None  # of a sub-agent


class Try(Struct):
    """A turn that is not committed, as the model sees it."""

    branch: Branch
    handle: OpenTurn
    side: int  # which of the two stores holds it
    base: list[Item]  # the path to where it stands
    held: bool = True
    blocks: list[Block] = field(default_factory=list)
    spent: Usage = Usage()
    outcome: str = "running"
    steered: list[str] = field(default_factory=list)  # the ids of the messages that were sent to it


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    response = next(RESPONSES)  # two blocks of one number would be one response, with no safe place between them
    word = draw(st.text(st.sampled_from("abcdeé\U0001f600"), min_size=1, max_size=6))
    match draw(st.sampled_from(["say", "answer", "tools", "state"])):
        case "say":
            return Block((says(word),))
        case "answer":
            return Block((thinks("hm", response=response), answers(word, response=response)))
        case "tools":
            ids = [f"c{n}" for n in range(draw(st.integers(1, 3)))]
            return Block((*(calls(id, response=response) for id in ids), *(returns(id, word) for id in ids)))
        case _:
            return Block((remembers(draw(st.sampled_from("xy")), f'"{word}"'),))


turns_of_blocks = st.lists(blocks(), min_size=1, max_size=4)
sides = st.sampled_from([0, 1])
indexes = st.integers(0, 7)


class StoreMachine(RuleBasedStateMachine):
    """Two processes, here two stores in one place, and all that they can do to it."""

    places_of_events = "SELECT id FROM event"  # the query for them

    branches = Bundle("branches")
    tries = Bundle("tries")

    @abstractmethod
    def make_place(self) -> None:
        """Makes the place of this run, where nothing is."""

    @abstractmethod
    def remove_place(self) -> None:
        """Removes it. Nothing is open there."""

    @abstractmethod
    async def open_store(self) -> Store:
        """Opens a store there, as another process would, with this clock."""

    @abstractmethod
    async def send_beat(self, store: Store) -> bool:
        """Does what a store does by itself every few seconds; False if it holds no turn."""

    @abstractmethod
    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query finds there, past the store. An id is written as it is in the tables."""

    @initialize()
    def open_both(self) -> None:
        self.make_place()
        self.clock = ManualClock()
        self.portal_context = start_blocking_portal("asyncio")
        self.portal = self.portal_context.__enter__()
        self.stores = [self._open(), self._open()]
        self.live: dict[str, Branch] = {}
        self.spent: dict[str, Usage] = {}
        self.charged = Usage()  # beside any conversation
        self.all_tries: list[Try] = []
        self.heard = [True, True]  # whether each store's heartbeat is recent
        self.anchors: list[Anchor] = []

    def teardown(self) -> None:
        if not hasattr(self, "stores"):
            return
        self.call(copies_are_the_same, self.stores[0])
        for store in self.stores:
            self.portal.call(store.close)
        self.portal_context.__exit__(None, None, None)
        self.remove_place()

    # What can be done.

    @rule(target=branches, side=sides)
    def create(self, side: int) -> Branch:
        id = new_id()
        self.call(self.stores[side].create, NewConversation(id=id))
        self.live[id] = branch = Branch(id, id)
        self.spent[id] = Usage()
        return branch

    @rule(target=tries, branch=branches, side=sides, supersede=st.booleans())
    def begin(self, branch: Branch, side: int, supersede: bool) -> Any:
        def attempt() -> OpenTurn | StoredTurn:
            return self.call(self.stores[side].begin, branch.id, new_id(), supersede=supersede)

        if branch.id not in self.live:
            self.refused(NotFound, attempt)
            return NOTHING
        if branch.open is not None:
            if branch.open.held and self.is_alive(branch.open, side):
                self.refused(Busy, attempt)
                return NOTHING
            if not supersede:
                self.refused(TurnOpen, attempt)
                return NOTHING
            self.ended(branch.open, "cancelled")
        handle = attempt()
        assert isinstance(handle, OpenTurn)
        assert handle.revision == branch.revision
        assert handle.branch is None
        return self.begun(branch, handle, side, branch.path)

    @rule(target=tries, branch=branches, side=sides, supersede=st.booleans(), which=indexes, where=st.integers(0, 40))
    def begin_elsewhere(self, branch: Branch, side: int, supersede: bool, which: int, where: int) -> Any:
        """A turn on any place of any branch of the family."""
        if branch.id not in self.live or (branch.open is not None and self.is_alive(branch.open, side)):
            return NOTHING
        family = [other for other in self.live.values() if other.family == branch.family]
        source = family[which % len(family)]
        base = source.path[: where % (len(source.path) + 1)]
        onto = Onto(source.id, base[-1].position if base else None)
        begin = partial(self.call, self.stores[side].begin, branch.id, new_id(), supersede=supersede, onto=onto)
        if branch.open is not None and not supersede:
            self.refused(TurnOpen, begin)
            return NOTHING
        if base and not base[-1].safe:
            self.refused(BadPosition, begin)  # and what it would have superseded is still open
            return NOTHING
        if branch.open is not None:
            self.ended(branch.open, "cancelled")
        handle = cast("OpenTurn", begin())
        assert handle.branch == (None if place_of(base) == place_of(branch.path) else source.id)
        assert handle.base.position == place_of(base)
        assert dict(handle.state.values) == state_at(base)
        return self.begun(branch, handle, side, base)

    def begun(self, branch: Branch, handle: OpenTurn, side: int, base: list[Item]) -> Try:
        branch.open = Try(branch, handle, side, base)
        self.heard[side] = True
        self.all_tries.append(branch.open)
        return branch.open

    @rule(
        target=branches, branch=branches, side=sides, which=indexes, where=st.integers(0, 40), content=turns_of_blocks
    )
    def run_a_turn_elsewhere(self, branch: Branch, side: int, which: int, where: int, content: list[Block]) -> Any:
        attempt = self.begin_elsewhere(branch, side, supersede=True, which=which, where=where)
        return self.commit(attempt, content) if isinstance(attempt, Try) else NOTHING

    @rule(branch=branches, side=sides, content=turns_of_blocks)
    def run_a_turn(self, branch: Branch, side: int, content: list[Block]) -> None:
        """Begin and commit at once: most of what a store is asked to do."""
        if branch.id in self.live and branch.open is None:
            self.commit(self.begin(branch, side, supersede=False), content)

    @rule(
        target=branches,
        source=branches,
        side=sides,
        where=st.integers(0, 40),
        content=turns_of_blocks,
        draft=st.booleans(),
    )
    def fork_and_run(self, source: Branch, side: int, where: int, content: list[Block], draft: bool) -> Any:
        fork = self.fork(source, side, where, excluded=False, draft=draft)
        if isinstance(fork, Branch):
            assert self.call(self.stores[side].read, fork.id).draft == draft
            self.run_a_turn(fork, side, content)
            assert not self.call(self.stores[side].read, fork.id).draft
        return fork

    @rule(
        target=branches,
        parent=branches,
        side=sides,
        which=indexes,
        where=st.integers(0, 40),
        content=st.lists(blocks(), max_size=3),
        called=st.booleans(),
    )
    def spawn(self, parent: Branch, side: int, which: int, where: int, content: list[Block], called: bool) -> Any:
        """A sub-agent that begins where its parent's turn stands, or at any place of any branch of the family."""
        if parent.id not in self.live:
            return NOTHING
        lineage = Lineage("sub_agent", parent.id)
        if called and parent.open is not None:
            source, base = parent, parent.open.base
            lineage = Lineage("sub_agent", parent.id, None, parent.open.handle.id, new_id())
        else:
            family = [other for other in self.live.values() if other.family == parent.family]
            source = family[which % len(family)]
            base = source.path[: where % (len(source.path) + 1)]
        onto = Onto(source.id, place_of(base))
        new = NewConversation(id=new_id(), family=parent.family, lineage=lineage, onto=onto)
        events = [event for block in content for event in block.events]
        create = partial(self.call, self.stores[side].create, new, events)
        if base and not base[-1].safe:
            self.refused(BadPosition, create)
            return NOTHING
        made = create()
        assert made.spent == Usage()
        assert made.lineage.at == (place_of(base) if source is parent else None)
        self.live[new.id] = child = Branch(new.id, parent.family, base, parent=parent.id)
        if content:
            last = made.head.position
            assert last is not None
            first = Position(last.segment, len(base) + 1)
            child.path = base + items(content, Committed(new.id, "", 1, made.head, first, last), Usage())
            child.revision = 1
        if called and lineage.call:
            again = NewConversation(id=new_id(), family=parent.family, lineage=lineage, onto=onto)
            assert self.call(self.stores[1 - side].create, again, events) == made
        return child

    @rule(target=branches, branch=branches, side=sides, where=st.integers(0, 40), content=turns_of_blocks)
    def rewind_and_run(self, branch: Branch, side: int, where: int, content: list[Block]) -> Any:
        aside = self.rewind(branch, side, where, excluded=False)
        self.run_a_turn(branch, side, content)
        return aside

    @rule(branch=branches, content=turns_of_blocks, block=blocks())
    def take_over(self, branch: Branch, content: list[Block], block: Block) -> None:
        """One store falls silent in the middle of a turn, the other goes on with it."""
        if branch.id in self.live and branch.open is None:
            attempt = cast("Try", self.begin(branch, 0, supersede=False))
            self.journal(attempt, block)
            late = Try(branch, attempt.handle, 0, branch.path, held=False, outcome="lost")
            self.time_goes_by()
            self.resume(attempt, 1)
            self.journal(late, block)
            self.commit(late, content)
            self.commit(attempt, content)

    @rule(branch=branches, side=sides)
    def delete_and_collect(self, branch: Branch, side: int) -> None:
        self.delete(branch, side)
        self.collect(side)

    @rule(attempt=tries, block=blocks())
    def journal(self, attempt: Try, block: Block) -> None:
        if self.lost(attempt, lambda: self.store_of(attempt).journal(attempt.handle, block.events, usage=SPENT)):
            return
        content = [block, *undelivered(attempt.handle)]
        events = [event for one in content for event in one.events]
        attempt.handle = self.call(self.store_of(attempt).journal, attempt.handle, events, usage=SPENT)
        assert [one.id for one in read_steers(attempt.handle.steered)] == attempt.steered, "the journal tells of all"
        attempt.blocks += content
        self.spend(attempt)

    @rule(attempt=tries, side=sides)
    def steer(self, attempt: Try, side: int) -> None:
        said, id = UserMessage((Text("this way"),)), new_id()
        send = partial(self.call, self.stores[side].steer, attempt.branch.id, id, said, turn=attempt.handle.id)
        if attempt.branch.id not in self.live:
            self.refused(NotFound, send)
        elif attempt.outcome not in ("running", "awaiting_approval"):
            self.refused((NoSuchTurn, NotFound), send)  # the row of a committed turn may be collected
        else:
            send()
            attempt.steered.append(id)
            assert send()[1].id == id, "once more has no effect"

    @rule(target=branches, attempt=tries, last=turns_of_blocks)
    def commit(self, attempt: Try, last: list[Block]) -> Any:
        events = [event for block in last for event in block.events]
        aside = NewFork(id=new_id(), cache="{}")
        if self.lost(attempt, lambda: self.store_of(attempt).commit(attempt.handle, events, usage=SPENT, aside=aside)):
            return NOTHING
        if [one.id for one in read_steers(attempt.handle.steered)] != attempt.steered:
            commit = partial(self.store_of(attempt).commit, usage=SPENT, aside=aside)
            self.refused(TurnSteered, partial(self.call, commit, attempt.handle, events))
            attempt.handle = self.call(self.store_of(attempt).refresh, attempt.handle)
        last = [*last, *undelivered(attempt.handle)]
        events = [event for block in last for event in block.events]
        branch, old = attempt.branch, attempt.branch.path
        leaves = bool(old) and place_of(old) not in {item.position for item in attempt.base}
        if leaves:
            self.refused(BadArgument, partial(self.call, self.store_of(attempt).commit, attempt.handle, events))
        changes: Any = {"settings": f'{{"n":{len(events)}}}', "cache": '{"key":"k"}'} if len(events) % 2 else {}
        commit = partial(self.store_of(attempt).commit, usage=SPENT, aside=aside, **changes)
        done = self.call(commit, attempt.handle, events)
        self.spend(attempt)
        branch.path = attempt.base + items([*attempt.blocks, *last], done, attempt.spent)
        branch.revision += 1
        self.ended(attempt, "committed")
        assert done.revision == branch.revision
        assert done.aside == (aside.id if leaves else None)
        if not leaves:
            return NOTHING
        self.live[aside.id] = set_aside = Branch(aside.id, branch.family, old)
        shared = [ours for ours, theirs in zip(old, branch.path, strict=False) if ours.position == theirs.position]
        assert self.call(self.stores[0].read, aside.id).lineage.at == place_of(shared)
        return set_aside

    @rule(attempt=tries, failing=st.booleans())
    def end_without_commit(self, attempt: Try, failing: bool) -> None:
        store = self.store_of(attempt)

        def end() -> Awaitable[StoredTurn]:
            if failing:
                return store.fail(attempt.handle, TurnError("x", "y"), usage=SPENT)
            return store.cancel(attempt.handle, usage=SPENT)

        if self.lost(attempt, end):
            return
        self.call(end)
        self.spend(attempt)
        self.ended(attempt, "failed" if failing else "cancelled")

    @rule(attempt=tries)
    def wait(self, attempt: Try) -> None:
        if self.lost(attempt, lambda: self.store_of(attempt).wait(attempt.handle)):
            return
        self.call(self.store_of(attempt).wait, attempt.handle)
        attempt.held = False
        attempt.outcome = "awaiting_approval"

    @rule(attempt=tries, side=sides)
    def resume(self, attempt: Try, side: int) -> None:
        branch = attempt.branch
        resume = partial(self.call, self.stores[side].resume, attempt.handle.id)
        if branch.id not in self.live:
            # Committed turns stay readable as long as a fork stands on them.
            self.refused((NotFound, NotResumable), resume)
            return
        match attempt.outcome:
            case "committed":
                # Its row goes when nobody reaches its events any more.
                self.refused((NotResumable, NotFound), resume)
                return
            case "running" if self.is_alive(attempt, side):
                self.refused(Busy, resume)
                return
            case "failed" | "cancelled" if branch.open is not None:
                self.refused((Busy, TurnOpen), resume)
                return
            case _ if place_of(branch.path) != attempt.handle.base.position:
                self.refused(NotResumable, resume)
                return
        before = attempt.handle.token
        attempt.handle = resume()
        assert attempt.handle.token != before
        assert attempt.handle.staged == sum(len(block.events) for block in attempt.blocks)
        assert attempt.handle.usage == attempt.spent
        assert [one.id for one in read_steers(attempt.handle.steered)] == attempt.steered
        attempt.side, attempt.held, attempt.outcome = side, True, "running"
        self.heard[side] = True
        branch.open = attempt

    @rule(attempt=tries, side=sides)
    def discard(self, attempt: Try, side: int) -> None:
        if attempt.branch.id not in self.live or attempt.outcome == "committed":
            return
        discard = partial(self.call, self.stores[side].discard, attempt.handle.id)
        if attempt.outcome == "running" and self.is_alive(attempt, side):
            self.refused(Busy, discard)
        elif discard().outcome == "cancelled" and attempt.outcome not in ("failed", "cancelled"):
            self.ended(attempt, "cancelled")

    @rule(target=branches, source=branches, side=sides, where=st.integers(0, 40), excluded=st.booleans())
    def fork(self, source: Branch, side: int, where: int, excluded: bool, draft: bool = False) -> Any:
        new = NewFork(id=new_id(), cache="{}")
        if source.id not in self.live:
            self.refused(NotFound, lambda: self.call(self.stores[side].fork, source.id, new))
            return NOTHING
        arguments, kept = self.place(source, where, excluded)
        attempt = partial(self.call, self.stores[side].fork, source.id, new, draft=draft, **arguments)
        if kept is None:
            self.refused(BadPosition, attempt)
            return NOTHING
        attempt()
        self.live[new.id] = branch = Branch(new.id, source.family, source.path[:kept])
        return branch

    @rule(target=branches, branch=branches, side=sides, where=st.integers(0, 40), excluded=st.booleans())
    def rewind(self, branch: Branch, side: int, where: int, excluded: bool) -> Any:
        if branch.id not in self.live or not branch.path:
            return NOTHING
        aside = NewFork(id=new_id(), cache="{}")
        arguments, kept = self.place(branch, where, excluded)
        attempt = partial(self.call, self.stores[side].rewind, branch.id, aside, **arguments)
        if branch.open is not None:
            self.refused((Busy, TurnOpen), attempt)
            return NOTHING
        if kept is None:
            self.refused(BadPosition, attempt)
            return NOTHING
        attempt()
        if kept == len(branch.path):
            return NOTHING
        self.live[aside.id] = kept_aside = Branch(aside.id, branch.family, branch.path)
        branch.path = branch.path[:kept]
        branch.revision += 1
        return kept_aside

    @rule(target=branches, branch=branches, side=sides, which=indexes, other_agent=st.booleans())
    def keep(self, branch: Branch, side: int, which: int, other_agent: bool) -> Any:
        """A head goes to that of any branch of the family, with other settings or without."""
        if branch.id not in self.live:
            return NOTHING
        family = [one for one in self.live.values() if one.family == branch.family]
        kept, aside = family[which % len(family)], NewFork(id=new_id(), cache="{}")
        settings = f'{{"keeps":"{aside.id}"}}' if other_agent else None
        attempt = partial(self.call, self.stores[side].keep, branch.id, kept.id, aside, settings=settings)
        if branch.open is not None:
            self.refused((Busy, TurnOpen), attempt)
            return NOTHING
        if kept is branch or kept.parent is not None:
            self.refused(CannotKeep, attempt)
            return NOTHING
        _, made = attempt()
        is_left = kept.path[: len(branch.path)] != branch.path
        assert (made is not None) == (is_left or other_agent), "whether something had to be set aside"
        if is_left or other_agent or len(kept.path) > len(branch.path):
            branch.revision += 1
        left, branch.path = branch.path, kept.path
        if made is None:
            return NOTHING
        self.live[aside.id] = kept_aside = Branch(aside.id, branch.family, left)
        return kept_aside

    @rule(target=branches, branch=branches, side=sides, which=indexes, content=turns_of_blocks)
    def keep_and_run(self, branch: Branch, side: int, which: int, content: list[Block]) -> Any:
        aside = self.keep(branch, side, which, other_agent=False)
        self.run_a_turn(branch, side, content)
        return aside

    @rule(branch=branches, side=sides, content=turns_of_blocks, stale=st.booleans())
    def note(self, branch: Branch, side: int, content: list[Block], stale: bool) -> None:
        if branch.id not in self.live:
            return
        events = [event for block in content for event in block.events]
        revision = branch.revision + 1 if stale else branch.revision

        def attempt() -> Committed:
            return self.call(self.stores[side].note, branch.id, new_id(), events, if_revision=revision)

        if stale:
            self.refused(Stale, attempt)
        elif branch.open is not None:
            self.refused((Busy, TurnOpen), attempt)
        else:
            branch.path = branch.path + items(content, attempt(), Usage())
            branch.revision += 1

    @rule(branch=branches, side=sides, times=st.integers(1, 2))
    def charge(self, branch: Branch, side: int, times: int) -> None:
        """Whatever runs there. Made twice, the second time by the other store, it is still one charge."""
        id = new_id()
        for n in range(times):
            charge = partial(self.call, self.stores[(side + n) % 2].charge, branch.id, id, CHARGED)
            if branch.id in self.live:
                charge()
            else:
                self.refused(NotFound, charge)
        if branch.id in self.live:
            branch.charged += CHARGED
            self.spent[branch.family] += CHARGED

    @rule(branch=branches, side=sides, scope=st.sampled_from(["conversation", "family"]), limit=st.integers(0, 4))
    def set_budget(self, branch: Branch, side: int, scope: Any, limit: int) -> None:
        """Whatever runs there. `verify` then holds what is counted to turns and ledger, after every step."""
        budget = Budget(tokens=ENOUGH, turns=ENOUGH, seconds=ENOUGH + limit) if limit else None
        change = partial(self.call, self.stores[side].set_budget, branch.id, budget, scope=scope)
        if branch.id not in self.live:
            self.refused(NotFound, change)
            return
        whose = branch.id if scope == "conversation" else None
        found = [one.limits for one in change() if one.conversation == whose]
        is_apart = any(one.apart for one in self.call(self.stores[side].budgets, branch.id))
        assert found == ([] if budget is None or (is_apart and whose is None) else [budget])

    @rule(target=branches, source=branches, side=sides)
    def fork_apart(self, source: Branch, side: int) -> Any:
        """A fork that does not draw from the family's budget."""
        if source.id not in self.live:
            return NOTHING
        new = NewFork(id=new_id(), cache="{}", budget=Budget(tokens=ENOUGH))
        self.call(self.stores[side].fork, source.id, new)
        self.live[new.id] = branch = Branch(new.id, source.family, source.path[:])
        return branch

    @rule(attempt=tries)
    def reserve(self, attempt: Try) -> None:
        """What is reserved is given back by whatever ends the turn, or takes it over."""
        call = Amount(5, 7)
        if not self.lost(attempt, lambda: self.store_of(attempt).reserve(attempt.handle, call, call)):
            assert self.call(self.store_of(attempt).reserve, attempt.handle, call, call) == call
            self.call(self.store_of(attempt).renew, attempt.handle)
            self.heard[attempt.side] = True

    @rule(branch=branches, side=sides, spent=st.booleans())
    def ask_beside(self, branch: Branch, side: int, spent: bool) -> None:
        """A call outside of turns: reserved, then charged or given back."""
        if branch.id not in self.live:
            return
        id, call = new_id(), Amount(5, 7)
        self.call(self.stores[side].reserve_beside, branch.id, id, call, call)
        self.heard[side] = True
        if spent:
            self.call(self.stores[side].charge, branch.id, id, CHARGED)
            branch.charged += CHARGED
            self.spent[branch.family] += CHARGED
        else:
            self.call(self.stores[side].give_back, id)

    @rule(side=sides)
    def charge_beside_any(self, side: int) -> None:
        self.call(self.stores[side].charge, None, new_id(), CHARGED)
        self.charged += CHARGED

    @rule(branch=branches, side=sides, since=st.integers(0, 20), limit=st.integers(1, 4))
    def list_turns(self, branch: Branch, side: int, since: int, limit: int) -> None:
        """From an ordinal on, page by page, they are those of the whole list."""
        if branch.id not in self.live:
            return
        turns = partial(self.call, self.stores[side].turns, branch.id)
        whole = turns(limit=1000)
        found: list[StoredTurn] = []
        page = turns(since=since, limit=limit)
        while True:
            found += page.items
            if page.next is None:
                break
            page = turns(since=since, limit=limit, cursor=page.next)
        assert found == [turn for turn in whole.items if (turn.base.ordinal if turn.base else 0) >= since]

    @rule(branch=branches, side=sides)
    def rename(self, branch: Branch, side: int) -> None:
        if branch.id in self.live:
            self.call(self.stores[side].describe, branch.id, title="renamed")
            name = None if branch.named else f"name-of-{branch.id}"
            branch.named = not branch.named
            assert self.call(self.stores[side].rename, branch.id, name).name == (name or branch.id)

    @rule(branch=branches, side=sides)
    def allow(self, branch: Branch, side: int) -> None:
        """Standing approvals change whatever runs."""
        if branch.id in self.live:
            before = self.call(self.stores[side].approvals, branch.id)
            assert self.call(self.stores[1 - side].change_approvals, branch.id, f"[{before}]", if_approvals=before)

    @rule(branch=branches, side=sides)
    def verify_one(self, branch: Branch, side: int) -> None:
        if branch.id in self.live:
            report = self.call(self.stores[side].verify, branch.id)
            assert report.ok, report.flaws

    @rule(target=branches, side=sides, content=turns_of_blocks, before=st.booleans(), after=st.booleans())
    def use_an_id_again(self, side: int, content: list[Block], before: bool, after: bool) -> Any:
        """A conversation with the id of a deleted one, and forks of that one, made before its turn or after it."""
        gone = cast("Branch", self.create(side))
        forks = [self.fork(gone, side, 0, excluded=False)] if before else []
        self.run_a_turn(gone, side, content)
        if after:
            forks.append(self.fork(gone, side, len(gone.path) - 1, excluded=False))
        self.delete(gone, side)
        self.call(self.stores[side].create, NewConversation(id=gone.id))
        self.live[gone.id] = again = Branch(gone.id, gone.id)
        return multiple(again, *forks)

    @rule(branch=consumes(branches), side=sides)
    def delete(self, branch: Branch, side: int) -> None:
        delete = partial(self.call, self.stores[side].delete, branch.id)
        if branch.id not in self.live:
            self.refused(NotFound, delete)
            return
        doomed = self.with_sub_agents(branch)
        if any(one.open is not None and one.open.held and self.is_alive(one.open, side) for one in doomed):
            self.refused(Busy, delete)
            return
        assert set(delete().conversations) == {one.id for one in doomed}
        for one in doomed:
            if one.open is not None:
                self.ended(one.open, "cancelled")
            del self.live[one.id]

    @rule(side=sides)
    def collect(self, side: int) -> None:
        expected = self.call(self.stores[side].collect, dry_run=True)
        assert self.call(self.stores[side].collect) == replace(expected, pending=())
        assert self.call(self.stores[side].collect, dry_run=True) == Collected()
        assert self.call(self.stores[side].collect) == Collected()
        assert unreached(self.rows, self.places_of_events) == [], "the collector has left garbage"

    @rule(side=sides)
    def anchor(self, side: int) -> None:
        self.anchors.append(self.call(self.stores[side].anchor))
        assert self.call(self.stores[1 - side].anchor) == self.anchors[-1]

    @rule()
    def time_goes_by(self) -> None:
        self.clock.pass_by(LONG)
        self.heard = [False, False]

    @rule(side=sides)
    def beat(self, side: int) -> None:
        """What a store does by itself every few seconds, while it holds turns."""
        if self.call(self.send_beat, self.stores[side]):
            self.heard[side] = True

    @rule(side=sides)
    def reopen(self, side: int) -> None:
        self.call(self.stores[side].close)
        for attempt in self.all_tries:
            if attempt.side == side and attempt.outcome == "running":
                attempt.held = False
        self.stores[side] = self._open()

    # What always holds. It is looked at in one go: to ask another thread costs more than most answers.

    @invariant()
    def the_stores_are_as_the_model_has_them(self) -> None:
        if hasattr(self, "stores"):
            self.call(self._look)

    async def _look(self) -> None:
        await self.every_conversation_is_as_the_model_has_it()
        await self.every_token_is_counted_once()
        await self.nothing_is_reserved_where_no_turn_runs()
        await self.every_branch_shows_what_it_spent_itself()
        await self.the_chain_verifies()

    async def every_conversation_is_as_the_model_has_it(self) -> None:
        for branch in self.live.values():
            store = self.stores[0]
            record = await store.read(branch.id)
            events = await store.events(branch.id)
            assert [(event.id, text) for event, text in zip(events, texts(events), strict=True)] == [
                (item.position, item.text) for item in branch.path
            ], f"history of {branch.id}"
            assert record.revision == branch.revision
            assert (record.status == "idle") == (branch.open is None)
            assert dict((await store.state(branch.id)).values) == state_at(branch.path)
            totals = sum((item.ends for item in branch.path if item.ends), Usage())
            assert record.head.totals == totals, "what the path has cost"

    async def every_token_is_counted_once(self) -> None:
        for family, spent in self.spent.items():
            assert await self.stores[1].usage(family) == spent, f"spent in {family}"
        assert await self.stores[0].usage() == sum(self.spent.values(), self.charged), "spent in all"
        assert await self.stores[1].spent(None) == self.charged, "spent beside any conversation"

    async def nothing_is_reserved_where_no_turn_runs(self) -> None:
        for branch in self.live.values():
            found = await self.stores[0].budgets(branch.id)
            if any(attempt.outcome == "running" for attempt in self.all_tries):
                continue
            assert all((one.reserved.tokens, one.reserved.turns) == (0, 0) for one in found)

    async def every_branch_shows_what_it_spent_itself(self) -> None:
        for branch in self.live.values():
            record = await self.stores[0].read(branch.id)
            own = [attempt for attempt in self.all_tries if attempt.branch is branch]
            uncommitted = (attempt.spent for attempt in own if attempt.outcome != "committed")
            assert record.spent.calls >= 0, f"{branch.id} inherited more than its path has cost"
            expected = sum(uncommitted, record.spent + branch.charged)
            assert await self.stores[1].spent(branch.id) == expected, f"spent by {branch.id}"

    async def the_chain_verifies(self) -> None:
        report = await self.stores[1].verify(anchors=self.anchors)
        assert report.ok, report.flaws
        if self.anchors:
            report = await self.stores[0].verify(since=self.anchors[-1])
            assert report.ok, f"of what is newer than an anchor: {report.flaws}"

    # Helpers.

    def _open(self) -> Store:
        return self.portal.call(self.open_store)

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any, **named: Any) -> T:
        async def run() -> T:
            return await function(*arguments, **named)

        return self.portal.call(run)

    def refused(self, error: type[Exception] | tuple[type[Exception], ...], attempt: Callable[[], object]) -> None:
        with pytest.raises(error):
            attempt()

    def store_of(self, attempt: Try) -> Store:
        return self.stores[attempt.side]

    def is_alive(self, attempt: Try, asker: int) -> bool:
        """Whether the asker must take the holder of a running turn for alive."""
        return attempt.held and (attempt.side == asker or self.heard[attempt.side])

    def lost(self, attempt: Try, write: Callable[[], Awaitable[object]]) -> bool:
        """Whether the turn is no longer its holder's; then the write must be refused."""
        if attempt.outcome == "running" and attempt.held:
            return False
        if attempt.outcome == "running" and attempt.branch.open is attempt:
            return False  # its store was reopened, but nobody took over: a late write with the token still stands
        self.refused(TurnLost, lambda: self.call(write))
        return True

    def spend(self, attempt: Try) -> None:
        attempt.spent += SPENT
        self.spent[attempt.branch.family] += SPENT

    def ended(self, attempt: Try, outcome: str) -> None:
        attempt.outcome, attempt.held = outcome, False
        if attempt.branch.open is attempt:
            attempt.branch.open = None

    def with_sub_agents(self, branch: Branch) -> list[Branch]:
        doomed = [branch]
        for one in doomed:
            doomed += [other for other in self.live.values() if other.parent == one.id]
        return doomed

    def place(self, branch: Branch, where: int, excluded: bool) -> tuple[dict[str, Position], int | None]:
        """Arguments for a place on the path, and how many events stay; None if it is no safe place."""
        if not branch.path:
            return {}, 0
        index = where % len(branch.path)
        kept = index if excluded else index + 1
        safe = kept == 0 or branch.path[kept - 1].safe
        return {"before" if excluded else "at": branch.path[index].position}, kept if safe else None


def undelivered(handle: OpenTurn) -> list[Block]:
    """What delivers the messages that a handle knows of, and that are no steps yet."""
    left = [(one.message, one.id) for one in read_steers(handle.steered) if one.message is not None]
    return [Block((NewEvent(message, steer=id),)) for message, id in left]


async def copies_are_the_same(store: Store) -> None:
    """All of a store is exported, imported into an empty store, and exported from there: to the byte the same."""
    everything = await exported(store)
    assert not check(everything).flaws
    async with await SqliteStore.open(None) as copy:
        await import_archive(copy, pieces(b"".join(everything)), rename=False)
        verification = await copy.verify()
        assert verification.ok, verification.flaws
        for family in (await store.families(limit=1000)).items:
            assert await copy.usage(family) == await store.usage(family)
        again = await exported(copy)
    assert not check(again).flaws
    assert told(everything) == told(again)


async def exported(store: Store) -> list[bytes]:
    return b"".join([chunk async for chunk in write_archive(store, Selection("all"))]).splitlines(keepends=True)


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


def told(file: list[bytes]) -> list[Line]:
    """What a file tells, but for what exports and imports add: their records, and what counts or sums these up."""
    lines = [decoded(parted(raw)[0]) for raw in file]
    kept: list[Line] = []
    for line in lines:
        match line:
            case Chain():
                kept.append(replace(line, records=0, digest=""))
            case FamilyEnd():
                kept.append(replace(line, records=0))
            case RecordLine(kind="exported" | "imported") | Header() | End():
                pass
            case _:
                kept.append(line)
    return [line for line in kept if not (isinstance(line, Chain) and bytes.fromhex(line.chain)[:1] == b"f")]


def place_of(path: list[Item]) -> Position | None:
    return path[-1].position if path else None


def state_at(path: list[Item]) -> dict[str, str]:
    return dict(item.sets for item in path if item.sets)


def items(content: list[Block], done: Committed, usage: Usage) -> list[Item]:
    """The model's view of what a commit added."""
    flat = [(event, event is block.events[-1]) for block in content for event in block.events]
    assert done.last.ordinal - done.first.ordinal + 1 == len(flat)
    found = []
    for n, (event, safe) in enumerate(flat):
        parts = getattr(event.body, "parts", ())
        text = " ".join(part.text for part in parts) or kind_of(event.body)
        sets = event.body.set[0] if isinstance(event.body, StateChange) else None
        ends = usage if n == len(flat) - 1 else None
        found.append(Item(Position(done.first.segment, done.first.ordinal + n), text, safe, sets, ends))
    return found


def unreached(rows: Callable[[str], list[tuple[Any, ...]]], places_of_events: str) -> list[str]:
    """What no conversation and no open turn reaches, found by walking through all of it."""
    places = "SELECT head FROM conversation UNION SELECT base FROM turn JOIN conversation ON open_turn = turn.id"
    reached: dict[int, int] = {}
    for (place,) in rows(places):
        if place is not None:
            reached[place >> 32] = max(reached.get(place >> 32, 0), place & 0xFFFFFFFF)
    found = []
    for segment, base in rows("SELECT id, base FROM segment ORDER BY id DESC"):
        if segment not in reached:
            found.append(f"segment {segment}")
        elif base is not None:
            reached[base >> 32] = max(reached.get(base >> 32, 0), base & 0xFFFFFFFF)
    for (event,) in rows(places_of_events):
        if event & 0xFFFFFFFF > reached.get(event >> 32, 0):
            found.append(f"event {event >> 32}-{event & 0xFFFFFFFF}")
    empty = """SELECT id FROM turn WHERE "end" IS NOT NULL AND id NOT IN (SELECT turn FROM event)"""
    return found + [f"turn {id.hex()}" for (id,) in rows(empty)]
