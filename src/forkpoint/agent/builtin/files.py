"""`read_file`, `write_file` and `edit_file`."""

import base64
import os
import stat
from typing import Annotated

import msgspec

from forkpoint.agent.builtin.failure import ToolFailed, shown, told
from forkpoint.agent.builtin.lines import Lines, is_binary, lines_of, picture
from forkpoint.agent.builtin.new_file import alone, put, writable
from forkpoint.agent.builtin.paths import FilePlace, workspace_of
from forkpoint.agent.builtin.replacement import edited, lines_in, numbered
from forkpoint.agent.context import ToolContext
from forkpoint.agent.tool import tool
from forkpoint.events import Image, Part, Text

PICTURE_LIMIT = 3_500_000
"""Bytes of a picture that is shown: providers take little more."""
FILE_LIMIT = 10 * 1024 * 1024
"""Bytes of a file that is written or edited."""

_ENTRIES = 500  # of a folder
_AROUND = 2  # lines around an edit that are shown
_SNIPPET = 12


@tool(repeatable=True, timeout=60)
def read_file(
    ctx: ToolContext,
    path: str,
    offset: Annotated[int, msgspec.Meta(ge=1)] = 1,
    limit: Annotated[int, msgspec.Meta(ge=1)] = 2000,
) -> list[Part]:
    """Reads a text file, with line numbers; or a picture; or says what is in a folder.

    The line numbers and the tab after them are not part of the file. Long lines are cut.

    Args:
        path: the file, from the workspace's folder
        offset: the first line
        limit: how many lines
    """
    with workspace_of(ctx) as workspace, workspace.place(path) as place:
        found = place.stat()
        if found is not None and stat.S_ISDIR(found.st_mode):
            return [Text(_folder(place))]
        with open(place.open(), "rb") as file, told(f"{shown(place.path)} cannot be read"):
            start = file.peek(4096)
            size = os.fstat(file.fileno()).st_size
            if (kind := picture(start)) is not None:
                return _picture(place.path, kind, file.read(PICTURE_LIMIT + 1), size)
            if is_binary(start):
                raise ToolFailed(
                    f"{shown(place.path)} is a binary file ({size:,} bytes). Use the shell to look into it."
                )
            return [Text(_told(lines_of(file, offset, limit), offset))]


@tool(risky=True, timeout=60)
def write_file(ctx: ToolContext, path: str, content: str) -> str:
    """Writes a file: a new one, or all of one that is there. Folders are made as needed.

    To change a part of a file, use edit_file.

    Args:
        path: the file, from the workspace's folder
        content: all that is to be in it
    """
    encoded = content.encode()
    if len(encoded) > FILE_LIMIT:
        raise ToolFailed(f"The content has {len(encoded):,} bytes, and the limit is {FILE_LIMIT:,}.")
    with workspace_of(ctx) as workspace, workspace.place(path, write=True, make=True) as place, alone(place):
        before = writable(place)
        put(place, encoded, before)
        did = "Made" if before is None else "Replaced"
        lines = len(lines_in(content))
        return f"{did} {shown(place.path)}: {lines:,} line{'' if lines == 1 else 's'}, {len(encoded):,} bytes."


@tool(risky=True, timeout=60)
def edit_file(ctx: ToolContext, path: str, old: str, new: str, replace_all: bool = False) -> str:
    """Replaces a text in a file, exactly as it stands there, white space included.

    The old text must be in the file once; give as much of what is around it as that takes.

    Args:
        path: the file, from the workspace's folder
        old: the text to replace, without the line numbers of read_file
        new: what to put there
        replace_all: replace it wherever it is
    """
    with workspace_of(ctx) as workspace, workspace.place(path, write=True) as place, alone(place):
        with open(place.open(), "rb") as file, told(f"{shown(place.path)} cannot be read"):
            before = os.fstat(file.fileno())
            content = file.read(FILE_LIMIT + 1)
        if len(content) > FILE_LIMIT:
            raise ToolFailed(f"{shown(place.path)} has more than {FILE_LIMIT:,} bytes. Use the shell to change it.")
        writable(place)
        done = edited(place.path, content, old, new, replace_all, FILE_LIMIT)
        put(place, done.content, before)
        return _edit_told(place.path, done.content, done.lines, new)


def _picture(path: str, kind: str, content: bytes, size: int) -> list[Part]:
    if len(content) > PICTURE_LIMIT:
        raise ToolFailed(
            f"{shown(path)} is a picture of {size:,} bytes; the limit is {PICTURE_LIMIT:,}. Make it smaller."
        )
    return [Text(f"{shown(path)} ({kind}, {len(content):,} bytes):"), Image(kind, base64.b64encode(content).decode())]


def _folder(place: FilePlace) -> str:
    with place.open_folder() as folder, told(f"{shown(place.path)} cannot be read"), os.scandir(folder) as found:
        entries: list[str] = []
        for entry in found:
            if len(entries) > _ENTRIES:
                break
            entries.append(shown(entry.name) + _sign(entry))
    more = [f"[more than {_ENTRIES} entries; use list_files with a pattern]"] if len(entries) > _ENTRIES else []
    return "\n".join([f"{shown(place.path)} is a folder:", *sorted(entries)[:_ENTRIES], *more])


def _sign(entry: "os.DirEntry[str]") -> str:
    if entry.is_symlink():
        return " (link)"
    return "/" if entry.is_dir(follow_symlinks=False) else ""


def _told(lines: Lines, offset: int) -> str:
    if not lines.shown:
        if offset == 1 and lines.total == 0:
            return "[the file is empty]"
        raise ToolFailed(
            f"The file has {lines.total:,} lines, so there is no line {offset:,}."
            if lines.total is not None
            else f"Line {offset:,} is too far into this file to be looked for. Use the shell."
        )
    first, last = lines.shown[0][0], lines.shown[-1][0]
    notes = []
    if lines.is_cut or first > 1 or lines.total is None:
        total = f" of {lines.total:,}" if lines.total is not None else ""
        notes.append(
            f"lines {first:,} to {last:,}{total}" + (f"; go on with offset={last + 1}" if lines.is_cut else "")
        )
    if lines.crlf:
        notes.append("lines end with CRLF; edit_file keeps that")
    if not lines.utf8:
        notes.append("not UTF-8: \N{REPLACEMENT CHARACTER} stands for what cannot be read")
    text = "\n".join(f"{number:>6}\t{line}" for number, line in lines.shown)
    return "\n".join([text, *(f"[{note}]" for note in notes)])


def _edit_told(path: str, content: bytes, lines: tuple[int, ...], new: str) -> str:
    times = f"{len(lines)} times, first at line {lines[0]}" if len(lines) > 1 else f"at line {lines[0]}"
    first = max(1, lines[0] - _AROUND)
    last = lines[0] + len(lines_in(new)) + _AROUND
    around = lines_in(content.decode("utf-8-sig"))[first - 1 : last]
    return f"Edited {shown(path)} {times}:\n{numbered(around[:_SNIPPET], first)}"
