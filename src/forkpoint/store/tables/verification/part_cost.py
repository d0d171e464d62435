"""The cost of a part of a turn: what a path can have cost at a place in the middle of one.

A fork or a rewind may end a path there, and its head counts the calls of models up to that place. Two things keep that
from being made anew: a call whose content was erased says no more what it cost, and an earlier program counted nothing
of such a turn. Tests: tests/store/test_part_cost.py.
"""

from msgspec import Struct
from msgspec.structs import astuple

from forkpoint.events import Position, Usage, decode_body, decode_envelope
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.operations.history import rows_of_turn, totals_within, turn_row
from forkpoint.store.tables.rows import ORDINALS, load_usage, pack


class PartCost(Struct, frozen=True):
    """What a path can have cost at a place in the middle of a turn, by what is left of that turn."""

    before: Usage  # where the turn began
    known: Usage  # and with the calls of models up to the place
    most: Usage | None  # with all that the turn has used, if such a call was erased; else None

    def allows(self, totals: Usage) -> bool:
        """Whether a head at the place, or a commit that follows it, may state these totals."""
        if totals in (self.before, self.known):
            return True
        if self.most is None:
            return False
        figures = zip(astuple(self.known), astuple(totals), astuple(self.most), strict=True)
        return all(least <= stated <= most for least, stated, most in figures)


def part_cost(db: Database, position: Position | None) -> PartCost | None:
    """What a path can have cost at a place in the middle of a turn; None if no turn is cut there."""
    key = pack(position)
    event = db.run("event_at", {"id": key}).fetchone()
    if position is None or key is None or event is None:
        return None
    turn = turn_row(db, event["turn"])
    if turn["end"] == key:
        return None
    rows = rows_of_turn(db, position.segment, (turn["base"] or 0) & ORDINALS, turn)
    called = [row["payload"] for row in rows if row["id"] <= key and _is_call_of_a_model(row["envelope"])]
    all_of_it = load_usage(turn["totals"])
    return PartCost(
        before=all_of_it - load_usage(turn["usage"]),
        known=totals_within(turn, map(decode_body, called)),
        most=all_of_it if None in called else None,
    )


def _is_call_of_a_model(envelope: str) -> bool:
    return decode_envelope(envelope).kind == "model_called"
