"""The file: whether SQLite itself finds it sound.
Tests: tests/store/test_damage.py."""

from forkpoint.errors import StoreDamaged
from forkpoint.store.sqlite.connection import Database
from forkpoint.store.sqlite.verification.findings import Findings

_MOST = 20


def check_file(db: Database, findings: Findings) -> None:
    """Raises `StoreDamaged` if pages are damaged or indexes do not fit their tables.

    `quick_check` would be faster, but it does not compare an index with its table: a conversation that an index has
    lost is not found by its name any more, though its row is there.
    """
    said = [row[0] for row in db.execute(f"PRAGMA integrity_check({_MOST})")]
    if said != ["ok"]:
        raise StoreDamaged(db.path, "; ".join(line.replace("\n", " ") for line in said[:3]))
    for row in db.execute("PRAGMA foreign_key_check"):
        table, parent = row[0], row[2]
        findings.found(f"row {row[1]} of {table}", f"it names a row of {parent} that is missing")
