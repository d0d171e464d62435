"""The registry of turns that run in this process, so that others can join, cancel or wait for them.
Tests: tests/conversation/test_turns.py."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import anyio

from forkpoint.agent.agent import Agent
from forkpoint.backend.callbacks import Callback
from forkpoint.backend.results import Turn, raise_for
from forkpoint.engine.turns.reader import read_turn
from forkpoint.engine.turns.trace import traced
from forkpoint.engine.turns.unended import UnendedTurns
from forkpoint.errors import Busy, ConversationClosed, NoSuchTurn
from forkpoint.polling import pauses
from forkpoint.store.protocol import Store
from forkpoint.store.records import TurnRecord
from forkpoint.updates import TurnJoined

POLL = 0.05, 1.0  # seconds between two looks at a turn that another process runs, at first and at most


class RunningTurn:
    """A turn that this process runs."""

    def __init__(self, conversation: str, turn: str) -> None:
        self.conversation = conversation
        self.turn = turn
        self.scope = anyio.CancelScope()
        self.afterwards = anyio.CancelScope()  # what is done once it has committed
        self.done = anyio.Event()
        self.has_moved = False  # its commit was noted in memory
        self.ended: Turn | None = None  # as callbacks were told

    def cancel(self) -> None:
        self.scope.cancel()
        self.afterwards.cancel()


_inside: ContextVar[RunningTurn | None] = ContextVar("forkpoint turn", default=None)
"""The turn that whatever runs here is part of: a tool, a callback, a model's provider."""


class ActiveTurns:
    """The turns of a store's conversations that run here, each by its conversation."""

    def __init__(self, store: Store, unended: UnendedTurns) -> None:
        self._store = store
        self._unended = unended
        self._running: dict[str, RunningTurn] = {}
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
        self, conversation: str, turn: str, tell: Callback, agent: Agent
    ) -> Iterator[tuple[RunningTurn, Callback]]:
        """Registers a turn while the block runs. Gives it, and a callback that also writes its spans."""
        running = self._running[conversation] = RunningTurn(conversation, turn)
        inside = _inside.set(running)
        trace = traced(tell, conversation=conversation, tenant=self._store.tenant, agent=agent)
        try:
            yield running, trace.tell
        finally:
            trace.end()
            _inside.reset(inside)
            if self._running.get(conversation) is running:
                del self._running[conversation]
            running.done.set()

    async def cancel(self, conversation: str) -> Turn:
        """Stops the turn of a conversation, and gives it as it ended."""
        running = self._running.get(conversation)
        if running is None:
            record = await self._store.read(conversation)
            if record.status == "running" and record.open_turn is not None:
                raise Busy(conversation, record.open_turn)  # in another process, which alone can stop it
            raise NoSuchTurn(conversation, "cancel", "none is running")
        running.cancel()
        await running.done.wait()
        return running.ended or await read_turn(self._store, running.turn)

    async def join(self, record: TurnRecord, tell: Callback) -> Turn:
        """Waits for a turn that another request began, here or in another process."""
        tell(TurnJoined(record.id, record.conversation))
        if (running := self._running.get(record.conversation)) is not None and running.turn == record.id:
            await running.done.wait()
        for wait in pauses(*POLL):
            await self._unended.end(record.conversation)
            await self._store.settle(record.id)  # raises what its runner heard, if only the disk knows
            if (turn := await read_turn(self._store, record.id)).outcome != "running":
                return raise_for(turn)
            await anyio.sleep(wait)
        raise AssertionError("pauses have no end")

    async def stop(self) -> None:
        """Cancels what still runs here, and ends what could not be ended, if that is possible now."""
        self.is_stopped = True
        running = list(self._running.values())
        for one in running:
            one.cancel()
        for one in running:
            await one.done.wait()
        await self._unended.end_all()
