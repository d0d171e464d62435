"""Idempotency: one key, one effect."""

from forkpoint.errors import KeyReused
from forkpoint.ids import id_to_bytes
from forkpoint.store.records import IdempotencyKey
from forkpoint.store.sqlite.connection import SQL, Database
from forkpoint.store.sqlite.rows import Scope


def find(db: Database, scope: Scope, key: IdempotencyKey | None, operation: str, subject: bytes | None) -> bytes | None:
    """What an earlier request under this key made; None for a fresh key. Raises `KeyReused` for another request."""
    if key is None:
        return None
    row = db.execute(SQL["find_key"], {"tenant": scope.tenant, "key": key.key}).fetchone()
    if row is None:
        return None
    if (row["operation"], row["subject"], row["request"]) != (operation, subject, key.request):
        raise KeyReused(key.key)
    target: bytes = row["target"]
    return target


def take(
    db: Database, scope: Scope, key: IdempotencyKey | None, operation: str, subject: bytes | None, target: str
) -> None:
    """Binds the key to what this request made, in the transaction that made it."""
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
        db.execute(SQL["insert_key"], parameters)


def free(db: Database, scope: Scope, target: bytes) -> None:
    """The request had no effect, or its effect is gone: the key may be used again."""
    db.execute(SQL["free_key"], {"tenant": scope.tenant, "target": target})
