"""Turns whose end could not be written. Each still holds its conversation; the next call there writes its end.
Tests: tests/conversation/test_fault_matrix.py."""

from collections.abc import Iterable
from contextlib import suppress

from forkpoint.engine.condensation import PathCondenser
from forkpoint.engine.turns.transaction import Transaction
from forkpoint.errors import ForkpointError, NotFound, OutcomeUnknown
from forkpoint.store.protocol import Store
from forkpoint.store.values import Outcome


class UnendedTurns:
    """Turns of this process whose end is not on disk, by their conversations; those of sub-agents by their parents."""

    def __init__(self, store: Store, condenser: PathCondenser) -> None:
        self._store = store
        self._condenser = condenser
        self._unended: dict[str, Transaction] = {}
        self._unknown: dict[str, str] = {}  # turns of which only the disk knows how they ended
        self._beneath: dict[str, set[str]] = {}

    def add(self, conversation: str, transaction: Transaction) -> None:
        """Keeps a transaction whose end the disk did not take."""
        self._unended[conversation] = transaction

    def add_unknown(self, conversation: str, turn: str) -> None:
        """Keeps a turn of which only the disk knows how it ended, or whether it began."""
        self._unknown[conversation] = turn

    def add_unknown_child(self, child: str, unknown: OutcomeUnknown) -> None:
        """The same for a sub-agent, if the unknown outcome is that of a turn."""
        if unknown.what == "turn":
            self._unknown[child] = unknown.id

    def leave(self, parent: str, children: Iterable[str]) -> None:
        """Remembers which of these sub-agents have turns that are not ended."""
        if left := {child for child in children if self._has(child)}:
            self._beneath.setdefault(parent, set()).update(left)

    async def end(self, conversation: str) -> None:
        """Writes the ends that the disk did not take before. Raises `OutcomeUnknown` while the disk does not say how a
        turn ended."""
        await self._condenser.settle(conversation)
        if (turn := self._unknown.get(conversation)) is not None:
            with suppress(NotFound):  # it was never begun
                await self._store.settle(turn)
            self._unknown.pop(conversation, None)
        if (transaction := self._unended.get(conversation)) is not None:
            await transaction.end()
            if transaction.is_ended and self._unended.get(conversation) is transaction:
                del self._unended[conversation]
        await self.end_beneath(conversation)

    async def settle(self, conversation: str, turn: str) -> Outcome:
        """How a turn stands, for certain. Raises `OutcomeUnknown` while the disk does not take its end."""
        await self.end(conversation)
        if (left := self._unended.get(conversation)) is not None and left.turn == turn:
            left.check_ended()
        return await self._store.settle(turn)

    async def end_beneath(self, parent: str) -> None:
        """The same for the sub-agents of a conversation. What the disk does not take now either is left for later."""
        for child in list(self._beneath.get(parent, ())):
            with suppress(ForkpointError):
                await self.end(child)
            if not self._has(child):
                self._beneath.get(parent, set()).discard(child)
        if not self._beneath.get(parent):
            self._beneath.pop(parent, None)

    async def end_all(self) -> None:
        """Ends what can be ended now."""
        for conversation in [*self._unended, *self._unknown, *self._condenser.unsettled]:
            with suppress(ForkpointError):
                await self.end(conversation)

    def _has(self, conversation: str) -> bool:
        return conversation in self._unended or conversation in self._unknown or conversation in self._beneath
