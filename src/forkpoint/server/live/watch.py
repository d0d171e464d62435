"""Who watches which conversation. Watchers wake when it moves: at once if this server moved it, soon if another
process did. Tests: tests/server/test_two_servers.py."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeAlias

from forkpoint.errors import ForkpointError, ShuttingDown, TooMany
from forkpoint.paging import every
from forkpoint.server.http.metrics import Metrics
from forkpoint.server.live.feed import Mailbox
from forkpoint.server.settings import ServerSettings
from forkpoint.store import Store, StoredConversation

GONE = -1
"""The revision of a conversation that was deleted."""

_log = logging.getLogger("forkpoint.server")

Counted: TypeAlias = AbstractContextManager[None]
"""Counts a stream as open, until it is left."""


class Watching:
    """The open streams of a server."""

    def __init__(self, settings: ServerSettings, store: Store, metrics: Metrics) -> None:
        self._settings = settings
        self._store = store
        self._metrics = metrics
        self._stores: dict[str, Store] = {}  # by tenant; these come from keys, so there are few
        # By tenant and conversation. A mailbox of several conversations is counted in one of them.
        self._boxes: dict[str, dict[str, dict[Mailbox, Counted | None]]] = {}
        self._others: dict[Mailbox, set[str]] = {}  # the conversations that are not the mailbox's first
        self._families: dict[
            tuple[str, str], dict[Mailbox, None]
        ] = {}  # of the readers of a family, who hear of new members
        self._members: dict[tuple[str, str], frozenset[str]] = {}  # as they were at the last look
        self._known: dict[tuple[str, str], int] = {}  # the revision of each conversation at the last look
        self._open: Counter[str] = Counter()
        self._someone = asyncio.Event()
        # Who else hears of a turn that runs here, given its tenant and conversation.
        self.elsewhere: Callable[[str, str], Sequence[Mailbox]] = lambda tenant, conversation: ()
        self.closing = False

    def store(self, tenant: str) -> Store:
        """The store as a tenant sees it, the same for all of the tenant's streams."""
        if (found := self._stores.get(tenant)) is None:
            found = self._stores[tenant] = self._store.within(tenant)
        return found

    @property
    def buffer(self) -> int:
        """How many frames a mailbox holds."""
        return self._settings.buffer

    @property
    def watched(self) -> Iterator[tuple[str, str]]:
        """All conversations that somebody watches here, each with its tenant."""
        return ((tenant, id) for tenant, conversations in self._boxes.items() for id in conversations)

    def readers(self, tenant: str, conversation: str | None) -> Collection[Mailbox]:
        """The mailboxes of all who watch a conversation here."""
        return self._boxes.get(tenant, {}).get(conversation or "", ())

    def mailboxes(self, tenant: str, conversation: str | None) -> Collection[Mailbox]:
        """The mailboxes of all who watch a conversation, here or through another node."""
        elsewhere = self.elsewhere(tenant, conversation or "")
        return [*self.readers(tenant, conversation), *elsewhere] if elsewhere else self.readers(tenant, conversation)

    def watch(self, tenant: str, conversation: str, revision: int, *, provisional: bool = True) -> Mailbox:
        """A mailbox that gets every update of a conversation until `leave`; or only the ends of turns.

        ``revision`` is a revision that the caller has seen: a later read finds that revision or a newer one. Raises
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

    def watch_also(self, tenant: str, conversation: str, revision: int, mailbox: Mailbox) -> None:
        """Lets a mailbox watch another conversation too. ``revision`` as in `watch`."""
        if mailbox not in self.mailboxes(tenant, conversation):
            self._boxes.setdefault(tenant, {}).setdefault(conversation, {})[mailbox] = None
            self._known.setdefault((tenant, conversation), revision)
            self._others.setdefault(mailbox, set()).add(conversation)

    def watch_family(self, tenant: str, family: str, mailbox: Mailbox) -> None:
        """Wakes a mailbox whenever a family may have a new member, or one less."""
        self._families.setdefault((tenant, family), {})[mailbox] = None

    def leave_one(self, tenant: str, conversation: str, mailbox: Mailbox) -> None:
        """Ends the watch of a mailbox over one of several conversations."""
        if conversation in self._others.get(mailbox, ()):
            self._others[mailbox].remove(conversation)
            self._let_go(tenant, conversation, mailbox)

    def leave(self, tenant: str, conversation: str, mailbox: Mailbox) -> None:
        """Ends all watches of a mailbox, because its reader has gone."""
        for other in self._others.pop(mailbox, ()):
            self._let_go(tenant, other, mailbox)
        for key in [key for key, boxes in self._families.items() if mailbox in boxes]:
            del self._families[key][mailbox]
            if not self._families[key]:
                del self._families[key]
                self._members.pop(key, None)
        counted = self._let_go(tenant, conversation, mailbox)
        assert counted is not None
        counted.__exit__(None, None, None)
        self._open[tenant] -= 1
        if not self._open[tenant]:
            del self._open[tenant]

    def _let_go(self, tenant: str, conversation: str, mailbox: Mailbox) -> Counted | None:
        watched = self._boxes[tenant][conversation]
        counted = watched.pop(mailbox)
        if not watched:
            del self._boxes[tenant][conversation]
            del self._known[tenant, conversation]
        if not self._boxes[tenant]:
            del self._boxes[tenant]
        return counted

    def knows(self, tenant: str, conversation: str, revision: int) -> None:
        """Notes the revision to which a turn of this server has moved a conversation, so that `poll` wakes nobody.

        The turn's own feed tells the watchers. A watcher that lacks events before the turn reads them then, so it does
        not miss what another process committed.
        """
        key = (tenant, conversation)
        if self._known.get(key, revision) < revision:
            self._known[key] = revision

    def moved(self, tenant: str, conversation: str) -> None:
        """Wakes the watchers of a conversation that has moved."""
        for mailbox in self.mailboxes(tenant, conversation):
            mailbox.put(None)

    def begun(self, tenant: str, conversation: str) -> None:
        """Wakes the readers of families that do not watch this conversation: it may be a new member."""
        here = self.mailboxes(tenant, conversation)
        for (whose, _), mailboxes in self._families.items():
            if whose == tenant:
                for mailbox in mailboxes:
                    if mailbox not in here:
                        mailbox.put(None)

    def close(self) -> None:
        """Ends all streams."""
        self.closing = True
        for conversations in self._boxes.values():
            for mailboxes in conversations.values():
                for mailbox in mailboxes:
                    mailbox.put(None)

    async def poll(self) -> None:
        """Looks for commits of other processes while there are watchers. Never ends by itself."""
        pulse: int | None = None
        is_blind = False
        while True:
            if not self._boxes:
                self._someone.clear()
                await self._someone.wait()
            try:
                if (now := await self._store.pulse()) != pulse:
                    await self._look()
                    pulse = now
                is_blind = False
            except ForkpointError as error:
                if not is_blind:
                    _log.warning("cannot see what other processes commit, until the store answers: %s", error)
                is_blind = True
            except Exception:  # whatever it is, streams of this process go on, and the next look may succeed
                _log.exception("cannot see what other processes commit")
            await asyncio.sleep(self._settings.poll)

    async def _look(self) -> None:
        """Wakes the watchers of each conversation whose revision has changed, and of each family with other members."""
        for tenant, conversations in list(self._boxes.items()):
            watched = list(conversations)
            revisions = await self.store(tenant).revisions(watched)
            for conversation in watched:
                revision = revisions.get(conversation, GONE)
                known = self._known.get((tenant, conversation), revision)  # not there if it is not watched any more
                if known != revision:
                    self._known[tenant, conversation] = revision
                    self.moved(tenant, conversation)
        for (tenant, family), mailboxes in list(self._families.items()):
            members = frozenset(record.id for record in await members_of(self.store(tenant), family))
            if self._members.get((tenant, family)) != members and (tenant, family) in self._families:
                self._members[tenant, family] = members
                for mailbox in mailboxes:
                    mailbox.put(None)


async def members_of(store: Store, family: str) -> list[StoredConversation]:
    """All conversations of a family but its drafts, the newest first."""
    return [record async for record in every(partial(store.conversations, family=family))]
