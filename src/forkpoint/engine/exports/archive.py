"""The format `forkpoint`: lossless, and checked before it is taken in. docs/export.md is the contract.
Tests: forkpoint.testing.conformance.evidence.copies, tests/store/test_import.py."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from functools import partial
from hashlib import sha256
from tempfile import SpooledTemporaryFile
from typing import IO, cast

import anyio.to_thread

from forkpoint.backend.results import ImportReport
from forkpoint.clock import system_clock
from forkpoint.engine.exports.literals import literal_secret
from forkpoint.engine.exports.selection import Selection
from forkpoint.errors import BadExport, SecretInside
from forkpoint.history.exports.check import ExportCheck, Part
from forkpoint.history.exports.lines import (
    LONGEST_LINE,
    ConversationLine,
    End,
    FamilyEnd,
    Header,
    Line,
    Seal,
    decoded,
    parted,
)
from forkpoint.history.records import Export
from forkpoint.ids import new_id
from forkpoint.store.actor import actor
from forkpoint.store.protocol import Store
from forkpoint.version import __version__

_CHUNK = 256 * 1024
_IN_MEMORY = 8 << 20
_CONVERSATION = b'{"line":"conversation"'


async def write_archive(store: Store, selection: Selection) -> AsyncGenerator[bytes, None]:
    """Writes a header, the families one after the other, and an end."""
    chosen = selection.families(store)
    first = await anext(chosen, None)  # raises before anything is written if there is no such conversation
    seal = Seal()
    header = Header(
        program=__version__,
        store=await store.identity(),
        tenant=store.tenant,
        scope=selection.scope,
        asked=selection.asked,
        time=system_clock(),
        by=actor(),
    )
    opening = seal.line(header)
    summed = sha256(seal.last.encode())
    lines, families, recorded = 1, 0, True
    told = Export(new_id(), selection.scope, "forkpoint")
    while first is not None:
        family, conversations = first
        export = await store.export_family(family, conversations, told=told)
        with export.file as file:
            await anyio.to_thread.run_sync(_check_secrets, file)
            if opening:
                yield opening
                opening = b""
            while chunk := await anyio.to_thread.run_sync(file.read, _CHUNK):
                yield chunk
        summed.update(export.digest.encode())
        lines, families, recorded = lines + export.lines, families + 1, recorded and export.recorded
        first = await anext(chosen, None)
    end = End(families=families, lines=lines, digest=summed.hexdigest(), recorded=recorded)
    yield opening + seal.line(end)


def _check_secrets(file: IO[bytes]) -> None:
    """Raises `SecretInside` if the settings of a conversation hold what looks like a secret."""
    for raw in file:
        if raw.startswith(_CONVERSATION):
            line = decoded(parted(raw)[0])
            if isinstance(line, ConversationLine) and (name := literal_secret(line.settings)) is not None:
                raise SecretInside(line.id, name)
    file.seek(0)


async def import_archive(store: Store, chunks: AsyncIterator[bytes], *, rename: bool) -> ImportReport:
    """Checks an export and brings its families into the store, one after the other."""
    with cast("IO[bytes]", SpooledTemporaryFile(_IN_MEMORY)) as file:
        async for chunk in chunks:
            await anyio.to_thread.run_sync(file.write, chunk)
        check = await anyio.to_thread.run_sync(_checked, file)
        assert check.header is not None
        total = ImportReport(store=check.header.store)
        for part in check.parts:
            lines = partial(_lines, file, part)
            done = await store.import_family(part.family, lines, check.header, rename=rename)
            same = part.end.conversations - len(done.new) - len(done.grown)
            total = ImportReport(
                total.new + done.new,
                total.grown + done.grown,
                total.same + same,
                total.events + done.events,
                total.families + 1,
                {**total.renamed, **dict(done.renamed)},
                total.store,
                total.erased + done.erased,
            )
    return total


def _checked(file: IO[bytes]) -> ExportCheck:
    """Reads a whole file. Raises `BadExport` at the first flaw."""
    check = ExportCheck()
    file.seek(0)
    while raw := file.readline(LONGEST_LINE):
        check.take(raw)
        _raise(check)
    check.finish()
    _raise(check)
    return check


def _raise(check: ExportCheck) -> None:
    if check.flaws:
        raise BadExport(check.flaws[0].line, check.flaws[0].what)


def _lines(file: IO[bytes], part: Part) -> Iterator[Line]:
    """The lines of a family in a file that was checked."""
    at = part.offset
    while True:
        file.seek(at)  # each time: another reader of the same file may have moved on
        raw = file.readline()
        at += len(raw)
        line = decoded(parted(raw)[0])
        yield line
        if isinstance(line, FamilyEnd):
            return
