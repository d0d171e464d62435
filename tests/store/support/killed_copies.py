"""Copies that are killed at each of their moments, by the program `copying`."""

import subprocess
import sys
from pathlib import Path

COPYING = Path(__file__).with_name("copying.py")


def killed_at_each_moment(folder: Path, what: str, moments: int) -> list[str]:
    """Runs `copying` with a child for each moment. Returns how each child ended: killed ("-9") or well ("0")."""
    run = subprocess.run(
        [sys.executable, str(COPYING), str(folder), what, "0", str(moments)],
        capture_output=True,
        text=True,
        check=False,
    )
    ends = run.stdout.split()
    assert set(ends) <= {"-9", "0"}, run.stderr
    assert ends.count("-9") >= 15, "hardly any was killed, so this proved nothing"
    assert ends[-1] == "0", "the last one was to be let through to the end: raise the number of moments"
    return ends
