"""The ledger: whether each row has its record, and each record its row.
Tests: tests/store/test_verify.py."""

from collections import defaultdict

import msgspec

from forkpoint.events import Usage
from forkpoint.history.records import Fact
from forkpoint.ids import id_from_bytes
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.rows import Scope, load_usage
from forkpoint.store.tables.verification.absences import Absences
from forkpoint.store.tables.verification.findings import Findings


def check_charge(
    db: Database,
    scope: Scope,
    findings: Findings,
    place: str,
    row: Row,
    fact: Fact | None,
    *,
    conversation: bytes,
    family: bytes | None,
) -> None:
    """Checks that the charge that a record is about is in the ledger. ``fact`` is None if its conversation is gone."""
    charge = db.run("charge_of_record", {"tenant": scope.tenant, "id": row["subject"]}).fetchone()
    if charge is None:
        return findings.found(place, "its charge is missing in the ledger")
    if charge["conversation"] != conversation or (family is not None and charge["family"] != family):
        findings.found(place, "the ledger has its charge for another conversation")
    if (fact is None) != bool(charge["deleted"]):
        findings.found(place, "the ledger and the conversation's records disagree whether it was deleted")
    if fact is not None and fact.charge is not None and _usage(charge) != fact.charge.usage:
        findings.found(place, "the ledger states another cost for its charge")
    return None


def check_charges(db: Database, scope: Scope, findings: Findings, conversation: bytes | None) -> None:
    """Checks that each charge has a record."""
    within = {"tenant": scope.tenant, "conversation": conversation}
    for row in db.run("charges_without_a_record", within):
        findings.found(f"charge {id_from_bytes(row['id'])}", "no record tells of it")


def check_written_off(db: Database, scope: Scope, findings: Findings, absences: Absences) -> None:
    """Checks that the ledger has of each conversation that was removed what the record of that says."""
    told: defaultdict[tuple[bytes, bytes, int], list[tuple[Usage, Usage]]] = defaultdict(list)
    for id, removals in absences.removed.items():
        for gone in removals:
            told[id, gone.family, gone.time].append((gone.removal.spent, gone.removal.charged))
    turns: defaultdict[tuple[bytes, bytes, int], list[Usage]] = defaultdict(list)
    charges: defaultdict[tuple[bytes, bytes, int], Usage] = defaultdict(Usage)
    for row in db.run("written_off", {"tenant": scope.tenant}):
        key, usage = (row["conversation"], row["family"], row["deleted"]), _usage(row)
        if usage is None:
            findings.found("the ledger", "a cost in it cannot be read")
        elif row["id"] is None:
            turns[key].append(usage)
        else:
            charges[key] += usage
    for key in told.keys() | turns.keys() | charges.keys():
        spent, charged = zip(*told[key], strict=True) if key in told else ((), ())
        where = f"conversation {id_from_bytes(key[0])}" if len(key[0]) == 16 else "the ledger"
        if len(spent) != len(turns[key]):
            findings.found(where, "the ledger and the records of its family disagree whether it was deleted")
        elif sum(spent, Usage()) != sum(turns[key], Usage()) or sum(charged, Usage()) != charges[key]:
            findings.found(where, "the ledger states another cost for it than the record of its deletion")


def _usage(row: Row) -> Usage | None:
    try:
        return load_usage(row["usage"])
    except msgspec.DecodeError:
        return None
