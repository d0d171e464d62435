"""The arena of one measurement: contenders on files of their own, closed and removed when it is over."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchmarks import ours
from benchmarks.bench import Bench
from benchmarks.floor import Floor, make_documents
from benchmarks.ours import History
from benchmarks.peers import Peer, PeerKind
from benchmarks.samples import messages
from forkpoint.store import Store

IT = "it"
"""The conversation of a peer that is measured."""


class Arena:
    """Brings contenders in, each on a copy of the same history, or on an equal one of its own."""

    def __init__(self, bench: Bench, exits: AsyncExitStack) -> None:
        self._bench = bench
        self._exits = exits

    async def ours(self, history: History) -> Store:
        return await self._exits.enter_async_context(await ours.opened(self._file(self._bench.copy(history))))

    def floor(self, history: History) -> Floor:
        floor = Floor(self._file(self._bench.copy(history)), history.conversation, history.fork)
        self._exits.callback(floor.close)
        return floor

    async def store(self) -> Store:
        """Forkpoint on a new file."""
        return await self._exits.enter_async_context(await ours.opened(self.file()))

    async def peer(self, kind: PeerKind, size: int) -> Peer:
        peer = self.empty_peer(kind)
        await peer.fill(IT, messages(0, size))
        return peer

    def empty_peer(self, kind: PeerKind) -> Peer:
        """A peer on a new file."""
        peer = kind(self.file())
        self._exits.callback(peer.close)
        return peer

    async def peer_file(self, kind: PeerKind, size: int) -> Path:
        """The file of a peer that is not open: to be opened anew each time."""
        path = self.file()
        peer = kind(path)
        await peer.fill(IT, messages(0, size))
        peer.close()
        return path

    async def documents(self, history: History) -> Path:
        """The floor's file for reading: the same events as plain JSON documents."""
        path = self.file()
        async with await ours.opened(history.path) as store:
            make_documents(path, await store.events(history.conversation))
        return path

    def file(self) -> Path:
        """Where a new database may be made."""
        return self._file(self._bench.new_file())

    def later(self, close: Callable[[], object]) -> None:
        """Has something done when the arena is left."""
        self._exits.callback(close)

    def _file(self, path: Path) -> Path:
        self._exits.callback(self._bench.drop, path)
        return path


@asynccontextmanager
async def arena(bench: Bench) -> AsyncIterator[Arena]:
    async with AsyncExitStack() as exits:
        yield Arena(bench, exits)
