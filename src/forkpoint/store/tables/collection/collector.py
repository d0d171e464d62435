"""Collection: removes what no conversation reaches any more and what was kept long enough, in short transactions.

What a database keeps of removed text in places that no query shows, each database has to clear away in its own way.
Tests: forkpoint.testing.conformance.evidence.care, tests/store/test_collection.py, test_gone.py, test_faults.py.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import anyio
from msgspec.structs import replace

from forkpoint.store.tables.collection import retention
from forkpoint.store.tables.collection.retention import CutOffs, Due
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.operations import deletion, garbage
from forkpoint.store.tables.operations.garbage import SLICE_BYTES, Tenants
from forkpoint.store.tables.rows import Scope
from forkpoint.store.tables.transfer.pins import clear_abandoned
from forkpoint.store.tables.view import View
from forkpoint.store.values import Collected, Pending

T = TypeVar("T")

AT_CLOSE = 2.0
"""Seconds that a store which is being closed may spend on a collection."""

HURRY = Pending("garbage", "the store was closed before all of it was removed; the next collection goes on")

BUSY_BYTES = 128 << 10
BUSY_SECONDS = 0.01
"""While turns run here, so much is removed in so many seconds: the next commit has to sync it too."""


@dataclass(eq=False)
class Collector:
    """One collection, for the tenant of a view or for all tenants. ``seconds`` is how long it may take."""

    view: View
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
            responses=now - settings.keep_responses,
            holders=now - settings.expiry,
        )

    async def due(self) -> Due:
        """What there is to do."""
        return await self.view.read(partial(retention.due, tenants=self._tenants, before=self._before))

    async def measure(self, due: Due) -> Collected:
        """How much is due."""

        def read(db: Database, scope: Scope) -> Collected:
            return garbage.measure(db, self._tenants) + retention.count(db, self._tenants, self._before, due)

        return await self.view.read(read)

    async def remove(self, due: Due) -> Collected:
        """Removes what is due, and says how much that was."""
        total = Collected()
        if due.imports:
            await clear_abandoned(self.view)
        self._commits = self.view.opened.commits
        for tenant, draft in due.drafts:
            remove = partial(self._delete_draft, tenant=tenant, id=draft)
            if not self.is_late() and await self.write(remove, exclusive=True):
                total += Collected(drafts=1)
        for tenant, conversation in due.responses:
            remove = partial(self._delete_responses, tenant=tenant, id=conversation)
            if not self.is_late() and await self.write(remove, exclusive=True):
                total += Collected(responses=1)
        total += await self._keys(due)
        total += await self._tries(due)
        total += await self._garbage(due)
        if due.holders:
            await self.write(lambda db, scope: retention.forget_holders(db, self._before.holders))
        return total

    async def _keys(self, due: Due) -> Collected:
        run = partial(retention.delete_keys, tenants=self._tenants, before=self._before.keys)
        return Collected(keys=await self._in_batches(run) if due.keys else 0)

    async def _tries(self, due: Due) -> Collected:
        run = partial(retention.expire_tries, tenants=self._tenants, before=self._before.tries)
        return Collected(tries=await self._in_batches(run) if due.tries else 0)

    async def _in_batches(self, run: Callable[[Database, Scope], int]) -> int:
        total, more = 0, True
        while more and not self.is_late():
            some = await self.write(run)
            total, more = total + some, some == retention.BATCH
        return total

    async def _garbage(self, due: Due) -> Collected:
        """What was removed just now may have left some, so it looks whatever was due before."""
        total, more = Collected(), due.garbage or bool(due.drafts or due.responses)
        while more and not self.is_late():
            most = BUSY_BYTES if self.is_busy() else SLICE_BYTES
            some, more = await self.slice(partial(garbage.collect_slice, tenants=self._tenants, most=most), size=most)
            total += some
        return replace(total, pending=(HURRY,)) if more else total

    def _delete_draft(self, db: Database, scope: Scope, tenant: str, id: str) -> bool:
        return deletion.delete_if(
            db.within(tenant), replace(scope, tenant=tenant), id, "old_draft", self._before.drafts
        )

    def _delete_responses(self, db: Database, scope: Scope, tenant: str, id: str) -> bool:
        of_tenant = replace(scope, tenant=tenant)
        return deletion.delete_if(db.within(tenant), of_tenant, id, "old_response", self._before.responses)

    # The pace.

    def is_late(self) -> bool:
        """Whether the time of the collection is over."""
        return self._until is not None and time.monotonic() >= self._until

    async def slice(self, operation: Callable[[Database, Scope], T], size: int) -> T:
        """Runs one of many parts. If turns run here, it then rests a little, so that they come through."""
        started = time.perf_counter()
        done = await self.write(operation, size)
        if self.is_busy():
            await anyio.sleep(max(0.0, started + BUSY_SECONDS - time.perf_counter()))
        return done

    def is_busy(self) -> bool:
        """Whether turns run in this process, or something was written here a moment ago, other than by a collection."""
        commits, now = self.view.opened.commits, time.monotonic()
        if self.view.opened.running or commits > self._commits:
            self._busy_until = now + 0.1
        self._commits = commits
        return now < self._busy_until

    async def write(self, operation: Callable[[Database, Scope], T], size: int = 0, *, exclusive: bool = False) -> T:
        """Runs a part of the collection beside other writes. It need not be synced: what a power cut undoes is due
        again. The same holds after a failed COMMIT."""
        done = await self.view.write(
            "collection",
            "",
            operation,
            landed=lambda db, scope: False,
            durable=False,
            size=size,
            alone=True,
            exclusive=exclusive,
        )
        self._commits += 1
        return done
