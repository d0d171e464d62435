"""`PlainText`: a text that arrives in pieces, written as it comes. Tests: tests/conversation/test_visualizer.py."""

from typing import TYPE_CHECKING

from forkpoint.conversation.terminal.word_flow import WordFlow

if TYPE_CHECKING:
    from rich.console import Console


class PlainText:
    """Writes words as they come, in lines as long as the screen is wide. What is written stays."""

    def __init__(self, console: "Console", style: str) -> None:
        self._console = console
        self._style = style
        self._flow = WordFlow(console.width if console.is_terminal else None)

    def feed(self, text: str) -> None:
        """Takes a piece."""
        self._write(self._flow.feed(text))

    def end(self) -> None:
        """Ends the line."""
        rest = self._flow.rest()
        if self._flow.begun:
            self._write(rest + "\n")

    def _write(self, text: str) -> None:
        from rich.segment import Segment, Segments

        if text:
            style = self._console.get_style(self._style) if self._style else None
            shown = encodable(self._console, text)
            self._console.print(Segments([Segment(shown, style)]), soft_wrap=True)  # tabs stay


def encodable(console: "Console", text: str) -> str:
    """The text with escapes for characters that the console's encoding does not have."""
    if can_say(console, text):
        return text
    text = text.replace("\u00b7", "-").replace("\u2026", "...")
    return text.encode(console.encoding, "backslashreplace").decode(console.encoding)


def can_say(console: "Console", text: str) -> bool:
    """Whether the console's encoding has all characters of a text."""
    try:
        text.encode(console.encoding)
    except UnicodeEncodeError:
        return False
    return True
