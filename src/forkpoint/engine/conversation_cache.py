"""What is known of conversations: their records, remembered to spare a read for each turn.
Tests: tests/conversation/test_if_revision.py."""

from collections.abc import Callable

from msgspec.structs import replace

from forkpoint.engine.turns.prompts import ErasureCount
from forkpoint.errors import NotFound, Stale, TurnOpen
from forkpoint.events import JsonText
from forkpoint.ids import id_to_bytes
from forkpoint.lru import Lru
from forkpoint.store.protocol import Store
from forkpoint.store.values import Committed, OpenTurn, StoredConversation

KEPT = 1024


class ConversationCache:
    """The records of a store's conversations. One is good for as long as the revision is the one it says."""

    def __init__(self, store: Store, told: Callable[[str, int], None] | None = None) -> None:
        self._store = store
        self._told = told  # which conversation a commit has moved, and to which revision
        self._known: Lru[str, StoredConversation] = Lru(KEPT)
        self._erasures = ErasureCount()

    async def at(self, turn: OpenTurn) -> StoredConversation:
        """The record of a turn's conversation, as it is at the turn's base."""
        self.heed(turn.erasures)
        known = self._known.get(turn.conversation)
        if known is not None and known.revision == turn.revision:
            return known
        return self.know(await self._store.read(turn.conversation))

    async def find(self, id_or_name: str) -> StoredConversation:
        """The record of a conversation by its id or its name, read now."""
        try:
            id_to_bytes(id_or_name)
            return self.know(await self._store.read(id_or_name))
        except (ValueError, NotFound):
            return self.know(await self._store.find(id_or_name))

    def known(self, id: str) -> StoredConversation | None:
        """The record that is remembered, though it may be out of date."""
        return self._known.get(id)

    def know(self, record: StoredConversation) -> StoredConversation:
        """Remembers a record that was just read."""
        self._known.put(record.id, record)
        return record

    def moved(self, committed: Committed, cache: JsonText | None = None, settings: JsonText | None = None) -> None:
        """This process has committed something: the record changes by that, and whoever wants to know is told."""
        self._change(committed, cache, settings)
        self._tell(committed)

    def moved_elsewhere(self, committed: Committed) -> None:
        """The same for a turn that stood elsewhere than at the head: the record must be read again."""
        self.forget(committed.conversation)
        self._tell(committed)

    def _tell(self, committed: Committed) -> None:
        if self._told is not None:
            self._told(committed.conversation, committed.revision)

    def _change(self, committed: Committed, cache: JsonText | None, settings: JsonText | None) -> None:
        known = self._known.get(committed.conversation)
        if known is not None and known.revision == committed.revision - 1:
            cache = known.cache if cache is None else cache
            settings = known.settings if settings is None else settings
            moved = replace(known, revision=committed.revision, head=committed.head, cache=cache, settings=settings)
            self.know(replace(moved, draft=False))
        else:
            self.forget(committed.conversation)

    def heed(self, erasures: int) -> None:
        """Forgets all records if something was erased since they were read: they have titles and tags."""
        if self._erasures.moved_to(erasures):
            for id in list(self._known):
                self._known.pop(id)

    def forget(self, id: str) -> None:
        self._known.pop(id)


async def check_idle(store: Store, record: StoredConversation) -> None:
    """Raises `Busy` or `TurnOpen` if a turn holds the conversation."""
    if record.open_turn is not None and record.status in ("awaiting_approval", "interrupted"):
        raise TurnOpen(record.id, record.open_turn, record.status)
    if record.open_turn is not None:
        raise (await store.turn(record.open_turn)).busy()


def check_revision(record: StoredConversation, expected: int | None) -> None:
    """Raises `Stale` if the conversation is at another revision than its caller decided on."""
    if expected is not None and record.revision != expected:
        raise Stale(record.id, expected, record.revision)
