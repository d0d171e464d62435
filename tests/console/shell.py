"""A shell on a terminal of its own, and the screen of that terminal."""

import fcntl
import itertools
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pyte

CTRL_C, CTRL_D = "\x03", "\x04"

# Runs the files that it is told, one after another, and says how each ended. They share variables and a folder.
_LOOP = """
trap : INT
while IFS= read -r file <&3; do
    . "$file" 3<&-
    printf '\\033]6;%s\\007' "$?"
done
"""
_END = re.compile(rb"\x1b\]6;(\d+)\x07")  # a sequence that no terminal shows
_START = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
_LONGEST = 120  # seconds for a command, or until what is waited for
_PATIENCE = 0.5  # seconds after which a user presses another key
_ROWS = 3000  # what the screen has room for, so that nothing is lost above it


class Screen(pyte.Screen):
    """A screen that knows which of its rows go on in the next: a terminal breaks what is wider than it is."""

    def __init__(self, columns: int, lines: int) -> None:
        self.broken: set[int] = set()
        super().__init__(columns, lines)

    def draw(self, data: str) -> None:
        while data:
            if self.cursor.x == self.columns:
                self.broken.add(self.cursor.y)
            elif self.cursor.x == 0:
                self.broken.discard(self.cursor.y)  # what stood here is written anew
            room = self.columns - self.cursor.x or self.columns
            super().draw(data[:room])
            data = data[room:]

    def text(self, first: int = 0) -> list[str]:
        """What stands on it, from a row on, each line whole."""
        return self._lines(first, max(self.buffer, default=-1))

    def line(self) -> str:
        """The line that the cursor is in."""
        return self._lines(0, self.cursor.y)[-1]

    def _lines(self, first: int, last: int) -> list[str]:
        lines: list[str] = [""]
        for number in range(first, last + 1):
            cells = self.buffer[number]
            text = "".join(cells[column].data for column in range(max(cells, default=-1) + 1)).rstrip()
            if number - 1 in self.broken and len(lines[-1]) and len(lines[-1]) % self.columns == 0:
                lines[-1] += text
            else:
                lines.append(text)
        return lines[:1] if len(lines) == 1 else lines[1:]


class Silence(AssertionError):
    """A command has neither ended nor come to what was waited for. This is what it shows."""


class Shell:
    """Runs commands one after another. ``rows`` is what the screen shows of the newest, as a user sees it."""

    def __init__(self, folder: Path, environment: Mapping[str, str], *, width: int, height: int, aside: Path) -> None:
        self._aside = aside
        self._terminal, there = pty.openpty()
        fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        orders, self._orders = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START, *_shell(orders)],
            cwd=folder,
            env=environment,
            stdin=there,
            stdout=there,
            stderr=there,
            start_new_session=True,
            pass_fds=[orders],
        )
        os.close(there)
        os.close(orders)
        self._screen = Screen(width, _ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._status: int | None = 0
        self._heard = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._orders)
        os.close(self._terminal)  # a program that still runs hears that its terminal has gone
        self._process.wait(_LONGEST)

    @property
    def status(self) -> int | None:
        """How the newest command ended; None while it runs."""
        return self._status

    @property
    def rows(self) -> list[str]:
        """What the newest command has shown, without blank rows at the end."""
        shown = self._screen.text()
        while shown and not shown[-1]:
            shown.pop()
        return shown

    @property
    def row(self) -> str:
        """The row that the cursor is in: while a program waits for somebody to type, what it asks."""
        return self._screen.line()

    def below(self, place: int) -> list[str]:
        """What stands below a row."""
        return self._screen.text(place + 1)

    @property
    def place(self) -> int:
        """The number of the row that the cursor is in."""
        return self._screen.cursor.y

    def begin(self, command: str) -> None:
        """Starts a command, on a clean screen."""
        assert self._status is not None, "the command before has not ended"
        file = self._aside / "command"
        file.write_text(f"(exit {self._status})\n{command}\n")
        self._screen.reset()
        self._screen.broken.clear()
        self._status, self._heard = None, b""
        os.write(self._orders, f"{file}\n".encode())

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def wait(self, until: Callable[[], bool] = lambda: False) -> None:
        """Reads on until the command has ended, or this holds."""
        deadline = time.monotonic() + _LONGEST
        while self._status is None and not until():
            if not self._read(max(0, deadline - time.monotonic())):
                raise Silence("\n".join(self.rows))

    def run(self, command: str) -> int:
        """Runs a command to its end. Gives its exit status."""
        self.begin(command)
        self.wait()
        assert self._status is not None
        return self._status

    def end(self) -> None:
        """Ends a command that waits for a user: with Ctrl-C and Ctrl-D, until it has ended."""
        for key in itertools.islice(itertools.cycle((CTRL_C, CTRL_D)), _LONGEST):
            if self._status is not None:
                return
            self.type(key)
            self._wait_while_it_shows()
        raise Silence("\n".join(self.rows))

    def _wait_while_it_shows(self) -> None:
        deadline = time.monotonic() + _LONGEST
        while self._status is None and time.monotonic() < deadline and self._read(_PATIENCE):
            pass

    def _read(self, patience: float) -> bool:
        """Takes in what is shown next. False if nothing comes."""
        if not select.select([self._terminal], [], [], patience)[0]:
            return False
        said = os.read(self._terminal, 65536)
        self._heard += said
        self._stream.feed(said)
        if end := _END.search(self._heard):
            self._status = int(end[1])
        return True


def _shell(orders: int) -> list[str]:
    return [shutil.which("bash") or "sh", "-c", f"exec 3<&{orders}\n{_LOOP}"]
