"""Following a conversation: a reader gets every committed event once and in order, and updates of turns that run.

A follower always reads committed events from the store, from the reader's cursor on. So it does not matter how a commit
came about, in which process, or what a slow reader missed: there is neither gap nor duplicate. After a rewind the
follower says where the two histories part, and goes on from there. Tests: tests/server/test_streams.py.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from functools import partial

from msgspec import Struct

from forkpoint.errors import NotFound
from forkpoint.events import Event, Position
from forkpoint.history.paths import Path, common_ancestor
from forkpoint.paging import every
from forkpoint.server.api.public import event_frame
from forkpoint.server.live.feed import Encoded, Feed, Mailbox, encode, ends_of, gap_frame, moves
from forkpoint.server.live.stream import HEARTBEAT, OPENING, closing, frame
from forkpoint.store import Store

PAGE = 200
"""How many events are read at once, at most."""

PAGE_BYTES = 256 * 1024
"""About how much is read at once, if events are large."""

KNOWN = 1000
"""How many delivered turns are remembered, to drop their late updates."""


class StreamReader(Struct, frozen=True):
    """The reader of a stream, as its follower knows it."""

    mailbox: Mailbox
    heartbeat: float  # seconds of silence after which the reader gets a sign of life
    running: Callable[[str], Feed | None]  # returns the turn that runs in a conversation
    allowed: Callable[[], bool]  # whether the reader may still read: keys are revoked
    closing: Callable[[], bool]  # whether the server stops
    slow: Callable[[], None]  # called if the reader was too slow


class Following(ABC):
    """Writes a stream for one reader."""

    def __init__(self, reader: StreamReader) -> None:
        self._reader = reader
        self._mailbox = reader.mailbox
        self._over: set[str | None] = set()  # turns whose events the reader has: it needs no late updates of them
        self._page = 1  # until it is known how large events are

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The stream, for as long as there is something to follow. Yielded frames are not kept."""
        mailbox, reader = self._mailbox, self._reader
        now = asyncio.get_running_loop().time
        checked = now()
        yield OPENING
        try:
            async for some in self._caught_up():
                yield some
                del some
            while not reader.closing():
                came = await mailbox.wait(reader.heartbeat)
                if now() - checked >= reader.heartbeat:  # also if it is never silent for so long
                    checked = now()
                    if not reader.allowed():
                        return
                if not came:
                    yield HEARTBEAT
                    continue
                async for some in self._heard():
                    yield some
                    del some
            yield closing()
        except NotFound:
            yield self._deleted()

    async def _heard(self) -> AsyncIterator[bytes]:
        """The frames in the mailbox, and committed events where it says that the conversation may have moved."""
        items, dropped = self._mailbox.take()
        if dropped:
            self._reader.slow()
            async for some in self._caught_up(ends_of(items), dropped):
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
        if self._mailbox.is_empty:  # no late update of these turns is left
            self._over.clear()

    async def _caught_up(self, ends: Sequence[Encoded] = (), dropped: int = 0) -> AsyncIterator[bytes]:
        """All committed events, then how turns ended meanwhile, and how the turn stands that runs now."""
        while True:
            async for page in self._committed():
                yield page
            items, more = self._mailbox.take()  # its updates are in a snapshot too, or of a turn that has ended
            dropped += more
            ends = [*ends, *ends_of(items)]
            if not any(map(moves, items)):
                break
        missed = gap_frame(dropped) if dropped and self._mailbox.provisional else b""
        stands = self._stands() if self._mailbox.provisional else b""
        self._over.clear()
        yield missed + b"".join(map(self._told, ends)) + stands

    def _snapshot(self, conversation: str) -> bytes:
        """How the turn stands that runs in a conversation, unless the reader has its events already."""
        feed = self._reader.running(conversation)
        return feed.snapshot if feed is not None and feed.turn not in self._over else b""

    def _has(self, events: Sequence[Event], size: int) -> None:
        """The reader gets these events, in so many bytes. The next page is as large as events of their size allow."""
        self._page = max(1, min(PAGE, PAGE_BYTES * len(events) // max(size, 1)))
        if len(self._over) >= KNOWN:
            self._over.clear()
        self._over.update(event.turn for event in events)

    # What is followed.

    @abstractmethod
    def _committed(self) -> AsyncIterator[bytes]:
        """All committed events that the reader lacks, page by page. Raises `NotFound` if the conversation is gone.

        A commit that comes while the last page is read puts None into the mailbox, so it is not missed.
        """

    @abstractmethod
    def _stands(self) -> bytes:
        """Snapshots of the turns that run now."""

    def _taken(self, item: Encoded) -> bytes | None:
        """The events that a turn committed, if the reader lacks no others: then nothing is read from the store."""
        return None

    def _told(self, item: Encoded) -> bytes:
        """An update of a turn, as a frame for this reader."""
        return item.frame

    def _deleted(self) -> bytes:
        """The last frame, if the conversation was deleted."""
        return frame("deleted", b"{}")


class Follower(Following):
    """One reader of one conversation, and how far it has come."""

    def __init__(self, reader: StreamReader, store: Store, id: str, cursor: Position | None) -> None:
        super().__init__(reader)
        self._store = store
        self._id = id
        self._cursor = cursor  # the last event that the reader has
        self._path: Path | None = None  # a path with the cursor on it

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
        return self._snapshot(self._id)

    async def _committed(self) -> AsyncIterator[bytes]:
        """All committed events after the cursor, page by page."""
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
            await confirm(self._store, events)
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


async def confirm(store: Store, events: Sequence[Event]) -> None:
    """Returns when a reader may be shown events: no failover can take them back any more."""
    if store.capabilities.replicated and events:
        await store.settle(events[-1].turn)


def _rewound(at: Position | None) -> bytes:
    """Says where histories part. Its id is that position: a reader that reconnects goes on from there."""
    said = None if at is None else str(at)
    return frame("rewound", encode({"at": said}), id=said or "0")
