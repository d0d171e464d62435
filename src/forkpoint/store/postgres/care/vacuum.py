"""Collecting on PostgreSQL: what was removed stays in dead rows until they are vacuumed.

Autovacuum does so in its own time. A collection, and an erasure, do it at once. A dead row stays as long as a
transaction is open that might still read it: then the store remembers that (`meta.removals`, `meta.cleared`), and the
next collection does it. Free space of pages, the write-ahead log, its archive and backups are out of reach.
Tests: tests/postgres/test_vacuum.py, forkpoint.testing.conformance.evidence.care.
"""

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
import psycopg
from msgspec import Struct

from forkpoint.errors import ForkpointError, StoreError
from forkpoint.store import erasure
from forkpoint.store.postgres.session.failures import translated
from forkpoint.store.postgres.session.link import Link
from forkpoint.store.tables.collection.collector import AT_CLOSE, Collector
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.rows import Scope
from forkpoint.store.values import Collected, Pending

if TYPE_CHECKING:
    from forkpoint.store.postgres.view import PostgresView

DEAD_ROWS = "dead rows have the text until nobody reads them any more and PostgreSQL has vacuumed them"
"""What an erasure leaves behind until somebody cleans up."""

OUT_OF_REACH = (
    "the server's write-ahead log and its archive, and pages on its disk until PostgreSQL uses their space again",
    "backups, snapshots and delayed standbys of the server that were made before: restore them with --erasures",
    *erasure.OUT_OF_REACH[1:],
)
"""What no erasure in a store can remove."""

_NOT_VACUUMED = Pending("log", "dead rows may still have what was removed; a collection vacuums them")
_HELD_BACK = Pending(
    "log",
    "somebody reads the store, or the role may not vacuum, and dead rows have what was removed; collect again later",
)
_VACUUM = b"VACUUM (INDEX_CLEANUP ON, TRUNCATE OFF) event, turn, step, conversation, record, idempotency, tag"
_PATIENCE = 2.0  # seconds for those who read the store to end
_PAUSE = 0.01


async def collect(
    view: "PostgresView", *, dry_run: bool, compact: bool, every_tenant: bool, seconds: float | None = None
) -> Collected:
    """Removes what is due, and says how much that was; or only says how much is due.

    ``compact`` vacuums also if nothing was removed.
    """
    collector = Collector(view, every_tenant, seconds)
    due = await collector.due()
    view.opened.is_only_measured = dry_run
    if dry_run:
        pending = (_NOT_VACUUMED,) if due.log and not due.removes_something else ()
        return await collector.measure(due) + Collected(pending=pending)
    view.opened.check_writable()
    total = await collector.remove(due) if due else Collected()
    if seconds is None and not await _vacuum(view, in_any_case=compact):  # in a hurry the next collection does it
        total += Collected(pending=(_HELD_BACK,))
    return total


async def collect_at_close(view: "PostgresView") -> None:
    """Collects for all tenants, for a short time, if something is due. What cannot be done then is done later."""
    if view.opened.closed or view.opened.is_only_measured or not view.opened.is_open:
        return
    with suppress(ForkpointError):
        await collect(view, dry_run=False, compact=False, every_tenant=True, seconds=AT_CLOSE)


async def clean(view: "PostgresView") -> tuple[str, ...]:
    """Vacuums, if erasures have left that to do. Returns what has to wait."""
    try:
        return () if await _vacuum(view) else (DEAD_ROWS,)
    except StoreError:  # the erasure is done all the same
        return (DEAD_ROWS,)


class _Owed(Struct, frozen=True):
    """What was removed so far, and what of it is in dead rows; and the first transaction that came after all of it."""

    removals: int
    cleared: int
    erasures: int
    compacted: int
    horizon: str


async def _vacuum(view: "PostgresView", *, in_any_case: bool = False) -> bool:
    """Vacuums what is owed. False if dead rows are left because somebody may still read them."""
    owed = await view.read(_owed)
    if owed.cleared >= owed.removals and owed.compacted >= owed.erasures and not in_any_case:
        return True
    await _wait_for_readers(view, owed.horizon)
    with translated(view.opened.path):
        done = await view.opened.connections.run(_vacuum_tables, "settle")
    if not done or await view.read(partial(_is_held_back, horizon=owed.horizon)):
        return False
    settle = partial(_settle, owed=owed)
    await view.write("vacuum", "", settle, landed=lambda db, scope: True, durable=False)
    return True


async def _wait_for_readers(view: "PostgresView", horizon: str) -> None:
    pause = _PAUSE
    with anyio.move_on_after(_PATIENCE):
        while await view.read(partial(_is_held_back, horizon=horizon)):
            await anyio.sleep(pause)
            pause *= 2


def _vacuum_tables(link: Link) -> bool:
    """False if the role may not vacuum: PostgreSQL only warns of that. It takes as long as it takes."""
    refused: list[str] = []

    def hear(notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            refused.append(notice.message_primary or "")

    connection, is_pooled = link.connection, link.address.is_pooled
    connection.add_notice_handler(hear)
    try:
        if not is_pooled:  # there a session is somebody else's next
            connection.execute("SET statement_timeout = 0")
        connection.execute(_VACUUM)
        return not refused
    finally:
        connection.remove_notice_handler(hear)
        if not is_pooled and not connection.closed:
            connection.execute("RESET statement_timeout")


def _owed(db: Database, scope: Scope) -> _Owed:
    return _Owed(**db.run("owed_after_erasures").fetchone())


def _is_held_back(db: Database, scope: Scope, horizon: str) -> bool:
    return bool(db.run("is_held_back", {"horizon": horizon}).fetchone()["is_held_back"])


def _settle(db: Database, scope: Scope, owed: _Owed) -> None:
    db.run("settle_erasures", {"removals": owed.removals, "erasures": owed.erasures})
