"""Keeps rendered prompts, so that a turn renders only its own events, and a fork renders nothing.

A rendering is a function of a path and a manifest, and never changes. So it is kept by the digest of the path's last
event, which is the same for a conversation and all its forks at that point. What is kept is bounded; what was dropped
is rendered again from the store, of which no more is read than the prompt shows.

An erasure changes what a path shows, but not its digests. So all prompts are dropped once the store says that something
was erased since.
"""

from collections.abc import Iterable

from forkpoint.engine.turns.path import rendered
from forkpoint.events import Event
from forkpoint.llm.prompt.manifest import Manifest
from forkpoint.llm.prompt.rendering import Rendering
from forkpoint.lru import Lru
from forkpoint.store.protocol import Store
from forkpoint.store.values import Head

KEPT = 2048
"""Paths whose prompts are kept in memory; the longest-unused one goes first."""

KEPT_BLOCKS = 200_000
"""How many blocks these prompts may have in all: about as many as they show events."""

KEPT_BYTES = 256 * 1024 * 1024
"""And how many bytes, counted for each prompt as if it shared nothing with others."""


class ErasureCount:
    """How many erasures a store had when something was cached."""

    def __init__(self) -> None:
        self._seen: int | None = None

    def moved_to(self, count: int) -> bool:
        """Remembers the count. Says whether it is another one than before."""
        seen, self._seen = self._seen, count
        return seen is not None and seen != count


class Prompts:
    """The prompts of a store's paths, the newest kept."""

    def __init__(
        self, store: Store, *, kept: int = KEPT, kept_blocks: int = KEPT_BLOCKS, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self._store = store
        self._kept: Lru[tuple[bytes, str], Rendering] = Lru(kept, kept_blocks, kept_bytes, keeps_newest=True)
        self._erasures = ErasureCount()

    def within(self, store: Store) -> "Prompts":
        """The same bounds for another tenant's view of the store: all of them together keep no more than one."""
        other = Prompts(store)
        other._kept, other._erasures = self._kept, self._erasures
        return other

    def heed(self, erasures: int) -> None:
        """Drops all prompts if something was erased since they were made."""
        if self._erasures.moved_to(erasures):
            for key in list(self._kept):
                self._kept.pop(key)

    async def at(self, conversation: str, head: Head, manifest: Manifest, *, erasures: int | None = None) -> Rendering:
        """The prompt of a conversation's path up to a head. ``erasures`` is the store's count, if it is known."""
        self.heed(await self._store.erasure_count() if erasures is None else erasures)
        key = (head.digest, manifest.hash)
        if (found := self._kept.get(key)) is not None:
            return found
        return self.keep(head.digest, await rendered(self._store, conversation, head.position, manifest))

    def grown(
        self, digest: bytes, base: Rendering, events: Iterable[Event], *, base_digest: bytes | None = None
    ) -> Rendering:
        """The prompt of a path that has grown by these events, kept under its new digest.

        The path as it was (``base_digest``) is wanted again only by a fork there: it goes first when room is needed.
        """
        if base_digest is not None:
            self._kept.demote((base_digest, base.manifest.hash))
        return self.keep(digest, base.then(events))

    def forget(self, digest: bytes) -> None:
        """Drops the prompts of a path."""
        for key in [key for key in self._kept if key[0] == digest]:
            self._kept.pop(key)

    def keep(self, digest: bytes, prompt: Rendering) -> Rendering:
        self._kept.put((digest, prompt.manifest.hash), prompt, len(prompt.blocks), prompt.blocks.size)
        return prompt
