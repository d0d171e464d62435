"""The deletion of conversations: their pointers go, what they spent stays counted.
Tests: forkpoint.testing.conformance.evidence.care."""

from typing import Literal, TypeAlias

from forkpoint.errors import Busy, Held
from forkpoint.ids import id_from_bytes
from forkpoint.store.tables.budgets import limits
from forkpoint.store.tables.budgets.reservations import give_back
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.evidence import records
from forkpoint.store.tables.operations import conversations, garbage, holds, idempotency, ledger, turns
from forkpoint.store.tables.rows import Scope
from forkpoint.store.values import Deleted

RemovalKind: TypeAlias = Literal["deleted", "expired"]
"""Why a conversation goes: somebody asked for it, or a rule of retention did."""


def delete_if(db: Database, scope: Scope, id: str, rule: Literal["old_draft", "old_response"], before: int) -> bool:
    """Removes a conversation, and its sides, if the statement of a rule still finds it: its turn may have committed, or
    somebody may have named it, a moment ago."""
    parameters = {"tenant": scope.tenant, "id": conversations.key_of(id), "before": before}
    if db.run(rule, parameters).fetchone() is None:
        return False
    try:
        delete(db, scope, id, if_revision=None, kind="expired")
    except (Busy, Held):  # somebody asks beside it right now, or nothing of its family may go
        return False
    return True


def delete(db: Database, scope: Scope, id: str, *, if_revision: int | None, kind: RemovalKind = "deleted") -> Deleted:
    """Removes a conversation, its sub-agents and its sides. Events that a fork shares stay; the collector removes the
    rest. Raises `Held`."""
    named = conversations.row_of(db, scope, id)
    conversations.check_revision(named, if_revision)
    holds.check_not_held(db, scope, named["family"], named["id"])
    parameters = {"tenant": scope.tenant, "id": named["id"], "family": named["family"]}
    ids = [id_from_bytes(row["id"]) for row in db.run("with_dependents", parameters).fetchall()]
    doomed = [conversations.row_of(db, scope, id) for id in ids]
    for row in doomed:
        if row["turn_outcome"] == "running" and scope.alive(row["turn_holder"], row["holder_seen"]):
            raise conversations.busy(row)
    for row in doomed:
        _delete_one(db, scope, row, kind)
    return Deleted(tuple(ids))


def _delete_one(db: Database, scope: Scope, row: Row, kind: RemovalKind) -> None:
    parameters = {"tenant": scope.tenant, "id": row["id"]}
    spent, charged = ledger.write_off(db, scope, row)
    records.tell_of_removal(db, scope, row, spent, charged, kind)
    for turn in turns.uncommitted(db, scope, row):
        key = conversations.key_of(turn.id)
        db.run("delete_steps", {"turn": key})
        db.run("delete_turn", {"id": key})
        idempotency.free(db, scope, key)
        garbage.unpin(db, scope, key)
        give_back(db, key)
    idempotency.free(db, scope, row["id"])
    db.run("free_keys_of_a_conversation", parameters)
    db.run("free_keys_of_steers", parameters)
    db.run("delete_conversation", parameters)
    limits.forget(db, scope, row["id"], row["family"])
    garbage.queue(db, scope, row["head"])
    garbage.owe(db)
