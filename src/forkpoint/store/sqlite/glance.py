"""A look at a store's file without opening it: no file is made, no format is migrated, no lock is taken.
Tests: tests/cli/test_doctor.py."""

from pathlib import Path

from msgspec import Struct

from forkpoint.errors import StoreUnusable
from forkpoint.store.sqlite.connection import SQL, Database
from forkpoint.store.sqlite.disk.log import check_log, check_pages, check_remains
from forkpoint.store.sqlite.disk.modes import readers_of
from forkpoint.store.sqlite.disk.quiet import read_quietly
from forkpoint.store.sqlite.files import format_of
from forkpoint.store.values import DEFAULT_TENANT

LARGEST = 256 << 20
"""Bytes up to which every page is checked: that takes a second or two."""

GARBAGE = 9
"""The format that brought what is asked here about garbage."""


class Glance(Struct, frozen=True):
    """What a file has. If its format is old, opening the store migrates it."""

    format: int
    conversations: int  # of the default tenant
    bytes: int
    readers: str | None  # who else than its owner may read it
    is_checked: bool  # whether SQLite has checked every page; a large file is not checked
    anchored: int | None = None  # when the newest seal was made, of any tenant; None if there is none
    pending: bool = False  # whether something that was deleted may still be on the disk


def glance(path: Path) -> Glance:
    """Looks at the file of a store and its log. Raises the same errors as opening it, and more if it is damaged."""
    if not path.is_file():
        raise StoreUnusable(str(path), "it is not a file")
    check_log(path)
    log = Path(f"{path}-wal")
    written = log.stat().st_size if log.exists() else 0
    size = path.stat().st_size + written
    if size <= LARGEST:
        check_pages(path)
    format, counted, anchored, pending = read_quietly(path, _counted)
    check_remains(path)
    readers = readers_of(path)
    return Glance(format, counted, size, readers, is_checked=size <= LARGEST, anchored=anchored, pending=pending)


def _counted(db: Database) -> tuple[int, int, int | None, bool]:
    """The format, how many conversations there are, when the newest seal was made, and whether removed text may be on
    the disk."""
    if not (format := format_of(db)):
        return 0, 0, None, False
    counted: int = db.execute(SQL["count_conversations"], {"tenant": DEFAULT_TENANT}).fetchone()[0]
    has_seals = bool(db.execute(SQL["has_seals"]).fetchone()["has_seals"])  # not before it is migrated
    sealed = db.execute(SQL["sealed_up_to"]).fetchone() if has_seals else None
    pending = format >= GARBAGE and db.execute(SQL["is_pending"]).fetchone()[0] == 1
    return format, counted, None if sealed is None else sealed["time"], pending
