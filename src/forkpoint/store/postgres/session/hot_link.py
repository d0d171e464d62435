"""A link for the event loop: statements that are a whole transaction, in one round trip.

psycopg answers a cancelled task by cancelling its statement on the server, and the caller would not hear whether it was
done. So a write is executed in a task of its own that nobody cancels (`forkpoint.threads.shield.finished`), and a time
limit shuts the socket down. Tests: tests/postgres/test_transactions.py.
"""

import asyncio
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.rows import DictRow, dict_row

from forkpoint.store.postgres.address import PostgresAddress
from forkpoint.store.postgres.session.database import READING
from forkpoint.store.postgres.session.link import Session, Unconfirmed, is_unreplicated, prepare


class HotLink:
    """A connection that one task uses at a time."""

    def __init__(self, connection: "psycopg.AsyncConnection[DictRow]", session: Session | None) -> None:
        self.connection = connection
        self.session = session  # None behind a pooler, where each statement may be in another one
        self.used = time.monotonic()
        self._is_unreplicated = False
        self._is_cut = False
        connection.add_notice_handler(self._hear)
        self._socket = socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)

    @classmethod
    async def open(cls, address: PostgresAddress, conninfo: str) -> "HotLink":
        threshold = None if address.is_pooled else 5
        connection = await psycopg.AsyncConnection.connect(
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
        """The rows that a statement answers with. To be called in a task that nobody cancels.

        Raises `Unconfirmed` if a standby was to confirm the commit and did not, and psycopg's errors. If one of these
        says that the connection is lost (`failures.is_lost`), nobody knows whether the statement was done.
        """
        return await self._execute(self.connection.cursor(), statement.encode(), parameters, within)

    async def say(self, statement: bytes, parameters: Sequence[Any], *, within: float) -> list[DictRow]:
        """The same for a statement with PostgreSQL's own placeholders (``$1``), in which psycopg looks for none. It is
        prepared at its first use, where the session is kept."""
        cursor = psycopg.AsyncRawCursor(self.connection, row_factory=dict_row)
        cursor.format = psycopg.pq.Format.BINARY
        return await self._execute(cursor, statement, parameters, within, prepare=self.session is not None)

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
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        with suppress(psycopg.Error):
            await self.connection.close()
        self._socket.close()

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        if is_unreplicated(notice):
            self._is_unreplicated = True
