"""Checks of what callers give to a store: sizes, Unicode, names and ids, before anything is written.
Tests: tests/store/test_limits.py."""

from typing import get_args

from msgspec import Struct

from forkpoint.errors import BadArgument, NotWhole, TooLarge
from forkpoint.events import JsonText
from forkpoint.history.wholeness import is_json
from forkpoint.store.values import (
    IdempotencyKey,
    Lineage,
    ListOrder,
    NewConversation,
    NewFork,
    Onto,
    StoreLimits,
    Tags,
    check_id,
    check_name,
)


class Checks(Struct, frozen=True):
    """The checks of a store with these limits."""

    limits: StoreLimits

    def new(self, new: NewConversation | NewFork) -> None:
        check_id("conversation", new.id)
        if isinstance(new, NewConversation):
            if new.family is not None:
                check_id("family", new.family)
            for id in (new.lineage.source, new.lineage.turn):
                if id is not None:
                    check_id("conversation or turn", id)
            check_text("lineage", new.lineage.call)
            _check_lineage(new.lineage, new.family, new.onto)
            if new.lineage.kind == "root" and new.onto is not None:
                raise BadArgument.bad_lineage("root", "it comes from nowhere, and yet its path begins on another's")
        if new.name is not None:
            check_name("name", new.name)
        self.documents(new.settings, new.cache)
        self.description(new.title, new.tags)

    def key(self, key: IdempotencyKey | None) -> None:
        if key is not None:
            check_size("idempotency key", key.key, self.limits.title)

    def input(self, input: JsonText | None) -> None:
        check_document("input", input, self.limits.input)

    def documents(self, settings: JsonText | None, cache: JsonText | None) -> None:
        check_document("settings", settings, self.limits.document)
        check_document("cache identity", cache, self.limits.document)

    def approvals(self, approvals: JsonText) -> None:
        check_document("approvals", approvals, self.limits.document)

    def shelved(self, kind: str, name: str, text: str | None = None) -> None:
        check_name("kind of a document", kind)
        check_name("name of a document", name)
        check_size("document", text, self.limits.shelf)
        if "\0" in (text or ""):
            raise NotWhole("document", "it has a character U+0000")

    def order(self, order: str) -> None:
        if order not in get_args(ListOrder):
            raise BadArgument("A list", f"order={order[:200]!r}", f"it is {' or '.join(get_args(ListOrder))}")

    def description(self, title: str | None, tags: Tags) -> None:
        check_size("title", title, self.limits.title)
        if len(tags) > self.limits.tags:
            raise TooLarge("list of tags", len(tags), self.limits.tags, "tags")
        for name, value in tags:
            check_size("tag", name + value, self.limits.tag)


def _check_lineage(lineage: Lineage, family: str | None, onto: Onto | None) -> None:
    """Lineage is provenance: it must not say what did not happen."""
    said = (lineage.source, lineage.turn, lineage.call)
    if lineage.kind == "root" and (any(said) or lineage.at):
        raise BadArgument.bad_lineage("root", "it comes from nowhere, and yet a source, a turn or a call is given")
    if lineage.kind == "sub_agent" and lineage.source is None:
        raise BadArgument.bad_lineage("sub_agent", "its parent is missing")
    if lineage.kind == "sub_agent" and ((lineage.turn is None) != (lineage.call is None) or lineage.call == ""):
        raise BadArgument.bad_lineage("sub_agent", "of the parent's turn and the call in it, one is missing")
    if lineage.kind == "fork" and (onto is None or lineage.source != onto.branch):
        raise BadArgument.bad_lineage("fork", "nothing was forked")
    if lineage.kind in ("aside", "fork", "side") and (lineage.source is None or lineage.turn or lineage.call):
        raise BadArgument.bad_lineage(lineage.kind, "it has a source, and neither a turn nor a call")
    if lineage.kind in ("aside", "fork", "side") and family is None:
        raise BadArgument.bad_lineage(lineage.kind, "the family of its source is missing")
    if lineage.at is not None and not (0 < lineage.at.segment < 1 << 31 and 0 < lineage.at.ordinal < 1 << 32):
        raise BadArgument.bad_lineage(lineage.kind, f"there can be no event {lineage.at}")


def check_document(what: str, text: JsonText | None, limit: int) -> None:
    """Raises `NotWhole` for a document that is not JSON, and whatever `check_size` raises."""
    check_size(what, text, limit)
    if text is not None and not is_json(text):
        raise NotWhole(what, "it is not JSON")


def check_size(what: str, text: str | None, limit: int) -> None:
    """Raises `TooLarge` for a text of more bytes than the limit, and whatever `check_text` raises."""
    if text is None:
        return
    check_text(what, text)
    if (size := len(text.encode())) > limit:
        raise TooLarge(what, size, limit)


def check_text(what: str, text: str | None) -> None:
    """Raises `NotWhole` for a text that is not valid Unicode, or has a NUL, which PostgreSQL takes in no text."""
    if "\0" in (text or ""):
        raise NotWhole(what, "it has a NUL character")
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        raise NotWhole(what, f"its text is not valid Unicode ({error.reason})") from None
