"""Which project a folder belongs to: its repository, found without running git.

A project is what a user decides about, so nobody else may choose it. A folder can bring its own ``.git``, and what that
says of other folders is believed only if they say the same of it.
"""

import os
import stat
from pathlib import Path

_LONGEST = 8192  # bytes of a file that holds one path


def project_root(path: str | os.PathLike[str]) -> Path:
    """The root of the project that a folder belongs to, with links resolved.

    It is the nearest folder with a ``.git``, whatever that is: a repository inside another is its own project, and so
    is a submodule. A worktree belongs to its main repository (to the bare one, if that is what it is a worktree of). A
    folder without a repository is its own project.

    A repository in the home folder, in ``/``, or of another user counts only for the folder itself, not for those
    below: it is hardly what all of them belong to.
    """
    return checkout_and_root(path)[1]


def checkout_and_root(path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """The folder that a repository was checked out to, or the folder itself; and the project's root.

    They are the same but for worktrees.
    """
    start = Path(os.path.realpath(path))
    if os.path.isfile(start):
        start = start.parent
    too_wide = {Path(os.path.realpath(os.path.expanduser("~"))), Path(start.anchor)}
    for folder in (start, *start.parents):
        if folder != start and folder in too_wide:
            continue
        try:
            entry = os.lstat(folder / ".git")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:  # nobody knows what is there, so nothing is inherited from above
            return folder, folder
        if folder == start or entry.st_uid in _who_counts(start):
            try:
                main = _main_repository(folder)
            except (RecursionError, ValueError):  # links without end: it is nobody's worktree
                main = None
            return folder, folder if main is None or main in too_wide else main
    return start, start


def _who_counts(start: Path) -> set[int]:
    """Whose repository a folder can be in: ours, its owner's, the administrator's. Anybody can make ``/tmp/.git``."""
    ours = {0, os.geteuid()} if hasattr(os, "geteuid") else {0}
    try:
        return ours | {os.stat(start).st_uid}
    except OSError:  # it is not there yet
        return ours


def _main_repository(folder: Path) -> Path | None:
    """The main repository of a worktree; None for all else.

    A worktree's ``.git`` names ``MAIN/.git/worktrees/NAME``, and that names the worktree. Both must hold: the first was
    written by whoever made this folder, the second by who owns the repository.
    """
    said = _line_of(folder / ".git")
    if said is None or not said.startswith("gitdir:"):
        return None
    entry = Path(os.path.realpath(folder / said.removeprefix("gitdir:").strip()))
    named, shared = _line_of(entry / "gitdir"), _line_of(entry / "commondir")
    if named is None or shared is None:  # a submodule, or a repository that was moved out of its folder
        return None
    repository = Path(os.path.realpath(entry / shared))
    back = entry / named
    if entry.parent != repository / "worktrees" or entry.is_relative_to(folder):
        return None
    if not (repository / "HEAD").is_file() or not (repository / "objects").is_dir():  # it is no repository at all
        return None
    if back.name != ".git" or os.path.realpath(back.parent) != str(folder):
        return None
    if not _same_owner(folder / ".git", entry):  # a worktree that is gone, and somebody has moved in
        return None
    return repository.parent if repository.name == ".git" else repository


def _line_of(path: Path) -> str | None:
    """What a file says that has one line; None if it is no such file."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
            return None
        with path.open("rb") as file:
            found = file.read(_LONGEST + 1)
    except OSError:
        return None
    line = os.fsdecode(found).rstrip("\r\n")
    return line if line and len(found) <= _LONGEST and not {"\n", "\0"} & set(line) else None


def _same_owner(one: Path, other: Path) -> bool:
    try:
        return os.lstat(one).st_uid == os.lstat(other).st_uid
    except OSError:
        return False
