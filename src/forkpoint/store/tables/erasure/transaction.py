"""The transaction of an erasure: interrupted it happened or did not.

Then the file is written anew and the log is emptied, since both may have copies of the text (see `disk.residue`).
Tests: tests/store/test_erasure.py, test_faults.py."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio
from msgspec.structs import replace

from forkpoint.errors import NotFound, StoreError
from forkpoint.store.erasure import Erasing, Receipt
from forkpoint.store.sqlite.disk.residue import empty_log, size_of_store
from forkpoint.store.sqlite.tenant_view import TenantView
from forkpoint.store.sqlite.writer import WriteJob
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.erasure import receipts, removal
from forkpoint.store.tables.rows import Scope

T = TypeVar("T")

LOG_IS_READ = "the store's log has the text until nobody reads from it any more"
NOT_COMPACTED = "unused parts of the store's pages may have pieces of the text until the store is compacted"

LARGEST = 256 << 20
"""Bytes up to which a store is written anew by an erasure: that takes a second or two, in which nobody else writes."""

_ATTEMPTS = 20  # to empty the log


async def erase(view: TenantView, id: str, chosen: Erasing, reason: str, *, more_follow: bool) -> Receipt:
    """Erases what was chosen, and cleans up unless more erasures follow. The receipt says what has to wait."""
    receipt = await _write(view, id, partial(removal.erase, id=id, chosen=chosen, reason=reason))
    return replace(receipt, pending=(LOG_IS_READ, NOT_COMPACTED) if more_follow else await clean(view))


async def replay(view: TenantView, receipt: Receipt) -> bool:
    """Erases what a receipt names, in a copy that was made before. False if that was done already."""
    done = await _write(view, receipt.id, partial(receipts.replay, receipt=receipt))
    if done:
        await clean(view)
    return done


async def clean(view: TenantView, *, is_compacted: bool = False) -> tuple[str, ...]:
    """Writes the file anew and empties the log, if erasures have left that to do. Returns what has to wait.

    ``is_compacted``: the file has just been written anew.
    """
    try:
        owed = await view.read(lambda db, scope: dict(db.run("owed_after_erasures").fetchone()))
        if owed["compacted"] >= owed["erasures"] and owed["cleared"] >= owed["removals"]:
            return ()
        is_small = is_compacted or await view.read(size_of_store) <= LARGEST
        if is_small and not is_compacted and owed["compacted"] < owed["erasures"]:
            await anyio.to_thread.run_sync(view.file.writer.compact)
        if not await empty_log(view.file.writer, attempts=_ATTEMPTS):
            return (LOG_IS_READ,) if is_small else (LOG_IS_READ, NOT_COMPACTED)
        erasures = owed["erasures"] if is_small else owed["compacted"]
        settled = partial(_settle, removals=owed["removals"], erasures=erasures)
        await view.write("log", "", settled, landed=lambda db, scope: True, durable=False)
        return () if is_small else (NOT_COMPACTED,)
    except StoreError:  # the erasure is done all the same
        return (LOG_IS_READ, NOT_COMPACTED)


async def _write(view: TenantView, id: str, operation: Callable[[Database, Scope], T]) -> T:
    """Runs an operation on the writer's thread, since it may take long, and to its end."""
    await view.file.to_read()
    view.file.check_writable()
    if not view.file.is_open:  # there is no file yet
        raise NotFound("conversation", id)
    scope = view.scope()
    job = WriteJob(
        "erasure", id, lambda db: operation(db, scope), landed=lambda db: removal.is_made(db, scope, id), alone=True
    )
    return await view.file.writer.finish(job)


def _settle(db: Database, scope: Scope, removals: int, erasures: int) -> None:
    db.run("settle_erasures", {"removals": removals, "erasures": erasures})
