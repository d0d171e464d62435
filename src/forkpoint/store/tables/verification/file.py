"""The file: whether SQLite itself finds it sound.
Tests: tests/store/test_damage.py."""

from forkpoint.errors import StoreDamaged
from forkpoint.store.sqlite.connection import Database
from forkpoint.store.sqlite.disk.pages import flaws_of_pages, loose_rows
from forkpoint.store.tables.verification.findings import Findings

_SHOWN = 3


def check_file(db: Database, findings: Findings) -> None:
    """Raises `StoreDamaged` if pages are damaged or indexes do not fit their tables."""
    if flaws := flaws_of_pages(db, most=_SHOWN):
        raise StoreDamaged(db.path, "; ".join(flaws))
    for loose in loose_rows(db):
        findings.found(f"row {loose.row} of {loose.table}", f"it names a row of {loose.parent} that is missing")
