"""What the parts of the suite share: how a store is opened, and small helpers to fill it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeAlias

import pytest

from forkpoint.clock import Clock
from forkpoint.events import Event, JsonText, NewEvent, Usage
from forkpoint.ids import new_id
from forkpoint.store.protocol import Store
from forkpoint.store.values import Committed, NewConversation, NewFork, OpenTurn, StoredConversation
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.samples import exchange

Opener: TypeAlias = Callable[[Clock], Awaitable[Store]]


@pytest.mark.anyio
class Conformance:
    """Fixtures that all parts use. A subclass has to give `opener`."""

    @pytest.fixture
    def opener(self) -> Opener:
        raise NotImplementedError("say how your store is opened: give the fixture `opener`")

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    async def store(self, opener: Opener, clock: ManualClock) -> AsyncIterator[Store]:
        opened = await opener(clock)
        yield opened
        await opened.close()

    @pytest.fixture
    async def second(self, store: Store, opener: Opener, clock: ManualClock) -> AsyncIterator[Store]:
        """The same data, as another process would open it; the store itself if nobody else can see it."""
        if not store.capabilities.shared:
            yield store
            return
        opened = await opener(clock)
        yield opened
        await opened.close()


async def create(store: Store, name: str | None = None) -> StoredConversation:
    return await store.create(NewConversation(id=new_id(), name=name, settings='{"a":1}', cache='{"key":"k"}'))


async def begin(store: Store, conversation: str, input: JsonText | None = None) -> OpenTurn:
    turn = await store.begin(conversation, new_id(), input=input)
    assert isinstance(turn, OpenTurn)
    return turn


async def run(
    store: Store,
    conversation: str,
    events: Sequence[NewEvent] | str,
    usage: Usage = Usage(calls=1, input=10),
    input: JsonText | None = None,
) -> Committed:
    """A whole turn."""
    turn = await begin(store, conversation, input)
    return await store.commit(turn, exchange(events) if isinstance(events, str) else events, usage=usage)


def fork_of(name: str | None = None, **more: object) -> NewFork:
    return NewFork(id=new_id(), cache='{"key":"fork"}', name=name, **more)  # type: ignore[arg-type]


def texts(events: Sequence[Event]) -> list[str]:
    """What was said, in order: enough to tell two histories apart."""
    said = []
    for event in events:
        parts = getattr(event.body, "parts", ())
        said.append(" ".join(getattr(part, "text", "?") for part in parts) or event.kind)
    return said
