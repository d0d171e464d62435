"""Pages of a conversation's turns. Tests: forkpoint.testing.conformance.turns, branches.parts."""

import sqlite3
from collections.abc import Sequence

from msgspec.structs import replace

from forkpoint.errors import BadName
from forkpoint.events import Position, Usage
from forkpoint.history.pairing import NO_CALLS
from forkpoint.history.paths import Span
from forkpoint.ids import id_from_bytes
from forkpoint.paging import Page
from forkpoint.store.sqlite.connection import SQL, Database
from forkpoint.store.sqlite.operations import conversations
from forkpoint.store.sqlite.operations.history import counted_from, read_spans, turn_row
from forkpoint.store.sqlite.operations.turns import read, uncommitted
from forkpoint.store.sqlite.rows import ORDINALS, Scope, head_of, load_usage, pack, turn_of
from forkpoint.store.values import StoredTurn


def page(db: Database, scope: Scope, conversation: str, cursor: str | None, limit: int, since: int) -> Page[StoredTurn]:
    """The path's turns and notes with the conversation's own uncommitted tries, by where they started, then when."""
    after = max((-1, "") if cursor is None else _parse_cursor(cursor), (_possible_ordinal(since), ""))
    row = conversations.row_of(db, scope, conversation)
    found = uncommitted(db, scope, row, after[0])
    committed: list[StoredTurn] = []
    spans = read_spans(db, scope, row["family"], head_of(row).position, after[0])
    for n, span in enumerate(spans):
        stretch = {"first": span.segment << 32 | span.first, "last": span.segment << 32 | span.last}
        # One more than the page, and the turn in which it starts: the cursor's own, or one that began before `since`.
        rows = db.execute(SQL["turns_in_span"], stretch | {"limit": limit + 2})
        whole = [turn_of(turn, scope) for turn in rows]
        committed += whole
        if len(whole) < limit + 2 and (part := _part(db, scope, row, spans[n : n + 2])) is not None:
            committed.append(part)
        if len(committed) > limit + 1:
            break
    found = sorted((turn for turn in found + committed if _order(turn) > after), key=_order)
    items = tuple(found[:limit])
    return Page(items, "{}:{}".format(*_order(items[-1])) if len(found) > limit else None)


def _part(db: Database, scope: Scope, conversation: sqlite3.Row, spans: Sequence[Span]) -> StoredTurn | None:
    """The turn or note of which a path has only the first events, since the first of these stretches ends within it.

    Its usage is what the conversation itself has spent on that part. A part that was inherited cost others something.
    """
    here = Position(spans[0].segment, spans[0].last)
    event = db.execute(SQL["event_at"], {"id": pack(here)}).fetchone()
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
