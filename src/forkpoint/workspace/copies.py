"""Copies: a folder of its own for a fork, with everything that the source has."""

import os
from pathlib import Path

from forkpoint.workspace.files import Copying, fingerprint, walk
from forkpoint.workspace.folders import (
    Made,
    NotMade,
    Removed,
    delete,
    keep,
    new_token,
    origin_of,
    printable,
    room_for,
    some,
)
from forkpoint.workspace.git import Git


def copy(source: Path, name: str) -> Made:
    """A copy of a folder: files, folders, links as links, with what git ignores and the repository itself.

    What of the repository is true of the source's place alone is left out. Raises `NotMade`.
    """
    here = Path(os.path.realpath(source))
    if not here.is_dir():
        raise NotMade("there is no such folder")
    with room_for(name, here) as root:
        parts = _Parts(here)
        copying = Copying(os.fsencode(here), os.fsencode(root))
        for entry in walk(os.fsencode(here), parts.skip):
            copying.add(entry)
        notes = (*parts.notes(), *copying.finish())
        for inner in parts.repositories:
            _check_repository(root / os.fsdecode(inner))
        return keep(
            Made(
                path=str(root),
                kind="copy",
                source=str(here),
                root=str(root),
                origin=str(origin_of(here)),
                fingerprint=_fingerprint(root),
                token=new_token(),
                notes=notes,
            )
        )


def remove_copy(made: Made) -> Removed:
    """Removes a copy if it is as it was made, and the source is still there."""
    root = Path(made.root)
    if os.path.lexists(root):
        if not os.path.isdir(made.source):
            return Removed(False, f"its source, {printable(made.source)}, is gone, so this may be all that is left")
        if _fingerprint(root) != made.fingerprint:
            return Removed(False, "it has changed since it was made")
        delete(root)
    return Removed(True)


class _Parts:
    """What of a source is copied. Git must never take a copy for the source, nor wait for who works there."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._elsewhere: list[str] = []
        self._refused: list[str] = []
        self.repositories: list[bytes] = []  # the folders that have one which is copied

    def skip(self, name: bytes) -> bool:
        folders = name.split(b"/")
        if b".git" not in folders:
            return False
        inner = folders[folders.index(b".git") + 1 :]
        if not inner:
            if self._leads_away(name) or self._is_refused(name):
                return True
            self.repositories.append(os.path.dirname(name))
            return False
        return inner[0] == b"worktrees" or inner[-1].endswith(b".lock")

    def notes(self) -> list[str]:
        notes = []
        if self._elsewhere:
            notes.append(f"There is no repository here, as that of the source is elsewhere: {some(self._elsewhere)}")
        if self._refused:
            notes.append(f"A repository of another user, which git does not use, is not copied: {some(self._refused)}")
        return notes

    def _leads_away(self, name: bytes) -> bool:
        """Whether a `.git` names a repository outside: that of a worktree, or of a submodule that is the source."""
        path = self._source / os.fsdecode(name)
        if path.is_symlink():
            leads = os.path.realpath(path)
            away = os.path.isabs(os.readlink(path)) or not Path(leads).is_relative_to(self._source)
        elif path.is_file():
            with path.open("rb") as file:
                said = os.fsdecode(file.read(8192)).removeprefix("gitdir:").strip()
            away = os.path.isabs(said) or not Path(os.path.realpath(path.parent / said)).is_relative_to(self._source)
        else:
            return False
        if away:
            self._elsewhere.append(printable(name))
        return away

    def _is_refused(self, name: bytes) -> bool:
        """Whether git does not use a repository, as another user owns it. As a copy it would be ours, and used."""
        path = self._source / os.fsdecode(name)
        if not hasattr(os, "geteuid") or path.lstat().st_uid == os.geteuid():
            return False
        try:
            refused = not Git(path.parent).succeeds("rev-parse", "--git-dir")
        except NotMade:  # without git nobody uses it
            refused = True
        if refused:
            self._refused.append(printable(name))
        return refused


def _check_repository(root: Path) -> None:
    """Raises `NotMade` if git would work on other files than those of the copy."""
    if not os.path.lexists(root / ".git"):
        return
    try:
        git = Git(root)
        is_one = git.line("rev-parse", "--absolute-git-dir") == os.path.realpath(root / ".git")
        top = git.line("rev-parse", "--show-toplevel")
    except NotMade:  # there is no git, or it does not take this for a repository
        return
    if os.path.isdir(root / ".git") and not is_one:  # it is called so, and git has gone on to look above
        return
    if os.path.realpath(top) != str(root):
        raise NotMade("its repository says that its files are elsewhere (core.worktree), and a copy would change them")


def _fingerprint(root: Path) -> str:
    """Of all but what changes when somebody only looks: git's index, and what tools printed."""

    def skip(name: bytes) -> bool:
        folders = name.split(b"/")
        return folders[-2:] == [b".git", b"index"] or name == b".forkpoint/output"

    return fingerprint(os.fsencode(root), walk(os.fsencode(root), skip))
