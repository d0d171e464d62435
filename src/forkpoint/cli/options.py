"""`option` and `argument`: how commands declare what they take, in the form in which help shows it.
Tests: tests/cli/test_program.py."""

from typing import Any

import typer


def option(form: str, help: str, **more: Any) -> Any:
    """An option: ``option("--limit N", "How many at most.")``; or a switch: ``option("--quiet -q", "Say less.")``."""
    names = [word for word in form.split() if word.startswith("-")]
    metavar = form.split()[-1]
    return typer.Option(*names, metavar=None if metavar in names else metavar, help=help, **more)


def argument(metavar: str, help: str, **more: Any) -> Any:
    """An argument: ``argument("MESSAGE", "What to tell it.")``."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, **more)
