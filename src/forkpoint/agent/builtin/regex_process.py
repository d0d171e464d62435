"""A regular expression over files, in a process of its own: Python cannot stop a match that takes forever, but it can
end a process. The script knows the standard library alone, so it starts at once.

It is given an open folder as the file descriptor ``argv[1]``, and what to look for as JSON on stdin. It prints one JSON
array for each line to show, ``[path, number, text, whether it matches]``, and an object with what it did at the end.
Tests: tests/agent/builtin/test_searching.py, test_paths.py.
"""

import json
import os
import re
import signal
import stat
import sys
from collections.abc import Sequence
from typing import Any, Self

BINARY = 8192
"""Bytes at a file's beginning that tell whether it is text: text has no zero byte."""

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FILE = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class Below:
    """Folders below an open one, reached without following any link; the way to the last one stays open.

    So one name after the other costs little if they are sorted.
    """

    def __init__(self, folder: int) -> None:
        self._top = folder
        self._names: list[str] = []
        self._folders: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._back(0)

    def folder(self, names: Sequence[str]) -> int:
        """A folder, open until the next one is asked for. Raises ``OSError`` if there is a link on the way."""
        common = 0
        while common < min(len(names), len(self._names)) and names[common] == self._names[common]:
            common += 1
        self._back(common)
        for name in names[common:]:
            if name in {"", ".", ".."}:
                raise OSError(f"{name!r} is not the name of a folder")
            self._folders.append(os.open(name, _FOLDER, dir_fd=self._here))
            self._names.append(name)
        return self._here

    def stat(self, path: str) -> os.stat_result:
        """What there is at a path; a link is a link."""
        *folders, name = path.split("/")
        return os.stat(name, dir_fd=self.folder(folders), follow_symlinks=False)

    def open(self, path: str) -> int:
        """A file, open for reading. Raises ``OSError`` for all that is not a plain file, without waiting for it."""
        if not stat.S_ISREG(self.stat(path).st_mode):  # to open a device may do something
            raise OSError("it is not a file")
        handle = os.open(path.rpartition("/")[2], _FILE, dir_fd=self._here)
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)  # it was swapped
        raise OSError("it is not a file")

    @property
    def _here(self) -> int:
        return self._folders[-1] if self._folders else self._top

    def _back(self, depth: int) -> None:
        while len(self._folders) > depth:
            os.close(self._folders.pop())
            self._names.pop()


def main() -> None:
    asked = json.load(sys.stdin)
    signal.alarm(int(asked["seconds"]) + 5)  # if nobody is left to end us
    done = {"searched": 0, "binary": 0, "large": 0, "unreadable": 0, "more": False}
    try:
        pattern = re.compile(asked["pattern"], re.IGNORECASE if asked["ignore_case"] else 0)
    except (re.error, RecursionError, OverflowError, MemoryError) as error:
        _say({"error": str(error) or type(error).__name__})
        return
    left = asked["limit"]
    with Below(int(sys.argv[1])) as below:
        for path in asked["files"]:
            text = _text(below, path, asked["file_limit"], done)
            if text is not None:
                left = _search(pattern, path, text, left, asked)
            if left < 0:
                done["more"] = True
                break
    _say(done)


def _text(below: Below, path: str, limit: int, done: dict[str, Any]) -> str | None:
    try:
        with open(below.open(path), "rb") as file:
            content = file.read(limit + 1)  # it may grow meanwhile
    except OSError:
        done["unreadable"] += 1
        return None
    if len(content) > limit:
        done["large"] += 1
    elif b"\0" in content[:BINARY]:
        done["binary"] += 1
    else:
        done["searched"] += 1
        return content.decode("utf-8-sig", "replace")
    return None


def _search(pattern: re.Pattern[str], path: str, text: str, left: int, asked: dict[str, Any]) -> int:
    """Says which lines match; gives how many more may, less than 0 if there was one too many."""
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n") if text else []
    around, said = asked["context"], 0  # lines that were said already
    for index, line in enumerate(lines):
        found = pattern.search(line)
        if found is None:
            continue
        left -= 1
        if left < 0:
            return left
        for before in range(max(index - around, said), index):
            _say([path, before + 1, _cut(lines[before], 0, asked["line"]), False])
        _say([path, index + 1, _cut(line, found.start(), asked["line"]), True])
        said = index + 1
        while said < min(index + 1 + around, len(lines)) and pattern.search(lines[said]) is None:
            _say([path, said + 1, _cut(lines[said], 0, asked["line"]), False])
            said += 1
    return left


def _cut(line: str, at: int, limit: int) -> str:
    """A line, or what is around a place in it if it is long."""
    if len(line) <= limit:
        return line
    start = max(0, min(at - limit // 4, len(line) - limit))
    end = start + limit
    return f"{'[...]' if start else ''}{line[start:end]}{'[...]' if end < len(line) else ''}"


def _say(value: Any) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
