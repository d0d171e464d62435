"""The connections of one process to a database: at most a few, opened when they are needed, kept for the next use.

Two kinds share one count. A `Link` is used by a thread, in which an operation runs statement by statement; a `HotLink`
by the event loop, for writes that are one statement. A few more are apart, for heartbeats, for settling what is unknown
and for a barrier, so that these never wait behind commits that hang, nor for each other. docs/scale.md counts them,
with those of the pulse and of LISTEN, which are opened elsewhere.

Why not psycopg's own pool: it has one pool for each kind; and when the server is gone, callers wait for its time limit
and hear that the pool had no connection, not why.
Tests: tests/postgres/test_transactions.py.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal, TypeAlias, TypeVar

import anyio
import anyio.to_thread
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from forkpoint.errors import BadStoreUrl, StoreUnavailable
from forkpoint.polling import pauses
from forkpoint.store.postgres.address import PostgresAddress
from forkpoint.store.postgres.session.failures import is_lost, is_read_only, is_to_be_tried_again
from forkpoint.store.postgres.session.hot_link import HotLink
from forkpoint.store.postgres.session.link import Link, startup_options
from forkpoint.threads.shield import finished

T = TypeVar("T")

Kind: TypeAlias = Literal["usual", "settle", "barrier", "beat"]
"""What a connection is for. All but the usual ones are counted apart: they never wait behind the others."""

CONNECT = 5
"""Seconds in which a server must take a connection."""

KEEP = 300.0
"""Seconds that a connection is kept without being used."""

_SETTLING = 4  # outcomes that are found out at once
_APART = _SETTLING + 2  # for a barrier and a heartbeat
_PATIENCE = 0.1, 1.0  # seconds between two attempts to reach a server, at first and at most
_LOOK = 0.2  # seconds between two looks at a thread that waits for the server


class Connections:
    """What this process uses to talk to one database."""

    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self._conninfo = conninfo(address)
        self._idle: dict[Kind, list[Link]] = {"usual": [], "settle": [], "barrier": [], "beat": []}
        self._hot: list[HotLink] = []
        self._slots: dict[Kind, asyncio.Semaphore] = {
            "usual": asyncio.Semaphore(address.pool),
            "settle": asyncio.Semaphore(_SETTLING),
            "barrier": asyncio.Semaphore(1),
            "beat": asyncio.Semaphore(1),
        }
        self._threads = anyio.CapacityLimiter(address.pool + _APART)
        self._used = 0  # of the usual ones and the hot ones
        self._closed = False

    @asynccontextmanager
    async def slot(self, kind: Kind = "usual", until: float | None = None) -> AsyncIterator[None]:
        """Within it, a link of this kind may be used: there is room for it. Raises `StoreUnavailable` if there is none
        ``until`` a moment of the monotonic clock."""
        slots = self._slots[kind]
        try:
            async with asyncio.timeout(None if until is None else until - time.monotonic()):
                await slots.acquire()
        except TimeoutError:
            raise StoreUnavailable(self.address.shown, "all connections were in use for too long") from None
        try:
            self._check_open()
            self._used += kind == "usual"
            try:
                yield
            finally:
                self._used -= kind == "usual"
        finally:
            slots.release()

    async def run(self, work: Callable[[Link], T], kind: Kind = "usual", until: float | None = None) -> T:
        """Does work in a thread that has a link to itself.

        Cancelled while it waits for a link, the work is not begun. Once it has begun, the cancellation waits for its
        end: what was sent to a server cannot be called back.
        """
        async with self.slot(kind, until):
            return await finished(partial(self.in_thread, work, kind))

    async def insist(self, work: Callable[[Link], T], until: float, kind: Kind) -> T:
        """The same, again and again while no server can be reached, at most until a moment of the monotonic clock."""
        for pause in pauses(*_PATIENCE):
            try:
                return await self.run(work, kind, until)
            except (psycopg.Error, OSError) as error:
                again = is_lost(error) or is_read_only(error) or is_to_be_tried_again(error)
                if not again or time.monotonic() + pause > until:
                    raise
                await self.forget_idle()
                await anyio.sleep(pause)
        raise AssertionError("pauses have no end")

    @asynccontextmanager
    async def hot(self) -> AsyncIterator[HotLink]:
        """A link for one statement on the event loop. Whoever sends a write must see it through: see `HotLink`."""
        async with self.slot():
            link = self._hot.pop() if self._hot else None
            if link is None:
                await self._make_room(self._idle["usual"])
                link = await self.open_hot()
            try:
                yield link
            finally:
                if self._closed or not link.is_usable:
                    await link.close()
                else:
                    link.used = time.monotonic()
                    self._hot.append(link)

    async def open_hot(self) -> HotLink:
        """A link that is nobody else's. Whoever opened it closes it."""
        return await HotLink.open(self.address, self._conninfo)

    async def forget_idle(self) -> None:
        """Closes what is not in use: the server was lost, and these connections with it."""
        await self._close_some(*self._idle.values(), self._hot, older_than=0.0)

    async def tidy(self) -> None:
        """Closes connections that nobody has used for a while."""
        await self._close_some(*self._idle.values(), self._hot, older_than=KEEP)

    async def close(self) -> None:
        """Closes all. A connection that is in use closes when its use ends."""
        self._closed = True
        await self.forget_idle()

    async def in_thread(self, work: Callable[[Link], T], kind: Kind = "usual") -> T:
        """Does work in a thread that has a link to itself, in a slot and a task that nobody cancels."""
        idle = self._idle[kind]
        link = idle.pop() if idle else None
        while link is not None and link.is_broken:
            link.close()
            link = idle.pop() if idle else None
        if link is None and kind == "usual":
            await self._make_room(self._hot)
        current: list[Link] = [] if link is None else [link]
        watch = _Watch(current)
        try:
            return await anyio.to_thread.run_sync(partial(self._use, work, current), limiter=self._threads)
        finally:
            watch.end()
            for one in current:
                if self._closed or one.is_broken:
                    one.close()
                else:
                    one.used = time.monotonic()
                    idle.append(one)

    def _use(self, work: Callable[[Link], T], current: list[Link]) -> T:
        """In the thread."""
        if not current:
            current.append(Link(self.address, self._conninfo))
        try:
            return work(current[0])
        except (psycopg.Error, OSError) as error:
            if is_lost(error):
                current.pop().close()
            raise
        except BaseException:
            if current[0].is_in_transaction:  # nobody knows what state it is in
                current.pop().close()
            raise

    async def _make_room(self, others: list[Link] | list[HotLink]) -> None:
        """Closes idle connections of the other kind, so that the two kinds together do not exceed the count."""
        while others and self._used + len(self._idle["usual"]) + len(self._hot) > self.address.pool:
            closing = others.pop(0)
            await closing.close() if isinstance(closing, HotLink) else closing.close()

    async def _close_some(self, *kinds: list[Link] | list[HotLink], older_than: float) -> None:
        before = time.monotonic() - older_than
        for kind in kinds:
            while kind and kind[0].used <= before:  # the oldest is first
                link = kind.pop(0)
                await link.close() if isinstance(link, HotLink) else link.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable.store_closed(self.address.shown)


class _Watch:
    """Looks at a link now and then while a thread uses it, and cuts it when the server has not answered in time."""

    def __init__(self, links: list[Link]) -> None:
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_LOOK, self._look)

    def end(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        for link in self._links:
            if link.is_overdue():
                link.cut()
        self._timer = self._loop.call_later(_LOOK, self._look)


def conninfo(address: PostgresAddress) -> str:
    """What libpq is told: the address, and what it leaves open. Raises `BadStoreUrl` if libpq cannot read it."""
    try:
        said = conninfo_to_dict(address.dsn)
    except psycopg.Error:  # what libpq says of it may have a part of the password
        why = "libpq cannot read it; characters such as / @ ? % in a password are written %2F %40 %3F %25"
        raise BadStoreUrl(address.shown, why) from None
    own: dict[str, str | int] = {
        "connect_timeout": CONNECT,
        "application_name": "forkpoint",
        "client_encoding": "utf8",
        "tcp_user_timeout": 10_000,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }
    if not address.read_only:
        own["target_session_attrs"] = "read-write"
    if not address.is_pooled:
        own["options"] = f"{said.pop('options', '')} {startup_options()}".strip()
    return make_conninfo(address.dsn, **{name: value for name, value in own.items() if name not in said})
