"""Holders: which process runs which turn, and whether that process is alive.

A process that has open turns writes a heartbeat to one row. When the heartbeat is too old, another process may take the
turns over; until one does, a late commit is still accepted. Each process also holds a lock on a file of its own in
``FILE.db-holders/``. The operating system releases the lock when the process dies, so a killed program is known dead at
once, and not only when its heartbeat is too old.
Tests: tests/store/test_several_processes.py, test_one_process_twice.py, test_kill.py.
"""

import os
import socket
from pathlib import Path

from forkpoint.store.sqlite.disk.modes import make_folder, mode_beside
from forkpoint.system.file_lock import HAS_LOCKS, FileLock


class Holder:
    """This process, as far as it runs turns in a store."""

    def __init__(self, database: str | None, expiry: int, since: int, *, tidies: bool = True) -> None:
        self.id = os.urandom(16)
        self.row = {"id": self.id, "host": socket.gethostname(), "process": os.getpid(), "since": since}
        self._expiry = expiry
        self._database = None if database is None else Path(database)
        self._folder = None if database is None else Path(f"{database}-holders")
        self._tidies = tidies  # whether it may remove the lock files of processes that were killed
        self._lock: FileLock | None = None

    def enrol(self) -> None:
        """Takes the lock that shows that this process lives. Called before its first turn begins."""
        if self._folder is None or self._database is None or self._lock is not None:
            return
        mode = mode_beside(self._database)
        make_folder(self._folder, mode)
        lock = FileLock(self._file(self.id), mode)
        lock.acquire()
        self._lock = lock

    def leave(self) -> None:
        """Releases the lock. Turns that this process still holds are interrupted from then on."""
        if self._folder is None or self._lock is None:
            return
        self._file(self.id).unlink(missing_ok=True)
        self._lock.close()
        self._lock = None

    def sweep(self) -> None:
        """Removes the lock files of processes that were killed."""
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
        """Whether a live process holds a file's lock. If none does, the file is removed."""
        try:
            lock = FileLock.existing(file)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # not ours to look at: the heartbeat decides
        try:
            if lock.is_held():
                return True
            if self._tidies:
                file.unlink(missing_ok=True)
            return False
        finally:
            lock.close()

    def _file(self, holder: bytes) -> Path:
        assert self._folder is not None
        return self._folder / holder.hex()
