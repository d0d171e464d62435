"""Stops the database servers of a process that has ended, however it ended, and removes their folder.

``guardian.py FOLDER`` waits until its standard input is closed, which the system does for whoever dies. It is a
program of its own, in a session of its own, so that what kills the tests does not kill it. Its parent makes the
folder; each server in it has a folder with a pid file.
"""

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_PATIENCE = 10  # seconds, until a server that does not stop is killed


def main(folder: Path) -> None:
    sys.stdin.buffer.read()
    for pid_file in sorted(folder.glob("*/postmaster.pid")):
        _stop(pid_file)
    for pid_file in sorted(folder.glob("*/pgbouncer.pid")):
        with suppress(ValueError, ProcessLookupError):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)  # it has nothing to lose
    shutil.rmtree(folder, ignore_errors=True)


def _stop(pid_file: Path) -> None:
    with suppress(FileNotFoundError, ProcessLookupError, IndexError):  # it has stopped by itself
        pid = int(pid_file.read_text().split()[0])
        os.kill(pid, signal.SIGQUIT)  # at once, and without writing anything; it removes its pid file then
        until = time.monotonic() + _PATIENCE
        while pid_file.exists():
            time.sleep(0.01)
            if time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
                return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
