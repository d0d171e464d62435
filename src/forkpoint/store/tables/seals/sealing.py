"""Sealing: puts new records under seals, and gives the anchor that names the last one.

Digests are hashed in a read. Only the small rows are written, in a transaction that checks that nobody else has sealed
meanwhile: of several processes that seal at once one wins, and the others begin anew with what is left. So no commit
waits for the hashing, and a seal costs no more than its own records.
Tests: forkpoint.testing.conformance.evidence.anchors, tests/store/test_seals.py.
"""

import time
from functools import partial

import anyio

from forkpoint.history.anchors import Anchor, anchor_of, anchor_of_nothing
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.rows import Scope
from forkpoint.store.tables.seals import rows
from forkpoint.store.tables.view import View

_PATIENCE = 5.0  # seconds for writers to end
_PAUSE = 0.005


async def anchor(view: View, *, all_tenants: bool) -> Anchor:
    """Seals what is new, and returns the anchor of the tenant's last seal, or of the whole store's."""
    await _seal(view)
    if all_tenants:
        await _seal_store(view)
        return await view.read(_store_anchor)
    return await view.read(_anchor)


async def _seal(view: View) -> None:
    """Seals all records that are there now, not those that are written meanwhile: there might be no end of them."""
    newest = await _newest(view)
    sealed = 0
    while sealed < newest and (new := await view.read(partial(rows.next_seals, upto=newest))) is not None:
        write = partial(rows.insert, new=new)
        if await view.write("seal of record", str(new.last), write, landed=partial(rows.is_written, new=new)):
            sealed = new.last  # else somebody else was first, and the next read begins after their seals


async def _newest(view: View) -> int:
    """The last record that a seal may cover. What is sealed later never stands before it.

    Where several write at once, a record that is not committed may stand before others that are: so it waits until
    those who write now have ended. If one of them takes its time, what comes after the first gap stays unsealed.
    """
    newest, writers = await view.read(rows.newest_record)
    until = time.monotonic() + _PATIENCE
    while writers:
        if time.monotonic() > until:
            return await view.read(partial(rows.last_before_a_gap, upto=newest))
        await anyio.sleep(_PAUSE)
        writers = await view.read(partial(rows.open_writers, writers=writers))
    return newest


async def _seal_store(view: View) -> None:
    while (seal := await view.read(rows.next_store_seal)) is not None:
        write = partial(rows.insert_store_seal, seal=seal)
        landed = partial(rows.is_store_seal_written, seal=seal)
        if await view.write("seal of the store", str(seal.number), write, landed=landed):
            return


def _anchor(db: Database, scope: Scope) -> Anchor:
    seal = rows.last_seal(db, scope.tenant)
    return anchor_of_nothing(rows.store_id(db), scope.tenant) if seal is None else anchor_of(seal)


def _store_anchor(db: Database, scope: Scope) -> Anchor:
    seal = rows.last_store_seal(db)
    return anchor_of_nothing(rows.store_id(db), None) if seal is None else anchor_of(seal)
