"""`Prompt`: where the next line of a chat comes from: a keyboard with readline, or a pipe.
Tests: tests/cli/test_chat.py."""

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from forkpoint.cli.chat.screen import ChatScreen
from forkpoint.cli.questions.keyboard import beginning_with


class Prompt:
    """Reads lines. ``complete`` gives what a line that somebody has begun could become."""

    def __init__(self, screen: ChatScreen, complete: Callable[[str], Iterable[str]]) -> None:
        self._screen = screen
        self._complete = complete
        self._found: list[str] = []  # what the line could become
        self.draft = ""  # what the next line begins with
        self.is_begun = False  # whether something stood on the line that Ctrl-C ended

    def read(self) -> str | None:
        """The next line; None at the end. Ctrl-C raises KeyboardInterrupt."""
        if not self._screen.is_typed:
            read = sys.stdin.buffer.readline()
            line = read.decode(errors="surrogateescape").strip()
            if line:
                self._screen.repeat(line)
            return line if read else None
        prompt = self._screen.mark
        if not sys.stdout.isatty():  # stdout is a file or a pipe, so the prompt goes to stderr
            print(prompt, end="", file=sys.stderr, flush=True)
            prompt = ""
        draft, self.draft = self.draft, ""
        try:
            with self._noticing(), beginning_with(draft, remember=True):
                return input(prompt)
        except EOFError:
            return None

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """Notices at Ctrl-C whether something stands on the line: afterwards nobody knows."""
        self.is_begun = False

        def press(*_: object) -> NoReturn:
            self.is_begun = bool(_line_buffer().strip())
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, press)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def set_up(self, said: Iterable[str]) -> None:
        """Sets up readline, if somebody types and the system has it: earlier messages, and completion."""
        if not self._screen.is_typed:
            return
        try:
            import readline
        except ImportError:
            return
        for line in said:
            if line and "\n" not in line:
                readline.add_history(line)
        readline.set_completer_delims("")
        readline.set_completer(self._candidate)
        readline.parse_and_bind("tab: complete")
        readline.parse_and_bind("set enable-bracketed-paste on")  # several lines that are pasted are one message

    def _candidate(self, start: str, number: int) -> str | None:
        if number == 0:
            try:
                self._found = list(self._complete(start))
            except Exception:  # an error must not be printed in the middle of a line
                self._found = []
        return self._found[number] if number < len(self._found) else None


def _line_buffer() -> str:
    """What stands on the line that is being typed, if the system has readline."""
    try:
        import readline
    except ImportError:
        return ""
    return readline.get_line_buffer()
