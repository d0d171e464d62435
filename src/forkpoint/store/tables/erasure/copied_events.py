"""Copied events: which events repeat what another turn says, so that an erasure finds all of them.

A sub-agent that is forked in the middle of its parent's turn begins with copies of that turn's steps
(`Envelope.origin`). And the events that tell of a sub-agent repeat its task, or stand for its answer: they name its
turn.
Tests: tests/store/test_erasure.py.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from forkpoint.events import Envelope, decode_envelope
from forkpoint.history.digests import Link
from forkpoint.ids import id_to_bytes
from forkpoint.store.stage import Sealed
from forkpoint.store.tables.database import Database

Source: TypeAlias = tuple[bytes, int]
"""A turn, and which event of it; or a sub-agent without a turn yet, and 0."""

TELLS = frozenset({"sub_agent_spawned", "sub_agent_finished"})
"""The kinds of events that tell of a sub-agent's turn."""


class _Told(Struct, frozen=True):
    """As much of such an event as names the sub-agent and its turn."""

    conversation: str = ""
    turn: str | None = None


_told = msgspec.json.Decoder(_Told).decode


def insert_copies(db: Database, first: int, events: Sequence[Sealed], links: Sequence[Link]) -> None:
    """Writes down the copies among events that were just committed, from a key on. Most commits have none."""
    if rows := copy_rows(first, events, links):
        db.run_many("insert_copy", rows)


def copy_rows(first: int, events: Sequence[Sealed], links: Sequence[Link]) -> list[tuple[int, bytes, int]]:
    """The copies among events of a commit, from a key on: the key of each, and its source."""
    if not any(event.envelope.origin is not None or event.envelope.kind in TELLS for event in events):
        return []
    return _copies((first + n, decode_envelope(link.envelope), link.payload) for n, link in enumerate(links))


def insert_imported_copies(db: Database, events: Iterable[tuple[int, str, str | None]]) -> None:
    """Writes down the copies among events of another store: the key, the envelope and the payload of each."""
    rows = ((key, decode_envelope(envelope), payload) for key, envelope, payload in events if _may_be(envelope))
    _insert(db, rows)


def adopt_copies(db: Database) -> None:
    """Writes down the copies that programs of an earlier format have made."""
    found = db.run("events_that_may_be_copies").fetchall()
    _insert(db, ((row["id"], decode_envelope(row["envelope"]), row["payload"]) for row in found))


def _insert(db: Database, rows: Iterable[tuple[int, Envelope, Any]]) -> None:
    db.run_many("insert_copy", _copies(rows))


def _copies(rows: Iterable[tuple[int, Envelope, Any]]) -> list[tuple[int, bytes, int]]:
    return [(key, *source) for key, envelope, payload in rows if (source := source_of(envelope, payload)) is not None]


def _may_be(envelope: str) -> bool:
    """Whether an event may repeat another: few do, and to read all envelopes takes long."""
    return '"origin":' in envelope or envelope.startswith('{"kind":"sub_agent_')


def source_of(envelope: Envelope, payload: str | None) -> Source | None:
    """The turn that an event repeats, and which event of it: 0 if it tells of a sub-agent's turn."""
    with suppress(ValueError, msgspec.DecodeError):
        if envelope.origin is not None:
            turn, _, place = envelope.origin.partition("/")
            return id_to_bytes(turn), int(place) + 1
        if envelope.kind in TELLS and payload is not None:
            told = _told(payload)
            return id_to_bytes(told.turn or told.conversation), 0
    return None
