"""The relay: readers here see turns that run on other nodes while they run, if the store carries hints between nodes.

A node says which conversations are watched here whose turns it does not run (a wish). The node that runs such a turn
keeps a mailbox for the wish, as if a reader of its own had asked, and says what is in it a few times a second. A wish
ends by itself unless it is repeated, so a node that dies leaves nothing behind. Hints are small and may be lost: what
does not fit is left out, and the readers hear of the gap. All that is committed comes from the store.
Tests: tests/server/test_relay.py, tests/postgres/test_nodes.py.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import TypeAlias

import msgspec
from msgspec import Struct

from forkpoint.errors import ForkpointError
from forkpoint.server.live.feed import Encoded, Feed, Mailbox, gap_frame
from forkpoint.server.live.watch import Watching
from forkpoint.store import Store

PERIOD = 0.1
"""Seconds between two hints about one turn."""

RENEWED = 10.0
"""Seconds after which a node repeats its wishes."""

MOST_BYTES = 7000
"""Of a hint, so that it fits into what PostgreSQL takes with all that is around it."""

MOST_HINTS = 8
"""For one turn at a time: a faster one is told with gaps."""

MOST_WISHES = 1000
"""Of all other nodes together."""

_log = logging.getLogger("forkpoint.server")

Key: TypeAlias = tuple[str, str]
"""A tenant and a conversation."""


class Wish(Struct, frozen=True, tag="wish", array_like=True):
    """A node wants to hear of the turns that run in these conversations."""

    node: str
    conversations: list[Key]


class Said(Struct, frozen=True, tag="said", array_like=True):
    """What a turn has said since the last hint."""

    node: str
    tenant: str
    conversation: str
    turn: str | None
    frames: str
    dropped: int = 0


class Relay:
    """What one node tells the others, and hears from them."""

    def __init__(
        self, store: Store, watching: Watching, feed: Callable[[str, str], Feed | None], *, period: float = PERIOD
    ) -> None:
        self._store, self._watching, self._feed = store, watching, feed
        self._period = period
        self._node = secrets.token_hex(8)
        self._wishes: dict[Key, tuple[Mailbox, float]] = {}  # of other nodes: what they have to hear, and until when
        self._told: set[Key] = set()  # the wishes of this node that the others know

    @property
    def wishes(self) -> frozenset[Key]:
        """The conversations that other nodes want to hear of."""
        return frozenset(self._wishes)

    async def run(self) -> None:
        """Tells and hears, as long as the server runs. Ends at once if the store carries no hints."""
        if not self._store.capabilities.notify:
            return
        self._watching.elsewhere = self._mailboxes
        with self._store.hear(self.hear):
            renewed = 0.0
            while True:
                now = asyncio.get_running_loop().time()
                try:
                    if now - renewed >= RENEWED:
                        self._told.clear()
                        renewed = now
                    await self._wish()
                    await self._say(now)
                except ForkpointError as error:
                    _log.warning("cannot tell other nodes what runs here: %s", error)
                    await asyncio.sleep(RENEWED)
                await asyncio.sleep(self._period)

    def hear(self, text: str) -> None:
        """Takes a hint. What is not one of ours is left alone."""
        try:
            hint = msgspec.json.decode(text, type=Wish | Said)
        except msgspec.DecodeError:
            return
        if hint.node == self._node:
            return
        if isinstance(hint, Wish):
            self._grant(hint)
        else:
            self._pass_on(hint)

    # Other nodes' wishes.

    def _mailboxes(self, tenant: str, conversation: str) -> tuple[Mailbox, ...]:
        """Who else hears of a turn that runs here."""
        found = self._wishes.get((tenant, conversation))
        return () if found is None else (found[0],)

    def _grant(self, wish: Wish) -> None:
        until = asyncio.get_running_loop().time() + 2.5 * RENEWED
        for tenant, conversation in wish.conversations:
            key = (tenant, conversation)
            if (known := self._wishes.get(key)) is not None:
                self._wishes[key] = known[0], until
            elif len(self._wishes) < MOST_WISHES:
                mailbox = Mailbox(self._watching.buffer)
                self._wishes[key] = mailbox, until
                if (feed := self._feed(tenant, conversation)) is not None and feed.turn is not None:
                    mailbox.put(Encoded(feed.snapshot, feed.turn, conversation=conversation))

    async def _say(self, now: float) -> None:
        for key, (mailbox, until) in list(self._wishes.items()):
            if not mailbox.is_empty:
                await self._say_of(key, mailbox)
            elif until < now:
                del self._wishes[key]

    async def _say_of(self, key: Key, mailbox: Mailbox) -> None:
        items, dropped = mailbox.take()
        hints: list[tuple[str | None, list[bytes]]] = []
        size = 0
        for item in items:
            if item is None or item.ends:
                continue  # how a turn ended is in the store
            cost = len(msgspec.json.encode(item.frame.decode()))
            if cost > MOST_BYTES or (len(hints) >= MOST_HINTS and size + cost > MOST_BYTES):
                dropped += 1
                continue
            if not hints or hints[-1][0] != item.turn or size + cost > MOST_BYTES:
                hints.append((item.turn, []))
                size = 0
            hints[-1][1].append(item.frame)
            size += cost
        if dropped:
            hints.insert(0, (None, []))
        for turn, frames in hints:
            said = Said(self._node, *key, turn, b"".join(frames).decode(), 0 if turn is not None else dropped)
            await self._store.tell(msgspec.json.encode(said).decode())

    # Wishes of this node.

    async def _wish(self) -> None:
        wanted = {key for key in self._watching.watched if self._feed(*key) is None}
        self._told &= wanted
        new = sorted(wanted - self._told)
        for some in (new[first : first + 60] for first in range(0, len(new), 60)):
            await self._store.tell(msgspec.json.encode(Wish(self._node, some)).decode())
        self._told.update(new)

    def _pass_on(self, said: Said) -> None:
        if self._feed(said.tenant, said.conversation) is not None:
            return  # it runs here now: its own feed says more
        frames = (gap_frame(said.dropped) if said.dropped else b"") + said.frames.encode()
        if not frames:
            return
        item = Encoded(frames, said.turn, conversation=said.conversation)
        for mailbox in self._watching.readers(said.tenant, said.conversation):
            if mailbox.provisional:
                mailbox.put(item)
