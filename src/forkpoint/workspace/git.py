"""The git program, run so that nothing of the repository is run by it.

A repository can name programs: hooks, filters, a file system monitor, what speaks to remotes. Whoever forks a
conversation has not asked for any of these, and the repository may be a stranger's. So all of them are off, and nothing
is fetched. Settings go by the environment: there a name cannot be taken for something else.
Tests: tests/workspace/test_worktrees.py.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path

from forkpoint.workspace.folders import NotMade, printable

try:
    import fcntl

    HAS_LOCKS = True
except ImportError:  # Windows
    HAS_LOCKS = False

_OLDEST = (2, 31)  # the first that takes settings from the environment
_PATIENCE = 600.0  # seconds; a list of all files can take long

_ALWAYS = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "",  # older ones would take `false` for a program
    "core.untrackedCache": "false",  # what is in an index must not depend on the place
    "core.splitIndex": "false",
    "core.quotePath": "false",
    "worktree.useRelativePaths": "false",  # it would change the settings of the repository
}

_KEPT = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_CEILING_DIRECTORIES")


_new_enough: set[str] = set()  # programs whose version was looked at


class GitFailed(NotMade):
    """Git refuses; its text is what git said."""


class Git:
    """The git program in a folder. Raises `NotMade` if there is none, or only an old one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._program = _program()
        self._environment = _environment(_ALWAYS)
        if self._program not in _new_enough:
            self._check_version()
            _new_enough.add(self._program)
        self._environment = _environment(_ALWAYS | self._programs())

    def at(self, folder: Path) -> "Git":
        """The same in another folder of the repository, whose settings are the same."""
        there = copy(self)
        there._folder = folder
        return there

    def run(self, *arguments: str | Path, index: Path | None = None) -> bytes:
        """What git prints. With ``index`` it uses that in the place of the repository's. Raises `GitFailed`."""
        environment = self._environment | ({} if index is None else {"GIT_INDEX_FILE": os.fspath(index)})
        command = [self._program, "-C", os.fspath(self._folder), *(os.fspath(one) for one in arguments)]
        try:
            done = subprocess.run(  # noqa: S603
                command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=_PATIENCE
            )
        except subprocess.TimeoutExpired:
            raise GitFailed(f"git {arguments[0]} took longer than {_PATIENCE:.0f} s") from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [b"it did not say why"]
            first = next((line for line in lines if line.startswith((b"fatal: ", b"error: "))), lines[-1])
            said = printable(first).removeprefix("fatal: ").removeprefix("error: ")
            raise GitFailed(f"git {arguments[0]} failed: {said[:500]}")
        return done.stdout

    def line(self, *arguments: str | Path) -> str:
        """The one line that git prints."""
        return os.fsdecode(self.run(*arguments).removesuffix(b"\n"))

    def succeeds(self, *arguments: str | Path) -> bool:
        try:
            self.run(*arguments)
        except GitFailed:
            return False
        return True

    def names(self, *arguments: str | Path, index: Path | None = None) -> list[bytes]:
        """The names that git prints, each ended by a NUL: they can have anything else in them."""
        return [name for name in self.run(*arguments, index=index).split(b"\0") if name]

    def _check_version(self) -> None:
        said = self.run("version")
        found = re.search(rb"(\d+)\.(\d+)", said)
        if found is None or (int(found[1]), int(found[2])) < _OLDEST:
            what = printable(said.strip())
            raise NotMade(f"{what} is too old: {'.'.join(map(str, _OLDEST))} or later is needed; a copy needs none")

    def _programs(self) -> dict[str, str]:
        """The settings that turn off each program that the repository's, or the user's, settings name."""
        off: dict[str, str] = {}
        for name in map(os.fsdecode, self.names("config", "--list", "--name-only", "-z")):
            section, _, rest = name.partition(".")
            which = rest.rpartition(".")[0]
            if section == "filter" and which:
                off |= {f"filter.{which}.{what}": "" for what in ("clean", "smudge", "process")}
                off[f"filter.{which}.required"] = "false"
            elif section == "hook" and which:
                off |= {f"hook.{which}.enabled": "false", f"hook.{which}.command": ""}
        return off


@contextmanager
def alone(repository: Path) -> Iterator[None]:
    """One at a time works on a repository's worktrees: git fails where it meets one that is half made.

    The lock is on the folder itself, so nothing is left there of it.
    """
    if not HAS_LOCKS:
        yield
        return
    handle = os.open(repository, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _program() -> str:
    found = shutil.which("git")
    if found is None or not os.path.isabs(found):  # a relative one could be the repository's own
        raise NotMade("git is not installed, or not in PATH; a copy needs none")
    return found


def _environment(settings: dict[str, str]) -> dict[str, str]:
    """The process's environment, but for what it says of some repository: a hook of git may have started it."""
    there = os.environ
    environment = {name: value for name, value in there.items() if not name.startswith("GIT_") or name in _KEPT}
    given = there.get("GIT_CONFIG_COUNT", "0")
    count = int(given) if given.isascii() and given.isdecimal() else 0
    said = [(there.get(f"GIT_CONFIG_KEY_{n}", ""), there.get(f"GIT_CONFIG_VALUE_{n}", "")) for n in range(count)]
    for number, (name, value) in enumerate([*(one for one in said if one[0]), *settings.items()]):
        environment |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        environment["GIT_CONFIG_COUNT"] = str(number + 1)
    return environment | {
        "GIT_OPTIONAL_LOCKS": "0",  # looking at a repository writes nothing
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
