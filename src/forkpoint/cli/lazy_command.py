"""`LazyCommand`: a command whose module is imported when the command runs, or when its own help is shown.

The program starts fast that way: ``forkpoint --help`` and a shell that completes a command's name need no more than
what stands in `table`. Tests: tests/cli/test_program.py.
"""

from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand


class LazyCommand(TyperCommand):
    """A command of which the table says its name, its place below ``forkpoint.cli`` and the first line of its help."""

    def __init__(self, name: str, place: str, help: str) -> None:
        super().__init__(name, short_help=help, rich_markup_mode=None)
        self._place = place

    @cached_property
    def imported(self) -> Any:
        """The command itself."""
        module, _, function = self._place.partition(":")
        found = getattr(import_module(f"forkpoint.cli.{module}"), function)
        return found if isinstance(found, TyperCommand) else as_command(str(self.name), found)

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Whoever runs a command, completes its options or shows its help begins with its context."""
        return self.imported.make_context(*args, **options)


def as_command(name: str, function: Callable[..., None], cls: type[TyperCommand] = TyperCommand) -> Any:
    """The command that a function describes by its parameters and its docstring."""
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(name, cls=cls)(function)
    return typer.main.get_command(alone)
