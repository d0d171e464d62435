"""A link: one connection to the server, what is known of its transaction, and how to cut it from outside.

An operation runs in a thread, which waits for the server. A server that does not answer would keep that thread for
good: PostgreSQL's own time limits do not end a COMMIT that waits for a standby. So whoever watches a link from outside
can shut its socket down, and the thread hears that the connection is lost.
Tests: tests/postgres/test_transactions.py.
"""

import os
import socket
import time
from contextlib import suppress
from typing import Any

import psycopg
from msgspec import Struct
from psycopg.adapt import Dumper
from psycopg.rows import DictRow, dict_row
from psycopg.types.numeric import Int8BinaryDumper

from forkpoint.store.postgres.address import PostgresAddress
from forkpoint.store.postgres.session.failures import is_lost

STATEMENT, LOCK, IDLE = 30, 5, 10
"""Seconds that PostgreSQL lets a statement take, wait for a lock, and a transaction do nothing."""

SETTINGS = {
    "statement_timeout": f"{STATEMENT}s",
    "lock_timeout": f"{LOCK}s",
    "idle_in_transaction_session_timeout": f"{IDLE}s",
    "jit": "off",  # our statements are short: compiling one takes a hundred times as long as running it
    "enable_bitmapscan": "off",  # a list is a range of an index: nothing is gathered first and then sorted
}
"""What each session should have. Behind a pooler a transaction sets it for itself, and a hot statement cannot."""

_PREPARED = 400  # statements that a session keeps prepared: more than we have

_CLOCK = """SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now, pg_backend_pid() AS pid,
now()::text AS begun, pg_postmaster_start_time()::text AS server"""


class Transaction(Struct, frozen=True):
    """What tells a transaction from every other one of a server, and a server from another or from its next start."""

    now: int  # the database's clock when it began
    pid: int
    begun: str
    server: str


class Session(Struct, frozen=True):
    """What tells a session from every other one, if it is used for single statements."""

    pid: int
    begun: str
    server: str


class Unconfirmed(Exception):
    """A COMMIT of which nobody knows whether it was done. What was heard of it is its cause."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Link:
    """A connection that one thread uses at a time."""

    def __init__(self, address: PostgresAddress, conninfo: str) -> None:
        self.address = address
        # A statement is prepared at its fifth use, but not where each transaction may be in another session.
        threshold = None if address.is_pooled else 5
        self.connection: psycopg.Connection[DictRow] = psycopg.connect(
            conninfo, autocommit=True, prepare_threshold=threshold, row_factory=dict_row
        )
        prepare(self.connection)
        self.transaction: Transaction | None = None
        self.tenancy: str | None = None  # whose rows the server shows it, if the server itself guards that
        self.used = time.monotonic()
        self.has_clashed = False  # whether another transaction had taken an id, a key or a name first
        self._waits: tuple[float, float] | None = None  # since when it waits for the server, and how long at most
        self._is_unreplicated = False
        self.connection.add_notice_handler(self._hear)
        self._socket = socket.socket(fileno=os.dup(self.connection.fileno()))  # for another thread: see `cut`

    @property
    def is_broken(self) -> bool:
        return self.connection.closed

    @property
    def is_in_transaction(self) -> bool:
        return self.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE

    def begin(self, how: str = "", *settings: str, first: str | None = None) -> Transaction:
        """Begins a transaction, in one round trip that also reads the clock: after the statement ``first``, if one is
        given, which may wait."""
        self.has_clashed = False
        self.tenancy = None
        own = self._settings() if self.address.is_pooled else ()
        local = (f"SET LOCAL {one}" for one in (*own, *settings))
        text = "; ".join([f"BEGIN {how}".strip(), *local, *([] if first is None else [first]), _CLOCK])
        with self.waiting(STATEMENT + LOCK):
            cursor = self.connection.execute(text.encode())
            while cursor.nextset():
                pass
        row = cursor.fetchone()
        assert row is not None
        self.transaction = Transaction(**row)
        return self.transaction

    def commit(self, within: float) -> None:
        """Ends the transaction. Raises `Unconfirmed` if nobody knows what became of it."""
        self._is_unreplicated = False
        try:
            with self.waiting(within):
                said = self.connection.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            if self.connection.closed or is_lost(error):
                raise Unconfirmed(error) from error
            raise
        if said != "COMMIT":  # PostgreSQL ends a failed transaction so, without an error
            raise psycopg.errors.InFailedSqlTransaction("the transaction had failed, and was rolled back")
        if self._is_unreplicated:
            raise Unconfirmed(psycopg.OperationalError("the wait for a synchronous standby was cancelled"))

    def rollback(self) -> None:
        """Gives a transaction up. A connection on which that fails is closed: the server then does."""
        try:
            if not self.connection.closed:
                with self.waiting(STATEMENT):
                    self.connection.execute("ROLLBACK")
        except psycopg.Error:
            self.close()

    def waiting(self, within: float) -> "_Waiting":
        """Within it the server is asked. Who watches the link cuts it when that takes longer than so many seconds."""
        return _Waiting(self, within)

    def is_overdue(self) -> bool:
        """Whether the server has kept a thread waiting for too long."""
        waits = self._waits
        return waits is not None and time.monotonic() - waits[0] > waits[1]

    def cut(self) -> None:
        """Lets whoever waits for the server hear that the connection is lost. May be called from any thread."""
        with suppress(OSError):  # it is lost already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(psycopg.Error):
            self.connection.close()
        self._socket.close()

    def _settings(self) -> tuple[str, ...]:
        return tuple(f"{name} = '{value}'" for name, value in SETTINGS.items())

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        if is_unreplicated(notice):
            self._is_unreplicated = True


class _Waiting:
    """A context manager by hand, since it is entered for every statement."""

    __slots__ = ("_link", "_within")

    def __init__(self, link: Link, within: float) -> None:
        self._link = link
        self._within = within

    def __enter__(self) -> None:
        self._link._waits = (time.monotonic(), self._within)

    def __exit__(self, *_: object) -> None:
        self._link._waits = None


def is_unreplicated(notice: psycopg.errors.Diagnostic) -> bool:
    """Whether a notice, in whatever language, says that a commit is on the server's disk and perhaps nowhere else."""
    said = notice.message_primary or ""
    return notice.source_function == "SyncRepWaitForLSN" or said.startswith(
        "canceling wait for synchronous replication"
    )


class _Truth(Dumper):
    """A truth value without a type: a column of numbers takes it as 1 or 0, and ``::boolean`` as true or false."""

    def dump(self, obj: bool) -> bytes:
        return b"1" if obj else b"0"


def prepare(connection: "psycopg.BaseConnection[Any]") -> None:
    """Makes numbers bigint, as all our columns are: an int4 that is shifted by 32 is another number."""
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    connection.adapters.register_dumper(bool, _Truth)
    connection.prepared_max = _PREPARED


def startup_options() -> str:
    """Time limits and the like, for connections that keep their session."""
    return " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
