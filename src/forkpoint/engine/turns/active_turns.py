"""The registry of turns that run in this process, so that others can join, cancel or wait for them.

While turns run here, a task looks every now and then whether another process wants one of them cancelled, or has taken
one over. That costs next to nothing as long as nothing is written to the store.
Tests: tests/conversation/test_turns.py, test_cancel_elsewhere.py.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import anyio

from forkpoint.agent.agent import Agent
from forkpoint.backend.callbacks import Callback
from forkpoint.backend.results import Turn
from forkpoint.engine.turns.reader import read_turn
from forkpoint.engine.turns.trace import traced
from forkpoint.engine.turns.transaction import Transaction
from forkpoint.engine.turns.unended import UnendedTurns
from forkpoint.errors import Busy, ConversationClosed, ForkpointError, OutcomeUnknown
from forkpoint.polling import pauses
from forkpoint.store.protocol import Store
from forkpoint.store.values import OpenTurn, StopReason, StoredTurn
from forkpoint.threads.background import Background
from forkpoint.updates import TurnJoined

_log = logging.getLogger("forkpoint")

POLL = 0.05, 1.0  # seconds between two looks at a turn that another process runs, at first and at most
LOOK = 0.5
"""Seconds between two looks whether somebody elsewhere wants a turn stopped that runs here."""


class RunningTurn:
    """A turn that this process runs."""

    def __init__(self, conversation: str, turn: str, held: OpenTurn | None) -> None:
        self.conversation = conversation
        self.turn = turn
        self.held = held  # None: no store has it
        self.transaction: Transaction | None = None  # None: no store has it, or it has not begun to run
        self.scope = anyio.CancelScope()
        self.afterwards = anyio.CancelScope()  # what is done once it has committed
        self.done = anyio.Event()
        self.is_promised = False  # its begin has put on disk that somebody was promised it
        self.has_moved = False  # its commit was noted in memory
        self.ended: Turn | None = None  # as callbacks were told
        self.unknown: OutcomeUnknown | None = None  # why nobody was told how it ended

    def cancel(self) -> None:
        self.scope.cancel()
        self.afterwards.cancel()

    def will_be_handed_over(self) -> None:
        """Lets the next cancellation leave the turn open, for another process to go on with."""
        if self.transaction is not None:
            self.transaction.is_handed_over = True


_inside: ContextVar[RunningTurn | None] = ContextVar("forkpoint turn", default=None)
"""The turn that whatever runs here is part of: a tool, a callback, a model's provider."""


class ActiveTurns:
    """The turns of a store's conversations that run here, each by its conversation."""

    def __init__(self, store: Store, unended: UnendedTurns) -> None:
        self._store = store
        self._unended = unended
        self._running: dict[str, RunningTurn] = {}
        self._watch: Background | None = None  # looks for what others want of the turns here
        self.is_stopped = False  # nothing begins any more

    def __contains__(self, conversation: str) -> bool:
        return conversation in self._running

    def check_closable(self) -> None:
        """Raises `Busy` inside a turn that runs here: closing would wait for the very turn that waits for it."""
        inside = _inside.get()
        if inside is not None and self._running.get(inside.conversation) is inside:
            raise Busy(inside.conversation, inside.turn)

    def check_open(self, conversation: str) -> None:
        """Raises `ConversationClosed` if nothing begins here any more."""
        if self.is_stopped:
            raise ConversationClosed(conversation)

    @contextmanager
    def running(
        self, conversation: str, turn: str, tell: Callback, agent: Agent, held: OpenTurn | None = None
    ) -> Iterator[tuple[RunningTurn, Callback]]:
        """Registers a turn while the block runs. Gives it, and a callback that also writes its spans."""
        running = self._running[conversation] = RunningTurn(conversation, turn, held)
        if self._watch is None and held is not None:
            self._watch = Background.start(self._look)
        inside = _inside.set(running)
        trace = traced(tell, conversation=conversation, tenant=self._store.tenant, agent=agent)
        try:
            yield running, trace.tell
        finally:
            trace.end()
            _inside.reset(inside)
            if self._running.get(conversation) is running:
                del self._running[conversation]
            if not self._held():
                self._stop_watch()
            running.done.set()

    def runs(self, conversation: str, turn: str | None = None) -> bool:
        """Whether a turn of a conversation runs here; this very turn, if it is given."""
        running = self._running.get(conversation)
        return running is not None and turn in (None, running.turn)

    def has_promised(self, conversation: str, turn: str) -> bool:
        """Whether a turn runs here that this process began as an accepted one."""
        return self.runs(conversation, turn) and self._running[conversation].is_promised

    async def cancel(self, conversation: str) -> Turn:
        """Stops the turn that runs here in a conversation, and gives it as it ended. Raises `OutcomeUnknown`."""
        running = self._running[conversation]
        running.cancel()
        await running.done.wait()
        if running.unknown is not None:
            raise running.unknown
        return running.ended or await read_turn(self._store, running.turn)

    async def join(self, record: StoredTurn, tell: Callback) -> Turn:
        """Waits for a turn that another request began, until no process runs it any more."""
        tell(TurnJoined(record.id, record.conversation))
        return await self.rest(record)

    async def rest(self, record: StoredTurn) -> Turn:
        """The turn once no process runs it."""
        if (running := self._running.get(record.conversation)) is not None and running.turn == record.id:
            await running.done.wait()
        for wait in pauses(*POLL):
            await self._unended.end(record.conversation)
            outcome = await self._store.settle(record.id)  # raises what its runner heard, if only the disk knows
            turn = await read_turn(self._store, record.id)
            if turn.outcome == outcome != "running":  # else it has changed since, and nobody knows that this is safe
                return turn
            await anyio.sleep(wait)
        raise AssertionError("pauses have no end")

    async def stop(self, *, hand_over: bool = False) -> None:
        """Cancels what still runs here, and ends what could not be ended, if that is possible now.

        With ``hand_over`` turns are not cancelled but left open: they are `interrupted` once the store is closed here,
        and another process can resume them at once.
        """
        self.is_stopped = True
        self._stop_watch()
        running = list(self._running.values())
        if hand_over:
            for one in running:  # all of them first: a turn's end would cancel the turns of its sub-agents
                one.will_be_handed_over()
        for one in running:
            one.cancel()
        for one in running:
            await one.done.wait()
        await self._unended.end_all()

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def _look(self) -> None:
        """Looks at the store while turns run here, and stops turns that others want cancelled or have taken over."""
        seen: int | None = None
        while True:
            await anyio.sleep(LOOK)
            try:
                pulse = await self._store.pulse()
                if pulse != seen and (held := self._held()):
                    self._stop(held, await self._store.stops([handle for _, handle in held.values()]))
                    seen = pulse
            except ForkpointError:
                pass  # the store cannot be read now: the next look may tell
            except Exception:
                _log.exception("whether somebody wants a turn stopped could not be seen")

    def _held(self) -> dict[str, tuple[RunningTurn, OpenTurn]]:
        """The turns here that a store has, by their ids, with their handles."""
        return {one.turn: (one, one.held) for one in self._running.values() if one.held is not None}

    def _stop(self, held: Mapping[str, tuple[RunningTurn, OpenTurn]], stops: Mapping[str, StopReason]) -> None:
        for turn, reason in stops.items():
            running, _ = held[turn]
            if reason == "cancel":
                running.cancel()
            elif running.ended is None:  # else it is not lost: it has ended here
                running.scope.cancel()
