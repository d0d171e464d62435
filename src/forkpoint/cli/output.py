"""How results and errors look: tables and lines for people, one JSON document for programs.

A table in a pipe is for `awk`: one row is one line, its cells are whole and stand between tabs. A screen is a terminal,
or what the variable ``COLUMNS`` says.

**Nothing that somebody else wrote reaches the screen as a command to it**: titles, messages and what tools said go
through `clean` or `one_line`, and to rich as plain text, never as markup.
Tests: tests/cli/test_output.py, tests/cli/test_program.py.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Annotated, Any, TypeAlias

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from forkpoint.backend.results import Turn
from forkpoint.cli.cells import Cell
from forkpoint.cli.cells import one_line as one_line
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
_BREAKS = re.compile(r"\s*[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]\s*")  # what would end a cell or a line
_WIDE = 10_000  # where no screen sets a width: one row is one line


def has_screen(out: IO[str]) -> bool:
    """Whether output is drawn for a screen: a terminal, or one as wide as ``COLUMNS`` says."""
    columns = os.environ.get("COLUMNS", "")
    return out.isatty() or (columns.isdigit() and int(columns) > 0)


def console(*, stderr: bool = False) -> Console:
    """Where output for people goes. Without a screen, lines are as long as they need to be."""
    wide = None if has_screen(sys.stderr if stderr else sys.stdout) else _WIDE
    return Console(stderr=stderr, width=wide, highlight=False, markup=False, emoji=False)


def display(*parts: Any) -> None:
    """Prints what rich can render to stdout, one below the other. Without a screen no line ends in blanks.

    Without a screen a table is lines of cells between tabs. A tuple of `ViewLine` is printed to the character,
    everywhere.
    """
    out = console()
    screen = has_screen(sys.stdout)
    for part in parts:
        if isinstance(part, tuple):
            print_view(out, part)
        elif out.is_terminal and screen:
            out.print(part)
        elif screen or not isinstance(part, str | Text | Table):
            with out.capture() as captured:
                out.print(part)
            print("\n".join(line.rstrip(" ") for line in captured.get().split("\n")), end="")
        else:
            for line in piped(part) if isinstance(part, Table) else [_piped(part)]:
                print(line)


def piped(table: Table) -> Iterator[str]:
    """A table as lines with tabs between the cells: its names first, if it has names, then its rows.

    No cell has a tab or a line break in it.
    """
    columns = table.columns
    names = [_cell(column.header) for column in columns]
    if any(names):
        yield "\t".join(names)
    for row in zip(*(column.cells for column in columns), strict=True):
        yield "\t".join(map(_cell, row))


def _cell(cell: Any) -> str:
    return _BREAKS.sub(" ", _piped(cell)).strip()


def _piped(text: Any) -> str:
    """A text as it stands in a pipe."""
    if isinstance(text, Cell):
        return clean(text.piped)
    return clean(text.plain if isinstance(text, Text) else str(text))


def grid(*, header: bool = False) -> Table:
    """A table without lines. Without ``header`` the names of its columns stand in a pipe alone."""
    return Table(box=None, show_header=header, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))


def facts(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """A table of the facts about one thing: their names on the left, dim, and their values on the right."""
    table = grid()
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value if isinstance(value, Text) else clean(value))
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
