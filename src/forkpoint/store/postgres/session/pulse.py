"""The pulse of a store: a number that changes with every commit.

PostgreSQL has no number of commits that could be read without waiting. But a snapshot names all transactions that have
ended and that have not, so two equal snapshots have nothing between them. Reading one takes a round trip and no lock.
Snapshots are of the whole server: what others write there, in other databases too, also changes the number.

The pulse has a connection of its own, so that it waits for no write of this process.
Tests: forkpoint.testing.conformance.
"""

import asyncio

import psycopg

from forkpoint.errors import StoreUnavailable
from forkpoint.store.postgres.session.connections import Connections
from forkpoint.store.postgres.session.database import READING
from forkpoint.store.postgres.session.failures import is_lost, translate
from forkpoint.store.postgres.session.hot_link import HotLink
from forkpoint.store.postgres.session.link import STATEMENT
from forkpoint.threads.shield import finished


class SnapshotPulse:
    """Counts how often it saw another snapshot."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._link: HotLink | None = None
        self._seen: str | None = None
        self._count = 0
        self._closed = False
        self._looking = asyncio.Lock()

    async def read(self) -> int:
        """The number as it is now."""
        async with self._looking:
            if self._closed:
                raise StoreUnavailable.store_closed(self._connections.address.shown)
            seen = await finished(self._look)
            if seen != self._seen:
                self._seen = seen
                self._count += 1
            return self._count

    async def close(self) -> None:
        self._closed = True
        async with self._looking:
            await self._let_go()

    async def _look(self) -> str:
        is_new = self._link is None
        try:
            try:
                return await self._snapshot()
            except (psycopg.Error, OSError) as error:
                await self._let_go()
                if is_new or not is_lost(error):
                    raise
                return await self._snapshot()
        except (psycopg.Error, OSError) as error:
            await self._let_go()
            raise translate(error, self._connections.address.shown) from error

    async def _snapshot(self) -> str:
        if self._link is None:
            self._link = await self._connections.open_hot()
        rows = await self._link.execute(READING["last_transaction"], {}, within=STATEMENT)
        snapshot: str = rows[0]["snapshot"]
        return snapshot

    async def _let_go(self) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            await link.close()
