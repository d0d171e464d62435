"""Hints between the processes that have a store open, by NOTIFY and LISTEN. They are fast and may be lost.

A pooler takes LISTEN and never delivers anything. So before a store says that it carries hints, it has sent one to
itself and heard it. Why no hint after each commit: it would cost a commit of its own, and the pulse finds every commit
without it. Tests: tests/postgres/test_hints.py.
"""

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import psycopg
from msgspec.structs import replace

from forkpoint.errors import TooLarge
from forkpoint.store.postgres.session.connections import Connections, conninfo
from forkpoint.store.postgres.session.database import WRITING
from forkpoint.store.postgres.session.failures import translate
from forkpoint.store.postgres.session.link import STATEMENT
from forkpoint.threads.shield import finished

LARGEST = 7_999
"""Bytes that PostgreSQL takes."""

_PROOF = "proof "  # how a hint begins that a process sends to itself
_PAUSES = (0.1, 5.0)  # seconds between two attempts to connect: at first, and at most

_log = logging.getLogger("forkpoint")


class Hints:
    """What this process tells the others, and hears from them. ``channel`` is the name of the store among others."""

    def __init__(self, connections: Connections, channel: str) -> None:
        self._connections = connections
        self._channel = channel
        self._heard: list[Callable[[str], None]] = []
        self._connection: psycopg.AsyncConnection[tuple[object, ...]] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._proof = ""
        self._proven = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether hints arrive."""
        return self._listening is not None

    async def open(self, within: float) -> bool:
        """Begins to listen. False if a hint of its own has not arrived within so many seconds, or none is wanted."""
        address = self._connections.address
        if address.listen == "" or (address.is_pooled and address.listen is None):
            return False
        self._proof, self._proven = f"{_PROOF}{secrets.token_hex(8)}", asyncio.Event()
        try:
            async with asyncio.timeout(within):
                self._connection = await self._connect()
                self._listening = asyncio.get_running_loop().create_task(self._listen())
                await self._send(self._proof)
                await self._proven.wait()
        except (psycopg.Error, OSError, TimeoutError) as error:
            why = "none arrived" if isinstance(error, TimeoutError) else translate(error, address.shown)
            _log.warning("the store at %s carries no hints between processes (%s); it is polled", address.shown, why)
            await self.close()
            return False
        return True

    async def tell(self, text: str) -> None:
        """Sends a hint to everybody who listens, this process too."""
        if not self.is_open:
            return
        if (size := len(text.encode())) > LARGEST:
            raise TooLarge("hint", size, LARGEST)
        try:
            await self._send(text)
        except (psycopg.Error, OSError) as error:
            raise translate(error, self._connections.address.shown) from error

    @contextmanager
    def hear(self, heard: Callable[[str], None]) -> Iterator[None]:
        """Within it, a function is called with each hint."""
        self._heard.append(heard)
        try:
            yield
        finally:
            self._heard.remove(heard)

    async def close(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening
        await self._let_go()

    async def _send(self, text: str) -> None:
        async with self._connections.hot() as link:
            parameters = {"channel": self._channel, "text": text}
            await finished(partial(link.execute, WRITING["notify"], parameters, within=STATEMENT))

    async def _listen(self) -> None:
        """Passes hints on as long as the store is open. A connection that is lost is replaced."""
        pause = _PAUSES[0]
        while True:
            try:
                if self._connection is None:
                    self._connection = await self._connect()
                async for notice in self._connection.notifies():
                    pause = _PAUSES[0]
                    self._pass_on(notice.payload)
            except (psycopg.Error, OSError) as error:
                _log.info("hints of other processes are not heard for a while: %s", error)
            await self._let_go()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(2 * pause, _PAUSES[1])

    def _pass_on(self, text: str) -> None:
        if text.startswith(_PROOF):  # of this process, or of another that has just opened the store
            if text == self._proof:
                self._proven.set()
            return
        for heard in tuple(self._heard):
            try:
                heard(text)
            except Exception:
                _log.exception("a hint of another process could not be used")

    async def _connect(self) -> "psycopg.AsyncConnection[tuple[object, ...]]":
        """A connection that keeps its session, at the address that is said to be for this."""
        address = self._connections.address
        told = conninfo(replace(address, dsn=address.listen or address.dsn, is_pooled=False))
        connection = await psycopg.AsyncConnection.connect(told, autocommit=True, prepare_threshold=None)
        try:
            await connection.execute(f'LISTEN "{self._channel}"'.encode())
        except BaseException:  # a standby lets nobody listen
            await connection.close()
            raise
        return connection

    async def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                await connection.close()
