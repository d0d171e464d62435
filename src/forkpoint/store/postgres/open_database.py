"""An open database: its connections, its clock, and the turns that this process holds in it.
Tests: tests/postgres/test_opening.py, test_holders.py."""

import asyncio
import logging
import os
import random
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import psycopg

from forkpoint.clock import Clock
from forkpoint.errors import ForkpointError, StoreUnusable
from forkpoint.events import Usage
from forkpoint.ids import id_from_bytes
from forkpoint.store.actor import actor
from forkpoint.store.checks import Checks
from forkpoint.store.postgres import schema
from forkpoint.store.postgres.address import PostgresAddress
from forkpoint.store.postgres.barriers import Barriers
from forkpoint.store.postgres.hot.sealed_steps import SealedSteps
from forkpoint.store.postgres.session.connections import Connections
from forkpoint.store.postgres.session.failures import is_read_only, translated
from forkpoint.store.postgres.session.hints import Hints
from forkpoint.store.postgres.session.link import Link, Transaction
from forkpoint.store.postgres.session.pulse import SnapshotPulse
from forkpoint.store.postgres.session.server_clock import ServerClock
from forkpoint.store.postgres.settings import PostgresSettings
from forkpoint.store.postgres.transactions import Transactions, Write
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.operations import turns
from forkpoint.store.tables.rows import Scope
from forkpoint.store.tables.settings import SECOND
from forkpoint.store.values import DEFAULT_TENANT, Access, Capabilities

_log = logging.getLogger("forkpoint")


@dataclass(eq=False)
class OpenDatabase:
    """What all tenants of one open store share."""

    settings: PostgresSettings
    connections: Connections
    pulse: SnapshotPulse
    clock: Clock
    hints: Hints
    barriers: Barriers = field(init=False)
    transactions: Transactions = field(init=False)
    read_only: str | None = None
    beaten: int | None = None  # when this process last said, in a committed transaction, that it is alive
    running: set[bytes] = field(default_factory=set)  # tokens of the turns that this process holds
    # Turns whose outcome is unknown, by tenant and id: their token, and what was spent last.
    unsettled: dict[tuple[str, str], tuple[bytes, Usage]] = field(default_factory=dict)
    sealed: SealedSteps = field(default_factory=SealedSteps)
    closed: bool = False
    is_only_measured: bool = False  # somebody asked what a collection would remove: then closing removes nothing
    commits: int = 0  # of this process
    holder: bytes = field(default_factory=lambda: os.urandom(16))
    _since: int = 0
    _beating: "list[asyncio.Task[None]]" = field(default_factory=list)
    _strays: set[bytes] = field(default_factory=set)  # tokens that only the database knows, when it was last asked
    _doubted: dict[bytes, bool] = field(default_factory=dict)  # tokens that it may know, and whether they began a turn
    _missing: set[bytes] = field(default_factory=set)  # those of them that it did not know when it was last asked

    def __post_init__(self) -> None:
        self.barriers = Barriers(self.connections, self.settings)
        self.transactions = Transactions(self.connections, self.settings, self.scope, self._count, self.barriers)
        self._since = self.clock()

    @classmethod
    async def open(
        cls, address: PostgresAddress, settings: PostgresSettings, clock: Clock | None, access: Access
    ) -> Self:
        """Connects to a database, and makes or migrates its tables as far as ``access`` says."""
        connections = Connections(address)
        opened = cls(
            settings,
            connections,
            SnapshotPulse(connections),
            ServerClock() if clock is None else clock,
            Hints(connections, ""),
        )
        try:
            with translated(address.shown):
                opened.read_only, store = await connections.run(partial(_prepare, access=access))
                opened.hints = Hints(connections, f"forkpoint {store.hex()}")
                await opened.hints.open(settings.listen_within)
        except BaseException:
            await opened.close()
            raise
        return opened

    @property
    def path(self) -> str:
        return self.connections.address.shown

    @property
    def checks(self) -> Checks:
        return Checks(self.settings.limits)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=True, shared=True, notify=self.hints.is_open, replicated=True)

    def check_writable(self) -> None:
        """Raises `StoreUnusable` if the database is open for reading only."""
        if self.read_only is not None:
            raise StoreUnusable.opened_to_read(self.path, self.read_only)

    async def is_made(self) -> bool:
        self.check_writable()
        return True

    @property
    def is_open(self) -> bool:
        """Whether it can be written to."""
        return self.read_only is None and not self.closed

    def scope(self, tenant: str, transaction: Transaction | None = None) -> Scope:
        """The inputs that all operations share: as of a transaction's beginning, or as they are now."""
        now = self.clock() if transaction is None else self.hear(transaction.now)
        return Scope(tenant, now, self.holder, partial(self._is_alive, now=now), actor())

    # Being alive.

    async def enrol(self) -> None:
        """Makes sure that this process says that it is alive as long as it holds turns."""
        self.check_writable()
        if not self._beating and not self.closed:
            loop = asyncio.get_running_loop()
            tasks = (("heartbeat", self._beat), ("search for turns that nobody runs", self._let_strays_go))
            self._beating = [loop.create_task(self._repeat(what, work)) for what, work in tasks]

    def doubt(self, token: bytes, *, begun: bool) -> None:
        self._doubted[token] = begun  # it is a stray, if it is there: held for good, it would block its conversation

    def is_silent(self) -> bool:
        return self.beaten is None or self.clock() - self.beaten > self.settings.heartbeat

    def say_alive(self, db: Database) -> int:
        now = self.clock()
        db.run("beat", {"id": self.holder, "now": now, **self.whereabouts})
        return now

    @property
    def whereabouts(self) -> dict[str, str | int]:
        """Where this process is, as the row of a holder says it."""
        return {"host": socket.gethostname(), "process": os.getpid(), "since": self._since}

    async def close(self) -> None:
        """Lets others know that this process is gone, and closes all connections. Open turns are interrupted."""
        if self.closed:
            return
        for task in self._beating:
            task.cancel()
        try:
            if self.beaten is not None:
                with suppress(ForkpointError):  # its heartbeat runs out
                    await self._write("leave", lambda db, scope: db.run("leave", {"id": self.holder}))
        finally:
            self.closed = True
            await self.hints.close()
            await self.pulse.close()
            await self.connections.close()
            await self.barriers.close()
            if self._beating:  # a thread of theirs may be connecting just now: nobody else would close what it opens
                await asyncio.wait(self._beating)

    async def _repeat(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Does work again and again while this process holds turns, or may hold some. No failure ends this."""
        while True:
            await asyncio.sleep(self.settings.heartbeat / SECOND * random.uniform(0.7, 1.0))  # noqa: S311
            await self.connections.tidy()
            if not (self.running or self._doubted or self._strays):
                continue
            try:
                await work()
            except ForkpointError as error:
                _log.warning("the %s did not reach the store: %s", what, error)
            except Exception:
                _log.exception("the %s failed", what)

    async def _beat(self) -> None:
        self.beaten = await self._write("heartbeat", lambda db, scope: self.say_alive(db))

    async def _let_strays_go(self) -> None:
        """Gives turns back that this process holds as the database says, but that nobody here knows of.

        So it is with a begin that was given up because nobody answered, and reached the server afterwards; and with one
        whose caller heard that its outcome is unknown. A turn that is being begun just now looks the same, so only
        turns that were strange twice are given back. This waits for connections as any other work does, and no
        heartbeat waits for this.
        """
        found = await self.transactions.read(DEFAULT_TENANT, self._held)
        strays = {token: (tenant, turn) for tenant, turn, token in found if token not in self.running}
        missing = self._doubted.keys() - strays.keys()
        for token in self._missing & missing:  # it has never reached the database
            del self._doubted[token]
        self._missing = missing
        for token in self._strays & strays.keys():
            tenant, turn = strays[token]
            run = partial(turns.let_go, id=turn, token=token, begun=self._doubted.get(token, True))
            write: Write[None] = Write("turn", turn, run, landed=lambda db, scope: True, durable=False)
            await self.transactions.write(tenant, write)
            self._doubted.pop(token, None)
        self._strays = set(strays)

    def _held(self, db: Database, scope: Scope) -> list[tuple[str, str, bytes]]:
        rows = db.run("turns_held", {"holder": self.holder})
        return [(row["tenant"], id_from_bytes(row["id"]), row["token"]) for row in rows]

    async def _write(self, what: str, operation: Any) -> Any:
        write: Write[Any] = Write(what, "", operation, landed=lambda db, scope: True, durable=False, kind="beat")
        return await self.transactions.write(DEFAULT_TENANT, write)

    def _is_alive(self, holder: bytes | None, seen: int | None, now: int) -> bool:
        """Whether the process that holds a turn may still be working on it."""
        if holder is None or seen is None:
            return False
        return holder == self.holder or now - seen <= self.settings.expiry

    def hear(self, now: int) -> int:
        """The server said what time it is. Returns the time by the clock of this store, which may be another."""
        if isinstance(self.clock, ServerClock):
            self.clock.hear(now)
            return now
        return self.clock()

    def _count(self) -> None:
        self.commits += 1


def _prepare(link: Link, access: Access) -> tuple[str | None, bytes]:
    """Makes the tables ready, and returns why nothing may be written, None if it may; and which store it is."""
    return _reason_not_to_write(link, access), schema.store_id(link)


def _reason_not_to_write(link: Link, access: Access) -> str | None:
    if access == "read" or link.address.read_only:
        schema.prepare_to_read(link)
        return "by ?mode=ro"
    try:
        schema.prepare(link, link.address)
    except psycopg.Error as error:
        if access == "as_needed" and (is_read_only(error) or error.sqlstate == "42501"):
            schema.prepare_to_read(link)
            return "the server lets nobody write" if is_read_only(error) else "the role may not write"
        raise
    return None
