"""A settings file in TOML: read as it is, and changed so that everything else in it stays as it was.

A file that others could have written is not believed. Tests: tests/workspace/test_trust.py.
"""

import os
import stat
import tomllib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from forkpoint.system.durable_file import replace_file
from forkpoint.system.file_lock import FileLock
from forkpoint.system.ownership import flaw_of

_LARGEST = 16 * 1024 * 1024
_PATIENCE = 10.0  # seconds that a change waits for another
_ATTEMPTS = 5  # an editor that saves at the same time asks for no lock


class Unreadable(Exception):
    """A settings file cannot be read or written; its text says why."""


class Unsafe(Unreadable):
    """Others can write a settings file, or it belongs to somebody else; its text has the command that mends it."""


def read(path: Path, owners: Collection[int] = ()) -> dict[str, Any]:
    """What a file says; a file that is not there says nothing. Raises `Unreadable`, and `Unsafe` if others than this
    user, root and ``owners`` can decide what it says."""
    return parsed(text_of(path, owners))


def text_of(path: Path, owners: Collection[int] = ()) -> str:
    """The text of a file, with its line ends; empty if it is not there. Raises as `read` does."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
            raise Unreadable("it is not a file")
        with path.open("rb") as file:
            if (flaw := flaw_of(path, os.fstat(file.fileno()), owners)) is not None:
                raise Unsafe(flaw)
            found = file.read(_LARGEST + 1)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise Unreadable(f"it cannot be read ({_why(error)})") from None
    if len(found) > _LARGEST:
        raise Unreadable(f"it has more than {_LARGEST:,} bytes")
    try:
        return found.decode()
    except UnicodeDecodeError:
        raise Unreadable("it is not UTF-8") from None


def parsed(text: str) -> dict[str, Any]:
    """What a text in TOML says. Raises `Unreadable`."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is not valid TOML ({error})") from None


def change(path: Path, changed: Callable[[str], str]) -> bool:
    """Puts what `changed` makes of a file's text into its place, and says whether that is anything else than it was.

    One change at a time, over all processes; a file that somebody else saves meanwhile is read again. A link stays a
    link, and the file keeps its mode and its owner. Raises `Unreadable`, and then the file is as it was.
    """
    if changed(text := text_of(path)) == text:  # nor is a folder or a lock made for nothing
        return False
    try:
        with _alone(path) as real:
            for _ in range(_ATTEMPTS):
                text = text_of(real)
                if (new := changed(text)) == text:
                    return False
                if replace_file(real, new.encode(), is_wanted=partial(_has_text, real, text)):
                    return True
    except (OSError, ValueError) as error:
        raise Unreadable(f"it cannot be written ({_why(error)})") from None
    raise Unreadable("another program keeps changing it")


@contextmanager
def _alone(path: Path) -> Iterator[Path]:
    """Nobody else changes a file. Gives the file itself where the path is a link to it."""
    real = Path(os.path.realpath(path))
    with suppress(FileNotFoundError):
        if not stat.S_IMODE(os.stat(real).st_mode) & 0o222 or not os.access(real, os.W_OK):
            # It could be replaced all the same, if the folder lets us, or if we are root. But somebody wants it so.
            raise Unreadable("it cannot be written (it is read-only)")
    real.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(real.with_name(f".{real.name}.lock"))
    try:
        if not lock.acquire_within(_PATIENCE):
            raise Unreadable(f"it cannot be written (another program has been changing it for {_PATIENCE:.0f} s)")
        yield real
    finally:
        lock.close()


def _has_text(path: Path, text: str) -> bool:
    return text_of(path) == text


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
