"""Seals as rows: each statement about them, within the transaction of the caller. Tests: tests/store/test_seals.py."""

import sys
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import asdict

from forkpoint.history.seals import START, Seal, StoreSeal, hints, tree_hash
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.rows import Scope

LARGEST = 10_000
"""How many records are sealed at a time: their digests are hashed while others wait for nothing but the processor."""


class NewSeals(Struct, frozen=True):
    """Seals that are ready to be written, one for each tenant that has new records. ``after`` is the last sealed record
    that they follow."""

    after: int
    seals: tuple[tuple[Seal, bytes], ...]  # with the hints for its records

    @property
    def last(self) -> int:
        return self.seals[-1][0].last


def store_id(db: Database) -> bytes:
    """Which store this is."""
    found: bytes = db.run("store_id").fetchone()["store"]
    return found


def sealed_up_to(db: Database) -> int:
    """The record up to which all tenants' records are sealed."""
    row = db.run("sealed_up_to").fetchone()
    return 0 if row is None else int(row["last"])


def newest_record(db: Database, scope: Scope) -> tuple[int, str]:
    """How far records go, and which open transactions may still write one before that: none if there is one writer."""
    row = db.run("newest_record").fetchone()
    return int(row["id"]), row["writers"]


def open_writers(db: Database, scope: Scope, writers: str) -> str:
    """Which of these transactions are still open."""
    found: str = db.run("open_writers", {"writers": writers}).fetchone()["writers"]
    return found


def last_before_a_gap(db: Database, scope: Scope, upto: int) -> int:
    """The record up to which certainly none is missing, whoever still writes."""
    where = {"after": sealed_up_to(db), "upto": upto, "limit": LARGEST}
    return int(db.run("last_before_a_gap", where).fetchone()["id"])


def next_seals(db: Database, scope: Scope, upto: int = sys.maxsize) -> NewSeals | None:
    """Seals for the next records up to one that have none; None if all of them are sealed. Writes nothing."""
    after = sealed_up_to(db)
    by_tenant: dict[str, list[Row]] = {}
    for row in db.run("unsealed_records", {"after": after, "upto": upto, "limit": LARGEST}):
        by_tenant.setdefault(row["tenant"], []).append(row)
    if not by_tenant:
        return None
    store = store_id(db)
    made = [_seal(db, scope, store, tenant, records) for tenant, records in by_tenant.items()]
    return NewSeals(after, tuple(sorted(made, key=lambda one: one[0].last)))


def insert(db: Database, scope: Scope, new: NewSeals) -> bool:
    """Writes seals, unless somebody else has sealed meanwhile: then it returns False, and nothing is written."""
    if sealed_up_to(db) != new.after:
        return False
    for seal, leaves in new.seals:
        db.run("insert_seal", asdict(seal) | {"digest": seal.digest, "leaves": leaves})
    return True


def is_written(db: Database, scope: Scope, new: NewSeals) -> bool:
    """Whether these seals are in the store."""
    seal = new.seals[-1][0]
    row = db.run("seal_numbered", {"tenant": seal.tenant, "number": seal.number}).fetchone()
    return row is not None and row["digest"] == seal.digest


def last_seal(db: Database, tenant: str) -> Seal | None:
    row = db.run("last_seal", {"tenant": tenant}).fetchone()
    return None if row is None else seal_of(row)


def last_store_seal(db: Database) -> StoreSeal | None:
    row = db.run("last_store_seal").fetchone()
    return None if row is None else store_seal_of(row)


def next_store_seal(db: Database, scope: Scope) -> StoreSeal | None:
    """A seal of the whole store; None if its last one covers every tenant's last seal. Writes nothing."""
    before, newest = last_store_seal(db), db.run("sealed_up_to").fetchone()
    if newest is None or (before is not None and before.seal == newest["id"]):
        return None
    root, count = root_of_tenants(db, newest["id"])
    return StoreSeal(
        store=store_id(db),
        number=1 if before is None else before.number + 1,
        seal=newest["id"],
        count=count,
        root=root,
        previous=START if before is None else before.digest,
        time=scope.now,
    )


def insert_store_seal(db: Database, scope: Scope, seal: StoreSeal) -> bool:
    """Writes a seal of the whole store. Returns False if somebody else has made the seal with this number."""
    before = last_store_seal(db)
    if (0 if before is None else before.number) != seal.number - 1:
        return False
    db.run("insert_store_seal", asdict(seal) | {"digest": seal.digest})
    return True


def is_store_seal_written(db: Database, scope: Scope, seal: StoreSeal) -> bool:
    row = db.run("store_seal_numbered", {"number": seal.number}).fetchone()
    return row is not None and row["digest"] == seal.digest


def root_of_tenants(db: Database, seal: int) -> tuple[bytes, int]:
    """The root over the last seals of all tenants up to a seal, and how many records these cover."""
    rows = db.run("last_seals", {"seal": seal}).fetchall()
    return tree_hash(row["digest"] for row in rows), sum(row["count"] for row in rows)


def seal_of(row: Row) -> Seal:
    """A seal from its row. Its digest is what its fields give, and need not be what the row says."""
    return Seal(**{name: row[name] for name in Seal.__struct_fields__})


def store_seal_of(row: Row) -> StoreSeal:
    """A seal of the whole store from its row, as `seal_of`."""
    return StoreSeal(**{name: row[name] for name in StoreSeal.__struct_fields__})


def _seal(db: Database, scope: Scope, store: bytes, tenant: str, records: Sequence[Row]) -> tuple[Seal, bytes]:
    before = last_seal(db, tenant)
    digests = [row["digest"] for row in records]
    seal = Seal(
        store=store,
        tenant=tenant,
        number=1 if before is None else before.number + 1,
        first=records[0]["id"],
        last=records[-1]["id"],
        count=len(records) + (0 if before is None else before.count),
        root=tree_hash(digests),
        previous=START if before is None else before.digest,
        time=scope.now,
    )
    return seal, hints(digests)
