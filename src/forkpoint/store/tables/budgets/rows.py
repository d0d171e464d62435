"""Between the rows of budgets and amounts. Tests: forkpoint.testing.conformance.budgets."""

from typing import Any

from forkpoint.errors import BudgetExceeded
from forkpoint.history.budgets import FIELDS, UNITS, Amount, Limit, in_words
from forkpoint.ids import id_from_bytes
from forkpoint.store.tables.database import Row


def columns(amount: Amount) -> dict[str, Any]:
    """An amount as parameters of SQL."""
    return {field: getattr(amount, field) or 0 for field in FIELDS}


def amount_in(row: Row) -> Amount:
    """What a row of a reservation holds."""
    return Amount(*(row[field] for field in FIELDS))


def spent_in(row: Row) -> Amount:
    """What was spent of a budget."""
    return Amount(*(row[f"spent_{field}"] for field in FIELDS))


def limit_in(row: Row) -> Limit:
    """The limits of a budget."""
    return Limit(*(row[f"most_{field}"] for field in FIELDS))


def left_in(row: Row, field: str) -> int | None:
    """How much of one thing a budget still has; None if it does not limit that."""
    most = row[f"most_{field}"]
    return None if most is None else int(most - row[f"spent_{field}"] - row[f"reserved_{field}"])


def whose(row: Row) -> str:
    """Whose budget it is, in words."""
    return f"{row['scope']} {id_from_bytes(row['subject'])}"


def exceeded(row: Row, field: str, wanted: int) -> BudgetExceeded:
    """The error for whoever wants more of one thing than a budget has."""
    said = (row[f"most_{field}"], row[f"spent_{field}"], row[f"reserved_{field}"], wanted)
    limit, spent, reserved, needed = (in_words(field, number) for number in said)
    used_up = row[f"most_{field}"] <= row[f"spent_{field}"]
    return BudgetExceeded(whose(row), UNITS[FIELDS.index(field)], limit, spent, reserved, needed, used_up)
