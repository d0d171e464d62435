"""What a prompt shows of a condensed path: from where on the path has to be read, and what of the rest.

A condensation hides what stands before its ``kept_from``, except for system messages, which prompts go on to show. So
the prompt of a long path can be made of a few events. Where it may begin is decided from envelopes alone, so it holds
for erased events too. Tests: tests/history/test_shown.py, tests/engine/turns/test_path.py.
"""

from collections.abc import Sequence

from msgspec import Struct

from forkpoint.events import Event
from forkpoint.history.landmarks import Landmark, kept_from
from forkpoint.history.pairing import RESPONSE, SAID

_BEGINNINGS = {"user_message", "system_message"}


class ShownPath(Struct, frozen=True):
    """All that is needed of a path to make its prompt.

    - ``rest``: the path from a place on where no call is open and no response is cut, up to its end.
    - ``condensed_at``: the ordinal of the newest condensation, which is in ``rest``; 0 if ``rest`` is the whole path.
    - ``instructions``: the system messages before ``rest``.
    - ``opening``: how the path begins, up to the first user message; empty if no system message needs it.
    """

    rest: Sequence[Event]
    condensed_at: int = 0
    instructions: Sequence[Event] = ()
    opening: Sequence[Event] = ()


def newest_condensation(landmarks: Sequence[Landmark]) -> Landmark | None:
    """The newest condensation, if prompts show nothing from before its ``kept_from``; None if that is not certain."""
    condensations = [one for one in landmarks if one.kind == "condensation"]
    if not condensations or (newest := condensations[-1]).kept_from is None:
        return None
    # The summary of an older condensation that keeps less could stand in what the newest one keeps.
    if any(one.kept_from is None or one.kept_from > newest.kept_from for one in condensations):
        return None
    return newest


def is_in_force(condensation: Landmark, rest: Sequence[Event]) -> bool:
    """Whether a condensation can still be read, so that prompts are condensed by it."""
    place = condensation.position.ordinal - rest[0].id.ordinal
    return 0 <= place < len(rest) and kept_from(rest[place].body) == condensation.kept_from is not None


def beginning(events: Sequence[Event], wanted: int) -> int | None:
    """The place of the newest of these events, at or before an ordinal, with which a prompt can begin; or None.

    That is a user or system message, or the first event of a model response: committed history has no open call there.
    """
    place = min(wanted - events[0].id.ordinal, len(events) - 1)
    for n in range(place, -1, -1):
        event = events[n]
        if event.kind in _BEGINNINGS or (event.kind in RESPONSE and _begins_a_response(events, n)):
            return n
    return None


def _begins_a_response(events: Sequence[Event], n: int) -> bool:
    this = events[n]
    before = next((events[m] for m in range(n - 1, -1, -1) if events[m].kind in SAID), None)
    if before is None:
        return False  # what was said before is not among these events
    same = (before.turn, before.envelope.response) == (this.turn, this.envelope.response)
    return before.kind not in RESPONSE or not same
