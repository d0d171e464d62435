"""Workspaces that follow a fork: a folder of its own, so that two branches do not see each other's files.

`worktree` and `copy` make one, and `remove` takes it away if nothing is lost by that. All of it is synchronous, and can
take as long as copying takes: run it in a thread. The source is only read. Tests: tests/workspace/test_copies.py.
"""

import os
from pathlib import Path

from forkpoint.workspace.copies import copy, remove_copy
from forkpoint.workspace.folders import Kind, Made, NotMade, Removed, forget, origin_of, record_of, workspaces_folder
from forkpoint.workspace.worktrees import remove_worktree, worktree

__all__ = ["Kind", "Made", "NotMade", "Removed", "copy", "make", "origin_of", "remove", "workspaces_folder", "worktree"]


def make(kind: Kind, source: str | os.PathLike[str], name: str) -> Made:
    """A folder of that kind, made from a source for a fork of that name. Raises `NotMade`."""
    return (worktree if kind == "worktree" else copy)(Path(source), name)


def remove(made: Made) -> Removed:
    """Removes a folder that was made for a fork, if nothing is lost by that; otherwise it stays, and says why.

    One whose record is not here is left alone: it was made on another machine, or is another folder by now.
    """
    root = Path(made.root)
    record = record_of(root)
    if record is None or record.token != made.token or not made.token:
        return Removed(False, "there is no record here that it was made for this")
    try:
        done = remove_worktree(record) if record.kind == "worktree" else remove_copy(record)
        if done.removed:
            forget(root)
    except OSError as error:
        return Removed(False, f"it could not be removed ({error.strerror or error})")
    return done
