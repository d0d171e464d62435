"""Following a conversation: everything that is committed, in order, once; and what is told of its turns meanwhile.

What is committed is always read from the store, from the reader's cursor on. So it does not matter how a commit came
about, in which process, or what a slow reader missed: there is neither gap nor duplicate. After a rewind the reader is
told where the two histories part, and goes on from there.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from functools import partial

from forkpoint.errors import NotFound
from forkpoint.events import Event, Position
from forkpoint.history.paths import Path, common_ancestor
from forkpoint.paging import every
from forkpoint.server.api.public import event_frame
from forkpoint.server.live.feed import Encoded, Feed, Mailbox, encode, ends_of, gap_frame, moves
from forkpoint.server.live.stream import HEARTBEAT, OPENING, frame
from forkpoint.store import Store

PAGE = 200
"""Events that are read at once, at most."""

PAGE_BYTES = 256 * 1024
"""About how much is read at once, if events are large."""


KNOWN = 1000
"""Of about so many turns it is known that their events were told."""


class Following(ABC):
    """One reader of what is committed, and of what is told meanwhile."""

    def __init__(
        self,
        *,
        heartbeat: float,
        allowed: Callable[[], bool],
        closing: Callable[[], bool],
        slow: Callable[[], None],
    ) -> None:
        self._over: set[str | None] = set()  # turns whose events it has: what was told of them on the way is no news
        self._page = 1  # until it is known how large events are
        self._heartbeat = heartbeat
        self._allowed = allowed  # whether it may still read: keys are revoked
        self._closing = closing
        self._slow = slow

    async def frames(self, mailbox: Mailbox) -> AsyncGenerator[bytes, None]:
        """The stream, for as long as there is something to follow. What was yielded is not held on to."""
        now = asyncio.get_running_loop().time
        checked = now()
        yield OPENING
        try:
            async for some in self._caught_up(mailbox):
                yield some
                del some
            while not self._closing():
                came = await mailbox.wait(self._heartbeat)
                if now() - checked >= self._heartbeat:  # also if it is never silent for so long
                    checked = now()
                    if not self._allowed():
                        return
                if not came:
                    yield HEARTBEAT
                    continue
                async for some in self._heard(mailbox):
                    yield some
                    del some
            yield frame("closing", b"{}")
        except NotFound:
            yield self._deleted()

    async def _heard(self, mailbox: Mailbox) -> AsyncIterator[bytes]:
        """What is in the mailbox. Where it says that the conversation may have moved, what is committed."""
        items, dropped = mailbox.take()
        if dropped:
            self._slow()
            async for some in self._caught_up(mailbox, ends_of(items), dropped):
                yield some
            return
        said: list[bytes] = []
        for item in items:
            if item is not None and (taken := self._taken(item)) is not None:
                said.append(taken)
            elif moves(item):
                if said:
                    yield b"".join(said)
                    said.clear()
                async for page in self._committed():
                    yield page
            if item is not None and (item.ends or item.turn not in self._over):  # or it has the events already
                said.append(self._told(item))
        if said:
            yield b"".join(said)
        if mailbox.is_empty:  # all that was told of them has been taken
            self._over.clear()

    async def _caught_up(
        self, mailbox: Mailbox, ends: Sequence[Encoded] = (), dropped: int = 0
    ) -> AsyncIterator[bytes]:
        """All that is committed, then how turns ended meanwhile, and how the one that runs now stands."""
        while True:
            async for page in self._committed():
                yield page
            items, more = mailbox.take()  # what is told in there is in a snapshot too, or of a turn that has ended
            dropped += more
            ends = [*ends, *ends_of(items)]
            if not any(map(moves, items)):
                break
        missed = gap_frame(dropped) if dropped and mailbox.provisional else b""
        stands = self._stands() if mailbox.provisional else b""
        self._over.clear()
        yield missed + b"".join(map(self._told, ends)) + stands

    def _snapshot(self, feed: Feed | None) -> bytes:
        """How a turn that runs stands, unless the reader has its events already."""
        return feed.snapshot if feed is not None and feed.turn not in self._over else b""

    def _has(self, events: Sequence[Event], size: int) -> None:
        """A page of so many bytes is about to be told: the next one can be as large as these allow."""
        self._page = max(1, min(PAGE, PAGE_BYTES * len(events) // max(size, 1)))
        if len(self._over) >= KNOWN:
            self._over.clear()
        self._over.update(event.turn for event in events)

    # What is followed.

    @abstractmethod
    def _committed(self) -> AsyncIterator[bytes]:
        """All that is committed and that the reader does not have, page by page. Raises `NotFound` if it is gone.

        What is committed while the last page is read puts another word into the mailbox.
        """

    @abstractmethod
    def _stands(self) -> bytes:
        """How the turns stand that run now."""

    def _taken(self, item: Encoded) -> bytes | None:
        """What a turn committed, as it was told, if that is all that the reader lacks: nothing needs to be read."""
        return None

    def _told(self, item: Encoded) -> bytes:
        """What is told of a turn, for this reader."""
        return item.frame

    def _deleted(self) -> bytes:
        """The last frame, if what was followed is gone."""
        return frame("deleted", b"{}")


class Follower(Following):
    """One reader of one conversation, and how far it has come."""

    def __init__(
        self,
        store: Store,
        id: str,
        cursor: Position | None,
        *,
        heartbeat: float,
        running: Callable[[], Feed | None],
        allowed: Callable[[], bool],
        closing: Callable[[], bool],
        slow: Callable[[], None],
    ) -> None:
        super().__init__(heartbeat=heartbeat, allowed=allowed, closing=closing, slow=slow)
        self._store = store
        self._id = id
        self._cursor = cursor  # the last event that it has
        self._path: Path | None = None  # one that had the cursor
        self._running = running

    def _taken(self, item: Encoded) -> bytes | None:
        """In one segment, nothing is between an event and the one with the next ordinal."""
        if self._cursor is None or item.first != Position(self._cursor.segment, self._cursor.ordinal + 1):
            return None
        assert item.last is not None
        if self._path is not None and self._path.head == self._cursor:
            self._path = self._path.grown(item.last)
        self._cursor = item.last
        self._over.add(item.turn)
        return item.events

    def _stands(self) -> bytes:
        return self._snapshot(self._running())

    async def _committed(self) -> AsyncIterator[bytes]:
        """All that is committed after the cursor, page by page."""
        path = None
        while path is None or self._cursor != path.head:
            path = await self._store.path(self._id)
            if self._cursor is not None and self._cursor not in path:
                self._cursor = await self._where_they_part(path, self._cursor)
                yield _rewound(self._cursor)
            self._path = path
            if self._cursor == path.head:
                return
            after = self._cursor.ordinal if self._cursor is not None else 0
            try:
                events = await self._store.events(self._id, at=path.head, after=after, limit=self._page)
            except NotFound:
                path = None  # it was rewound meanwhile, or it is gone, which reading its path says
                continue
            page = b"".join(map(event_frame, events))
            self._cursor = events[-1].id
            self._has(events, len(page))
            yield page
            del page

    async def _where_they_part(self, path: Path, cursor: Position) -> Position | None:
        """The last position that the reader has and that is still on the path."""
        if self._path is not None and cursor in self._path:
            return common_ancestor(self._path.upto(cursor.ordinal), path)
        family = (await self._store.read(self._id)).family
        async for other in every(partial(self._store.conversations, family=family)):
            try:
                theirs = await self._store.path(other.id)
            except NotFound:
                continue  # the branch was deleted just now
            if cursor in theirs:  # a rewind sets the events that it leaves aside as a branch
                return common_ancestor(theirs.upto(cursor.ordinal), path)
        return None  # no branch has the position any more: the reader gets everything from the beginning


def _rewound(at: Position | None) -> bytes:
    """Says where histories part. Its id is that position: a reader that reconnects goes on from there."""
    said = None if at is None else str(at)
    return frame("rewound", encode({"at": said}), id=said or "0")
