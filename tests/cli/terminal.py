"""The program ``forkpoint`` on a terminal of its own: what a user types, and what they see."""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from types import TracebackType
from typing import Self

from tests.cli.program import Program
from tests.conversation.support.emulator import Emulator

CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"

_START = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "forkpoint", *sys.argv[1:]])
"""
_STYLES = re.compile(r"\x1b\[\??[0-9;]*[a-zA-Z]")
_LONGEST = 60  # seconds without a sign of life
_PATIENCE = 5  # seconds after which a user presses a key again


class Terminal:
    """Types and reads. Whatever is waited for and does not come fails the test, with all that came instead.

    With ``live`` the terminal has colours, so that answers are shown live, and it is emulated: its text is what stands
    on its screen and above it now. Else lines are only ever added to it.
    """

    def __init__(
        self,
        program: Program,
        *arguments: str,
        width: int = 100,
        height: int = 40,
        live: bool = False,
        **environment: str,
    ) -> None:
        self._here, there = pty.openpty()
        fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        clean = {name: value for name, value in program.environment.items() if name not in {"COLUMNS", "NO_COLOR"}}
        clean |= {} if live else {"NO_COLOR": "1"}
        self._emulator = Emulator(width, height) if live else None
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *arguments],
            cwd=program.folder,
            env=clean | {"TERM": "xterm-256color", "INPUTRC": os.devnull} | environment,
            stdin=there,
            stdout=there,
            stderr=there,
            start_new_session=True,
        )
        os.close(there)
        self._heard = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ended = False
        self._size = width, height
        self._seen = 0  # how much of the text was waited for already

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._here)

    @property
    def raw(self) -> str:
        return self._heard.decode(errors="replace")

    @property
    def text(self) -> str:
        """What was shown so far, without colours."""
        if self._emulator is not None:
            return "".join(f"{line}\n" for line in self._emulator.lines)
        return _STYLES.sub("", self.raw).replace("\r\n", "\n")

    @property
    def rows(self) -> list[str]:
        """What was shown so far, in the rows in which a screen of this width shows it. All of it must be ASCII."""
        width, _ = self._size
        lines = self.text.split("\n")
        return [line[start : start + width] for line in lines for start in range(0, max(len(line), 1), width)]

    @property
    def screen(self) -> list[str]:
        """The rows that are on the screen now."""
        return self.rows[-self._size[1] :]

    def type(self, keys: str) -> None:
        os.write(self._here, keys.encode())

    def wait_for(self, text: str) -> None:
        """Reads on until this is shown, after what was waited for before; anywhere on a terminal that is live."""
        while (found := self.text.find(text, self._seen)) < 0:
            assert self._read(), f"{text!r} was not shown, but:\n{self.text}"
        self._seen = 0 if self._emulator is not None else found + len(text)

    def wait_for_last_line(self, line: str) -> None:
        """Reads on until this is the last line of a terminal that is live, without the blanks at its end."""
        while self.text.rstrip("\n").rpartition("\n")[2] != line:
            assert self._read(), f"{line!r} is not the last line, but:\n{self.text}"

    def press(self, key: str, text: str) -> None:
        """Presses a key until this is shown: Python loses a Ctrl-C that comes just before it waits for a line."""
        self.type(key)
        while text not in self.text[self._seen :]:
            if not self._read(_PATIENCE):
                assert not self._ended, f"{text!r} was not shown, but:\n{self.text}"
                self.type(key)
        self.wait_for(text)

    def end(self) -> int:
        """Reads to the end. The exit status."""
        while self._read():
            pass
        return self._process.wait(_LONGEST)

    def end_with(self, key: str) -> int:
        """Presses a key until the program ends: Python loses a Ctrl-C that comes just before it waits for a line."""
        self.type(key)
        while not self._ended:
            if not self._read(_PATIENCE) and not self._ended:
                self.type(key)
        return self.end()

    def _read(self, patience: float = _LONGEST) -> bool:
        ready, _, _ = select.select([self._here], [], [], patience)
        if not ready:
            return False
        try:
            heard = os.read(self._here, 65536)
        except OSError:  # how Linux says that nobody holds the other end
            heard = b""
        self._heard += heard
        if self._emulator is not None:
            self._emulator.write(self._decoder.decode(heard))
        self._ended = not heard
        return not self._ended
