"""What is told of a turn while it runs, to any number of listeners, none of whom can hold it up.

An update is encoded once, when somebody listens. A listener has a mailbox of bounded size: one who reads too slowly
loses provisional frames, is told so, and gets a snapshot of how the turn stands. Nothing that is committed is ever
lost: that is read from the store.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
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

MOST_BYTES = 1024 * 1024
"""What a mailbox holds before its reader counts as too slow, however few frames that are."""

ENDS = 16
"""So many ends of turns are kept for a slow reader."""


class Encoded(Struct, frozen=True):
    """What is told of a turn, encoded."""

    frame: bytes
    turn: str | None  # None: of a side question
    ends: bool = False  # whether it is how the turn ended: then a slow reader gets it too
    events: bytes = b""  # what the turn committed, ready for all whose last event comes right before
    first: Position | None = None  # where these events begin
    last: Position | None = None
    conversation: str | None = None  # for one who watches several

    @property
    def size(self) -> int:
        return len(self.frame) + len(self.events)

    @property
    def alone(self) -> "Encoded":
        """The same without the events, for a reader who reads them from the store."""
        return Encoded(self.frame, self.turn, self.ends, conversation=self.conversation)


Item: TypeAlias = Encoded | None
"""Something for a listener; or None: look again, the turn may have ended or the conversation moved."""

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
        """Adds something, and never waits: if it is full, frames go that nobody took."""
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
        """All that is there, and how many frames were dropped before it because nobody took them."""
        items, dropped = self._items, self._dropped
        self._items, self.size, self._dropped = [], 0, 0
        return items, dropped

    async def wait(self, seconds: float) -> bool:
        """Waits until something is there. Says whether anything came in time."""
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
    """A turn that runs, or a side question, told to all who listen."""

    def __init__(self, watchers: Callable[[], Iterable[Mailbox]] = tuple) -> None:
        self.turn: str | None = None  # once it has begun
        self.joined: str | None = None  # the turn that it turned out to be: its key was used before
        self.conversation: str | None = None
        self.result: Turn | SideAnswer | None = None
        self.error: Exception | None = None
        self.waiters = 0  # requests that wait for it, and without which it would be stopped
        self.is_left = False  # whoever asked for it has gone, and it is being stopped
        self.begun = asyncio.Event()  # or ended without having begun
        self.ended = asyncio.Event()
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
                return  # its end is told when whoever asked for it gets it
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
        """It has ended: with a turn or an answer, or with an error."""
        self.result, self.error = result, error
        self.begun.set()
        self.ended.set()
        if (turn := self.outcome) is not None and turn.id == self.turn:
            tell_end(turn, self._watchers())
        for mailbox in self._listeners:
            mailbox.put(None)

    @property
    def outcome(self) -> Turn | None:
        """The turn as it ended, well or not; None if it is none, or did not begin."""
        turn = self.result if self.error is None else getattr(self.error, "turn", None)
        return turn if isinstance(turn, Turn) else None

    @property
    def snapshot(self) -> bytes:
        """How the turn stands: all that was told of it, in one frame."""
        said = {"turn": self.turn or self.joined, "conversation": self.conversation, "updates": self._told.updates}
        return frame("snapshot", encode(said))

    def last(self, request_id: str | None) -> bytes:
        """The last frame for whoever asked: the turn, the answer, or what went wrong."""
        if self.error is not None:
            return frame("error", encode(problem_of(self.error, request_id=request_id)))
        if isinstance(self.result, Turn):
            return frame("turn", encode(public_turn(self.result, events=True)))
        assert self.result is not None
        return frame("answer", encode(side_answer_document(self.result)))

    async def frames(
        self, *, most: int, heartbeat: float, request_id: str | None, late: bool = False
    ) -> AsyncIterator[bytes]:
        """The turn as a stream, to its end. One who comes ``late`` first hears how it stands, in one frame."""
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
            return gap_frame(dropped) + self.snapshot  # what else is in the mailbox is in there too
        return b"".join(item.frame for item in items if item is not None)


def tell_end(turn: Turn, watchers: Iterable[Mailbox]) -> None:
    """Tells those who watch a conversation how a turn of it ended."""
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
    """Whether the conversation may have moved when something was put into a mailbox."""
    return item is None or bool(item.events)


def ends_of(items: Iterable[Item]) -> list[Encoded]:
    """How turns ended, of all that was in a mailbox."""
    return [item for item in items if item is not None and item.ends]


def update_frame(turn: str | None, update: Update) -> bytes:
    """An update as a frame, with the turn that it is told of."""
    data = encode(update)
    if turn is not None and not isinstance(update, TurnStarted):
        data = b'{"turn":"' + turn.encode() + b'",' + data[1:]
    return frame(str(update.__struct_config__.tag), data)


def gap_frame(dropped: int) -> bytes:
    """Tells a reader that it was too slow for so many frames."""
    return frame("gap", encode({"dropped": dropped}))
