"""Holders: which process runs which turn, and whether that process is alive.

A process that has open turns says so with one heartbeat row. When that has run out, another may take its turns
over; until somebody does, a late commit is still accepted. Beside it each process holds a lock on a file of
its own in ``FILE.db-holders/``, which the operating system releases when it dies: so a killed program is known
dead at once, and not only when its heartbeat runs out.
"""

import os
from pathlib import Path

from forkpoint.file_lock import HAS_LOCKS, FileLock


class Holder:
    """This process, as one that runs turns in a store."""

    def __init__(self, database: str | None, expiry: int) -> None:
        self.id = os.urandom(16)
        self._expiry = expiry
        self._folder = None if database is None else Path(f"{database}-holders")
        self._lock: FileLock | None = None

    def enrol(self) -> None:
        """Takes the lock that says that this process lives. Done before its first turn begins."""
        if self._folder is None or self._lock is not None:
            return
        self._folder.mkdir(exist_ok=True)
        lock = FileLock(self._file(self.id))
        lock.acquire()
        self._lock = lock

    def leave(self) -> None:
        """Gives the lock back; turns that this process still holds are interrupted."""
        if self._folder is None or self._lock is None:
            return
        self._file(self.id).unlink(missing_ok=True)
        self._lock.close()
        self._lock = None

    def sweep(self) -> None:
        """Removes what processes left behind that were killed."""
        if self._folder is None or not HAS_LOCKS or not self._folder.is_dir():
            return
        for file in self._folder.iterdir():
            if file.name != self.id.hex():
                self._is_locked(file)

    def is_alive(self, holder: bytes | None, seen: int | None, now: int) -> bool:
        """Whether the process that holds a turn may still be working on it."""
        if holder is None or seen is None:
            return False
        if holder == self.id:
            return True
        if now - seen > self._expiry:
            return False
        return self._holds_its_lock(holder)

    def _holds_its_lock(self, holder: bytes) -> bool:
        if self._folder is None or not HAS_LOCKS:
            return True  # nothing but the heartbeat to go by
        return self._is_locked(self._file(holder))

    def _is_locked(self, file: Path) -> bool:
        """Whether a live process holds a file's lock. A file that none holds is removed."""
        if not file.exists():
            return False
        try:
            lock = FileLock(file)
        except OSError:
            return True  # not ours to look at: the heartbeat decides
        try:
            if lock.is_held():
                return True
            file.unlink(missing_ok=True)
            return False
        finally:
            lock.close()

    def _file(self, holder: bytes) -> Path:
        assert self._folder is not None
        return self._folder / holder.hex()
