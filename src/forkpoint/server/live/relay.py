"""The relay: readers here see turns that run on other nodes while they run, if the store carries hints between nodes.

A node says which conversations are watched here whose turns it does not run (a wish). The node that runs such a turn
keeps a mailbox for the wish, as if a reader of its own had asked, and says what is in it a few times a second. A wish
ends by itself unless it is repeated, so a node that dies leaves nothing behind. Hints are small and may be lost, and
what does not fit is left out. Each says which updates it has, counted from the wish on, so whoever misses some hears of
the gap. All that is committed comes from the store.
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
    """Some of what the turns of a conversation have said, in order."""

    node: str
    tenant: str
    conversation: str
    turn: str | None
    frames: str  # empty: the updates before ``first`` were lost
    first: int = 0  # the number of the first update in it
    count: int = 0  # how many there are


class _Granted:
    """A wish of other nodes, and how much of it they were told."""

    def __init__(self, mailbox: Mailbox, until: float) -> None:
        self.mailbox = mailbox
        self.until = until
        self.count = 0  # the updates that there were
        self.told = 0  # the updates that the others know of, or know to be lost


class Relay:
    """What one node tells the others, and hears from them."""

    def __init__(
        self, store: Store, watching: Watching, feed: Callable[[str, str], Feed | None], *, period: float = PERIOD
    ) -> None:
        self._store, self._watching, self._feed = store, watching, feed
        self._period = period
        self._node = secrets.token_hex(8)
        self._wishes: dict[Key, _Granted] = {}  # of other nodes
        self._heard: dict[tuple[str, Key], int] = {}  # the number of the update that a node says next
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
            renewed, pause = 0.0, self._period
            while True:
                now = asyncio.get_running_loop().time()
                try:
                    if now - renewed >= RENEWED:
                        self._told.clear()
                        self._forget()
                        renewed = now
                    await self._wish()
                    await self._say(now)
                    pause = self._period
                except ForkpointError as error:
                    if pause == self._period:
                        _log.warning("cannot tell other nodes what runs here, until the store answers: %s", error)
                    pause = min(2 * pause, RENEWED)
                await asyncio.sleep(pause)

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
        return () if found is None else (found.mailbox,)

    def _grant(self, wish: Wish) -> None:
        until = asyncio.get_running_loop().time() + 2.5 * RENEWED
        for tenant, conversation in wish.conversations:
            key = (tenant, conversation)
            if (known := self._wishes.get(key)) is not None:
                known.until = until
            elif len(self._wishes) < MOST_WISHES:
                mailbox = Mailbox(self._watching.buffer)
                self._wishes[key] = _Granted(mailbox, until)
                if (feed := self._feed(tenant, conversation)) is not None and feed.turn is not None:
                    mailbox.put(Encoded(feed.snapshot, feed.turn, conversation=conversation))

    async def _say(self, now: float) -> None:
        for key, wish in list(self._wishes.items()):
            if not wish.mailbox.is_empty or wish.told < wish.count:
                await self._say_of(key, wish)
            elif wish.until < now:
                del self._wishes[key]

    async def _say_of(self, key: Key, wish: _Granted) -> None:
        items, dropped = wish.mailbox.take()
        wish.count += dropped
        hints: list[tuple[str | None, int, list[bytes]]] = []  # the turn, the first number, the frames
        size = 0
        for item in items:
            if item is None or item.ends:
                continue  # how a turn ended is in the store
            number, wish.count = wish.count, wish.count + 1
            cost = len(msgspec.json.encode(item.frame.decode()))
            fits = bool(hints) and hints[-1][0] == item.turn and size + cost <= MOST_BYTES
            if fits and number == hints[-1][1] + len(hints[-1][2]):
                hints[-1][2].append(item.frame)
                size += cost
            elif cost <= MOST_BYTES and len(hints) < MOST_HINTS:
                hints.append((item.turn, number, [item.frame]))
                size = cost
        for turn, first, frames in hints:
            await self._tell(wish, Said(self._node, *key, turn, b"".join(frames).decode(), first, len(frames)))
        if wish.told < wish.count:
            await self._tell(wish, Said(self._node, *key, None, "", wish.count))

    async def _tell(self, wish: _Granted, said: Said) -> None:
        await self._store.tell(msgspec.json.encode(said).decode())
        wish.told = said.first + said.count

    # Wishes of this node.

    async def _wish(self) -> None:
        wanted = {key for key in self._watching.watched if self._feed(*key) is None}
        self._told &= wanted
        new = sorted(wanted - self._told)
        for some in (new[first : first + 60] for first in range(0, len(new), 60)):
            await self._store.tell(msgspec.json.encode(Wish(self._node, some)).decode())
        self._told.update(new)

    def _pass_on(self, said: Said) -> None:
        key = (said.tenant, said.conversation)
        if self._feed(*key) is not None:
            return  # it runs here now: its own feed says more
        readers = self._watching.readers(*key)
        if not readers:
            self._heard.pop((said.node, key), None)
            return
        missed = said.first - self._heard.get((said.node, key), said.first)
        self._heard[said.node, key] = said.first + said.count
        frames = (gap_frame(missed) if missed > 0 else b"") + said.frames.encode()
        if not frames:
            return
        item = Encoded(frames, said.turn, conversation=said.conversation)
        for mailbox in readers:
            if mailbox.provisional:
                mailbox.put(item)

    def _forget(self) -> None:
        """Forgets how much was heard of conversations that nobody watches here any more."""
        watched = set(self._watching.watched)
        self._heard = {of: number for of, number in self._heard.items() if of[1] in watched}
