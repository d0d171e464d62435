"""Landmarks on disk: written with their events, and found without reading any other.

A segment that was written before there were landmarks has none (`Unmarked`). Whoever looks there first reads the
segment once, one event after another, and writes down what it found.
Tests: forkpoint.testing.conformance.landmarks, tests/store/test_landmarks.py.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec

from forkpoint.errors import StoreDamaged, StoreError
from forkpoint.events import Event, Position, body_of, decode_envelope
from forkpoint.history.digests import Link
from forkpoint.history.landmarks import LANDMARKS, Landmark, kept_from
from forkpoint.history.paths import Span
from forkpoint.store.stage import Sealed
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.operations.history import decoded, from_head
from forkpoint.store.tables.rows import ORDINALS, Scope, pack, unpack
from forkpoint.store.tables.view import View

T = TypeVar("T")

_ROW = 40  # bytes of a landmark on disk, roughly


class Unmarked(Exception):
    """Landmarks are looked for in segments where nobody has written them down yet."""

    def __init__(self, segments: Sequence[int]) -> None:
        super().__init__(f"segments {segments} have no landmarks yet")
        self.segments = segments


def insert_landmarks(db: Database, first: int, events: Sequence[Sealed], links: Sequence[Link]) -> None:
    """Writes down the landmarks among events that were just committed, from a key on. Most commits have none."""
    if rows := landmark_rows(first, events, links):
        db.run_many("insert_landmark", rows)


def landmark_rows(first: int, events: Sequence[Sealed], links: Sequence[Link]) -> list[tuple[int, str, int | None]]:
    """The landmarks among events of a commit, from a key on: the key of each, its kind, and what it keeps."""
    if LANDMARKS.isdisjoint({event.envelope.kind for event in events}):
        return []
    return list(_found((first + n, link.envelope, link.payload) for n, link in enumerate(links)))


def read_landmarks(
    db: Database, scope: Scope, family: bytes, head: Position | None, after: int, upto: int, kinds: Collection[str]
) -> list[Landmark]:
    """The landmarks of a path after one ordinal, up to and including another. Raises `Unmarked`."""
    if head is None or upto <= after:
        return []
    parameters = from_head(scope, family, head, after)
    if segments := [row["segment"] for row in db.run("unmarked_segments", parameters)]:
        raise Unmarked(segments)
    parameters |= {"upto": upto, "kinds": msgspec.json.encode(sorted(kinds)).decode()}
    found = [Landmark(_place(row[0]), row[1], row[2]) for row in db.run("path_landmarks", parameters)]
    return sorted(found, key=lambda one: one.position.ordinal)


def read_marked(db: Database, places: Iterable[Landmark]) -> list[Event]:
    """The events at landmarks."""
    rows = []
    for one in places:
        row = db.tuples("event_of_landmark", (pack(one.position),)).fetchone()
        if row is None:
            raise StoreDamaged(db.path, f"event {one.position} is missing")
        rows.append(row)
    return decoded(rows)


async def found(view: View, read: Callable[[Database, Scope], T], *, instead: Callable[[Database, Scope], T]) -> T:
    """What a read finds by landmarks. ``instead`` finds the same in all events, if landmarks cannot be written down."""
    try:
        return await view.read(read)
    except Unmarked as unmarked:
        await _mark_all(view, unmarked.segments)
    try:
        return await view.read(read)
    except Unmarked:
        return await view.read(instead)


async def _mark_all(view: View, segments: Sequence[int]) -> None:
    """Writes down the landmarks of segments that have none yet, if the store can be written to."""
    for segment in segments:
        rows = await view.read(partial(_scanned, segment=segment))
        with suppress(StoreError):  # then whoever looks there next tries again
            marking = partial(_mark, segment=segment, rows=rows)
            await view.write("landmarks", "", marking, landed=_has_failed, size=_ROW * len(rows))


def landmark_at(place: Position, link: Link) -> list[Landmark]:
    """The landmark that an event asks for, if it is of such a kind and can be read."""
    try:
        found = _found([(pack(place) or 0, link.envelope, link.payload)])
        return [Landmark(place, kind, kept) for _, kind, kept in found]
    except msgspec.DecodeError:  # whoever reads the event says so
        return []


def misplaced(db: Database, span: Span, found: Sequence[Landmark]) -> list[str]:
    """What is wrong with the landmarks of a stretch, given those that its events ask for."""
    row = db.run("has_landmarks", {"segment": span.segment}).fetchone()
    if row is None or row["landmarks"] is None:
        return []
    keys = {"first": span.segment << 32 | span.first, "last": span.segment << 32 | span.last}
    stored = {_place(key): (kind, kept) for key, kind, kept in map(tuple, db.run("landmarks_between", keys))}
    wanted = {one.position: one for one in found}
    flaws = [f"event {place} has no landmark" for place in wanted if place not in stored]
    flaws += [f"the landmark at {place} is not that of a {stored[place][0]}" for place in stored if place not in wanted]
    for place, one in wanted.items():
        kind, kept = stored.get(place, (one.kind, one.kept_from))
        if kind != one.kind or (one.kept_from is not None and kept != one.kept_from):
            flaws.append(f"the landmark at {place} says something else than its event")
    return flaws


def _scanned(db: Database, scope: Scope, segment: int) -> list[tuple[int, str, int | None]]:
    """The landmarks of a whole segment. Of its events no more than one is in memory at a time."""
    keys = {"first": segment << 32, "last": segment << 32 | ORDINALS}
    return list(_found(db.tuples("segment_contents", keys)))


def _mark(db: Database, scope: Scope, segment: int, rows: Sequence[tuple[int, str, int | None]]) -> None:
    db.run_many("insert_missing_landmark", rows)
    db.run("mark_segment", {"segment": segment})


def _found(rows: Iterable[tuple[int, str, str | None]]) -> Iterable[tuple[int, str, int | None]]:
    """The landmarks among events, as rows."""
    for key, envelope, payload in rows:
        sealed = decode_envelope(envelope)
        if sealed.kind in LANDMARKS:
            kept = kept_from(body_of(sealed, payload)) if sealed.kind == "condensation" else None
            yield key, sealed.kind, kept


def _has_failed(db: Database, scope: Scope) -> bool:
    """After a failed COMMIT the landmarks count as not written: they are looked for again."""
    return False


def _place(key: int) -> Position:
    place = unpack(key)
    assert place is not None
    return place
