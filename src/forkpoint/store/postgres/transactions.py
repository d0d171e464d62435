"""Runs operations in transactions: reads on one snapshot, writes that are tried again when another came between.

A write that the server has not confirmed is neither done nor not done. `settling` finds out, and until then nobody
hears an answer. Tests: tests/postgres/test_transactions.py.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import anyio
import msgspec
import psycopg

from forkpoint.errors import ForkpointError, OutcomeUnknown, StoreDamaged
from forkpoint.store.postgres.barriers import Barriers
from forkpoint.store.postgres.session.connections import Connections, Kind
from forkpoint.store.postgres.session.database import READING, WRITING, PostgresDatabase
from forkpoint.store.postgres.session.failures import is_lost, is_read_only, is_to_be_tried_again, translate
from forkpoint.store.postgres.session.link import Link, Session, Transaction, Unconfirmed
from forkpoint.store.postgres.settings import PostgresSettings
from forkpoint.store.postgres.settling import find_out
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.rows import Scope
from forkpoint.threads.shield import finished

T = TypeVar("T")

TRIES = 8
"""How often an operation is run at most, when others come between again and again."""

_LOST = 2  # how often it is run at most when its connections are lost
_PAUSE = 0.005  # seconds at first between two tries
_SNAPSHOT = "ISOLATION LEVEL REPEATABLE READ READ ONLY"


@dataclass(eq=False)
class Write(Generic[T]):
    """An operation that writes. ``what`` and ``id`` name it in errors."""

    what: str
    id: str
    operation: Callable[[PostgresDatabase, Scope], T]
    landed: Callable[[PostgresDatabase, Scope], bool]  # asked in another transaction if nobody knows; may write
    not_landed: Callable[[Exception], ForkpointError] | None = None  # the error for the caller if it did not
    durable: bool = True  # whether it must survive a power cut of the server
    exclusive: bool = False  # whether nobody else may write meanwhile
    kind: Kind = "usual"


@dataclass(eq=False)
class Transactions:
    """Runs operations for any tenant of one database. ``scope`` makes the inputs that all operations share."""

    connections: Connections
    settings: PostgresSettings
    scope: Callable[[str, Transaction], Scope]
    committed: Callable[[], None]  # called after each commit
    barriers: Barriers

    @property
    def path(self) -> str:
        return self.connections.address.shown

    async def read(self, tenant: str, operation: Callable[[PostgresDatabase, Scope], T]) -> T:
        """What an operation reads from one snapshot: the newest at the time of the call."""
        return await self._look(partial(self._read, tenant, operation))

    async def _look(self, work: Callable[[Link], T]) -> T:
        try:
            try:
                return await self.connections.run(work)
            except (psycopg.Error, OSError) as error:
                if not is_lost(error):
                    raise
                await self.connections.forget_idle()  # nobody may have used it for long, and all are lost with it
                return await self.connections.run(work)
        except (psycopg.Error, OSError) as error:
            raise translate(error, self.path) from error
        except msgspec.DecodeError as error:
            raise StoreDamaged(self.path, f"a row cannot be read ({error})") from error

    async def read_for_good(
        self, tenant: str, what: str, id: str, operation: Callable[[Database, Scope], T], is_answer: Callable[[T], bool]
    ) -> T:
        """What an operation reads. If that is an answer, nothing of it can be lost with this server any more.

        A commit can be read although no standby has confirmed it: somebody cancelled its wait, or the server has been
        restarted since. So if the server has synchronous standbys, a barrier comes before the answer, on the same
        server. Without standbys this is one statement more. Raises `OutcomeUnknown` if no standby confirms the barrier.
        """

        def look(link: Link) -> tuple[T, str | None]:
            def read(db: PostgresDatabase, scope: Scope) -> tuple[T, bool]:
                found = operation(db, scope)
                return found, is_answer(found) and _waits_for_standbys(db)

            found, waits = self._read(tenant, read, link)
            return found, link.transaction.server if waits and link.transaction is not None else None

        until = time.monotonic() + self.settings.settle_within
        while True:
            found, server = await self._look(look)
            if server is None:
                return found
            try:
                if await self.barriers.passed(until) == server:
                    return found
            except ForkpointError:
                raise
            except Exception as error:
                raise OutcomeUnknown(self.path, what, id, _said(error)) from error
            await self.connections.forget_idle()  # they are to the server that was there before

    async def write(self, tenant: str, write: Write[T]) -> T:
        """Runs an operation in a transaction of its own, and returns its result when that is certain.

        Cancelled while it waits for a connection, it is not begun. Afterwards the cancellation waits until the outcome
        is known.
        """
        async with self.connections.slot(write.kind):
            return await finished(partial(self._run, tenant, write))

    async def _run(self, tenant: str, write: Write[T]) -> T:
        lost = 0
        for attempt in range(TRIES):
            attempts: list[tuple[Transaction, T]] = []
            try:
                await self.connections.in_thread(partial(self._write, tenant, write, attempts), write.kind)
            except Unconfirmed as unknown:
                await self._settle(tenant, write, attempts[-1][0], unknown.cause)
            except _Clash as clash:
                if attempt:  # the second time it is no accident
                    raise clash.error from clash.error.__cause__
                continue
            except (psycopg.Error, OSError) as error:
                if is_lost(error) or is_read_only(error):
                    await self.connections.forget_idle()
                    lost += 1
                elif not is_to_be_tried_again(error):
                    lost = _LOST
                if lost < _LOST and attempt + 1 < TRIES:
                    await anyio.sleep(random.uniform(0, _PAUSE * 2**attempt))  # noqa: S311
                    continue
                raise translate(error, self.path) from error
            except msgspec.DecodeError as error:
                raise StoreDamaged(self.path, f"a row cannot be read ({error})") from error
            self.committed()
            return attempts[-1][1]
        raise AssertionError("the last try returns or raises")

    # In a thread.

    def _read(self, tenant: str, operation: Callable[[PostgresDatabase, Scope], T], link: Link) -> T:
        transaction = link.begin(_SNAPSHOT)
        try:
            return operation(PostgresDatabase(link, tenant, READING), self.scope(tenant, transaction))
        finally:
            link.rollback()  # there is nothing to commit

    def _write(self, tenant: str, write: Write[T], attempts: list[tuple[Transaction, T]], link: Link) -> None:
        unsynced = () if write.durable else ("synchronous_commit = off",)
        first = None if write.kind == "beat" else WRITING["stop_writers" if write.exclusive else "join_writers"]
        try:
            transaction = link.begin("", *unsynced, first=first)
            db = PostgresDatabase(link, tenant, WRITING)
            result = write.operation(db, self.scope(tenant, transaction))
        except ForkpointError as error:
            link.rollback()
            if link.has_clashed:
                raise _Clash(error) from error
            raise
        except BaseException:
            link.rollback()
            raise
        attempts.append((transaction, result))
        link.commit(self.settings.commit_within)

    # After a COMMIT that nobody has confirmed.

    async def _settle(self, tenant: str, write: Write[T], transaction: Transaction, error: Exception) -> None:
        """Returns if the write is in the database for good. Raises what the caller has to hear if it is not."""
        if not await self.find_out(tenant, write, transaction, error):
            raise translate(error, self.path) if write.not_landed is None else write.not_landed(error)

    async def find_out(
        self, tenant: str, write: Write[T], lost: Transaction | Session | None, error: Exception
    ) -> bool:
        """Whether a write that nobody has confirmed is in the database for good. Raises `OutcomeUnknown`.

        ``lost`` is what was to commit it; None if nobody can know, as behind a pooler.
        """
        await self.connections.forget_idle()
        until = time.monotonic() + self.settings.settle_within

        def find(link: Link) -> tuple[bool, str]:
            return find_out(link, lost, write.landed, tenant=tenant, scope=partial(self.scope, tenant), until=until)

        try:
            while True:
                there, server = await self.connections.insist(find, until, "settle")
                # The barrier must be on the server that was asked: after a failover another one says nothing about it.
                if not write.durable or await self.barriers.passed(until) == server:
                    return there
                await self.connections.forget_idle()
        except Exception as second:  # whatever it was: what became of the write is not known
            detail = f"{translate(error, self.path)}; then {_said(second)}"
            raise OutcomeUnknown(self.path, write.what, write.id, detail) from second


class _Clash(Exception):
    """An id, a key or a name was taken: perhaps by the same request, a moment ago, which the next try will find."""

    def __init__(self, error: ForkpointError) -> None:
        super().__init__()
        self.error = error


def _waits_for_standbys(db: PostgresDatabase) -> bool:
    row = db.run("read_standbys").fetchone()
    return row is not None and bool(row["confirm"])


def _said(error: Exception) -> str:
    return str(error.cause if isinstance(error, Unconfirmed) else error)
