"""References: items of this server that a request names by their ids instead of sending them.

An item that stands on the path before the response is there already. Any other item is said again.
Tests: tests/server/responses/test_references.py.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from forkpoint.backend.messages import MessageBody, echo_of
from forkpoint.errors import NotFound
from forkpoint.events import Event
from forkpoint.server.http.call import ApiCall
from forkpoint.server.wires.responses.items.conversation_items import ConversationItems
from forkpoint.server.wires.responses.items.ids import turn_of_item
from forkpoint.server.wires.responses.items.output import ShownItem, items_of
from forkpoint.server.wires.responses.request import SERVER_CALLS, Echo
from forkpoint.store import StoredConversation, StoredTurn


class PathBefore(Struct, frozen=True):
    """What a response stands on: the path of a conversation, up to an ordinal."""

    record: StoredConversation
    upto: int

    @classmethod
    def to(cls, record: StoredConversation, turn: StoredTurn) -> "PathBefore":
        """The path up to the end of a committed turn."""
        assert turn.end is not None
        return cls(record, turn.end.ordinal)


async def referenced(call: ApiCall, id: str, path: PathBefore | None = None) -> Sequence[MessageBody] | None:
    """What an item says: nothing if it stands on ``path``. None if it is not there, or if its response was deleted."""
    turn = turn_of_item(id)
    if turn is None:
        return None
    try:
        stored = await call.backend.placement.turn(turn)
        record = await call.backend.placement.by_name(stored.conversation)
        if record is not None and call.services.responses.is_hidden(record, turn):
            return None
        if path is not None and await _stands_on(call, path, id):
            return ()
        item = await _item_of(call, stored, record, id)
    except NotFound:
        return None
    return [event.body for event in item.events if isinstance(event.body, MessageBody)]


async def _stands_on(call: ApiCall, path: PathBefore, id: str) -> bool:
    try:
        item = await _items(call, path.record).one(id)
    except NotFound:
        return False
    return all(isinstance(event, Event) and event.id.ordinal <= path.upto for event in item.events)


async def _item_of(call: ApiCall, stored: StoredTurn, record: StoredConversation | None, id: str) -> ShownItem:
    """An item of a turn, on whatever branch the turn is; or of a note of this conversation. Raises `NotFound`."""
    if stored.kind == "note" and record is not None:
        return await _items(call, record).one(id)
    turn = await call.backend.turns.read(stored.conversation, stored.id)
    echo = replace(Echo.from_json(echo_of(stored.input)), include=(SERVER_CALLS,))
    for item in items_of(turn.id, turn.events, echo):
        if item.id == id:
            return item
    raise NotFound("item", id[:200])


def _items(call: ApiCall, record: StoredConversation) -> ConversationItems:
    return ConversationItems(call, record, (SERVER_CALLS,))
