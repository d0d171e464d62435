"""Pins: which segments belong to an import that no head reaches yet. The collector never looks there by itself.

An import that was killed leaves its pins behind. Its segments are removed before the pins are, so that nobody ever sees
events whose turns are missing. Tests: tests/store/test_import.py.
"""

from functools import partial

from forkpoint.store.tables.database import Database
from forkpoint.store.tables.operations import garbage
from forkpoint.store.tables.rows import ORDINALS, Scope
from forkpoint.store.tables.view import View

_BATCH = 500


def begin(db: Database, scope: Scope, id: bytes, family: bytes) -> None:
    parameters = {"id": id, "tenant": scope.tenant, "family": family, "holder": scope.holder, "now": scope.now}
    db.run("begin_import", parameters)


def exists(db: Database, scope: Scope, id: bytes) -> bool:
    return any(row["id"] == id for row in db.run("imports", {"tenant": scope.tenant}))


def abandoned(db: Database, scope: Scope) -> list[bytes]:
    """The imports of processes that are gone."""
    rows = db.run("imports", {"tenant": scope.tenant}).fetchall()
    return [row["id"] for row in rows if not scope.alive(row["holder"], row["seen"])]


def clear_some(db: Database, scope: Scope, id: bytes) -> bool:
    """Removes a part of what an import has written, the newest first; says whether there is more."""
    row = db.run("segments_of_import", {"import": id}).fetchone()
    if row is None:
        db.run("end_import", {"id": id})
        return False
    segment = row["segment"]
    stretch = {"first": segment << 32, "last": segment << 32 | ORDINALS}
    events = db.run("last_events", stretch | {"limit": _BATCH}).fetchall()
    if events:
        db.run("delete_events", {"first": events[-1]["id"], "last": events[0]["id"]})
        garbage.owe(db)
    if len(events) < _BATCH:
        db.run("unpin_segment", {"segment": segment})
        db.run("delete_segment", {"id": segment})
    return True


async def clear(view: View, id: bytes) -> None:
    """Removes all that an import has written, in short transactions."""
    more = True
    while more:
        more = await view.write("import", id.hex(), partial(clear_some, id=id), landed=lambda db, scope: False)


async def clear_abandoned(view: View) -> None:
    """Removes what imports of processes that are gone have left behind."""
    for id in await view.read(abandoned):
        await clear(view, id)
