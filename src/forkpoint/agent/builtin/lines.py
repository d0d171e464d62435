"""Lines of a file, whatever the file is like: huge, growing, without a newline, or no text at all.
Tests: tests/agent/builtin/test_files.py."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from forkpoint.agent.builtin.regex_process import BINARY
from forkpoint.system.media import PDF, media_type

LINE = 2_000
"""Characters of a line that are shown."""
SHOWN = 60_000
"""Characters that are shown at once."""
SCANNED = 64 * 1024 * 1024
"""Bytes that are looked at."""

_PIECE = 1 << 16


@dataclass(slots=True)
class Lines:
    """Some lines of a file."""

    shown: list[tuple[int, str]] = field(default_factory=list)  # by their number, from 1 on
    total: int | None = 0  # lines in the file; None if there are too many to count
    is_cut: bool = False  # whether some of those asked for are left out
    crlf: bool = False
    utf8: bool = True


def picture(start: bytes) -> str | None:
    """The type of a picture that begins so; None if a model could not see it."""
    kind = media_type(start)
    return None if kind == PDF else kind


def is_binary(start: bytes) -> bool:
    """Whether a file that begins so is no text."""
    return b"\0" in start[:BINARY]


def lines_of(file: BinaryIO, offset: int, limit: int) -> Lines:
    """Lines of a file from ``offset`` on. What is written to the file meanwhile does not count."""
    found = Lines()
    size = 0
    left = min(max(os.fstat(file.fileno()).st_size, _PIECE), SCANNED)
    before, left = _skip(file, offset - 1, left)
    if before < offset - 1:
        found.total = _total(file, before, left)
        return found
    number = before
    for line, length in _lines(file, left):
        number, left = number + 1, left - length
        text = _text(line, length, found)
        size += len(text) + 8
        if len(found.shown) == limit or size > SHOWN:
            found.is_cut = True
            break
        found.shown.append((number, text.removeprefix("\ufeff") if number == 1 else text))
    if found.is_cut:
        further, left = _skip(file, SCANNED, left)
        number += further
    found.total = _total(file, number, left)
    return found


def _skip(file: BinaryIO, count: int, left: int) -> tuple[int, int]:
    """Goes beyond so many lines; says how many there were, and how many bytes are left to look at."""
    skipped, last = 0, b"\n"
    while skipped < count and left > 0 and (chunk := file.read(min(1 << 20, left))):
        ends = chunk.count(b"\n")
        if skipped + ends >= count:
            at = -1
            for _ in range(count - skipped):
                at = chunk.find(b"\n", at + 1)
            file.seek(at + 1 - len(chunk), os.SEEK_CUR)
            return count, left - at - 1
        skipped, left, last = skipped + ends, left - len(chunk), chunk[-1:]
    return skipped + (last != b"\n"), left


def _lines(file: BinaryIO, left: int) -> Iterator[tuple[bytes, int]]:
    """The beginning of each line, and how long it is."""
    while left > 0 and (line := file.readline(min(_PIECE, left))):
        length, last = len(line), line
        while not last.endswith(b"\n") and length < left and (last := file.readline(min(_PIECE, left - length))):
            length += len(last)
        left -= length
        yield line, length


def _text(line: bytes, length: int, found: Lines) -> str:
    is_whole = length == len(line) <= 4 * LINE
    found.crlf = found.crlf or line.endswith(b"\r\n")
    start = line.rstrip(b"\r\n") if is_whole else line[: 4 * LINE]
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        if is_whole or error.start < len(start) - 3:  # else it was cut there
            found.utf8 = False
        text = start.decode(errors="replace")
    if is_whole and len(text) <= LINE:
        return text
    return f"{text[:LINE]} [... {length - len(text[:LINE].encode()):,} more bytes]"


def _total(file: BinaryIO, number: int, left: int) -> int | None:
    """How many lines there are, if all was looked at."""
    return number if left > 0 or os.fstat(file.fileno()).st_size <= SCANNED else None
