"""Files that are replaced as a whole: after a crash there is the old file or the new one, and never a part of one.
And files that only grow, line by line.

The new file is written aside in the same folder, brought to the disk, and renamed. `agent.builtin.new_file` does not
use this: it works in an open folder, where a name that becomes a link meanwhile must lead nowhere else.
"""

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def replace_file(
    path: Path,
    content: bytes,
    *,
    mode: Callable[[int], int] = lambda before: before,
    is_wanted: Callable[[], bool] = lambda: True,
) -> bool:
    """Puts a new file in the place of another, or where there is none. Only one process may do so at a time.

    The new file gets the owner and the group of the old one, as far as this process may give them, and its mode as
    ``mode`` changes it. If there was no file, the new one is for its owner alone. ``is_wanted`` is asked just before
    the rename: if it returns False, so does this function, and nothing has changed. Raises `OSError`, and then nothing
    has changed either.
    """
    aside = new_aside(path)
    try:
        with open(aside, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            _take_rights(file.fileno(), path, mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if not is_wanted():
            aside.unlink()
            return False
        os.replace(aside, path)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise
    with suppress(OSError):  # some file systems cannot do this; the new file is there all the same
        sync(path.parent)
    return True


def append_line(path: Path, line: bytes) -> None:
    """Adds a line to a file and brings it to the disk. If there is no file, it is made for its owner alone.

    A line that was left incomplete there, by a full disk or a power cut, stays on a line of its own. Raises `OSError`.
    """
    is_new = not path.exists()
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(handle).st_size
        is_complete = size == 0 or os.pread(handle, 1, size - 1) == b"\n"
        text = (b"" if is_complete else b"\n") + line + b"\n"
        if os.write(handle, text) != len(text):  # in one piece: several processes may add lines
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(handle)
    finally:
        os.close(handle)
    if is_new:
        with suppress(OSError):  # some file systems cannot do this; the new file is there all the same
            sync(path.parent)


def new_aside(path: Path) -> Path:
    """An unused path beside a file, to write its successor to. Removes what was left there by killed processes."""
    prefix = f".{path.name}-new-"
    for leftover in path.parent.iterdir():
        if leftover.name.startswith(prefix):
            leftover.unlink(missing_ok=True)
    return path.with_name(f"{prefix}{os.urandom(4).hex()}")


def install(aside: Path, path: Path) -> None:
    """Renames a file that is on the disk already, and brings its new name there too. Raises `OSError`."""
    os.replace(aside, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Brings a file, or the names in a folder, to the disk."""
    if os.name == "nt" and path.is_dir():  # pragma: no cover - Windows has no such thing
        return
    handle = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _take_rights(handle: int, path: Path, mode: Callable[[int], int]) -> None:
    if os.name == "nt" or not path.exists():
        return
    before = path.stat()
    with suppress(PermissionError):
        os.fchown(handle, before.st_uid, before.st_gid)
    rights = mode(stat.S_IMODE(before.st_mode))
    if os.fstat(handle).st_gid != before.st_gid:
        rights &= ~0o070  # another group must not get the rights of the old one
    os.fchmod(handle, rights)
