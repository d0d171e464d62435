"""Operations of care: verifying that history is as it was written, and collecting what nobody reaches.
Tests: forkpoint.testing.conformance.care, tests/store/test_verify.py."""

import sqlite3
from collections.abc import Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct

from forkpoint.errors import ForkpointError, StoreDamaged, Unpaired
from forkpoint.events import Position, Usage, decode_body, decode_envelope
from forkpoint.history.digests import Link, flaw, root_digest
from forkpoint.history.pairing import NO_CALLS, OpenCalls
from forkpoint.history.paths import Span
from forkpoint.history.state import EMPTY, State
from forkpoint.ids import id_from_bytes
from forkpoint.store.sqlite.connection import SQL, Database
from forkpoint.store.sqlite.operations import conversations, records
from forkpoint.store.sqlite.operations.history import head_at, read_path, read_state
from forkpoint.store.sqlite.rows import ORDINALS, Scope, load_calls, load_state, load_usage, unpack
from forkpoint.store.values import Collected, Flaw, Verification

BATCH = 500
"""How many events one step of the collector removes, so that no turn waits long for it."""

_PAGE = 1000


class Stretch(Struct, frozen=True):
    """The end of a segment that no conversation reaches: everything after an ordinal."""

    segment: int
    after: int
    whole: bool  # nothing of the segment is reached

    @property
    def keys(self) -> dict[str, int]:
        return {"first": (self.segment << 32) + self.after + 1, "last": self.segment << 32 | ORDINALS}


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
            if ends is not None and unpack(ends["end"]) == place:
                totals = self._turn(ends, place, calls, state, totals)
            previous = link.chain_digest
            self.digests.add(previous)
            self.events += 1
            self.erased += link.payload is None
            expected += 1
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


# The collector.


def families(db: Database, scope: Scope) -> list[bytes]:
    return [row["family"] for row in db.execute(SQL["families"], {"tenant": scope.tenant})]


def unreached(db: Database, scope: Scope, family: bytes) -> list[Stretch]:
    """What no conversation of a family reaches, children before their parents."""
    heads = db.execute(SQL["family_heads"], {"family": family})
    reached: dict[int, int] = {row["segment"]: row["ordinal"] for row in heads}
    stretches = []
    for row in db.execute(SQL["family_segments"], {"family": family, "tenant": scope.tenant}).fetchall():
        base = unpack(row["base"])  # always in an older segment, which comes later here
        if row["id"] not in reached:
            stretches.append(Stretch(row["id"], base.ordinal if base else 0, whole=True))
            continue
        if base is not None:
            reached[base.segment] = max(reached.get(base.segment, 0), base.ordinal)
        stretches.append(Stretch(row["id"], reached[row["id"]], whole=False))
    return stretches


def measure(db: Database, stretch: Stretch) -> Collected:
    """What collecting a stretch would remove."""
    found = db.execute(SQL["measure_events"], stretch.keys).fetchone()
    turns = db.execute(SQL["turns_in_stretch"], stretch.keys | {"after": stretch.after}).fetchone()["turns"]
    return Collected(found["events"], found["bytes"], int(stretch.whole), turns=turns)


def collect_some(db: Database, scope: Scope, family: bytes) -> tuple[Collected, bool]:
    """Removes at most a batch of what a family does not reach; says whether there is more."""
    done = Collected()
    for stretch in unreached(db, scope, family):
        left = BATCH - done.events
        rows = db.execute(SQL["last_events"], stretch.keys | {"limit": left}).fetchall()
        if rows:
            db.execute(SQL["delete_events"], {"first": rows[-1]["id"], "last": rows[0]["id"]})
            done += Collected(len(rows), sum(row["bytes"] for row in rows))
        if len(rows) == left:
            return done, True
        parameters = stretch.keys | {"after": stretch.after}
        db.execute(SQL["free_keys_of_turns"], parameters | {"tenant": scope.tenant})
        for turn in db.execute(SQL["delete_turns"], parameters).fetchall():
            records.forget_turn(db, scope, turn["id"])
            done += Collected(turns=1)
        if stretch.whole:
            db.execute(SQL["delete_segment"], {"id": stretch.segment})
            done += Collected(segments=1)
    return done, False


def old_drafts(db: Database, scope: Scope, before: int) -> list[str]:
    """Drafts without an open turn that nobody has touched since."""
    parameters = {"tenant": scope.tenant, "before": before}
    return [id_from_bytes(row["id"]) for row in db.execute(SQL["old_drafts"], parameters)]


def count_old_keys(db: Database, scope: Scope, before: int) -> int:
    row = db.execute(SQL["count_old_keys"], {"tenant": scope.tenant, "before": before}).fetchone()
    return int(row["keys"])


def delete_old_keys(db: Database, scope: Scope, before: int) -> int:
    return db.execute(SQL["delete_old_keys"], {"tenant": scope.tenant, "before": before}).rowcount


def forget_holders(db: Database, before: int) -> None:
    db.execute(SQL["forget_holders"], {"before": before})
