"""A command that is asked something: bytes in, what it prints out, and the end of all that it started."""

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from forkpoint.process import CannotStart, Job, run

GRACE = 1.0
"""Seconds that a command has to end by itself when it is told to."""


class Finished(Struct, frozen=True):
    """How a command ended. Without an exit code it did not end in time; a negative one is the signal that ended it.

    Of each of its outputs the beginning is kept; ``is_cut`` says whether the first has more.
    """

    exit_code: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    is_cut: bool = False


async def run_command(
    command: str | Sequence[str],
    *,
    input: bytes = b"",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    seconds: float = math.inf,
    limit: int = 256 * 1024,
) -> Finished:
    """How a command ended, within its time. A text is one for the shell. Raises ``OSError`` if it cannot be started.

    ``env`` is its whole environment; None is ours. ``limit`` is how many bytes of each output are kept.
    """
    if os.name != "posix":
        raise OSError("commands are run on Linux and macOS alone")
    out, err = _OutputHead(limit), _OutputHead(limit)
    with tempfile.TemporaryFile(buffering=0) as stdin:  # no pipe: nothing waits for a command that does not read it
        stdin.write(input)
        stdin.seek(0)
        read, write = os.pipe()
        job = Job(
            command=["/bin/sh", "-c", command] if isinstance(command, str) else command,
            folder=os.curdir if cwd is None else str(cwd),
            env=os.environ if env is None else env,
            timeout=seconds,
            heard=out.add,
            stdin=stdin.fileno(),
            errors=write,
            side=(read, write, err.add),
            grace=GRACE,
        )
        try:
            ended = await run(job)
        except CannotStart as refused:
            raise refused.error from None
    code = ended.code if ended.why == "exited" else None
    return Finished(code, bytes(out.data), bytes(err.data), out.is_cut)


class _OutputHead:
    """The beginning of what a command prints."""

    def __init__(self, limit: int) -> None:
        self.data = bytearray()
        self.is_cut = False
        self._limit = limit

    def add(self, chunk: bytes) -> None:
        room = self._limit - len(self.data)
        self.is_cut = self.is_cut or len(chunk) > room
        self.data += chunk[:room]
