"""Garbage: the ends of segments that no conversation reaches any more.

Whatever takes a pointer into history away queues the segment to which it pointed (`queue`). The collector takes one
segment after the other. A head, the base of another segment or an open turn stands highest in it: what follows that
place is removed. If nothing stands there, the whole segment goes, and the segment on which it stood is looked at next.
So its work follows the garbage, however large the store is.

It removes from the end, a slice in each transaction: what is left is always whole, and no turn waits long.
Tests: forkpoint.testing.conformance.evidence.care, tests/store/test_collection.py, test_gone.py, test_faults.py.
"""

import heapq
import time
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from forkpoint.store.tables.database import Database
from forkpoint.store.tables.evidence import records
from forkpoint.store.tables.operations import idempotency
from forkpoint.store.tables.rows import ORDINALS, Scope
from forkpoint.store.values import Collected

SLICE_BYTES = 1 << 20
SLICE_SECONDS = 0.005
"""How much one transaction of the collector removes at most, and how long it takes at most, an event aside."""

_CHUNK = 32  # events that are removed between two looks at the clock


class Tenants(Struct, frozen=True):
    """Whose garbage is meant: all tenants between two names."""

    low: str = ""
    high: str = "~"  # comes after every name that a tenant can have

    @classmethod
    def only(cls, tenant: str) -> "Tenants":
        return cls(tenant, tenant)

    @property
    def range(self) -> dict[str, str]:
        return {"low": self.low, "high": self.high}


class Stretch(Struct, frozen=True):
    """The end of a segment that nobody reaches: everything after an ordinal."""

    segment: int
    after: int
    base: int | None  # where the segment begins
    whole: bool  # nothing of the segment is reached

    @property
    def keys(self) -> dict[str, int]:
        return {"first": (self.segment << 32) + self.after + 1, "last": self.segment << 32 | ORDINALS}


def queue(db: Database, scope: Scope, place: int | None) -> None:
    """Notes that a pointer to this place is gone. The place of an empty path is None."""
    if place is not None:
        db.run("queue_garbage", {"tenant": scope.tenant, "segment": place >> 32, "now": scope.now})


def owe(db: Database) -> None:
    """Notes that this transaction removes text: the log has to be emptied afterwards."""
    db.run("owe")


def pin(db: Database, turn: bytes, place: int | None) -> None:
    """Keeps the base of an open turn that stands elsewhere than at the head."""
    if place is not None:
        db.run("pin", {"turn": turn, "place": place})


def unpin(db: Database, scope: Scope, turn: bytes, *, is_committed: bool = False) -> None:
    """The turn is over, and perhaps nobody reaches its base any more. If it has committed, its events stand there."""
    for row in db.run("unpin", {"turn": turn}).fetchall():
        if not is_committed:
            queue(db, scope, row["place"])


def is_there(db: Database, tenants: Tenants) -> bool:
    """Whether there is a segment to look at."""
    return db.run("next_garbage", tenants.range).fetchone() is not None


def collect_slice(db: Database, scope: Scope, tenants: Tenants, most: int = SLICE_BYTES) -> tuple[Collected, bool]:
    """Removes one slice of the garbage, of ``most`` bytes; says whether there is more."""
    until = time.perf_counter() + SLICE_SECONDS
    done = Collected()
    while (row := db.run("next_garbage", tenants.range).fetchone()) is not None:
        of_tenant, own = replace(scope, tenant=row["tenant"]), db.within(row["tenant"])
        stretch = _unreached(own, row["segment"])
        while stretch is not None:
            some = _shorten(own, of_tenant, stretch, most - done.payload_bytes)
            done += some
            if not some.events:
                break
            if done.payload_bytes >= most or time.perf_counter() >= until:
                owe(db)
                return done, True
        if stretch is not None and stretch.whole:
            own.run("delete_segment", {"id": stretch.segment})
            done += Collected(segments=1)
            queue(own, of_tenant, stretch.base)
        db.run("delete_garbage", {"tenant": row["tenant"], "segment": row["segment"]})
    if done != Collected():
        owe(db)
    return done, False


def measure(db: Database, tenants: Tenants) -> Collected:
    """What collecting the garbage would remove."""
    total, gone, measured = Collected(), set[int](), 0
    waiting = [(-row["segment"], row["tenant"]) for row in db.run("all_garbage", tenants.range)]
    heapq.heapify(waiting)  # the newest first: a segment stands on an older one
    while waiting:
        newest, tenant = heapq.heappop(waiting)
        segment, own = -newest, db.within(tenant)
        stretch = None if segment == measured else _unreached(own, segment, gone)
        measured = segment
        if stretch is None:
            continue
        found = own.run("measure_events", stretch.keys).fetchone()
        turns = own.run("turns_in_stretch", stretch.keys | {"after": stretch.after}).fetchone()["turns"]
        total += Collected(found["events"], found["bytes"], int(stretch.whole), turns=turns)
        if stretch.whole:
            gone.add(segment)
            if stretch.base is not None:
                heapq.heappush(waiting, (-(stretch.base >> 32), tenant))
    return total


def _unreached(db: Database, segment: int, gone: Iterable[int] = ()) -> Stretch | None:
    """The end of a segment that nobody reaches; None if the segment is not there.

    ``gone`` are segments that count as removed: what stands on another one keeps it no longer.
    """
    row = db.run("base_of_segment", {"id": segment}).fetchone()
    if row is None:
        return None
    keys = {"first": segment << 32, "last": segment << 32 | ORDINALS}
    if gone:
        place = db.run("highest_place_of_a_head", keys).fetchone()["place"]
        bases = (base["base"] for base in db.run("bases_in_segment", keys) if base["id"] not in gone)
        place = max(place, next(bases, 0))
    else:
        place = db.run("highest_place", keys).fetchone()["place"]
    base = row["base"]
    return Stretch(segment, place & ORDINALS if place else (base or 0) & ORDINALS, base, whole=not place)


def _shorten(db: Database, scope: Scope, stretch: Stretch, most: int) -> Collected:
    """Removes a few events from the end of a stretch, and the turns of which nothing is left then."""
    first = last = None
    events = size = 0
    for row in db.run("last_events", stretch.keys | {"limit": _CHUNK}):
        first, last = row["id"], last or row["id"]
        events, size = events + 1, size + row["bytes"]
        if size >= most:
            break
    if first is None:
        return Collected()
    db.run("delete_events", {"first": first, "last": last})
    from_here = {"first": first, "last": stretch.keys["last"], "after": (first & ORDINALS) - 1}
    turns = db.run("delete_turns", from_here).fetchall()
    for turn in turns:
        idempotency.free(db, scope, turn["id"])
        records.forget_turn(db, scope, turn)
    return Collected(events, size, turns=len(turns))
