"""The places of events in their turns, by which copies name what they are copies of.
Tests: tests/history/branches/test_dialogue.py, test_tool_exchanges.py."""

from collections.abc import Sequence

from forkpoint.events import Event


def places_of(events: Sequence[Event], base: int) -> dict[str, str]:
    """The place of each event in its turn, by its id: the turn's id, "/", and a number from 0.

    ``base`` is the ordinal before the turn of the first event, which may have begun before it.
    """
    places: dict[str, str] = {}
    turn = events[0].turn if events else ""
    for event in events:
        if event.turn != turn:
            turn, base = event.turn, event.id.ordinal - 1
        places[str(event.id)] = f"{turn}/{event.id.ordinal - base - 1}"
    return places
