"""``!command`` in a chat: the user's own command, whose output goes with the next message.
Tests: tests/cli/test_chat_input.py."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

COMMAND = "[I ran this command: "
"""What the model is told before a command and its output."""

MOST = 30_000
"""Characters of an output that go with the next message."""


class RanCommand(Struct, frozen=True):
    """A command that the user has run, and what it printed."""

    command: str
    output: str
    status: int

    @property
    def message(self) -> str:
        """What the model is told of it."""
        output, left_out = self.output, len(self.output) - MOST
        if left_out > 0:
            half = MOST // 2
            output = f"{output[:half]}\n[... {left_out:,} characters are left out here ...]\n{output[-half:]}"
        return f"{COMMAND}{self.command}\nexit status {self.status}, its output:]\n{output.rstrip()}"


def run_command(command: str, folder: Path | None, show: Callable[[str], None]) -> RanCommand:
    """Runs a command in a shell, and shows each line of its output as it comes. Ctrl-C ends the command alone."""
    said: list[str] = []
    process = subprocess.Popen(  # noqa: S602 - the user's own
        command,
        shell=True,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that Ctrl-C comes here first, and all that it started can be ended
    )
    assert process.stdout is not None
    try:
        for raw in process.stdout:
            said.append(raw.decode(errors="replace"))
            show(said[-1].rstrip("\n"))
        status = process.wait()
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGTERM)
        status = process.wait()
    finally:
        process.stdout.close()
    return RanCommand(command, "".join(said), status)
