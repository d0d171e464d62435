"""A budget: what a turn may use, and what it shares with the turns that wait for it.

A sub-agent's turn has limits of its own, and lives within what is left of its parent's. So each use is counted at every
level, and each level is checked: a budget is shared, not multiplied. Tests: tests/conversation/test_limits.py.
"""

from collections.abc import Iterator

from forkpoint.agent.agent import Limits
from forkpoint.errors import LimitReached
from forkpoint.events import Usage


class TurnBudget:
    """The limits of one turn, and what it and the sub-agents beneath it have used of them."""

    def __init__(self, limits: Limits, above: "TurnBudget | None" = None) -> None:
        self._limits = limits
        self._above = above
        self._steps = 0
        self._spent = Usage()

    def take(self) -> None:
        """A model is about to be asked: the step is taken, here and from all above. Raises `LimitReached` if none is
        left, or nothing else is."""
        for level in self._levels():
            level._check("" if level is self else ", shared with whoever it works for")
        for level in self._levels():
            level._steps += 1  # at once: others may be about to ask too

    def used(self, usage: Usage) -> None:
        """What an answer has cost counts here and for all above."""
        for level in self._levels():
            level._spent += usage

    def used_before(self, usage: Usage, steps: int) -> None:
        """What was used before the turn was resumed. Those above count for themselves what they find."""
        self._steps += steps
        self._spent += usage

    def _levels(self) -> Iterator["TurnBudget"]:
        level: TurnBudget | None = self
        while level is not None:
            yield level
            level = level._above

    def _check(self, whose: str) -> None:
        limits, spent = self._limits, self._spent
        if limits.steps is not None and self._steps >= limits.steps:
            raise LimitReached(f"steps{whose}", f"{limits.steps:,}")
        if limits.tokens is not None and spent.input + spent.output >= limits.tokens:
            raise LimitReached(f"tokens{whose}", f"{limits.tokens:,}")
        if limits.dollars is not None and spent.unpriced:
            why = "dollars, for all that is known: a call has no known price, and LLM(price=...) can give it one"
            raise LimitReached(why, f"{limits.dollars:g}")
        if limits.dollars is not None and spent.nanodollars >= limits.dollars * 1e9:
            raise LimitReached(f"dollars{whose}", f"{limits.dollars:g}")
