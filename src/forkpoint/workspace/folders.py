"""Folders that were made for forks: what is known of each of them, and where they are.

They are in one place of the user's own, apart from every project: ``NAME`` is the folder, and ``NAME.json`` beside it
is its record. The record is not in the folder, for whoever works there could change it: it says what the folder was
made from, and so whom it is trusted like; and nothing is ever removed that has none.
Tests: tests/workspace/test_copies.py.
"""

import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import platformdirs
from msgspec import Struct

from forkpoint.system.durable_file import replace_file

Kind: TypeAlias = Literal["worktree", "copy"]

HOME = "FORKPOINT_WORKSPACES"
"""The environment variable that names another place for these folders."""

_LARGEST = 64 * 1024  # bytes of a record
_ATTEMPTS = 1000  # forks with one name


class NotMade(Exception):
    """A folder could not be made for a fork; its text says why. Nothing is left of it, and the source is as it was."""


class Made(Struct, frozen=True, omit_defaults=True):
    """A folder that was made for a fork. It is data: its JSON gives it back.

    - ``path``: the folder that tools work in, and ``source`` the one that it was made from.
    - ``root``: all that was made. It is more than ``path`` if the source is a folder within a repository.
    - ``origin``: what ``root`` was made from in the first place, through forks of forks. It is trusted like that.
    - ``branch``: of a worktree, ``repository`` with it, and ``start``, the commit that it began at.
    - ``fingerprint``: of what is in it, as it was made; ``token`` is in its record too.
    - ``notes``: what the user is to know: what was left out, and why.
    """

    path: str
    kind: Kind
    source: str
    branch: str | None = None
    root: str = ""
    origin: str = ""
    repository: str | None = None
    start: str | None = None
    fingerprint: str = ""
    token: str = ""
    notes: tuple[str, ...] = ()


class Removed(Struct, frozen=True):
    """What became of removing a folder: it is gone, or it stays, and why."""

    removed: bool
    why: str | None = None


def workspaces_folder() -> Path:
    """The place for these folders: FORKPOINT_WORKSPACES, else ``workspaces`` in the user's data folder."""
    if named := os.environ.get(HOME, "").strip():
        return Path(os.path.abspath(os.path.expanduser(named)))
    return platformdirs.user_data_path("forkpoint", appauthor=False) / "workspaces"


def origin_of(path: str | os.PathLike[str]) -> Path:
    """The folder whose trust is that of a folder: itself, or where it comes from if it was made for a fork.

    Links are resolved. A fork is so trusted as its source is, and no more, wherever its files are.
    """
    here = Path(os.path.realpath(path))
    home = Path(os.path.realpath(workspaces_folder()))
    if here == home or not here.is_relative_to(home):
        return here
    root = home / here.relative_to(home).parts[0]
    made = record_of(root)
    if made is None or not made.origin:
        return here
    origin = Path(made.origin)
    there = origin / here.relative_to(root)
    inner = (here, *here.parents)[: len(here.relative_to(root).parts)]
    if any(_is_new_repository(folder, origin / folder.relative_to(root)) for folder in inner):
        return here  # brought in since: a project of its own, and nobody has decided about it
    # What is a link there, and a folder here, must not make this what the link leads to.
    return there if os.path.realpath(there) == str(there) else origin


def sources_of(path: str | os.PathLike[str]) -> list[Path]:
    """Where a folder would be in what its fork was made from, and in what that was made from, and so on."""
    found = [Path(os.path.realpath(path))]
    home = Path(os.path.realpath(workspaces_folder()))
    while found[-1] != home and found[-1].is_relative_to(home):
        root = home / found[-1].relative_to(home).parts[0]
        made = record_of(root)
        if made is None or not made.origin or (there := Path(made.origin) / found[-1].relative_to(root)) in found:
            break
        found.append(there)
    return found[1:]


def _is_new_repository(folder: Path, before: Path) -> bool:
    return os.path.lexists(folder / ".git") and not os.path.lexists(before / ".git")


def record_of(root: Path) -> Made | None:
    """What is recorded of a folder; None if it was not made here, or is not whole yet."""
    with suppress(OSError, msgspec.DecodeError, UnicodeError):
        handle = os.open(_record(root), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as file:
            if stat.S_ISREG(os.fstat(handle).st_mode):
                return msgspec.json.decode(file.read(_LARGEST), type=Made)
    return None


def keep(made: Made) -> Made:
    """Records a folder that is whole now."""
    try:
        content = msgspec.json.encode(made)
    except UnicodeEncodeError:
        raise NotMade("the name of the folder is not UTF-8, so it cannot be kept") from None
    if len(content) >= _LARGEST:
        raise NotMade("the names of its folders are too long to be kept")
    replace_file(_record(Path(made.root)), content)
    return made


def forget(root: Path) -> None:
    """Takes the record of a folder away, which is gone."""
    with suppress(FileNotFoundError):
        os.unlink(_record(root))


@contextmanager
def room_for(name: str, source: Path) -> Iterator[Path]:
    """An empty folder for a fork of that name, or with a number after it. If anything is raised it is deleted again.

    Two who ask at once get two folders. Raises `NotMade` for what is raised as `OSError`.
    """
    root: Path | None = None
    try:
        home = _home_for(source)
        root = _first_free(home, _slug(name))
        yield root
    except BaseException as error:
        if root is not None:
            with suppress(OSError):
                delete(root)
            with suppress(OSError):
                forget(root)
        if isinstance(error, OSError):
            where = f": {printable(error.filename)}" if isinstance(error.filename, str | bytes) else ""
            raise NotMade(f"{error.strerror or error}{where}") from None
        raise


def delete(folder: Path) -> None:
    """Deletes a folder with all that is in it, also in folders that are read-only. Links are not followed."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except PermissionError:
        os.chmod(folder, 0o700)
        for parent, names, _ in os.walk(folder):
            for name in names:
                path = os.path.join(parent, name)
                if not os.path.islink(path):
                    os.chmod(path, 0o700)
        shutil.rmtree(folder)


def new_token() -> str:
    return secrets.token_hex(16)


def printable(name: str | bytes | os.PathLike[str]) -> str:
    """A file's name, for a person: on one line, whatever is in it."""
    text = os.fsdecode(name)
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def some(names: list[str], most: int = 5) -> str:
    """The first names of a list, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def counted(count: int, one: str, many: str) -> str:
    return f"1 {one}" if count == 1 else f"{count:,} {many}"


def _record(root: Path) -> Path:
    return root.parent / f"{root.name}.json"


def _home_for(source: Path) -> Path:
    """The place for these folders, made if need be. It must not be in what it is to have a copy of."""
    home = Path(os.path.realpath(workspaces_folder()))
    if home.is_relative_to(source):
        raise NotMade(f"the folder for workspaces, {printable(home)}, is within it; name another one with {HOME}")
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return home


def _first_free(home: Path, name: str) -> Path:
    for number in range(1, _ATTEMPTS):
        root = home / (name if number == 1 else f"{name}-{number}")
        try:
            os.close(os.open(_record(root), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            continue
        try:
            root.mkdir(mode=0o700)
        except FileExistsError:  # it is somebody's, though no record says whose
            forget(root)
            continue
        except BaseException:
            forget(root)
            raise
        return root
    raise NotMade(f"there are {_ATTEMPTS:,} of the name {name} already")


def _slug(name: str) -> str:
    """A name that can be a folder's and a branch's, in git and on any file system."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    plain = re.sub(r"\.\.+", ".", plain)[:100].strip(".-")
    while plain.lower().endswith(".lock"):
        plain = plain[:-5].strip(".-")
    return plain or "fork"
