"""Collecting in a file: what was removed leaves the file and its log too.

After `forkpoint.store.tables.collection` it gives free space back to the file system and empties the log, which still
has the removed text. If somebody reads the store at that moment, the log cannot be emptied: the store remembers that
(`meta.removals`, `meta.cleared`), and the next collection does it, in whichever process.
Tests: tests/store/test_collection.py, test_gone.py, test_faults.py.
"""

import time
from contextlib import suppress
from functools import partial

import anyio.to_thread

from forkpoint.errors import ForkpointError
from forkpoint.store.sqlite.cleaning import NOT_COMPACTED, clean
from forkpoint.store.sqlite.connection import Database
from forkpoint.store.sqlite.disk.residue import empty_log, size_of_store
from forkpoint.store.sqlite.tenant_view import TenantView
from forkpoint.store.tables.collection.collector import AT_CLOSE, BUSY_BYTES, Collector
from forkpoint.store.tables.operations.garbage import SLICE_BYTES, SLICE_SECONDS
from forkpoint.store.tables.rows import Scope
from forkpoint.store.values import Collected, Pending

SMALL = 16 << 20
"""Bytes up to which a store is compacted by itself: that takes a tenth of a second."""

READERS = Pending("log", "somebody reads the store, and the log still has what was removed; collect again later")
LOG = Pending("log", "the log may still have what was removed; a collection empties it")
ERASED = Pending("erasure", "unused parts of pages may have pieces of erased text; collect with compact removes them")

_WASTE = 4  # if turns run here, space is given back only if more than one of so many pages is free: they will use it
_ATTEMPTS = 5  # to empty the log


async def collect(
    view: TenantView, *, dry_run: bool, compact: bool, every_tenant: bool, seconds: float | None = None
) -> Collected:
    """Removes what is due, and says how much that was; or only says how much is due."""
    collector = Collector(view, every_tenant, seconds)
    due = await collector.due()
    view.opened.is_only_measured = dry_run
    if dry_run:
        pending = (LOG,) if due.log and not due.removes_something else ()
        return await collector.measure(due) + Collected(pending=pending)
    view.opened.check_writable()
    if not view.opened.is_open:  # there is no file yet
        return Collected()
    total = await collector.remove(due) if due else Collected()
    if due.holders:
        await anyio.to_thread.run_sync(view.opened.holder.sweep)
    if compact:
        await anyio.to_thread.run_sync(view.opened.writer.compact)
    elif not due.pages and (due.log or due.removes_something):
        await _compact_if_small(view, collector)
    if due or compact:
        total += await _settle(view, collector, owed=compact)
    if due.pages and NOT_COMPACTED in await clean(view, is_compacted=compact):
        total += Collected(pending=(ERASED,))
    return total


async def collect_at_close(view: TenantView) -> None:
    """Collects for all tenants, for a short time, if something is due. What cannot be done then is done later."""
    if view.opened.closed or view.opened.is_only_measured or not view.opened.is_open:
        return
    with suppress(ForkpointError):
        await collect(view, dry_run=False, compact=False, every_tenant=True, seconds=AT_CLOSE)


async def _compact_if_small(view: TenantView, collector: Collector) -> None:
    """Compacts a small store in which this process runs no turn: nobody notices that it takes a moment."""
    if view.opened.running or collector.is_late():
        return
    with suppress(ForkpointError):  # what had to be removed is removed
        if await view.read(size_of_store) <= SMALL:
            await anyio.to_thread.run_sync(view.opened.writer.compact)


async def _settle(view: TenantView, collector: Collector, *, owed: bool) -> Collected:
    """Gives free space back and empties the log."""
    more = True
    while more and not collector.is_late():
        busy = collector.is_busy()
        pages = (BUSY_BYTES if busy else SLICE_BYTES) >> 12
        give_back = partial(_give_back, pages=pages, waste=_WASTE if busy else None)
        more = await collector.slice(give_back, size=pages << 12)
    due = await collector.due()
    if not due.log and not owed:
        return Collected()
    if not await empty_log(view.opened.writer, attempts=_ATTEMPTS):
        return Collected(pending=(READERS,))
    await collector.write(lambda db, scope: db.run("clear", {"removals": due.removals}))
    return Collected()


def _give_back(db: Database, scope: Scope, pages: int, waste: int | None) -> bool:
    """Gives some free pages back to the file system; says whether there are more to give. An old store cannot do that.

    With ``waste``, a store keeps its free pages unless more than one of so many is free.
    """
    if db.execute("PRAGMA auto_vacuum").fetchone()[0] != 2:
        return False
    free: int = db.execute("PRAGMA freelist_count").fetchone()[0]
    if waste is not None and free * waste <= db.execute("PRAGMA page_count").fetchone()[0]:
        return False
    until = time.perf_counter() + SLICE_SECONDS
    for _ in range(min(free, pages)):
        db.execute("PRAGMA incremental_vacuum(1)")  # Python asks SQLite for one step only: that is one page
        free -= 1
        if time.perf_counter() >= until:
            break
    return free > 0
