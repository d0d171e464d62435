"""What is shown of what a command prints: its beginning and its end. All of it goes to a file, up to a limit too.

The file is in the workspace, where `read_file` and `search_files` find it: ``.forkpoint/output/``, which git ignores.
It is only made if not all can be shown. Old ones are removed when a new one is made.
Tests: tests/agent/builtin/test_shell.py.
"""

import codecs
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress

from forkpoint.agent.builtin.failure import ToolFailed
from forkpoint.agent.builtin.paths import Workspace

FOLDER = ".forkpoint/output"
HEAD = 10_000
TAIL = 20_000
"""Bytes of the beginning and of the end that are shown."""
FILE_LIMIT = 16 * 1024 * 1024
"""Bytes of one output that are kept in a file."""
FILES = 64
FILES_LIMIT = 256 * 1024 * 1024
"""How many files are kept, and how many bytes in all."""

_OURS = "output-"
_PROGRESS = 8_000  # characters that a watcher is told at once
_PAUSE = 0.1  # seconds between two such tellings


class Output:
    """What a command has printed so far."""

    def __init__(self, workspace: Workspace, progress: Callable[[str], None]) -> None:
        self._workspace = workspace
        self._progress = _Progress(progress)
        self._total = 0
        self._head = bytearray()
        self._tail = bytearray()
        self._file: _File | None = None
        self._no_file: str | None = None  # why there is none

    def add(self, chunk: bytes) -> None:
        """Takes what was printed next."""
        self._progress.add(chunk)
        self._total += len(chunk)
        taken = max(0, HEAD - len(self._head))
        self._head += chunk[:taken]
        self._tail += chunk[taken:]
        if len(self._tail) > TAIL:
            if self._file is not None:
                self._file.write(chunk)
            elif self._no_file is None:
                self._keep()
            del self._tail[:-TAIL]

    def close(self) -> None:
        """Nothing more is printed."""
        self._progress.flush()
        if self._file is not None:
            self._file.close()

    def text(self) -> str:
        """What the model is shown."""
        if self._total <= HEAD + TAIL:
            return _text(self._head + self._tail)
        head, tail = _whole_lines(bytes(self._head), bytes(self._tail))
        left_out = self._total - len(head) - len(tail)
        return (
            f"{_text(head)}\n[... {left_out:,} of {self._total:,} bytes are left out here. "
            f"{self._where()} ...]\n{_text(tail)}"
        )

    def _where(self) -> str:
        if self._file is not None and self._file.why is None:
            if self._total > FILE_LIMIT:
                return f"The first {FILE_LIMIT:,} bytes are in {self._file.path}; the rest was not kept"
            return f"All of it is in {self._file.path}"
        why = self._file.why if self._file is not None else self._no_file
        return f"It could not be kept in a file ({why})"

    def _keep(self) -> None:
        try:
            self._file = _File(self._workspace)
        except (OSError, ToolFailed) as error:
            self._no_file = str(error)
        else:
            self._file.write(bytes(self._head + self._tail))


class _File:
    def __init__(self, workspace: Workspace) -> None:
        name = f"{_OURS}{secrets.token_hex(6)}.txt"
        self.path = f"{FOLDER}/{name}"
        self.why: str | None = None
        self._left = FILE_LIMIT
        with workspace.place(self.path, make=True) as place:
            if place.path != self.path:  # what a repository lets it lead to is not ours to tidy up
                raise ToolFailed(f"{FOLDER} is a link.")
            _ignored_by_git(place.folder)
            _make_room(place.folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._handle = os.open(name, flags, 0o600, dir_fd=place.folder)

    def write(self, chunk: bytes) -> None:
        rest = memoryview(chunk)[: self._left]
        self._left -= len(rest)
        try:
            while rest and self.why is None:
                rest = rest[os.write(self._handle, rest) :]
        except OSError as error:  # the command goes on, whatever becomes of its output
            self.why = str(error)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._handle)


class _Progress:
    """Tells a watcher what is printed: not too often, and not too much at once."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self._left_out = False
        self._told = 0.0

    def add(self, chunk: bytes) -> None:
        self._left_out = self._left_out or len(self._pending) + len(chunk) > _PROGRESS
        self._pending = (self._pending + self._decoder.decode(chunk[-_PROGRESS:]))[-_PROGRESS:]
        if time.monotonic() - self._told >= _PAUSE:
            self.flush()

    def flush(self) -> None:
        if self._pending:
            self._tell(("[...]\n" if self._left_out else "") + self._pending)
        self._pending, self._left_out, self._told = "", False, time.monotonic()


def _text(printed: bytes | bytearray) -> str:
    """What was printed, as a text that every provider takes."""
    return printed.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


def _whole_lines(head: bytes, tail: bytes) -> tuple[bytes, bytes]:
    """The same without the lines that are cut, unless hardly anything would be left of it."""
    end, start = head.rfind(b"\n"), tail.find(b"\n")
    return (head[:end] if end > len(head) // 2 else head, tail[start + 1 :] if 0 <= start < len(tail) // 2 else tail)


def _ignored_by_git(folder: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(FileExistsError):
        handle = os.open(".gitignore", flags, 0o644, dir_fd=folder)
        os.write(handle, b"*\n")
        os.close(handle)


def _make_room(folder: int) -> None:
    """Removes the oldest of our files, so that one more has room."""
    found = []
    for name in os.listdir(folder):
        if name.startswith(_OURS):
            with suppress(OSError):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                found.append((status.st_mtime_ns, status.st_size, name))
    size = FILE_LIMIT
    for count, (_, bytes_, name) in enumerate(sorted(found, reverse=True), 1):
        size += bytes_
        if count >= FILES or size > FILES_LIMIT:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
