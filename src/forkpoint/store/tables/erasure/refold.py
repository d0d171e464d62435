"""Refold: the states that turns left behind, folded again without what was erased.
Tests: tests/store/test_erasure.py."""

from collections.abc import Iterable

from forkpoint.events import Position, body_of, decode_envelope
from forkpoint.history.state import State
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.erasure.reach import Found
from forkpoint.store.tables.operations.history import head_at, read_state
from forkpoint.store.tables.rows import ORDINALS, Scope, dumps, unpack

_FOLDED = {"state_change", "skill_activated", "manifest_changed", "condensation"}
"""The kinds of events that change a state. An event of a kind that this version does not know may have done it too."""


def refold(db: Database, scope: Scope, family: bytes, erased: Iterable[Found], affected: Iterable[Row]) -> None:
    """Writes the states anew that had something of these events, which are erased already."""
    first: dict[int, int] = {}
    for one in erased:
        if one.kind in _FOLDED:
            first[one.key >> 32] = min(one.key & ORDINALS, first.get(one.key >> 32, ORDINALS))
    if not first:
        return
    for row in db.run("segments_of_a_family", {"tenant": scope.tenant, "family": family}).fetchall():
        base = unpack(row["base"])  # in an older segment, which has come before
        if base is not None and first.get(base.segment, ORDINALS) <= base.ordinal:
            first[row["id"]] = base.ordinal + 1
        if row["id"] in first:
            _refold_segment(db, family, row["id"], base, first[row["id"]])
    for row in affected:
        if row["head_state"] is not None:
            head = head_at(db, family, unpack(row["head"]))
            state = None if head.state is None else dumps(head.state)
            db.run("change_head_state", {"tenant": scope.tenant, "id": row["id"], "state": state})


def _refold_segment(db: Database, family: bytes, segment: int, base: Position | None, first: int) -> None:
    """Folds all of a segment, and writes down the states of the turns that end at ``first`` or later."""
    stretch = {"first": segment << 32 | first, "last": segment << 32 | ORDINALS}
    changed = {row["end"]: row["id"] for row in db.run("turns_with_a_state", stretch)}
    if not changed:
        return
    state: State = read_state(db, head_at(db, family, base, is_answered=True))
    whole = {"first": segment << 32, "last": max(changed)}
    for row in db.run("events_to_erase", whole).fetchall():
        state = state.then(body_of(decode_envelope(row["envelope"]), row["payload"]))
        if row["id"] in changed:
            db.run("change_state", {"id": changed[row["id"]], "state": dumps(state)})
