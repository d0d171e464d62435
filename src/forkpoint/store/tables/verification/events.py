"""Events: whether each follows the one before, and adds up to what its turn says.
Tests: tests/store/test_verify.py."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct, field

from forkpoint.errors import ForkpointError, Unpaired
from forkpoint.events import (
    AssistantMessage,
    Envelope,
    Position,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    body_of,
    decode_envelope,
)
from forkpoint.history.digests import Link, flaw
from forkpoint.history.landmarks import LANDMARKS, Landmark
from forkpoint.history.pairing import NO_CALLS, OpenCalls
from forkpoint.history.paths import Span
from forkpoint.history.records import ErasedRun
from forkpoint.history.state import EMPTY, State
from forkpoint.ids import id_from_bytes
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.erasure.copied_events import TELLS, Source, source_of
from forkpoint.store.tables.operations.history import head_at, read_state
from forkpoint.store.tables.operations.landmarks import landmark_at, misplaced
from forkpoint.store.tables.rows import ORDINALS, Scope, blob, load_calls, load_state, load_usage, unpack
from forkpoint.store.tables.verification.absences import Absences
from forkpoint.store.tables.verification.findings import Findings
from forkpoint.store.tables.verification.lookups import miscopied
from forkpoint.store.tables.verification.part_cost import PartCost, part_cost

_PAGE = 1000
_MESSAGES = {UserMessage, AssistantMessage, SystemMessage, Reasoning, ToolCall, ToolResult}
"""Most events are of these kinds, and none of them changes the state."""


class Here(Struct):
    """What is true at a place of a segment: what the next event follows, and what its turn began with."""

    digest: bytes
    calls: OpenCalls
    state: State
    totals: Usage
    state_of: bytes | None
    key: int | None  # of the last event; None: the root
    known: bool = True  # False if the base of the segment cannot be read
    part: PartCost | None = None  # what it may have cost, if a turn is cut here
    runs: tuple[ErasedRun, ...] = ()  # erasures that have begun and not ended
    landmarks: tuple[Landmark, ...] = ()  # that the events so far ask for
    copies: dict[int, Source] = field(default_factory=dict)  # the events so far that repeat others
    untold: list[int] = field(default_factory=list)  # erased events, of which only the table of copies knows


class Events:
    """Follows segments, event by event."""

    def __init__(
        self, db: Database, scope: Scope, findings: Findings, absences: Absences, wanted: bytes | None = None
    ) -> None:
        self._db = db
        self._scope = scope
        self._findings = findings
        self._absences = absences
        self._wanted = wanted
        self._is_watching = wanted is not None or bool(absences.runs) or bool(absences.lost_bases)
        self.has_wanted = False

    def check(self, span: Span) -> None:
        """Follows the chain through a stretch that starts where its segment starts, or where a turn does."""
        segment = self._db.run("read_segment", {"id": span.segment, "tenant": self._scope.tenant}).fetchone()
        if segment is None:
            return self._findings.found(f"segment {span.segment}", "it is missing")
        here = self._base(segment, span.first)
        before = here.state  # as it was when the turn of the events began
        expected, turn = span.segment << 32 | span.first, None
        row: Row | None = None  # of the turn that the events are of
        for key, *columns in self._rows(span):
            if key != expected:
                return self._findings.found(_place(key), f"event {_place(expected)} before it is missing")
            link = Link(*columns)
            if what := flaw(here.digest, link):
                self._findings.found(_place(key), what)
            if link.turn != turn:
                if row is not None and row["end"] != here.key:
                    self._findings.found(f"turn {id_from_bytes(row['id'])}", "it does not end with its last event")
                calls = here.calls.at_a_base() if row is None else self._at_a_commit(here.calls, key)
                here.calls, before, turn = calls, here.state, link.turn
                row = self._turn(turn, key, here)
            if self._is_watching or link.payload is None:
                self._check_content(link, here, key)
            self._take(link, here, key)
            here.digest, here.key = link.chain_digest, key
            if row is not None and row["end"] == key:
                self._end_turn(row, here, before)
            expected += 1
        if row is not None and row["end"] is not None and here.key is not None and row["end"] < here.key:
            self._findings.found(f"turn {id_from_bytes(row['id'])}", "it has events after its end")
        for what in misplaced(self._db, span, here.landmarks):
            self._findings.found(f"segment {span.segment}", what)
        for what in miscopied(self._db, span, here.copies, here.untold):
            self._findings.found(f"segment {span.segment}", what)
        if expected <= span.segment << 32 | span.last:
            self._findings.found(_place(expected), f"events up to {span.segment}-{span.last} are missing")
        return None

    def _base(self, segment: Row, first: int) -> Here:
        """What is true where a stretch of a segment starts."""
        where = f"segment {segment['id']}"
        key, digest = segment["base"], segment["base_digest"]
        if first > (0 if key is None else key & ORDINALS) + 1:
            key, digest = segment["id"] << 32 | first - 1, None
        try:
            base = head_at(self._db, segment["family"], unpack(key), is_answered=True)
            part = part_cost(self._db, base.position)
            state = read_state(self._db, base)
        except (ForkpointError, msgspec.DecodeError) as damage:
            self._findings.found(where, f"its base does not hold: {damage}")
            return Here(digest or b"", NO_CALLS, EMPTY, Usage(), None, key, known=False)
        digest = base.digest if digest is None else digest
        if digest != base.digest:
            self._findings.found(where, "it names another digest than its base has")
        return Here(digest, base.open_calls, state, base.totals, blob(base.state_of), key, part=part)

    def _turn(self, id: bytes, key: int, here: Here) -> Row | None:
        """The row of the turn that begins at a place, if it fits there."""
        row: Row | None = self._db.run("turn_of_events", {"id": id}).fetchone()
        if row is None:
            self._findings.found(_place(key), f"its turn {id_from_bytes(id)} is missing")
            return None
        if row["outcome"] != "committed" or row["tenant"] != self._scope.tenant:
            self._findings.found(f"turn {id_from_bytes(id)}", "it has events, and is not committed here")
        if row["base"] != here.key:
            self._findings.found(f"turn {id_from_bytes(id)}", "its events do not stand where it began")
        if row["end"] is not None and row["end"] >> 32 != key >> 32:
            self._findings.found(f"turn {id_from_bytes(id)}", "its events do not stand where it ended")
        return row

    def _check_content(self, link: Link, here: Here, key: int) -> None:
        """Checks that content is missing only where an erasure says so, and whether somebody looks for the event."""
        here.runs = (*here.runs, *self._absences.runs.get(link.chain_digest, ()))
        self._findings.erased += link.payload is None
        if link.payload is None and not here.runs:
            self._findings.found(_place(key), "its content is missing, and no erasure names it")
        elif link.payload is None and link.salt is not None:
            self._findings.found(_place(key), "its content is missing, and its salt is not")
        elif link.payload is not None and here.runs:
            self._findings.found(_place(key), "its content is there, and an erasure says that it is not")
        here.runs = tuple(run for run in here.runs if run.last != link.chain_digest)
        if link.chain_digest == self._wanted:
            self.has_wanted = True
        if (turn := self._absences.lost_bases.get(link.chain_digest)) is not None:
            self._findings.found(turn, "its base is not what its record says")

    def _take(self, link: Link, here: Here, key: int) -> None:
        try:
            envelope = decode_envelope(link.envelope)
            if type(body := body_of(envelope, link.payload)) not in _MESSAGES:
                here.state = here.state.then(body)
            if envelope.kind in LANDMARKS:
                here.landmarks += tuple(landmark_at(Position(key >> 32, key & ORDINALS), link))
            if envelope.origin is not None or envelope.kind in TELLS:
                _note_copy(here, key, envelope, link.payload)
            here.calls = here.calls.then(envelope)
        except msgspec.DecodeError as error:
            self._findings.found(_place(key), f"it cannot be read: {error}")
        except Unpaired as error:
            self._findings.found(_place(key), str(error))

    def _end_turn(self, turn: Row, here: Here, before: State) -> None:
        """At a turn's last event, checks what its row says is true from there on."""
        where = f"turn {id_from_bytes(turn['id'])}"
        assert here.key is not None
        try:
            totals = load_usage(turn["totals"])
            began, part = totals - load_usage(turn["usage"]), here.part
            if began != here.totals and not (part is not None and part.allows(began)):
                self._findings.found(where, "its cost does not add up")
            here.totals, here.part = totals, None
            if turn["state"] is None:
                if here.known and here.state != before:
                    self._findings.found(where, "the state that it left is missing")
            else:
                here.state_of = turn["id"]
                if here.known and load_state(turn["state"]) != here.state:
                    self._findings.found(where, "the state that it left is not what its events fold to")
            if turn["state_of"] != here.state_of:
                self._findings.found(where, "it names another turn for the state in force")
            if load_calls(turn["open_calls"]) != self._at_a_commit(here.calls, here.key):
                self._findings.found(where, "the calls that it left open are not those in its events")
        except msgspec.DecodeError as error:
            self._findings.found(where, f"it cannot be read: {error}")

    def _at_a_commit(self, calls: OpenCalls, key: int) -> OpenCalls:
        try:
            return calls.at_a_commit()
        except Unpaired as error:
            self._findings.found(_place(key), str(error))
            return NO_CALLS

    def _rows(self, span: Span) -> Iterator[tuple[Any, ...]]:
        first, last = span.segment << 32 | span.first, span.segment << 32 | span.last
        while first <= last:
            rows = self._db.tuples("links_between", {"first": first, "last": last, "limit": _PAGE}).fetchall()
            yield from rows
            self._findings.saw_events(len(rows))
            if len(rows) < _PAGE:
                return
            first = rows[-1][0] + 1


def _note_copy(here: Here, key: int, envelope: Envelope, payload: str | None) -> None:
    if (source := source_of(envelope, payload)) is not None:
        here.copies[key] = source
    elif payload is None:
        here.untold.append(key)


def _place(key: int) -> str:
    return str(Position(key >> 32, key & ORDINALS))
