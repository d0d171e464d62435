"""How results and errors look: tables and lines for people, one JSON document for programs.

**Nothing that somebody else wrote reaches the screen as a command to it**: titles, messages and what tools said go
through `clean` or `one_line`, and to rich as plain text, never as markup. Tests: tests/cli/test_program.py.
"""

import os
import sys
from collections.abc import Iterable
from typing import Annotated, Any, TypeAlias

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from forkpoint.backend.results import Turn
from forkpoint.cli.options import option
from forkpoint.conversation.call_view import print_view
from forkpoint.conversation.screen_text import clean as clean
from forkpoint.conversation.visualizer import figures
from forkpoint.errors import ForkpointError, TurnFailed

Json: TypeAlias = Annotated[bool, option("--json", "Print one JSON document, for programs.")]

WAITING = 3
"""The exit status of a command whose turn waits for an approval."""

_STANDINGS = {"idle": "dim", "closed": "dim", "running": "green", "awaiting_approval": "yellow"}
_STANDINGS |= dict.fromkeys(("interrupted", "failed", "cancelled"), "red")
_WIDE = 10_000  # where no screen sets a width: one row is one line


def one_line(text: str, most: int | None = None) -> str:
    """A text on one line, cut after so many characters."""
    line = " ".join(clean(text).split())
    return line if most is None or len(line) <= most else line[: most - 1].rstrip() + "…"


def console(*, stderr: bool = False) -> Console:
    """Where output for people goes. Without a screen, lines are as long as they need to be."""
    out = sys.stderr if stderr else sys.stdout
    wide = None if out.isatty() or os.environ.get("COLUMNS") else _WIDE
    return Console(stderr=stderr, width=wide, highlight=False, markup=False, emoji=False)


def display(*parts: Any) -> None:
    """Prints what rich can render to stdout, one below the other. Without a screen no line ends in blanks.

    A tuple of `ViewLine` is printed to the character, everywhere.
    """
    out = console()
    for part in parts:
        if isinstance(part, tuple):
            print_view(out, part)
        elif out.is_terminal:
            out.print(part)
        else:
            with out.capture() as captured:
                out.print(part)
            print("\n".join(line.rstrip(" ") for line in captured.get().split("\n")), end="")


def grid(*, header: bool = False) -> Table:
    """A table without lines."""
    return Table(box=None, show_header=header, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """A table of the facts about one thing: their names on the left, dim, and their values on the right."""
    table = grid()
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, clean(value))
    return table


def menu(rows: Iterable[tuple[str, str]]) -> Table:
    """A table of what can be done: what to type on the left, and what it does on the right, dim."""
    table = grid()
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*row)
    return table


def print_json(document: Any) -> None:
    """The result, for programs."""
    print(msgspec.json.format(msgspec.json.encode(document)).decode())


def print_error(error: ForkpointError, *, as_json: bool, as_line: bool = False) -> None:
    """What went wrong, on stderr, on one line; or, ``as_line``, as the last line of a stream of JSON on stdout."""
    told: dict[str, Any]
    if as_line:
        told = {"code": error.code, "message": error.message("Command line")}
        print(msgspec.json.encode({"type": "error", "error": told}).decode())
    elif as_json:
        told = {"code": error.code, "message": error.message("Command line")}
        if isinstance(error, TurnFailed):
            told["turn"] = error.id
            told["cause"] = error.turn.error.code if error.turn is not None and error.turn.error is not None else None
        print(msgspec.json.encode({"error": told}).decode(), file=sys.stderr)
    else:
        print(f"error: {one_line(error.message('Command line'))}", file=sys.stderr)


def aside(line: str) -> None:
    """Says a line on stderr, dim: what is worth knowing, but is not the result."""
    console(stderr=True).print(line, style="dim", soft_wrap=True)


def standing(status: str) -> Text:
    """How a conversation or a sub-agent stands."""
    return Text(status.replace("_", " "), style=_STANDINGS[status])


def tell(line: str) -> None:
    """What is being done, on stderr, so that stdout holds the result alone."""
    print(line, file=sys.stderr, flush=True)


def summary(turn: Turn) -> str:
    """A turn on one line: outcome, tokens, price, time, id."""
    took = None if turn.ended is None else (turn.ended - turn.started) / 1e6
    return f"{turn.outcome.replace('_', ' ')} · {figures(turn, took)} · turn {turn.id}"
