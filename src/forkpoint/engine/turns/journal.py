"""Journals of the loop: the steps of an open turn, on disk when it matters; or in memory alone, if nothing is kept.
Tests: tests/conversation/test_turns.py, test_fault_matrix.py, test_once.py."""

from collections.abc import Iterable, Sequence

import anyio

from forkpoint.clock import system_clock
from forkpoint.events import ModelCalled, NewEvent, StagedEvent, Usage, seal
from forkpoint.history.state import EMPTY, State, fold
from forkpoint.history.steers import Steer, read_steers, steers_among
from forkpoint.store.protocol import Store
from forkpoint.store.values import OpenTurn

SURE = 5_000_000
"""Microseconds after its last write in which a turn is certainly still this process's."""


class Steps:
    """What has happened in a turn that this process holds, and how much of it is on disk."""

    def __init__(self, store: Store, turn: OpenTurn, already: Sequence[StagedEvent] = ()) -> None:
        self._store = store
        self._turn = turn
        self._so_far = list(already)
        self._state = turn.state
        self._pending: list[NewEvent] = []
        self._usage = Usage()  # of what is pending
        self._unsure: tuple[list[NewEvent], Usage] | None = None  # sent to the store, and no answer came
        self._written = system_clock()  # when the store last took the turn for this process's
        self._calling = False  # a model is being asked
        self._lock = anyio.Lock()

    @property
    def so_far(self) -> Sequence[StagedEvent]:
        return self._so_far

    @property
    def state(self) -> State:
        return self._state

    @property
    def spent(self) -> Usage:
        return self._turn.usage + self.unrecorded

    @property
    def turn(self) -> OpenTurn:
        """The store's handle, as far as the disk goes."""
        return self._turn

    @property
    def pending(self) -> Sequence[NewEvent]:
        """What is not on disk yet. It goes there with the next flush, or with the commit."""
        return self._pending

    @property
    def unrecorded(self) -> Usage:
        """What was spent and is not on disk yet."""
        return self._usage if self._unsure is None else self._unsure[1] + self._usage

    @property
    def arrived(self) -> Sequence[Steer]:
        """The messages that were steered to the turn and are no steps of it yet, as far as the disk last told."""
        if self._turn.steered is None:
            return ()
        taken = steers_among([step.envelope for step in self._so_far])
        return [one for one in read_steers(self._turn.steered) if not one.delivered and one.id not in taken]

    async def catch_up(self) -> None:
        """Learns what was steered to the turn, after its commit was refused for that."""
        async with self._lock:
            self._turn = await self._store.refresh(self._turn)

    def call_begins(self) -> None:
        """A model is about to be asked: what is reserved for that stays until the journal has the call's record."""
        self._calling = True

    def add(self, events: Sequence[NewEvent], usage: Usage = Usage()) -> None:
        self._calling = self._calling and not any(isinstance(event.body, ModelCalled) for event in events)
        self._pending += events
        self._usage += usage
        self._so_far += staged(events)
        self._state = fold((event.body for event in events), self._state)

    async def flush(self) -> None:
        """Puts what is pending on disk. Raises `TurnLost` if the turn is no longer this process's.

        That is looked up even if nothing is pending: a process that was stopped for a while, and has lost its turn
        meanwhile, must not start a tool.
        """
        async with self._lock:  # results of parallel calls end in any order, the handle goes from one to the next
            await self._look()
            if not self._pending:
                if system_clock() - self._written > SURE:
                    self._turn = await self._store.refresh(self._turn)
                    self._written = system_clock()
                return
            self._unsure = (self._pending, self._usage)
            self._pending, self._usage = [], Usage()
            events, usage = self._unsure
            self._turn = await self._store.journal(self._turn, events, usage=usage, calling=self._calling)
            self._unsure, self._written = None, system_clock()

    async def make_sure(self) -> None:
        """After a flush that failed: finds out what of it is on disk. Raises if that cannot be told."""
        async with self._lock:
            await self._look()

    async def _look(self) -> None:
        if self._unsure is None:
            return
        events, usage = self._unsure
        known = self._turn.staged
        self._turn = await self._store.refresh(self._turn)
        self._unsure = None
        if self._turn.staged != known + len(events):
            self._pending, self._usage = events + self._pending, usage + self._usage


class MemoryJournal:
    """The steps of a run of which nothing is kept."""

    def __init__(self) -> None:
        self._so_far: list[StagedEvent] = []
        self._state = EMPTY
        self._spent = Usage()

    @property
    def so_far(self) -> Sequence[StagedEvent]:
        return self._so_far

    @property
    def state(self) -> State:
        return self._state

    @property
    def spent(self) -> Usage:
        return self._spent

    @property
    def arrived(self) -> Sequence[Steer]:
        """Nobody can steer what is not kept."""
        return ()

    def add(self, events: Sequence[NewEvent], usage: Usage = Usage()) -> None:
        self._so_far += staged(events)
        self._spent += usage
        self._state = fold((event.body for event in events), self._state)

    async def flush(self) -> None:
        """There is nowhere to put the steps."""


def staged(events: Iterable[NewEvent]) -> list[StagedEvent]:
    """Events as a prompt takes them, before they are anywhere. When they happened does not matter to it."""
    return [StagedEvent(seal(event, 0), event.body) for event in events]
