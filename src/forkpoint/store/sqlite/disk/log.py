"""The log of a database (``-wal``): whether it belongs to the file beside it.

Nothing in a database says which log is its own, so this looks at what cannot be true of the two together:

- The log's pages have another size than the database's.
- The log goes on from a database of another length than the file's first page says, or a page that the database must
  have is in neither of the two.
- A number that only grows is smaller with the log than without it, or the two have different ids.
- SQLite's own check fails with the log and passes without it (`check_pages`).

What cannot be told: a file that was copied without its log while it was in use is a valid database. It has what the
store had when the log was last moved into it. Only a digest that was kept outside finds out that newer history is
missing. Tests: tests/store/test_log.py.
"""

import mmap
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec import Struct

from forkpoint.errors import StoreDamaged, StoreError
from forkpoint.store.sqlite.connection import SQL, Database
from forkpoint.store.sqlite.disk.pages import flaws_of_pages, loose_rows
from forkpoint.store.sqlite.disk.quiet import connect_quietly, is_logged, read_quietly

_HEAD, _FRAME = 32, 24  # bytes
_TRIES = 3
_MAGIC = (0x377F0682, 0x377F0683)  # the last bit: whether checksums read words in the big-endian order


class LogHead(Struct, frozen=True):
    """What the head of a log says."""

    page_size: int
    salt: bytes  # new whenever SQLite begins the log anew; older frames have another
    checksum: tuple[int, int]  # of the head, from which those of the frames go on
    big: bool  # whether checksums read words in the big-endian order


class Frames(Struct, frozen=True):
    """What a log has, up to its last commit."""

    pages: frozenset[int]
    size: int | None  # how many pages the database has after the last commit; None: there is no commit


def check_absent(path: Path) -> None:
    """Raises `StoreDamaged` if a log stands at a path without its database: SQLite would put it into a new one."""
    if not path.exists() and Path(f"{path}-wal").exists():
        raise StoreDamaged.log_alone(str(path))


def check_log(path: Path) -> None:
    """Raises `StoreDamaged` if the log of a database cannot be one of this database.

    It is quick: it reads the heads of the log's frames. It never refuses what
    a crash or a power cut can leave behind. If somebody writes to the log meanwhile, it looks again.
    """
    for _ in range(_TRIES):
        before = _state(path)
        try:
            return _check_log(path)
        except StoreDamaged:
            if _state(path) == before:
                raise
    return None  # it is being written, so it belongs to whoever writes


def check_remains(path: Path) -> None:
    """Raises `StoreDamaged` if a log seems to be lost. A power cut at the wrong moment looks the same, without harm."""
    log = Path(f"{path}-wal")
    if Path(f"{path}-shm").exists() and not log.exists():
        raise StoreDamaged.log_missing(str(path), "its index (-shm) is there without it, and closing removes both")
    if is_logged(path) and log.stat().st_size > _HEAD and read_head(log) is None:
        raise StoreDamaged.log_missing(str(path), "its head cannot be read, so that SQLite ignores it")


def check_pages(path: Path) -> None:
    """Raises `StoreDamaged` if SQLite's own check of all pages fails, and says whether the log is the reason."""
    if (flaw := read_quietly(path, _flaw)) is None:
        return
    if is_logged(path) and _is_sound_without_log(path):
        raise StoreDamaged.log_foreign(str(path), f"with it SQLite finds {flaw}, and without it nothing")
    raise StoreDamaged(str(path), flaw)


def read_head(log: Path) -> LogHead | None:
    """The head of a log; None if SQLite would not read it."""
    with open(log, "rb") as file:
        head = file.read(_HEAD)
    if len(head) < _HEAD:
        return None
    magic, _, page_size = struct.unpack_from(">III", head)
    big = bool(magic & 1)
    checksum = _checksum(head[:24], big=big)
    if magic not in _MAGIC or checksum != struct.unpack_from(">II", head, 24):
        return None
    return LogHead(page_size, head[16:24], checksum, big)


def read_frames(log: Path, head: LogHead, *, checked: bool) -> Frames:
    """What is in a log.

    Without ``checked`` only the heads of its frames are read, so that a write that a crash broke off may count too.
    With it every frame's checksum is computed, as SQLite does it, at about 25 MB a second.
    """
    pages: set[int] = set()
    size: int | None = None
    uncommitted: list[int] = []
    with open(log, "rb") as file, closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as content:
        checksum = head.checksum
        for at in range(_HEAD, len(content) - _FRAME - head.page_size + 1, _FRAME + head.page_size):
            page, after, salt, stated = struct.unpack_from(">II8s8s", content, at)
            if salt != head.salt:
                break  # from before SQLite began the log anew
            if checked:
                words = content[at : at + 8] + content[at + _FRAME : at + _FRAME + head.page_size]
                checksum = _checksum(words, checksum, big=head.big)
                if struct.pack(">II", *checksum) != stated:
                    break
            uncommitted.append(page)
            if after:
                pages.update(uncommitted)
                uncommitted, size = [], after
    return Frames(frozenset(pages), size)


def _check_log(path: Path) -> None:
    log = Path(f"{path}-wal")
    if is_logged(path) and log.stat().st_size > _HEAD and (head := read_head(log)) is not None:
        try:
            read_quietly(path, lambda db: _compare(db, path, head))
        except StoreDamaged as damage:
            if StoreDamaged.log_foreign.made(damage) or not _is_sound_without_log(path):
                raise
            why = f"with it SQLite finds: {damage.detail}; and without it nothing"
            raise StoreDamaged.log_foreign(str(path), why) from damage


def _state(path: Path) -> list[tuple[int, int]]:
    """What changes when a database or its log is written."""
    files = (path, Path(f"{path}-wal"))
    return [(file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.exists()]


def _compare(db: Database, path: Path, head: LogHead) -> None:
    """Compares the file with its log to the file alone."""
    size, before = _alone(path)
    if head.page_size != size:
        raise StoreDamaged.log_foreign(str(path), f"its pages have {head.page_size:,} bytes, and the file's {size:,}")
    if before is not None:
        _compare_marks(path, before, _marks(db))
    pages: int = db.execute("PRAGMA page_count").fetchone()[0]  # as the first page says, in the log or in the file
    there = path.stat().st_size // size
    flaw: str | None = ""
    for checked in (False, True):  # what looks wrong at first may be a write that a crash broke off
        if flaw is not None:
            frames = read_frames(Path(f"{path}-wal"), head, checked=checked)
            flaw = _flaw_of_lengths(frames, pages, there)
    if flaw is not None:
        raise StoreDamaged.log_foreign(str(path), flaw)


def _flaw_of_lengths(frames: Frames, pages: int, there: int) -> str | None:
    """What the lengths of a file and its log contradict one another in; None if they do not."""
    if frames.size is None:  # nothing was committed there
        return None
    if frames.size != pages:
        return f"it goes on from a store of {frames.size:,} pages, and this one has {pages:,}"
    if missing := set(range(there + 1, pages + 1)) - frames.pages:
        return f"{len(missing):,} of the {pages:,} pages of the store are neither in the file nor in the log"
    return None


def _compare_marks(path: Path, before: dict[str, Any], after: dict[str, Any] | None) -> None:
    """Compares what only grows: the file alone is never ahead of the file with its log."""
    if after is None or before.get("store", after.get("store")) != after.get("store"):
        raise StoreDamaged.log_foreign(str(path), "it is another store's, or another program's")
    for mark in ("segments", "barrier", "erasures", "format"):
        if (after[mark] or 0) < (before[mark] or 0):
            raise StoreDamaged.log_foreign(str(path), "it is older than the file, or another store's")


def _alone(path: Path) -> tuple[int, dict[str, Any] | None]:
    """The size of the pages of a file, and its marks, without its log."""
    with closing(connect_quietly(path, logged=False)) as db:
        return db.execute("PRAGMA page_size").fetchone()[0], _marks(db)


def _marks(db: Database) -> dict[str, Any] | None:
    """What a store says of itself; None if it cannot: a migration, or half of the log, is on its way into the file."""
    try:
        found = db.execute(SQL["read_marks"]).fetchone()
    except sqlite3.Error:
        return None
    return None if found is None else dict(found)


def _flaw(db: Database) -> str | None:
    """What SQLite's own check of all pages finds first; None if all is well."""
    try:
        first = next(iter(flaws_of_pages(db, most=1)), None)
        return first or next(map(str, loose_rows(db)), None)
    except sqlite3.DatabaseError as error:
        return str(error)


def _is_sound_without_log(path: Path) -> bool:
    try:
        with closing(connect_quietly(path, logged=False)) as db:
            return _flaw(db) is None
    except (sqlite3.Error, StoreError):
        return False


def _checksum(content: bytes, before: tuple[int, int] = (0, 0), *, big: bool) -> tuple[int, int]:
    """The checksum of SQLite's log, going on from that of what stands before."""
    first, second = before
    words = struct.unpack(f"{'>' if big else '<'}{len(content) // 4}I", content)
    for one, two in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return first, second
