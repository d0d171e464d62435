"""What a peer must be able to do to be measured. Each is driven through its public API, in its cheapest way."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from benchmarks.samples import Message, messages

Native: TypeAlias = Any
"""Messages in a peer's own form."""

_SPREAD = 10_000  # events that a peer has in all its conversations of one size

Append: TypeAlias = Callable[[Native], Awaitable[None]]


class Peer(Protocol):
    """Conversations of another product in a SQLite file, freshly opened."""

    name: str

    def native(self, found: Sequence[Message]) -> Native:
        """Messages in its own form, made before the clock starts."""
        ...

    async def fill(self, conversation: str, found: Sequence[Message]) -> None:
        """Makes a conversation of these, with a place to fork at in the middle."""
        ...

    async def fork(self, conversation: str, *, middle: bool = False) -> str:
        """Another conversation with the same history, or the first half of it; returns its name."""
        ...

    def open(self, conversation: str) -> None:
        """Makes its object for a conversation, if it has such; nothing is read."""
        ...

    async def select(self, conversation: str) -> None:
        """Makes this the conversation that the next calls are about, its connection open."""
        ...

    async def append(self, conversation: str, turn: Native) -> None:
        """Adds a turn's messages."""
        ...

    async def load(self, conversation: str) -> Sequence[object]:
        """All messages."""
        ...

    async def tail(self, conversation: str, count: int) -> Sequence[object]:
        """The last messages."""
        ...

    async def numbers(self, conversation: str) -> list[int]:
        """The numbers of all messages that are there, in order."""
        ...

    def writer(self, conversation: str) -> Append:
        """One of many that write at once, as a request of its own would."""
        ...

    def close(self) -> None: ...


class PeerKind(Protocol):
    """Opens a file of a peer's, making it if there is none."""

    @property
    def name(self) -> str: ...

    def __call__(self, path: Path) -> Peer: ...


async def fill_many(peer: Peer, size: int) -> Iterator[str]:
    """Conversations of this size, to be used in turn: what an operation costs a peer grows with those before it."""
    names = [f"it-{number}" for number in range(max(1, _SPREAD // size))]
    for name in names:
        await peer.fill(name, messages(0, size))
    return cycle(names)


def storing() -> list[PeerKind]:
    """The peers, for forks and for reading."""
    # Imported only when they are measured: `--help` should not wait for them.
    from benchmarks.peers_langgraph import LangGraph
    from benchmarks.peers_openai import AdvancedSession, Session

    return [Session, AdvancedSession, LangGraph]


def appending() -> list[PeerKind]:
    """The peers, for turns one after another; LangGraph also in its usual way, which costs more."""
    from benchmarks.peers_langgraph import LangGraphInvoke

    return [*storing(), LangGraphInvoke]


def writing() -> list[PeerKind]:
    """The peers, for turns at once; each also as its own runner stores a turn, which takes it several writes."""
    from benchmarks.peers_openai import SessionInTwo

    first, *others = appending()
    return [first, SessionInTwo, *others]
