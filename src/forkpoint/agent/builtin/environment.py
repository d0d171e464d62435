"""The folder and the variables that carry over from one command to the next.

They are in the agent's state, so they are staged with the turn, and forked, rewound and resumed like everything there::

    {"cwd": "src", "env": {"CI": "1", "PYTHONPATH": ["", "/src"]}, "unset": ["EDITOR"]}

``cwd`` is relative to the workspace. Where a value names the workspace's folder it is a list of what stands around
that, so that a fork with a folder of its own means its own. What is a secret, or looks like one, is never there.
Tests: tests/agent/builtin/test_shell.py.
"""

import os
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from forkpoint.agent.secrets.masking import Masking
from forkpoint.agent.secrets.withheld import is_withheld, let_through, looks_secret, without_known
from forkpoint.system.process import MARK

VALUE_LIMIT = 8_000
LIMIT = 64_000
"""Characters of one variable, and of all of them, that carry over."""
DUMP_LIMIT = 1 << 20
"""Bytes of an environment that are read back."""

_NOT_SAID = (
    "The shell was replaced or killed, or did not understand the command: the folder and the variables for the next "
    "command are as before."
)
_SHELLS_OWN = frozenset({"_", "SHLVL", "PWD", "OLDPWD", MARK})
_QUIET = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}  # nobody is there to answer
_GIT = "GIT_CONFIG_"  # settings of git: COUNT says how many there are, and each has its KEY_n and its VALUE_n
_GIT_SECRET = re.compile(r"extraheader$|^credential\.|^url\.https?://[^/]*@", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ShellState:
    """What a command starts with, beside the environment of the process that runs it."""

    cwd: str = "."
    env: Mapping[str, str | list[str]] = field(default_factory=dict)
    unset: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: Any) -> "ShellState":
        """What stands in the state; nothing if it is not understood."""
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError:
            return cls()

    def environment(self, base: Mapping[str, str], workspace: str) -> dict[str, str]:
        """The variables of a command."""
        own = {name: value if isinstance(value, str) else workspace.join(value) for name, value in self.env.items()}
        usable = {
            name: value for name, value in own.items() if name and not set("=\0") & set(name) and "\0" not in value
        }
        return {name: value for name, value in base.items() if name not in self.unset} | usable


def base(masking: Masking = Masking()) -> dict[str, str]:
    """The environment of this process, without what looks like a secret and without what ``masking`` knows as one."""
    kept = {name: value for name, value in os.environ.items() if not is_withheld(name, value)}
    given = without_known(kept, masking) if masking else kept
    return {name: value for name, value in given.items() if not _is_git_s(name)} | _git_settings(given) | _QUIET


def read_back(
    dump: bytes, before: ShellState, base: Mapping[str, str], workspace: str, secrets: Container[str], masking: Masking
) -> tuple[ShellState, list[str]]:
    """What the next command starts with, from what a shell said at its end; and what has to be told of it.

    ``secrets`` are the names of variables that it was given for this time, ``masking`` knows their values.
    """
    folder, found, rest = dump.partition(b"\0")
    if not found or len(dump) > DUMP_LIMIT or not folder.endswith(b"\n"):
        return before, [_NOT_SAID]
    notes: list[str] = []
    cwd = _relative(os.fsdecode(folder[:-1]), workspace)
    if cwd is None:
        cwd = before.cwd
        notes.append("The shell ended outside the workspace. The next command starts where this one did.")
    entries = (os.fsdecode(entry).partition("=") for entry in rest.split(b"\0") if b"=" in entry)
    now = {name: value for name, _, value in entries if name not in _SHELLS_OWN and name not in secrets}
    changed = {name: value for name, value in now.items() if base.get(name) != value}
    hidden = sorted(name for name, value in changed.items() if not _may_be_kept(name, value, masking))
    env = {name: _parts(changed[name], workspace) for name in sorted(changed.keys() - hidden)}
    if hidden:
        some = ", ".join(name.encode(errors="backslashreplace").decode() for name in hidden[:10])
        notes.append(f"Not kept for the next command, because they look like secrets or are too long: {some}.")
    gone = base.keys() - now.keys() - _SHELLS_OWN
    unset = tuple(sorted(name for name in gone if _is_text(name) and name not in secrets))
    after = ShellState(cwd, env, unset)
    if len(msgspec.json.encode(after)) > LIMIT:
        notes.append(f"The variables are more than {LIMIT:,} characters, so they are as they were before.")
        after = ShellState(cwd, before.env, before.unset)
    return after, notes


def _is_git_s(name: str) -> bool:
    return name.startswith((f"{_GIT}KEY_", f"{_GIT}VALUE_")) or name == f"{_GIT}COUNT"


def _git_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Those settings of git that are no secrets, counted anew: git does nothing at all where one of them is missing."""
    count = given.get(f"{_GIT}COUNT", "")
    numbers = range(min(int(count), 1000)) if count.isascii() and count.isdigit() else ()
    pairs = [(given.get(f"{_GIT}KEY_{n}"), given.get(f"{_GIT}VALUE_{n}")) for n in numbers]
    kept = [(key, value) for key, value in pairs if key and value is not None and not _GIT_SECRET.search(key)]
    if not kept:
        return {}
    named = {f"{_GIT}{what}_{n}": one[at] for n, one in enumerate(kept) for at, what in enumerate(("KEY", "VALUE"))}
    return {f"{_GIT}COUNT": str(len(kept))} | named


def _may_be_kept(name: str, value: str, masking: Masking) -> bool:
    if looks_secret(name, value) and name not in let_through():
        return False
    if masking.spans(value) or masking.spans(name):
        return False
    return len(value) <= VALUE_LIMIT and _is_text(name) and _is_text(value)


def _relative(folder: str, workspace: str) -> str | None:
    if not _is_text(folder):
        return None
    if folder == workspace:
        return "."
    top = workspace.rstrip("/") + "/"
    return folder.removeprefix(top) if folder.startswith(top) else None


def _parts(value: str, workspace: str) -> str | list[str]:
    if workspace == "/" or workspace not in value:
        return value
    parts = re.split(rf"(?<![^\s:;,='\"]){re.escape(workspace)}(?=[/\s:;,'\"]|$)", value)
    return parts if len(parts) > 1 else value


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
