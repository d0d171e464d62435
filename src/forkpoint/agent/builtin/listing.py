"""Which files there are below a folder: those that git knows or would take, or all of them where it has none.

Git is asked only for names. What a repository's own settings would have it run is turned off, and a name counts only if
it is found below the folder, reached without a link: a repository can say that its files are elsewhere.
Tests: tests/agent/builtin/test_searching.py.
"""

import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from forkpoint.agent.builtin.environment import base
from forkpoint.agent.builtin.output import FOLDER
from forkpoint.agent.builtin.paths import FilePlace, Workspace
from forkpoint.agent.builtin.regex_process import Below
from forkpoint.system.process import CannotStart, Job, OutputHead, supervise

ENTRIES = 200_000
"""How many names are looked at."""
SECONDS = 10.0
"""How long is looked for names."""

_GIT_OUTPUT = 32 * 1024 * 1024
_DEPTH = 100


@dataclass(slots=True)
class Listing:
    """Files below a folder of the workspace, by their path from there, sorted. A link is listed, and not followed."""

    files: list[str] = field(default_factory=list)
    links: set[str] = field(default_factory=set)
    cut: str | None = None  # why these are not all
    by_git: bool = False


def files_below(
    workspace: Workspace, place: FilePlace, *, ignored: bool = False, stopped: Callable[[], bool] = lambda: False
) -> Listing:
    """The files in a folder and below. ``ignored`` includes those that git ignores."""
    with place.open_folder() as folder:
        listing = Listing()
        looking = _Looking(listing, place.path, stopped)
        names = None if ignored else _known_to_git(os.path.join(workspace.path, place.path), stopped)
        if not names:  # if git ignores all that is here, whoever asks for this very folder means it as it is
            looking.walk(folder, "")
        else:
            listing.by_git = True
            looking.check(folder, names)
    listing.files.sort(key=lambda path: path.split("/"))
    return listing


class _Looking:
    """The looking for files, within its limits."""

    def __init__(self, listing: Listing, top: str, stopped: Callable[[], bool]) -> None:
        self._listing = listing
        self._top = "" if top == "." else f"{top}/"
        self._until = time.monotonic() + SECONDS
        self._stopped = stopped
        self._seen = 0
        self._over = False

    def check(self, folder: int, names: list[str]) -> None:
        """Takes what git names, as far as it is there. A folder that it names is another repository."""
        with Below(folder) as below:
            for name in sorted(set(names), key=lambda path: path.split("/")):
                if self._is_over():
                    return
                try:
                    mode = below.stat(name.rstrip("/")).st_mode
                except OSError:  # it is only in the index
                    continue
                if stat.S_ISDIR(mode):
                    self.walk(folder, name.rstrip("/"))
                else:
                    self._add(name, mode)

    def walk(self, folder: int, start: str) -> None:
        """Takes all that is in a folder and below it."""
        with Below(folder) as below:
            left = [start]
            while left and not self._over:
                path = left.pop()
                names = path.split("/") if path else []
                if len(names) > _DEPTH:
                    self._listing.cut = f"some folders are more than {_DEPTH} deep"
                    continue
                try:
                    here = below.folder(names)
                    entries = list(self._entries(here))
                except OSError:  # it may not be read, or it is gone
                    continue
                for name, mode in sorted(entries):
                    full = f"{path}/{name}" if path else name
                    if not stat.S_ISDIR(mode):
                        self._add(full, mode)
                    elif name != ".git" and self._top + full != FOLDER:
                        left.append(full)

    def _entries(self, folder: int) -> Iterator[tuple[str, int]]:
        with os.scandir(folder) as found:
            for entry in found:
                if self._is_over():
                    return
                try:
                    yield entry.name, entry.stat(follow_symlinks=False).st_mode
                except OSError:
                    continue

    def _add(self, path: str, mode: int) -> None:
        if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            self._listing.files.append(path)
        if stat.S_ISLNK(mode):
            self._listing.links.add(path)

    def _is_over(self) -> bool:
        """Whether enough was looked at."""
        self._seen += 1
        if self._seen > ENTRIES:
            self._listing.cut, self._over = f"there are more than {ENTRIES:,} names", True
        elif self._seen % 256 == 0 and time.monotonic() > self._until:
            self._listing.cut, self._over = f"it took more than {SECONDS:g} s", True
        elif self._stopped():
            self._listing.cut, self._over = "it was cancelled", True
        return self._over


def _known_to_git(folder: str, stopped: Callable[[], bool]) -> list[str] | None:
    """What git says of a folder: files that it has, and those that it would not ignore. None if it says nothing."""
    git = shutil.which("git")
    if git is None:
        return None
    said = OutputHead(_GIT_OUTPUT)
    harmless = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.untrackedCache=false"]
    command = [git, *harmless, "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    env = {name: value for name, value in base().items() if not name.startswith("GIT_")}
    env |= {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
    }
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        job = Job(command=command, folder=folder, env=env, timeout=SECONDS, heard=said.add, errors=null, grace=0.2)
        ended = supervise(job, stopped)
    except CannotStart:
        return None
    finally:
        os.close(null)
    if (ended.why, ended.code) != ("exited", 0) or said.is_cut:
        return None
    return [os.fsdecode(name) for name in bytes(said.data).split(b"\0") if name]
