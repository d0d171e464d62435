"""The file of a copy of a store: written under another name, and renamed when it is whole.
Tests: tests/store/test_backup.py, test_restore.py."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forkpoint.errors import CopyRefused
from forkpoint.system.durable_file import sync
from forkpoint.system.file_lock import FileLock


@contextmanager
def new_copy(path: Path) -> Iterator[Path]:
    """An empty file beside a path, for its owner alone, to be filled and then put in place. It is gone afterwards.

    What a killed process left there is removed first. A file that a living process is still writing stays.
    """
    prefix = f".{path.name}-copy-"
    for leftover in path.parent.iterdir():
        if leftover.name.startswith(prefix):
            _remove_unless_held(leftover)
    copy, lock = _made_and_held(path, prefix)
    try:
        yield copy
    finally:
        for leftover in (copy, *(Path(f"{copy}{end}") for end in ("-journal", "-wal", "-shm"))):
            leftover.unlink(missing_ok=True)
        lock.close()


def put_in_place(copy: Path, path: Path, *, force: bool) -> None:
    """Gives a copy its name, and brings the name to the disk. Without ``force`` nothing is ever replaced."""
    if force:
        os.replace(copy, path)
    else:
        link_new(copy, path)
    with suppress(OSError):  # some file systems cannot do this; the new file is there all the same
        sync(path.parent)


def link_new(file: Path, name: Path) -> None:
    """Gives a file one more name, which must be free. Raises `CopyRefused.file_exists`."""
    try:
        os.link(file, name)
    except FileExistsError:
        raise CopyRefused.file_exists(str(name)) from None
    except OSError:  # a file system without links: look first, then rename
        if name.exists():
            raise CopyRefused.file_exists(str(name)) from None
        os.rename(file, name)


def _made_and_held(path: Path, prefix: str) -> tuple[Path, FileLock]:
    while True:
        copy = path.with_name(f"{prefix}{os.urandom(4).hex()}")
        _make_empty(copy)
        with suppress(FileNotFoundError):  # another process took it for a leftover before it was held
            lock = FileLock.existing(copy)
            lock.acquire()
            if copy.exists():
                return copy, lock
            lock.close()


def _remove_unless_held(leftover: Path) -> None:
    try:
        lock = FileLock.existing(leftover)
    except OSError:
        return
    try:
        if not lock.is_held():
            leftover.unlink(missing_ok=True)
    finally:
        lock.close()


def _make_empty(path: Path) -> None:
    """Makes an empty file for its owner alone, whatever the umask is."""
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        if os.name != "nt":
            os.fchmod(file, 0o600)
    finally:
        os.close(file)
