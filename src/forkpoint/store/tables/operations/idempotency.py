"""Idempotency: one key, one effect. Tests: forkpoint.testing.conformance.keys."""

from forkpoint.errors import KeyReused
from forkpoint.events import JsonText
from forkpoint.ids import id_to_bytes
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.rows import Scope
from forkpoint.store.values import IdempotencyKey


def find(db: Database, scope: Scope, key: IdempotencyKey | None, operation: str, subject: bytes | None) -> bytes | None:
    """The id of what an earlier request with this key made; None if the key is free. Raises `KeyReused`.

    A turn without a ``subject`` is found in whichever conversation it runs.
    """
    if key is None:
        return None
    row = db.run("find_key", {"tenant": scope.tenant, "key": key.key}).fetchone()
    if row is None:
        return None
    is_there = row["subject"] == subject or (operation == "turn" and subject is None)
    is_same = key.request is None or key.request == row["request"]
    if row["operation"] != operation or not is_there or not is_same:
        raise KeyReused(key.key)
    target: bytes = row["target"]
    return target


def take(
    db: Database, scope: Scope, key: IdempotencyKey | None, operation: str, subject: bytes | None, target: str
) -> None:
    """Records what the request with this key made, in the transaction that makes it."""
    if key is not None:
        parameters = {
            "tenant": scope.tenant,
            "key": key.key,
            "operation": operation,
            "subject": subject,
            "target": id_to_bytes(target),
            "request": key.request,
            "now": scope.now,
        }
        db.run("insert_key", parameters)


def take_over(db: Database, scope: Scope, subject: bytes, turn: str, retry_of: str, input: JsonText | None) -> None:
    """Gives a retry the keys of the tries before it that had the same input, if they are free: the same request again
    is answered by the retry."""
    parameters = {
        "tenant": scope.tenant,
        "subject": subject,
        "target": id_to_bytes(turn),
        "retry_of": id_to_bytes(retry_of),
        "input": input,
        "now": scope.now,
    }
    db.run("take_over_keys", parameters)


def free(db: Database, scope: Scope, target: bytes) -> None:
    """Frees the key of a request that had no effect or whose result is deleted."""
    db.run("free_key", {"tenant": scope.tenant, "target": target})
