"""Wholeness: each form that a provider would refuse for good is refused here first."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint.errors import NotWhole
from forkpoint.events import (
    AnyBody,
    AssistantMessage,
    Condensation,
    Content,
    File,
    Image,
    ManifestChanged,
    NewEvent,
    Opaque,
    Part,
    Reasoning,
    SettingsChanged,
    SkillActivated,
    StateChange,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
    decode_body,
    encode_body,
    kind_of,
)
from forkpoint.history.wholeness import DEPTH, check_whole, is_json

quick = settings(max_examples=60, deadline=None, database=None)

HELLO = Text("hello")
CUT_OFF = '{"type": "message", "content": [{"te'
BLANKS = ["", " ", "\n\t ", "\u00a0\u2003", "\x1f"]

messages = pytest.mark.parametrize(
    "message", [UserMessage, AssistantMessage, SystemMessage], ids=["user", "assistant", "system"]
)
blanks = pytest.mark.parametrize("blank", BLANKS, ids=ascii)


def refused(body: AnyBody | Opaque) -> str:
    """Why a body is not whole; fails if it is taken for whole."""
    why = None
    try:
        check_whole(NewEvent(body))
    except NotWhole as error:
        kind, why = error.kind, error.why
    assert why is not None, f"this would have become history: {body}"
    assert kind == kind_of(body), "the error must name the kind that was refused"
    return why


def accepted(body: AnyBody | Opaque) -> None:
    check_whole(NewEvent(body))


@messages
def test_a_message_without_parts_is_refused(message: type[UserMessage]) -> None:
    assert refused(message(())) == "it has no parts"


@messages
@blanks
def test_a_message_with_a_blank_text_is_refused_wherever_that_stands(message: type[UserMessage], blank: str) -> None:
    for parts in ((Text(blank),), (HELLO, Text(blank)), (Text(blank), HELLO), (HELLO, Text(blank), HELLO)):
        assert refused(message(parts)) == "it has a blank text part"


@pytest.mark.parametrize(
    "part",
    [
        Image("image/png"),
        Image("image/png", data=""),
        Image("image/png", url=""),
        File("a.txt", "text/plain"),
        File("a.txt", "text/plain", data="", url=""),
    ],
    ids=repr,
)
def test_a_picture_or_a_file_with_nothing_in_it_is_refused(part: Part) -> None:
    for body in (
        UserMessage((HELLO, part)),
        AssistantMessage((part,)),
        SystemMessage((part,)),
        ToolResult("c", "t", (part,)),
    ):
        assert refused(body) == "a part has neither data nor a url"


@pytest.mark.parametrize("data", ["YQ", "Y Q=", "YQ==\n", "data:image/png;base64,YQ==", "ä", "Y", "\ud800"], ids=ascii)
def test_data_that_is_not_base64_is_refused(data: str) -> None:
    for part in (Image("image/png", data=data), File("f", "m", data=data), Image("image/png", data=data, url="u")):
        for body in (UserMessage((HELLO, part)), ToolResult("c", "t", (part,))):
            assert refused(body) == "the data of a part is not base64"


@messages
def test_a_message_with_something_in_each_part_is_whole(message: type[UserMessage]) -> None:
    accepted(message((HELLO, Image("image/png", data="YQ=="), Image("image/png", url="u"), File("f", "m", url="u"))))
    accepted(message((Text(" . "),)))


def test_a_call_needs_an_id_and_a_tool() -> None:
    assert refused(ToolCall("", "t", "{}")) == "it has no call id"
    assert refused(ToolCall("c", "", "{}")) == "it has no tool name"


@pytest.mark.parametrize("arguments", ["", "{}", "not json", '{"half": "cut o'])
def test_a_call_s_arguments_are_what_the_model_wrote_valid_or_not(arguments: str) -> None:
    accepted(ToolCall("c", "t", arguments))


def test_a_result_needs_the_id_of_its_call() -> None:
    assert refused(ToolResult("", "t", (HELLO,))) == "it has no call id"


def test_a_result_with_an_empty_text_is_refused_and_one_with_nothing_at_all_is_whole() -> None:
    assert refused(ToolResult("c", "t", (HELLO, Text("")))) == "it has an empty text part"
    accepted(ToolResult("c", "t"))
    accepted(ToolResult("c", "t", (Text("\n"),)))  # a tool may well have printed a blank line
    accepted(ToolResult("c", "t", status="unknown"))


@pytest.mark.parametrize(
    "empty",
    [Reasoning(), Reasoning(text=""), Reasoning(text="", encrypted="", item=""), Reasoning(provider="anthropic")],
    ids=repr,
)
def test_reasoning_of_which_nothing_is_left_is_refused(empty: Reasoning) -> None:
    assert "no text" in refused(empty)


@pytest.mark.parametrize(
    "thought",
    [
        Reasoning(text="hm"),
        Reasoning(text="hm", signature="s"),
        Reasoning(encrypted="e"),
        Reasoning(item='{"type": "reasoning"}'),
    ],
    ids=repr,
)
def test_reasoning_of_which_something_is_left_is_whole(thought: Reasoning) -> None:
    accepted(thought)


def test_reasoning_whose_text_a_provider_leaves_out_is_whole_by_its_signature() -> None:
    """Anthropic sends thinking blocks with an empty text and a signature that must go back."""
    for thought in (Reasoning(text="", signature="signed"), Reasoning(signature="signed")):
        try:
            check_whole(NewEvent(thought))
        except NotWhole as error:
            pytest.fail(f"a paid turn is refused although its reasoning can go back as it came: {error}")


def test_a_state_change_that_changes_nothing_is_refused() -> None:
    assert refused(StateChange()) == "it changes nothing"
    accepted(StateChange(removed=("a",)))


@pytest.mark.parametrize(
    "value", ["", " ", "rubbish", "{", "[1,]", "'a'", "NaN", "1 2", '"\\ud800"', "\ud800", "undefined"], ids=ascii
)
def test_a_state_value_that_is_not_json_is_refused(value: str) -> None:
    assert refused(StateChange((("good", "1"), ("bad", value)))) == "the value of 'bad' is not JSON"


@pytest.mark.parametrize("value", ["null", "0", '""', "[]", ' {"a" : 1.50} ', '"\\u00e9"', "123456789012345678901"])
def test_a_state_value_that_is_json_is_whole_however_it_is_spelled(value: str) -> None:
    accepted(StateChange((("key", value),)))


@blanks
def test_a_condensation_with_a_blank_summary_is_refused(blank: str) -> None:
    assert refused(Condensation(blank, 1)) == "its summary is blank"


@pytest.mark.parametrize("kept_from", [0, -1])
def test_a_condensation_cannot_keep_what_is_before_the_first_event(kept_from: int) -> None:
    assert "before the first event" in refused(Condensation("s", kept_from))
    accepted(Condensation("s", 1))


def test_an_opaque_event_needs_a_kind_and_json() -> None:
    assert refused(Opaque("", "{}")) == "it has no kind"
    for payload in ("", " ", "rubbish", '{"kind": "new"', "\ud800"):
        assert refused(Opaque("new", payload)) == "its payload is not JSON"
    accepted(Opaque("new", '{"kind": "new", "a": 1}'))


# What was accepted once can be read for ever.


@pytest.mark.parametrize(
    "body",
    [
        Opaque("new", "3"),
        Opaque("new", "null"),
        Opaque("new", "[]"),
        Opaque("new", "{}"),
        Opaque("new", '{"kind": 3}'),
        Opaque("new", '{"kind": "another"}'),
        Opaque("new", '{"kind": "user_message", "parts": []}'),
    ],
    ids=lambda body: body.payload,
)
def test_an_opaque_event_that_would_not_come_back_as_it_is_is_refused(body: Opaque) -> None:
    try:
        check_whole(NewEvent(body))
    except NotWhole:
        return
    try:
        again: Content | Exception = decode_body(encode_body(body))
    except Exception as error:
        again = error
    assert again == body, f"{body} is accepted, and every later read of the conversation meets {again!r}"


deep = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "body",
    [StateChange((("key", deep),)), Opaque("new", f'{{"kind": "new", "a": {deep}}}')],
    ids=["a state value", "an opaque payload"],
)
def test_json_that_is_nested_too_deep_to_be_read_is_refused(body: AnyBody | Opaque) -> None:
    try:
        check_whole(NewEvent(body))
    except NotWhole:
        return
    except RecursionError:
        pytest.fail("100,000 brackets raise a RecursionError instead of NotWhole")
    pytest.fail("100,000 brackets were taken for whole, and no reader will ever get through them")


@pytest.mark.parametrize(
    "body",
    [
        AssistantMessage((HELLO,), item=CUT_OFF),
        Reasoning(text="hm", item=CUT_OFF),
        ToolCall("c", "t", "{}", item=CUT_OFF),
        SettingsChanged(CUT_OFF),
        ManifestChanged("hash", CUT_OFF),
    ],
    ids=kind_of,
)
def test_a_document_that_was_cut_off_is_refused(body: AnyBody) -> None:
    """Unlike a call's arguments, which are the model's own text, these are JSON by contract."""
    assert "not JSON" in refused(body)


texts = st.sampled_from([*BLANKS, "hello", "é", "\0"])
parts = st.lists(
    st.builds(Text, texts)
    | st.builds(Image, texts, st.none() | texts, st.none() | texts)
    | st.builds(File, texts, texts, st.none() | texts, st.none() | texts),
    max_size=3,
).map(tuple)
bodies: st.SearchStrategy[Any] = (
    st.builds(UserMessage, parts)
    | st.builds(AssistantMessage, parts)
    | st.builds(ToolResult, texts, texts, parts)
    | st.builds(ToolCall, texts, texts, texts)
    | st.builds(Reasoning, st.none() | texts, st.none() | texts, st.none() | texts)
    | st.builds(Condensation, texts, st.integers(-2, 5))
    | st.builds(SkillActivated, texts, texts)
)


def blank_texts(body: Any) -> list[str]:
    return [part.text for part in getattr(body, "parts", ()) if isinstance(part, Text) and not part.text.strip()]


@quick
@given(body=bodies)
def test_whatever_is_accepted_comes_back_equal_and_has_no_blank_text(body: AnyBody) -> None:
    try:
        check_whole(NewEvent(body))
    except NotWhole:
        return
    assert decode_body(encode_body(body)) == body
    if not isinstance(body, ToolResult):
        assert not blank_texts(body), f"a blank text became history: {body}"


def test_json_may_be_nested_as_deep_as_every_python_can_read_and_no_deeper() -> None:
    at_the_limit = "[" * DEPTH + "]" * DEPTH
    assert is_json(at_the_limit)
    assert is_json(f"[{at_the_limit[1:-1]}, {at_the_limit[1:-1]}]"), "it is the depth that counts, not the brackets"
    assert is_json('"' + "[" * 10 * DEPTH + '"'), "nor do brackets in a text"
    assert not is_json(f"[{at_the_limit}]")
    assert not is_json('{"a":' * (DEPTH + 1) + "1" + "}" * (DEPTH + 1))
