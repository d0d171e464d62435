"""Paths that cannot leave the workspace.

**The promise kept here: what is opened is below the workspace's folder when it is opened, whatever others do to the
folders meanwhile.** No path is checked first and used later. Each part of it is opened from the one before, and never
through a link: a link is read, and where it leads is walked in the same way. A part that is swapped for a link in the
middle of this is an error, or read as that link.

What this cannot tell: a second name (hard link) of a file outside, a folder that is mounted into the workspace, and a
folder that somebody moves out of the workspace while it is open here.
"""

import os
import stat
import unicodedata
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from forkpoint.agent.builtin.failure import ToolFailed, shown, told
from forkpoint.agent.builtin.regex_process import Below
from forkpoint.agent.context import ToolContext

_LINKS = 40  # that a path may lead through, as for the kernel
_DEPTH = 200  # folders in folders


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A place in the workspace: an open folder and a name in it, which is no link, and may not exist yet."""

    folder: int
    name: str  # "." for the folder itself
    path: str  # from the workspace, with links resolved

    def stat(self) -> os.stat_result | None:
        """What is there; None if nothing is."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self) -> int:
        """The file that is there, for reading. It is never waited for. Raises `ToolFailed` if it is no plain file."""
        found = self.stat()
        if found is None:
            raise ToolFailed(f"There is no file {shown(self.path)} in the workspace.{self._near()}")
        if not stat.S_ISREG(found.st_mode):
            raise ToolFailed(f"{shown(self.path)} is {kind_of(found)}, not a file.")
        with told(f"{shown(self.path)} cannot be read"), Below(self.folder) as below:
            return below.open(self.name)

    @contextmanager
    def open_folder(self) -> Iterator[int]:
        """The folder that is there. Raises `ToolFailed` if it is not a folder."""
        found = self.stat()
        if found is None:
            raise ToolFailed(f"There is no folder {shown(self.path)} in the workspace.{self._near()}")
        if not stat.S_ISDIR(found.st_mode):
            raise ToolFailed(f"{shown(self.path)} is {kind_of(found)}, not a folder.")
        with Below(self.folder) as below:
            with told(f"{shown(self.path)} cannot be read"):
                opened = below.folder([] if self.name == "." else [self.name])
            yield opened

    def _near(self) -> str:
        """Names in the same folder that may have been meant."""
        import difflib

        with suppress(OSError):
            near = difflib.get_close_matches(self.name, os.listdir(self.folder)[:5000], n=3)
            if near:
                return f" There is: {', '.join(map(shown, near))}."
        return ""


class Workspace:
    """A conversation's folder, open: all that the tools touch is reached from here."""

    def __init__(self, given: Path) -> None:
        if os.open not in os.supports_dir_fd or not hasattr(os, "O_NOFOLLOW"):
            raise ToolFailed("The built-in tools work on Linux and macOS only.")
        self.path = os.path.realpath(given)
        self._given = os.path.abspath(given)
        with told(f"The workspace {given} cannot be opened"):
            self.folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.folder)

    @contextmanager
    def place(self, given: str, *, write: bool = False, make: bool = False) -> Iterator[FilePlace]:
        """The place that a path means, as long as this lasts. Raises `ToolFailed` if it is not in the workspace.

        ``write`` refuses what belongs to git, and to Forkpoint. ``make`` makes the folders on the way.
        """
        with ExitStack() as opened:
            with told(f"{shown(given)} cannot be reached"):
                way = _Way(self, given, write=write, make=make, opened=opened)
                place = way.walk()
            yield place

    def below(self, path: str) -> list[str] | None:
        """The parts of a path, from the workspace; None if it is absolute and leads elsewhere."""
        if not path.startswith("/"):
            return path.split("/")
        parts = _parts(path)
        for top in map(_parts, (self.path, self._given)):
            if parts[: len(top)] == top:
                return parts[len(top) :]
        return None


@contextmanager
def workspace_of(ctx: ToolContext) -> Iterator[Workspace]:
    """The workspace of a call. Raises `ToolFailed` if there is none."""
    if ctx.workspace is None:
        raise ToolFailed("This conversation has no workspace, so there is no folder to work in.")
    with Workspace(ctx.workspace) as workspace:
        yield workspace


def kind_of(found: os.stat_result) -> str:
    """What something in a folder is, in words."""
    kinds = {
        stat.S_IFREG: "a file",
        stat.S_IFDIR: "a folder",
        stat.S_IFLNK: "a link",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(found.st_mode), "a device")


class _Way:
    """A path, walked part by part."""

    def __init__(self, workspace: Workspace, given: str, *, write: bool, make: bool, opened: ExitStack) -> None:
        self._workspace, self._given = workspace, given
        self._write, self._make = write, make
        self._below = opened.enter_context(Below(workspace.folder))
        self._names: list[str] = []  # of the folders that we are in
        self._patience = _LINKS
        self._left = self._parts_of(given)

    def walk(self) -> FilePlace:
        while self._left:
            name = self._left.pop(0)
            if name in {"", "."}:
                continue
            if name == "..":
                if not self._names:
                    raise self._out()
                self._names.pop()
                continue
            if self._write:
                self._check(name)
            if (leaf := self._step(name)) is not None:
                return leaf
        return FilePlace(self._below.folder(self._names), ".", "/".join(self._names) or ".")

    def _step(self, name: str) -> FilePlace | None:
        """Goes into a folder or along a link; a place if the way ends here."""
        folder = self._below.folder(self._names)
        here = FilePlace(folder, name, "/".join([*self._names, name]))
        found = here.stat()
        if found is None and self._left and self._make:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
            found = here.stat()
        if found is not None and stat.S_ISLNK(found.st_mode):
            self._follow(name, folder)
            return None
        if not self._left:
            return here
        if found is None:
            raise ToolFailed(f"There is no folder {shown(here.path)} in the workspace.{here._near()}")
        if not stat.S_ISDIR(found.st_mode):
            raise ToolFailed(f"{shown(here.path)} is {kind_of(found)}, not a folder.")
        if len(self._names) >= _DEPTH:
            raise ToolFailed(f"{shown(self._given)} is more than {_DEPTH} folders deep.")
        self._names.append(name)
        return None

    def _follow(self, name: str, folder: int) -> None:
        self._patience -= 1
        if self._patience < 0:
            raise ToolFailed(f"{shown(self._given)} leads through more than {_LINKS} links, or in a circle.")
        target = os.readlink(name, dir_fd=folder)
        parts = self._parts_of(target)
        if target.startswith("/"):
            self._names.clear()
        self._left[:0] = parts

    def _parts_of(self, path: str) -> list[str]:
        if "\0" in path or not path:
            raise ToolFailed(f"{shown(path)} is not a path.")
        if (parts := self._workspace.below(path)) is None:
            raise self._out()
        return parts

    def _out(self) -> ToolFailed:
        return ToolFailed(
            f"{shown(self._given)} leads out of the workspace. Paths are relative to the workspace's folder, "
            "and only what is in it can be used."
        )

    def _check(self, name: str) -> None:
        plain = "".join(char for char in name if unicodedata.category(char) != "Cf")  # some file systems ignore these
        if plain.casefold() == ".git":
            raise ToolFailed(f"{shown(self._given)} belongs to git, and is not to be written. Use git's own commands.")
        if plain.casefold() == ".forkpoint":  # settings, hooks and skills that hold once the project is trusted
            raise ToolFailed(f"{shown(self._given)} belongs to Forkpoint, and is not to be written.")


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]
