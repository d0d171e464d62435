"""Whether seals, the records under them, and anchors that were kept outside agree: a part of `verify`.

A seal is made anew from the digests of its records; that these fit to the records' bodies is for whoever follows the
chains. Who rewrites records and seals alike is found by an anchor only. Tests: tests/store/test_seals.py.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from forkpoint.history.anchors import Anchor, anchor_of, contradictions
from forkpoint.history.seals import HINT, START, Seal, StoreSeal, tree_hash
from forkpoint.ids import id_from_bytes
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.rows import Scope
from forkpoint.store.tables.seals.recent import seal_at
from forkpoint.store.tables.seals.rows import root_of_tenants, seal_of, sealed_up_to, store_id, store_seal_of
from forkpoint.store.values import Flaw

NAMED = 5
"""How many records or chains a flaw names."""

_PAGE = 20


class Inspection(Struct, frozen=True):
    """How many seals were made anew, what is wrong, and what else the reader should know."""

    seals: int
    flaws: tuple[Flaw, ...]
    remarks: tuple[str, ...]


def inspect(db: Database, scope: Scope, anchors: Sequence[Anchor] = (), since: Anchor | None = None) -> Inspection:
    """Checks the tenant's seals, from the seal of ``since`` on, and all anchors.

    If an anchor is of the whole store, the seals of all tenants are checked.
    """
    check = _Check(db, scope)
    kept = anchors if since is None else (*anchors, since)
    check.tenant(scope.tenant, since)
    if any(anchor.tenant is None for anchor in kept):
        for row in db.run("sealed_tenants").fetchall():
            if row["tenant"] != scope.tenant:
                check.tenant(row["tenant"], since)
        check.store(since)
    check.anchors(kept)
    return Inspection(check.seals, tuple(check.flaws), tuple(check.remarks))


class _Check:
    """One inspection: what it has counted and found so far."""

    def __init__(self, db: Database, scope: Scope) -> None:
        self._db = db
        self._scope = scope
        self.seals = 0
        self.flaws: list[Flaw] = []
        self.remarks: list[str] = []

    def found(self, where: str, what: str) -> None:
        self.flaws.append(Flaw(where, what))

    # Seals.

    def tenant(self, tenant: str, since: Anchor | None) -> None:
        """Makes each seal of a tenant anew and compares."""
        start = None if since is None else seal_at(self._db, tenant, since)
        expected = 1 if start is None else start.number
        before = self._numbered(tenant, expected - 1)
        for row in self._rows("seals_from", {"tenant": tenant}, expected):
            seal, where = seal_of(row), self._where(tenant, row["number"])
            if row["digest"] != seal.digest:
                self.found(where, "its digest does not fit to what it says: somebody changed it")
            if seal.number == expected:
                self._follows(where, seal, before)
                self._covers(where, seal, before, row["leaves"])
            else:
                self.found(where, f"{_span('seal', expected, seal.number - 1)} before it: missing")
            before, expected = seal, seal.number + 1
            self.seals += 1
        if stray := self._records(tenant, 0 if before is None else before.last, sealed_up_to(self._db)):
            names = self._named(tenant, stray)
            self.found(self._where(tenant, expected), f"records were put in where all was sealed already: {names}")

    def store(self, since: Anchor | None) -> None:
        """Makes each seal of the whole store anew and compares."""
        expected = since.number if since is not None and since.tenant is None and since.number else 1
        row = self._db.run("store_seal_numbered", {"number": expected - 1}).fetchone()
        before = None if row is None else store_seal_of(row)
        for row in self._rows("store_seals_from", {}, expected):
            seal, where = store_seal_of(row), f"seal {row['number']} of the whole store"
            if row["digest"] != seal.digest:
                self.found(where, "its digest does not fit to what it says: somebody changed it")
            if seal.number == expected:
                self._follows(where, seal, before)
            else:
                self.found(where, f"{_span('seal', expected, seal.number - 1)} before it: missing")
            if (seal.root, seal.count) != root_of_tenants(self._db, seal.seal):
                self.found(where, "the tenants' seals are not those that it was made of")
            before, expected = seal, seal.number + 1
            self.seals += 1

    def _follows(self, where: str, seal: Seal | StoreSeal, before: Seal | StoreSeal | None) -> None:
        if seal.previous != (START if before is None else before.digest):
            self.found(where, "it does not follow the seal before it: somebody changed one of the two")

    def _covers(self, where: str, seal: Seal, before: Seal | None, leaves: bytes) -> None:
        """Compares a seal with the records between it and the seal before."""
        after, counted = (0, 0) if before is None else (before.last, before.count)
        records, sealed = self._records(seal.tenant, after, seal.last), seal.count - counted
        if tree_hash(record["digest"] for record in records) != seal.root:
            changed = self._changed(seal.tenant, leaves, sealed, records)
            self.found(where, f"the records under it are not those that were sealed: {changed}")
        elif sealed != len(records) or seal.first != records[0]["id"]:
            self.found(where, f"it covers {len(records):,} records, and says {sealed:,} from row {seal.first} on")

    # Anchors.

    def anchors(self, anchors: Sequence[Anchor]) -> None:
        """Compares anchors with the seals that they name, and with each other."""
        for anchor, contradiction in contradictions(anchors):
            self.found(anchor.name, contradiction)
        confirmed: dict[str | None, int] = {}  # the last seal of each tenant that an anchor confirms
        for anchor in sorted(dict.fromkeys(anchors), key=lambda one: one.number):
            if anchor.tenant not in (None, self._scope.tenant):
                self.found(anchor.name, f"it is not of tenant {self._scope.tenant}, which was verified")
            elif (why := self._contradicted(anchor, confirmed.get(anchor.tenant, 0))) is not None:
                self.found(anchor.name, why)
            else:
                confirmed[anchor.tenant] = anchor.number
        here = store_id(self._db).hex()
        for store in sorted({anchor.store for anchor in anchors} - {here}):
            self.remarks.append(f"anchors of store {store} were checked against store {here}: a copy was restored here")

    def _contradicted(self, anchor: Anchor, confirmed: int) -> str | None:
        """Why the store does not have the seal that an anchor names; None if it has."""
        if anchor.number == 0:
            return None if (anchor.digest, anchor.count) == (START.hex(), 0) else "it names seal 0 with a digest"
        seal = (
            self._store_numbered(anchor.number)
            if anchor.tenant is None
            else self._numbered(anchor.tenant, anchor.number)
        )
        if seal is None:
            return (
                f"there is no seal {anchor.number}: somebody removed what it covers, "
                "or this is a copy that is older than the anchor"
            )
        there = anchor_of(seal)
        if there == anchor:
            return None
        if there.digest == anchor.digest:
            return f"it fits to the digest of seal {anchor.number}, but somebody changed the anchor itself"
        made = "" if there.store == anchor.store else f", which was made in store {there.store},"
        rewritten = _span("seal", confirmed + 1, anchor.number)
        return (
            f"its digest is {anchor.digest}, and that of seal {anchor.number}{made} is {there.digest}: "
            f"somebody rewrote what {rewritten} covers{self._covered(seal, confirmed)}"
        )

    def _covered(self, seal: Seal | StoreSeal, confirmed: int) -> str:
        """The chains that have records under a tenant's seals after a confirmed seal."""
        if isinstance(seal, StoreSeal):
            return ""
        before = self._numbered(seal.tenant, confirmed)
        records = self._records(seal.tenant, 0 if before is None else before.last, seal.last)
        return f" ({self._named(seal.tenant, records)})" if records else ""

    # Records in words.

    def _changed(self, tenant: str, leaves: bytes, sealed: int, records: Sequence[Row]) -> str:
        """Which records differ from those that were sealed, as far as the hints tell."""
        hints = [leaves[at : at + HINT] for at in range(0, len(leaves), HINT)]
        known = set(hints)
        there = {record["digest"][:HINT] for record in records}
        parts = []
        if others := [record for record in records if record["digest"][:HINT] not in known]:
            parts.append(self._named(tenant, others))
        if (missing := sealed - len(records)) > 0:
            at = next((at for at, hint in enumerate(hints) if hint not in there), 0)
            beside = [record for record in records if record["digest"][:HINT] in hints[at - 1 : at]] if at else []
            place = f"after {self._label(tenant, beside[0])}" if beside else "at the beginning"
            parts.append(f"{missing:,} of {sealed:,} are missing, the first {place}")
        if not parts:
            parts.append("their order, or the seal itself, was changed" if hints else "which ones is not known")
        return "; ".join(parts)

    def _named(self, tenant: str, records: Sequence[Row]) -> str:
        names = [self._label(tenant, record) for record in records[:NAMED]]
        more = len(records) - len(names)
        return "; ".join(names) + (f"; and {more:,} more" if more else "")

    def _label(self, tenant: str, record: Row) -> str:
        chain: bytes = record["chain"]
        sort, whose = chain[:1], chain[1:]
        if sort == b"c":
            row = self._db.run("name_of_conversation", {"tenant": tenant, "id": whose}).fetchone()
            name = f"conversation {id_from_bytes(whose) if row is None else row['name']}"
        elif sort == b"f":
            name = f"family {id_from_bytes(whose)}"
        else:
            name = f"charges of no conversation, chain {whose.hex()}"
        return f"{name}, record {record['number']}"

    # Rows.

    def _rows(self, statement: str, parameters: dict[str, str], number: int) -> Iterator[Row]:
        while rows := self._db.run(statement, parameters | {"number": number, "limit": _PAGE}).fetchall():
            yield from rows
            number = rows[-1]["number"] + 1

    def _records(self, tenant: str, after: int, last: int) -> list[Row]:
        between = {"tenant": tenant, "after": after, "last": last}
        return self._db.run("sealed_records", between).fetchall()

    def _numbered(self, tenant: str, number: int) -> Seal | None:
        row = self._db.run("seal_numbered", {"tenant": tenant, "number": number}).fetchone()
        return None if row is None else seal_of(row)

    def _store_numbered(self, number: int) -> StoreSeal | None:
        row = self._db.run("store_seal_numbered", {"number": number}).fetchone()
        return None if row is None else store_seal_of(row)

    def _where(self, tenant: str, number: int) -> str:
        return f"seal {number}" + ("" if tenant == self._scope.tenant else f" of tenant {tenant}")


def _span(what: str, first: int, last: int) -> str:
    return f"{what} {last}" if first >= last else f"{what}s {first} to {last}"
