"""A look at a store's file without opening it: no file is made, no format is migrated, no lock is taken.
Tests: tests/cli/test_doctor.py."""

import sqlite3
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from forkpoint.errors import StoreUnusable
from forkpoint.store.sqlite.connection import SQL, Database, translated
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
    # Without a log nobody writes there: then SQLite is told so, or it would put an empty log beside the file.
    address = f"{path.as_uri()}?{'mode=ro' if written else 'mode=ro&immutable=1'}"
    with translated(str(path)), closing(sqlite3.connect(address, uri=True, factory=Database)) as db:
        db.path = str(path)
        db.row_factory = sqlite3.Row
        format = format_of(db)
        counted = db.execute(SQL["count_conversations"], {"tenant": DEFAULT_TENANT}).fetchone()[0] if format else 0
    return Glance(format, counted, path.stat().st_size + written)
