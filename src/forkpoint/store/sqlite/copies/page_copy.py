"""Copying a database page by page to a new file, and checking the copy.

Why SQLite's backup interface and not ``VACUUM INTO``: the copy has the very pages of the store, so that what `verify`
and SQLite's own check say of the copy is true of the store; it can be followed and cancelled at every step. The source
stays in one read transaction from the first page to the last. So the copy is one snapshot, commits of others neither
begin it anew nor wait for it, and all that it costs them is that the log grows meanwhile. Free pages hold zeros, since
a store deletes securely. Tests: tests/store/test_backup.py, test_restore.py.
"""

import sqlite3
from contextlib import closing
from itertools import islice
from pathlib import Path

from msgspec import Struct

from forkpoint.errors import StoreDamaged
from forkpoint.store.sqlite.connection import SQL, Database, code_of, translate, translated
from forkpoint.store.sqlite.disk.pages import flaws_of_pages, loose_rows
from forkpoint.store.sqlite.disk.quiet import connect_quietly
from forkpoint.store.sqlite.files import format_of
from forkpoint.store.tables.rows import Scope
from forkpoint.store.tables.verification import verify
from forkpoint.store.values import CopyProgress, CopyStep
from forkpoint.system.durable_file import sync

STEP = 256
"""Pages that are copied at once: 1 MiB."""

_SHOWN = 3  # flaws that an error names


class Contents(Struct, frozen=True):
    """What a checked copy has, of all tenants."""

    format: int
    conversations: int
    events: int


def copy_pages(db: Database, copy: Path, progress: CopyProgress | None = None) -> None:
    """Copies the snapshot that a connection reads into a file, and brings it to the disk."""
    db.execute("PRAGMA schema_version").fetchone()  # from here on the snapshot is held
    size = db.execute("PRAGMA page_size").fetchone()[0]

    def step(status: int, remaining: int, total: int) -> None:
        if progress is not None:
            progress(CopyStep("copying", (total - remaining) * size, total * size))

    # Nobody else knows the file, so it needs no lock and no journal: if this fails, the file is removed.
    with closing(sqlite3.connect(f"{copy.as_uri()}?nolock=1", uri=True)) as target:
        try:
            target.execute("PRAGMA journal_mode = OFF")
            target.execute("PRAGMA synchronous = OFF")
            db.backup(target, pages=STEP, progress=step)
        except sqlite3.Error as error:
            of_the_source = code_of(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
            raise translate(error, db.path if of_the_source else str(copy)) from error
    sync(copy)


def check_copy(copy: Path, source: str) -> Contents:
    """Checks every page and every digest of a copy that nobody has open. Raises `StoreDamaged` for its source."""
    with translated(source), closing(connect_quietly(copy, logged=False)) as db:
        db.execute("BEGIN")
        contents = Contents(format_of(db), 0, 0)
        db.path = source
        flaws = flaws_of_pages(db, most=_SHOWN) or [str(loose) for loose in islice(loose_rows(db), _SHOWN)]
        for row in db.execute(SQL["all_tenants"]).fetchall() if not flaws else ():
            found = verify(db, Scope(row["tenant"], 0, b"", lambda holder, seen: False), None, None)
            flaws += [f"{flaw.where}: {flaw.what}" for flaw in found.flaws]
            contents = Contents(
                contents.format, contents.conversations + found.conversations, contents.events + found.events
            )
    if flaws:
        more = "" if len(flaws) <= _SHOWN else f", and {len(flaws) - _SHOWN:,} more"
        raise StoreDamaged(source, f"a copy of it is not sound: {'; '.join(flaws[:_SHOWN])}{more}")
    return contents
