"""State is a function of the events before it, however they were read."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint.events import (
    GONE,
    Condensation,
    Content,
    ManifestChanged,
    Opaque,
    SettingsChanged,
    SkillActivated,
    StateChange,
    Text,
    ToolResult,
    UserMessage,
)
from forkpoint.history.state import EMPTY, State, fold

quick = settings(max_examples=60, deadline=None, database=None)

keys = st.sampled_from(["a", "b", "c", "", "é"])
values = st.sampled_from(["1", "2", " 1", "null", '{"b": 1, "a": 2}'])
changes = st.builds(
    StateChange, st.lists(st.tuples(keys, values), max_size=3).map(tuple), st.lists(keys, max_size=2).map(tuple)
)
bodies: st.SearchStrategy[Any] = (
    changes
    | st.builds(SkillActivated, st.sampled_from(["review", "deploy"]), st.just("how"))
    | st.builds(ManifestChanged, st.sampled_from(["one", "two"]), st.just("{}"))
    | st.builds(Condensation, st.sampled_from(["short", "shorter"]), st.integers(1, 3))
    | st.sampled_from([UserMessage((Text("a"),)), ToolResult("c", "t"), SettingsChanged("{}"), GONE])
    | st.builds(Opaque, st.just("new"), st.just("{}"))
)
histories = st.lists(bodies, max_size=12)


@quick
@given(history=histories, place=st.integers(0, 12))
def test_folding_in_portions_is_folding_at_once(history: list[Content], place: int) -> None:
    assert fold(history[place:], fold(history[:place])) == fold(history)


@quick
@given(history=histories)
def test_values_are_what_a_dictionary_would_hold(history: list[Content]) -> None:
    model: dict[str, str] = {}
    for body in history:
        if isinstance(body, StateChange):
            model.update(body.set)
            for key in body.removed:
                model.pop(key, None)
    state = fold(history)
    assert dict(state.values) == model
    assert [key for key, _ in state.values] == sorted(model), "values are sorted by key, so equal states are equal"
    for key in ("a", "b", "c", "", "é", "never set"):
        assert state.get(key) == model.get(key)


@quick
@given(history=histories)
def test_the_rest_is_what_the_last_word_on_it_said(history: list[Content]) -> None:
    state = fold(history)
    manifests = [body.hash for body in history if isinstance(body, ManifestChanged)]
    condensations = [body for body in history if isinstance(body, Condensation)]
    skills = [body.name for body in history if isinstance(body, SkillActivated)]
    assert state.manifest == (manifests[-1] if manifests else None)
    assert state.kept_from == (condensations[-1].kept_from if condensations else 1)
    assert state.summary == (condensations[-1].summary if condensations else None)
    assert state.skills == tuple(dict.fromkeys(skills)), "each skill once, in the order they were activated"


@quick
@given(history=histories)
def test_a_kind_that_is_not_known_marks_the_state_partial_for_good(history: list[Content]) -> None:
    assert fold(history).partial == any(isinstance(body, Opaque) for body in history)


@pytest.mark.parametrize(
    "body",
    [
        UserMessage((Text("a"),)),
        ToolResult("c", "t"),
        SettingsChanged("{}"),
        GONE,
        SkillActivated("review", "how"),
        Opaque("new", "{}"),
    ],
    ids=lambda body: type(body).__name__,
)
def test_an_event_that_changes_nothing_gives_back_the_very_same_state(body: Content) -> None:
    state = State((("a", "1"),), ("review",), "one", 2, "short", partial=True)
    assert state.then(body) is state


@pytest.mark.parametrize(
    "body",
    [
        StateChange((("a", "1"),)),
        StateChange(removed=("never set",)),
        StateChange((("b", "1"),), ("b",)),
        ManifestChanged("one", "{}"),
        Condensation("short", 2),
    ],
    ids=lambda body: str(body),
)
def test_setting_what_is_set_already_gives_back_the_very_same_state(body: Content) -> None:
    """The store keeps a folded state for each turn that changed it, and tells that by identity."""
    state = State((("a", "1"),), ("review",), "one", 2, "short")
    after = state.then(body)
    assert after == state
    assert after is state, "State.then promises the very same object; another one is stored again as if it had changed"


@quick
@given(history=histories, body=bodies)
def test_a_state_is_never_changed_in_place(history: list[Content], body: Content) -> None:
    state = fold(history)
    before = msgspec.json.encode(state)
    state.then(body)
    assert msgspec.json.encode(state) == before


@quick
@given(history=histories)
def test_a_state_comes_back_from_its_stored_form(history: list[Content]) -> None:
    state = fold(history)
    assert msgspec.json.decode(msgspec.json.encode(state), type=State) == state


@quick
@given(history=histories, order=st.permutations([("a", "1"), ("b", "2"), ("c", "3")]))
def test_equal_values_are_equal_states_in_whatever_order_they_were_set(
    history: Sequence[Content], order: list[tuple[str, str]]
) -> None:
    base = fold(history)
    assert fold([StateChange((one,)) for one in order], base) == base.then(StateChange(tuple(sorted(order))))


def test_a_key_that_is_set_and_removed_in_one_change_is_not_set() -> None:
    assert fold([StateChange((("a", "1"), ("b", "2")), ("a",))]).values == (("b", "2"),)


def test_nothing_folds_to_the_empty_state() -> None:
    assert fold([]) is EMPTY
    assert EMPTY.get("a") is None


def test_a_value_keeps_the_spelling_that_it_was_set_with() -> None:
    assert fold([StateChange((("a", ' {"b" : 1.0}'),))]).get("a") == ' {"b" : 1.0}'
