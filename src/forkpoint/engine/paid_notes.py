"""Paid notes: notes that a model was asked for. What that cost is counted with the note, or as a charge without it.

Tests: tests/conversation/test_condense.py, test_bring.py.
"""

from msgspec import Struct

from forkpoint.backend.actor import actor
from forkpoint.engine.charges import Charges
from forkpoint.errors import ForkpointError, OutcomeUnknown, StoreError
from forkpoint.events import NewEvent, Usage
from forkpoint.store.protocol import Store
from forkpoint.store.values import Committed, IdempotencyKey


class PaidNote(Struct, frozen=True):
    """A note that is to be written, and what it cost.

    It is refused if the conversation is at another revision, or if content was erased since ``erasures``.
    """

    id: str
    events: tuple[NewEvent, ...]
    usage: Usage
    revision: int | None = None
    key: IdempotencyKey | None = None
    erasures: int | None = None


class PaidNotes:
    """Writes the paid notes of a store's conversations."""

    def __init__(self, store: Store, charges: Charges) -> None:
        self._store = store
        self._charges = charges
        self._unsure: dict[str, PaidNote] = {}

    async def write(self, conversation: str, note: PaidNote) -> Committed:
        """Writes a note. If it is refused, what it cost becomes a charge, which the caller settles.

        Another note may be returned: that of an earlier request with the same key. Then the cost is a charge too.
        """
        try:
            done = await self._note(conversation, note)
        except OutcomeUnknown:
            self._unsure[conversation] = note
            raise
        except BaseException:
            self._charge(conversation, note)
            raise
        if done.turn != note.id:
            self._charge(conversation, note)
        return done

    @property
    def unsettled(self) -> list[str]:
        """Conversations with a note of which the disk did not say whether it is there."""
        return list(self._unsure)

    async def settle(self, conversation: str) -> ForkpointError | None:
        """Writes a note once more of which the disk did not say whether it is there. Returns why it was refused.

        Raises `StoreError` if the disk still does not say it.
        """
        if (note := self._unsure.pop(conversation, None)) is None:
            return None
        try:
            done = await self._note(conversation, note)
        except BaseException as error:
            if not isinstance(error, ForkpointError) or isinstance(error, StoreError):
                self._unsure[conversation] = note  # this try has changed nothing, and of the first one nobody knows yet
                raise
            self._charge(conversation, note)  # it is not there, and what it cost is counted all the same
            return error
        if done.turn != note.id:
            self._charge(conversation, note)
        return None

    def _charge(self, conversation: str, note: PaidNote) -> None:
        """Counts what a note cost that is not there. Budgets have reserved that under the note's id."""
        self._charges.add(conversation, note.usage, note.id if note.usage else None)

    async def _note(self, conversation: str, note: PaidNote) -> Committed:
        return await self._store.note(
            conversation,
            note.id,
            note.events,
            usage=note.usage,
            if_revision=note.revision,
            if_erasures=note.erasures,
            key=note.key,
            by=actor(),
        )
