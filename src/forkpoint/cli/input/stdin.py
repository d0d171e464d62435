"""The text on stdin, and the message that it makes with what was given on the command line.

``git diff | forkpoint run "review this"`` says both: the message first, then a blank line and the piped text as it is.
With a message, stdin is read only if it is a pipe or a file, for those come to an end. A terminal is for the user's
hands, /dev/null is empty, and a socket is what programs leave open for the programs that they start.
Tests: tests/cli/test_run.py.
"""

import os
import select
import stat
import sys

import typer

from forkpoint.cli.output import tell

PATIENCE = 3.0
"""Seconds until the user is told that the program waits for a pipe into which nobody writes."""

NOTHING = "there is nothing to say: give a message, pipe a text, or give - to read the message from stdin"


def message_from(given: str | None, *, needed: bool = True) -> str | None:
    """The message: from the command line, from stdin, or both. None if there is none.

    Raises `typer.BadParameter` instead if one is ``needed``.
    """
    if given == "-":
        said = read_stdin()
    elif given is None and needed:
        said = "" if _is_terminal() else read_stdin()
    else:
        said = joined(given or "", piped_text())
    if said and not said.isspace():
        return said
    if needed:
        raise typer.BadParameter(NOTHING)
    return None


def joined(message: str, piped: str) -> str:
    """A message with the text that belongs to it. A blank text counts as no text."""
    if not piped or piped.isspace():
        return message
    return f"{message}\n\n{piped}" if message else piped


def piped_text() -> str:
    """What a pipe or a file on stdin has; empty if stdin is neither."""
    return read_stdin() if is_piped() else ""


def is_piped() -> bool:
    """Whether stdin is a pipe or a file, which come to an end."""
    if sys.stdin is None or sys.stdin.closed:
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def read_stdin() -> str:
    """All of stdin, without the ends of lines at its end. Says what it waits for if that takes a while."""
    if sys.stdin is None or sys.stdin.closed:
        return ""
    if not _is_terminal() and not _has_come():
        tell("Waiting for the text on stdin. `< /dev/null` says that there is none.")
    return sys.stdin.buffer.read().decode(errors="surrogateescape").rstrip("\r\n")


def _has_come() -> bool:
    """Whether anything of stdin, or its end, came before the user has to be told."""
    try:
        return bool(select.select([sys.stdin.fileno()], [], [], PATIENCE)[0])
    except (OSError, ValueError):  # on Windows only sockets can be waited for
        return True


def _is_terminal() -> bool:
    return sys.stdin is None or sys.stdin.closed or sys.stdin.isatty()
