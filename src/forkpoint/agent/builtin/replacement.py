"""A text in a file, replaced exactly; and if it is not there, the place that is most like it.
Tests: tests/agent/builtin/test_files.py."""

import difflib
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from forkpoint.agent.builtin.failure import ToolFailed, shown

_BOM = b"\xef\xbb\xbf"
_NAMED = 20  # places that are named
_LINES = 50_000  # that are looked at for the nearest place
_SECONDS = 0.5
_WIDTH = 200
_SHOWN = 20  # lines of the nearest place


@dataclass(frozen=True, slots=True)
class Edited:
    """A file's new content, and where it was changed."""

    content: bytes
    lines: tuple[int, ...]


def edited(path: str, content: bytes, old: str, new: str, replace_all: bool, limit: int) -> Edited:
    """The content with ``old`` replaced. Raises `ToolFailed` if it is not there, or not once, or becomes too large.

    If all lines of the file end with CRLF, so do those of both texts: a model does not see the difference. A byte order
    mark stays where it is.
    """
    mark = _BOM if content.startswith(_BOM) else b""
    text = _decoded(path, content.removeprefix(mark))
    if mark:
        old, new = old.removeprefix("\ufeff"), new.removeprefix("\ufeff")
    if "\r\n" in text and text.count("\r\n") == text.count("\n"):
        old, new = _with_crlf(old), _with_crlf(new)
    if not old:
        raise ToolFailed("The text to replace is empty. To make a new file, use write_file.")
    if old == new:
        raise ToolFailed("The old text and the new one are the same.")
    lines = _places(text, old)
    if not lines:
        raise ToolFailed(_not_there(path, text, old))
    if len(lines) > 1 and not replace_all:
        where = ", ".join(map(str, lines[:_NAMED])) + (", ..." if len(lines) > _NAMED else "")
        raise ToolFailed(
            f"The text is in {shown(path)} {len(lines)} times, at lines {where}. Nothing was changed. Give more of "
            "what is around the place that you mean, or say replace_all."
        )
    characters = len(text) + len(lines) * (len(new) - len(old))
    if characters > limit or len(done := mark + text.replace(old, new).encode()) > limit:  # it is not even made
        raise ToolFailed(f"{shown(path)} would have more than {limit:,} bytes. Nothing was changed.")
    return Edited(done, tuple(lines))


def lines_in(text: str) -> list[str]:
    """The lines of a text, counted as `read_file` does: by newlines alone."""
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def numbered(lines: Sequence[str], first: int) -> str:
    """Lines with their numbers, each cut if it is long."""
    return "\n".join(f"{number:>6}\t{line[:_WIDTH]}" for number, line in enumerate(lines, first))


def _decoded(path: str, content: bytes) -> str:
    if b"\0" in content:
        raise ToolFailed(f"{shown(path)} is a binary file (or UTF-16), and cannot be edited as text.")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ToolFailed(
            f"{shown(path)} is not UTF-8 (line {line}), so an edit could spoil it. Use the shell, with a program that "
            "knows its encoding."
        ) from None


def _with_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _places(text: str, old: str) -> list[int]:
    """The lines that a text begins at."""
    lines: list[int] = []
    line, counted, at = 1, 0, text.find(old)
    while at >= 0:
        line, counted = line + text.count("\n", counted, at), at
        lines.append(line)
        at = text.find(old, at + len(old))
    return lines


def _not_there(path: str, text: str, old: str) -> str:
    said = f"The text is not in {shown(path)}; nothing was changed."
    if old.strip() and text.endswith(old.rstrip("\r\n")) and not text.endswith("\n"):
        return f"{said} It is at the end of the file, which does not end with a newline."
    wanted, lines = lines_in(old), lines_in(text)
    start = _nearest(lines, wanted)
    if start is None:
        return f"{said} Nor is anything like it. Read the file."
    window = lines[start : start + len(wanted)]
    if list(map(_plain, window)) == list(map(_plain, wanted)):
        said += " Only white space or line ends differ."
    return f"{said} The nearest place is at line {start + 1}:\n{numbered(window[:_SHOWN], start + 1)}"


def _nearest(lines: list[str], wanted: list[str]) -> int | None:
    """The line at which what is there is most like what is wanted."""
    where: dict[str, list[int]] = defaultdict(list)
    for index, line in enumerate(wanted[:_LINES]):
        if _plain(line):
            where[_plain(line)].append(index)
    votes: Counter[int] = Counter()
    for index, line in enumerate(lines[:_LINES]):
        for at in where.get(_plain(line), ())[:8]:
            votes[index - at] += 1
    if votes:
        most = max(votes.values())
        return max(0, min(start for start, count in votes.items() if count == most))
    return _nearest_line(lines, wanted)


def _nearest_line(lines: list[str], wanted: list[str]) -> int | None:
    """The same by the longest line alone, which need not be the same."""
    longest = max(range(len(wanted)), key=lambda index: len(_plain(wanted[index])), default=None)
    if longest is None or not _plain(wanted[longest]):
        return None
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(_plain(wanted[longest]))
    best, found, until = 0.6, None, time.monotonic() + _SECONDS
    for index, line in enumerate(lines[:_LINES]):
        matcher.set_seq1(_plain(line))
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and matcher.ratio() > best:
            best, found = matcher.ratio(), index
        if time.monotonic() > until:
            break
    return None if found is None else max(0, found - longest)


def _plain(line: str) -> str:
    """A line without what one hardly sees."""
    return " ".join(line[: 4 * _WIDTH].split())[:_WIDTH]
