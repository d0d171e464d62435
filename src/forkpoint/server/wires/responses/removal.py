"""Deleting responses and items. Nothing vanishes from the middle of a history that others may share.

A response or an item at the end is removed by a rewind, and what the rewind sets aside is deleted. A response elsewhere
is hidden: its id is not known any more, and its content stays until somebody erases it.

No path can end between calls that were made at once, nor between their results. If the last item is one of these, the
conversation is rewound to before all of them, and those that stay follow as copies, in the same transaction.
Tests: tests/server/responses/test_removal.py, test_conversations.py.
"""

from collections.abc import Sequence
from contextlib import aclosing, suppress

from msgspec import Struct

from forkpoint.backend.results import Turn
from forkpoint.errors import BadPosition, Busy, Held, Invalid, Stale, TurnOpen
from forkpoint.events import (
    AssistantMessage,
    Event,
    NewEvent,
    Position,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolResult,
    UserMessage,
)
from forkpoint.history.branches.places import places_of
from forkpoint.history.pairing import SAID
from forkpoint.server.http.call import ApiCall
from forkpoint.server.wires.responses.items.conversation_items import ConversationItems
from forkpoint.server.wires.responses.items.output import ShownItem
from forkpoint.server.wires.responses.service import is_its_end
from forkpoint.store import StoredConversation


class _LastItem(Struct, frozen=True):
    """The last item of a conversation, and all events of the path from the beginning of its turn on."""

    item: ShownItem
    tail: tuple[Event, ...]

    @property
    def first(self) -> Event:
        """The first event that goes with the item: results that stand only because nobody answered a call go too."""
        first = next(place for place, event in enumerate(self.tail) if event in self.item.events)
        while first and _is_not_answered(self.tail[first - 1]):
            first -= 1
        return self.tail[first]

    def rest_after(self, ordinal: int) -> list[NewEvent]:
        """Copies of what stays after an ordinal. Raises `Invalid` if some of that was erased."""
        origins = places_of(self.tail, self.tail[0].id.ordinal - 1)
        called = {event.body.call_id for event in self.item.events if isinstance(event.body, ToolCall)}
        copies: list[NewEvent] = []
        for event in self.tail:
            body, envelope = event.body, event.envelope
            if event.id.ordinal <= ordinal or event.kind not in SAID or event in self.item.events:
                continue
            if event.kind == "tool_result" and envelope.call_id in called:
                continue
            if not isinstance(body, UserMessage | SystemMessage | AssistantMessage | Reasoning | ToolCall | ToolResult):
                raise Invalid("item_id", "something that was said together with it was erased; delete the conversation")
            copies.append(NewEvent(body, response=envelope.response, origin=origins[str(event.id)], time=envelope.time))
        return copies


async def delete_unless_busy(call: ApiCall, record: StoredConversation, *, if_revision: int | None = None) -> None:
    """Deletes a conversation. Raises `Held`, `Stale`, and `Busy.conversation_locked` while a turn runs there."""
    try:
        await call.backend.delete(record.id, if_revision=if_revision)
    except Busy:
        raise Busy.conversation_locked(record.name) from None


async def remove_response(call: ApiCall, turn: Turn) -> None:
    """Makes a response unknown. A response that still runs is cancelled first."""
    if turn.outcome in {"running", "interrupted"}:
        turn = await call.backend.turns.cancel(turn.conversation, turn.id)
    call.services.responses.streams.pop((call.tenant, turn.id))
    while (record := await call.backend.placement.by_name(turn.conversation)) is not None:
        with suppress(Stale):  # somebody was faster, and the response may not be the last one any more
            await _remove_from(call, record, turn)
            return


async def _remove_from(call: ApiCall, record: StoredConversation, turn: Turn) -> None:
    """Removes a response from its conversation, or hides it there. Raises `Stale` if somebody moves it meanwhile."""
    if not is_its_end(record, await call.backend.placement.turn(turn.id)):
        await call.services.responses.hide(call.backend, record, turn.id)
        return
    first = next((event for event in turn.events if isinstance(event, Event)), None)
    assert first is not None
    if first.id.ordinal <= record.own_from + 1:  # it is all that the conversation has of its own
        await delete_unless_busy(call, record, if_revision=record.revision)
    else:
        await _rewind_before(call, record, first.id)
    call.services.collector.soon()


async def remove_item(call: ApiCall, record: StoredConversation, id: str) -> None:
    """Removes the last item of a conversation. Raises `NotFound`, and `Invalid` for any other item."""
    try:
        await _remove_item(call, record, id)
    except Stale:
        raise Busy.conversation_locked(record.name) from None
    call.services.collector.soon()


async def _remove_item(call: ApiCall, record: StoredConversation, id: str) -> None:
    items = ConversationItems(call, record)
    last = await _last_of(items)
    if last is None or last.item.id != id:
        await items.one(id)
        raise Invalid("item_id", "it is not the last item, and others stand on it; delete those after it first")
    first = last.first
    try:
        await _rewind_before(call, record, first.id)
    except BadPosition as error:
        safe = [place.ordinal for place in map(Position.parse, error.nearest) if place.ordinal < first.id.ordinal]
        after = max(safe, default=last.tail[0].id.ordinal - 1)
        begin = next(event for event in last.tail if event.id.ordinal > after)
        await _rewind_before(call, record, begin.id, last.rest_after(after))


async def _last_of(items: ConversationItems) -> _LastItem | None:
    """The last item of a conversation; None if it has no items."""
    tail: tuple[Event, ...] = ()
    turns = items.backwards()
    async with aclosing(turns):
        async for turn in turns:
            tail = (*turn.events, *tail)
            if turn.items:
                return _LastItem(turn.items[-1], tail)
    return None


async def _rewind_before(
    call: ApiCall, record: StoredConversation, first: Position, rest: Sequence[NewEvent] = ()
) -> None:
    """Moves a conversation's head back before an event, adds ``rest`` there, and deletes what stood after it.

    Raises `Held`, `Busy` or `Stale`, and then nothing has moved.
    """
    if holds := await call.backend.holds(record.id):
        raise Held(record.id, "; ".join(f"{hold.id} ({hold.reason})" for hold in holds[:10]))
    try:
        aside = await call.backend.branches.rewind(
            record.id, at=None, before=first, events=rest, if_revision=record.revision
        )
    except (Busy, TurnOpen):
        raise Busy.conversation_locked(record.name) from None
    if aside is not None:
        await call.backend.delete(aside[0].id)


def _is_not_answered(event: Event) -> bool:
    return isinstance(event.body, ToolResult) and event.body.status == "not_answered"
