"""`grep` over every file of a store: what is on the disk, whatever any program says about it.

By a process of its own. If this process opened and closed the file, SQLite would lose its locks on it.
"""

import subprocess
from collections.abc import Iterable
from pathlib import Path


def found_in(store: Path, words: Iterable[str]) -> set[str]:
    """Those of the words that stand in the store's file, in its log, or in anything else beside it with its name."""
    files = sorted(str(file) for file in store.parent.rglob("*") if str(file).startswith(str(store)) and file.is_file())
    assert files, f"{store} is not there, so nothing was looked at"
    command = ["grep", "--text", "--only-matching", "--no-filename", "--fixed-strings", "--file=-", "--", *files]
    done = subprocess.run(
        command, input="\n".join(words), capture_output=True, text=True, errors="replace", check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return set(done.stdout.split())
