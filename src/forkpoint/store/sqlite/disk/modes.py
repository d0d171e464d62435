"""Who may read the files of a store.

A new database is for its owner alone (0600), whatever the umask is. What stands beside it (the log, its index, locks)
gets the mode of the database: SQLite does that for its own files, and a store that somebody opened up to a group
(``chmod 660``) stays usable by that group. Tests: tests/store/test_modes.py.
"""

import os
import stat
from pathlib import Path

OWNER_ONLY = 0o600


def make_empty(path: Path) -> None:
    """Makes an empty file for its owner alone. Raises `FileExistsError` if something has that name."""
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, OWNER_ONLY)
    try:
        if os.name != "nt":
            os.fchmod(file, OWNER_ONLY)
    finally:
        os.close(file)


def make_folder(path: Path, mode: int) -> None:
    """Makes a folder, if it is not there, that those may use who may use files of this mode."""
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    path.chmod(mode | (mode & 0o444) >> 2)


def mode_beside(database: Path) -> int:
    """The mode for a new file beside a database. If there is no database yet, the file is for its owner alone."""
    try:
        return stat.S_IMODE(database.stat().st_mode) & 0o666 | OWNER_ONLY
    except FileNotFoundError:
        return OWNER_ONLY


def readers_of(database: Path) -> str | None:
    """Who else than its owner may read a database, by its mode; None if nobody may."""
    mode = stat.S_IMODE(database.stat().st_mode)
    if os.name == "nt" or not mode & 0o044:  # Windows keeps rights in another way
        return None
    return "everybody" if mode & 0o004 else "its group"
