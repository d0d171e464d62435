"""Examining a database without changing it: what it holds, and which settings of the server break a promise.
Tests: tests/postgres/test_examination.py."""

import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
from msgspec import Struct
from psycopg import Connection, sql
from psycopg.rows import TupleRow, dict_row

from forkpoint.errors import StoreUnavailable
from forkpoint.store.postgres.address import PostgresAddress
from forkpoint.store.postgres.session.link import SETTINGS
from forkpoint.store.sql import migrations, postgres_statements

_SQL = postgres_statements(locking=False)
_CONNECT = 5  # seconds
_DELIVERY = 2.0  # seconds in which a notification must come
_SYNCHRONOUS = "ALTER ROLE CURRENT_USER RESET synchronous_commit, and set it to on in postgresql.conf"


class Examination(Struct, frozen=True):
    """What was found in a database."""

    server: str  # its version
    newest_format: int  # of this version of Forkpoint
    format: int | None = None  # None: the tables are not made yet
    conversations: int = 0  # about: what the server's statistics say
    bytes: int = 0
    flaws: tuple[str, ...] = ()  # what breaks a promise, each with what mends it
    advice: tuple[str, ...] = ()  # what could be better


def examine(address: PostgresAddress) -> Examination:
    """Looks at a database. Blocks its thread for a few seconds at most. Raises `StoreUnavailable` if it cannot."""
    with ExitStack() as stack:
        try:
            db = stack.enter_context(_connect(address.dsn))
            flaws, advice = [*_settings(db), *_confirmed_by_nobody(db)], [*_standbys(db), *_sessions(db, address)]
            if refused := [*_session(db)]:
                flaws += refused
            else:
                flaws += _pooler(db, stack, address)
                flaws += _listening(db, stack, address)
            holds, version = _holds(db), db.info.server_version
        except psycopg.Error as error:
            raise StoreUnavailable(address.shown, _said(error)) from error
    return Examination(
        server=_version(version),
        newest_format=len(migrations("postgres")),
        format=holds["format"],
        conversations=max(int(holds["conversations"] or 0), 0),
        bytes=int(holds["bytes"] or 0),
        flaws=tuple(flaws),
        advice=tuple(advice),
    )


def _connect(dsn: str) -> Connection[TupleRow]:
    return psycopg.connect(dsn, autocommit=True, connect_timeout=_CONNECT, prepare_threshold=None)


def _holds(db: Connection[TupleRow]) -> dict[str, int | None]:
    with db.cursor(row_factory=dict_row) as cursor:
        if not cursor.execute(_SQL["has_tables"].encode()).fetchone()["has_tables"]:  # type: ignore[index]
            return {"format": None, "conversations": 0, "bytes": 0}
        return cursor.execute(_SQL["examine_tables"].encode()).fetchone() or {}


def _settings(db: Connection[TupleRow]) -> Iterator[str]:
    for name, why, mend in (
        ("fsync", "a power cut can destroy the database", "set fsync = on in postgresql.conf and restart the server"),
        ("full_page_writes", "a power cut can tear pages apart", "ALTER SYSTEM SET full_page_writes = on"),
        ("synchronous_commit", "a power cut can lose what was acknowledged", _SYNCHRONOUS),
    ):
        if _setting(db, name) == "off":
            yield f"{name} is off: {why}; {mend}"


def _confirmed_by_nobody(db: Connection[TupleRow]) -> Iterator[str]:
    """Standbys are named, and a commit of this role waits for none."""
    if _setting(db, "synchronous_standby_names") and _setting(db, "synchronous_commit") == "local":
        yield (
            "synchronous_commit is local: a failover can lose what was acknowledged, since no commit waits for the "
            f"standbys of synchronous_standby_names; {_SYNCHRONOUS}"
        )


def _standbys(db: Connection[TupleRow]) -> Iterator[str]:
    named, waits = _setting(db, "synchronous_standby_names"), _setting(db, "synchronous_commit")
    if not named:
        yield (
            "there is no synchronous standby: a failover can lose what was acknowledged just before; "
            "synchronous_standby_names = 'ANY 1 (*)' on a server with standbys"
        )
    elif waits not in ("off", "local") and not _value(db, "count_synchronous_standbys"):
        yield f"no standby of synchronous_standby_names = {named!r} is connected: every commit waits for one"
    if named and waits == "remote_write":
        yield (
            "synchronous_commit is remote_write: a standby confirms a commit before that is on its disk, so a power "
            f"cut of both servers can lose it; {_SYNCHRONOUS}"
        )


def _sessions(db: Connection[TupleRow], address: PostgresAddress) -> Iterator[str]:
    """A single statement through a pooler has the settings of the role: it can bring none of its own."""
    if not address.is_pooled:
        return
    lacking = {name: value for name, value in SETTINGS.items() if _setting(db, name) in ("on", "0")}
    if lacking:
        has = ", ".join(f"{name} = {_setting(db, name)}" for name in lacking)
        mend = "; ".join(f"ALTER ROLE CURRENT_USER SET {name} = '{value}'" for name, value in lacking.items())
        yield f"through the pooler, turns are written with {has}, and may be slow or wait for long: {mend}"


def _session(db: Connection[TupleRow]) -> Iterator[str]:
    if _value(db, "is_standby"):
        yield "this server is a standby and takes no writes: name the primary, or all servers (host1,host2)"
    elif _setting(db, "default_transaction_read_only") == "on":
        yield "default_transaction_read_only is on: ALTER ROLE CURRENT_USER RESET default_transaction_read_only"
    if (encoding := _setting(db, "server_encoding")) != "UTF8":
        yield f"the database has the encoding {encoding}: make one with ENCODING 'UTF8'"


def _pooler(db: Connection[TupleRow], stack: ExitStack, address: PostgresAddress) -> Iterator[str]:
    """A pooler gives a number of its own for the session; then it matters whether it keeps prepared statements."""
    if address.is_pooled or _value(db, "backend_pid") == db.info.backend_pid:
        return
    statement = sql.Identifier(f"forkpoint_{secrets.token_hex(4)}")
    others = [stack.enter_context(_connect(address.dsn)) for _ in range(2)]
    try:
        for text in ("PREPARE {} AS SELECT 1", "EXECUTE {}"):
            for other in others:
                other.execute(sql.SQL(text).format(statement))
    except psycopg.Error:
        yield (
            "there is a pooler in front that forgets prepared statements: add ?pooler=transaction to the address"
            " (or set max_prepared_statements in PgBouncer 1.21 or newer)"
        )


def _listening(db: Connection[TupleRow], stack: ExitStack, address: PostgresAddress) -> Iterator[str]:
    """A pooler takes LISTEN and never delivers, so a notification is sent."""
    if address.listen == "":
        return
    listener = stack.enter_context(_connect(address.listen or address.dsn))
    channel = f"forkpoint_{secrets.token_hex(8)}"
    listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
    db.execute(sql.SQL("NOTIFY {}").format(sql.Identifier(channel)))
    if not any(listener.notifies(timeout=_DELIVERY, stop_after=1)):
        yield (
            "LISTEN is taken and never delivers, as poolers do: add ?listen=URL with an address past the pooler, "
            "or ?listen=off to look at the tables a few times a second instead"
        )


def _setting(db: Connection[TupleRow], name: str) -> str:
    found = db.execute(_SQL["read_setting"].encode(), {"name": name}).fetchone()
    return "" if found is None else str(found[0] or "")


def _value(db: Connection[TupleRow], statement: str) -> object:
    found = db.execute(_SQL[statement].encode()).fetchone()
    return None if found is None else found[0]


def _version(number: int) -> str:
    return f"{number // 10000}.{number % 10000}"


def _said(error: psycopg.Error) -> str:
    """An error in one line, without a password."""
    said = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"password=\S+", "password=***", said)
