"""`TurnScreen`: where turns are shown: one or two consoles, and the line on them that is still being written.
Tests: tests/conversation/test_visualizer.py."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import astuple, replace

from forkpoint.conversation.call_view import ViewLine, print_view
from forkpoint.conversation.screen_text import clean, cut
from forkpoint.conversation.terminal.word_flow import WordFlow

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

LONGEST_LINE = 200
"""How many characters of arguments or of a result are shown where no screen sets a width."""


class Marks(Struct, frozen=True):
    """The signs at the start of a line, one for each kind of line."""

    user: str
    call: str
    result: str
    good: str
    bad: str
    waits: str
    again: str
    note: str
    dots: str


MARKS = Marks("❯", "→", "←", "✓", "✗", "?", "↻", "·", "…")  # noqa: RUF001
_ASCII = Marks(">", ">", "<", "+", "x", "?", "*", "-", "...")  # for a terminal that has nothing else


class TurnScreen:
    """One or two consoles, and the line on them that is still being written. Shared by a conversation and its forks."""

    def __init__(self, console: "Console", answers: "Console") -> None:
        self.lock = threading.RLock()
        self.marks = MARKS if _can_say(console, "".join(astuple(MARKS))) else _ASCII
        self._console = console
        self._answers = answers
        self._line: tuple[object, bool, WordFlow] | None = None  # who writes it, whether it is a thought, and its words
        self._left = False

    def stream(self, speaker: object, text: str, *, thought: bool = False) -> None:
        """Writes what comes in pieces. A line belongs to one speaker: another one begins a new line."""
        console = self._console if thought else self._answers
        if self._line is None or self._line[:2] != (speaker, thought):
            self.end_line()
            self._line = speaker, thought, WordFlow(console.width if console.is_terminal else None)
        text = clean(text.replace("\r", ""))  # the two halves of an end of line may come apart
        self._write(console, self._line[2].feed(text), thought)

    def end_line(self) -> None:
        if self._line is None:
            return
        _, thought, flow = self._line
        self._line = None
        console = self._console if thought else self._answers
        rest = flow.rest()
        if flow.begun:
            self._write(console, rest + "\n", thought)

    def line(self, mark: str, text: str, style: str) -> bool:
        """Prints one line of a text behind a mark. Returns whether some of the text was left out; then the line
        says so."""
        from rich.text import Text

        self.end_line()
        console = self._console
        shown = cut(text, self._room(2) if console.is_terminal else LONGEST_LINE)
        self._print(console, Text(self._encodable(console, f"  {mark:2}{shown}"), style))
        return shown != text

    def view(self, mark: str, lines: Sequence[ViewLine]) -> None:
        """Prints lines to the character, the first one behind a mark."""
        self.end_line()
        if not self._left:
            marked = [replace(line, text=f"{'' if n else mark:2}{line.text}") for n, line in enumerate(lines)]
            print_view(self._console, marked, before="  ")

    def row(self, mark: str, text: str, style: str, *, mark_style: str | None = None, indent: int = 2) -> None:
        """Prints a text behind a mark. On a screen its further lines are indented."""
        from rich.text import Text

        self.end_line()
        console = self._console
        body = Text(self._encodable(console, text), style)
        room = self._room(indent)
        lines = list(body.wrap(console, room)) if console.is_terminal else list(body.split("\n"))
        for number, line in enumerate(lines or [body]):
            before = Text(" " * indent)
            before.append(f"{mark if number == 0 else '':2}", mark_style or style)
            line.rstrip()
            self._print(console, before.append_text(line) if line else Text())

    def end(self, mark: str, text: str, style: str, *, mark_style: str | None = None) -> None:
        """Prints how a turn ended. On a screen that is narrow, figures are kept together."""
        text = _folded(text, self._room(0)) if self._console.is_terminal else text
        self.row(mark, text, style, mark_style=mark_style, indent=0)

    def _room(self, indent: int) -> int:
        return max(self._console.width - indent - 2, 16)

    def blank(self) -> None:
        from rich.text import Text

        self._print(self._console, Text())

    def leave(self) -> None:
        """Writes nothing from now on, because the output is closed."""
        self._left, self._line = True, None

    def _write(self, console: "Console", text: str, thought: bool) -> None:
        from rich.segment import Segment, Segments

        if text and not self._left:
            style = console.get_style("dim italic") if thought else None
            console.print(Segments([Segment(self._encodable(console, text), style)]), soft_wrap=True)  # tabs stay

    def _print(self, console: "Console", text: "Text") -> None:
        if not self._left:
            console.print(text, soft_wrap=True, highlight=False)

    def _encodable(self, console: "Console", text: str) -> str:
        """The text with escapes for characters that the console's encoding does not have."""
        if _can_say(console, text):
            return text
        text = text.replace("·", "-").replace("…", "...")
        return text.encode(console.encoding, "backslashreplace").decode(console.encoding)


def _folded(text: str, room: int) -> str:
    """A text with dots between its parts, in lines that end where a dot would be."""
    from rich.cells import cell_len

    first, *others = text.split(" · ")
    lines = [first]
    for part in others:
        if cell_len(longer := f"{lines[-1]} · {part}") <= room:
            lines[-1] = longer
        else:
            lines.append(part)
    return "\n".join(lines)


def _can_say(console: "Console", text: str) -> bool:
    try:
        text.encode(console.encoding)
    except UnicodeEncodeError:
        return False
    return True
