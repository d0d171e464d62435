"""`TurnScreen`: where turns are shown: one or two consoles, and the line on them that is still being written.
Tests: tests/conversation/test_visualizer.py."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import astuple, replace

from forkpoint.conversation.call_view import ViewLine, print_view
from forkpoint.conversation.screen_text import clean, cut
from forkpoint.conversation.terminal.live_region import LiveRegion, can_be_live
from forkpoint.conversation.terminal.live_text import LiveText, MarkdownFormat, ThoughtFormat
from forkpoint.conversation.terminal.markdown import wrapped
from forkpoint.conversation.terminal.plain_text import PlainText, can_say, encodable

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


class _Writing(Protocol):
    """A text that comes in pieces, on its way to a console."""

    def feed(self, text: str) -> None: ...

    def end(self) -> None: ...


class TurnScreen:
    """One or two consoles, and the line on them that is still being written. Shared by a conversation and its forks.

    With ``markdown``, if answers go to a terminal that can do it, what is still being written is shown live.
    """

    def __init__(self, console: "Console", answers: "Console", *, markdown: bool = False) -> None:
        self.lock = threading.RLock()
        self.marks = MARKS if can_say(console, "".join(astuple(MARKS))) else _ASCII
        self._console = console
        self._answers = answers
        self._region = LiveRegion(answers) if markdown and can_be_live(answers) else None
        self._line: tuple[object, bool, _Writing] | None = None  # who writes it, whether it is a thought, and how
        self._left = False

    @property
    def is_live(self) -> bool:
        """Whether what is still being written is shown live, and other lines can be printed above it."""
        return self._region is not None

    def stream(self, speaker: object, text: str, *, thought: bool = False) -> None:
        """Writes what comes in pieces. A line belongs to one speaker: another one begins a new line."""
        if self._line is None or self._line[:2] != (speaker, thought):
            self.end_line()
            self._line = speaker, thought, self._writing(thought)
        if not self._left:
            self._line[2].feed(clean(text.replace("\r", "")))  # the two halves of an end of line may come apart

    def end_line(self) -> None:
        if self._line is None:
            return
        _, _, writing = self._line
        self._line = None
        if not self._left:
            writing.end()

    def _writing(self, thought: bool) -> "_Writing":
        """What writes the pieces of a text."""
        console = self._console if thought else self._answers
        if self._region is not None and console is self._answers:
            return LiveText(self._region, console, ThoughtFormat() if thought else MarkdownFormat(), self.lock)
        return PlainText(console, "dim italic" if thought else "")

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Lets other code print: above what is still being written if that is shown live, else after it."""
        with self.lock:
            if self._region is None or self._left:
                self.end_line()
                yield
                return
            self._region.hide()
            try:
                yield
            finally:
                self._region.show_again()

    def set_footer(self, text: str) -> None:
        """Shows a text below everything else, if this screen is live. The empty text ends that."""
        from rich.text import Text

        with self.lock:
            if self._region is not None and not self._left:
                room = self._region.room
                self._region.set_footer(wrapped(Text(text), room) if text else ())

    def show_live(self, lines: Sequence[str], style: str) -> None:
        """Shows lines below all others until something else is printed there, if this screen is live."""
        from rich.text import Text

        if self._region is not None and self._line is None and not self._left:
            room = self._region.room
            self._region.show([Text(cut(line, room), style) for line in lines])

    def line(self, mark: str, text: str, style: str, *, mark_style: str | None = None) -> bool:
        """Prints one line of a text behind a mark. Returns whether some of the text was left out; then the line
        says so."""
        from rich.text import Text

        self.end_line()
        console = self._console
        shown = cut(text, self._room(2) if console.is_terminal else LONGEST_LINE)
        marked = Text.assemble((f"  {encodable(console, mark):2}", mark_style or style))
        self._print(console, marked.append(encodable(console, shown), style))
        return shown != text

    def below(self, lines: Sequence[ViewLine]) -> bool:
        """Prints lines below a marked one. Returns whether some of them were cut at the edge of the screen."""
        from rich.text import Text

        self.end_line()
        console, is_cut = self._console, False
        for line in lines:
            text = line.text.expandtabs(4)
            shown = cut(text, self._room(2) if console.is_terminal else LONGEST_LINE)
            is_cut = is_cut or shown != text
            self._print(console, Text(encodable(console, f"    {shown}".rstrip()), line.style))
        return is_cut

    def view(self, mark: str, lines: Sequence[ViewLine]) -> None:
        """Prints lines to the character, the first one behind a mark."""
        self.end_line()
        if not self._left:
            with self.apart():
                marked = [replace(line, text=f"{'' if n else mark:2}{line.text}") for n, line in enumerate(lines)]
                print_view(self._console, marked, before="  ")

    def row(self, mark: str, text: str, style: str, *, mark_style: str | None = None, indent: int = 2) -> None:
        """Prints a text behind a mark. On a screen its further lines are indented."""
        from rich.text import Text

        self.end_line()
        console = self._console
        body = Text(encodable(console, text), style)
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

    def _print(self, console: "Console", text: "Text") -> None:
        if not self._left:
            with self.apart():
                console.print(text, soft_wrap=True, highlight=False)


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
