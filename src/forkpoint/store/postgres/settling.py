"""Finding out whether a commit that nobody has confirmed is in the database.

The connection was lost, or the server did not answer in time, or somebody cancelled the wait for a standby. Then:

1. The session that was to commit is ended, if it still runs, so that nothing changes any more afterwards. If the server
   is another one by now, or was started anew, that session is gone already.
2. In another transaction, which waits for no standby, the database is asked whether the write is there.
3. A barrier comes after that, on the same server (`barriers`). Without it, what was found might still be lost with the
   server, and nobody may be told.

Tests: tests/postgres/test_transactions.py.
"""

import time
from collections.abc import Callable

import psycopg

from forkpoint.store.postgres.session.database import WRITING, PostgresDatabase
from forkpoint.store.postgres.session.link import STATEMENT, Link, Session, Transaction, Unconfirmed
from forkpoint.store.tables.rows import Scope

_LOOK = 0.02  # seconds between two looks whether a session has ended


def find_out(
    link: Link,
    lost: Transaction | Session | None,
    landed: Callable[[PostgresDatabase, Scope], bool],
    *,
    tenant: str,
    scope: Callable[[Transaction], Scope],
    until: float,
) -> tuple[bool, str]:
    """Whether a write is there, as far as this server knows, and which server that is. ``until`` is a moment of the
    monotonic clock."""
    if lost is not None:  # else it is out of reach, behind a pooler
        end_session(link, lost, until=until)
    transaction = link.begin("", "synchronous_commit = local")
    try:
        there = landed(PostgresDatabase(link, tenant, WRITING), scope(transaction))
    except BaseException:
        link.rollback()
        raise
    link.commit(max(until - time.monotonic(), 0.1))
    return there, transaction.server


def end_session(link: Link, lost: Transaction | Session, *, until: float) -> None:
    """Ends a session, or that of a transaction, and returns when it is gone. Raises if that takes too long."""
    statement = WRITING["end_session" if isinstance(lost, Transaction) else "end_idle_session"]
    with link.waiting(STATEMENT):
        server = link.connection.execute(WRITING["server_started"].encode()).fetchone()
    if server is None or server["server"] != lost.server:
        return
    while True:
        with link.waiting(STATEMENT):
            found = link.connection.execute(statement.encode(), {"pid": lost.pid, "begun": lost.begun})
        if not found.fetchall():
            return
        if time.monotonic() > until:
            raise Unconfirmed(psycopg.OperationalError(f"the session {lost.pid} does not end"))
        time.sleep(_LOOK)
