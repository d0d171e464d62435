"""Contenders as products that many writers write to at once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread

from benchmarks import ours
from benchmarks.floor import Floor, TurnRows
from benchmarks.peers import Peer
from benchmarks.samples import messages, turn
from forkpoint.errors import Busy
from forkpoint.events import NewEvent
from forkpoint.ids import new_id
from forkpoint.store import Store
from forkpoint.store.values import NewConversation

BEFORE = 100
"""Events in a conversation before the writers come."""


class Writer(Protocol):
    """One writer of turns to one conversation."""

    def prepare(self, number: int) -> Any:
        """The turn of this number, ready to be written."""
        ...

    async def write(self, turn: Any) -> int:
        """Writes a turn; returns how often it was refused before it was accepted."""
        ...


class Product(Protocol):
    """Something that several writers can write to."""

    @property
    def name(self) -> str: ...

    async def conversation(self) -> str:
        """A new conversation with some history."""
        ...

    def writer(self, conversation: str) -> Writer: ...


class Ours:
    """Forkpoint. A writer that hears `Busy` waits a moment and tries again."""

    name = ours.NAME

    def __init__(self, store: Store) -> None:
        self._store = store

    async def conversation(self) -> str:
        return await _conversation(self._store)

    def writer(self, conversation: str) -> Writer:
        return _OurWriter(self._store, conversation)

    async def numbers(self, conversation: str) -> list[int]:
        return [ours.number_of_event(event) for event in await self._store.events(conversation)]


class Bare:
    """Bare SQLite: each writer has a connection and says `BEGIN IMMEDIATE` in a thread."""

    name = "bare SQLite, BEGIN IMMEDIATE in a thread each"

    def __init__(self, path: Path, conversations: Sequence[str]) -> None:
        self._path = path
        self._unused = list(conversations)
        self._floors: list[Floor] = []

    async def conversation(self) -> str:
        return self._unused.pop()

    def writer(self, conversation: str) -> Writer:
        self._floors.append(Floor(self._path, conversation))
        return _BareWriter(self._floors[-1])

    def close(self) -> None:
        for floor in self._floors:
            floor.close()


class Other:
    """A peer."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.name = peer.name

    async def conversation(self) -> str:
        id = new_id()
        await self._peer.fill(id, messages(0, BEFORE))
        return id

    def writer(self, conversation: str) -> Writer:
        return _PeersWriter(self._peer, conversation)

    async def numbers(self, conversation: str) -> list[int]:
        return await self._peer.numbers(conversation)


async def make_conversations(path: Path, count: int) -> list[str]:
    """A file of Forkpoint's with this many conversations, for the bare writers."""
    async with await ours.opened(path) as store:
        return [await _conversation(store) for _ in range(count)]


async def _conversation(store: Store) -> str:
    new = NewConversation(id=new_id())
    return (await store.create(new, ours.events(messages(0, BEFORE)))).id


class _OurWriter:
    def __init__(self, store: Store, conversation: str) -> None:
        self._store = store
        self._conversation = conversation

    def prepare(self, number: int) -> tuple[str, list[NewEvent]]:
        return new_id(), ours.events(turn(number))

    async def write(self, turn: tuple[str, list[NewEvent]]) -> int:
        refused = 0
        while True:
            try:
                await ours.turn(self._store, self._conversation, *turn)
                return refused
            except Busy:
                refused += 1
                await anyio.sleep(0.001)


class _BareWriter:
    def __init__(self, floor: Floor) -> None:
        self._floor = floor

    def prepare(self, number: int) -> TurnRows:
        return self._floor.turn_rows()

    async def write(self, turn: TurnRows) -> int:
        await anyio.to_thread.run_sync(self._floor.write_turn, turn)
        return 0


class _PeersWriter:
    def __init__(self, peer: Peer, conversation: str) -> None:
        self._peer = peer
        self._append = peer.writer(conversation)

    def prepare(self, number: int) -> Any:
        return self._peer.native(turn(number))

    async def write(self, turn: Any) -> int:
        await self._append(turn)
        return 0
