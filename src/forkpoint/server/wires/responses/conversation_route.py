"""The calls of conversations, as OpenAI's clients know them. Tests: tests/server/responses/test_conversations.py."""

from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Path, Response
from msgspec import Meta
from msgspec.json import Decoder
from msgspec.structs import replace

from forkpoint.backend.options import Draft
from forkpoint.engine import info_of
from forkpoint.errors import ForkpointError, Invalid, NotFound, Stale, TooLarge
from forkpoint.ids import new_id
from forkpoint.server.http.call import ApiCall, CallMade, Calls, answer
from forkpoint.server.wires.answerers import Wish
from forkpoint.server.wires.body import decoded, fields_of, is_null
from forkpoint.server.wires.responses.items.conversation_items import (
    MOST_ADDED,
    ConversationItems,
    add_items,
    check_items,
)
from forkpoint.server.wires.responses.items.ids import conversation_id, conversation_named
from forkpoint.server.wires.responses.items.input import InputItem, read_input
from forkpoint.server.wires.responses.items.paging import After, Include, ItemDocument, ItemList, Limit, Order, list_of
from forkpoint.server.wires.responses.removal import delete_unless_busy, remove_item
from forkpoint.server.wires.responses.request import Item, Metadata
from forkpoint.server.wires.responses.service import check_metadata, metadata_of, with_metadata
from forkpoint.store import StoredConversation
from forkpoint.wire.chat_messages import Sent

calls = Calls("openai conversations")

_ID = Annotated[str, Path(description="A conversation: `conv_...`, or its name.", max_length=256)]
_ITEM = Annotated[str, Path(description="An item's id.", max_length=64)]
Items = Annotated[list[Item], Meta(max_length=MOST_ADDED, description="Items that stand in it, in order.")]


class NewOpenAIConversation(Sent, frozen=True):
    """A conversation to be made."""

    items: Items | None = None
    metadata: Metadata | None = None


class OpenAIConversationUpdate(Sent, frozen=True):
    """What is to be said of a conversation from now on."""

    metadata: Metadata


class NewItems(Sent, frozen=True):
    """Items to be added."""

    items: Items


class OpenAIConversation(msgspec.Struct, frozen=True):
    """A conversation. It is one of Forkpoint's: `conv_` and its id."""

    id: str
    created_at: int
    metadata: dict[str, str]
    object: Literal["conversation"] = "conversation"


class OpenAIConversationDeleted(msgspec.Struct, frozen=True):
    """A conversation that is gone."""

    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


@calls(
    "POST",
    "/v1/conversations",
    role="use",
    openai=True,
    takes=NewOpenAIConversation,
    gives=OpenAIConversation,
    raises="too_many unsupported",
)
async def create_openai_conversation(call: CallMade) -> Response:
    """Make a conversation, with items in it."""
    sent = _read(await call.raw_body() or b"{}", NewOpenAIConversation)
    check_metadata(sent.metadata or {})
    items = _read_items(sent.items or [])
    check_items(call, items)
    agents, wardrobe = call.services.agents, call.services.chat.wardrobe
    wish = Wish(agents.default)
    _, settings = wardrobe.dress(wish)
    settings = replace(settings, workspace=wardrobe.workspace(wish))
    draft = Draft(id=new_id(), name=None, settings=settings, tags=sent.metadata or {})
    made = await call.backend.create(draft)
    record = await _found(call, made.id)
    try:
        await add_items(call, record, items)
    except ForkpointError:
        await call.backend.delete(made.id)
        raise
    return answer(_document(record))


@calls(
    "GET", "/v1/conversations/{conversation}", role="read", openai=True, gives=OpenAIConversation, raises="not_found"
)
async def get_openai_conversation(call: CallMade, conversation: _ID) -> Response:
    """A conversation."""
    return answer(_document(await _found(call, conversation)))


@calls(
    "POST",
    "/v1/conversations/{conversation}",
    role="use",
    openai=True,
    takes=OpenAIConversationUpdate,
    optional=False,
    gives=OpenAIConversation,
    raises="not_found",
)
async def update_openai_conversation(call: CallMade, conversation: _ID) -> Response:
    """Replace the metadata of a conversation: its tags."""
    sent = _read(await call.raw_body(), OpenAIConversationUpdate)
    check_metadata(sent.metadata)
    while True:
        record = await _found(call, conversation)
        tags = with_metadata(record, sent.metadata)
        with suppress(Stale):  # somebody was faster, and may have deleted a response, which a tag says
            await call.backend.describe(record.id, tags=tags, if_info=info_of(record))
            return answer(_document(await _found(call, record.id)))


@calls(
    "DELETE",
    "/v1/conversations/{conversation}",
    role="operate",
    openai=True,
    gives=OpenAIConversationDeleted,
    raises="not_found conversation_locked turn_open held",
)
async def delete_openai_conversation(call: CallMade, conversation: _ID) -> Response:
    """Delete a conversation. Its forks stay."""
    record = await _found(call, conversation)
    await delete_unless_busy(call, record)
    call.services.collector.soon()
    return answer(OpenAIConversationDeleted(conversation_id(record.id)))


@calls(
    "POST",
    "/v1/conversations/{conversation}/items",
    role="use",
    openai=True,
    takes=NewItems,
    optional=False,
    gives=ItemList,
    raises="not_found conversation_locked unsupported",
)
async def create_items(call: CallMade, conversation: _ID) -> Response:
    """Add items to a conversation, without asking a model."""
    record = await _found(call, conversation)
    items = _read_items(_read(await call.raw_body(), NewItems).items)
    shown = await add_items(call, record, items)
    await call.services.responses.adopt(call.backend, record)
    return answer(list_of([item.document for item in shown], limit=MOST_ADDED))


@calls("GET", "/v1/conversations/{conversation}/items", role="read", openai=True, gives=ItemList, raises="not_found")
async def list_items(
    call: CallMade,
    conversation: _ID,
    limit: Limit = 20,
    order: Order = "desc",
    after: After = None,
    include: Include = None,
) -> Response:
    """The items of a conversation, the last one first."""
    items = ConversationItems(call, await _found(call, conversation), include or ())
    return answer(await items.page(limit=limit, order=order, after=after))


@calls(
    "GET",
    "/v1/conversations/{conversation}/items/{item}",
    role="read",
    openai=True,
    gives=ItemDocument,
    raises="not_found",
)
async def get_item(call: CallMade, conversation: _ID, item: _ITEM, include: Include = None) -> Response:
    """One item of a conversation."""
    items = ConversationItems(call, await _found(call, conversation), include or ())
    return answer((await items.one(item)).document)


@calls(
    "DELETE",
    "/v1/conversations/{conversation}/items/{item}",
    role="operate",
    openai=True,
    gives=OpenAIConversation,
    raises="not_found conversation_locked held",
)
async def delete_item(call: CallMade, conversation: _ID, item: _ITEM) -> Response:
    """Delete the last item of a conversation. An item that others stand on is refused."""
    record = await _found(call, conversation)
    await remove_item(call, record, item)
    return answer(_document(record))


async def _found(call: ApiCall, id: str) -> StoredConversation:
    """The conversation that a client means. Raises `NotFound`."""
    record = await call.backend.placement.by_name(conversation_named(id))
    if record is None or await call.backend.placement.is_abandoned(record.id):
        raise NotFound("conversation", id[:200])
    return record


def _document(record: StoredConversation) -> OpenAIConversation:
    metadata = metadata_of(dict(record.tags))
    return OpenAIConversation(conversation_id(record.id), record.created // 1_000_000, metadata)


def _read_items(sent: list[msgspec.Raw]) -> tuple[InputItem, ...]:
    if len(sent) > MOST_ADDED:
        raise TooLarge("request", len(sent), MOST_ADDED, "items")
    return read_input(sent, "items")


def _read(body: bytes, form: Any) -> Any:
    """A body of this form. Null means absent, and fields that nobody knows pass. Raises `BadRequest`, `Invalid`."""
    fields = {name: value for name, value in fields_of(body).items() if not is_null(value)}
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(form):
        if (raw := fields.get(field.name)) is not None:
            values[field.name] = decoded(Decoder(field.type).decode, raw, field.name)
        elif field.required:
            raise Invalid(field.name, "it is missing")
    return form(**values)
