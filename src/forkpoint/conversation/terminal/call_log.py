"""`CallLog`: the tool calls of a turn on a screen: what each one is, how far it is, and what came of it.

A call is one line, and an edit has its diff below it. An output has its first lines, with its line breaks. It stands
there once: what a tool says while it runs is shown live, or held back until it is known whether the result repeats it.
Tests: tests/conversation/test_call_log.py.
"""

from collections.abc import Sequence

from forkpoint.backend.results import words
from forkpoint.conversation.call_view import ViewLine, call_line, edit_view
from forkpoint.conversation.screen_text import clean, in_a_row
from forkpoint.conversation.terminal.figures import seconds
from forkpoint.conversation.terminal.turn_screen import TurnScreen
from forkpoint.events import ToolCall, ToolResult
from forkpoint.updates import CallProgress

MOST_LINES = 6
"""Lines of an output that are shown."""

MOST_OF_AN_EDIT = 24
"""Lines of an edit that are shown."""

_MOST_LIVE = 4  # lines of what a tool says while it runs


class CallLog:
    """Shows the calls of one turn. ``is_cut`` says whether something was left out."""

    def __init__(self, screen: TurnScreen) -> None:
        self._screen = screen
        self._said: dict[str, str] = {}  # what calls have said while they run, by their ids
        self.is_cut = False

    def started(self, call: ToolCall, *, is_known: bool = False) -> None:
        """Shows that a call runs, and what an edit changes unless that is known."""
        view = edit_view(call)
        self.row(self._screen.marks.call, call_line(call) if view is None else view.heading, "cyan")
        if view is not None and not is_known:
            self._lines(view.lines, MOST_OF_AN_EDIT)

    def progress(self, update: CallProgress) -> None:
        """Shows what a call says while it runs."""
        said = self._said[update.call_id] = self._said.get(update.call_id, "") + clean(update.text)
        if self._screen.is_live:
            newest = said.rstrip("\n").split("\n")[-_MOST_LIVE:]
            self._screen.show_live([f"    {line}" for line in newest], "dim")
        elif "\n" not in update.text:  # else it is output, which the result most likely has
            self.row(self._screen.marks.note, f"{in_a_row(update.tool)}: {in_a_row(update.text)}", "dim")

    def ended(self, result: ToolResult) -> None:
        """Shows what came of a call."""
        screen, text = self._screen, clean(words(result.parts)).strip("\n")
        screen.show_live((), "")
        said = self._said.pop(result.call_id, "").strip("\n")
        if not screen.is_live and "\n" in said and said not in text:
            self._lines([ViewLine(line, "dim") for line in said.split("\n")], MOST_LINES)
        took = "" if result.duration is None else f" ({seconds(result.duration)})"
        heading = in_a_row(result.tool)
        mark, style = screen.marks.result, "dim"
        if result.error:
            heading, mark, style = f"{heading} {result.status.replace('_', ' ')}", screen.marks.bad, ""
        lines = text.split("\n")
        if len(lines) == 1:
            said = f"{heading}{took}: {in_a_row(text) or 'nothing'}"
            if result.error:
                screen.row(mark, said, style, mark_style="red")
            else:
                self.row(mark, said, style)
            return
        self.row(mark, f"{heading}{took}: {len(lines):,} lines", style, mark_style="red" if result.error else None)
        self._lines([ViewLine(line, style) for line in lines], MOST_LINES)

    def row(self, mark: str, text: str, style: str, *, mark_style: str | None = None) -> None:
        """Prints one line of a text."""
        self.is_cut = self._screen.line(mark, text, style, mark_style=mark_style) or self.is_cut

    def _lines(self, lines: Sequence[ViewLine], most: int) -> None:
        """Prints lines below a heading, and says how many are left out."""
        shown = lines if len(lines) <= most + 1 else lines[:most]  # to say that one is left out takes a line too
        self.is_cut = self._screen.below(shown) or self.is_cut
        if len(shown) < len(lines):
            self.is_cut = True
            self._screen.below([ViewLine(f"{self._screen.marks.dots} {len(lines) - len(shown):,} more lines", "dim")])
