"""`LineQueue`: the lines that a user types while a turn runs. Tests: tests/cli/test_steer.py."""

from collections import deque
from collections.abc import Callable

from forkpoint.cli.chat.commands.slash_command import WrongUse
from forkpoint.cli.chat.screen import ChatScreen
from forkpoint.cli.output import one_line
from forkpoint.errors import ForkpointError

QUIT = "/quit"


class LineQueue:
    """Lines for after the turn that runs. ``steer`` gets those that are for the turn itself."""

    def __init__(self, screen: ChatScreen, steer: Callable[[str], object]) -> None:
        self._screen = screen
        self._steer = steer
        self._lines: deque[str] = deque()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def take(self, line: str | None) -> None:
        """Takes a line that was typed while a turn runs, or None for Ctrl-D. Another thread calls it."""
        if line is None:
            self._lines.append(QUIT)
            return
        steers, _, message = line.partition(" ")
        if steers == "/steer":
            try:
                self._steer(message.strip())
            except WrongUse:
                self._screen.complain("Use it like this: /steer MESSAGE")
            except ForkpointError as error:
                self._screen.complain(error.message("Terminal chat"))
            return
        self._lines.append(line)
        with self._screen.apart():
            self._screen.say(f"queued: {one_line(line, 200)}")

    def next(self) -> str:
        """The next line, shown again: it was typed in the middle of another answer."""
        line = self._lines.popleft()
        if line.strip() and line != QUIT:
            self._screen.repeat(line)
        return line

    def drop(self) -> None:
        """Forgets all lines, and says so: the turn that they were to follow was stopped."""
        if self._lines:
            lines = " · ".join(one_line(line, 200) for line in self._lines)
            self._screen.say(f"Not sent, since the turn was stopped: {lines}")
            self._lines.clear()
