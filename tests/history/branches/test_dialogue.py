"""`history.branches.dialogue`: what is copied from one path to another is whole, and stands there once."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from forkpoint.events import GONE, Event, NewEvent, Position, ToolCall, seal
from forkpoint.history.branches.dialogue import COPIED, DialogueExchange, copies, dialogue, names_of
from forkpoint.history.branches.places import places_of
from forkpoint.history.pairing import NO_CALLS
from forkpoint.testing.samples import answers, calls, remembers, returns, says, thinks


def path(*turns: Sequence[NewEvent], first: int = 1, segment: int = 1, name: str = "turn") -> list[Event]:
    """These turns as events of a path."""
    placed = [(f"{name} {n}", event) for n, turn in enumerate(turns) for event in turn]
    return [
        Event(Position(segment, first + n), turn, seal(event, 1000 * segment + n), event.body)
        for n, (turn, event) in enumerate(placed)
    ]


def kinds(found: Sequence[DialogueExchange]) -> list[list[str]]:
    return [[event.kind for event in one.events] for one in found]


PLAIN = [says("one"), answers("two", response=1)]
WITH_TOOL = [
    says("look"),
    thinks("hm", response=1),
    calls("c1", response=1),
    calls("c2", response=1),
    returns("c1"),
    returns("c2"),
    remembers("k", "1"),
    answers("seen", response=2),
]


def test_an_exchange_goes_from_a_question_to_the_answer_before_the_next_one() -> None:
    found = list(dialogue(path(PLAIN, WITH_TOOL, PLAIN)))
    assert kinds(found)[1] == ["user_message", *["tool_call"] * 2, *["tool_result"] * 2, "assistant_message"]
    assert len(found) == 3
    assert all(one.is_whole for one in found)


def test_a_message_that_comes_in_the_middle_of_a_turn_is_part_of_its_exchange() -> None:
    turn = [says("look"), calls("c", response=1), returns("c"), says("hurry"), answers("seen", response=2)]
    (found,) = dialogue(path(turn))
    assert found.is_whole


def test_an_exchange_without_a_question_or_an_answer_is_not_whole() -> None:
    rest_of_a_turn = [returns("c"), answers("seen", response=2)]
    unanswered = [says("look"), calls("c", client=True, response=1)]
    found = list(dialogue(path(rest_of_a_turn, PLAIN, unanswered)))
    assert [one.is_whole for one in found] == [False, True, False]


def test_an_exchange_of_which_something_was_erased_is_not_whole() -> None:
    events = path(PLAIN, WITH_TOOL)
    events[1] = Event(events[1].id, events[1].turn, events[1].envelope, GONE)
    assert [one.is_whole for one in dialogue(events)] == [False, True]


def test_copies_name_their_origin_and_have_no_thoughts_and_pair() -> None:
    events = path(PLAIN, WITH_TOOL)
    origins = places_of(events, 0)
    made = copies(list(dialogue(events)), origins)
    assert [one.origin for one in made] == [
        *("turn 0/0", "turn 0/1"),
        *("turn 1/0", "turn 1/2", "turn 1/3", "turn 1/4", "turn 1/5", "turn 1/7"),
    ]
    assert [one.response for one in made] == [None, 1, None, 2, 2, None, None, 3]
    assert not NO_CALLS.after(seal(one, 0) for one in made), "a call has no result"


def test_a_copy_of_a_clients_call_is_not_the_clients_any_more() -> None:
    turn = [says("look"), calls("c", client=True, response=1), returns("c"), answers("seen", response=1)]
    events = path(turn[:2], turn[2:])
    made = copies(list(dialogue(events)), places_of(events, 0))
    (call,) = [one.body for one in made if isinstance(one.body, ToolCall)]
    assert not call.client


def test_places_of_a_turn_that_began_before_go_on_from_there() -> None:
    events = path(WITH_TOOL[4:], PLAIN, first=5)
    assert list(places_of(events, 0).values())[:5] == [*(f"turn 0/{n}" for n in (4, 5, 6, 7)), "turn 1/0"]


def test_what_stands_on_a_path_as_itself_or_as_a_copy_is_known_there() -> None:
    events = path(PLAIN, WITH_TOOL)
    places = places_of(events, 0)
    here = {name for event in events for name in names_of(event, places)}
    assert all(one.stands_in(here, places) for one in dialogue(events))
    made = copies(list(dialogue(events)), places)
    copied = path(made, segment=2, name="copies")
    there = {name for event in copied for name in names_of(event, places_of(copied, 0))}
    assert all(one.stands_in(there, places) for one in dialogue(events)), "copies are not known by their origins"
    twice = path(copies(list(dialogue(copied)), places_of(copied, 0)), segment=3, name="again")
    far = {name for event in twice for name in names_of(event, places_of(twice, 0))}
    assert all(one.stands_in(far, places) for one in dialogue(events)), "copies of copies are not known by their times"
    others = path(PLAIN, first=50, segment=4, name="other")
    assert not any(one.stands_in(here, places_of(others, 49)) for one in dialogue(others))


EVENTS = st.lists(
    st.sampled_from([says("a"), answers("b", response=1), thinks("c", response=1), remembers("k", "1")]), max_size=12
)


@given(EVENTS)
def test_every_event_that_is_copied_is_in_one_exchange_in_order(events: list[NewEvent]) -> None:
    on_path = path(events)
    inside = [event for one in dialogue(on_path) for event in one.events]
    assert inside == [event for event in on_path if event.kind in COPIED]
