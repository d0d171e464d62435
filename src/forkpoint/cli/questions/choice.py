"""A list from which somebody picks one row: with the arrow keys, or by its number.
Tests: tests/cli/test_chat_input.py."""

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forkpoint.cli.output import one_line
from forkpoint.cli.questions.keyboard import by_key, forget_typed, read_keys, read_line
from forkpoint.conversation.terminal.live_region import LiveRegion, can_be_live

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_UP, _DOWN = {"\x1b[A", "\x1bOA", "k", "\x10"}, {"\x1b[B", "\x1bOB", "j", "\x0e", "\t"}
_KEY = re.compile(r"\x1b[\[O][0-9;]*[@-~]|.", re.DOTALL)
_NOTHING = {"", "\x1b", "q", "\x04"}
_KEYS = "arrows and Enter, or a number; Esc: none"


def choose(console: "Console", title: str, rows: Sequence[str]) -> int | None:
    """Which of the rows somebody picks, from 0 on; None if they pick none. The first row is at hand."""
    if not rows:
        return None
    forget_typed()
    if can_be_live(console):
        with by_key(sys.stdin.fileno()) as is_possible:
            if is_possible:
                return _picked(console, title, rows)
    return _numbered(console, title, rows)


def _picked(console: "Console", title: str, rows: Sequence[str]) -> int | None:
    """Lets somebody move through the rows."""
    region, at = LiveRegion(console), 0
    try:
        while True:
            region.show(_drawn(region, title, rows, at))
            for key in _KEY.findall(read_keys(sys.stdin.fileno())) or [""]:  # several may come at once
                if key in {"\r", "\n"}:
                    return at
                if key in _NOTHING:
                    return None
                if key in _UP | _DOWN:
                    at = (at + (1 if key in _DOWN else -1)) % len(rows)
                elif key.isdecimal() and 1 <= int(key) <= min(len(rows), 9):
                    return int(key) - 1
    except KeyboardInterrupt:
        return None
    finally:
        region.show([])


def _drawn(region: LiveRegion, title: str, rows: Sequence[str], at: int) -> "list[Text]":
    """The title, and as many rows around the one at hand as the screen has room for."""
    from rich.text import Text

    room = max(region.height - 3, 1)
    first = min(max(at - room // 2, 0), max(len(rows) - room, 0))
    drawn = [Text(one_line(title), "bold").append(f"  {_KEYS}", "not bold dim")]
    for number, row in list(enumerate(rows))[first : first + room]:
        mark = "\u276f" if number == at else " "
        drawn.append(Text(f"{mark} {number + 1:>2}  {one_line(row)}", "cyan" if number == at else ""))
    for line in drawn:
        line.truncate(region.room, overflow="ellipsis")
    return drawn


def _numbered(console: "Console", title: str, rows: Sequence[str]) -> int | None:
    """Asks for the number of a row, where rows cannot be moved through."""
    console.print(one_line(title))
    for number, row in enumerate(rows, 1):
        console.print(f" {number:>2}  {one_line(row)}", no_wrap=True, overflow="ellipsis", crop=True)
    while (said := read_line(f"Number, 1 to {len(rows)} (Enter: none) ")) is not None and said.strip():
        if said.strip().isdecimal() and 1 <= int(said) <= len(rows):
            return int(said) - 1
    return None
