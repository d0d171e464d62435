"""Budgets: whether each has the limits that its record says, and has counted what turns and ledger say was spent.
Tests: tests/store/test_budgets.py."""

from forkpoint.history.budgets import FIELDS, UNITS
from forkpoint.ids import id_from_bytes
from forkpoint.store.tables.budgets import limits
from forkpoint.store.tables.budgets.evidence import Evidence, evidence
from forkpoint.store.tables.budgets.rows import limit_in, spent_in, whose
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.rows import Scope
from forkpoint.store.tables.verification.findings import Findings


def check_budgets(db: Database, scope: Scope, findings: Findings, family: bytes | None) -> None:
    """Checks the budgets of a family; of all families of the tenant if None is given."""
    if family is not None:
        return _check_family(db, scope, findings, family)
    for row in db.run("families_with_budgets", {"tenant": scope.tenant}).fetchall():
        _check_family(db, scope, findings, row["family"])
    return None


def _check_family(db: Database, scope: Scope, findings: Findings, family: bytes) -> None:
    of = {"tenant": scope.tenant, "family": family}
    rows = {(row["scope"], row["subject"]): row for row in db.run("budgets_of_a_family", of)}
    told = limits.on_record(db, scope, family)
    if not rows and not told:
        return
    found = evidence(db, scope, family)
    for place, change in told.items():
        row = rows.get(place)
        if row is None:
            findings.found(_name(place), "its budget is missing, and no record says that it was removed")
        elif change.limits is None or limit_in(row) != change.limits.most or bool(row["apart"]) != change.apart:
            findings.found(_name(place), "its budget has other limits than its record says")
    is_whole = db.run("has_write_offs", of).fetchone() is None
    for place, row in rows.items():
        if place not in told:
            findings.found(_name(place), "it has a budget, and no record says so")
        _check_spent(findings, row, found, is_whole=is_whole)
        sums = db.run("reserved_sums", {"id": row["id"]}).fetchone()
        if any(sums[field] != row[f"reserved_{field}"] for field in FIELDS):
            findings.found(f"budget of {whose(row)}", "what is reserved of it is not the sum of its reservations")


def _check_spent(findings: Findings, row: Row, found: Evidence, *, is_whole: bool) -> None:
    """What a family has spent is known to the token. Of a conversation, what was deleted beneath it is not known any
    more; nor are the turns and the time of anything that was deleted or collected."""
    stated, counted = spent_in(row), found.spent(row["scope"], row["subject"])
    for field, unit in zip(FIELDS, UNITS, strict=True):
        has, must = getattr(stated, field), getattr(counted, field)
        exact = field in ("nanodollars", "tokens") and (row["scope"] == "family" or is_whole)
        if has < must or (exact and has != must):
            findings.found(f"budget of {whose(row)}", f"it states other {unit} spent than turns and ledger do")


def _name(place: tuple[str, bytes]) -> str:
    return f"{place[0]} {id_from_bytes(place[1])}"
