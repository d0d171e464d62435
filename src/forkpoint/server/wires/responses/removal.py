"""Deleting responses and items. Nothing vanishes from the middle of a history that others may share.

A response or an item at the end is removed by a rewind, and what the rewind sets aside is deleted. A response elsewhere
is hidden: its id is not known any more, and its content stays until somebody erases it.
Tests: tests/server/responses/test_removal.py.
"""

from forkpoint.backend.results import Turn
from forkpoint.errors import BadPosition, Busy, Invalid, TurnOpen
from forkpoint.events import Event, Position
from forkpoint.server.http.call import ApiCall
from forkpoint.server.wires.responses.output import ShownItem
from forkpoint.server.wires.responses.service import is_unnamed
from forkpoint.store import StoredConversation


async def remove_response(call: ApiCall, turn: Turn) -> None:
    """Makes a response unknown. A response that still runs is cancelled first."""
    if turn.outcome in {"running", "interrupted"}:
        await call.backend.turns.cancel(turn.conversation, turn.id)
    call.services.responses.streams.pop((call.tenant, turn.id))
    record = await call.backend.placement.by_name(turn.conversation)
    if record is None:
        return
    if is_unnamed(record) and record.head.turn == turn.id:
        first = next((event for event in turn.events if isinstance(event, Event)), None)
        assert first is not None
        if first.id.ordinal <= record.own_from + 1:  # it is all that the conversation has of its own
            await call.backend.delete(record.id)
        else:
            await rewind_before(call, record, first.id)
        call.services.collector.soon()
        return
    await call.services.responses.hide(call.backend, record, turn.id)


async def remove_item(call: ApiCall, record: StoredConversation, items: list[ShownItem], id: str) -> None:
    """Removes the last item of a conversation. Raises `Invalid` for any other item."""
    if items[-1].id != id:
        raise Invalid("item_id", "it is not the last item, and others stand on it; delete those after it first")
    event = items[-1].events[0]
    assert isinstance(event, Event)
    try:
        await rewind_before(call, record, event.id)
    except BadPosition:
        raise Invalid("item_id", "it belongs to a call or a response that can only be deleted whole") from None


async def rewind_before(call: ApiCall, record: StoredConversation, first: Position) -> None:
    """Moves a conversation's head back before an event, and deletes what stood after it."""
    try:
        aside = await call.backend.branches.rewind(record.id, at=None, before=first, if_revision=record.revision)
    except (Busy, TurnOpen):
        raise Busy.conversation_locked(record.name) from None
    if aside is not None:
        await call.backend.delete(aside[0].id)
