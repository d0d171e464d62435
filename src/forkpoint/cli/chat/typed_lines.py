"""`TypedLines`: the lines that a user types while something else goes on. Tests: tests/cli/test_steer.py."""

import codecs
import os
import re
import select
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from forkpoint.cli.questions.keyboard import by_key

_KEYS = re.compile(r"\x1b(?:[\[O][0-9;?]*[ -/]*[@-~]|.)?")  # what arrows and the like send
_WORD = re.compile(r"\S*\s*$")


class TypedLines:
    """Takes whole lines off the terminal while the block runs, from a thread of its own.

    ``take`` gets each line, and None for Ctrl-D. With ``echo``, the terminal shows nothing of what is typed: ``echo``
    gets the line that is not ended yet, each time that it changes, and `draft` is what is left of it in the end.
    Without it, such a line stays where it is, and the next prompt goes on with it.
    """

    def __init__(self, take: Callable[[str | None], None], echo: Callable[[str], None] | None = None) -> None:
        self._take = take
        self._echo = echo
        self._file = sys.stdin.fileno()
        self._lock = threading.Lock()
        self._wake: int | None = None
        self._thread = threading.Thread(target=self._run, name="forkpoint typed lines", daemon=True)
        self._around = ExitStack()
        self.draft = ""

    def __enter__(self) -> Self:
        if self._echo is not None and not self._around.enter_context(by_key(self._file)):
            self._echo = None
        self._woken, self._wake = os.pipe()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join()
        os.close(self._woken)
        if self._echo is not None:
            self._echo("")
        self._around.close()

    def stop(self) -> None:
        """Takes no line any more that is typed from now on. Any thread may call it, also more than once."""
        with self._lock:
            wake, self._wake = self._wake, None
        if wake is not None:
            os.close(wake)  # which wakes the thread

    def _run(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        while True:
            readable, _, _ = select.select([self._file, self._woken], [], [])
            if self._woken in readable:
                return
            read = os.read(self._file, 65536)
            if not read:
                self._take(None)
                return
            if self._echo is not None:
                self._press(decoder.decode(read))
                continue
            for line in decoder.decode(read).splitlines():
                if line.strip():
                    self._take(line.strip())

    def _press(self, keys: str) -> None:
        """Takes keys as they are pressed, where the terminal itself edits nothing."""
        for key in _KEYS.sub("", keys):
            match key:
                case "\r" | "\n":
                    line, self.draft = self.draft.strip(), ""
                    self._show()
                    if line:
                        self._take(line)
                case "\x7f" | "\x08":
                    self.draft = self.draft[:-1]
                case "\x15":
                    self.draft = ""
                case "\x17":
                    self.draft = _WORD.sub("", self.draft)
                case "\x04" if not self.draft:
                    self._take(None)
                case _ if key.isprintable() or key == "\t":
                    self.draft += key
        self._show()

    def _show(self) -> None:
        if self._echo is not None:
            self._echo(self.draft)
