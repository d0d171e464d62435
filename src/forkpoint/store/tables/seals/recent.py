"""What was recorded after a seal: the part of a store that `verify` looks at if it is told what was verified before.
Tests: tests/store/test_seals.py."""

from msgspec import Struct

from forkpoint.history.anchors import Anchor
from forkpoint.history.seals import Seal
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.rows import Scope
from forkpoint.store.tables.seals.rows import seal_of

_PAGE = 1000


class Recent(Struct, frozen=True):
    """What records after a point are about."""

    chains: dict[bytes, int]  # the chains that have such records, and the number of the first of them
    turns: frozenset[bytes]  # the turns that such a record is about


def recent(db: Database, scope: Scope, after: int) -> Recent:
    """What was recorded after a record, by its row id, in the chains of the tenant."""
    chains: dict[bytes, int] = {}
    turns: set[bytes] = set()
    while rows := db.run("records_since", {"tenant": scope.tenant, "after": after, "limit": _PAGE}).fetchall():
        after = rows[-1]["id"]
        for row in rows:
            chains.setdefault(row["chain"], row["number"])
            if row["subject"] is not None and row["kind"] != "charged" and row["chain"][:1] == b"c":
                turns.add(row["subject"])
    return Recent(chains, frozenset(turns))


def seal_at(db: Database, tenant: str, anchor: Anchor) -> Seal | None:
    """The tenant's seal that an anchor stands for: the seal it names, or the last that the whole store's seal covers.

    None if there is none: then all that the tenant has is newer than the anchor.
    """
    if anchor.tenant is not None:
        wanted = {"tenant": tenant, "number": anchor.number if anchor.tenant == tenant else 0}
        row = db.run("seal_numbered", wanted).fetchone()
    else:
        store_seal = db.run("store_seal_numbered", {"number": anchor.number}).fetchone()
        upto = 0 if store_seal is None else store_seal["seal"]
        row = db.run("last_seal_within", {"tenant": tenant, "seal": upto}).fetchone()
    return None if row is None else seal_of(row)
