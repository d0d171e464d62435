"""The pages of a database: whether SQLite itself finds them sound.
Tests: tests/store/test_damage.py, test_log.py, test_backup.py."""

import sqlite3
from collections.abc import Iterator

from msgspec import Struct


class LooseRow(Struct, frozen=True):
    """A row that names a row of another table which is missing."""

    table: str
    row: int | None  # None: the table has no numbers for its rows
    parent: str

    def __str__(self) -> str:
        return f"a row of {self.table} names a row of {self.parent} that is missing"


def flaws_of_pages(db: sqlite3.Connection, most: int) -> list[str]:
    """What is wrong with the pages, and with indexes that do not fit their tables, each in one line.

    `quick_check` would be faster, but it does not compare an index with its table: a conversation that an index has
    lost is not found by its name any more, though its row is there.
    """
    found = [" ".join(row[0].split()) for row in db.execute(f"PRAGMA integrity_check({most})")]
    return [] if found == ["ok"] else found


def loose_rows(db: sqlite3.Connection) -> Iterator[LooseRow]:
    """The rows that name what is missing. The pages must be sound."""
    for row in db.execute("PRAGMA foreign_key_check"):
        yield LooseRow(row[0], row[1], row[2])
