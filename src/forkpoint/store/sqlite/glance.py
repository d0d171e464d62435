"""A look at a store's file without opening it: no file is made, no format is migrated, no lock is taken.
Tests: tests/cli/test_doctor.py."""

from pathlib import Path

from msgspec import Struct

from forkpoint.errors import StoreUnusable
from forkpoint.store.sqlite.connection import SQL, Database
from forkpoint.store.sqlite.disk.quiet import read_quietly
from forkpoint.store.sqlite.files import format_of
from forkpoint.store.values import DEFAULT_TENANT


class Glance(Struct, frozen=True):
    """What a file has. If its format is old, opening the store migrates it."""

    format: int
    conversations: int  # of the default tenant
    bytes: int


def glance(path: Path) -> Glance:
    """Looks at the file of a store. Raises the same errors as opening it."""
    if not path.is_file():
        raise StoreUnusable(str(path), "it is not a file")
    log = Path(f"{path}-wal")
    written = log.stat().st_size if log.exists() else 0
    format, counted = read_quietly(path, _counted)
    return Glance(format, counted, path.stat().st_size + written)


def _counted(db: Database) -> tuple[int, int]:
    """The format, and how many conversations there are."""
    if not (format := format_of(db)):
        return 0, 0
    return format, db.execute(SQL["count_conversations"], {"tenant": DEFAULT_TENANT}).fetchone()[0]
