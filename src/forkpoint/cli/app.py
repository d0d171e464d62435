"""The program: its commands in groups, and what it does with an error: a line on stderr, and an exit status.
Tests: tests/cli/test_program.py."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from forkpoint.cli.lazy_command import LazyCommand
from forkpoint.cli.table import AGENTS_EXAMPLES, GROUPS, SECTIONS, Rows
from forkpoint.errors import ForkpointError
from forkpoint.version import __version__


class _ListByDefault(TyperGroup):
    """``forkpoint agents CONVERSATION`` is ``forkpoint agents list CONVERSATION``."""

    default = "list"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [self.default, *args]
        return super().parse_args(ctx, args)


class _ListIfAlone(TyperGroup):
    """``forkpoint skills`` is ``forkpoint skills list``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ([] if ctx.resilient_parsing else ["list"]))


def _commands(rows: Rows) -> dict[str, Any]:
    """The commands of the table, by name."""
    return {
        name: LazyCommand(name, place, help) if place else _group(name, help) for name, (place, help) in rows.items()
    }


def _group(name: str, help: str) -> TyperGroup:
    cls = {"agents": _ListByDefault, "skills": _ListIfAlone}.get(name, TyperGroup)
    return cls(
        name=name,
        help=help + (AGENTS_EXAMPLES if name == "agents" else ""),
        commands=_commands(GROUPS[name]),
        no_args_is_help=cls is not _ListIfAlone,
        rich_markup_mode=None,
    )


class _Program(TyperGroup):
    """All commands. Help shows them in their sections."""

    def __init__(self, **options: Any) -> None:
        everything = {name: row for rows in SECTIONS.values() for name, row in rows.items()}
        super().__init__(**options | {"commands": _commands(everything)})

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for section, rows in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(f"{name:10}", help) for name, (_, help) in rows.items()])


app = typer.Typer(
    name="forkpoint",
    cls=_Program,
    no_args_is_help=True,
    add_completion=False,  # `forkpoint completion` has it
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help loads no rich
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Exit status:
  0    it worked; a turn has committed
  1    it did not work; a turn has failed, or what was checked is not as it should be
  2    the command line makes no sense
  3    a turn waits for an approval
  130  Ctrl-C""",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program, and exits."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # a test may have replaced the stream
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        app(given, prog_name="forkpoint")
    except ForkpointError as error:
        from forkpoint.cli.output import print_error  # which loads what draws on a terminal: not for --help

        print_error(error, as_json="--json" in given, as_line="--stream-json" in given)
        sys.exit(1)
    finally:
        _flush()


def _flush() -> None:
    """Writes what is left of the output. It is no error if the reader has gone (``| head``)."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version(wanted: bool) -> None:
    if wanted:
        print(f"forkpoint {__version__}")
        raise typer.Exit


@app.callback()
def _forkpoint(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Conversations for AI agents: every turn is a transaction, every commit a fork point."""
