"""Admission: before a turn begins, goes on or asks a model, what that may cost is reserved; else it is refused.
Tests: forkpoint.testing.conformance.budgets, tests/store/test_budgets.py."""

from msgspec.structs import replace

from forkpoint.errors import BudgetExceeded
from forkpoint.history.budgets import FIELDS, Amount, in_words
from forkpoint.store.tables.budgets.accounts import count, covering
from forkpoint.store.tables.budgets.reservations import give_back, is_alive, keep, reservations_by, write_reservation
from forkpoint.store.tables.budgets.rows import amount_in, exceeded, left_in, whose
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.rows import Scope

SLICE = 30_000_000
"""Microseconds of running time that a turn reserves at once, at most."""


def enter(
    db: Database, scope: Scope, turn: bytes, conversation: bytes, family: bytes, *, is_counted: bool
) -> int | None:
    """Reserves what a turn needs to begin: that it may be one, and a slice of time.

    Returns the microseconds of the slice, or None if no budget limits time. Raises `BudgetExceeded`, also if there is
    certainly nothing left to ask a model with.
    """
    give_back(db, turn)
    rows = covering(db, scope, conversation, family)
    amount = Amount(turns=0 if is_counted else 1)
    rows = _free_if_short(db, scope, rows, amount, SLICE)
    for row in rows:
        for field in ("nanodollars", "tokens"):
            most = row[f"most_{field}"]
            if most is not None and row[f"spent_{field}"] >= most:
                raise exceeded(row, field, 1)
    slice = _slice(rows)
    if slice is not None and slice <= 0:
        raise next(exceeded(row, "micros", 1) for row in rows if (left_in(row, "micros") or 0) <= 0)
    granted = replace(amount, micros=slice or 0)
    if (short := _short(rows, granted)) is not None:
        raise exceeded(*short)
    write_reservation(db, scope, rows, turn, "turn", granted)
    return slice


def reserve(
    db: Database,
    scope: Scope,
    owner: bytes,
    conversation: bytes,
    family: bytes,
    most: Amount,
    least: Amount,
    model: str,
) -> Amount:
    """Reserves what a call may cost at its worst, in all budgets or in none, in place of what its owner had reserved.

    Grants as much between ``least`` and ``most`` as fits; both differ by tokens of output and their price. Raises
    `BudgetExceeded`.
    """
    give_back(db, owner, "call")
    rows = covering(db, scope, conversation, family)
    for row in rows:
        if row["most_nanodollars"] is not None and most.nanodollars is None:
            limit = in_words("nanodollars", row["most_nanodollars"])
            raise BudgetExceeded.budget_unpriced(whose(row), limit, model)
    rows = _free_if_short(db, scope, rows, most, 0)
    granted = _granted(rows, most, least)
    if (short := _short(rows, granted)) is not None:
        raise exceeded(*short)
    write_reservation(db, scope, rows, owner, "call", granted)
    return granted


def renew(db: Database, scope: Scope, turn: Row, family: bytes) -> tuple[int | None, BudgetExceeded | None]:
    """Counts the time that a turn has run, and reserves the next slice: so many microseconds, or it says why not."""
    micros = max(scope.now - turn["since"], 0) if turn["since"] is not None else 0
    db.run("renew_time", {"id": turn["id"], "micros": micros, "now": scope.now})
    count(db, scope, turn["conversation"], family, Amount(micros=micros))
    keep(db, turn["id"], "turn", lambda amount: replace(amount, micros=0))
    rows = covering(db, scope, turn["conversation"], family)
    rows = _free_if_short(db, scope, rows, Amount(), SLICE)
    slice = _slice(rows)
    if slice is None:
        return None, None
    if slice <= 0:
        return 0, next(exceeded(row, "micros", 1) for row in rows if (left_in(row, "micros") or 0) <= 0)
    had = {row["budget"]: amount_in(row) for row in reservations_by(db, turn["id"], "turn")}
    give_back(db, turn["id"], "turn")
    for row in rows:
        amount = replace(had.get(row["id"], Amount()), micros=slice)
        write_reservation(db, scope, [row], turn["id"], "turn", amount)
    return slice, None


def _free_if_short(db: Database, scope: Scope, rows: list[Row], amount: Amount, micros: int) -> list[Row]:
    """Gives back what dead processes had reserved, if there is not room for all that is wanted. Returns the budgets as
    they are then."""
    wanted = replace(amount, micros=micros, nanodollars=amount.nanodollars or 0)
    if _short(rows, wanted) is None:
        return rows
    for row in rows:
        for one in db.run("reservations_of", {"id": row["id"]}).fetchall():
            if not is_alive(scope, one):
                give_back(db, one["owner"])
    return [reread(db, row) for row in rows]


def reread(db: Database, row: Row) -> Row:
    """A budget's row as it is now."""
    place = {name: row[name] for name in ("tenant", "family", "scope", "subject")}
    now: Row = db.run("budget_of", place).fetchone()
    return now


def _granted(rows: list[Row], most: Amount, least: Amount) -> Amount:
    """As much between two amounts as fits in all budgets; the lesser one, if not even that does."""
    more = most.tokens - least.tokens
    price = (most.nanodollars or 0) - (least.nanodollars or 0)
    room = more
    for row in rows:
        if (tokens := left_in(row, "tokens")) is not None:
            room = min(room, tokens - least.tokens)
        if (dollars := left_in(row, "nanodollars")) is not None and price > 0:
            room = min(room, (dollars - (least.nanodollars or 0)) * more // price)
    if room >= more:
        return most
    room = max(room, 0)
    dollars = None if most.nanodollars is None else (least.nanodollars or 0) + -(-price * room // more if more else 0)
    return replace(least, tokens=least.tokens + room, nanodollars=dollars)


def _short(rows: list[Row], amount: Amount) -> tuple[Row, str, int] | None:
    """The first budget that has not room for an amount: of what, and how much is wanted."""
    for row in rows:
        for field in FIELDS:
            wanted, left = getattr(amount, field) or 0, left_in(row, field)
            if wanted > 0 and left is not None and wanted > left:
                return row, field, wanted
    return None


def _slice(rows: list[Row]) -> int | None:
    """How long a turn may run until it asks again; None if no budget limits that."""
    left = [time for row in rows if (time := left_in(row, "micros")) is not None]
    return min(SLICE, *left) if left else None
