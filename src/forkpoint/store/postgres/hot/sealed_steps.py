"""The steps of the turns that this process runs, ready to be made history: a commit need not read them again.
Tests: tests/postgres/test_hot_turns.py."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from forkpoint.store.stage import Sealed, Staged
from forkpoint.store.values import OpenTurn

MOST_EVENTS = 500
MOST_BYTES = 1 << 20
"""What one statement may write. A commit of more is a transaction of several."""


@dataclass(frozen=True, eq=False)
class SealedSteps:
    """The steps that were journalled here, by the tokens of their turns."""

    _by_token: dict[bytes, tuple[Sealed, ...]] = field(default_factory=dict)

    def add(self, turn: OpenTurn, staged: Staged) -> None:
        """Steps were journalled. If they are too many for one statement, they are not kept."""
        before = self._by_token.pop(turn.token, ())
        events = before + staged.events
        if len(before) == turn.staged and is_small(events):
            self._by_token[turn.token] = events

    def of(self, turn: OpenTurn) -> tuple[Sealed, ...] | None:
        """All steps of a turn; None if they have to be read."""
        kept = self._by_token.get(turn.token, ())
        return kept if len(kept) == turn.staged else None

    def forget(self, running: set[bytes]) -> None:
        """Forgets what is of no use any more: the steps of turns that do not run."""
        for token in self._by_token.keys() - running:
            del self._by_token[token]


def is_small(events: Sequence[Sealed]) -> bool:
    """Whether events are few enough for one statement."""
    size = sum(len(event.payload) + len(event.text) for event in events)  # characters, since it need not be exact
    return len(events) <= MOST_EVENTS and size <= MOST_BYTES
