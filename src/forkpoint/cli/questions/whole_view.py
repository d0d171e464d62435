"""What a question is about, directly above the question. If not all of it stays on the screen, it says how much.
Tests: tests/cli/test_approval_question.py."""

import os
from collections.abc import Sequence

from rich.console import Console

from forkpoint.conversation.call_view import ViewLine, print_view
from forkpoint.conversation.screen_text import screen_rows


def print_above(out: Console, lines: Sequence[ViewLine], question: str, *, before: str = "") -> None:
    """Prints what somebody decides on; the caller asks the question next.

    What is measured is what was printed: nothing else may come between it and the question.
    """
    printed = print_view(out, lines, before=before)
    if not out.is_terminal:
        return
    width, height = _size(out)
    rows = sum(screen_rows(line, width) for line in printed)
    asked = sum(screen_rows(line, width) for line in f"{question}y".split("\n"))  # with the key that answers it
    gone = rows + asked - height
    while gone > 0:
        note = _note(gone, rows)
        if (with_note := rows + screen_rows(note, width) + asked - height) <= gone:
            print_view(out, [ViewLine(note, "yellow")])
            return
        gone = with_note  # the note takes rows too, and pushes as many off the screen


def _note(gone: int, rows: int) -> str:
    first = f"The first {gone:,} of these {rows:,} lines are" if gone < rows else f"All of these {rows:,} lines are"
    return f"{first} above the screen: scroll up before you decide."


def _size(out: Console) -> tuple[int, int]:
    """Columns and rows of the terminal itself: what COLUMNS says may be another screen's."""
    try:
        width, height = os.get_terminal_size(out.file.fileno())
    except (OSError, ValueError):
        width, height = 0, 0
    return width or out.width, height or out.height
