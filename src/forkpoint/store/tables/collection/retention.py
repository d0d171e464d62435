"""Retention: what is kept for a time only. Drafts nobody went on with, idempotency keys, the content of failed tries,
conversations that the Responses API made by itself.

Whether something is due is one read of an index each, so that looking costs the same however large the store is.
Tests: forkpoint.testing.conformance.evidence.care, tests/store/test_collection.py, test_gone.py.
"""

from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from forkpoint.history.records import Expiry, Fact, family_chain
from forkpoint.ids import id_from_bytes
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.evidence import records
from forkpoint.store.tables.operations import garbage
from forkpoint.store.tables.operations.garbage import Tenants
from forkpoint.store.tables.rows import Scope
from forkpoint.store.values import Collected

BATCH = 200
"""How many tries or keys one transaction removes, and how many tries one record names."""

TRIES = "failed and cancelled tries"
"""The rule that a record of expired tries names."""


class CutOffs(Struct, frozen=True):
    """What is older than these times, in microseconds since 1970, is due."""

    drafts: int
    keys: int
    tries: int
    responses: int
    holders: int


class Due(Struct, frozen=True):
    """What there is to do."""

    garbage: bool
    drafts: tuple[tuple[str, str], ...]  # tenant and id of each
    keys: bool
    tries: bool
    responses: tuple[tuple[str, str], ...]  # tenant and id of each conversation
    imports: bool  # some import is under way, or was interrupted
    holders: bool  # some process is gone for good
    log: bool  # text was removed, and the log may still have it
    removals: int  # how often text was removed so far
    pages: bool  # unused parts of pages may have erased text

    @property
    def removes_something(self) -> bool:
        return bool(self.garbage or self.drafts or self.keys or self.tries or self.responses or self.imports)

    def __bool__(self) -> bool:
        return self.removes_something or self.holders or self.log or self.pages


def due(db: Database, scope: Scope, tenants: Tenants, before: CutOffs) -> Due:
    """What there is to do. It is six reads, each of an index or of one row."""
    at_least_one = tenants.range | {"limit": 1}
    drafts = db.run("old_drafts", tenants.range | {"before": before.drafts}).fetchall()
    keys = db.run("old_keys", at_least_one | {"before": before.keys}).fetchone()
    tries = db.run("old_tries", at_least_one | {"before": before.tries}).fetchone()
    responses = db.run("old_responses", tenants.range | {"before": before.responses}).fetchall()
    owed = db.run("owed", {"before": before.holders}).fetchone()
    return Due(
        garbage=garbage.is_there(db, tenants),
        drafts=tuple((row["tenant"], id_from_bytes(row["id"])) for row in drafts),
        keys=keys is not None,
        tries=tries is not None,
        responses=tuple((row["tenant"], id_from_bytes(row["id"])) for row in responses),
        imports=bool(owed["imports"]),
        holders=owed["gone"] > 0,
        log=owed["cleared"] < owed["removals"],
        removals=owed["removals"],
        pages=bool(owed["erased"]),
    )


def count(db: Database, tenants: Tenants, before: CutOffs, due: Due) -> Collected:
    """How much is due of each kind. The tries of a conversation that is due go with it."""
    everything = tenants.range | {"limit": -1}
    keys = db.run("old_keys", everything | {"before": before.keys}).fetchall()
    tries = db.run("old_tries", everything | {"before": before.tries}).fetchall()
    gone = {*due.drafts, *due.responses}
    stay = [row for row in tries if (row["tenant"], id_from_bytes(row["conversation"])) not in gone]
    return Collected(drafts=len(due.drafts), keys=len(keys), tries=len(stay), responses=len(due.responses))


def delete_keys(db: Database, scope: Scope, tenants: Tenants, before: int) -> int:
    """Frees some keys that are due, and returns how many."""
    rows = db.run("old_keys", tenants.range | {"before": before, "limit": BATCH}).fetchall()
    for row in rows:
        db.run("delete_key", {"tenant": row["tenant"], "key": row["key"]})
    if rows:
        garbage.owe(db)
    return len(rows)


def expire_tries(db: Database, scope: Scope, tenants: Tenants, before: int) -> int:
    """Removes the content of some tries that are due, and returns how many. A record in each family's chain says so."""
    rows = db.run("old_tries", tenants.range | {"before": before, "limit": BATCH}).fetchall()
    rows.sort(key=lambda row: (row["tenant"], row["family"]))
    for (tenant, family), tries in groupby(rows, key=lambda row: (row["tenant"], row["family"])):
        of_tenant, own = replace(scope, tenant=tenant, by=None), db.within(tenant)  # nobody acts here: a rule does
        turns = [row["id"] for row in tries]
        for turn in turns:
            own.run("expire_try", {"id": turn, "now": scope.now})
            own.run("delete_steps", {"turn": turn})
            own.run("forget_salts_of_tries", {"tenant": tenant, "subject": turn})
        expired = Expiry(TRIES, before, tuple(map(id_from_bytes, turns)))
        fact = Fact(kind="expired", time=scope.now, expired=expired)
        records.tell_in(own, of_tenant, family_chain(family), fact)
    if rows:
        garbage.owe(db)
    return len(rows)


def forget_holders(db: Database, before: int) -> None:
    db.run("forget_holders", {"before": before})
