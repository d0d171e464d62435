"""After an erasure: the text goes from the pages and from the log of the file too.
Tests: tests/store/test_erasure.py, test_collection.py."""

from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread

from forkpoint.errors import StoreError
from forkpoint.store.sqlite.disk.residue import empty_log, size_of_store
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.rows import Scope

if TYPE_CHECKING:
    from forkpoint.store.sqlite.tenant_view import TenantView

LOG_IS_READ = "the store's log has the text until nobody reads from it any more"
NOT_COMPACTED = "unused parts of the store's pages may have pieces of the text until the store is compacted"

LARGEST = 256 << 20
"""Bytes up to which a store is written anew by an erasure: that takes a second or two, in which nobody else writes."""

_ATTEMPTS = 20  # to empty the log


async def clean(view: "TenantView", *, is_compacted: bool = False) -> tuple[str, ...]:
    """Writes the file anew and empties the log, if erasures have left that to do. Returns what has to wait.

    ``is_compacted``: the file has just been written anew.
    """
    try:
        owed = await view.read(lambda db, scope: dict(db.run("owed_after_erasures").fetchone()))
        if owed["compacted"] >= owed["erasures"] and owed["cleared"] >= owed["removals"]:
            return ()
        is_small = is_compacted or await view.read(size_of_store) <= LARGEST
        if is_small and not is_compacted and owed["compacted"] < owed["erasures"]:
            await anyio.to_thread.run_sync(view.opened.writer.compact)
        if not await empty_log(view.opened.writer, attempts=_ATTEMPTS):
            return (LOG_IS_READ,) if is_small else (LOG_IS_READ, NOT_COMPACTED)
        erasures = owed["erasures"] if is_small else owed["compacted"]
        settled = partial(_settle, removals=owed["removals"], erasures=erasures)
        await view.write("log", "", settled, landed=lambda db, scope: True, durable=False)
        return () if is_small else (NOT_COMPACTED,)
    except StoreError:  # the erasure is done all the same
        return (LOG_IS_READ, NOT_COMPACTED)


def _settle(db: Database, scope: Scope, removals: int, erasures: int) -> None:
    db.run("settle_erasures", {"removals": removals, "erasures": erasures})
