"""Driving Forkpoint: building histories through the public `Store`, and the operations that are measured."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from benchmarks.progress import Progress
from benchmarks.samples import TURN, Message, messages, number_of
from forkpoint.events import (
    AssistantMessage,
    Event,
    Gone,
    NewEvent,
    Opaque,
    Position,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
    encode_body,
)
from forkpoint.ids import new_id
from forkpoint.store import Store, open_store
from forkpoint.store.values import Committed, NewConversation, NewFork, OpenTurn, StoredConversation

NAME = "Forkpoint"

_IN_TURNS = 100  # events before the middle and before the head that are real turns
_NOTE = 2_000  # events in one commit elsewhere: a million single turns would take minutes


class History(Struct, frozen=True):
    """A store's file with one conversation in it, and one fork of that as a sample of such a row."""

    path: Path
    conversation: str
    fork: str
    size: int
    middle: Position


def event(message: Message) -> NewEvent:
    """A message as an event to commit."""
    match message.kind:
        case "user":
            return NewEvent(UserMessage((Text(message.text),)))
        case "call":
            return NewEvent(ToolCall(message.call_id, "look", message.text), response=1)
        case "result":
            return NewEvent(ToolResult(message.call_id, "look", (Text(message.text),)))
        case "answer":
            return NewEvent(AssistantMessage((Text(message.text),)), response=2)


def events(found: Iterable[Message]) -> list[NewEvent]:
    return [event(message) for message in found]


def number_of_event(event: Event) -> int:
    """The number of the message that an event was made from."""
    assert not isinstance(event.body, Opaque | Gone)
    return number_of(encode_body(event.body))


async def opened(path: Path) -> Store:
    """A store freshly opened: nothing of it is in this process's memory yet."""
    return await open_store(f"sqlite:///{path}")


async def new_conversation(store: Store) -> str:
    return (await store.create(NewConversation(id=new_id()))).id


async def turn(store: Store, conversation: str, id: str, events: list[NewEvent]) -> Committed:
    """A whole turn: begun and committed."""
    open = await store.begin(conversation, id)
    assert isinstance(open, OpenTurn)
    return await store.commit(open, events)


async def fork(store: Store, source: str, id: str, at: Position | None = None) -> StoredConversation:
    return await store.fork(source, NewFork(id=id, cache="{}"), at=at)


async def build(path: Path, size: int, progress: Progress) -> History:
    """A history of this many events. Around the middle and at the head, where forks will be, it is in turns."""
    progress.say(f"  building a conversation of {size:,} events")
    async with await opened(path) as store:
        conversation, middle = await fill(store, size, progress)
        sample = await fork(store, conversation, new_id())
    return History(path, conversation, sample.id, size, middle)


async def fill(store: Store, size: int, progress: Progress) -> tuple[str, Position]:
    """Makes a conversation of this many events; returns it, and its middle."""
    conversation = await new_conversation(store)
    middle = Position(0, 0)
    for first, count in _commits(size):
        progress.part("event", first, size)
        commit = turn if count == TURN else _note
        done = await commit(store, conversation, new_id(), events(messages(first, count)))
        if first + count == _middle(size):
            middle = done.last
    return conversation, middle


def _middle(size: int) -> int:
    return size // TURN // 2 * TURN


def _commits(size: int) -> Iterator[tuple[int, int]]:
    """Number of the first event and count of events, for each commit of a history."""
    done = 0
    for end in (_middle(size), size):
        in_turns = max(done, end - _IN_TURNS)
        while done < in_turns:
            count = min(_NOTE, in_turns - done)
            yield done, count
            done += count
        while done < end:
            yield done, min(TURN, end - done)
            done += min(TURN, end - done)


async def _note(store: Store, conversation: str, id: str, events: list[NewEvent]) -> Committed:
    return await store.note(conversation, id, events)
