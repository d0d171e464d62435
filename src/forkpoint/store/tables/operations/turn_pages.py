"""Pages of a conversation's turns. Tests: forkpoint.testing.conformance.turns, branches.parts."""

from collections.abc import Sequence
from contextlib import closing

from msgspec import Struct
from msgspec.structs import replace

from forkpoint.errors import BadName
from forkpoint.events import Position, Usage
from forkpoint.history.pairing import NO_CALLS
from forkpoint.history.paths import Span
from forkpoint.ids import id_from_bytes, id_to_bytes
from forkpoint.paging import Page
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.operations import conversations
from forkpoint.store.tables.operations.history import counted_from, read_spans, spans_back, turn_row
from forkpoint.store.tables.operations.turns import read, uncommitted
from forkpoint.store.tables.rows import ORDINALS, Scope, head_of, load_usage, pack, turn_of
from forkpoint.store.values import StoredTurn


class Wanted(Struct, frozen=True):
    """Which turns a page has: ``since`` this ordinal, with ``notes``, or only those that are ``committed``."""

    since: int = 0
    notes: bool = True
    committed: bool = False

    def has(self, turn: StoredTurn) -> bool:
        return (
            _order(turn)[0] >= self.since
            and (self.notes or turn.kind == "turn")
            and (not self.committed or turn.outcome == "committed")
        )


def page(
    db: Database, scope: Scope, *, conversation: str, cursor: str | None, limit: int, wanted: Wanted
) -> Page[StoredTurn]:
    """The path's turns and notes with the conversation's own uncommitted tries, by where they started, then when."""
    after = max((-1, "") if cursor is None else _parse_cursor(cursor), (_possible_ordinal(wanted.since), ""))
    row = conversations.row_of(db, scope, conversation)
    found = [] if wanted.committed else uncommitted(db, scope, row, after[0])
    committed: list[StoredTurn] = []
    spans = read_spans(db, scope, row["family"], head_of(row).position, after[0])
    for n, span in enumerate(spans):
        # One more than the page, and the turn in which it starts: the cursor's own, or one that began before `since`.
        whole = _in_span(db, scope, "turns_in_span", span, limit + 2, wanted)
        committed += whole
        if len(whole) < limit + 2 and (part := _part(db, scope, row, spans[n : n + 2])) is not None:
            committed.append(part)
        if len(committed) > limit + 1:
            break
    found = sorted((turn for turn in found + committed if _order(turn) > after and wanted.has(turn)), key=_order)
    items = tuple(found[:limit])
    return Page(items, "{}:{}".format(*_order(items[-1])) if len(found) > limit else None)


def newest_page(
    db: Database, scope: Scope, *, conversation: str, cursor: str | None, limit: int, wanted: Wanted
) -> Page[StoredTurn]:
    """The same turns, those that began last first.

    Two runs are merged: the path, walked back from its head, and the tries. A rewind leaves tries behind that began
    earlier than turns of the path and stand further along it, so where a turn stands does not say when it began. The
    cursor says how far each run was read, and thus turns that begin meanwhile disturb no later page.
    """
    row = conversations.row_of(db, scope, conversation)
    head = head_of(row).position
    below, before = (head.ordinal if head else 0, "") if cursor is None else _parse_newest(cursor)
    path = _path_back(db, scope, row, below, limit + 1, wanted)
    tries = [] if wanted.committed else _tries_back(db, scope, row, before, limit + 1, wanted)
    items: list[StoredTurn] = []
    while len(items) < limit and (path or tries):
        if path and not (tries and tries[0].id > path[0].id):
            items.append(path.pop(0))
            below = _order(items[-1])[0]
        else:
            items.append(tries.pop(0))
            before = items[-1].id
    return Page(tuple(items), f"-{below}:{before}" if path or tries else None)


def _path_back(
    db: Database, scope: Scope, conversation: Row, below: int, most: int, wanted: Wanted
) -> list[StoredTurn]:
    """The last committed turns of a path up to an ordinal, the last one first. No more of the path is read."""
    found: list[StoredTurn] = []
    newer: list[Span] = []  # the stretch that follows
    with closing(spans_back(db, scope, conversation["family"], head_of(conversation).position)) as spans:
        for span in spans:
            if len(found) >= most or span.last <= wanted.since:
                break
            if span.last <= below and (part := _part(db, scope, conversation, [span, *newer])) is not None:
                found += [part] if wanted.has(part) else []
            if span.first <= below:
                upto = Span(span.segment, span.first, min(span.last, below))
                found += filter(wanted.has, _in_span(db, scope, "newest_turns_in_span", upto, most, wanted))
            newer = [span]
    return found[:most]


def _tries_back(
    db: Database, scope: Scope, conversation: Row, before: str, most: int, wanted: Wanted
) -> list[StoredTurn]:
    """A conversation's last tries that began before a turn, and its open turn. The last one comes first."""
    own = {
        "conversation": conversation["id"],
        "tenant": scope.tenant,
        "before": id_to_bytes(before) if before else b"\xff" * 17,
        "since": _possible_ordinal(wanted.since),
        "limit": most,
    }
    tries = [turn_of(row, scope) for row in db.run("newest_tries", own)]
    if conversation["open_turn"] is not None:
        tries.append(read(db, scope, id_from_bytes(conversation["open_turn"])))
    tries = [turn for turn in tries if wanted.has(turn) and (not before or turn.id < before)]
    return sorted(tries, key=lambda turn: turn.id, reverse=True)[:most]


def _in_span(db: Database, scope: Scope, statement: str, span: Span, most: int, wanted: Wanted) -> list[StoredTurn]:
    stretch = {"first": span.segment << 32 | span.first, "last": span.segment << 32 | span.last}
    rows = db.run(statement, stretch | {"notes": wanted.notes, "limit": most})
    return [turn_of(row, scope) for row in rows]


def _part(db: Database, scope: Scope, conversation: Row, spans: Sequence[Span]) -> StoredTurn | None:
    """The turn or note of which a path has only the first events, since the first of these stretches ends within it.

    Its usage is what the conversation itself has spent on that part. A part that was inherited cost others something.
    """
    here = Position(spans[0].segment, spans[0].last)
    event = db.run("event_at", {"id": pack(here)}).fetchone()
    if event is None or (row := turn_row(db, event["turn"]))["end"] == pack(here):
        return None
    turn = read(db, scope, id_from_bytes(row["id"]))
    if len(spans) == 1:
        totals = load_usage(conversation["head_totals"])
    else:  # whoever went on from there has counted from there
        totals = counted_from(db, Position(spans[1].segment, spans[1].first))
    own = conversations.spend_of(conversation)
    began = turn.base.ordinal if turn.base else 0
    before = turn.totals - turn.usage if own.own_from <= began else own.inherited
    usage = Usage() if here.ordinal <= own.own_from else totals - before
    return replace(turn, end=here, usage=usage, totals=totals, open_calls=NO_CALLS, partial=True)


def _order(turn: StoredTurn) -> tuple[int, str]:
    return (turn.base.ordinal if turn.base else 0, turn.id)


def _possible_ordinal(ordinal: int) -> int:
    """An ordinal as a parameter of SQL: at least 0, and at most one more than an event can have."""
    return min(max(ordinal, 0), ORDINALS + 1)


def _parse_cursor(cursor: str) -> tuple[int, str]:
    ordinal, colon, id = cursor.partition(":")
    if not (colon and ordinal.isascii() and ordinal.isdigit()):
        raise BadName.bad_cursor(cursor[:200])
    if len(ordinal) > 10:
        raise BadName.bad_cursor(cursor[:200])
    return int(ordinal), id


def _parse_newest(cursor: str) -> tuple[int, str]:
    """How far a path and the tries were read. Raises `BadName` unless it is a cursor of a page, newest first."""
    sign, _, rest = cursor.partition("-")
    if sign:
        raise BadName.bad_cursor(cursor[:200])
    ordinal, before = _parse_cursor(rest)
    try:
        return ordinal, id_from_bytes(id_to_bytes(before)) if before else ""
    except ValueError:
        raise BadName.bad_cursor(cursor[:200]) from None
