"""A command that is asked something: bytes in, what it prints out, and the end of all that it started.

It runs in a process group of its own. Whatever it leaves behind there is ended with it: when it ends, when its time is
up, and when whoever waits for it is cancelled. So nothing that holds its pipes can make anybody wait.
"""

import math
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import anyio
import anyio.abc
from msgspec import Struct

GRACE = 1.0
"""Seconds that a command has to end by itself when it is told to."""

_LATE = 1.0  # seconds in which all is read that an ended command has printed
_DEAD = 5.0  # seconds after which a killed one is left to the system


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
    with tempfile.TemporaryFile(buffering=0) as stdin:  # no pipe: nothing waits for a command that does not read it
        stdin.write(input)
        stdin.seek(0)
        process = await _start(command if isinstance(command, str) else list(command), stdin, cwd, env)
    out, err = _Kept(limit), _Kept(limit)
    ended = False
    try:
        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as group:
                group.start_soon(_drain, process.stdout, out)
                group.start_soon(_drain, process.stderr, err)
                await _exit(process)
                ended = True
                _signal(process, signal.SIGKILL)  # what it left behind, which may hold its pipes
                with anyio.move_on_after(_LATE, shield=True):
                    await out.whole.wait()
                    await err.whole.wait()
                group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
    return Finished(process.returncode if ended else None, bytes(out.data), bytes(err.data), out.is_cut)


async def _start(
    command: str | list[str], stdin: IO[bytes], cwd: Path | None, env: Mapping[str, str] | None
) -> anyio.abc.Process:
    """Starts a command. Whoever is cancelled meanwhile waits until it can be ended with all that it has started.

    The event loop itself would end the first process alone.
    """
    made: list[anyio.abc.Process | Exception] = []

    async def start() -> None:
        with anyio.CancelScope(shield=True):
            try:
                process = await anyio.open_process(
                    command,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=cwd,
                    env=None if env is None else dict(env),
                    start_new_session=True,
                )
            except Exception as error:
                made.append(error)
            else:
                made.append(process)

    try:
        async with anyio.create_task_group() as group:  # a task of its own, which nobody cancels but the group
            group.start_soon(start)
    except BaseException:
        for one in made:
            if not isinstance(one, Exception):
                with anyio.CancelScope(shield=True):
                    await _end(one)
        raise
    (one,) = made
    if isinstance(one, Exception):
        raise one
    return one


class _Kept:
    """The beginning of what a command prints."""

    def __init__(self, limit: int) -> None:
        self.data = bytearray()
        self.is_cut = False
        self.whole = anyio.Event()
        self._limit = limit

    def add(self, chunk: bytes) -> None:
        room = self._limit - len(self.data)
        self.is_cut = self.is_cut or len(chunk) > room
        self.data += chunk[:room]


async def _drain(stream: anyio.abc.ByteReceiveStream | None, kept: _Kept) -> None:
    """Reads to the end whatever comes, so that the command does not wait for us."""
    assert stream is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        async for chunk in stream:
            kept.add(chunk)
    kept.whole.set()


async def _exit(process: anyio.abc.Process) -> None:
    """Waits until a command has ended, though something that it started may still hold its pipes."""
    while process.returncode is None:
        with anyio.move_on_after(0.1):
            await process.wait()


async def _end(process: anyio.abc.Process) -> None:
    try:
        if process.returncode is None:
            _signal(process, signal.SIGTERM)
            with anyio.move_on_after(GRACE):
                await _exit(process)
    finally:  # also if somebody is cancelled again
        _signal(process, signal.SIGKILL)
    with anyio.move_on_after(_DEAD):
        await _exit(process)
        await process.aclose()


def _signal(process: anyio.abc.Process, number: signal.Signals) -> None:
    """Sends a signal to all of its group, which has the number of its first process."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
