"""Locks between processes on one machine, held by the operating system: a dead process holds none.

SQLite's own busy handler polls and is unfair (waits of seconds were seen with 16 writers); the kernel's lock
queues. Where there are no such locks (Windows), SQLite's handler and heartbeats remain.
Tests: tests/store/test_several_processes.py.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

try:
    import fcntl

    HAS_LOCKS = True
except ImportError:  # Windows
    HAS_LOCKS = False


class FileLock:
    """An exclusive lock on a file of its own, made if need be.

    ``mode`` is the mode of a new file, whatever the umask is; None: as the umask says. A file that is there keeps its
    own.
    """

    def __init__(self, path: Path, mode: int | None = None) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_RDWR, 0o666) if mode is None else _opened(path, mode)

    @classmethod
    def existing(cls, path: Path) -> Self:
        """The lock of a file that is there already, which is opened for reading only. Raises `OSError`."""
        lock = cls.__new__(cls)
        lock._file = os.open(path, os.O_RDONLY)
        return lock

    def acquire(self) -> None:
        """Waits its turn."""
        if HAS_LOCKS:
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def try_acquire(self) -> bool:
        """Takes the lock if it is free."""
        if HAS_LOCKS:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # somebody has it; or it cannot be had, which `acquire` says
                return False
        return True

    def acquire_within(self, seconds: float) -> bool:
        """Takes the lock, or gives up after a while."""
        deadline = time.monotonic() + seconds
        while not self.try_acquire():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def is_held(self) -> bool:
        """Whether somebody else holds it. Two who ask at once do not take each other for the holder."""
        if not HAS_LOCKS:
            return True
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False

    def release(self) -> None:
        if HAS_LOCKS:
            with suppress(OSError):  # the system has lost it already
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Lets go of the lock, if held, and of the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class NoLock(FileLock):
    """The lock of a store that no other process can see."""

    def __init__(self) -> None:
        pass

    def acquire(self) -> None:
        pass

    def try_acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass


def _opened(path: Path, mode: int) -> int:
    """The file, opened. If it is new, it has exactly this mode."""
    while True:
        try:
            return os.open(path, os.O_RDWR)
        except FileNotFoundError:
            pass
        with suppress(FileExistsError):  # somebody else has just made it
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode)
            if os.name != "nt":
                os.fchmod(file, mode)
            return file
