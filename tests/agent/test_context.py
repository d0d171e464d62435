"""What a tool sets is staged for its own call, is JSON, and leaves everybody else's state alone."""

import dataclasses
import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint.agent import ToolContext
from forkpoint.agent.context import AgentState
from forkpoint.errors import NotWhole
from forkpoint.events import NewEvent, StateChange, encode_body
from forkpoint.history.state import EMPTY, State, fold
from forkpoint.history.wholeness import DEPTH, check_whole

BEFORE = State((("a", "1"), ("b", '{"list":[1]}')))


def test_a_state_reads_as_the_values_that_its_json_says() -> None:
    state = AgentState(BEFORE)
    assert dict(state) == {"a": 1, "b": {"list": [1]}}
    assert list(state) == ["a", "b"]
    assert len(state) == 2
    assert "a" in state
    assert "c" not in state
    assert state.get("c", 5) == 5
    with pytest.raises(KeyError):
        state["c"]


def test_nothing_done_is_no_change() -> None:
    assert AgentState(BEFORE).change is None
    assert AgentState().change is None
    state = AgentState(BEFORE)
    _ = dict(state)
    assert state.change is None


def test_what_is_set_is_read_back_and_staged() -> None:
    state = AgentState(BEFORE)
    state["c"] = [1, {"d": None}]
    state["a"] = 2
    assert state["c"] == [1, {"d": None}]
    assert state.change == StateChange((("a", "2"), ("c", '[1,{"d":null}]')))
    assert BEFORE.get("a") == "1", "the state before is not changed"


def test_changing_what_was_read_in_place_counts() -> None:
    state = AgentState(BEFORE)
    state["b"]["list"].append(2)
    state["b"]["more"] = {}
    assert state["b"] == {"list": [1, 2], "more": {}}
    assert state.change == StateChange((("b", '{"list":[1,2],"more":{}}'),))
    assert BEFORE.get("b") == '{"list":[1]}', "the state before is not changed"


def test_changing_what_was_set_in_place_counts() -> None:
    state = AgentState()
    value = {"list": [1]}
    state["b"] = value
    value["list"].append(2)
    state["b"]["list"].append(3)
    assert state["b"] == {"list": [1, 2, 3]}
    assert state.change == StateChange((("b", '{"list":[1,2,3]}'),))


def test_a_default_that_was_set_can_be_changed_in_place() -> None:
    state = AgentState(BEFORE)
    state.setdefault("x", []).append(1)
    state.setdefault("x", []).append(2)
    state.setdefault("b", {}).setdefault("list", []).append(2)
    assert state["x"] == [1, 2]
    assert state.change == StateChange((("b", '{"list":[1,2]}'), ("x", "[1,2]")))


def test_values_of_a_loop_can_be_changed_in_place() -> None:
    state = AgentState(State((("a", "[1]"), ("b", "[2]"))))
    for value in state.values():
        value.append(0)
    assert state.change == StateChange((("a", "[1,0]"), ("b", "[2,0]")))


def test_a_change_in_place_that_was_undone_is_no_change() -> None:
    state = AgentState(State((("a", '{"b": [1], "c": 1}'),)))
    state["a"]["b"].append(2)
    state["a"]["b"].pop()
    assert state.change is None


def test_a_value_that_was_replaced_or_removed_is_the_state_s_no_more() -> None:
    state = AgentState(BEFORE)
    old = state["b"]
    state["b"] = {"new": 1}
    old["list"].append(2)
    assert state.change == StateChange((("b", '{"new":1}'),))
    replaced = state.pop("b")
    replaced["new"] = 2
    assert state.change == StateChange(removed=("b",))


def test_an_object_that_was_set_counts_as_it_is_in_the_end_and_reads_as_json() -> None:
    person = dataclasses.make_dataclass("Person", ["name"])("Ann")
    state = AgentState()
    state["a"] = person
    person.name = "Bob"
    assert state.change == StateChange((("a", '{"name":"Bob"}'),))
    assert state["a"] == {"name": "Bob"}
    state["a"]["name"] = "Cid"
    assert state.change == StateChange((("a", '{"name":"Cid"}'),))


def test_a_value_is_read_as_the_next_call_will_read_it() -> None:
    state = AgentState()
    state["a"] = {"pair": (1, 2)}
    assert state["a"] == {"pair": [1, 2]}
    state["a"]["pair"].append(3)
    assert state["a"] == {"pair": [1, 2, 3]}
    assert state.change == StateChange((("a", '{"pair":[1,2,3]}'),))


@pytest.mark.parametrize("wrong", [object(), "\ud800", math.nan], ids=["object", "text", "number"])
def test_what_json_cannot_say_is_refused_by_its_key_if_it_was_put_there_in_place(wrong: Any) -> None:
    state = AgentState(BEFORE)
    state["b"]["list"].append(wrong)
    with pytest.raises(NotWhole, match="the value of 'b' has no JSON form"):
        state.settle()


def test_reading_in_place_counts_as_reading_for_calls_at_the_same_time() -> None:
    state = AgentState(BEFORE)
    state["b"]["list"].append(2)
    assert state.outdated(BEFORE, State((("a", "1"), ("b", "[]")))) == "b"
    assert state.outdated(BEFORE, State((("a", "2"), ("b", '{"list":[1]}')))) is None


def test_a_change_in_place_after_the_end_is_too_late() -> None:
    context = ToolContext("call_1", state=BEFORE)
    value = context.state["b"]
    value["list"].append(2)
    context.state.settle()
    context.end()
    value["list"].append(3)
    context.state["b"]["list"].append(4)
    assert context.state.change == StateChange((("b", '{"list":[1,2]}'),))


def test_setting_the_same_value_is_no_change() -> None:
    state = AgentState(BEFORE)
    state["a"] = 5
    state["a"] = 1
    state["b"] = state["b"]
    assert state.change is None


def test_setting_the_same_value_is_no_change_however_it_was_spelled_before() -> None:
    state = AgentState(State((("a", '{"b": 1, "c": "\\u00e9"}'),)))
    state["a"] = state["a"]
    assert state.change is None


@pytest.mark.parametrize(("one", "other"), [("1", True), ("1", 1.0), ("0", False), ('"1"', 1), ("null", False)])
def test_a_value_of_another_type_is_a_change_even_if_python_calls_them_equal(one: str, other: Any) -> None:
    state = AgentState(State((("a", one),)))
    state["a"] = other
    assert state.change == StateChange((("a", json.dumps(other)),))


def test_a_key_that_is_deleted_is_gone_and_staged_as_removed() -> None:
    state = AgentState(BEFORE)
    del state["a"]
    assert "a" not in state
    assert list(state) == ["b"]
    assert state.change == StateChange(removed=("a",))
    with pytest.raises(KeyError):
        del state["a"]
    with pytest.raises(KeyError):
        del state["never"]


def test_a_key_that_was_set_and_deleted_again_leaves_no_trace() -> None:
    state = AgentState()
    state["new"] = 1
    del state["new"]
    assert state.change is None
    assert len(state) == 0


def test_a_key_that_was_deleted_and_set_again_is_set() -> None:
    state = AgentState(BEFORE)
    del state["a"]
    state["a"] = 3
    assert state.change == StateChange((("a", "3"),))
    del state["a"]
    assert state.change == StateChange(removed=("a",))
    state["a"] = 1
    assert state.change is None


def test_everything_a_dictionary_can_do_works() -> None:
    state = AgentState(BEFORE)
    assert state.pop("a") == 1
    assert state.setdefault("c", []) == []
    state.update({"d": 1}, e=2)
    assert sorted(state) == ["b", "c", "d", "e"]
    for key in state:
        del state[key]
    state.clear()
    assert state.change == StateChange(removed=("a", "b"))
    assert "clear" not in state


@pytest.mark.parametrize(
    "value",
    [object(), {"a": object()}, "\ud800", ["\udfff"], {"\ud800": 1}, len, math.nan, math.inf, [math.nan], {(1, 2): 3}],
    ids=lambda value: ascii(value).partition(" at ")[0],
)
def test_what_json_cannot_say_is_refused_and_leaves_the_state_as_it_was(value: Any) -> None:
    state = AgentState(BEFORE)
    with pytest.raises(NotWhole):
        state["a"] = value
    assert state["a"] == 1
    assert state.change is None


def test_what_is_nested_deeper_than_history_may_be_is_refused_at_once() -> None:
    state = AgentState(BEFORE)
    deep: list[Any] = []
    for _ in range(DEPTH):
        deep = [deep]
    with pytest.raises(NotWhole, match=f"nested more than {DEPTH} deep"):
        state["a"] = deep
    state["a"] = deep[0]
    assert state["a"] == deep[0]


def test_what_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    state = AgentState()
    with pytest.raises(NotWhole):
        state["a"] = endless
    assert state.change is None


@pytest.mark.parametrize("key", [1, None, b"a", ("a",)])
def test_a_key_is_a_text(key: Any) -> None:
    state = AgentState()
    with pytest.raises(TypeError):
        state[key] = 1
    assert state.change is None


def test_a_key_that_is_not_valid_unicode_is_refused_before_it_spoils_the_turn() -> None:
    state = AgentState()
    with pytest.raises(NotWhole):
        state["\ud800"] = 1
    assert state.change is None


values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2),
    max_leaves=4,
)
keys = st.sampled_from(["a", "b", "c", ""])
steps = st.lists(st.tuples(keys, st.none() | st.tuples(values)), max_size=8)


@settings(max_examples=100, deadline=None, database=None)
@given(before=st.dictionaries(keys, values, max_size=3), steps=steps)
def test_a_state_is_a_dictionary_and_its_change_leads_to_it(
    before: dict[str, Any], steps: list[tuple[str, tuple[Any] | None]]
) -> None:
    start = State(tuple(sorted((key, json.dumps(value)) for key, value in before.items())))
    state, model = AgentState(start), dict(before)
    for key, value in steps:
        if value is not None:
            state[key] = value[0]
            model[key] = value[0]
        elif key in model:
            del state[key]
            del model[key]
        assert dict(state) == model
        assert list(state) == sorted(model)
    if (change := state.change) is not None:
        check_whole(NewEvent(change))
        encode_body(change)
        assert dict(AgentState(fold([change], start))) == model
        assert {key for key, _ in change.set}.isdisjoint(change.removed)
    else:
        assert model == before


def test_two_calls_do_not_see_what_the_other_stages() -> None:
    one, other = (ToolContext(call_id, state=BEFORE) for call_id in ("1", "2"))
    one.state["a"] = 5
    assert other.state["a"] == 1
    assert other.state.change is None


def test_a_context_has_what_it_was_given_and_nothing_is_cancelled() -> None:
    told: list[str] = []
    context = ToolContext("call-1", workspace=Path("/w"), state=BEFORE, progress=told.append)
    assert (context.call_id, context.workspace, context.cancelled) == ("call-1", Path("/w"), False)
    context.progress("half")
    assert told == ["half"]


def test_progress_that_nobody_watches_is_no_error() -> None:
    context = ToolContext("call-1")
    context.progress("half")
    assert context.workspace is None
    assert dict(context.state) == {}
    assert EMPTY.values == ()


def test_a_cancellation_is_seen_in_another_thread_and_stays() -> None:
    context = ToolContext("call-1")
    context.cancel()
    context.cancel()
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(context.cancelled))
    thread.start()
    thread.join()
    assert seen == [True]


def test_a_tool_that_was_left_behind_cannot_change_the_state_any_more() -> None:
    context = ToolContext("call_1")
    context.state["kept"] = 1
    context.cancel()
    for change in (lambda: context.state.update(late=2), lambda: context.state.pop("kept")):
        with pytest.raises(RuntimeError, match="has ended"):
            change()
    assert context.state.change == StateChange((("kept", "1"),))
    assert context.state["kept"] == 1, "it can still be read"
