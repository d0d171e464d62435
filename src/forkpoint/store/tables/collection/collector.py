"""Collection: removes what no conversation reaches any more and what was kept long enough, in short transactions.

Then it gives free space back to the file system and empties the log, which still has the removed text. If somebody
reads the store at that moment, the log cannot be emptied: the store remembers that (`meta.removals`, `meta.cleared`),
and the next collection does it, in whichever process.
Tests: forkpoint.testing.conformance.evidence.care, tests/store/test_collection.py, test_gone.py, test_faults.py.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread
from msgspec.structs import replace

from forkpoint.errors import ForkpointError
from forkpoint.store.sqlite.cleaning import NOT_COMPACTED, clean
from forkpoint.store.sqlite.connection import Database
from forkpoint.store.sqlite.disk.residue import empty_log, size_of_store
from forkpoint.store.sqlite.tenant_view import TenantView
from forkpoint.store.tables.collection import retention
from forkpoint.store.tables.collection.retention import CutOffs, Due
from forkpoint.store.tables.operations import deletion, garbage
from forkpoint.store.tables.operations.garbage import SLICE_BYTES, SLICE_SECONDS, Tenants
from forkpoint.store.tables.rows import Scope
from forkpoint.store.tables.transfer.pins import clear_abandoned
from forkpoint.store.values import Collected, Pending

T = TypeVar("T")

AT_CLOSE = 2.0
"""Seconds that a store which is being closed may spend on a collection."""

SMALL = 16 << 20
"""Bytes up to which a store is compacted by itself: that takes a tenth of a second."""

READERS = Pending("log", "somebody reads the store, and the log still has what was removed; collect again later")
LOG = Pending("log", "the log may still have what was removed; a collection empties it")
ERASED = Pending("erasure", "unused parts of pages may have pieces of erased text; collect with compact removes them")
HURRY = Pending("garbage", "the store was closed before all of it was removed; the next collection goes on")

BUSY_BYTES = 128 << 10
BUSY_SECONDS = 0.01
"""While turns run here, so much is removed in so many seconds: the next commit has to sync it too."""

_WASTE = 4  # if turns run here, space is given back only if more than one of so many pages is free: they will use it
_ATTEMPTS = 5  # to empty the log


async def collect_at_close(view: TenantView) -> None:
    """Collects for all tenants, for a short time, if something is due. What cannot be done then is done later."""
    if view.opened.closed or view.opened.is_only_measured or not view.opened.is_open:
        return
    with suppress(ForkpointError):
        await Collector(view, every_tenant=True, seconds=AT_CLOSE).run()


@dataclass(eq=False)
class Collector:
    """One collection, for the tenant of a view or for all tenants. ``seconds`` is how long it may take."""

    view: TenantView
    every_tenant: bool = False
    seconds: float | None = None

    def __post_init__(self) -> None:
        self._commits = 0  # of this process, as far as a collection has seen or made them
        self._busy_until = 0.0
        self._tenants = Tenants() if self.every_tenant else Tenants.only(self.view.tenant)
        self._until = None if self.seconds is None else time.monotonic() + self.seconds
        now, settings = self.view.opened.clock(), self.view.opened.settings
        self._before = CutOffs(
            drafts=now - settings.keep_drafts,
            keys=now - settings.keep_keys,
            tries=now - settings.keep_tries,
            holders=now - settings.expiry,
        )

    async def run(self, *, dry_run: bool = False, compact: bool = False) -> Collected:
        """Removes what is due, and says how much that was; or only says how much is due."""
        due = await self._due()
        self.view.opened.is_only_measured = dry_run
        if dry_run:
            return await self._measure(due)
        total = Collected()
        self.view.opened.check_writable()
        if due.imports:
            await clear_abandoned(self.view)
        if not self.view.opened.is_open:  # there is no file yet
            return total
        self._commits = self.view.opened.writer.commits
        if due:
            total = await self._remove(due)
        if compact:
            await anyio.to_thread.run_sync(self.view.opened.writer.compact)
        elif not due.pages and (due.log or due.removes_something):
            await self._compact_if_small()
        if due or compact:
            total += await self._settle(owed=compact)
        if due.pages and NOT_COMPACTED in await clean(self.view, is_compacted=compact):
            total += Collected(pending=(ERASED,))
        return total

    async def _due(self) -> Due:
        return await self.view.read(partial(retention.due, tenants=self._tenants, before=self._before))

    async def _measure(self, due: Due) -> Collected:
        def read(db: Database, scope: Scope) -> Collected:
            return garbage.measure(db, self._tenants) + retention.count(db, self._tenants, self._before, due)

        pending = (LOG,) if due.log and not due.removes_something else ()
        return await self.view.read(read) + Collected(pending=pending)

    async def _remove(self, due: Due) -> Collected:
        total = Collected()
        for tenant, draft in due.drafts:
            if not self._is_late() and await self._write(partial(self._delete_draft, tenant=tenant, id=draft)):
                total += Collected(drafts=1)
        total += await self._keys(due)
        total += await self._tries(due)
        total += await self._garbage(due)
        if due.holders:
            await self._write(lambda db, scope: retention.forget_holders(db, self._before.holders))
            await anyio.to_thread.run_sync(self.view.opened.holder.sweep)
        return total

    async def _keys(self, due: Due) -> Collected:
        run = partial(retention.delete_keys, tenants=self._tenants, before=self._before.keys)
        return Collected(keys=await self._in_batches(run) if due.keys else 0)

    async def _tries(self, due: Due) -> Collected:
        run = partial(retention.expire_tries, tenants=self._tenants, before=self._before.tries)
        return Collected(tries=await self._in_batches(run) if due.tries else 0)

    async def _in_batches(self, run: Callable[[Database, Scope], int]) -> int:
        total, more = 0, True
        while more and not self._is_late():
            some = await self._write(run)
            total, more = total + some, some == retention.BATCH
        return total

    async def _garbage(self, due: Due) -> Collected:
        """A draft that was removed just now may have left some, so it looks whatever was due before."""
        total, more = Collected(), due.garbage or bool(due.drafts)
        while more and not self._is_late():
            most = BUSY_BYTES if self._is_busy() else SLICE_BYTES
            some, more = await self._slice(partial(garbage.collect_slice, tenants=self._tenants, most=most), size=most)
            total += some
        return replace(total, pending=(HURRY,)) if more else total

    def _delete_draft(self, db: Database, scope: Scope, tenant: str, id: str) -> bool:
        return deletion.delete_old_draft(db.within(tenant), replace(scope, tenant=tenant), id, self._before.drafts)

    # What was removed leaves the disk.

    async def _compact_if_small(self) -> None:
        """Compacts a small store in which this process runs no turn: nobody notices that it takes a moment."""
        if self.view.opened.running or self._is_late():
            return
        with suppress(ForkpointError):  # what had to be removed is removed
            if await self.view.read(size_of_store) <= SMALL:
                await anyio.to_thread.run_sync(self.view.opened.writer.compact)

    async def _settle(self, *, owed: bool) -> Collected:
        """Gives free space back and empties the log."""
        more = True
        while more and not self._is_late():
            busy = self._is_busy()
            pages = (BUSY_BYTES if busy else SLICE_BYTES) >> 12
            give_back = partial(_give_back, pages=pages, waste=_WASTE if busy else None)
            more = await self._slice(give_back, size=pages << 12)
        due = await self._due()
        if not due.log and not owed:
            return Collected()
        if not await empty_log(self.view.opened.writer, attempts=_ATTEMPTS):
            return Collected(pending=(READERS,))
        await self._write(lambda db, scope: db.run("clear", {"removals": due.removals}))
        return Collected()

    def _is_late(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until

    async def _slice(self, operation: Callable[[Database, Scope], T], size: int) -> T:
        """Runs one of many parts. If turns run here, it then rests a little, so that they come through."""
        started = time.perf_counter()
        done = await self._write(operation, size)
        if self._is_busy():
            await anyio.sleep(max(0.0, started + BUSY_SECONDS - time.perf_counter()))
        return done

    def _is_busy(self) -> bool:
        """Whether turns run in this process, or something was written here a moment ago, other than by a collection."""
        writer, now = self.view.opened.writer, time.monotonic()
        if self.view.opened.running or writer.commits > self._commits:
            self._busy_until = now + 0.1
        self._commits = writer.commits
        return now < self._busy_until

    async def _write(self, operation: Callable[[Database, Scope], T], size: int = 0) -> T:
        """Runs a part of the collection beside other writes. It need not be synced: what a power cut undoes is due
        again. The same holds after a failed COMMIT."""
        done = await self.view.write(
            "collection", "", operation, landed=lambda db, scope: False, durable=False, size=size, alone=True
        )
        self._commits += 1
        return done


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
