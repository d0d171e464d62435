"""How two conversations differ, as frozen data: the same wherever they live, and complete enough to draw from.

`Diff` has two sides, ``a`` and ``b``, and pairs of turns that stand beside each other. Texts are whole in the turns;
the pairs have the words that differ. Tests: tests/conversation/test_diff.py.
"""

from typing import Literal

from msgspec import Struct

from forkpoint.backend.results import Call
from forkpoint.errors import BadArgument
from forkpoint.events import JsonText, Usage
from forkpoint.history.branches.diff import TextDiff
from forkpoint.store.values import LineageKind

LIMIT = 50
"""How many turns and notes of each side are compared, unless a caller says otherwise."""

MOST = 1000
"""How many a caller may ask for."""


def check_limit(limit: int) -> None:
    """Raises `BadArgument` unless the limit is a number of turns that can be compared."""
    if type(limit) is not int or not 1 <= limit <= MOST:
        raise BadArgument("diff()", f"limit={limit!r}", f"it is a number from 1 to {MOST:,}")


class DiffSide(Struct, frozen=True):
    """One of two conversations that are compared, and what it has since their common ancestor."""

    id: str
    name: str
    title: str | None
    kind: LineageKind
    model: str | None
    agent: str | None  # the agent's name
    head: str | None  # the id of its last event
    events: int = 0  # how many it has since the common ancestor
    turns: int = 0  # committed turns; one that began before the common ancestor counts too
    notes: int = 0
    left_out: int = 0  # turns and notes that `Diff.pairs` does not have, since there are more than the limit
    usage: Usage = Usage()  # of these turns and notes, with those that are left out
    seconds: float = 0.0  # that these turns took

    @property
    def cost(self) -> float | None:
        """Dollars; None if the price of a call is not known."""
        return self.usage.dollars


class DiffTurn(Struct, frozen=True):
    """A committed turn or a note of one side, as far as it stands after the common ancestor.

    ``partial``: the other part stands before the common ancestor, or is not on this path. ``did`` says in words what
    happened beside messages and calls: "state: suspect = 1".
    """

    id: str
    kind: Literal["turn", "note"]
    first: str  # the ids of its first and last event
    last: str
    input: str = ""  # what the user said; what was erased is "[erased]"
    text: str = ""  # what the model said, also beside calls
    calls: tuple[Call, ...] = ()
    did: tuple[str, ...] = ()
    usage: Usage = Usage()
    started: int = 0  # microseconds since 1970, UTC
    ended: int | None = None
    partial: bool = False


class CallPair(Struct, frozen=True):
    """Two calls that stand beside each other, by their places in `DiffTurn.calls`. None: there is only the other one.

    ``arguments`` and ``result`` are the words that differ; None if one of the two calls has none.
    """

    a: int | None
    b: int | None
    same: bool = False  # the same tool, arguments, status and result
    arguments: TextDiff | None = None
    result: TextDiff | None = None


class TurnPair(Struct, frozen=True):
    """Two turns, or two notes, that stand beside each other. None: there is only the other one.

    ``input`` and ``text`` are the words that differ, and ``calls`` the calls beside each other; empty if there is only
    one of the two.
    """

    a: DiffTurn | None
    b: DiffTurn | None
    same: bool = False  # the same input, text, calls and what else was done
    input: TextDiff | None = None
    text: TextDiff | None = None
    calls: tuple[CallPair, ...] = ()


class StateDifference(Struct, frozen=True):
    """A key of the agent's state that has not the same value in all three places: JSON, or None if it is not set."""

    key: str
    before: JsonText | None  # at the common ancestor
    a: JsonText | None
    b: JsonText | None


class SettingDifference(Struct, frozen=True):
    """A setting in which the two differ today, in words. None: it is not set. Long texts have their words compared."""

    name: str
    a: str | None
    b: str | None
    text: TextDiff | None = None


class Diff(Struct, frozen=True):
    """How two conversations differ.

    - ``ancestor``: the last event that both have; None if they share none. Then all that each has is compared.
    - ``related``: whether both are of the same family. Conversations of different families have no common ancestor.
    - ``shared``: how many events they share.
    - ``state`` and ``settings``: how the two stand now.
    """

    a: DiffSide
    b: DiffSide
    ancestor: str | None
    related: bool
    shared: int
    pairs: tuple[TurnPair, ...] = ()
    state: tuple[StateDifference, ...] = ()
    settings: tuple[SettingDifference, ...] = ()

    @property
    def same(self) -> bool:
        """Whether both conversations stand at the same event, with the same settings."""
        return not (self.a.events or self.b.events or self.settings)
