"""Prompts of paths, kept: a turn renders its own events, however long the history, and a fork renders nothing.

A rendering is a function of a path and a manifest, and never changes. So it is kept by the digest of the path's last
event, which is the same for a conversation and all its forks at that point. What is kept is bounded; what was dropped
is rendered again from the store.
"""

from collections import OrderedDict
from collections.abc import Iterable

from forkpoint.events import Event
from forkpoint.llm.prompt.manifest import Manifest
from forkpoint.llm.prompt.rendering import Rendering, render
from forkpoint.store.protocol import Store
from forkpoint.store.records import Head

KEPT = 2048
"""Paths whose prompts are kept in memory; the longest-unused one goes first."""

KEPT_EVENTS = 200_000
"""How many events these prompts may have in all."""

KEPT_BYTES = 256 * 1024 * 1024
"""And how many bytes, counted for each prompt as if it shared nothing with others."""


class Prompts:
    """The prompts of a store's paths, the newest kept."""

    def __init__(
        self, store: Store, *, kept: int = KEPT, kept_events: int = KEPT_EVENTS, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self._store = store
        self._kept = _PromptCache(kept, kept_events, kept_bytes)

    def within(self, store: Store) -> "Prompts":
        """The same bounds for another tenant's view of the store: all of them together keep no more than one."""
        other = Prompts(store)
        other._kept = self._kept
        return other

    async def at(self, conversation: str, head: Head, manifest: Manifest) -> Rendering:
        """The prompt of a conversation's path up to a head."""
        key = (head.digest, manifest.hash)
        if (found := self._kept.find(key)) is not None:
            return found
        events = await self._store.events(conversation, at=head.position) if head.position is not None else []
        return self.keep(head.digest, render(manifest, events))

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
        self._kept.drop(digest)

    def keep(self, digest: bytes, prompt: Rendering) -> Rendering:
        self._kept.add((digest, prompt.manifest.hash), prompt)
        return prompt


class _PromptCache:
    """Prompts by the digest of their path and the hash of their manifest; the longest-unused one goes first."""

    def __init__(self, most: int, most_events: int, most_bytes: int) -> None:
        self._most, self._most_events, self._most_bytes = most, most_events, most_bytes
        self._events = self._bytes = 0
        self._prompts: OrderedDict[tuple[bytes, str], Rendering] = OrderedDict()

    def find(self, key: tuple[bytes, str]) -> Rendering | None:
        if (found := self._prompts.get(key)) is not None:
            self._prompts.move_to_end(key)
        return found

    def add(self, key: tuple[bytes, str], prompt: Rendering) -> None:
        if (before := self._prompts.pop(key, None)) is not None:
            self._count(before, -1)
        self._prompts[key] = prompt
        self._count(prompt, 1)
        while len(self._prompts) > 1 and self._is_too_much:
            self._count(self._prompts.popitem(last=False)[1], -1)

    def demote(self, key: tuple[bytes, str]) -> None:
        if key in self._prompts:
            self._prompts.move_to_end(key, last=False)

    def drop(self, digest: bytes) -> None:
        for key in [key for key in self._prompts if key[0] == digest]:
            self._count(self._prompts.pop(key), -1)

    @property
    def _is_too_much(self) -> bool:
        many = len(self._prompts) > self._most
        return many or self._events > self._most_events or self._bytes > self._most_bytes

    def _count(self, prompt: Rendering, by: int) -> None:
        self._events += by * prompt.events
        self._bytes += by * prompt.blocks.size
