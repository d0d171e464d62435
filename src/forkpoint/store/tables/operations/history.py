"""Reading history: paths, events, and the head that stood at a position.
Tests: forkpoint.testing.conformance.turns, branches.forks, tests/store/test_reading.py."""

from collections.abc import Generator, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from forkpoint.errors import BadPosition, NotFound, StoreDamaged
from forkpoint.events import Content, Event, ModelCalled, Position, StagedEvent, Usage, body_of, decode_envelope
from forkpoint.history.digests import root_digest
from forkpoint.history.pairing import NO_CALLS, open_cuts, safe_cuts
from forkpoint.history.paths import Path, Span, join
from forkpoint.history.state import State, fold
from forkpoint.ids import id_from_bytes, id_to_bytes
from forkpoint.store.stage import Sealed
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.rows import (
    ORDINALS,
    Parameters,
    Scope,
    load_calls,
    load_usage,
    pack,
    state_or_empty,
    text,
    unpack,
)
from forkpoint.store.values import Head


def read_path(db: Database, scope: Scope, family: bytes, head: Position | None) -> Path:
    """The path that leads to a position of a family."""
    return Path(read_spans(db, scope, family, head, after=0))


def read_spans(db: Database, scope: Scope, family: bytes, head: Position | None, after: int) -> tuple[Span, ...]:
    """The stretches of a path that follow an ordinal. What comes before is not read, however long it is."""
    if head is None or head.ordinal <= after:
        return ()
    rows = db.run("path_spans", from_head(scope, family, head, after))
    spans = [Span(segment, max(first, after + 1), last) for segment, first, last in rows]
    unread = [Span(0, 1, after)] if after else []  # stands for all that comes before
    try:
        path = join([*unread, *sorted(spans, key=lambda span: span.first)])
    except ValueError as error:
        raise StoreDamaged(db.path, f"the path to {head} has a gap: {error}") from None
    if path.head != head:
        raise StoreDamaged(db.path, f"the path to {head} does not lead there")
    return path.after(after)


def spans_back(db: Database, scope: Scope, family: bytes, head: Position | None) -> Generator[Span, None, None]:
    """The stretches of a path from its head back to the root, each read when it is wanted."""
    if head is None:
        return
    upto = head.ordinal
    rows = db.run("path_spans", from_head(scope, family, head, 0))
    try:
        for segment, first, last in rows:
            if last != upto:
                raise StoreDamaged(db.path, f"the path to {head} has a gap between {last} and {upto}")
            yield Span(segment, first, last)
            upto = first - 1
    finally:
        rows.close()
    if upto:
        raise StoreDamaged(db.path, f"the path to {head} does not begin at the root")


def place_on(db: Database, scope: Scope, conversation: Row, at: Position | None) -> tuple[bytes, Position | None]:
    """A conversation's family, and a position on its path; None: its head. Raises `NotFound` if it is not there."""
    family, head = conversation["family"], unpack(conversation["head"])
    if at is None or at == head:
        return family, head
    if at not in read_path(db, scope, family, head):
        raise NotFound("event", str(at))
    return family, at


def read_events(
    db: Database, scope: Scope, family: bytes, head: Position | None, after: int, upto: int, kinds: Sequence[str] = ()
) -> list[Event]:
    """The events of a path after one ordinal, up to and including another."""
    if head is None or upto <= after:
        return []
    parameters = from_head(scope, family, head, after) | {"upto": upto}
    rows = db.tuples("path_events", parameters).fetchall()  # this is the one place where the cost of a row counts
    rows.sort(key=_ordinal)
    if len(rows) != upto - after or _ordinal(rows[0]) != after + 1 or _ordinal(rows[-1]) != upto:
        raise StoreDamaged(db.path, f"{upto - after - len(rows)} events are missing between {after + 1} and {upto}")
    return decoded(rows, kinds)


def read_stretch(db: Database, first: int, last: Position) -> list[Event]:
    """The events of one segment from an ordinal to a position: what one commit wrote stands in one."""
    stretch = {"first": last.segment << 32 | first, "last": last.segment << 32 | last.ordinal}
    return decoded(db.tuples("events_between", stretch).fetchall())


def read_digests(db: Database, scope: Scope, family: bytes, head: Position | None, after: int) -> list[bytes]:
    """The chain digests of the events of a path after an ordinal."""
    digests: list[bytes] = []
    for span in read_spans(db, scope, family, head, after):
        stretch = {"first": span.segment << 32 | span.first, "last": span.segment << 32 | span.last}
        digests += [row["chain_digest"] for row in db.run("digests_of_a_segment", stretch)]
    return digests


def decoded(rows: Iterable[Any], kinds: Sequence[str] = ()) -> list[Event]:
    """Rows of position, turn, envelope and payload as events."""
    turns: dict[bytes, str] = {}
    events: list[Event] = []
    for key, turn, envelope, payload in rows:
        sealed = decode_envelope(envelope)
        if kinds and sealed.kind not in kinds:
            continue
        turn_id = turns.get(turn) or turns.setdefault(turn, id_from_bytes(turn))
        events.append(Event(Position(key >> 32, key & ORDINALS), turn_id, sealed, body_of(sealed, payload)))
    return events


def read_steps(db: Database, turn: str) -> list[StagedEvent]:
    """The journalled events of a turn, as they arrived."""
    rows = db.run("read_steps", {"turn": id_to_bytes(turn)}).fetchall()
    sealed = [(decode_envelope(envelope), payload) for envelope, payload in rows]
    return [StagedEvent(envelope, body_of(envelope, payload)) for envelope, payload in sealed]


def read_sealed(db: Database, turn: str) -> list[Sealed]:
    """The same, ready to be made history."""
    rows = db.run("read_steps", {"turn": id_to_bytes(turn)}).fetchall()
    return [Sealed(decode_envelope(envelope), envelope, payload) for envelope, payload in rows]


def read_state(db: Database, head: Head) -> State:
    """The folded state at a head: one read, however long the history."""
    if head.state is not None:
        return head.state
    if head.state_of is None:
        return state_or_empty(None)
    row = db.run("state_of_turn", {"id": id_to_bytes(head.state_of)}).fetchone()
    if row is None:
        raise StoreDamaged(db.path, f"the state left by turn {head.state_of} is missing")
    return state_or_empty(row["state"])


def resolve(
    db: Database,
    scope: Scope,
    family: bytes,
    head: Head,
    at: str | Position | None,
    before: str | Position | None,
    *,
    is_answered: bool = False,
) -> Head:
    """The head as it was at a turn or event of the path (included or excluded), if that is a safe place.

    ``is_answered``: what follows in the same transaction answers the calls that are open there.
    """
    wanted = before if at is None else at
    if at is not None and before is not None:
        raise BadPosition(str(at)[:200], "`at` and `before` were both given", use="either of the two")
    if wanted is None:
        return head
    path = read_path(db, scope, family, head.position)
    position = _place(db, scope, path, wanted, excluded=at is None)
    if position == head.position:
        return head
    found = head_at(db, family, position, is_answered=is_answered, path=path)
    next = None if position is None else path.at(position.ordinal + 1)
    if position is None or next is None or next.segment == position.segment:
        return found
    return replace(found, totals=counted_from(db, next))


def head_at(
    db: Database, family: bytes, position: Position | None, *, is_answered: bool = False, path: Path | None = None
) -> Head:
    """What is true at a position. Constant cost after a turn; in the middle of one, as long as that turn.

    Raises `BadPosition` inside a tool exchange or a model response, with the nearest safe positions on the ``path``.
    With ``is_answered`` the place after a whole response is allowed, where none of its calls has a result.
    """
    if position is None:
        return Head(None, root_digest(family))
    event = db.run("event_at", {"id": pack(position)}).fetchone()
    if event is None:
        raise StoreDamaged(db.path, f"event {position} is missing")
    turn = turn_row(db, event["turn"])
    if turn["end"] == pack(position):
        return Head(
            position,
            event["chain_digest"],
            text(turn["id"]),
            load_usage(turn["totals"]),
            text(turn["state_of"]),
            None,
            load_calls(turn["open_calls"]),
        )
    return _head_within(db, family, position, event, turn, is_answered=is_answered, path=path)


def _head_within(
    db: Database, family: bytes, position: Position, event: Row, turn: Row, *, is_answered: bool, path: Path | None
) -> Head:
    before_turn = unpack(turn["base"])
    if before_turn is not None and before_turn.ordinal >= position.ordinal:
        raise StoreDamaged(db.path, f"event {position} is not of the turn that it names")
    base = head_at(db, family, before_turn, is_answered=True)
    rows = rows_of_turn(db, position.segment, base.ordinal, turn)
    envelopes = [decode_envelope(row["envelope"]) for row in rows]
    open_before = base.open_calls.at_a_base()
    is_whole = bool(rows) and rows[-1]["id"] == turn["end"]  # or the rest of the turn was collected
    cuts = safe_cuts(envelopes, open_before, is_whole=is_whole)
    taken = position.ordinal - base.ordinal
    if taken > len(rows):
        raise StoreDamaged(db.path, f"event {position} is beyond the end of its turn")
    calls = open_cuts(envelopes, open_before).get(taken, NO_CALLS) if is_answered and taken not in cuts else NO_CALLS
    if taken not in cuts and not calls:
        around = [max((cut for cut in cuts if cut < taken), default=None)]
        around.append(min((cut for cut in cuts if cut > taken), default=None))
        places = [
            base.position if cut == 0 else Position(position.segment, base.ordinal + cut)
            for cut in around
            if cut is not None
        ]
        places = [place for place in places if place is None or path is None or place in path]
        nearest = tuple(str(place) for place in places if place is not None)
        use = "the start" if None in places else "" if nearest else "its turn"
        raise BadPosition(str(position), "it stands inside a tool exchange or a model response", nearest, use)
    before = read_state(db, base)
    bodies = [body_of(envelopes[n], rows[n]["payload"]) for n in range(taken)]
    state = fold(bodies, before)
    return Head(
        position,
        event["chain_digest"],
        text(turn["id"]),
        totals_within(turn, bodies),
        base.state_of,
        base.state if state is before else state,
        calls,
    )


def totals_within(turn: Row, bodies: Iterable[Content]) -> Usage:
    """What a path has cost after these first events of a turn. A call of a model that was erased counts as nothing."""
    before = load_usage(turn["totals"]) - load_usage(turn["usage"])
    return sum((body.usage for body in bodies if isinstance(body, ModelCalled)), before)


def counted_from(db: Database, first: Position) -> Usage:
    """What a path had cost just before the first event of a segment, as the commit counted that begins there.

    In the middle of a turn that may be another figure than can be made of the events: calls of models may have been
    erased since, and an earlier program counted none of them.
    """
    event = db.run("event_at", {"id": pack(first)}).fetchone()
    if event is None:
        raise StoreDamaged(db.path, f"event {first} is missing")
    turn = turn_row(db, event["turn"])
    return load_usage(turn["totals"]) - load_usage(turn["usage"])


def rows_of_turn(db: Database, segment: int, after: int, turn: Row) -> list[Row]:
    """The events of a committed turn, as many as there are: the rest of it may be collected."""
    last = turn["end"] or (segment << 32 | ORDINALS)
    rows = db.run("links_between", {"first": (segment << 32) + after + 1, "last": last, "limit": -1})
    return [row for row in rows.fetchall() if row["turn"] == turn["id"]]


def _place(db: Database, scope: Scope, path: Path, wanted: str | Position, *, excluded: bool) -> Position | None:
    """The position that is meant by a turn's id or an event's, if it is on the path."""
    if isinstance(wanted, str) and len(wanted) == 36:
        turn = db.run("read_turn", {"tenant": scope.tenant, "id": _turn_key(wanted)}).fetchone()
        end = None if turn is None else unpack(turn["end"])
        if end is None:
            raise NotFound("committed turn", wanted)
        base = unpack(turn["base"])
        last = last_on(path, base, end)
        if last is None:
            raise BadPosition(wanted, "that turn is not on this conversation's path", *_ends(path))
        return base if excluded else last
    try:
        position = wanted if isinstance(wanted, Position) else Position.parse(wanted)
    except ValueError:
        raise BadPosition(str(wanted)[:200], "it is neither a turn's id nor an event's", *_ends(path)) from None
    if position not in path:
        raise BadPosition(str(position), "it is not on this conversation's path", *_ends(path))
    return path.at(position.ordinal - 1) if excluded else position


def last_on(path: Path, base: Position | None, end: Position) -> Position | None:
    """The last event that a path has of a turn, which may be only a part of it; None if the path has none."""
    if end in path:
        return end
    began = 0 if base is None else base.ordinal
    spans = [span for span in path.spans if span.segment == end.segment and span.first <= began + 1 <= span.last]
    return Position(end.segment, spans[0].last) if spans and (base is None or base in path) else None


def _turn_key(wanted: str) -> bytes:
    try:
        return id_to_bytes(wanted)
    except ValueError:
        raise NotFound("committed turn", wanted) from None


def turn_row(db: Database, id: bytes) -> Row:
    row: Row | None = db.run("turn_behind_event", {"id": id}).fetchone()
    if row is None:
        raise StoreDamaged(db.path, f"turn {id_from_bytes(id)} is missing")
    return row


def from_head(scope: Scope, family: bytes, head: Position, after: int) -> Parameters:
    """The parameters of a statement that walks a path back from a head, down to an ordinal."""
    return {"segment": head.segment, "ordinal": head.ordinal, "family": family, "tenant": scope.tenant, "after": after}


def _ends(path: Path) -> tuple[tuple[str, ...], str]:
    """The ends of a path, as the nearest safe places."""
    return (() if path.head is None else (str(path.head),)), "the start"


def _ordinal(row: tuple[int, bytes, str, str]) -> int:
    return row[0] & ORDINALS
