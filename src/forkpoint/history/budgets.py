"""Budgets: what a conversation or a family may spend in all, and how it stands.

`Limits` are of one turn; a budget is of everything that was ever spent somewhere. Amounts are whole numbers inside
(nanodollars, microseconds), so that sums are exact. Tests: tests/history/test_budgets.py.
"""

import math
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from forkpoint.errors import BadArgument
from forkpoint.events import Usage

BudgetScope: TypeAlias = Literal["conversation", "family"]
"""What a budget is of: a conversation with all that works beneath it, or a whole family."""

MOST = 1 << 53
"""The most nanodollars, tokens, turns or microseconds that a budget may allow: what every JSON reader reads exactly."""


class Budget(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What may be spent in all: dollars, tokens (input and output), turns, and seconds during which turns run.

    None is no limit. At least one of the four is given: to have no budget, remove it.
    """

    dollars: float | None = None
    tokens: int | None = None
    turns: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        given = [(name, value) for name in UNITS if (value := getattr(self, name)) is not None]
        if not given:
            raise BadArgument("Budget()", "no limits", "name at least one of dollars, tokens, turns, seconds")
        for name, value in given:
            _check(name, value)

    @property
    def most(self) -> "Limit":
        """The same in whole numbers."""
        dollars, seconds = self.dollars, self.seconds
        return Limit(
            None if dollars is None else round(dollars * 1e9),
            self.tokens,
            self.turns,
            None if seconds is None else round(seconds * 1e6),
        )


class Amount(Struct, frozen=True, omit_defaults=True):
    """An amount of each thing that a budget counts. ``nanodollars`` is None if no price is known."""

    nanodollars: int | None = 0
    tokens: int = 0
    turns: int = 0
    micros: int = 0

    @classmethod
    def of(cls, usage: Usage) -> "Amount":
        """What counts of a usage. A call without a known price counts no dollars."""
        return cls(usage.nanodollars, usage.input + usage.output)

    def __add__(self, other: "Amount") -> "Amount":
        unknown = self.nanodollars is None or other.nanodollars is None
        dollars = None if unknown else (self.nanodollars or 0) + (other.nanodollars or 0)
        return Amount(dollars, self.tokens + other.tokens, self.turns + other.turns, self.micros + other.micros)

    def __sub__(self, other: "Amount") -> "Amount":
        return self + Amount(-(other.nanodollars or 0), -other.tokens, -other.turns, -other.micros)

    def at_least(self, other: "Amount") -> "Amount":
        """The larger one of each."""
        return Amount(
            max(self.nanodollars or 0, other.nanodollars or 0),
            max(self.tokens, other.tokens),
            max(self.turns, other.turns),
            max(self.micros, other.micros),
        )


class Limit(Struct, frozen=True):
    """The limits of a budget in whole numbers; None: no limit."""

    nanodollars: int | None = None
    tokens: int | None = None
    turns: int | None = None
    micros: int | None = None

    @property
    def budget(self) -> Budget:
        """The budget with these limits."""
        return Budget(*shown(self))


class Figures(Struct, frozen=True):
    """Dollars, tokens, turns and seconds; None where a budget has no limit."""

    dollars: float | None
    tokens: int | None
    turns: int | None
    seconds: float | None


class BudgetStanding(Struct, frozen=True):
    """A budget and how it stands.

    ``conversation`` is whose budget it is; None for the family's. What is ``reserved`` may still be spent by calls that
    are under way. ``left`` is what a call may use now. ``apart``: what it covers does not draw from the family's.
    """

    scope: BudgetScope
    conversation: str | None
    limits: Budget
    spent: Figures
    reserved: Figures
    left: Figures
    apart: bool = False


UNITS = ("dollars", "tokens", "turns", "seconds")
FIELDS = ("nanodollars", "tokens", "turns", "micros")


def shown(amount: Amount | Limit) -> tuple[float | None, int | None, int | None, float | None]:
    """The four amounts in the units that people read."""
    dollars, micros = amount.nanodollars, amount.micros
    return (
        None if dollars is None else dollars / 1e9,
        amount.tokens,
        amount.turns,
        None if micros is None else micros / 1e6,
    )


def in_words(field: str, number: int) -> str:
    """One amount as people write it: "0.05" dollars, "12,000" tokens, "90" seconds."""
    match field:
        case "nanodollars":
            return f"{number / 1e9:.9f}".rstrip("0").rstrip(".")
        case "micros":
            return f"{number / 1e6:,.3f}".rstrip("0").rstrip(".")
        case _:
            return f"{number:,}"


def _check(name: str, value: Any) -> None:
    whole = name in ("tokens", "turns")
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise BadArgument("Budget()", f"{name}={value!r}", f"it must be a {'whole ' if whole else ''}number")
    scale = {"dollars": 1e9, "seconds": 1e6}.get(name, 1)
    if not math.isfinite(value) or not 0 <= value * scale <= MOST:
        raise BadArgument("Budget()", f"{name}={value!r}", f"it must be 0 or more, and at most {MOST / scale:,.0f}")
