"""What is to be brought from one conversation into another, and what was, as frozen data.
Tests: tests/conversation/test_bring.py."""

from msgspec import Struct

from forkpoint.backend.results import words
from forkpoint.events import BroughtAs, Event, Usage, UserMessage


class BringOptions(Struct, frozen=True, kw_only=True):
    """What is to be brought, and from which branch. ``key`` and ``if_revision`` are as `Backend` says."""

    branch: str  # its id or its name
    what: BroughtAs
    key: str | None = None
    if_revision: int | None = None
    allow: frozenset[str] = frozenset()  # what the agent of a summary may go on without


class BringReport(Struct, frozen=True):
    """A note that brought something from a branch.

    - ``id``: the note's. ``source``: the id of the branch. ``events``: those of the note, `Brought` first.
    - ``usage``: what a summary cost. Nothing that the branch has spent is in it.
    - ``left_out``: how many exchanges of the branch were not brought, since they are not whole or stand here already.
    """

    id: str
    conversation: str
    source: str
    what: BroughtAs
    events: tuple[Event, ...]
    usage: Usage = Usage()
    left_out: int = 0

    @property
    def text(self) -> str:
        """The message that was made of an answer or a summary; of turns, the first message."""
        return next((words(event.body.parts) for event in self.events if isinstance(event.body, UserMessage)), "")

    @property
    def cost(self) -> float | None:
        """Dollars; None if the price of the call is not known."""
        return self.usage.dollars
