"""Where the prompt of a part of a path can begin: where no call is open, and no response is cut."""

import pytest
from tests.llm.paths import commit, erased

from forkpoint.events import (
    AssistantMessage,
    Condensation,
    Event,
    ModelCalled,
    Position,
    Reasoning,
    SkillActivated,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)
from forkpoint.history.landmarks import Landmark
from forkpoint.history.shown import beginning, is_in_force, newest_condensation

SAYS = UserMessage((Text("Why?"),))
ANSWERS = AssistantMessage((Text("So."),))
PATH = [
    *commit("t1", SAYS, Reasoning("hm"), ToolCall("a", "look", "{}"), ToolCall("b", "look", "{}"), after=0),
    *commit("t1", SkillActivated("s", "do"), ToolResult("a", "look", ()), ToolResult("b", "look", ()), after=4),
    *commit("t1", ModelCalled("m", "p", Usage()), Reasoning("hm"), ANSWERS, after=7),
    *commit("t2", SAYS, ANSWERS, after=10),
]
"""1 says, 2-4 a response, 5 a skill, 6-7 results, 8 a call of the model, 9-10 a response, 11 says, 12 answers."""


@pytest.mark.parametrize(
    ("wanted", "found"),
    [(1, 1), (2, 2), (3, 2), (4, 2), (5, 2), (6, 2), (7, 2), (8, 2), (9, 9), (10, 9), (11, 11), (12, 12), (99, 12)],
)
def test_a_prompt_begins_with_a_message_or_with_a_whole_response(wanted: int, found: int) -> None:
    for events in (PATH, [erased(event) for event in PATH]):
        place = beginning(events, wanted)
        assert place is not None
        assert events[place].id.ordinal == found


@pytest.mark.parametrize(("first", "wanted", "found"), [(3, 8, None), (5, 8, None), (7, 10, 9), (9, 10, None)])
def test_where_a_response_begins_is_told_by_what_stands_before_it(first: int, wanted: int, found: int | None) -> None:
    events = PATH[first - 1 :]
    place = beginning(events, wanted)
    assert (None if place is None else events[place].id.ordinal) == found


def condensations(*kept_from: int | None) -> list[Landmark]:
    return [Landmark(Position(1, 10 * n), "condensation", kept) for n, kept in enumerate(kept_from, start=1)]


def test_the_newest_condensation_decides_unless_an_older_one_keeps_less() -> None:
    assert newest_condensation([]) is None
    assert newest_condensation([Landmark(Position(1, 1), "system_message")]) is None
    assert newest_condensation(condensations(3, 3, 8)) == condensations(3, 3, 8)[-1]
    assert newest_condensation(condensations(9, 8)) is None
    assert newest_condensation(condensations(None, 8)) is None
    assert newest_condensation(condensations(3, None)) is None


def test_a_condensation_that_was_erased_is_not_in_force() -> None:
    events: list[Event] = [*commit("t3", SAYS, Condensation("short", 2), after=5)]
    there = Landmark(Position(1, 7), "condensation", 2)
    assert is_in_force(there, events)
    assert not is_in_force(there, [events[0], erased(events[1])])
    assert not is_in_force(Landmark(Position(1, 7), "condensation", 3), events)
    assert not is_in_force(Landmark(Position(1, 9), "condensation", 2), events)
