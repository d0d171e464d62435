"""Brought notes: messages that were made of what other branches say, so that an erasure finds them.

An answer that was brought quotes a question and an answer, and a summary was made of many events; each is one message.
The `brought` event before it names these events by their turns and places. Copies of turns need nothing here: each of
them names its own origin (`copied_events`). Tests: tests/conversation/test_bring.py.
"""

from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

from forkpoint.events import Brought, BroughtAs, decode_body
from forkpoint.ids import id_to_bytes
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.rows import ORDINALS, Scope

if TYPE_CHECKING:
    from forkpoint.store.tables.erasure.reach import Found

_KIND = '{"kind":"brought"%'


class _Note(Struct, frozen=True):
    """A note that brought an answer or a summary: its turn, and the places of the events that it was made of."""

    turn: bytes
    what: BroughtAs
    origins: tuple[tuple[bytes, int], ...]


class BroughtNotes:
    """The notes of a family that brought an answer or a summary. ``events_of`` reads the events of a turn or note."""

    def __init__(self, db: Database, scope: Scope, family: bytes, events_of: "Callable[[bytes], list[Found]]") -> None:
        self._db = db
        self._scope = scope
        self._family = family
        self._events_of = events_of

    @cached_property
    def _notes(self) -> list[_Note]:
        return list(_read(self._db, self._scope, self._family))

    def made_of(self, erased: Container[int], what: BroughtAs) -> "Iterator[Found]":
        """The messages that were made of an erased event, or that nothing would tell of any more."""
        for note in self._notes:
            if note.what == what:
                found = self._events_of(note.turn)  # none, if the end of the note was collected
                if any(one.key in erased for one in (*found[:1], *self._sources(note))):
                    yield from found[1:]

    def quoted_in(self, erased: Container[int]) -> "Iterator[Found]":
        """The events that erased messages quote."""
        for note in self._notes:
            if note.what == "answer" and any(one.key in erased for one in self._events_of(note.turn)[1:]):
                yield from self._sources(note)

    def _sources(self, note: _Note) -> "Iterator[Found]":
        for turn, place in note.origins:
            yield from self._events_of(turn)[place : place + 1]  # none, if the branch is gone


def _read(db: Database, scope: Scope, family: bytes) -> Iterator[_Note]:
    for segment in db.run("segments_of_a_family", {"tenant": scope.tenant, "family": family}).fetchall():
        whole = {"first": segment["id"] << 32, "last": segment["id"] << 32 | ORDINALS, "kind": _KIND}
        for row in db.run("events_of_a_kind", whole).fetchall():
            told = decode_body(row["payload"])
            if isinstance(told, Brought) and told.what != "turns":
                yield _Note(row["turn"], told.what, tuple(_origins(told)))


def _origins(told: Brought) -> Iterator[tuple[bytes, int]]:
    for origin in told.origins:
        turn, _, place = origin.partition("/")
        with suppress(ValueError):
            yield id_to_bytes(turn), int(place)
