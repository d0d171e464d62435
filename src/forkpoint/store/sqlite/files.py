"""The database file: finding it, making it, refusing what is not one."""

import os
import re
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path

from forkpoint.clock import system_clock
from forkpoint.errors import BadStoreUrl, StoreDamaged, StoreUnusable
from forkpoint.store.sql import migrations
from forkpoint.store.sqlite.adoption import adopt
from forkpoint.store.sqlite.connection import MEMORY, Database, code_of, connect, translated
from forkpoint.store.sqlite.disk.log import check_absent, check_log
from forkpoint.store.sqlite.disk.modes import make_empty, mode_beside
from forkpoint.store.sqlite.disk.quiet import is_logged, read_quietly
from forkpoint.store.tables.erasure.copied_events import adopt_copies
from forkpoint.system.durable_file import install, new_aside
from forkpoint.system.file_lock import FileLock

APPLICATION_ID = 0x466B5074
"""Marks a SQLite file as Forkpoint's ("FkPt")."""

MIGRATIONS = migrations("sqlite")
FORMAT = len(MIGRATIONS)
"""The newest format that this program knows."""

RECORDS, ERASURE = 6, 10
"""The formats that brought records, and the table of copies: both are made of what stood there before."""

OLDEST_SQLITE = (3, 38, 0)

_NETWORK = {"nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "glusterfs", "ncpfs"}
_NETWORK_FUSE = ("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.rclone", "fuse.s3fs", "fuse.gcsfuse", "fuse.davfs")


def prepare(path: Path) -> None:
    """Makes sure that a store of the current format stands at a path: checks, makes or migrates it."""
    check_place(path)
    try:
        with translated(str(path)):
            if path.exists():
                _check(path)  # before a lock file is put beside it
        lock = write_lock(path)
    except OSError as error:
        raise StoreUnusable.read_only(str(path), error.strerror or str(error)) from error
    try:
        with translated(str(path)), lock:
            if path.exists():
                _check(path)
                check_log(path)  # before it is moved into the file, for good
                _migrate(path)
            else:
                check_absent(path)
                _make(path)
    except OSError as error:
        raise StoreUnusable.read_only(str(path), error.strerror or str(error)) from error
    finally:
        lock.close()


def prepare_to_read(path: Path) -> None:
    """Makes sure that a store of the current format stands at a path, and writes nothing."""
    check_place(path)
    if not path.exists():
        check_absent(path)
        raise BadStoreUrl(str(path), "there is no such file, and nothing may be written")
    _check_size(path)
    read_quietly(path, _refuse_older)


def check_place(path: Path) -> None:
    """Raises an error if no store can stand at a path, whether there is one or not."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        raise BadStoreUrl(str(path), f"it needs SQLite {needed}, and this Python has {sqlite3.sqlite_version}")
    try:
        if not path.parent.is_dir():
            raise BadStoreUrl(str(path), f"there is no folder {str(path.parent)!r}; make it first")
        if path.is_dir():
            raise BadStoreUrl(str(path), "it is a folder")
        if path.exists() and not path.is_file():
            raise BadStoreUrl(str(path), "it is not a file")
    except OSError as error:
        raise BadStoreUrl(str(path), error.strerror or str(error)) from error
    if kind := network_file_system(path, _mounts()):
        raise StoreUnusable.network_file_system(str(path), kind)


def lock_path(path: Path) -> Path:
    """The file at which the writers of all processes queue."""
    return Path(f"{path}-write")


def write_lock(path: Path) -> FileLock:
    """The lock at which the writers of all processes queue."""
    return FileLock(lock_path(path), mode_beside(path))


def make_tables(db: Database) -> None:
    """Brings a database to the current format in one transaction. Raises before it touches a newer one."""
    found = format_of(db)
    if found >= FORMAT:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        if found:
            _run_migrations(db, found, MIGRATIONS)
        else:
            for statement in _all_tables(tuple(MIGRATIONS)):
                db.execute(statement)
            renew_store_id(db)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _run_migrations(db: Database, found: int, scripts: Sequence[str]) -> None:
    for number, script in enumerate(scripts[found:], start=found + 1):
        for statement in split(script):
            db.execute(statement)
        if number == 1:  # before the others run: they may raise `writable_from`
            db.execute("INSERT INTO meta (format, writable_from) VALUES (1, 1)")
        if number == RECORDS:
            adopt(db, system_clock())
        if number == ERASURE:
            adopt_copies(db)
    db.execute("UPDATE meta SET format = ?", (len(scripts),))


@lru_cache(maxsize=1)
def _all_tables(scripts: tuple[str, ...]) -> tuple[str, ...]:
    """The statements that make what all migrations come to in an empty database.

    Migrations change tables again and again, which makes a new store slow: it is done once in a process, aside.
    """
    with closing(connect(MEMORY)) as db:
        _run_migrations(db, 0, scripts)
        said = [one for one in db.iterdump() if one.startswith(("CREATE ", "INSERT "))]
    return tuple(one for one in said if not one.startswith('INSERT INTO "sqlite_'))


def renew_store_id(db: Database) -> None:
    """Makes a database another store than the one that it was copied from, in formats that know whose copy they are."""
    if any(column["name"] == "store" for column in db.execute("PRAGMA table_info(meta)")):
        db.execute("UPDATE meta SET store = ?", (os.urandom(16),))


def split(script: str) -> Iterable[str]:
    """The statements of a script, one by one."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if any(line.strip() and not line.lstrip().startswith("--") for line in statement.splitlines()):
        yield statement


def network_file_system(path: Path, mounts: str) -> str | None:
    """The type of the network file system that a path is on, or None. ``mounts`` is Linux's mountinfo."""
    target = os.path.realpath(path)
    best, kind = "", ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        if not rest:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), (fields.split(" ") + [""] * 5)[4])
        if (target == point or target.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, rest.split(" ")[0]
    return kind if kind in _NETWORK or kind.startswith(_NETWORK_FUSE) else None


def _mounts() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""  # not Linux: there is no portable way to ask


def format_of(db: Database) -> int:
    """The format of a store, 0 for an empty database. Raises if it is not ours, or not ours to write."""
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    marked = db.execute("PRAGMA application_id").fetchone()[0]
    if marked != APPLICATION_ID and (tables or marked):
        raise StoreUnusable(db.path, "it is a SQLite database of another program")
    if not tables:
        return 0
    try:
        row = db.execute("SELECT format, writable_from FROM meta").fetchone()
    except sqlite3.OperationalError as error:
        if code_of(error) != sqlite3.SQLITE_ERROR:
            raise
        raise StoreDamaged(db.path, f"it does not state its format ({error})") from error
    if row is None:
        raise StoreDamaged(db.path, "it does not state its format")
    if row["writable_from"] > FORMAT:
        raise StoreUnusable.store_newer(db.path, row["format"], FORMAT)
    return int(row["format"])


def _check(path: Path) -> None:
    """Refuses a file that is not ours to write, and leaves it as it is.

    Only through SQLite: a program that opens and closes the file itself drops all locks that SQLite holds on it in
    this process, on behalf of any other connection.
    """
    _check_size(path)
    _look(path)


def _check_size(path: Path) -> None:
    size = path.stat().st_size
    if size < 100:
        raise StoreUnusable(str(path), "it is too short to be a database" if size else "it is empty")


def _refuse_older(db: Database) -> None:
    """Refuses a store that would have to be migrated before it can be read."""
    if (found := format_of(db)) < FORMAT:
        raise StoreUnusable.store_older(db.path, found, FORMAT)
    _check_whole(db)


def _look(path: Path) -> None:
    """Refuses what is not ours to write, through a connection that cannot even move a log into its database."""
    db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, factory=Database)
    db.path = str(path)
    db.row_factory = sqlite3.Row
    try:
        format_of(db)
        _check_whole(db)
    finally:
        db.close()


def _check_whole(db: Database) -> None:
    """Raises `StoreDamaged` if the file was cut off."""
    path = Path(db.path)
    actual = expected = 0
    for _ in range(2):  # another process may have made the file shorter since its pages were counted
        pages, size = db.execute("SELECT page_count, page_size FROM pragma_page_count, pragma_page_size").fetchone()
        expected = pages * size
        # In this order, since another process may write meanwhile: if the log is empty now, all pages that were counted
        # are in the file.
        if is_logged(path) or (actual := path.stat().st_size) >= expected:
            return
    raise StoreDamaged(db.path, f"it was cut off: {actual:,} of {expected:,} bytes are there")


def _migrate(path: Path) -> None:
    db = connect(str(path))
    try:
        make_tables(db)
        db.execute("PRAGMA journal_mode = WAL")  # a copy that another program has made may have lost it
    finally:
        db.close()


def _make(path: Path) -> None:
    """A new store, made aside and renamed: it is there complete, or not at all."""
    aside = new_aside(path)
    try:
        make_empty(aside)  # SQLite gives its mode to all that it puts beside it
        db = connect(str(aside))
        try:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before the first table: later only a VACUUM could
            make_tables(db)
            db.execute("PRAGMA journal_mode = WAL")
        finally:
            db.close()
        install(aside, path)
    finally:
        for leftover in (aside, Path(f"{aside}-wal"), Path(f"{aside}-shm"), Path(f"{aside}-journal")):
            leftover.unlink(missing_ok=True)
