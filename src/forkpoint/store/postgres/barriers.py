"""Barriers: commits that wait for every standby that has to confirm them. Once a barrier has passed, whatever its
server had committed before is as safe.

One barrier is raised at a time, for all who wait. Whoever comes while it is being raised waits for the next, since what
they have read may be newer. So while a standby is away nobody holds a connection but the barrier, however many wait.
Tests: tests/postgres/test_barriers.py.
"""

import asyncio
import time
from contextlib import suppress
from functools import partial

import psycopg

from forkpoint.store.postgres.session.connections import Connections
from forkpoint.store.postgres.session.database import WRITING, PostgresDatabase
from forkpoint.store.postgres.session.link import Link, Transaction, Unconfirmed
from forkpoint.store.postgres.settings import PostgresSettings
from forkpoint.store.postgres.settling import end_session


class Barriers:
    """The barriers of one process on one database."""

    def __init__(self, connections: Connections, settings: PostgresSettings) -> None:
        self._connections = connections
        self._settings = settings
        self._one = asyncio.Lock()  # held by the barrier that is being raised
        self._next: asyncio.Task[str] | None = None  # the barrier that is not yet being raised
        self._tasks: set[asyncio.Task[str]] = set()

    async def passed(self, until: float) -> str:
        """Returns once a barrier has passed that was raised after this call: on which server (`Transaction.server`).

        Raises what the barrier came to if it did not pass, and `Unconfirmed` if that is not known ``until`` a moment of
        the monotonic clock.
        """
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._raise())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._forget)
        barrier = self._next
        await asyncio.wait(
            [barrier], timeout=max(until - time.monotonic(), 0)
        )  # cancelled, it leaves the barrier alone
        if not barrier.done():
            raise Unconfirmed(psycopg.OperationalError("no standby has confirmed it in time"))
        return barrier.result()

    async def close(self) -> None:
        """Returns when no barrier is left. The connections were closed before, so that no other one is raised."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _raise(self) -> str:
        async with self._one:
            self._next = None
            began: list[Transaction] = []
            try:
                until = time.monotonic() + self._settings.settle_within
                return await self._connections.insist(partial(self._commit, began), until, "barrier")
            except Exception:
                await self._leave(began)
                raise

    def _commit(self, began: list[Transaction], link: Link) -> str:
        """In a thread."""
        transaction = link.begin()
        began.append(transaction)
        try:
            PostgresDatabase(link, "", WRITING).run("raise_barrier")
        except BaseException:
            link.rollback()
            raise
        link.commit(self._settings.commit_within)
        return transaction.server

    async def _leave(self, began: list[Transaction]) -> None:
        """Ends the session of a barrier that was not confirmed: it waits for a standby, and would do so for good."""
        if began:
            with suppress(Exception):
                end = partial(end_session, lost=began[-1], until=time.monotonic() + 1)
                await self._connections.run(end, "barrier")

    def _forget(self, barrier: "asyncio.Task[str]") -> None:
        self._tasks.discard(barrier)
        if not barrier.cancelled():
            barrier.exception()  # it was looked at, also if nobody waits for it any more
