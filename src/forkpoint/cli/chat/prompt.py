"""`Prompt`: where the next line of a chat comes from: a keyboard with readline, or a pipe.
Tests: tests/cli/test_chat.py."""

import sys
from collections.abc import Iterable

from forkpoint.cli.chat.screen import ChatScreen


class Prompt:
    """Reads lines."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen

    def read(self) -> str | None:
        """The next line; None at the end."""
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
        try:
            return input(prompt)
        except EOFError:
            return None

    def set_up(self, commands: Iterable[str], said: Iterable[str]) -> None:
        """Sets up readline, if somebody types and the system has it: earlier messages, and completion of commands."""
        if not self._screen.is_typed:
            return
        try:
            import readline
        except ImportError:
            return
        for line in said:
            if line and "\n" not in line:
                readline.add_history(line)
        names = [f"/{name} " for name in commands]
        readline.set_completer_delims("")
        readline.set_completer(
            lambda start, number: [*(name for name in names if name.startswith(start)), None][number]
        )
        readline.parse_and_bind("tab: complete")
        readline.parse_and_bind("set enable-bracketed-paste on")  # several lines that are pasted are one message
