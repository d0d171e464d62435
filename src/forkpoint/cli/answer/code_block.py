"""The first code block of an answer, for ``run --extract``. Tests: tests/cli/test_code_block.py."""

import re

_OPENS = re.compile(r" {0,3}(?P<fence>`{3,}(?=[^`]*$)|~{3,})")


def first_block(text: str) -> str | None:
    """What stands in the first fenced block of a text, without its fences; None if the text has no such block.

    A block begins and ends as Markdown says: with three or more backticks or tildes, and with at least as many of the
    same. A block that is never closed goes on to the end of the text.
    """
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if opens := _OPENS.match(line):
            indent, fence = len(line) - len(line.lstrip(" ")), opens["fence"]
            closes = re.compile(rf" {{0,3}}{re.escape(fence[0])}{{{len(fence)},}}\s*$")
            inside = lines[number + 1 :]
            end = next((at for at, each in enumerate(inside) if closes.match(each)), len(inside))
            return "\n".join(_without_indent(each, indent) for each in inside[:end])
    return None


def _without_indent(line: str, most: int) -> str:
    """A line without as many blanks at its beginning as the fence has."""
    return line[min(most, len(line) - len(line.lstrip(" "))) :]
