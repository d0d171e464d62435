"""System libraries: which package of this system brings one, and the command that installs it.

A wheel may need a library that it does not carry. `missing_in` reads its name out of a failed import, `installation_of`
says how this system installs it. Nothing is installed unless somebody calls `Installation.run`.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from msgspec import Struct

PATIENCE = 600.0
"""Seconds after which an installation is given up."""

# How each package manager installs. The first of these programs that is there is the system's own.
_INSTALL: Mapping[str, Sequence[str]] = {
    "apt-get": ("install", "-y", "--no-install-recommends"),
    "dnf": ("install", "-y"),
    "microdnf": ("install", "-y"),
    "yum": ("install", "-y"),
    "zypper": ("--non-interactive", "install"),
    "apk": ("add",),
}

# apt knows no packages before it has read their lists, which images are shipped without.
_LISTS: Mapping[str, Sequence[str]] = {"apt-get": ("update",)}

_PACKAGES: Mapping[str, Mapping[str, str]] = {
    "libgomp.so.1": {"apt-get": "libgomp1", "zypper": "libgomp1", "": "libgomp"},
    "libstdc++.so.6": {"apt-get": "libstdc++6", "zypper": "libstdc++6", "": "libstdc++"},
}

# What the loaders of glibc, musl and macOS say of a library that is nowhere.
_COMPLAINTS = (
    re.compile(r"(?<![^\s])([^\s:/]+): cannot open shared object file: No such file or directory"),
    re.compile(r"Error loading shared library ([^\s:/]+): No such file or directory"),
    re.compile(r"Library not loaded: (?:\S*/)?([^\s/]+)"),
)


class Installation(Struct, frozen=True):
    """How this system installs a library."""

    program: str
    package: str

    @property
    def command(self) -> str:
        """One line for a shell. Whoever is not root is told to become it."""
        lists = self._lists
        line = "; ".join(map(shlex.join, [self._install] if lists is None else [lists, self._install]))
        if may_install():
            return line
        if shutil.which("sudo") is None:
            return f"{line} (as root)"
        return f"sudo {line}" if lists is None else f"sudo sh -c {shlex.quote(line)}"

    def run(self) -> str | None:
        """Installs the library. Returns None if that went well, else the reason why it did not."""
        why = _failure(self._install)
        if why is not None and self._lists is not None:
            _failure(self._lists)  # a source that cannot be read does not matter, if another has the package
            why = _failure(self._install)
        return why

    @property
    def _install(self) -> list[str]:
        return [self.program, *_INSTALL[self.program], self.package]

    @property
    def _lists(self) -> list[str] | None:
        return [self.program, *_LISTS[self.program]] if self.program in _LISTS else None


def missing_in(complaint: str) -> str | None:
    """The library that a failed import says is not there, or None if the import failed for another reason."""
    return next((found[1] for pattern in _COMPLAINTS if (found := pattern.search(complaint))), None)


def installation_of(library: str) -> Installation | None:
    """How to install a library here, or None if Forkpoint does not know the package or the system."""
    packages = _PACKAGES.get(library, {})
    program = next((name for name in _INSTALL if shutil.which(name)), None)
    package = None if program is None else packages.get(program, packages.get(""))
    return None if program is None or package is None else Installation(program, package)


def may_install() -> bool:
    """Whether this process has the right to install packages of the system."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _failure(command: Sequence[str]) -> str | None:
    """Runs a command of the package manager. Returns the last line that it printed if it failed, else None."""
    try:
        done = subprocess.run(  # noqa: S603 - the system's own program, and no shell
            command,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if not done.returncode:
        return None
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines[-1] if lines else f"{command[0]} ended with {done.returncode}"
