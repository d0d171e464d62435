"""The feed of a turn: its updates while it runs, for any number of listeners. No listener can hold the turn up.

The feed encodes an update once, and only if somebody listens. Each listener has a mailbox of bounded size. A listener
that reads too slowly loses provisional frames, and gets a gap frame and a snapshot of how the turn stands instead. It
never loses committed events, because followers read those from the store.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.backend.callbacks import Update
from forkpoint.backend.catch_up import CatchUp
from forkpoint.backend.results import SideAnswer, Turn
from forkpoint.events import Event, Position
from forkpoint.server.api.public import event_frame, problem_of, public_turn
from forkpoint.server.live.stream import HEARTBEAT, OPENING, frame
from forkpoint.updates import TurnJoined, TurnStarted
from forkpoint.wire.documents import side_answer_document
from forkpoint.wire.updates import update_json

MOST_BYTES = 1024 * 1024
"""What a mailbox holds before its reader counts as too slow, however few frames that are."""

ENDS = 16
"""So many ends of turns are kept for a slow reader."""


class Encoded(Struct, frozen=True):
    """An update of a turn, encoded."""

    frame: bytes
    turn: str | None  # None for a side question
    ends: bool = False  # whether it says how the turn ended: then a slow reader gets it too
    events: bytes = b""  # the events that the turn committed, for readers that have all events before
    first: Position | None = None  # the positions of the first and the last of them
    last: Position | None = None
    conversation: str | None = None  # for a reader that watches several

    @property
    def size(self) -> int:
        return len(self.frame) + len(self.events)

    @property
    def alone(self) -> "Encoded":
        """The same without the events, for a reader who reads them from the store."""
        return Encoded(self.frame, self.turn, self.ends, conversation=self.conversation)


Item: TypeAlias = Encoded | None
"""An update for a listener. None: look again, for the turn may have ended, or the conversation may have moved."""

encode: Callable[[object], bytes] = msgspec.json.Encoder().encode


class Mailbox:
    """What one listener has still to read."""

    __slots__ = ("_dropped", "_items", "_most", "_waiter", "provisional", "size")

    def __init__(self, most: int, *, provisional: bool = True) -> None:
        self.provisional = provisional  # whether its reader wants more than how turns end
        self._items: list[Item] = []
        self._most = most
        self.size = 0  # in bytes
        self._dropped = 0
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Item) -> None:
        """Adds an item, and never waits. A full mailbox drops the frames in it, but not the ends of turns."""
        if item is None:
            if self._items and self._items[-1] is None:
                return  # its reader will look anyway
        elif not self.provisional and not item.ends:
            return
        elif self._items and (len(self._items) >= self._most or self.size + item.size > MOST_BYTES):
            ends = [end.alone for end in ends_of(self._items)[-ENDS:]]
            self._dropped += sum(one is not None for one in self._items) - len(ends)
            self._items = [None, *ends]
            self.size = sum(len(end.frame) for end in ends)
        self._items.append(item)
        self.size += item.size if item is not None else 0
        self._wake()

    @property
    def is_empty(self) -> bool:
        return not self._items

    def take(self) -> tuple[list[Item], int]:
        """All items, and how many frames the mailbox dropped before them."""
        items, dropped = self._items, self._dropped
        self._items, self.size, self._dropped = [], 0, 0
        return items, dropped

    async def wait(self, seconds: float) -> bool:
        """Waits until there is an item. Returns whether one came in time."""
        if not self._items:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(seconds, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        return bool(self._items)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Feed:
    """The updates of a running turn, or of a side question, for all who listen."""

    def __init__(self, watchers: Callable[[], Iterable[Mailbox]] = tuple) -> None:
        self.turn: str | None = None  # once it has begun
        self.joined: str | None = None  # the earlier turn with the same key, if there is one
        self.conversation: str | None = None
        self.result: Turn | SideAnswer | None = None
        self.error: Exception | None = None
        self.stop: Callable[[], None] | None = None  # called when the last client has gone; None: the turn goes on
        self.is_left = False  # all its clients have gone, and the turn is being stopped
        self.begun = asyncio.Event()  # or ended without having begun
        self.ended = asyncio.Event()
        self._waiters = 0  # requests that wait for its end
        self._watchers = watchers  # those who watch the conversation, whatever turn runs
        self._listeners: set[Mailbox] = set()
        self._told = CatchUp()

    def tell(self, update: Update) -> None:
        """The callback that the turn is run with."""
        match update:
            case TurnStarted():
                self.turn, self.conversation = update.id, update.conversation
            case TurnJoined():
                self.joined, self.conversation = update.id, update.conversation
                self.begun.set()
                return
            case Turn():
                return  # `end` tells the listeners
            case _:
                pass
        self.begun.set()
        self._told.add(update)
        listeners = [*self._listeners, *(mailbox for mailbox in self._watchers() if mailbox.provisional)]
        if listeners:
            said = Encoded(update_frame(self.turn, update), self.turn, conversation=self.conversation)
            for mailbox in listeners:
                mailbox.put(said)

    def end(self, result: Turn | SideAnswer | None, error: Exception | None) -> None:
        """Ends the feed, with a turn or an answer, or with an error."""
        self.result, self.error = result, error
        self.begun.set()
        self.ended.set()
        if (turn := self.outcome) is not None and turn.id == self.turn:
            tell_end(turn, self._watchers())
        for mailbox in self._listeners:
            mailbox.put(None)

    def enter(self) -> None:
        """A request waits for the end. It must call `leave` when it waits no more, even if the turn has ended."""
        self._waiters += 1

    def leave(self) -> None:
        """A request waits no more. The last one to go before the end stops the turn, if whoever began it wants that."""
        self._waiters -= 1
        if self.stop is not None and not self._waiters and not self.ended.is_set():
            self.stop()

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Within the block a request waits for the end."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    @property
    def outcome(self) -> Turn | None:
        """The turn as it ended, well or not; None for a side question, or if the turn did not begin."""
        turn = self.result if self.error is None else getattr(self.error, "turn", None)
        return turn if isinstance(turn, Turn) else None

    @property
    def snapshot(self) -> bytes:
        """How the turn stands: all its updates so far, in one frame."""
        said = {"turn": self.turn or self.joined, "conversation": self.conversation, "updates": self._told.updates}
        return frame("snapshot", encode(said))

    def last(self, request_id: str | None) -> bytes:
        """The last frame for the client that asked: the turn, the answer, or the error."""
        if self.error is not None:
            return frame("error", encode(problem_of(self.error, request_id=request_id)))
        if isinstance(self.result, Turn):
            return frame("turn", encode(public_turn(self.result, events=True)))
        assert self.result is not None
        return frame("answer", encode(side_answer_document(self.result)))

    async def frames(
        self, *, most: int, heartbeat: float, request_id: str | None, late: bool = False
    ) -> AsyncIterator[bytes]:
        """The turn as a stream, to its end. A listener that comes ``late`` first gets a snapshot, in one frame."""
        mailbox = Mailbox(most)
        self._listeners.add(mailbox)
        try:
            yield OPENING + (self.snapshot if late else self._so_far())
            while not self.ended.is_set():
                yield self._read(mailbox) if await mailbox.wait(heartbeat) else HEARTBEAT
            yield self._read(mailbox) + self.last(request_id)
        finally:
            self._listeners.discard(mailbox)

    def _so_far(self) -> bytes:
        return b"".join(update_frame(self.turn, update) for update in self._told.updates)

    def _read(self, mailbox: Mailbox) -> bytes:
        items, dropped = mailbox.take()
        if dropped:
            return gap_frame(dropped) + self.snapshot  # which has the items of the mailbox too
        return b"".join(item.frame for item in items if item is not None)


def tell_end(turn: Turn, watchers: Iterable[Mailbox]) -> None:
    """Tells the watchers of a conversation how a turn ended."""
    if not (watchers := list(watchers)):
        return
    said = Encoded(frame("turn", encode(public_turn(turn))), turn.id, ends=True, conversation=turn.conversation)
    events = [event for event in turn.events if isinstance(event, Event)]
    if events and len(found := b"".join(map(event_frame, events))) <= MOST_BYTES // 4:
        said = replace(said, events=found, first=events[0].id, last=events[-1].id)
    for mailbox in watchers:
        if not said.events:
            mailbox.put(None)  # its events come first, from the store
        mailbox.put(said)


def moves(item: Item) -> bool:
    """Whether an item says that the conversation may have moved."""
    return item is None or bool(item.events)


def ends_of(items: Iterable[Item]) -> list[Encoded]:
    """The items that say how turns ended."""
    return [item for item in items if item is not None and item.ends]


def update_frame(turn: str | None, update: Update) -> bytes:
    """An update as a frame, with its turn."""
    return frame(str(update.__struct_config__.tag), update_json(turn, update))


def gap_frame(dropped: int) -> bytes:
    """Tells a reader that it was too slow for so many frames."""
    return frame("gap", encode({"dropped": dropped}))
