"""The vocabulary: every kind comes back as it was written, and what is not known is kept exactly."""

import json
import math
import re
import types
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint import events
from forkpoint.errors import NotWhole
from forkpoint.events import (
    GONE,
    AnyBody,
    ApprovalAsked,
    AssistantMessage,
    Body,
    Brought,
    Content,
    Envelope,
    Erased,
    Event,
    File,
    Gone,
    HookRun,
    Image,
    Imported,
    NewEvent,
    Opaque,
    Position,
    Reasoning,
    StagedEvent,
    StateChange,
    SubAgentSpawned,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    decode_body,
    decode_envelope,
    encode_body,
    encode_envelope,
    kind_of,
    part_type,
    seal,
)

few = settings(max_examples=12, deadline=None, database=None)  # for each kind
quick = settings(max_examples=40, deadline=None, database=None)

KINDS: dict[str, type] = {str(cls.__struct_config__.tag): cls for cls in get_args(AnyBody)}

# The vocabulary, with the role that each kind has in a prompt. It is stored on disks: a kind is added, never renamed.
VOCABULARY = {
    "user_message": "user",
    "assistant_message": "assistant",
    "system_message": "system",
    "reasoning": "assistant",
    "tool_call": "assistant",
    "tool_result": "tool",
    "result_substituted": None,
    "state_change": None,
    "skill_activated": None,
    "settings_changed": None,
    "manifest_changed": None,
    "condensation": None,
    "hook_run": None,
    "approval_asked": None,
    "approval_given": None,
    "approval_denied": None,
    "sub_agent_spawned": None,
    "sub_agent_finished": None,
    "model_called": None,
    "turn_stopped": None,
    "imported": None,
    "brought": None,
    "erased": None,
}


# Any body of any kind, built from what its class says of its fields.

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return st.one_of([values_of(choice) for choice in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return structs_of(kind)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        str: texts,
        int: st.integers(-(2**53), 2**53),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        type(None): st.none(),
    }
    return plain[kind]


def structs_of(kind: type) -> st.SearchStrategy[Any]:
    fields = msgspec.structs.fields(kind)
    return st.builds(kind, **{field.name: values_of(field.type) for field in fields})


bodies: st.SearchStrategy[AnyBody] = st.one_of([structs_of(kind) for kind in KINDS.values()])
all_kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))


@all_kinds
@few
@given(data=st.data())
def test_every_kind_comes_back_equal_and_is_written_again_byte_for_byte(kind: type, data: st.DataObject) -> None:
    body = data.draw(structs_of(kind))
    payload = encode_body(body)
    again = decode_body(payload)
    assert type(again) is kind, f"{payload} came back as {type(again).__name__}"
    assert again == body, f"{payload} came back as another body"
    assert isinstance(again, kind)
    assert encode_body(again) == payload, "what was read is not written back byte for byte"  # type: ignore[arg-type]
    assert decode_body(payload.encode()) == body, "a payload read as bytes is another than one read as text"


@quick
@given(body=bodies)
def test_bodies_are_hashable_and_equal_ones_have_the_same_hash(body: AnyBody) -> None:
    assert hash(body) == hash(decode_body(encode_body(body)))


@quick
@given(body=bodies)
def test_a_payload_is_one_json_object_that_names_its_kind(body: AnyBody) -> None:
    assert json.loads(encode_body(body))["kind"] == kind_of(body)


@all_kinds
@few
@given(data=st.data())
def test_no_field_of_a_body_can_be_assigned(kind: type, data: st.DataObject) -> None:
    body = data.draw(structs_of(kind))
    for field in msgspec.structs.fields(kind):
        with pytest.raises(AttributeError):
            setattr(body, field.name, getattr(body, field.name))


@pytest.mark.parametrize(
    "frozen",
    [
        Position(1, 2),
        Text("a"),
        Image("image/png", url="a"),
        File("a", "text/plain", data="YQ=="),
        Opaque("new", "{}"),
        Gone(),
        Envelope("user_message", 1),
        NewEvent(UserMessage((Text("a"),))),
        Event(Position(1, 1), "turn", Envelope("user_message", 1), Gone()),
        Usage(1),
    ],
    ids=lambda frozen: type(frozen).__name__,
)
def test_everything_else_in_the_vocabulary_is_frozen_and_hashable_too(frozen: msgspec.Struct) -> None:
    hash(frozen)
    for field in msgspec.structs.fields(frozen):
        with pytest.raises(AttributeError):
            setattr(frozen, field.name, None)


# What must come back exactly.

exact_texts = pytest.mark.parametrize(
    "text",
    [
        '{"b": 1, "a": 2}',
        '{"a":1.0,"b":1e0,"c":1E+00,"d":-0.0,"e":0.1000}',
        '{"a" :\t1 ,\r\n "b":  [ ] }\n',
        '{"a":12345678901234567890123456789012345678901234567890}',
        '{"a":1,"a":2}',
        '"\\u00e9é\\/"',
        "\u2028\u2029\ufeff\U0001f600\x00\x7f",
        '{"half": "cut o',
        "",
        " ",
    ],
)


@exact_texts
def test_tool_arguments_come_back_exactly_as_the_model_wrote_them(text: str) -> None:
    call = decode_body(encode_body(ToolCall("c", "t", text, item=text)))
    assert isinstance(call, ToolCall)
    assert call.arguments == text, "tool arguments were changed on their way to the disk and back"
    assert call.item == text, "a provider's item was changed on its way to the disk and back"


@exact_texts
def test_json_text_comes_back_exactly_in_every_field_that_holds_it(text: str) -> None:
    for body in (
        AssistantMessage((Text("a"),), item=text),
        Reasoning(item=text, encrypted=text, signature=text),
        StateChange(((text, text),), (text,)),
        events.SettingsChanged(text),
        events.ManifestChanged("hash", text),
    ):
        assert decode_body(encode_body(body)) == body, f"{kind_of(body)} changed its text"


@quick
@given(arguments=texts)
def test_any_text_at_all_can_be_a_tool_call_s_arguments(arguments: str) -> None:
    call = decode_body(encode_body(ToolCall("c", "t", arguments)))
    assert isinstance(call, ToolCall)
    assert call.arguments == arguments


@pytest.mark.parametrize(
    "body",
    [
        UserMessage((Text("a\ud800"),)),
        ToolCall("c", "t", '{"a": "\udfff"}'),
        ToolCall("\ud800", "t", "{}"),
        StateChange((("key\ud800", "1"),)),
        Reasoning(encrypted="\udc80"),
    ],
    ids=kind_of,
)
def test_text_with_a_lone_surrogate_is_refused_as_not_whole(body: AnyBody) -> None:
    with pytest.raises(NotWhole, match="not valid Unicode") as refused:
        encode_body(body)
    assert refused.value.kind == kind_of(body), "the error must name the kind that cannot be stored"


# What only a newer version knows.

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
spellings: st.SearchStrategy[Callable[[Any], str]] = st.sampled_from(
    [
        json.dumps,
        lambda value: json.dumps(value, ensure_ascii=False),
        lambda value: json.dumps(value, indent=3, separators=(" ,", " : ")),
    ]
)


@quick
@given(
    kind=texts.filter(lambda kind: kind not in KINDS),
    rest=st.dictionaries(texts.filter(lambda key: key != "kind"), json_values, max_size=4),
    at_the_end=st.booleans(),
    spelling=spellings,
)
def test_an_unknown_kind_is_kept_and_written_back_exactly(
    kind: str, rest: dict[str, Any], at_the_end: bool, spelling: Callable[[Any], str]
) -> None:
    payload = spelling(rest | {"kind": kind} if at_the_end else {"kind": kind} | rest)
    for given_as in (payload, payload.encode()):
        body = decode_body(given_as)
        assert body == Opaque(kind, payload), f"{payload} was not kept as it is"
        assert isinstance(body, Opaque)
        assert encode_body(body) == payload
        assert kind_of(body) == kind


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        ('{"kind":"user_message","parts":[{"type":"hologram","data":"x"}]}', "user_message"),
        ('{"kind":"tool_result","call_id":"c","tool":"t","status":"postponed"}', "tool_result"),
        ('{"kind":"tool_result","call_id":"c","tool":"t","parts":[{"type":"text","text":{"rich":1}}]}', "tool_result"),
        ('{"kind":"user_message"}', "user_message"),
        ('{"kind":"condensation","summary":"s","kept_from":"1-2"}', "condensation"),
    ],
    ids=["a part of a new type", "a new status", "a field of another type", "a field gone", "a number now a text"],
)
def test_a_known_kind_in_a_form_that_only_a_newer_version_knows_is_kept_and_written_back(
    payload: str, kind: str
) -> None:
    body = decode_body(payload)
    assert body == Opaque(kind, payload), "a newer form must be kept, never guessed at"
    assert isinstance(body, Opaque)
    assert encode_body(body) == payload


@all_kinds
@few
@given(data=st.data())
def test_a_known_kind_with_fields_of_a_newer_version_loads_without_them(kind: type, data: st.DataObject) -> None:
    body = data.draw(structs_of(kind))
    newer = json.loads(encode_body(body)) | {"added_later": data.draw(json_values)}
    assert decode_body(json.dumps(newer)) == body


@pytest.mark.parametrize(
    "payload",
    [
        "",
        " ",
        "rubbish",
        "{",
        '{"kind":"user_message","parts":[{"type":"text","text":"cut o',
        '{"kind":"from_the_future","a":',
        '{"kind":"user_message","parts":[]} and more',
        "{'kind': 'user_message'}",
        '{"kind":"from_the_future","a":NaN}',
        b"\x00\x01\x02",
    ],
)
def test_a_payload_that_is_not_json_raises_a_decode_error(payload: str | bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_body(payload)


@pytest.mark.parametrize("kind", ["user_message", "from_the_future"])
def test_a_payload_that_is_not_utf_8_raises_a_decode_error_whatever_its_kind(kind: str) -> None:
    payload = b'{"kind":"%s","parts":[{"type":"text","text":"\xff"}]}' % kind.encode()
    try:
        decode_body(payload)
    except msgspec.DecodeError:
        return
    except UnicodeDecodeError as error:
        pytest.fail(f"decode_body promises msgspec.DecodeError for what is not JSON, and raised {error!r}")
    pytest.fail("bytes that are not UTF-8 were taken for a payload")


def test_an_erased_payload_is_gone() -> None:
    assert decode_body(None) == Gone()


# Envelopes.


@all_kinds
@few
@given(
    data=st.data(),
    response=st.none() | st.integers(0, 99),
    origin=st.none() | st.just("1-2"),
    time=st.none() | st.integers(0, 2**52),
)
def test_the_envelope_of_every_kind_says_what_its_body_is(
    kind: type, data: st.DataObject, response: int | None, origin: str | None, time: int | None
) -> None:
    body = data.draw(structs_of(kind))
    envelope = seal(NewEvent(body, response, origin, time), now=7)
    tag = str(kind.__struct_config__.tag)  # type: ignore[attr-defined]
    fields = {field.name for field in msgspec.structs.fields(kind)}
    assert envelope.kind == tag
    assert envelope.role == VOCABULARY[tag]
    assert envelope.time == (7 if time is None else time)
    assert envelope.call_id == (body.call_id if "call_id" in fields else None)
    assert envelope.tool == (body.tool if "tool" in fields else None)
    assert envelope.client == (body.client if "client" in fields else False)
    assert envelope.parts == (tuple(map(part_type, body.parts)) if "parts" in fields else ())
    assert envelope.response == response
    assert envelope.origin == origin
    assert decode_envelope(encode_envelope(envelope)) == envelope


def test_an_envelope_says_nothing_of_the_content() -> None:
    secret = "never to be seen"
    for body in (
        UserMessage((Text(secret), Image("image/png", data=secret), File(secret, "text/plain", data=secret))),
        ToolCall("c", "t", secret, item=secret),
        ToolResult("c", "t", (Text(secret),), "failed"),
        StateChange(((secret, secret),)),
        HookRun(secret, secret, secret, 1, secret, True, secret, "c"),
        SubAgentSpawned("c", "conversation", secret, secret, secret),
    ):
        envelope = encode_envelope(seal(NewEvent(body), 1))
        assert secret not in envelope, f"the envelope of a {kind_of(body)} keeps content that erasing would not remove"


def test_the_envelope_of_an_opaque_event_has_its_kind_and_no_more() -> None:
    assert seal(NewEvent(Opaque("new", "{}"), origin="1-1"), 5) == Envelope("new", 5, origin="1-1")


def test_the_parts_of_a_message_are_named_in_their_order() -> None:
    message = SystemMessage((Text("a"), File("f", "m", url="u"), Image("m", url="u"), Text("b")))
    assert seal(NewEvent(message), 1).parts == ("text", "file", "image", "text")


def test_an_event_s_kind_is_its_envelope_s_even_when_its_content_is_gone() -> None:
    assert Event(Position(1, 1), "turn", Envelope("approval_asked", 1), Gone()).kind == "approval_asked"


@pytest.mark.parametrize("status", ["failed", "unknown", "denied", "not_run", "not_answered"])
def test_every_result_but_a_done_one_is_an_error_to_the_model(
    status: Literal["failed", "unknown", "denied", "not_run", "not_answered"],
) -> None:
    assert ToolResult("c", "t", status=status).error
    assert not ToolResult("c", "t").error


# Positions.

numbers = st.integers(0, 2**40)


@quick
@given(segment=numbers, ordinal=numbers)
def test_a_position_parses_back_from_its_text(segment: int, ordinal: int) -> None:
    position = Position(segment, ordinal)
    assert Position.parse(str(position)) == position


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", "1", "1-", "-1", "1--2", "1-2-3", "+1-2", "1-+2", " 1-2", "1-2\n", "1 -2", "1_0-2", "0x1-2"),
        *("１-２", "١-٢", "²-1", "1–2", "1.0-2", "a-b", "\0", "1-\ud800", "9" * 5000 + "-1"),
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_what_is_not_a_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Position.parse(text)


@quick
@given(text=st.from_regex(r"[0-9]{1,3}-[0-9]{1,3}", fullmatch=True) | texts)
def test_a_position_has_exactly_one_spelling(text: str) -> None:
    try:
        position = Position.parse(text)
    except ValueError:
        return
    assert str(position) == text, f"{text!r} was taken for {position}: an event would have two ids"


@quick
@given(a=st.tuples(numbers, numbers), b=st.tuples(numbers, numbers))
def test_positions_of_one_segment_sort_by_ordinal(a: tuple[int, int], b: tuple[int, int]) -> None:
    assert (Position(*a) < Position(*b)) == (a < b)


# Usage.

usages: st.SearchStrategy[Usage] = structs_of(Usage)


@quick
@given(a=usages, b=usages, c=usages)
def test_usage_adds_and_subtracts_field_by_field(a: Usage, b: Usage, c: Usage) -> None:
    assert a + b - b == a
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + Usage() == a
    for field in msgspec.structs.fields(Usage):
        left, right = getattr(a, field.name), getattr(b, field.name)
        assert getattr(a + b, field.name) == left + right, f"{field.name} is not added"
        assert getattr(a - b, field.name) == left - right, f"{field.name} is not subtracted"


@quick
@given(usage=usages)
def test_usage_is_true_if_anything_was_used(usage: Usage) -> None:
    assert bool(usage) == (usage != Usage())
    assert msgspec.json.decode(msgspec.json.encode(usage), type=Usage) == usage


# A new kind forces decisions.


def descendants(cls: type[Any]) -> list[type[Any]]:
    found: list[type[Any]] = []
    for child in cls.__subclasses__():
        found += [child, *descendants(child)]
    return found


def test_every_body_class_is_in_any_body() -> None:
    written = {cls for cls in descendants(Body) if cls.__module__ == events.__name__}
    listed = set(get_args(AnyBody))
    forgotten = sorted(cls.__name__ for cls in written ^ listed)
    assert not forgotten, f"add to AnyBody, or they load as Opaque: {forgotten}"


def test_the_vocabulary_is_the_one_that_is_on_disks_already() -> None:
    assert set(KINDS) == set(VOCABULARY), (
        "the kinds are stored on disks: a new one is added to VOCABULARY here and to docs/, none is ever renamed"
    )
    assert len(KINDS) == len(get_args(AnyBody)), "two classes have the same kind"


def test_the_docs_list_every_kind() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (Path(__file__).parents[1] / "docs").glob("**/*.md")]
    vocabulary = [page for page in pages if "user_message" in page]
    if not vocabulary:
        pytest.skip("no page in docs/ has the vocabulary yet; once one names user_message, it must name every kind")
    missing = sorted(kind for kind in KINDS if not any(re.search(rf"\b{kind}\b", page) for page in vocabulary))
    assert not missing, f"say in docs/ what these kinds are: {missing}"


def test_durations_are_kept_to_the_last_bit() -> None:
    for duration in (0.1, 1e-9, 5e-324, 1.7976931348623157e308, math.pi):
        result = decode_body(encode_body(ToolResult("c", "t", duration=duration)))
        assert isinstance(result, ToolResult)
        assert result.duration == duration


def test_defaults_take_no_room_on_disk() -> None:
    assert encode_body(ApprovalAsked("c", "t")) == '{"kind":"approval_asked","call_id":"c","tool":"t"}'
    assert encode_body(Erased((), "r")) == '{"kind":"erased","positions":[],"reason":"r"}'
    assert encode_body(Imported("s", 0)) == '{"kind":"imported","source":"s","count":0}'
    brought = '{"kind":"brought","conversation":"c","what":"turns","count":1,"origins":["t/0"],"digests":["00"]}'
    assert encode_body(Brought("c", "turns", 1, ("t/0",), ("00",))) == brought


def test_an_event_says_when_it_happened_as_a_moment_in_utc() -> None:
    envelope = seal(NewEvent(UserMessage((Text("a"),)), time=1_700_000_000_123_456), now=7)
    for event in (Event(Position(1, 1), "t", envelope, GONE), StagedEvent(envelope, GONE)):
        assert event.time == datetime(2023, 11, 14, 22, 13, 20, 123_456, tzinfo=UTC)
        assert (event.kind, event.text) == ("user_message", "")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            UserMessage((Text("What is this?"), Image("image/png", url="u"), Text("Be brief."))),
            "What is this?\nBe brief.",
        ),
        (AssistantMessage((Text("It is "), Text("a tree."))), "It is a tree."),
        (SystemMessage((Text("Be kind."),)), "Be kind."),
        (ToolResult("c", "t", (Text("1"), Text("2"))), "1\n2"),
        (ToolResult("c", "t"), ""),
        (Reasoning(text="Hm."), "Hm."),
        (Reasoning(encrypted="x"), ""),
        (ToolCall("c", "t", "{}"), ""),
        (StateChange(removed=("a",)), ""),
        (Opaque("new", "{}"), ""),
        (GONE, ""),
    ],
)
def test_the_text_of_an_event_is_its_words(body: Content, text: str) -> None:
    assert (
        StagedEvent(Envelope("any", 0), body).text == Event(Position(1, 1), "t", Envelope("any", 0), body).text == text
    )
