"""Collection: removes what no conversation reaches any more, in short transactions.
Tests: forkpoint.testing.conformance.care, tests/store/test_failed_commit.py, test_state_machine.py."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio

from forkpoint.store.sqlite.connection import Database
from forkpoint.store.sqlite.operations import deletion, garbage
from forkpoint.store.sqlite.rows import Scope
from forkpoint.store.sqlite.tenant_view import TenantView
from forkpoint.store.values import Collected

T = TypeVar("T")


async def collect(view: TenantView, *, dry_run: bool) -> Collected:
    """Removes a tenant's garbage, old drafts and old keys, and says how much; or says how much there is."""
    file = view.file
    now, settings = file.clock(), file.settings
    drafts_before, keys_before = now - settings.keep_drafts, now - settings.keep_keys
    if dry_run:
        return await view.read(partial(_dry_run, drafts_before=drafts_before, keys_before=keys_before))
    total = Collected()
    for draft in await view.read(partial(garbage.old_drafts, before=drafts_before)):
        if await _write(view, partial(deletion.delete_old_draft, id=draft, before=drafts_before)):
            total += Collected(drafts=1)
    for family in await view.read(garbage.families):
        more = True
        while more:
            some, more = await _write(view, partial(garbage.collect_some, family=family))
            total += some
    keys = await _write(view, partial(garbage.delete_old_keys, before=keys_before))
    await _write(view, lambda db, scope: garbage.forget_holders(db, before=now - settings.expiry))
    await anyio.to_thread.run_sync(file.holder.sweep)
    return total + Collected(keys=keys)


async def _write(view: TenantView, operation: Callable[[Database, Scope], T]) -> T:
    """After a failed COMMIT a part of a collection counts as not done: the next collection does it."""
    return await view.write("collection", "", operation, landed=lambda db, scope: False)


def _dry_run(db: Database, scope: Scope, drafts_before: int, keys_before: int) -> Collected:
    total = Collected(
        drafts=len(garbage.old_drafts(db, scope, drafts_before)), keys=garbage.count_old_keys(db, scope, keys_before)
    )
    for family in garbage.families(db, scope):
        for stretch in garbage.unreached(db, scope, family):
            total += garbage.measure(db, stretch)
    return total
