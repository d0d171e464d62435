"""Restoring: a store made of a backup.

The backup is copied under another name beside the store's, migrated if it is old, cleared of what was erased since, and
checked. Only then it gets the store's name, in one step: whoever looks there finds the old store or the new one, whole.
The new one is another store from then on, with an id of its own, since the two go different ways.
Tests: tests/store/test_restore.py.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from forkpoint.clock import Clock, system_clock
from forkpoint.errors import BadArgument, BadStoreUrl, CopyRefused, NotFound, StoreError, StoreUnusable
from forkpoint.store.copy_file import link_new, new_copy, put_in_place
from forkpoint.store.sqlite.connection import SQL, Database, connect, translated
from forkpoint.store.sqlite.copies.erasures import replay
from forkpoint.store.sqlite.copies.page_copy import check_copy, copy_pages
from forkpoint.store.sqlite.disk.log import check_log
from forkpoint.store.sqlite.disk.quiet import read_quietly
from forkpoint.store.sqlite.files import check_place, format_of, make_tables, renew_store_id, write_lock
from forkpoint.store.values import CopyProgress, CopyStep, Restored
from forkpoint.system.file_lock import HAS_LOCKS

# The bytes of a database that SQLite locks: every connection in WAL mode holds them shared until it is closed.
_SHARED_FIRST, _SHARED_SIZE = 0x40000002, 510


def restore(
    backup: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    erasures: str | os.PathLike[str] | None = None,
    forget_erasures: bool = False,
    progress: CopyProgress | None = None,
    clock: Clock = system_clock,
) -> Restored:
    """Makes a store of a backup. Blocks its thread.

    ``erasures`` is a file of receipts: what was erased after the backup was made is erased in the new store too.
    ``forget_erasures`` says that nothing was, or that it may come back. With ``force`` the new store takes the place of
    another, which is kept under a dated name.
    """
    source, target = Path(os.path.abspath(backup)), Path(os.path.realpath(path))
    if erasures is not None and forget_erasures:
        raise BadArgument("restore()", "forget_erasures=True", "erasures= names what was erased")
    if erasures is None and not forget_erasures:
        raise CopyRefused.erasures_not_named(str(source))
    if not source.is_file():
        raise NotFound("backup", str(source))
    try:
        check_place(target)
        _check_free(source, target, force=force)
        with new_copy(target) as copy:
            read_quietly(source, partial(_copy, copy=copy, progress=progress))
            replayed = _prepare(copy, source, None if erasures is None else Path(erasures))
            size = copy.stat().st_size
            if progress is not None:
                progress(CopyStep("checking", 0, size))
            contents = check_copy(copy, str(source))
            kept = _install(copy, target, clock(), force=force)
    except OSError as error:
        raise CopyRefused(str(target), error.strerror or str(error)) from error
    return Restored(
        path=str(target),
        bytes=size,
        conversations=contents.conversations,
        events=contents.events,
        format=contents.format,
        erasures=replayed,
        kept=None if kept is None else str(kept),
    )


def _copy(db: Database, copy: Path, progress: CopyProgress | None) -> None:
    if not format_of(db):  # which raises if it is not a store
        raise StoreUnusable(db.path, "it is empty")
    copy_pages(db, copy, progress)


def _check_free(source: Path, target: Path, *, force: bool) -> None:
    if target.exists() and target.samefile(source):
        raise BadStoreUrl(str(target), "it is the backup itself")
    if not force and (target.exists() or Path(f"{target}-wal").exists()):
        raise CopyRefused.store_exists(str(target))


def _prepare(copy: Path, source: Path, erasures: Path | None) -> int:
    """Makes the copy a store of its own, of the newest format. Returns how many erasures were done again."""
    with translated(str(source)), closing(connect(str(copy))) as db:
        db.execute("PRAGMA journal_mode = MEMORY")  # what is erased now is not written down once more
        make_tables(db)
        db.execute("BEGIN IMMEDIATE")
        db.execute(SQL["forget_all_holders"])  # the processes that ran turns in the old store do not run them here
        replayed = 0 if erasures is None else replay(db, erasures)
        renew_store_id(db)
        db.execute("COMMIT")
        if replayed:
            db.execute("VACUUM")  # the unused parts of pages may have pieces of what was erased
        db.execute("PRAGMA journal_mode = WAL")
    return replayed


def _install(copy: Path, target: Path, now: int, *, force: bool) -> Path | None:
    """Gives the new store its name. Returns the name under which an older store is kept, if there was one."""
    with closing(write_lock(target)) as lock, lock:  # nobody of ours opens or makes a store meanwhile
        _check_free(copy, target, force=force)
        log = Path(f"{target}-wal")
        if not target.exists() and not log.exists():
            put_in_place(copy, target, force=False)
            return None
        kept = _dated(target, now)
        with _exclusive(target):
            pass  # refuse before anything is touched
        _move_log(target)
        with _exclusive(target):
            if target.exists() and not log.exists():
                link_new(target, kept)  # so that at no moment there is no store
                put_in_place(copy, target, force=True)
                return kept
            # A log that does not belong to its file, or a damaged file. Nothing may be opened in between: the file goes
            # first, since a log alone is refused.
            for end in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    os.rename(f"{target}{end}", f"{kept}{end}")
            put_in_place(copy, target, force=False)
        return kept


def _move_log(target: Path) -> None:
    """Moves the log of a store into its file, as closing it does; not if the two do not belong together.

    A file that cannot be read is not opened: closing it would remove its log.
    """
    if not target.exists():
        return
    with suppress(StoreError, sqlite3.Error):
        check_log(target)
        read_quietly(target, format_of)
        with closing(connect(str(target))) as db:
            format_of(db)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _dated(target: Path, now: int) -> Path:
    """An unused name for a store that is kept."""
    stamp = datetime.fromtimestamp(now / 1e6, UTC).strftime("%Y%m%dT%H%M%SZ")
    names = (
        target.with_name(f"{target.name}.before-{stamp}{again}") for again in ("", *(f"-{n}" for n in range(2, 1000)))
    )
    return next(name for name in names if not name.exists() and not Path(f"{name}-wal").exists())


@contextmanager
def _exclusive(target: Path) -> Iterator[None]:
    """Keeps every other process out of a database. Raises `CopyRefused.store_in_use` if one has it open.

    It must not be open in this process either: the system drops a process's locks on a file when the process closes the
    file once.
    """
    if not HAS_LOCKS or not target.exists():  # Windows does not replace a file that is open
        yield
        return
    import fcntl

    file = os.open(target, os.O_RDWR)
    try:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _SHARED_SIZE, _SHARED_FIRST)
        except OSError:
            raise CopyRefused.store_in_use(str(target)) from None
        yield
    finally:
        with suppress(OSError):
            os.close(file)
