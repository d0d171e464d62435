"""A file, put in the place of another at once. Tests: tests/agent/builtin/test_files.py."""

import os
import secrets
import stat
import threading
from contextlib import suppress

from forkpoint.agent.builtin.failure import ToolFailed, shown, told
from forkpoint.agent.builtin.paths import FilePlace, kind_of

_LOCKS = [threading.Lock() for _ in range(256)]


def alone(place: FilePlace) -> threading.Lock:
    """Calls of one response run at once: who reads a file in order to replace it holds this until then."""
    folder = os.fstat(place.folder)
    return _LOCKS[hash((folder.st_dev, folder.st_ino, place.name)) % len(_LOCKS)]


def writable(place: FilePlace) -> os.stat_result | None:
    """What is there to be replaced. Raises `ToolFailed` if it may not be."""
    found = place.stat()
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise ToolFailed(f"{shown(place.path)} is {kind_of(found)}, not a file.")
    if found is not None and not (found.st_mode & 0o222 and os.access(place.name, os.W_OK, dir_fd=place.folder)):
        # It could be replaced all the same, if the folder lets us. But somebody wants it so.
        raise ToolFailed(f"{shown(place.path)} is read-only.")
    return found


def put(place: FilePlace, content: bytes, before: os.stat_result | None) -> None:
    """Puts a new file in the place of another, at once: nobody sees half of it. Other names (hard links) of the old
    file keep what it had. Bytecode of the old file is removed."""
    aside = f".forkpoint-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with told(f"{shown(place.path)} cannot be written"):
        handle = os.open(aside, flags, 0o666 if before is None else 0o600, dir_fd=place.folder)
        try:
            with open(handle, "wb") as file:
                file.write(content)
                file.flush()
                if before is not None:
                    _like(before, handle)
                os.fsync(handle)
            if not _same(before, place.stat()):
                raise ToolFailed(f"{shown(place.path)} was changed meanwhile by somebody else. Read it again.")
            _forget_bytecode(place)  # before, in case that this process ends in between
            os.replace(aside, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
            _forget_bytecode(place)  # and after, in case that somebody ran the old file meanwhile
        except BaseException:
            with suppress(OSError):
                os.unlink(aside, dir_fd=place.folder)
            raise


def _like(before: os.stat_result, handle: int) -> None:
    with suppress(PermissionError):
        os.fchown(handle, before.st_uid, before.st_gid)
    os.fchmod(handle, before.st_mode & 0o777)


def _forget_bytecode(place: FilePlace) -> None:
    """Removes what Python has compiled of a file that is being replaced.

    Python takes bytecode for a file's own if the file has the same length and was changed within the same second. An
    agent runs a file, mends it and runs it again within a second. Two other ways were tried or thought of: a later time
    for the new file lies in the future, where the next change by a shell meets it; and commands that write no bytecode
    compile all that they import, each time.
    """
    stem, dot, kind = place.name.rpartition(".")
    if not dot or kind not in ("py", "pyw"):
        return
    with suppress(OSError):  # no bytecode was written, or somebody else owns it
        cache = os.open("__pycache__", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.folder)
        try:
            for name in os.listdir(cache):
                if name.startswith(f"{stem}.") and name.endswith(".pyc"):
                    os.unlink(name, dir_fd=cache)
        finally:
            os.close(cache)


def _same(before: os.stat_result | None, now: os.stat_result | None) -> bool:
    if before is None or now is None:
        return before is now
    return os.path.samestat(before, now) and (before.st_mtime_ns, before.st_size) == (now.st_mtime_ns, now.st_size)
