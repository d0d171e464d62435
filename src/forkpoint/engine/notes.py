"""Notes: events that somebody adds to a conversation without a turn.
Tests: tests/server/responses/test_conversations.py."""

from collections.abc import Sequence

from forkpoint.backend.actor import actor
from forkpoint.engine.resources import Resources
from forkpoint.events import NewEvent
from forkpoint.ids import new_id
from forkpoint.store.values import Committed


class Notes:
    """Adds notes to the conversations of a store."""

    def __init__(self, resources: Resources) -> None:
        self._store = resources.store
        self._records = resources.records

    async def add(self, id: str, events: Sequence[NewEvent], *, if_revision: int | None = None) -> Committed:
        """Adds one note with these events. Raises `Busy`, `TurnOpen`, `Stale`, `Unpaired` or `NotWhole`."""
        noted = await self._store.note(id, new_id(), events, if_revision=if_revision, by=actor())
        self._records.moved(noted)
        return noted
