"""How a path ends: in a finished answer, or where the model is to speak."""

import pytest
from tests.llm.paths import commit, erased

from forkpoint.events import (
    AnyBody,
    AssistantMessage,
    Condensation,
    HookRun,
    ManifestChanged,
    ModelCalled,
    Reasoning,
    SettingsChanged,
    SkillActivated,
    StateChange,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    TurnStopped,
    Usage,
    UserMessage,
)
from forkpoint.history.branches.ending import Ending, ending_of, last_exchanges

SAYS = UserMessage((Text("Why?"),))
ANSWERS = AssistantMessage((Text("So."),))
THINKS = Reasoning("Hm.")
CALLS = ToolCall("c", "look", "{}")
RETURNS = ToolResult("c", "look", (Text("seen"),))
ASKED = ModelCalled("m", "p", Usage())
NOTES: tuple[AnyBody, ...] = (
    StateChange((("a", "1"),)),
    SettingsChanged("{}"),
    ManifestChanged("h", "{}"),
    Condensation("Before.", 1),
    SkillActivated("s", "do"),
)


@pytest.mark.parametrize(
    ("bodies", "ending"),
    [
        ([], "empty"),
        ([ManifestChanged("h", "{}")], "empty"),
        ([SystemMessage((Text("Be brief."),))], "empty"),
        ([SAYS], "unfinished"),
        ([SAYS, ASKED], "unfinished"),
        ([SAYS, ASKED, CALLS, RETURNS], "unfinished"),
        ([SAYS, ASKED, CALLS, RETURNS, ASKED], "unfinished"),
        ([SAYS, ASKED, CALLS, RETURNS, ASKED, ANSWERS], "answered"),
        ([SAYS, ASKED, THINKS, ANSWERS], "answered"),
        ([SAYS, ASKED, ANSWERS, THINKS], "answered"),
        ([SAYS, ASKED, THINKS], "unfinished"),
        ([SAYS, ASKED, ToolCall("c", "look", "{}", client=True)], "handed"),
        ([SAYS, ASKED, CALLS, RETURNS, TurnStopped("steps", "1")], "unfinished"),
        ([SAYS, ASKED, ANSWERS, TurnStopped("steps", "1")], "unfinished"),
        ([SAYS, ASKED, ANSWERS, HookRun("h", "turn_end", blocked=True, reason="no")], "unfinished"),
        ([SAYS, ASKED, ANSWERS, HookRun("h", "turn_end")], "answered"),
        ([SAYS, ASKED, ANSWERS, SystemMessage((Text("In the form that was asked for."),))], "unfinished"),
    ],
)
def test_a_path_ends_by_what_was_said_last(bodies: list[AnyBody], ending: Ending) -> None:
    for behind in ((), NOTES):
        assert ending_of(commit("t", *bodies, *behind), is_all=True) == ending


@pytest.mark.parametrize("last", [SAYS, RETURNS, ANSWERS])
def test_an_erased_event_counts_as_what_its_envelope_says(last: AnyBody) -> None:
    path = commit("t", SAYS, CALLS, last) if last is RETURNS else commit("t", SAYS, last)
    assert ending_of([erased(event) for event in path], is_all=True) == ending_of(path, is_all=True)


@pytest.mark.parametrize("tail", [NOTES, (THINKS,), (SystemMessage((Text("Be brief."),)),)])
def test_a_tail_that_is_too_short_does_not_tell(tail: tuple[AnyBody, ...]) -> None:
    assert ending_of(commit("t", *tail, after=100), is_all=False) is None


def test_the_last_exchanges_are_what_came_after_the_last_message() -> None:
    path = [*commit("t", SAYS, CALLS, RETURNS, ANSWERS), *commit("u", SAYS, CALLS, RETURNS, after=4)]
    assert last_exchanges(path) == path[5:]
    assert last_exchanges(path[5:]) is None
