"""The shelf: texts that belong to the whole store and not to a tenant, such as the keys of callers and a server's file.
Tests: forkpoint.testing.conformance.documents."""

from forkpoint.store.tables.database import Database
from forkpoint.store.tables.rows import Scope
from forkpoint.store.values import StoredDocument


def read(db: Database, scope: Scope, kind: str, name: str) -> StoredDocument | None:
    row = db.run("read_document", {"kind": kind, "name": name}).fetchone()
    return None if row is None else StoredDocument(kind, name, row["version"], row["text"], row["updated"])


def versions(db: Database, scope: Scope, kind: str) -> dict[str, int]:
    return {row["name"]: row["version"] for row in db.run("document_versions", {"kind": kind})}


def put(db: Database, scope: Scope, kind: str, name: str, text: str | None, if_version: int) -> int | None:
    """Writes a document if it has this version. Returns the new version: the time, so that none comes twice."""
    version = max(if_version + 1, scope.now)
    parameters = {"kind": kind, "name": name, "text": text, "version": version, "now": scope.now}
    if text is None:
        changed = db.run("delete_document", {"kind": kind, "name": name, "before": if_version})
    elif if_version == 0:
        changed = db.run("insert_document", parameters)
    else:
        changed = db.run("update_document", parameters | {"before": if_version})
    return version if changed.rowcount else None


def is_there(db: Database, scope: Scope, kind: str, name: str, text: str | None) -> bool:
    """Whether a document has this text; with None, whether it is gone."""
    found = read(db, scope, kind, name)
    return (None if found is None else found.text) == text
