"""What is known of conversations: their records, remembered to spare a read for each turn."""

from collections import OrderedDict

from msgspec.structs import replace

from forkpoint.errors import Busy, NotFound, TurnOpen
from forkpoint.events import JsonText
from forkpoint.ids import id_to_bytes
from forkpoint.store.protocol import Store
from forkpoint.store.records import Committed, ConversationRecord, OpenTurn

KEPT = 1024


class Records:
    """The records of a store's conversations. One is good for as long as the revision is the one it says."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[str, ConversationRecord] = OrderedDict()

    async def at(self, turn: OpenTurn) -> ConversationRecord:
        """The record of a turn's conversation, as it is at the turn's base."""
        known = self._known.get(turn.conversation)
        if known is not None and known.revision == turn.revision:
            return known
        return self.know(await self._store.read(turn.conversation))

    async def find(self, id_or_name: str) -> ConversationRecord:
        """The record of a conversation by its id or its name, read now."""
        try:
            id_to_bytes(id_or_name)
            return self.know(await self._store.read(id_or_name))
        except (ValueError, NotFound):
            return self.know(await self._store.find(id_or_name))

    def known(self, id: str) -> ConversationRecord | None:
        """The record that is remembered, though it may be out of date."""
        return self._known.get(id)

    def know(self, record: ConversationRecord) -> ConversationRecord:
        """Remembers a record that was just read."""
        self._known[record.id] = record
        self._known.move_to_end(record.id)
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return record

    def moved(self, committed: Committed, cache: JsonText | None = None, settings: JsonText | None = None) -> None:
        """A turn of this process has committed: what was known of its conversation still holds, but for this."""
        known = self._known.get(committed.conversation)
        if known is not None and known.revision == committed.revision - 1:
            cache = known.cache if cache is None else cache
            settings = known.settings if settings is None else settings
            moved = replace(known, revision=committed.revision, head=committed.head, cache=cache, settings=settings)
            self.know(replace(moved, draft=False))
        else:
            self.forget(committed.conversation)

    def forget(self, id: str) -> None:
        self._known.pop(id, None)


def check_idle(record: ConversationRecord) -> None:
    """Raises `Busy` or `TurnOpen` if a turn holds the conversation."""
    if record.open_turn is not None and record.status in ("awaiting_approval", "interrupted"):
        raise TurnOpen(record.id, record.open_turn, record.status)
    if record.open_turn is not None:
        raise Busy(record.id, record.open_turn)
