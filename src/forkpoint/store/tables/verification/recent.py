"""Verification of what is newer than an anchor: its work follows what was recorded since, not what the store holds.

What counts as newer is what has a record after the anchor's seal: the records themselves, the rows that they tell of,
and the events and steps of their turns. Of families all records are read, since they say what may be missing. Older
payloads are not looked at, nor is the file as a whole. Tests: tests/store/test_seals.py.
"""

from collections.abc import Iterable

from forkpoint.history.anchors import Anchor
from forkpoint.history.paths import Span
from forkpoint.history.records import family_chain, start_of
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.rows import ORDINALS, Scope
from forkpoint.store.tables.seals.recent import recent, seal_at
from forkpoint.store.tables.verification.absences import Absences
from forkpoint.store.tables.verification.budgets import check_budgets
from forkpoint.store.tables.verification.chains import ChainWalk, check_beside, owner_of
from forkpoint.store.tables.verification.events import Events
from forkpoint.store.tables.verification.findings import Findings
from forkpoint.store.tables.verification.ledger import check_charge, check_charges
from forkpoint.store.tables.verification.standing import Conversations, check_head
from forkpoint.store.tables.verification.turns import check_tries


def check_recent(db: Database, scope: Scope, findings: Findings, since: Anchor) -> None:
    """Checks what the tenant has that was recorded after an anchor's seal."""
    seal = seal_at(db, scope.tenant, since)
    findings.since = 0 if seal is None else seal.number
    found = recent(db, scope, 0 if seal is None else seal.last)
    absences = _absences(db, scope, findings, found.chains)
    conversations, rows = Conversations(db, scope, findings, absences), []
    for chain, number in found.chains.items():
        if chain.startswith(b"f"):
            check_budgets(db, scope, findings, chain[1:])
        elif chain.startswith(b"t"):
            _check_charges(db, scope, findings, chain, number)
        elif chain.startswith(b"c") and (row := conversations.check_from(chain, number)) is not None:
            rows.append(row)
            check_tries(db, scope, findings, absences, row["id"])
            check_charges(db, scope, findings, row["id"])
    events = Events(db, scope, findings, absences)
    for span in _spans(db, scope, found.turns, whole=bool(absences.runs)):
        events.check(span)
    for row in rows:
        check_head(db, scope, findings, row)
    findings.conversations = len(rows)


def _absences(db: Database, scope: Scope, findings: Findings, chains: Iterable[bytes]) -> Absences:
    """What may be missing, by the records of all families that the chains are of."""
    absences, families = Absences(), set()
    for chain in chains:
        if chain.startswith(b"f"):
            families.add(chain)
        elif chain.startswith(b"c"):
            row = db.run("read_conversation", {"tenant": scope.tenant, "id": chain[1:]}).fetchone()
            if row is not None:
                families.add(family_chain(row["family"]))
    for family in sorted(families):
        check_beside(db, scope, findings, family, absences)
    return absences


def _check_charges(db: Database, scope: Scope, findings: Findings, chain: bytes, number: int) -> None:
    """Follows one of the tenant's chains from a record on."""
    before = {"tenant": scope.tenant, "chain": chain, "number": number - 1}
    row = db.run("digest_of_record", before).fetchone()
    walk = ChainWalk(findings, owner_of(chain), chain, start_of(chain) if row is None else row["digest"])
    walk.number = number - 1
    for record in db.run("records_of_chain", before).fetchall():
        fact = walk.follow(record)
        if fact is None:
            findings.found(walk.place(record), "what it said is missing, which nothing allows")
        elif fact.charge is not None:
            check_charge(db, scope, findings, walk.place(record), record, fact, conversation=b"", family=b"")
    end = db.run("end_of_chain", before).fetchone()
    if end is None or (end["records"], end["digest"]) != (walk.number, walk.previous):
        findings.found(owner_of(chain), "its chain does not end with its last record")


def _spans(db: Database, scope: Scope, turns: Iterable[bytes], *, whole: bool) -> list[Span]:
    """Where the events of turns stand. ``whole``: with all events before them in their segments.

    What was erased is named by the first and the last event, so that the ones before have to be seen.
    """
    found: dict[int, Span] = {}
    for turn in turns:
        row = db.run("turn_of_events", {"id": turn}).fetchone()
        if row is None or row["end"] is None:
            continue
        segment, first = row["end"] >> 32, 0 if row["base"] is None else row["base"] & ORDINALS
        if whole:
            start = db.run("read_segment", {"id": segment, "tenant": scope.tenant}).fetchone()
            first = 0 if start is None or start["base"] is None else start["base"] & ORDINALS
        key = segment if whole else row["end"]
        span = Span(segment, first + 1, _last_event(db, row) & ORDINALS)
        if key not in found or found[key].last < span.last:
            found[key] = span
    return [found[key] for key in sorted(found)]


def _last_event(db: Database, turn: Row) -> int:
    """Where the events of a committed turn must end: where they ended when it committed, or before that.

    If a path leads into the middle of the turn and nobody reaches the rest, the collector removes the rest from its
    end. It stops where somebody stands, so that no event up to there may be missing. If no event of a turn is left, the
    turn is removed with the last one.
    """
    end: int = turn["end"]
    if db.run("event_at", {"id": end}).fetchone() is not None:
        return end
    segment = end & ~ORDINALS
    own = {"first": segment + ((turn["base"] or 0) & ORDINALS) + 1, "last": end}
    there: int | None = db.run("last_event_between", own).fetchone()["last"]
    if there is None:
        return end
    reached: int = db.run("highest_place", {"first": segment, "last": end | ORDINALS}).fetchone()["place"]
    return min(end, max(reached, there))
