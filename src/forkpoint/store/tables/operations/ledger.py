"""The ledger: what a branch, a family or a tenant has spent. Each token is counted once.

A charge goes straight into the ledger and stays there, whatever becomes of its conversation. The cost of a turn is in
the turn's row, and goes into the ledger when the conversation is deleted.

A charge without a conversation belongs to `NONE`, in a family of the same name.
Tests: forkpoint.testing.conformance.evidence.ledger.
"""

from collections.abc import Iterable

from forkpoint.errors import KeyReused
from forkpoint.events import Usage
from forkpoint.history.budgets import Amount
from forkpoint.ids import id_to_bytes
from forkpoint.store.tables.budgets import accounts
from forkpoint.store.tables.budgets.reservations import give_back
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.evidence import records
from forkpoint.store.tables.operations import conversations, turns
from forkpoint.store.tables.rows import Parameters, Scope, dumps, load_usage

NONE = b""
"""Stands for an id if there is no conversation. No id is so short."""


def charge(db: Database, scope: Scope, conversation: str | None, id: str, usage: Usage) -> None:
    """Enters a charge into the ledger unless it is there. Raises `KeyReused` if the id has another charge."""
    charged, family = NONE, NONE
    if conversation is not None:
        row = conversations.row_of(db, scope, conversation)
        charged, family = row["id"], row["family"]
    if (found := _find(db, scope, id)) is not None:
        if (found["conversation"], load_usage(found["usage"])) != (charged, usage):
            raise KeyReused(id)
        return
    parameters: Parameters = {
        "tenant": scope.tenant,
        "family": family,
        "conversation": charged,
        "usage": dumps(usage),
        "id": id_to_bytes(id),
    }
    db.run("insert_charge", parameters)
    if conversation is not None:
        count_beside(db, scope, parameters["id"], charged, family, usage)
    records.tell_of_charge(db, scope, None if conversation is None else charged, id, usage)


def count_beside(db: Database, scope: Scope, id: bytes, conversation: bytes, family: bytes, usage: Usage) -> None:
    """Counts what a charge or a note has spent in its budgets, and gives back what was reserved for it."""
    if accounts.has_budgets(db, scope, family):
        accounts.count(db, scope, conversation, family, Amount.of(usage))
        give_back(db, id)


def is_charged(db: Database, scope: Scope, id: str) -> bool:
    return _find(db, scope, id) is not None


def spent(db: Database, scope: Scope, conversation: str | None) -> Usage:
    """What a conversation itself has spent: its turns, committed or not, and its charges."""
    row = None if conversation is None else conversations.row_of(db, scope, conversation)
    charged = {"tenant": scope.tenant, "conversation": NONE if row is None else row["id"]}
    beside = _sum(db.run("charges", charged))
    return beside if row is None else in_turns(db, scope, row) + beside


def usage(db: Database, scope: Scope, family: str | None) -> Usage:
    """All that was ever spent in a family, or by the tenant: turns, charges, and deleted branches."""
    own = {"tenant": scope.tenant}
    if family is None:
        total = _sum(db.run("tenant_ledger", own)) + _sum(db.run("tenant_tries", own))
        return sum((_committed(row) for row in db.run("tenant_branches", own)), total)
    within = own | {"family": conversations.key_of(family, "family")}
    total = _sum(db.run("family_ledger", within))
    return sum((in_turns(db, scope, row) for row in db.run("branches", within).fetchall()), total)


def write_off(db: Database, scope: Scope, row: Row) -> tuple[Usage, Usage]:
    """Enters what a conversation has spent, just before it is deleted. Its charges are in the ledger already.

    Returns what its turns have spent, and what it was charged.
    """
    own = {"tenant": scope.tenant, "conversation": row["id"], "now": scope.now}
    spent, charged = in_turns(db, scope, row), _sum(db.run("charges", own))
    db.run("write_off", own | {"family": row["family"], "usage": dumps(spent)})
    db.run("close_charges", own)
    return spent, charged


def in_turns(db: Database, scope: Scope, row: Row) -> Usage:
    """What a conversation's own turns have spent: those committed since it branched off, and its other tries."""
    return sum((turn.usage for turn in turns.uncommitted(db, scope, row)), _committed(row))


def _committed(row: Row) -> Usage:
    return load_usage(row["head_totals"]) - load_usage(row["inherited"])


def _sum(rows: Iterable[Row]) -> Usage:
    return sum((load_usage(row["usage"]) for row in rows), Usage())


def _find(db: Database, scope: Scope, id: str) -> Row | None:
    row: Row | None = db.run("find_charge", {"tenant": scope.tenant, "id": id_to_bytes(id)}).fetchone()
    return row
