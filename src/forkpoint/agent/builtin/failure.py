"""How a built-in tool says that it could not do what it was asked.
Tests: tests/agent/builtin/test_files.py, test_paths.py."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from forkpoint.system.process import CannotStart


class ToolFailed(Exception):
    """A call cannot be done; its text is for the model, and says what to do instead where that is known."""


@contextmanager
def told(what: str) -> Iterator[None]:
    """An error of the operating system in here becomes `ToolFailed`, with what was tried."""
    try:
        yield
    except (OSError, ValueError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise ToolFailed(f"{what} ({why}).") from error


@contextmanager
def starting() -> Iterator[None]:
    """A command in here that cannot be started becomes `ToolFailed`."""
    try:
        yield
    except CannotStart as refused:
        with told("The command cannot be started"):
            raise refused.error from None


def shown(name: str) -> str:
    """A file's name as one line of valid text: in quotes, with escapes, if it is anything but plain."""
    if name.isprintable():
        return name
    escaped = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    quoted = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in escaped)
    return f'"{quoted}"'
