"""The log of a database (``-wal``): whether it belongs to the file beside it.

Nothing in a database says which log is its own, so this looks at what cannot be true of the two together:

- The log's pages have another size than the database's.
- The log goes on from a database of another length than the file's first page says, or a page that the database must
  have is in neither of the two.
- A number that only grows is smaller with the log than without it, or the two have different ids.
- SQLite's own check fails with the log and passes without it (`check_pages`).

Other processes may write, close or be killed meanwhile, so each comparison must hold at any moment of theirs:

- The marks are compared within a read transaction. While it lasts, nothing that is newer than what it reads is moved
  into the file.
- The lengths are compared with the log as a whole, and not with what SQLite reads of it at the moment. SQLite writes a
  commit into the log first and into the log's index (``-shm``) afterwards, which is as long as an fsync takes. If the
  process is killed in between, the others, who have the index open, do not see that commit, and write over it.
- A refusal counts only if the head of the log has stayed the same. Whoever begins the log anew writes the head first,
  so all that was read is of one log.

What cannot be told: a file that was copied without its log while it was in use is a valid database. It has what the
store had when the log was last moved into it. Only a digest that was kept outside finds out that newer history is
missing. Tests: tests/store/test_log.py.
"""

import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct

from forkpoint.errors import StoreDamaged, StoreError
from forkpoint.store.sqlite.connection import SQL, Database
from forkpoint.store.sqlite.disk.pages import flaws_of_pages, loose_rows
from forkpoint.store.sqlite.disk.quiet import connect_quietly, is_logged, read_quietly

_HEAD, _FRAME = 32, 24  # bytes
_AT_ONCE = 32  # frames
_LOCKED = 1 << 30  # where the bytes are that SQLite locks; it never writes the page that has them
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
    stated: int | None  # the same, as the newest first page in the log says; None: the log has no first page


def check_absent(path: Path) -> None:
    """Raises `StoreDamaged` if a log stands at a path without its database: SQLite would put it into a new one."""
    if not path.exists() and Path(f"{path}-wal").exists():
        raise StoreDamaged.log_alone(str(path))


def check_log(path: Path) -> None:
    """Raises `StoreDamaged` if the log of a database cannot be one of this database.

    It is quick: it reads the heads of the log's frames. It never refuses what
    a crash or a power cut can leave behind. If somebody begins the log anew meanwhile, it looks again.
    """
    for _ in range(_TRIES):
        before = _state(path)
        try:
            return _check_log(path, before)
        except StoreDamaged:
            if _state(path) == before:
                raise
    return None  # it is being written, so it belongs to whoever writes


def check_remains(path: Path) -> None:
    """Raises `StoreDamaged` if a log seems to be lost. A power cut at the wrong moment looks the same, without harm.

    Several looks must find the same: another process may close the store between a look at one file and at the other.
    """
    found = {_flaw_of_remains(path) for _ in range(_TRIES)}
    if len(found) == 1 and (flaw := found.pop()) is not None:
        raise StoreDamaged.log_missing(str(path), flaw)


def check_pages(path: Path) -> None:
    """Raises `StoreDamaged` if SQLite's own check of all pages fails, and says whether the log is the reason."""
    if (flaw := read_quietly(path, _flaw)) is None:
        return
    if is_logged(path) and _is_sound_without_log(path):
        raise StoreDamaged.log_foreign(str(path), f"with it SQLite finds {flaw}, and without it nothing")
    raise StoreDamaged(str(path), flaw)


def read_head(log: Path) -> LogHead | None:
    """The head of a log; None if SQLite would not read it, or if the log is gone."""
    try:
        with open(log, "rb") as file:
            head = file.read(_HEAD)
    except FileNotFoundError:  # the last process that had the store open has closed it
        return None
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
    stated: int | None = None
    newest: int | None = None  # as `stated`, though its transaction may have no commit
    uncommitted: list[int] = []
    heads = _frames(log, head, "II8s36xI")  # the last: where the first page says how many there are
    for page, after, salt, count in islice(heads, _count_sound(log, head)) if checked else heads:
        if salt != head.salt:
            break  # from before SQLite began the log anew
        uncommitted.append(page)
        if page == 1:
            newest = count
        if after:
            pages.update(uncommitted)
            uncommitted, size, stated = [], after, newest
    return Frames(frozenset(pages), size, stated)


class _State(Struct, frozen=True):
    """What changes when a database or its log is written. A log that is begun anew has another head, at once."""

    head: LogHead | None
    file: tuple[int, int] | None  # its size, and when it was written
    log: tuple[int, int] | None


def _state(path: Path) -> _State:
    log = Path(f"{path}-wal")
    return _State(read_head(log), _size_and_time(path), _size_and_time(log))


def _size_and_time(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns


def _check_log(path: Path, found: _State) -> None:
    if (head := found.head) is None or found.log is None or found.log[0] <= _HEAD:
        return
    try:
        read_quietly(path, lambda db: _compare(db, path, head))
    except StoreDamaged as damage:
        if StoreDamaged.log_foreign.made(damage) or not _is_sound_without_log(path):
            raise
        why = f"with it SQLite finds: {damage.detail}; and without it nothing"
        raise StoreDamaged.log_foreign(str(path), why) from damage


def _flaw_of_remains(path: Path) -> str | None:
    log = Path(f"{path}-wal")
    if Path(f"{path}-shm").exists() and not log.exists():
        return "its index (-shm) is there without it, and closing removes both"
    found = _state(path)
    if found.log is not None and found.log[0] > _HEAD and found.head is None:
        return "its head cannot be read, so that SQLite ignores it"
    return None


def _compare(db: Database, path: Path, head: LogHead) -> None:
    """Compares the file with its log to the file alone."""
    size, before = _alone(path)
    if head.page_size != size:
        raise StoreDamaged.log_foreign(str(path), f"its pages have {head.page_size:,} bytes, and the file's {size:,}")
    if before is not None:
        _compare_marks(path, before, _marks(db))
    # As the first page says. A first page in the log counts more: it may be newer than what SQLite reads by now.
    pages: int = db.execute("PRAGMA page_count").fetchone()[0]
    there = path.stat().st_size // size
    flaw: str | None = ""
    for checked in (False, True):  # what looks wrong at first may be a write that a crash broke off
        if flaw is not None:
            frames = read_frames(Path(f"{path}-wal"), head, checked=checked)
            expected = pages if frames.stated is None else frames.stated
            flaw = _flaw_of_lengths(frames, expected, there, unwritten=_LOCKED // size + 1)
    if flaw is not None:
        raise StoreDamaged.log_foreign(str(path), flaw)


def _flaw_of_lengths(frames: Frames, pages: int, there: int, *, unwritten: int) -> str | None:
    """What the lengths of a file and its log contradict one another in; None if they do not."""
    if frames.size is None:  # nothing was committed there
        return None
    if frames.size != pages:
        return f"it goes on from a store of {frames.size:,} pages, and this one has {pages:,}"
    if missing := set(range(there + 1, pages + 1)) - frames.pages - {unwritten}:
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


def _count_sound(log: Path, head: LogHead) -> int:
    """How many frames of a log have the right checksum, each of which goes on from the one before."""
    checksum, sound = head.checksum, 0
    for start, chained, content in _frames(log, head, f"8s8x8s{head.page_size}s"):
        checksum = _checksum(start + content, checksum, big=head.big)
        if struct.pack(">II", *checksum) != chained:
            break
        sound += 1
    return sound


def _frames(log: Path, head: LogHead, layout: str) -> Iterator[tuple[Any, ...]]:
    """What a layout takes from the beginning of each frame of a log.

    The log is not mapped into memory: if another process cuts it meanwhile, reading what was mapped ends this one.
    """
    size = _FRAME + head.page_size
    frame = struct.Struct(f">{layout}{size - struct.calcsize(f'>{layout}')}x")
    with suppress(FileNotFoundError), open(log, "rb", buffering=0) as file:
        file.seek(_HEAD)
        read = memoryview(bytearray(_AT_ONCE * size))
        while whole := file.readinto(read) // size:
            yield from frame.iter_unpack(read[: whole * size])
            if whole < _AT_ONCE:
                return


def _checksum(content: bytes, before: tuple[int, int] = (0, 0), *, big: bool) -> tuple[int, int]:
    """The checksum of SQLite's log, going on from that of what stands before."""
    first, second = before
    words = struct.unpack(f"{'>' if big else '<'}{len(content) // 4}I", content)
    for one, two in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return first, second
