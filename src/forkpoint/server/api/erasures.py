"""Erasures, and holds that keep families from them. Tests: tests/server/test_erasures.py."""

from typing import Annotated

from fastapi import Path, Query, Response

from forkpoint.backend.names import as_position
from forkpoint.backend.options import ErasureOptions
from forkpoint.errors import Invalid
from forkpoint.ids import new_id
from forkpoint.server.api.bodies import EraseConversation, EraseMany, HoldFamily
from forkpoint.server.http.call import CallMade, Calls, Conversation, answer
from forkpoint.store import Hold, Receipt
from forkpoint.wire.documents import HoldsDocument, PageDocument, ReceiptsDocument

calls = Calls("erasures")


@calls(
    "POST",
    "/api/conversations/{id}/holds",
    role="operate",
    takes=HoldFamily,
    optional=False,
    gives=Hold,
    status=201,
    raises="not_found bad_name bad_argument",
)
async def hold_family(call: CallMade, id: Conversation) -> Response:
    """Keep a conversation's family from deletion, erasure and retention, until it is released."""
    body = await call.body(HoldFamily)
    info, _ = await call.found(id)
    return answer(await call.backend.hold(info.id, body.id or new_id(), body.reason), 201)


@calls("GET", "/api/conversations/{id}/holds", role="read", gives=HoldsDocument, raises="not_found")
async def list_holds(call: CallMade, id: Conversation) -> Response:
    """What holds a conversation's family, the oldest first."""
    info, _ = await call.found(id)
    return answer(HoldsDocument(await call.backend.holds(info.id)))


@calls("GET", "/api/holds", role="read", gives=HoldsDocument)
async def list_all_holds(call: CallMade) -> Response:
    """All holds of the tenant, the oldest first."""
    return answer(HoldsDocument(await call.backend.holds(None)))


@calls("DELETE", "/api/conversations/{id}/holds", role="operate", gives=HoldsDocument, raises="not_found")
async def release_family(call: CallMade, id: Conversation) -> Response:
    """End all holds of a conversation's family. The answer says which."""
    info, _ = await call.found(id)
    return answer(HoldsDocument(await call.backend.release(info.id, None)))


@calls("DELETE", "/api/conversations/{id}/holds/{hold}", role="operate", gives=HoldsDocument, raises="not_found")
async def release_hold(
    call: CallMade, id: Conversation, hold: Annotated[str, Path(description="The id of a hold.", max_length=64)]
) -> Response:
    """End one hold of a conversation's family."""
    info, _ = await call.found(id)
    return answer(HoldsDocument(await call.backend.release(info.id, hold)))


@calls(
    "POST",
    "/api/conversations/{id}/erase",
    role="operate",
    takes=EraseConversation,
    optional=False,
    gives=Receipt,
    raises="not_found bad_position bad_argument busy held",
)
async def erase_conversation(call: CallMade, id: Conversation) -> Response:
    """Erase a turn, an event or everything, in every place of the store that has it. The answer is the receipt.

    With `dry_run` nothing changes, and the receipt says what would go and which conversations that touches.
    """
    body = await call.body(EraseConversation)
    if [body.turn is not None, body.event is not None, body.everything].count(True) != 1:
        raise Invalid("body", "it must have one of turn, event and everything")
    info, _ = await call.found(id)
    options = ErasureOptions(
        reason=body.reason,
        turn=body.turn,
        event=None if body.event is None else as_position(body.event),
        preview=body.dry_run,
        keep_summaries=body.keep_summaries,
        cancel=body.cancel,
    )
    receipt = await call.backend.erase(info.id, options)
    if receipt.done:
        call.services.chat.forget_texts()
        for one in receipt.touched_named:
            call.services.watching.moved(call.tenant, one.id)
    return answer(receipt)


@calls(
    "POST",
    "/api/erase",
    role="operate",
    takes=EraseMany,
    optional=False,
    gives=ReceiptsDocument,
    raises="bad_argument busy held",
)
async def erase_many(call: CallMade) -> Response:
    """Erase everything in all conversations with some tags, or in all of the tenant: one family after the other."""
    body = await call.body(EraseMany)
    if bool(body.tags) == body.everything:
        raise Invalid("body", "it must have one of tags and everything")
    options = ErasureOptions(reason=body.reason, preview=body.dry_run, cancel=body.cancel)
    receipts = await call.backend.erase_all(None if body.everything else body.tags, options)
    if not body.dry_run:
        call.services.chat.forget_texts()
    return answer(ReceiptsDocument(receipts))


@calls("GET", "/api/erasures", role="operate", gives=PageDocument[Receipt], raises="bad_cursor")
async def list_erasures(
    call: CallMade,
    cursor: Annotated[str | None, Query(description="`next` of an earlier page.", max_length=512)] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many at most.")] = 50,
) -> Response:
    """The receipts of all erasures, the oldest first: what a restored copy needs to erase the same."""
    page = await call.backend.erasures(cursor=cursor, limit=limit)
    return answer({"items": page.items, "next": page.next})
