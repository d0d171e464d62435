"""Exchanges: which calls a response has, what came of them, and what stands there with other results."""

import pytest
from tests.llm.paths import commit, erased

from forkpoint.events import (
    ApprovalGiven,
    AssistantMessage,
    Event,
    HookRun,
    ModelCalled,
    NewEvent,
    Position,
    Reasoning,
    ResultSubstituted,
    StateChange,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)
from forkpoint.history.branches.places import places_of
from forkpoint.history.branches.tool_exchanges import CannotSubstitute, answers, exchanges_in

OTHER = ToolResult("b", "", (Text("other"),))


def result(call: str, text: str = "seen", **more: str) -> ToolResult:
    return ToolResult(call, "look", (Text(text),), **more)  # type: ignore[arg-type]


def path(*, notes_calls: bool = True) -> list[Event]:
    """1 says, 2 asked, 3-5 a response, 6-11 what came of it, 12 asked, 13 answers."""

    def change(call: str) -> StateChange:
        return StateChange(((call, "1"),), call_id=call if notes_calls else None)

    return commit(
        "t",
        UserMessage((Text("Why?"),)),
        ModelCalled("m", "p", Usage()),
        NewEvent(Reasoning("Hm."), response=1),
        NewEvent(ToolCall("a", "look", "{}"), response=1),
        NewEvent(ToolCall("b", "look", "{}"), response=1),
        ApprovalGiven("b", "look", "ann"),
        change("a"),
        result("a"),
        change("b"),
        result("b"),
        HookRun("h", "after_tool", call_id="a"),
        ModelCalled("m", "p", Usage()),
        NewEvent(AssistantMessage((Text("So."),)), response=2),
    )


def made(events: list[Event], *calls: str) -> list[NewEvent]:
    (exchange,) = exchanges_in(events, is_all=True)
    others = {call: ToolResult(call, "", (Text("other"),)) for call in calls}
    return answers(exchange, others, dict.fromkeys(calls, "00"), places_of(events, 0))


def test_an_exchange_is_a_whole_response_and_all_that_came_of_its_calls() -> None:
    (exchange,) = exchanges_in(path(), is_all=True)
    assert (exchange.response, exchange.ids, exchange.is_closed) == (Position(1, 5), ("a", "b"), True)
    assert [event.id.ordinal for event in exchange.rest] == [6, 7, 8, 9, 10, 11]
    assert [exchange.has(Position(1, n)) for n in (3, 4, 5, 8, 10, 12)] == [False, True, True, True, True, False]
    (cut,) = exchanges_in(path()[:9], is_all=False)
    assert not cut.is_closed


def test_responses_that_follow_each_other_are_exchanges_of_their_own() -> None:
    again = commit("t", ToolCall("a", "look", "{}"), result("a"), ToolCall("a", "look", "{}"), result("a", "again"))
    assert [exchange.response.ordinal for exchange in exchanges_in(again, is_all=True)] == [1, 3]


def test_another_result_takes_the_place_of_one_and_the_rest_is_copied() -> None:
    events = made(path(), "b")
    assert [event.origin for event in events] == ["t/6", "t/7", None, None, "t/10"]
    assert events[0].body == StateChange((("a", "1"),), call_id="a")
    assert events[2].body == ResultSubstituted("b", "look", "t/9", "00")
    assert events[3].body == ToolResult("b", "look", (Text("other"),))
    assert all(event.time is not None for event in events if event.origin is not None)


def test_with_other_results_for_all_nothing_is_copied() -> None:
    kinds = [type(event.body).__name__ for event in made(path(), "a", "b")]
    assert kinds == ["ResultSubstituted", "ToolResult"] * 2


def test_a_change_that_does_not_name_its_call_is_that_of_the_only_call_which_is_done() -> None:
    events = path(notes_calls=False)
    with pytest.raises(CannotSubstitute, match="which call"):
        made(events, "b")
    assert not any(isinstance(event.body, StateChange) for event in made(events, "a", "b"))
    failed = [*events[:7], *commit("t", result("a", status="failed"), after=7), *events[8:]]
    assert not any(isinstance(event.body, StateChange) for event in made(failed, "b"))
    assert sum(isinstance(event.body, StateChange) for event in made(failed, "a")) == 2


def test_a_result_that_was_erased_can_give_way_and_cannot_be_kept() -> None:
    events = path()
    events[7] = erased(events[7])
    with pytest.raises(CannotSubstitute, match="call a was erased"):
        made(events, "b")
    assert len(made(events, "a", "b")) == 4
