"""A program that is killed while it writes leaves nothing torn. `benchmarks.kills` does the killing, and says how."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KILLS = 20

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")


def test_after_every_kill_all_that_was_reported_is_there_and_nothing_is_there_in_part(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.kills", "--kills", str(KILLS), "--folder", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, f"{' '.join(command[1:])} found something:\n{run.stdout}{run.stderr}"

    seen = {
        what: int(times.replace(",", "")) for times, what in re.findall(r"^ +([\d,]+)  (.+)$", run.stdout, re.MULTILINE)
    }
    reported = {
        f"{act} reported"
        for act in ("begin", "journal", "commit", "note", "fork", "rewind", "keep", "move", "delete", "anchor")
    }
    assert reported <= seen.keys(), f"the killed program hardly did anything, so this proved nothing:\n{run.stdout}"
    open_turns = sum(times for what, times in seen.items() if what.startswith("open turn"))
    assert open_turns, f"no kill met a running turn, so this proved little:\n{run.stdout}"
    unfinished = sum(times for what, times in seen.items() if what.startswith("unreported"))
    assert unfinished >= KILLS, f"the kills came between calls, not in them, so this proved little:\n{run.stdout}"
