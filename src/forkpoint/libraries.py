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

# The first of these programs that is there is the system's own.
_STEPS: Mapping[str, Sequence[Sequence[str]]] = {
    "apt-get": (("apt-get", "update"), ("apt-get", "install", "-y", "--no-install-recommends", "{package}")),
    "dnf": (("dnf", "install", "-y", "{package}"),),
    "microdnf": (("microdnf", "install", "-y", "{package}"),),
    "yum": (("yum", "install", "-y", "{package}"),),
    "zypper": (("zypper", "--non-interactive", "install", "{package}"),),
    "apk": (("apk", "add", "{package}"),),
}

_PACKAGES: Mapping[str, Mapping[str, str]] = {
    "libgomp.so.1": {"apt-get": "libgomp1", "zypper": "libgomp1", "": "libgomp"},
    "libstdc++.so.6": {"apt-get": "libstdc++6", "zypper": "libstdc++6", "": "libstdc++"},
}

# What the loaders of glibc, musl and macOS say.
_COMPLAINTS = (
    re.compile(r"([^\s:/]+): cannot open shared object file"),
    re.compile(r"Error loading shared library ([^\s:/]+):"),
    re.compile(r"Library not loaded: (?:\S*/)?([^\s/]+)"),
)


class Installation(Struct, frozen=True):
    """How this system installs a library."""

    library: str
    steps: tuple[tuple[str, ...], ...]

    @property
    def command(self) -> str:
        """One line for a shell. Whoever is not root is told to become it."""
        line = " && ".join(map(shlex.join, self.steps))
        if may_install():
            return line
        if shutil.which("sudo") is None:
            return f"{line} (as root)"
        return f"sudo {line}" if len(self.steps) == 1 else f"sudo sh -c {shlex.quote(line)}"

    def run(self) -> str | None:
        """Installs the library. Returns None if that went well, else the reason why it did not."""
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for step in self.steps:
            try:
                done = subprocess.run(  # noqa: S603 - the system's own program, and no shell
                    step,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=PATIENCE,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return str(error)
            if done.returncode:
                lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
                return lines[-1] if lines else f"{step[0]} ended with {done.returncode}"
        return None


def missing_in(complaint: str) -> str | None:
    """The library that a failed import says is not there, or None if the import failed for another reason."""
    return next((found[1] for pattern in _COMPLAINTS if (found := pattern.search(complaint))), None)


def installation_of(library: str) -> Installation | None:
    """How to install a library here, or None if Forkpoint does not know the package or the system."""
    packages = _PACKAGES.get(library, {})
    program = next((name for name in _STEPS if shutil.which(name)), None)
    package = None if program is None else packages.get(program, packages.get(""))
    if program is None or package is None:
        return None
    steps = tuple(tuple(word.format(package=package) for word in step) for step in _STEPS[program])
    return Installation(library, steps)


def may_install() -> bool:
    """Whether this process has the right to install packages of the system."""
    return hasattr(os, "geteuid") and os.geteuid() == 0
