"""`list_files` and `search_files`: which files there are, and where a pattern is in them."""

import json
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec

from forkpoint.agent.builtin import regex_process
from forkpoint.agent.builtin.failure import ToolFailed, shown, starting
from forkpoint.agent.builtin.globs import matcher
from forkpoint.agent.builtin.listing import Listing, files_below
from forkpoint.agent.builtin.paths import FilePlace, Workspace, workspace_of
from forkpoint.agent.context import ToolContext
from forkpoint.agent.tool import tool
from forkpoint.system.process import Ended, Job, supervise

SECONDS = 20
"""How long a search may take."""
FILE_LIMIT = 10 * 1024 * 1024
"""Bytes of a file that is searched; a larger one is not."""

_SHOWN = 60_000  # characters of a result
_LINE = 300  # characters of a line
_SKIPPED = {"binary": "binary", "large": f"larger than {FILE_LIMIT:,} bytes", "unreadable": "not readable"}


@tool(repeatable=True, timeout=60)
def list_files(
    ctx: ToolContext,
    path: str = ".",
    pattern: str | None = None,
    ignored: bool = False,
    limit: Annotated[int, msgspec.Meta(ge=1, le=5000)] = 1000,
) -> str:
    """Lists the files in a folder and below it. What git ignores is left out.

    Args:
        path: the folder
        pattern: only files like this: `*.py`, `src/**/test_*.py`, `*.{c,h}`. Without a slash it is matched with names
        ignored: list what git ignores, too
        limit: how many files
    """
    with workspace_of(ctx) as workspace, workspace.place(path) as place:
        listing = files_below(workspace, place, ignored=ignored, stopped=lambda: ctx.cancelled)
        fits = matcher(pattern)
        found = [name for name in listing.files if fits(name)]
        top = _as_prefix(place)
        lines = _bounded(shown(top + name) + (" (link)" if name in listing.links else "") for name in found[:limit])
    notes: list[str] = []
    if not found:
        notes.append("There are no such files" if pattern else "There are no files")
    if len(lines) < len(found):
        notes.append(f"{len(found) - len(lines):,} more files are not shown: name a folder or a pattern")
    if listing.cut is not None:
        notes.append(f"Not all files were looked at: {listing.cut}")
    return "\n".join([*lines, *(f"[{note}.]" for note in notes)])


@tool(repeatable=True, timeout=60)
def search_files(
    ctx: ToolContext,
    pattern: str,
    path: str = ".",
    glob: str | None = None,
    ignore_case: bool = False,
    context: Annotated[int, msgspec.Meta(ge=0, le=20)] = 0,
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200,
) -> str:
    """Searches files for a regular expression (Python's), line by line, and returns the lines with their numbers.

    What git ignores, binary files and links are left out.

    Args:
        pattern: the regular expression
        path: the folder, or one file
        glob: only files like this: `*.py`, `src/**/test_*.py`, `*.{c,h}`
        ignore_case: whether upper and lower case are the same
        context: how many lines to show before and after
        limit: how many lines that match
    """
    asked = {"pattern": pattern, "ignore_case": ignore_case, "context": context, "limit": limit}
    with (
        workspace_of(ctx) as workspace,
        workspace.place(path) as place,
        _searched(workspace, place, lambda: ctx.cancelled) as (folder, top, listing),
    ):
        fits = matcher(glob)
        files = [name for name in listing.files if name not in listing.links and fits(name)]
        said, ended = _matched(workspace, folder, {**asked, "files": files}, lambda: ctx.cancelled)
    return _Found(said, ended, top, listing.cut).told(limit)


@contextmanager
def _searched(
    workspace: Workspace, place: FilePlace, stopped: Callable[[], bool]
) -> Iterator[tuple[int, str, Listing]]:
    """A folder that is open, what its files' names are to be shown with, and the files."""
    found = place.stat()
    if found is not None and stat.S_ISREG(found.st_mode):
        yield place.folder, place.path.removesuffix(place.name), Listing([place.name])
        return
    listing = files_below(workspace, place, stopped=stopped)
    with place.open_folder() as folder:
        yield folder, _as_prefix(place), listing


def _matched(
    workspace: Workspace, folder: int, asked: dict[str, Any], stopped: Callable[[], bool]
) -> tuple[list[Any], Ended]:
    """What the search said, line by line, and how it ended."""
    if not sys.executable:
        raise ToolFailed("There is no Python to search with.")
    said = bytearray()
    with tempfile.TemporaryFile() as request:
        limits = {"file_limit": FILE_LIMIT, "line": _LINE, "seconds": SECONDS}
        request.write(json.dumps({**asked, **limits}).encode())
        request.seek(0)
        job = Job(
            command=[sys.executable, "-I", "-S", str(Path(regex_process.__file__)), str(folder)],
            folder=workspace.path,
            env={name: value for name, value in os.environ.items() if name in {"PATH", "LD_LIBRARY_PATH"}},
            timeout=SECONDS,
            heard=said.extend,
            stdin=request.fileno(),
            inherit=(folder,),
            grace=0.2,
        )
        with starting():
            ended = supervise(job, stopped)
    return list(_decoded(bytes(said))), ended


def _decoded(said: bytes) -> Iterator[Any]:
    for line in said.split(b"\n")[:-1]:  # the last one is empty, or was not finished
        try:
            yield json.loads(line)
        except ValueError:
            raise ToolFailed(f"The search broke: {said[-500:].decode(errors='replace')}") from None


class _Found:
    """What a search has found, and how far it came."""

    def __init__(self, said: list[Any], ended: Ended, top: str, cut: str | None) -> None:
        self._done: dict[str, Any] = next((one for one in said if isinstance(one, dict)), {})
        self._rows = [one for one in said if isinstance(one, list)]
        self._top, self._cut = top, cut
        self._in_time = ended.why == "exited"
        if "error" in self._done:
            raise ToolFailed(f"The regular expression is wrong: {self._done['error']}.")
        if self._in_time and not self._done:
            raise ToolFailed("The search broke before its end.")

    def told(self, limit: int) -> str:
        lines = _bounded(self._lines())
        notes = list(self._notes(limit))
        if sum(line != "--" for line in lines) < len(self._rows):
            notes.append("Not all of these lines are shown: narrow it down")
        return "\n".join([*lines, *(f"[{note}.]" for note in notes)])

    def _lines(self) -> Iterator[str]:
        apart = not all(row[3] for row in self._rows)  # lines around a match belong together
        before: tuple[str, int] | None = None
        for path, number, text, is_match in self._rows:
            if apart and before not in {None, (path, number - 1)}:
                yield "--"
            before = (path, number)
            sign = ":" if is_match else "-"
            yield f"{shown(self._top + path)}{sign}{number}{sign} {text}"

    def _notes(self, limit: int) -> Iterator[str]:
        if not self._in_time:
            yield (
                f"Stopped after {SECONDS} s, so these are not all. The expression may take too long on some line: "
                "make it simpler, or search less"
            )
        matches = sum(row[3] for row in self._rows)
        if matches:
            yield f"Lines that match: {matches}, in files: {len({row[0] for row in self._rows})}"
        elif self._done:
            yield f"No line matches. Files searched: {self._done['searched']}"
        if self._done.get("more"):
            yield f"There are more than {limit}: narrow it down"
        for kind, words in _SKIPPED.items():
            if self._done.get(kind):
                yield f"Files not searched because they are {words}: {self._done[kind]}"
        if self._cut is not None:
            yield f"Not all files were looked at: {self._cut}"


def _as_prefix(place: FilePlace) -> str:
    return "" if place.path == "." else f"{place.path}/"


def _bounded(lines: Iterator[str]) -> list[str]:
    kept: list[str] = []
    size = 0
    for line in lines:
        size += len(line) + 1
        if size > _SHOWN:
            break
        kept.append(line)
    return kept
