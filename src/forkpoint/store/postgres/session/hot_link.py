"""A link for the event loop: statements that are a whole transaction, in one round trip.

psycopg answers a cancelled task by cancelling its statement on the server, and the caller would not hear whether it was
done. So here a cancellation waits until the server has answered; the link remembers it for its user. A time limit shuts
the socket down, so that no wait is endless. Tests: tests/postgres/test_transactions.py, test_hot_link.py.
"""

import asyncio
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import anyio
import psycopg
from psycopg.abc import PQGen
from psycopg.rows import DictRow, dict_row
from psycopg.waiting import Ready

from forkpoint.store.postgres.address import PostgresAddress
from forkpoint.store.postgres.session.database import READING
from forkpoint.store.postgres.session.link import Session, Unconfirmed, is_unreplicated, prepare

T = TypeVar("T")

_READ, _WRITE = Ready.R, Ready.W


class PatientConnection(psycopg.AsyncConnection[DictRow]):
    """A connection that can see a statement through although whoever waits for it is being cancelled."""

    is_patient = False
    cancelled: asyncio.CancelledError | None = None
    """The cancellation that came while the connection was patient."""

    async def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:  # noqa: ASYNC109
        """Lets psycopg go on whenever the socket is ready. A patient wait has no time limit but `HotLink.cut`."""
        if not self.is_patient:
            return await super().wait(gen, interval, timeout)
        try:
            wanted = next(gen)
            while True:
                wanted = gen.send(await self._ready(int(wanted)))
        except StopIteration as end:
            result: T = end.value
            return result

    async def _ready(self, wanted: int) -> int:
        """Waits until the socket can be read or written, as wanted."""
        loop, socket = asyncio.get_running_loop(), self.pgconn.socket
        ready, waiting = 0, loop.create_future()

        def tell(state: int) -> None:
            nonlocal ready
            ready |= state
            if not waiting.done():
                waiting.set_result(None)

        if wanted & _READ:
            loop.add_reader(socket, tell, _READ)
        if wanted & _WRITE:
            loop.add_writer(socket, tell, _WRITE)
        try:
            await waiting
        except asyncio.CancelledError as error:
            self.cancelled = error
            with anyio.CancelScope(shield=True):  # else anyio would cancel again and again
                while not ready:
                    waiting = loop.create_future()
                    with suppress(asyncio.CancelledError):
                        await waiting
        finally:
            if wanted & _READ:
                loop.remove_reader(socket)
            if wanted & _WRITE:
                loop.remove_writer(socket)
        return ready


class HotLink:
    """A connection that one task uses at a time."""

    def __init__(self, connection: PatientConnection, session: Session | None) -> None:
        self.connection = connection
        self.session = session  # None behind a pooler, where each statement may be in another one
        self.used = time.monotonic()
        self._is_unreplicated = False
        self._is_cut = False
        connection.add_notice_handler(self._hear)
        self._cursor = psycopg.AsyncRawCursor(connection, row_factory=dict_row)
        self._cursor.format = psycopg.pq.Format.BINARY

    @classmethod
    async def open(cls, address: PostgresAddress, conninfo: str) -> "HotLink":
        threshold = None if address.is_pooled else 5
        connection = await PatientConnection.connect(
            conninfo, autocommit=True, prepare_threshold=threshold, row_factory=dict_row
        )
        prepare(connection)
        if address.is_pooled:
            return cls(connection, None)
        row = await (await connection.execute(READING["read_session"].encode())).fetchone()
        assert row is not None
        return cls(connection, Session(**row))

    @property
    def is_usable(self) -> bool:
        idle = psycopg.pq.TransactionStatus.IDLE
        return not self._is_cut and not self.connection.closed and self.connection.info.transaction_status == idle

    async def execute(self, statement: str, parameters: Mapping[str, Any], *, within: float) -> list[DictRow]:
        """The rows that a statement answers with. To be called in a task that nobody cancels
        (`forkpoint.threads.shield.finished`).

        Raises `Unconfirmed` if a standby was to confirm the commit and did not, and psycopg's errors. If one of these
        says that the connection is lost (`failures.is_lost`), nobody knows whether the statement was done.
        """
        return await self._execute(self.connection.cursor(), statement.encode(), parameters, within)

    async def say(self, statement: bytes, parameters: Sequence[Any], *, within: float) -> list[DictRow]:
        """The same for a statement with PostgreSQL's own placeholders (``$1``), in which psycopg looks for none. It is
        prepared at its first use, where the session is kept.

        A cancellation waits for the answer and stands in ``cancelled`` then: a task for each write would cost a tenth
        of a turn. The caller raises it when all is done."""
        self.connection.cancelled, self.connection.is_patient = None, True
        try:
            return await self._execute(self._cursor, statement, parameters, within, prepare=self.session is not None)
        finally:
            self.connection.is_patient = False

    @property
    def cancelled(self) -> asyncio.CancelledError | None:
        """The cancellation that came while the last statement was said, if one came."""
        return self.connection.cancelled

    async def _execute(
        self,
        cursor: "psycopg.AsyncCursor[DictRow]",
        statement: bytes,
        parameters: Any,
        within: float,
        *,
        prepare: bool = False,
    ) -> list[DictRow]:
        self._is_unreplicated = False
        timer = asyncio.get_running_loop().call_later(within, self.cut)
        try:
            await cursor.execute(statement, parameters, prepare=prepare or None)
            result = cursor.pgresult
            has_rows = result is not None and result.status == psycopg.pq.ExecStatus.TUPLES_OK
            rows = await cursor.fetchall() if has_rows else []  # `description` would be asked for each column
        finally:
            timer.cancel()
        if self._is_unreplicated:
            raise Unconfirmed(psycopg.OperationalError("the wait for a synchronous standby was cancelled"))
        return rows

    def cut(self) -> None:
        """Lets whoever waits for the server hear that the connection is lost."""
        self._is_cut = True
        with suppress(psycopg.Error, OSError):
            connected = socket.socket(fileno=self.connection.fileno())
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
            connected.detach()  # the connection closes it

    async def close(self) -> None:
        with suppress(psycopg.Error):
            await self.connection.close()

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        if is_unreplicated(notice):
            self._is_unreplicated = True
