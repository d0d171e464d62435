"""Who watches which conversation, and waking them when it moves: at once if this server moved it, soon if another
process did.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import TypeAlias

from forkpoint.errors import ForkpointError, ShuttingDown, TooMany
from forkpoint.server.feed import Mailbox
from forkpoint.server.metrics import Metrics
from forkpoint.server.settings import ServerSettings
from forkpoint.store.protocol import Store

GONE = -1
"""The revision of a conversation that was deleted."""

_log = logging.getLogger("forkpoint.server")

Counted: TypeAlias = AbstractContextManager[None]
"""What counts a stream as open, until it is left."""


class Watching:
    """The open streams of a server."""

    def __init__(self, settings: ServerSettings, store: Store, metrics: Metrics) -> None:
        self._settings = settings
        self._store = store
        self._metrics = metrics
        self._stores: dict[str, Store] = {}  # by tenant; these come from keys, so there are few
        self._boxes: dict[str, dict[str, dict[Mailbox, Counted]]] = {}  # by tenant and conversation
        self._known: dict[tuple[str, str], int] = {}  # at which revision each was when somebody looked last
        self._open: Counter[str] = Counter()
        self._someone = asyncio.Event()
        self.closing = False

    def store(self, tenant: str) -> Store:
        """The store as a tenant sees it, the same for all of the tenant's streams."""
        if (found := self._stores.get(tenant)) is None:
            found = self._stores[tenant] = self._store.within(tenant)
        return found

    def mailboxes(self, tenant: str, conversation: str | None) -> Collection[Mailbox]:
        """Of all who watch a conversation."""
        return self._boxes.get(tenant, {}).get(conversation or "", ())

    def watch(self, tenant: str, conversation: str, revision: int, *, provisional: bool = True) -> Mailbox:
        """A mailbox that hears of everything in a conversation until it is left, or only of what is not provisional.

        ``revision`` is one that the conversation had: whoever reads it from now on finds that, or later ones. Raises
        `TooMany` or `ShuttingDown`.
        """
        most, each = self._settings.max_streams, self._settings.max_streams_per_tenant
        if self.closing:
            raise ShuttingDown()
        if self._open.total() >= most:
            self._metrics.refused("streams")
            raise TooMany("streams", most, retry_after=10)
        if each is not None and self._open[tenant] >= each:
            self._metrics.refused("streams")
            raise TooMany("streams of yours", each, retry_after=10)
        mailbox = Mailbox(self._settings.buffer, provisional=provisional)
        counted = self._metrics.stream()
        counted.__enter__()
        self._boxes.setdefault(tenant, {}).setdefault(conversation, {})[mailbox] = counted
        self._known.setdefault((tenant, conversation), revision)
        self._open[tenant] += 1
        self._someone.set()
        return mailbox

    def leave(self, tenant: str, conversation: str, mailbox: Mailbox) -> None:
        """Nobody reads this mailbox any more."""
        watched = self._boxes[tenant][conversation]
        watched.pop(mailbox).__exit__(None, None, None)
        if not watched:
            del self._boxes[tenant][conversation]
            del self._known[tenant, conversation]
        if not self._boxes[tenant]:
            del self._boxes[tenant]
        self._open[tenant] -= 1
        if not self._open[tenant]:
            del self._open[tenant]

    def knows(self, tenant: str, conversation: str, revision: int) -> None:
        """A turn of this server has moved a conversation, and tells its watchers itself: nobody need look for that.

        Whoever does not have all that stood before the turn looks then, so what others committed is not missed.
        """
        key = (tenant, conversation)
        if self._known.get(key, revision) < revision:
            self._known[key] = revision

    def moved(self, tenant: str, conversation: str) -> None:
        """A conversation is not as it was: whoever watches it looks."""
        for mailbox in self.mailboxes(tenant, conversation):
            mailbox.put(None)

    def close(self) -> None:
        """Ends all streams."""
        self.closing = True
        for conversations in self._boxes.values():
            for mailboxes in conversations.values():
                for mailbox in mailboxes:
                    mailbox.put(None)

    async def poll(self) -> None:
        """Looks for what other processes commit, for as long as somebody watches. Never ends by itself."""
        pulse: int | None = None
        while True:
            if not self._boxes:
                self._someone.clear()
                await self._someone.wait()
            try:
                if (now := await self._store.pulse()) != pulse:
                    await self._look()
                    pulse = now
            except ForkpointError as error:
                _log.warning("cannot see what other processes commit: %s", error)
            except Exception:  # whatever it is, streams of this process go on, and the next look may succeed
                _log.exception("cannot see what other processes commit")
            await asyncio.sleep(self._settings.poll)

    async def _look(self) -> None:
        """Wakes those whose conversation is at another revision than it was known to be at."""
        for tenant, conversations in list(self._boxes.items()):
            watched = list(conversations)
            revisions = await self.store(tenant).revisions(watched)
            for conversation in watched:
                revision = revisions.get(conversation, GONE)
                known = self._known.get((tenant, conversation), revision)  # nobody watches it any more
                if known != revision:
                    self._known[tenant, conversation] = revision
                    self.moved(tenant, conversation)
