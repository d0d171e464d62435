"""`ChatScreen`: what a chat prints beside its turns, and the visualizer that shows those.
Tests: tests/cli/test_chat.py."""

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager

from forkpoint.cli.output import clean, console, one_line
from forkpoint.conversation import Update, Visualizer
from forkpoint.conversation.call_view import ViewLine, print_view
from forkpoint.conversation.visualizer import TerminalVisualizer
from forkpoint.updates import CallWaits


class ChatScreen:
    """The console of a chat. With ``as_json`` nothing is shown: each line gets a document instead."""

    def __init__(self, *, as_json: bool, plain: bool = False) -> None:
        self.as_json = as_json
        self.is_typed = sys.stdin.isatty()  # whether somebody sits at a keyboard
        self.is_watched = self.is_typed and sys.stdout.isatty() and not as_json  # and sees what is shown
        self.out = console()
        self.out.quiet = as_json
        self._turns = TerminalVisualizer(self.out, show_input=False, markdown=not plain, whole="/show")

    @property
    def visualizer(self) -> Visualizer:
        """What shows turns. Whoever can be asked about calls that wait sees those above the question."""
        return _WithoutWaiting(self._turns) if self.is_watched else self._turns

    @property
    def mark(self) -> str:
        """What stands before a message of the user."""
        return "\u276f " if self.out.encoding.lower().startswith("utf") else "> "

    @property
    def is_live(self) -> bool:
        """Whether answers are rewritten in place, so that nothing else may be shown without `apart`."""
        return self._turns.is_live

    def apart(self) -> AbstractContextManager[None]:
        """A context in which something can be said while a turn runs."""
        return self._turns.apart()

    def show_typed(self, text: str) -> None:
        """Shows what the user types while a turn runs; "" ends that."""
        self._turns.show_typed(f"{self.mark}{text}" if text else "")

    def end_line(self) -> None:
        """Ends a line of an answer that is still being written."""
        self._turns.end_line()

    def repeat(self, line: str) -> None:
        """Shows a message that the user has not just typed."""
        self.out.print(f"{self.mark}{one_line(line, 600)}", style="bold")

    def say(self, text: str) -> None:
        self.out.print(clean(text), style="dim")

    def warn(self, text: str) -> None:
        self.out.print(clean(text), style="yellow")

    def complain(self, text: str) -> None:
        with self.apart():
            self.out.print(f"error: {one_line(text)}", style="red")

    def show(self, lines: Iterable[ViewLine]) -> None:
        """Shows what somebody decides on, to the character."""
        print_view(self.out, lines, before="  ")


class _WithoutWaiting:
    """Shows turns while they run, all but the calls that wait: the question shows those, directly above itself."""

    def __init__(self, screen: Visualizer) -> None:
        self._screen = screen

    def __call__(self, update: Update, /) -> None:
        if not isinstance(update, CallWaits):
            self._screen(update)

    def for_fork(self) -> "_WithoutWaiting":
        return _WithoutWaiting(self._screen.for_fork())
