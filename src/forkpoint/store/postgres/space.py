"""Collecting, and what comes after it: VACUUM lets what was removed leave the pages.

Without it, PostgreSQL does so in its own time. The log, archives of it and backups are out of reach.
Tests: forkpoint.testing.conformance.evidence.care.
"""

from forkpoint.store.postgres.database import WRITING
from forkpoint.store.postgres.failures import translated
from forkpoint.store.postgres.link import Link
from forkpoint.store.postgres.view import PostgresView
from forkpoint.store.tables.collection.collector import Collector
from forkpoint.store.values import Collected

_LONG = 3600  # seconds that a VACUUM may take


async def collect(view: PostgresView, *, dry_run: bool, compact: bool, every_tenant: bool) -> Collected:
    """Removes what is due, and says how much that was; or only says how much is due."""
    collector = Collector(view, every_tenant=every_tenant)
    due = await collector.due()
    if dry_run:
        return await collector.measure(due)
    view.opened.check_writable()
    total = await collector.remove(due) if due else Collected()
    if compact:
        with translated(view.opened.path):
            await view.opened.connections.run(_vacuum, "settle")
    return total


def _vacuum(link: Link) -> None:
    """Not in a transaction, so what is set is the session's. Behind a pooler that would be somebody else's, too; there
    no limit was set for the session."""
    tables = [row["name"] for row in link.connection.execute(WRITING["tables"].encode(), {}).fetchall()]
    if not link.address.is_pooled:
        link.connection.execute("SET statement_timeout = 0")
    try:
        for table in tables:
            with link.waiting(_LONG):
                link.connection.execute(f"VACUUM {table}".encode())
    finally:
        link.close()  # and with it the setting
