"""All commands, and what the program does with an error: a line on stderr, and exit status 1.

Status 2 is for a command line that makes no sense, 130 for Ctrl-C.
"""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from forkpoint import __version__
from forkpoint.cli import local
from forkpoint.cli.output import print_error
from forkpoint.errors import ForkpointError

app = typer.Typer(
    name="forkpoint",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(local.app, name="local")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program, and exits."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(given, prog_name="forkpoint")
    except ForkpointError as error:
        print_error(error, as_json="--json" in given)
        sys.exit(1)


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
