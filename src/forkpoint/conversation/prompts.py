"""Prompts of paths, kept: a turn renders its own events, however long the history, and a fork renders nothing.

A rendering is a function of a path and a manifest, and never changes. So it is kept by the digest of the path's last
event, which is the same for a conversation and all its forks at that point. What is kept is bounded; what was dropped
is rendered again from the store.
"""

from collections import OrderedDict
from collections.abc import Iterable

from forkpoint.events import Event
from forkpoint.llm.manifest import Manifest
from forkpoint.llm.rendering import Rendering, render
from forkpoint.store.protocol import Store
from forkpoint.store.records import Head

KEPT = 256
"""Paths whose prompts are kept in memory; the longest-unused one goes first."""

KEPT_EVENTS = 200_000
"""How many events these prompts may have in all."""


class Prompts:
    """The prompts of a store's paths, the newest kept."""

    def __init__(self, store: Store, *, kept: int = KEPT, kept_events: int = KEPT_EVENTS) -> None:
        self._store = store
        self._kept = kept
        self._kept_events = kept_events
        self._held = 0
        self._prompts: OrderedDict[tuple[bytes, str], Rendering] = OrderedDict()

    async def at(self, conversation: str, head: Head, manifest: Manifest) -> Rendering:
        """The prompt of a conversation's path up to a head."""
        key = (head.digest, manifest.hash)
        if (found := self._prompts.get(key)) is not None:
            self._prompts.move_to_end(key)
            return found
        events = await self._store.events(conversation, at=head.position) if head.position is not None else []
        return self.keep(head.digest, render(manifest, events))

    def grown(self, digest: bytes, base: Rendering, events: Iterable[Event]) -> Rendering:
        """The prompt of a path that has grown by these events, kept under its new digest."""
        return self.keep(digest, base.then(events))

    def keep(self, digest: bytes, prompt: Rendering) -> Rendering:
        key = (digest, prompt.manifest.hash)
        if key not in self._prompts:
            self._held += prompt.events
        self._prompts[key] = prompt
        while len(self._prompts) > self._kept or (self._held > self._kept_events and len(self._prompts) > 1):
            _, dropped = self._prompts.popitem(last=False)
            self._held -= dropped.events
        return prompt
