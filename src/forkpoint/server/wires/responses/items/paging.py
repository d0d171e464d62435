"""Pages of items, as OpenAI's clients read them: by the last item's id, or by the list's own `last_id`.
Tests: tests/server/responses/test_conversations.py."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import Query
from msgspec import Struct

from forkpoint.errors import Invalid

Limit: TypeAlias = Annotated[int, Query(ge=1, le=100, description="How many items there are at most.")]
Order: TypeAlias = Annotated[Literal["asc", "desc"], Query(description="`desc`: the newest item first.")]
After: TypeAlias = Annotated[
    str | None, Query(description="The id of an item: the page begins after it.", max_length=64)
]
Include: TypeAlias = Annotated[
    list[str] | None, Query(alias="include[]", description="`reasoning.encrypted_content`, `server_tool_calls`.")
]


class ItemDocument(Struct, frozen=True):
    """An item: a message, a call, the result of a call, or a thought. Its other fields are those of its type."""

    id: str
    type: str


class ItemList(Struct, frozen=True):
    """A page of items."""

    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


def page_of(items: Sequence[dict[str, Any]], *, limit: int, order: str, after: str | None) -> ItemList:
    """A page of these items, which come in order. Raises `Invalid` if the item to begin after is not among them."""
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        place = next((n for n, item in enumerate(ordered) if item["id"] == after), None)
        if place is None:
            raise Invalid("after", "there is no item with this id in the list")
        ordered = ordered[place + 1 :]
    return list_of(ordered, limit=limit)


def list_of(items: Sequence[dict[str, Any]], *, limit: int) -> ItemList:
    """The first of these items, and whether there are more of them."""
    shown = list(items[:limit])
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return ItemList(shown, first, last, len(items) > len(shown))
