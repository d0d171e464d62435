"""The exporter: a family leaves the store as lines, and a record says so.

The records come first: what may have left the store is told, even if nobody read the file to its end. Then the lines
are read from one snapshot, into a temporary file: a slow reader must not keep the log from being written back, and a
family of a million events must not stand in memory. Tests: forkpoint.testing.conformance.evidence.copies.
"""

from collections.abc import Collection
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import IO, cast

from forkpoint.errors import StoreUnusable
from forkpoint.history.exports.lines import ConversationLine, FamilyEnd, Seal
from forkpoint.history.records import Export, Fact
from forkpoint.ids import id_from_bytes, id_to_bytes
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.evidence import records
from forkpoint.store.tables.operations import conversations
from forkpoint.store.tables.rows import Scope
from forkpoint.store.tables.transfer.family import family_lines, with_dependents
from forkpoint.store.tables.view import View
from forkpoint.store.values import FamilyExport

IN_MEMORY = 8 << 20
"""How many bytes of an export stand in memory before they go to a temporary file."""

_BATCH = 200
_READ_ONLY = {StoreUnusable.read_only.code, StoreUnusable.opened_to_read.code}


def store_id(db: Database, scope: Scope) -> str:
    """Which store this is, in hexadecimal."""
    return bytes(db.run("store_id").fetchone()["store"]).hex()


async def export_family(view: View, family: str, chosen: Collection[str] | None, told: Export | None) -> FamilyExport:
    """Writes the lines of a family into a temporary file."""
    key = conversations.key_of(family, "family")
    named = None if chosen is None else [conversations.key_of(id) for id in chosen]
    recorded = False
    said: set[bytes] = set()
    if told is not None:
        said = await view.read(partial(_members, family=key, named=named))
        recorded = await _tell(view, said, told)
    file = cast("IO[bytes]", SpooledTemporaryFile(IN_MEMORY))  # noqa: SIM115 - whoever reads it closes it
    try:
        lines, digest, end, ids = await view.read(partial(_write, family=key, named=named, file=file))
    except BaseException:
        file.close()
        raise
    if told is not None and recorded:
        await _tell(view, ids - said, told)  # those that were made meanwhile
    file.seek(0)
    return FamilyExport(file, lines, digest, end, recorded)


async def record_export(view: View, ids: Collection[str], told: Export) -> bool:
    """Adds the record of an export to each conversation. False if the store can only be read."""
    return await _tell(view, [conversations.key_of(id) for id in ids], told)


def _members(db: Database, scope: Scope, family: bytes, named: Collection[bytes] | None) -> set[bytes]:
    """The conversations that an export has."""
    if named is not None:
        return set().union(*(with_dependents(db, scope, id) for id in named))
    rows = db.run("family_conversations", {"tenant": scope.tenant, "family": family})
    return {row["id"] for row in rows}


def _write(
    db: Database, scope: Scope, family: bytes, named: Collection[bytes] | None, file: IO[bytes]
) -> tuple[int, str, FamilyEnd, set[bytes]]:
    chosen = None if named is None else _members(db, scope, family, named)
    seal, lines, ids = Seal(), 0, set[bytes]()
    end: FamilyEnd | None = None
    for line in family_lines(db, scope, family, chosen):
        file.write(seal.line(line))
        lines += 1
        if isinstance(line, ConversationLine):
            ids.add(id_to_bytes(line.id))
        elif isinstance(line, FamilyEnd):
            end = line
    assert end is not None
    return lines, seal.last, end, ids


async def _tell(view: View, ids: Collection[bytes], about: Export) -> bool:
    """Adds the record of an export to each conversation. False if the store can only be read."""
    left = sorted(ids)
    try:
        while left:
            some, left = left[:_BATCH], left[_BATCH:]
            run = partial(_tell_some, ids=some, about=about)
            await view.write("export", about.id, run, landed=lambda db, scope: False)
    except StoreUnusable as error:
        if error.code not in _READ_ONLY:
            raise
        return False
    return True


def _tell_some(db: Database, scope: Scope, ids: Collection[bytes], about: Export) -> None:
    for id in ids:
        if conversations.exists(db, scope, id_from_bytes(id)):
            records.tell(db, scope, id, Fact(kind="exported", time=scope.now, by=scope.by, exported=about))
