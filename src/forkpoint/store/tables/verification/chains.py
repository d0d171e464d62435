"""Chains of records: whether each follows the one before, and says what its columns say.
Tests: tests/store/test_verify.py."""

from itertools import groupby

import msgspec

from forkpoint.history.records import Fact, decode_fact, record_digest, start_of
from forkpoint.ids import id_from_bytes, id_to_bytes
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.rows import Scope
from forkpoint.store.tables.verification.absences import Absences
from forkpoint.store.tables.verification.findings import Findings
from forkpoint.store.tables.verification.ledger import check_charge

BESIDE = (b"f", b"u")
"""Chains of families and of the tenant are in this range, those of conversations are not."""


class ChainWalk:
    """Follows one chain, record by record."""

    def __init__(self, findings: Findings, owner: str, chain: bytes, previous: bytes | None) -> None:
        self._findings = findings
        self._owner = owner
        self._chain = chain
        self._id = 0
        self.previous = previous  # the digest that the next record follows; None if nobody knows it
        self.number = 0
        findings.chains += 1

    def place(self, row: Row) -> str:
        return f"record {row['number']} of {self._owner}"

    def follow(self, row: Row) -> Fact | None:
        """Checks the next record, and returns what it says; None if that is gone or cannot be read."""
        place = self.place(row)
        self._findings.saw_record()
        if row["number"] != self.number + 1:
            self._findings.found(place, f"record {self.number + 1} before it is missing")
            self.previous = None
        if row["id"] <= self._id:
            self._findings.found(place, "it was written before the record that it follows")
        fact = None if row["body"] is None else self._read(row, place)
        self.number, self.previous, self._id = row["number"], row["digest"], row["id"]
        return fact

    def _read(self, row: Row, place: str) -> Fact | None:
        if self.previous is not None:
            expected = record_digest(self.previous, self._chain, row["number"], row["body"])
            if expected != row["digest"]:
                self._findings.found(place, "what it says was changed, or its place in the chain")
        try:
            fact = decode_fact(row["body"])
            subject = _subject(fact)
        except (msgspec.DecodeError, ValueError) as error:
            self._findings.found(place, f"it cannot be read: {error}")
            return None
        if row["kind"] != fact.kind:
            self._findings.found(place, f"its row calls it {row['kind']!r}, and its body {fact.kind!r}")
        if subject is not None and row["subject"] != subject:
            self._findings.found(place, "its row names another subject than its body")
        return fact


def check_beside(
    db: Database, scope: Scope, findings: Findings, family: bytes | None, absences: Absences | None = None
) -> Absences:
    """Checks the chains of families and of the tenant, or of one family, and returns what they say to be removed.

    If ``absences`` is given, it is added there.
    """
    absences = Absences() if absences is None else absences
    first, below = BESIDE if family is None else (family, family + b"\0")
    within = {"tenant": scope.tenant, "first": first, "below": below}
    ends = {row["chain"]: row for row in db.run("chains_beside_conversations", within)}
    rows = db.run("records_beside_conversations", within)
    for chain, group in groupby(rows, key=lambda row: row["chain"]):
        owner = owner_of(chain)
        walk = ChainWalk(findings, owner, chain, start_of(chain))
        for row in group:
            fact = walk.follow(row)
            if row["body"] is None:
                findings.found(walk.place(row), "what it said is missing, which nothing allows")
            if fact is not None and chain.startswith(b"f"):
                absences.learn(fact, chain[1:])
            if fact is not None and fact.charge is not None:
                check_charge(db, scope, findings, walk.place(row), row, fact, conversation=b"", family=b"")
        end = ends.pop(chain, None)
        if end is None or (end["records"], end["digest"]) != (walk.number, walk.previous):
            findings.found(owner, "its chain does not end with its last record")
    for chain in ends:
        findings.found(owner_of(chain), "all records of its chain are missing")
    return absences


def owner_of(chain: bytes) -> str:
    """Whose chain it is, in words."""
    try:
        match chain[:1]:
            case b"c":
                return f"conversation {id_from_bytes(chain[1:])}"
            case b"f":
                return f"family {id_from_bytes(chain[1:])}"
            case b"t":
                return f"chain {chain[1]} of the tenant"
    except (ValueError, IndexError):
        pass
    return f"a chain that nothing can have ({chain.hex()})"


def _subject(fact: Fact) -> bytes | None:
    if fact.turn is not None:
        return id_to_bytes(fact.turn.id)
    if fact.charge is not None:
        return id_to_bytes(fact.charge.id)
    return None if fact.removed is None else id_to_bytes(fact.removed.conversation)
