"""The folder in which this process keeps its database servers. Nothing is left of it when the process has ended."""

import atexit
import subprocess
import sys
import tempfile
from functools import cache
from os import environ
from pathlib import Path

from tests.postgres import guardian


@cache
def room() -> Path:
    """The folder, made by the first call. It is in memory where the tests keep their files there."""
    folder = Path(tempfile.mkdtemp(prefix="forkpoint-pg-", dir=environ.get("PYTEST_DEBUG_TEMPROOT")))
    folder.chmod(0o711)  # root starts servers as somebody else, who has to get to their own folder in it
    command = [sys.executable, "-S", "-E", guardian.__file__, str(folder)]
    watch = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, cwd="/")
    atexit.register(_leave, watch)
    return folder


def _leave(watch: "subprocess.Popen[bytes]") -> None:
    assert watch.stdin is not None
    watch.stdin.close()
    watch.wait()
