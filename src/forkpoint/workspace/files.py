"""Files copied so that nothing is shared that one of the two could change for the other.

Where the file system can, a copy has the same blocks until one of them is written to (a reflink); else its bytes are
copied, holes left out. Never a hard link: that is the same file. Links are copied as links.
Tests: tests/workspace/test_copies.py.
"""

import errno
import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from forkpoint.workspace.folders import counted, printable, some

try:
    import fcntl

    _FICLONE = getattr(fcntl, "FICLONE", 0x40049409)  # Python has a name for it since 3.12
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_CHUNK = 8 * 1024 * 1024
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)

Skip = Callable[[bytes], bool]


class Copying:
    """Copies entries of one folder, by their names in it, into another that is empty.

    Nothing is read or written through a link, whatever a list of names says and whatever changes meanwhile: what is not
    in a real folder of the source is not there, and each folder of the target was made here.
    """

    def __init__(self, source: bytes, target: bytes) -> None:
        self._source = source
        self._target = target
        self._modes: dict[bytes, int] = {b"": -1}  # of each folder that was made; it is set when all is in it
        self._special: list[str] = []
        self._back = 0  # links that lead to the source

    def add(self, name: bytes) -> None:
        """Copies one entry. One that is not there, or not any more, is not there in the copy either."""
        parent = os.path.dirname(name)
        if not _is_inner(name) or not self._has(parent):
            return
        path, target = os.path.join(self._source, name), os.path.join(self._target, name)
        try:
            mode = os.lstat(path).st_mode
            if stat.S_ISDIR(mode):
                self._has(name)
            elif stat.S_ISLNK(mode):
                self._link(path, target)
            elif not stat.S_ISREG(mode) or not _copy_file(path, target):
                self._special.append(printable(name))
        except (FileNotFoundError, NotADirectoryError):  # it has just gone
            if not os.path.lexists(path):
                return
            raise

    def finish(self) -> tuple[str, ...]:
        """Gives folders their modes, and says what was left out, and what leads back."""
        for name, mode in sorted(self._modes.items(), reverse=True):
            if name:
                os.chmod(os.path.join(self._target, name), mode)
        notes = []
        if self._special:
            what = counted(len(self._special), "entry is", "entries are")
            notes.append(f"{what} no file, folder or link, and not copied: {some(self._special)}")
        if self._back:
            what = counted(self._back, "link leads", "links lead")
            notes.append(f"{what} to the source by its full path, so what is written through it changes the source")
        return tuple(notes)

    def _has(self, name: bytes) -> bool:
        """Whether there is such a folder in the copy, made now if it is in the source."""
        if name in self._modes:
            return True
        if not self._has(os.path.dirname(name)):
            return False
        try:
            mode = os.lstat(os.path.join(self._source, name)).st_mode
            if not stat.S_ISDIR(mode):
                return False
            os.mkdir(os.path.join(self._target, name), 0o700)
        except (FileNotFoundError, NotADirectoryError, FileExistsError):  # the source has changed meanwhile
            return False
        self._modes[name] = stat.S_IMODE(mode) & 0o777
        return True

    def _link(self, path: bytes, target: bytes) -> None:
        leads = os.readlink(path)
        os.symlink(leads, target)
        if os.path.isabs(leads) and (os.path.normpath(leads) + b"/").startswith(self._source + b"/"):
            self._back += 1


def walk(root: bytes, skip: Skip) -> Iterator[bytes]:
    """The names of all that is in a folder and its folders, a folder before what is in it. No link is followed."""
    waiting = [b""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as found:
                entries = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in found)
        except (FileNotFoundError, NotADirectoryError):  # it has just gone
            if folder:
                continue
            raise
        for entry, is_folder in entries:
            name = os.path.join(folder, entry)
            if not skip(name):
                yield name
                if is_folder:
                    waiting.append(name)


def fingerprint(root: bytes, names: Iterable[bytes]) -> str:
    """What changes when one of these entries does: told by size, times and number of the file, not by its bytes.

    The time of the last change of its record is among them, which no program can set back.
    """
    digest = hashlib.sha256()
    for name in sorted(names):
        try:
            found = os.lstat(os.path.join(root, name))
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not stat.S_ISDIR(found.st_mode):  # what matters of a folder is what is in it
            seen = found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
            digest.update(b"%d %b %b\0" % (len(name), name, repr(seen).encode()))
    return digest.hexdigest()


def _is_inner(name: bytes) -> bool:
    """Whether a name is that of something within a folder. An index that somebody has crafted can say anything."""
    return not os.path.isabs(name) and not {b"", b".", b".."} & set(name.split(b"/"))


def _copy_file(path: bytes, target: bytes) -> bool:
    """Copies a file with its mode and the time of its last change. False if it is no file after all."""
    source = os.open(path, _READ)
    try:
        found = os.fstat(source)
        if not stat.S_ISREG(found.st_mode):
            return False
        if not _cloned(path, target):
            new = os.open(target, _WRITE, 0o600)
            try:
                if not reflink(source, new):
                    _copy_bytes(source, new, found.st_size)
            finally:
                os.close(new)
        os.chmod(target, stat.S_IMODE(found.st_mode) & 0o777)  # but not the right to act as another user
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
    finally:
        os.close(source)
    return True


def reflink(source: int, target: int) -> bool:
    """Lets a file have the blocks of another until one of them is written to. False if that cannot be had here."""
    done = False
    if sys.platform == "linux":
        with suppress(OSError):  # another file system, or one that cannot; a full disk says so when bytes are copied
            fcntl.ioctl(target, _FICLONE, source)
            done = True
    return done


def _cloned(path: bytes, target: bytes) -> bool:
    """The same on macOS, which makes the file too."""
    done = False
    if sys.platform == "darwin":
        import ctypes

        with suppress(OSError, AttributeError):
            done = ctypes.CDLL(None).clonefile(path, target, 1) == 0  # 1: a link is not followed
    return done


def _copy_bytes(source: int, target: int, size: int) -> None:
    for start, end in _filled(source, size):
        while start < end and (done := _copy_some(source, target, start, min(end - start, _CHUNK))):
            start += done
    os.ftruncate(target, size)


def _copy_some(source: int, target: int, at: int, count: int) -> int:
    if sys.platform == "linux":
        with suppress(OSError):  # another file system, perhaps; if it is worse, writing says so
            return os.copy_file_range(source, target, count, at, at)
    os.lseek(source, at, os.SEEK_SET)
    os.lseek(target, at, os.SEEK_SET)
    return os.write(target, os.read(source, count))


def _filled(file: int, size: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that have something in them: the rest is holes."""
    at = 0
    while at < size:
        try:
            start = os.lseek(file, at, os.SEEK_DATA)
            end = os.lseek(file, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # nothing but a hole follows; else nobody knows of holes here
                yield at, size
            return
        except AttributeError:
            yield at, size
            return
        yield start, min(end, size)
        at = end
