"""Copies: an export on its way into a file, and a file on its way into a store, piece by piece.

A file with a name is written aside and renamed when it is whole: whoever finds it finds all of it.
Tests: tests/conversation/test_copies.py.
"""

import os
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import IO, TypeAlias

import anyio.to_thread

from forkpoint.backend.results import ExportReport
from forkpoint.history.exports.lines import NOT_RECORDED
from forkpoint.system.durable_file import install, new_aside

Target: TypeAlias = str | os.PathLike[str] | IO[bytes]
"""A file: its path, or an open file that takes or gives bytes."""

Progress: TypeAlias = Callable[[int], None]
"""Called with the number of bytes that were written or read so far."""

_CHUNK = 256 * 1024
_SEAL = re.compile(rb'"sha256":"([0-9a-f]{64})"}\n\Z')
_TAIL = 200
_NOT_RECORDED = re.compile(rb'("recorded":false,"sha256":"[0-9a-f]{64}"}|%b)\n\Z' % re.escape(NOT_RECORDED).encode())


async def write_export(
    chunks: AsyncGenerator[bytes, None], to: Target, progress: Progress | None = None
) -> ExportReport:
    """Writes an export into a file, and says how large it is, and with which digest it ends."""
    if not isinstance(to, str | os.PathLike):
        return await _copy(chunks, to, progress)
    path = Path(to)
    aside = await anyio.to_thread.run_sync(new_aside, path)
    try:
        file = await anyio.to_thread.run_sync(_made, aside)
        try:
            report = await _copy(chunks, file, progress)
            await anyio.to_thread.run_sync(_to_disk, file)
        finally:
            file.close()
        await anyio.to_thread.run_sync(install, aside, path)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise
    return report


async def read_export(source: Target, progress: Progress | None = None) -> AsyncGenerator[bytes, None]:
    """The content of a file, piece by piece."""
    size = 0
    is_path = isinstance(source, str | os.PathLike)
    file = await anyio.to_thread.run_sync(_opened, source) if isinstance(source, str | os.PathLike) else source
    try:
        while chunk := await anyio.to_thread.run_sync(file.read, _CHUNK):
            yield chunk
            size += len(chunk)
            if progress is not None:
                progress(size)
    finally:
        if is_path:
            file.close()


def _opened(path: str | os.PathLike[str]) -> IO[bytes]:
    return open(path, "rb")


async def _copy(chunks: AsyncGenerator[bytes, None], file: IO[bytes], progress: Progress | None) -> ExportReport:
    size, tail = 0, b""
    async with aclosing(chunks):
        async for chunk in chunks:
            await anyio.to_thread.run_sync(file.write, chunk)
            size += len(chunk)
            if progress is not None:
                progress(size)
            tail = (tail + chunk)[-_TAIL:]
    sealed = _SEAL.search(tail)
    digest = None if sealed is None else sealed[1].decode()
    return ExportReport(size, digest, recorded=_NOT_RECORDED.search(tail) is None)


def _made(path: Path) -> IO[bytes]:
    """A new file for its owner alone: what was said in private is in it."""
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))


def _to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
