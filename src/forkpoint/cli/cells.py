"""Cells of a table that a person and a program read differently: moments, numbers, long texts.

On a screen a cell says "5 min ago", "1,200" or the beginning of a title. In a pipe, where `awk` and `cut` read it, the
same cell is an ISO 8601 date, a plain number, the whole title. Tests: tests/cli/test_output.py.
"""

from rich.text import Text

from forkpoint.cli import figures
from forkpoint.conversation.screen_text import clean


class Cell(Text):
    """A text that has another form in a pipe."""

    def __init__(self, text: str, piped: str, style: str = "") -> None:
        super().__init__(text, style=style)
        self.piped = piped


def one_line(text: str, most: int | None = None) -> str:
    """A text on one line, cut after so many characters."""
    line = " ".join(clean(text).split())
    return line if most is None or len(line) <= most else line[: most - 1].rstrip() + "…"


def brief(text: str, most: int, style: str = "") -> Cell:
    """A text on one line: cut after so many characters on a screen, and whole in a pipe."""
    return Cell(one_line(text, most), text, style)


def number(value: int, style: str = "") -> Cell:
    """``1,200``, or ``1200`` in a pipe."""
    return Cell(f"{value:,}", str(value), style)


def ago(then: int) -> Cell:
    """How long ago a moment was, or the moment in a pipe."""
    return Cell(figures.ago(then), figures.iso(then))


def moment(then: int, *, age: bool = False) -> Cell:
    """A moment where the reader is, or in UTC in a pipe. With ``age``, a screen says also how long ago it was."""
    return Cell(figures.moment(then) + (f", {figures.ago(then)}" if age else ""), figures.iso(then))
