"""Verification: whether history is as it was written.
Tests: forkpoint.testing.conformance.care, tests/store/test_verify.py."""

import sqlite3
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from forkpoint.errors import ForkpointError, StoreDamaged, Unpaired
from forkpoint.events import Position, Usage, decode_body, decode_envelope
from forkpoint.history.digests import Link, flaw, root_digest
from forkpoint.history.landmarks import Landmark
from forkpoint.history.pairing import NO_CALLS, OpenCalls
from forkpoint.history.paths import Span
from forkpoint.history.state import EMPTY, State
from forkpoint.ids import id_from_bytes
from forkpoint.store.sqlite.connection import SQL, Database
from forkpoint.store.sqlite.operations import conversations
from forkpoint.store.sqlite.operations.history import head_at, read_path, read_state
from forkpoint.store.sqlite.operations.landmarks import landmark_at, misplaced
from forkpoint.store.sqlite.rows import ORDINALS, Scope, load_calls, load_state, load_usage, unpack
from forkpoint.store.values import Flaw, Verification

_PAGE = 1000


def verify(db: Database, scope: Scope, conversation: str | None, head_digest: bytes | None) -> Verification:
    """Checks one conversation's path, or everything that the tenant has."""
    check = _Check(db, scope)
    if conversation is None:
        heads = db.execute(SQL["all_conversations"], {"tenant": scope.tenant}).fetchall()
        for row in db.execute(SQL["all_segments"], {"tenant": scope.tenant}).fetchall():
            base = unpack(row["base"])
            first = (base.ordinal if base else 0) + 1
            if row["last"] is not None:
                check.span(Span(row["id"], first, row["last"]))
    else:
        heads = [conversations.row_of(db, scope, conversation)]
        with suppress(StoreDamaged):  # `head` below finds the same, and says so
            for span in read_path(db, scope, heads[0]["family"], unpack(heads[0]["head"])).spans:
                check.span(span)
    for row in heads:
        check.head(row)
    if head_digest is not None and head_digest not in check.digests:
        check.found("head digest", f"{head_digest.hex()} is not on the path: history was rewritten or cut")
    return Verification(len(heads), check.events, check.erased, tuple(check.flaws))


class _Check:
    """One run of `verify`: what it has counted and found so far."""

    def __init__(self, db: Database, scope: Scope) -> None:
        self._db = db
        self._scope = scope
        self.events = 0
        self.erased = 0
        self.flaws: list[Flaw] = []
        self.digests: set[bytes] = set()  # of all that was looked at, the start included

    def found(self, where: str, what: str) -> None:
        self.flaws.append(Flaw(where, what))

    def span(self, span: Span) -> None:
        """Follows the chain through a stretch that starts where its segment starts."""
        segment = self._db.execute(SQL["read_segment"], {"id": span.segment, "tenant": self._scope.tenant}).fetchone()
        if segment is None:
            return self.found(f"segment {span.segment}", "it is missing")
        previous, calls, state, totals = self._base(segment)
        expected, turn = span.first, None
        ends: sqlite3.Row | None = None  # the row of the turn that the events are of
        landmarks: list[Landmark] = []
        for row in self._rows(span):
            place = Position(span.segment, row["id"] & ORDINALS)
            if place.ordinal != expected:
                return self.found(str(place), f"event {span.segment}-{expected} before it is missing")
            link = Link(*tuple(row)[1:])
            if what := flaw(previous, link):
                self.found(str(place), what)
            if row["turn"] != turn:
                calls, turn = self._at_a_commit(calls, place), row["turn"]
                ends = self._db.execute(SQL["turn_behind_event"], {"id": turn}).fetchone()
                if ends is None:
                    self.found(str(place), f"its turn {id_from_bytes(turn)} is missing")
            calls, state = self._content(link, calls, state, place)
            landmarks += landmark_at(place, link)
            if ends is not None and unpack(ends["end"]) == place:
                totals = self._turn(ends, place, calls, state, totals)
            previous = link.chain_digest
            self.digests.add(previous)
            self.events += 1
            self.erased += link.payload is None
            expected += 1
        for what in misplaced(self._db, span, landmarks):
            self.found(f"segment {span.segment}", what)
        if expected <= span.last:
            self.found(f"{span.segment}-{expected}", f"events up to {span.segment}-{span.last} are missing")
        return None

    def head(self, row: sqlite3.Row) -> None:
        """Checks that a head stands on the event whose digest it names."""
        where = f"conversation {id_from_bytes(row['id'])}"
        self.digests.add(root_digest(row["family"]))
        if row["head"] is None:
            expected = root_digest(row["family"])
        else:
            event = self._db.execute(SQL["event_at"], {"id": row["head"]}).fetchone()
            if event is None:
                return self.found(where, f"its head {unpack(row['head'])} is missing")
            expected = event["chain_digest"]
            if event["turn"] != row["head_turn"]:
                self.found(where, "its head names another turn than the event there")
            turn = self._db.execute(SQL["turn_behind_event"], {"id": event["turn"]}).fetchone()
            if turn is not None and turn["end"] == row["head"]:
                stated = (row["head_totals"], row["head_state_of"], row["head_open_calls"])
                if stated != (turn["totals"], turn["state_of"], turn["open_calls"]):
                    self.found(where, "its head states another cost, state or open call than its last turn")
        if row["head_digest"] != expected:
            self.found(where, "its head names another digest than the event there")
        try:
            read_path(self._db, self._scope, row["family"], unpack(row["head"]))
        except StoreDamaged as damage:
            self.found(where, damage.detail)

    def _base(self, segment: sqlite3.Row) -> tuple[bytes, OpenCalls, State, Usage]:
        """What is true where a segment starts: the digest that its first event follows, open calls, state, totals."""
        where = f"segment {segment['id']}"
        try:
            base = head_at(self._db, segment["family"], unpack(segment["base"]))
            state = read_state(self._db, base)
        except (ForkpointError, msgspec.DecodeError) as damage:
            self.found(where, f"its base does not hold: {damage}")
            return segment["base_digest"], NO_CALLS, EMPTY, Usage()
        if segment["base_digest"] != base.digest:
            self.found(where, "it names another digest than its base has")
        return segment["base_digest"], base.open_calls, state, base.totals

    def _content(self, link: Link, calls: OpenCalls, state: State, place: Position) -> tuple[OpenCalls, State]:
        try:
            envelope = decode_envelope(link.envelope)
            state = state.then(decode_body(link.payload))
            return calls.then(envelope), state
        except msgspec.DecodeError as error:
            self.found(str(place), f"it cannot be read: {error}")
        except Unpaired as error:
            self.found(str(place), str(error))
        return calls, state

    def _turn(self, turn: sqlite3.Row, place: Position, calls: OpenCalls, state: State, totals: Usage) -> Usage:
        """At a turn's last event, checks what its row says is true from there on. Returns the totals there."""
        where = f"turn {id_from_bytes(turn['id'])}"
        try:
            stated = load_usage(turn["totals"])
            if stated != totals + load_usage(turn["usage"]):
                self.found(where, "its cost does not add up")
            if turn["state"] is not None and not self.erased and load_state(turn["state"]) != state:
                self.found(where, "the state that it left is not what its events fold to")
            if load_calls(turn["open_calls"]) != self._at_a_commit(calls, place):
                self.found(where, "the calls that it left open are not those in its events")
        except msgspec.DecodeError as error:
            self.found(where, f"it cannot be read: {error}")
            return totals
        return stated

    def _at_a_commit(self, calls: OpenCalls, place: Position) -> OpenCalls:
        try:
            return calls.at_a_commit()
        except Unpaired as error:
            self.found(str(place), str(error))
            return NO_CALLS

    def _rows(self, span: Span) -> Iterator[sqlite3.Row]:
        first, last = span.segment << 32 | span.first, span.segment << 32 | span.last
        while first <= last:
            rows = self._db.execute(SQL["links_between"], {"first": first, "last": last, "limit": _PAGE}).fetchall()
            yield from rows
            if len(rows) < _PAGE:
                return
            first = rows[-1]["id"] + 1
