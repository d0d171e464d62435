"""A selection: which families an export has, and which conversations of each.
Tests: forkpoint.testing.conformance.evidence.copies."""

from collections.abc import AsyncIterator
from functools import partial
from typing import TypeAlias

from msgspec import Struct

from forkpoint.backend.options import ExportScope
from forkpoint.paging import every
from forkpoint.store.protocol import Store
from forkpoint.store.values import Tags

Chosen: TypeAlias = tuple[str, tuple[str, ...] | None]
"""A family, and the conversations of it that are wanted; None: all of them."""


class Selection(Struct, frozen=True):
    """What somebody wants exported."""

    scope: ExportScope
    conversation: str | None = None  # by its id
    tags: Tags = ()

    @property
    def asked(self) -> str:
        """The same in words, for the header of a file."""
        return self.conversation or " ".join(f"{key}={value}" for key, value in self.tags)

    async def families(self, store: Store) -> AsyncIterator[Chosen]:
        """The families with what is wanted of each, in the order of their ids where there are several."""
        if self.conversation is not None:
            family = (await store.read(self.conversation)).family
            yield family, (self.conversation,) if self.scope == "conversation" else None
        elif self.scope == "tags":
            wanted: dict[str, list[str]] = {}
            async for found in every(partial(store.conversations, tags=self.tags)):
                wanted.setdefault(found.family, []).append(found.id)
            for family, ids in sorted(wanted.items()):
                yield family, tuple(ids)
        else:
            async for family in every(store.families):
                yield family, None
