"""Verification: whether everything is as it was written. Each part of what is checked has a module here.
Tests: forkpoint.testing.conformance.evidence.care, records, tests/store/test_verify.py."""

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from forkpoint.errors import StoreDamaged
from forkpoint.history.anchors import Anchor
from forkpoint.history.paths import Span
from forkpoint.history.records import family_chain
from forkpoint.ids import id_from_bytes
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.operations import conversations
from forkpoint.store.tables.operations.history import read_path
from forkpoint.store.tables.operations.holds import flaws_in_holds
from forkpoint.store.tables.rows import Scope, unpack
from forkpoint.store.tables.seals.inspection import inspect
from forkpoint.store.tables.verification.absences import Absences
from forkpoint.store.tables.verification.budgets import check_budgets
from forkpoint.store.tables.verification.chains import check_beside
from forkpoint.store.tables.verification.events import Events
from forkpoint.store.tables.verification.findings import Findings
from forkpoint.store.tables.verification.ledger import check_charges, check_written_off
from forkpoint.store.tables.verification.lookups import check_tags
from forkpoint.store.tables.verification.recent import check_recent
from forkpoint.store.tables.verification.standing import Conversations, check_head, is_root
from forkpoint.store.tables.verification.turns import check_tries
from forkpoint.store.values import Verification, VerifyProgress

_UNREADABLE = (ValueError, TypeError, LookupError, OverflowError, msgspec.MsgspecError)
"""What a row raises that nothing of ours can have written, such as one with an id of another length."""


def verify(
    db: Database,
    scope: Scope,
    conversation: str | None,
    head_digest: bytes | None,
    anchors: Sequence[Anchor] = (),
    since: Anchor | None = None,
    progress: VerifyProgress | None = None,
) -> Verification:
    """Checks everything that the tenant has, or what is newer than an anchor; or one conversation with its path, its
    turns and its records."""
    findings = Findings(progress)
    row = None if conversation is None else conversations.row_of(db, scope, conversation)
    try:
        if since is None:
            _check(db, scope, findings, row, head_digest)
        else:
            check_recent(db, scope, findings, since)
        if row is None:
            findings.add(inspect(db, scope, anchors, since))
    except _UNREADABLE as error:
        findings.found("the store", f"a row cannot be read, so that what follows it was not checked: {error}")
    return findings.finish()


def _check(db: Database, scope: Scope, findings: Findings, row: Row | None, head_digest: bytes | None) -> None:
    if row is None:
        rows, events = _check_all(db, scope, findings, head_digest)
    else:
        rows, events = [row], _check_one(db, scope, findings, row, head_digest)
    for one in rows:
        check_head(db, scope, findings, one)
    findings.conversations = len(rows)
    if head_digest is not None and not (events.has_wanted or any(is_root(one, head_digest) for one in rows)):
        findings.found("head digest", f"{head_digest.hex()} is not on the path: history was rewritten or cut")


def _check_all(db: Database, scope: Scope, findings: Findings, head_digest: bytes | None) -> tuple[list[Row], Events]:
    for place, flaw in db.flaws():
        findings.found(place, flaw)
    _check_numbers(db, findings)
    spans = []
    for row in db.run("all_segments", {"tenant": scope.tenant}).fetchall():
        base = unpack(row["base"])
        if row["last"] is not None:
            spans.append(Span(row["id"], (base.ordinal if base else 0) + 1, row["last"]))
    records = db.run("count_records", {"tenant": scope.tenant}).fetchone()["records"]
    findings.total = records + sum(span.last - span.first + 1 for span in spans)
    absences = check_beside(db, scope, findings, None)
    rows = Conversations(db, scope, findings, absences).check_all()
    check_tries(db, scope, findings, absences, None)
    check_tags(db, scope, findings, None)
    check_charges(db, scope, findings, None)
    check_written_off(db, scope, findings, absences)
    for held in db.run("families_with_holds", {"tenant": scope.tenant}).fetchall():
        _check_holds(db, scope, findings, held["family"])
    check_budgets(db, scope, findings, None)
    return rows, _check_events(db, scope, findings, absences, head_digest, spans)


def _check_one(db: Database, scope: Scope, findings: Findings, row: Row, head_digest: bytes | None) -> Events:
    spans: tuple[Span, ...] = ()
    with suppress(StoreDamaged):  # `check_head` finds the same, and says so
        spans = read_path(db, scope, row["family"], unpack(row["head"])).spans
    findings.total = row["records"] + sum(span.last - span.first + 1 for span in spans)
    absences = check_beside(db, scope, findings, family_chain(row["family"]))
    Conversations(db, scope, findings, absences).check_one(row)
    check_tries(db, scope, findings, absences, row["id"])
    check_tags(db, scope, findings, row["id"])
    check_charges(db, scope, findings, row["id"])
    _check_holds(db, scope, findings, row["family"])
    check_budgets(db, scope, findings, row["family"])
    return _check_events(db, scope, findings, absences, head_digest, spans)


def _check_events(
    db: Database,
    scope: Scope,
    findings: Findings,
    absences: Absences,
    head_digest: bytes | None,
    spans: tuple[Span, ...] | list[Span],
) -> Events:
    events = Events(db, scope, findings, absences, head_digest)
    for span in spans:
        events.check(span)
    return events


def _check_holds(db: Database, scope: Scope, findings: Findings, family: bytes) -> None:
    for what in flaws_in_holds(db, scope, family):
        findings.found(f"family {id_from_bytes(family)}", what)


def _check_numbers(db: Database, findings: Findings) -> None:
    """No record is ever removed, so that their ids have no gap."""
    row = db.run("numbers_of_records").fetchone()
    if row["records"] != row["last"]:
        findings.found("the store", f"{row['last'] - row['records']} of its records are missing")
