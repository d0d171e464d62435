"""A request's body is read once and whole: what it says is kept, what cannot be is named by its place."""

import base64
import hashlib
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint.errors import BadRequest, ForkpointError, Invalid, TooLarge
from forkpoint.events import (
    AssistantMessage,
    File,
    Image,
    NewEvent,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
)
from forkpoint.history.wholeness import check_whole
from forkpoint.llm.options import Options
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.server.wires.body import digest_of
from forkpoint.server.wires.chat.request import CompletionRequest, read_request
from forkpoint.wire.chat_messages import ClientMessage

HI: list[Any] = [{"role": "user", "content": "Hi"}]
PIXEL = base64.b64encode(b"not really a picture").decode()
SECRET = "sk-" + "verysecret" * 4
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def asked(*, strict: bool = False, **fields: Any) -> CompletionRequest:
    return read_request(json.dumps({"model": "m", "messages": HI} | fields).encode(), strict=strict)


def heard(*messages: dict[str, Any]) -> tuple[ClientMessage, ...]:
    return asked(messages=messages).messages


def refused(**fields: Any) -> ForkpointError:
    """Why these fields are refused."""
    with pytest.raises(ForkpointError) as caught:
        asked(**fields)
    return caught.value


def param(error: ForkpointError) -> str:
    assert isinstance(error, Invalid), error
    return error.param


def parts_of(*parts: dict[str, Any]) -> tuple[Any, ...]:
    (message,) = heard({"role": "user", "content": parts})
    (body,) = message.bodies
    assert isinstance(body, UserMessage)
    return body.parts


# What is no request at all.


@pytest.mark.parametrize("body", [b"", b"{", b"no", b"[]", b"3", b"\xff\xfe", b"\xef\xbb\xbf{}", b"[" * 9999])
def test_what_is_no_json_object_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest):
        read_request(body, strict=False)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        (rb'"messages":[{"role":"user","content":"a"},{"role":"user","content":"\ud83d"}]', "messages[1].content"),
        (rb'"messages":[{"role":"user","content":[{"type":"text","text":"\uDE00"}]}]', "messages[0].content[0].text"),
        (rb'"messages":[],"user":"\udc00x"', "user"),
        (b'"messages":[{"role":"user","content":"\xff"}]', "messages"),
        (
            b'"tools":[{"type":"function","function":{"name":"f","parameters":{"a":"\xff"}}}]',
            "tools[0].function.parameters",
        ),
    ],
)
def test_text_that_is_not_valid_unicode_is_refused_with_its_place(fields: bytes, place: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_request(b'{"model":"m",' + fields + b"}", strict=False)
    assert caught.value.param == place
    assert "Unicode" in caught.value.why


def test_a_number_that_json_does_not_have_is_refused_with_its_place() -> None:
    with pytest.raises(Invalid, match="finite number") as caught:
        read_request(b'{"model":"m","messages":[],"temperature":NaN}', strict=False)
    assert caught.value.param == "temperature"


def test_a_pair_of_surrogates_is_the_character_that_it_is() -> None:
    body = rb'{"model":"m","messages":[{"role":"user","content":"\ud83d\ude00"}]}'
    assert read_request(body, strict=False).messages[0].text == "\U0001f600"


def test_nesting_without_end_is_refused_where_it_would_be_kept_and_does_no_harm_elsewhere() -> None:
    deep = b"[" * 5000 + b"]" * 5000
    parameters = b'{"type":"object","properties":{"x":{"enum":' + deep + b"}}}"
    function = b'{"type":"function","function":{"name":"f","parameters":' + parameters + b"}}"
    said = b'{"model":"m","messages":[{"role":"user","content":"a"'
    with pytest.raises((BadRequest, Invalid)):
        read_request(said + b'}],"tools":[' + function + b"]}", strict=False)
    with suppress(BadRequest, Invalid):  # a field that nobody knows: what can be skipped is skipped
        assert read_request(said + b',"audio":' + deep + b"}]}", strict=False) is not None


@settings(max_examples=60, deadline=None, database=None)
@given(
    st.dictionaries(
        st.sampled_from(["model", "messages", "tools", "stop", "n", "tool_choice", "response_format", "metadata", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("function"),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["role", "content", "type", "function", "name", "text", "tool_calls", "id"]), inner
                )
            ),
            max_leaves=8,
        ),
    )
)
def test_whatever_is_sent_is_read_or_refused_in_a_way_that_callers_know(fields: dict[str, Any]) -> None:
    with suppress(Invalid):
        assert isinstance(read_request(json.dumps(fields).encode(), strict=False), CompletionRequest)


# Model and messages.


@pytest.mark.parametrize("model", [None, "", "  ", 3, "x" * 257])
def test_a_model_must_be_named(model: Any) -> None:
    assert param(refused(model=model)) == "model"


@pytest.mark.parametrize("messages", [None, [], "Hi", {}, 3])
def test_messages_must_be_there(messages: Any) -> None:
    assert param(refused(messages=messages)) == "messages"


def test_there_is_a_limit_to_how_many_messages_are_taken() -> None:
    body = json.dumps({"model": "m", "messages": HI * 4}).encode()
    assert len(read_request(body, strict=False, max_messages=4).messages) == 4
    with pytest.raises(TooLarge):
        read_request(body, strict=False, max_messages=3)


def test_each_role_becomes_the_event_that_it_would_be_and_keeps_its_place() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Kyiv"}'}}
    assert heard(
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Dry."},
        {"role": "assistant", "content": "No."},
    ) == (
        ClientMessage("system", (SystemMessage((Text("Be brief."),)),), "Be brief.", 0),
        ClientMessage("system", (SystemMessage((Text("Be kind."),)),), "Be kind.", 1),
        ClientMessage("user", (UserMessage((Text("Rain?"),)),), "Rain?", 2),
        ClientMessage(
            "assistant",
            (AssistantMessage((Text("I look."),)), ToolCall("c1", "weather", '{"city": "Kyiv"}', client=True)),
            "I look.",
            3,
        ),
        ClientMessage("tool", (ToolResult("c1", "weather", (Text("Dry."),)),), "Dry.", 4),
        ClientMessage("assistant", (AssistantMessage((Text("No."),)),), "No.", 5),
    )


@pytest.mark.parametrize("role", ["robot", "", 3, None])
def test_an_unknown_role_is_refused_by_its_place(role: Any) -> None:
    assert param(refused(messages=[*HI, {"role": role, "content": "x"}])) == "messages[1].role"


def test_the_old_way_to_call_functions_is_refused_by_name() -> None:
    role = refused(messages=[*HI, {"role": "function", "name": "f", "content": "x"}])
    call = refused(messages=[*HI, {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}])
    assert Invalid.unsupported.made(role)
    assert "role function" in str(role)
    assert Invalid.unsupported.made(call)
    assert call.param == "messages[1].function_call"


def test_null_is_absent_in_a_message_that_a_client_sends_back_whole() -> None:
    back = {"role": "assistant", "content": "Yes.", "refusal": None, "annotations": None, "audio": None}
    back |= {"function_call": None, "tool_calls": None, "reasoning_content": "Hm."}
    assert heard(back)[0].bodies == (AssistantMessage((Text("Yes."),)),)


@pytest.mark.parametrize("content", [None, "", " \n", [], [{"type": "text", "text": "  "}]])
@pytest.mark.parametrize("role", ["user", "system", "assistant"])
def test_a_blank_message_is_heard_without_anything_usable(role: str, content: Any) -> None:
    assert heard({"role": role, "content": content})[0].bodies == ()


def test_a_call_needs_no_words_beside_it() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f"}}
    assert heard({"role": "assistant", "content": None, "tool_calls": [call]})[0].bodies == (
        ToolCall("c1", "f", "{}", client=True),
    )


@pytest.mark.parametrize(
    ("call", "place"),
    [
        ({"function": {"name": "f"}}, "id"),
        ({"id": "", "function": {"name": "f"}}, "id"),
        ({"id": "c"}, "function.name"),
        ({"id": "c", "function": {"arguments": "{}"}}, "function.name"),
        ({"id": "c", "function": {"name": "f", "arguments": {}}}, "function.arguments"),
    ],
)
def test_a_call_that_is_not_whole_is_refused(call: dict[str, Any], place: str) -> None:
    error = refused(messages=[{"role": "assistant", "tool_calls": [call]}])
    assert param(error) == f"messages[0].tool_calls[0].{place}"


def test_two_calls_of_one_message_cannot_have_one_id() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f"}}
    error = refused(messages=[{"role": "assistant", "tool_calls": [call, call]}])
    assert param(error) == "messages[0].tool_calls[1].id"


def test_a_call_of_a_custom_tool_is_unsupported() -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "f", "input": "x"}}
    assert Invalid.unsupported.made(refused(messages=[{"role": "assistant", "tool_calls": [call]}]))


def test_a_refusal_is_what_the_assistant_said() -> None:
    as_field, as_part = heard(
        {"role": "assistant", "content": None, "refusal": "I won't."},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "No. "}, {"type": "refusal", "refusal": "I won't."}],
        },
    )
    assert as_field.text == "I won't."
    assert as_part.text == "No. I won't."
    assert as_part.bodies == (AssistantMessage((Text("No. "), Text("I won't."))),)


def test_a_result_has_the_name_of_the_call_that_the_list_has_before_it() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    again = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    result = {
        "role": "tool",
        "tool_call_id": "c1",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }
    first, second = ({"role": "assistant", "tool_calls": [one]} for one in (call, again))
    messages = heard(result, first, result, second, result)
    results = [body for message in messages for body in message.bodies if isinstance(body, ToolResult)]
    assert [body.tool for body in results] == ["", "weather", "clock"]
    assert results[0].parts == (Text("a"), Text("b"))
    assert messages[0].text == "a\nb"


@pytest.mark.parametrize("content", ["", None, []])
def test_an_empty_result_is_a_result_all_the_same(content: Any) -> None:
    (message,) = heard({"role": "tool", "tool_call_id": "c1", "content": content})
    assert message.bodies == (ToolResult("c1", ""),)


@pytest.mark.parametrize("id", [None, ""])
def test_a_result_must_name_its_call(id: Any) -> None:
    error = refused(messages=[*HI, {"role": "tool", "tool_call_id": id, "content": "x"}])
    assert param(error) == "messages[1].tool_call_id"


def test_whatever_is_heard_can_be_stored() -> None:
    blank = {"type": "text", "text": " "}
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    messages = heard(
        {"role": "user", "content": [blank, picture]},
        {"role": "assistant", "content": [blank], "refusal": "No."},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": " "}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": ""}]},
        {"role": "tool", "tool_call_id": "c", "content": " "},
    )
    for message in messages:
        assert message.bodies
        for body in message.bodies:
            check_whole(NewEvent(body))


# Parts.


def test_pictures_come_as_data_or_by_their_address() -> None:
    web = "https://pictures.example/a/cat.JPG?size=3"
    assert parts_of(
        {"type": "text", "text": "See:"},
        {"type": "image_url", "image_url": {"url": f"data:image/PNG;base64,{PIXEL}", "detail": "high"}},
        {"type": "image_url", "image_url": {"url": web, "detail": None}},
        {"type": "image_url", "image_url": "http://pictures.example/7"},
    ) == (
        Text("See:"),
        Image("image/png", data=PIXEL),
        Image("image/jpeg", url=web),
        Image("image/*", url="http://pictures.example/7"),
    )


def test_files_come_as_data_with_a_name() -> None:
    assert parts_of(
        {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PIXEL}", "filename": "a.pdf"}},
        {"type": "file", "file": {"file_data": PIXEL, "filename": "b.csv"}},
        {"type": "file", "file": {"file_data": f"data:;base64,{PIXEL}"}},
    ) == (
        File("a.pdf", "application/pdf", data=PIXEL),
        File("b.csv", "text/csv", data=PIXEL),
        File("file", "application/octet-stream", data=PIXEL),
    )


@pytest.mark.parametrize(
    "url",
    [
        None,
        "",
        "data:image/png;base64,",
        "data:image/png;base64,%%%%",
        "data:image/png;base64,AAA",
        "data:image/png,AAAA",
        "data:text/plain;base64,AAAA",
        "data:;base64,AAAA",
        "data:image/png;base64,ÄÄÄÄ",
        "data:image png;base64,AAAA",
        "file:///etc/passwd",
        "ftp://a.example/b.png",
        "cat.png",
        "https://",
        "http://[bad",
        "data:",
    ],
)
def test_a_picture_that_is_none_is_refused(url: Any) -> None:
    error = refused(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])
    assert isinstance(error, Invalid)
    assert error.param == "messages[0].content[0].image_url.url"


@pytest.mark.parametrize(
    ("part", "place"),
    [
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "input_audio"),
        ({"type": "video_url", "video_url": {"url": "https://a.example"}}, "video_url"),
        ({"type": "file", "file": {"file_id": "file-1"}}, "file.file_id"),
    ],
)
def test_a_part_that_cannot_be_used_here_is_unsupported_by_name(part: dict[str, Any], place: str) -> None:
    error = refused(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, part]}])
    assert Invalid.unsupported.made(error)
    assert error.param == f"messages[0].content[1].{place}"


@pytest.mark.parametrize(
    ("role", "part", "place"),
    [
        ("user", {"type": "hologram"}, "type"),
        ("user", {"text": "no type"}, "type"),
        ("user", {"type": "text"}, "text"),
        ("user", {"type": "text", "text": 3}, "text"),
        ("user", {"type": "refusal", "refusal": "no"}, "type"),
        ("user", {"type": "file"}, "file"),
        ("user", {"type": "file", "file": {"filename": "a"}}, "file.file_data"),
        ("user", {"type": "file", "file": {"file_data": "no base64"}}, "file.file_data"),
        ("assistant", {"type": "refusal"}, "refusal"),
        ("assistant", {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}, "type"),
        ("system", {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}, "type"),
        ("tool", {"type": "file", "file": {"file_data": PIXEL}}, "type"),
    ],
)
def test_a_part_that_makes_no_sense_is_refused_by_its_place(role: str, part: dict[str, Any], place: str) -> None:
    error = refused(messages=[{"role": role, "tool_call_id": "c", "content": [part]}])
    assert isinstance(error, Invalid)
    assert error.param == f"messages[0].content[0].{place}"


def test_content_of_another_form_is_refused_by_its_place() -> None:
    assert param(refused(messages=[*HI, *HI, {"role": "user", "content": 3}])) == "messages[2].content"
    assert param(refused(messages=[*HI, "Hi"])) == "messages[1]"


# What is wanted besides.


def test_a_plain_request_asks_for_nothing_else() -> None:
    assert asked() == CompletionRequest(
        model="m", messages=(ClientMessage("user", (UserMessage((Text("Hi"),)),), "Hi", 0),)
    )


NOTHING = [
    {"n": 1},
    {"logprobs": False},
    {"top_logprobs": 0},
    {"modalities": ["text"]},
    {"modalities": []},
    {"stream": False},
    {"stream_options": {"include_usage": True}},
    {"tool_choice": "auto"},
    {"tool_choice": "none"},
    {"tools": []},
    {"logit_bias": {}},
    {"functions": []},
    {"function_call": "none"},
    {"function_call": "auto"},
    {"service_tier": "auto"},
    {"service_tier": "default"},
    {"response_format": {"type": "text"}},
    {"stop": []},
    {"stop": ""},
    {"user": ""},
    {"metadata": {}},
    {"prompt_cache_key": ""},
]


@pytest.mark.parametrize("fields", NOTHING, ids=str)
def test_values_that_change_nothing_always_pass(fields: dict[str, Any]) -> None:
    assert asked(**fields, strict=True) == asked()


def test_null_means_absent_everywhere() -> None:
    openai = [
        "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs", "max_completion_tokens",
        "max_tokens", "metadata", "modalities", "moderation", "n", "parallel_tool_calls", "prediction",
        "presence_penalty", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning_effort",
        "response_format", "safety_identifier", "seed", "service_tier", "stop", "store", "stream", "stream_options",
        "temperature", "tool_choice", "tools", "top_k", "top_logprobs", "top_p", "user", "verbosity",
        "web_search_options", "nobody_knows",
    ]  # fmt: skip
    assert asked(**dict.fromkeys(openai), strict=True) == asked()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2),
        ("n", 0),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "a"}),
        ("prediction", {"type": "content", "content": "x"}),
        ("web_search_options", {}),
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("moderation", {"model": "m"}),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(name: str, value: Any) -> None:
    error = refused(**{name: value})
    assert Invalid.unsupported.made(error)
    assert error.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stream", 1),
        ("stream_options", 3),
        ("n", "2"),
        ("logprobs", "yes"),
        ("modalities", "text"),
        ("temperature", "hot"),
        ("temperature", -1),
        ("top_p", 1.5),
        ("top_k", 1.5),
        ("seed", 1.5),
        ("stop", 3),
        ("stop", [3]),
        ("max_tokens", 0),
        ("max_completion_tokens", 0),
        ("max_tokens", "9"),
        ("logit_bias", []),
        ("logit_bias", {"1": "x"}),
        ("store", "no"),
        ("verbosity", "chatty"),
        ("service_tier", 3),
        ("user", 3),
        ("safety_identifier", 3),
        ("prompt_cache_key", 3),
        ("metadata", {"a": 1}),
        ("metadata", {"a": "x" * 513}),
        ("metadata", {str(n): "" for n in range(17)}),
        ("reasoning_effort", "High!"),
        ("reasoning_effort", 3),
        ("parallel_tool_calls", 1),
        ("presence_penalty", "x"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_the_name_of_its_field(name: str, value: Any) -> None:
    error = refused(**{name: value})
    assert isinstance(error, Invalid)
    assert error.param.split("[")[0] == name


def test_how_to_sample_is_kept() -> None:
    wanted = asked(
        temperature=0, top_p=0.5, top_k=7, seed=3, stop=["a", "b"], presence_penalty=-1, frequency_penalty=0.25,
        max_tokens=5, max_completion_tokens=9, logit_bias={"50256": -100}, verbosity="low", service_tier="flex",
        parallel_tool_calls=False,
    )  # fmt: skip
    assert wanted.options == Options(
        temperature=0, top_p=0.5, top_k=7, seed=3, stop=("a", "b"), presence_penalty=-1, frequency_penalty=0.25,
        max_tokens=9, logit_bias='{"50256": -100}', verbosity="low", service_tier="flex", parallel_calls=False,
    )  # fmt: skip
    assert asked(stop="end", max_tokens=5).options == Options(stop=("end",), max_tokens=5)


def test_usage_is_told_in_a_stream_that_asks_for_it() -> None:
    wanted = asked(stream=True, stream_options={"include_usage": True, "include_obfuscation": False})
    assert (wanted.stream, wanted.include_usage) == (True, True)
    assert not asked(stream=True, stream_options={"include_usage": None}).include_usage
    assert not asked(stream=False, stream_options={"include_usage": True}).include_usage


def test_who_asks_and_what_for_is_kept() -> None:
    wanted = asked(user="ann", safety_identifier="x", metadata={"title": "T"}, store=True, prompt_cache_key="k")
    assert (wanted.user, wanted.metadata, wanted.store, wanted.prompt_cache_key) == ("ann", {"title": "T"}, True, "k")
    assert asked(safety_identifier="x").user == "x"
    assert asked(store=False).store is False
    assert asked(reasoning_effort="minimal").reasoning_effort == "minimal"


def test_tools_keep_their_order_and_the_exact_text_of_their_parameters() -> None:
    exact = '{"type" : "object",  "properties":{"z":{"type":"number","minimum":1.0},"a":{}}}'
    body = json.dumps(
        {
            "model": "m",
            "messages": HI,
            "tools": [
                {"type": "function", "function": {"name": "z", "description": "Z.", "parameters": 0, "strict": True}},
                {"type": "function", "function": {"name": "a"}},
            ],
        }
    ).replace('"parameters": 0', f'"parameters": {exact}')
    assert read_request(body.encode(), strict=False).tools == (ToolSchema("z", "Z.", exact, True), ToolSchema("a"))


@pytest.mark.parametrize(
    ("tool", "place"),
    [
        ({"function": {"name": "f"}}, "tools[1].type"),
        ({"type": "function"}, "tools[1].function.name"),
        ({"type": "function", "function": {"name": "has space"}}, "tools[1].function.name"),
        ({"type": "function", "function": {"name": "weather"}}, "tools[1].function.name"),
        ({"type": "function", "function": {"name": "f", "parameters": []}}, "tools[1].function.parameters"),
        ({"type": "function", "function": {"name": "f", "strict": "yes"}}, "tools[1].function.strict"),
        ("weather", "tools[1]"),
    ],
)
def test_a_tool_that_is_none_is_refused_by_its_place(tool: Any, place: str) -> None:
    error = refused(tools=[WEATHER, tool])
    assert isinstance(error, Invalid)
    assert error.param == place


@pytest.mark.parametrize("kind", ["custom", "web_search", "code_interpreter"])
def test_tools_that_are_no_functions_are_unsupported_by_name(kind: str) -> None:
    error = refused(tools=[{"type": kind, kind: {}}])
    assert Invalid.unsupported.made(error)
    assert kind in str(error)


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "weather"}}, "weather"),
    ],
)
def test_which_tool_is_to_be_used_is_kept(choice: Any, kept: str) -> None:
    assert asked(tools=[WEATHER], tool_choice=choice).options.tool_choice == kept


@pytest.mark.parametrize(
    "choice", ["required", "weather", {"type": "function", "function": {"name": "weather"}}, {}, 3]
)
def test_without_tools_none_can_be_demanded(choice: Any) -> None:
    assert param(refused(tool_choice=choice)).startswith("tool_choice")


def test_a_tool_that_was_not_sent_cannot_be_demanded() -> None:
    error = refused(tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "clock"}})
    assert param(error) == "tool_choice.function.name"


def test_a_choice_among_some_of_the_tools_is_unsupported() -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}
    error = refused(tools=[WEATHER], tool_choice=allowed)
    assert Invalid.unsupported.made(error)
    assert error.param == "tool_choice.allowed_tools"


def test_the_form_of_the_answer_is_kept() -> None:
    schema = {"type": "object", "properties": {"rain": {"type": "boolean"}}, "required": ["rain"]}
    wanted = asked(response_format={"type": "json_schema", "json_schema": {"name": "weather", "schema": schema}}).output
    assert wanted is not None
    assert (wanted.name, json.loads(wanted.schema)) == ("weather", schema)
    anything = asked(response_format={"type": "json_object"}).output
    assert anything is not None
    assert anything.decode('{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(
    ("form", "place"),
    [
        ({"type": "grammar"}, "type"),
        ({}, "type"),
        ({"type": "json_schema"}, "json_schema.name"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}, "json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "rain"}}}, "json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": [1]}}, "json_schema.schema"),
    ],
)
def test_a_form_that_is_none_is_refused_by_its_place(form: Any, place: str) -> None:
    error = refused(response_format=form)
    assert isinstance(error, Invalid)
    assert error.param == f"response_format.{place}"


# Fields that nobody knows.


def test_fields_that_nobody_knows_are_ignored_and_named_in_order() -> None:
    assert asked(zeta=1, chat_id="x", alpha={}).ignored == ("zeta", "chat_id", "alpha")


def test_a_strict_server_refuses_them_all_at_once() -> None:
    error = refused(zeta=1, chat_id="x", strict=True)
    assert isinstance(error, Invalid)
    assert error.param == "zeta, chat_id"


def test_names_of_ignored_fields_are_fit_for_a_header() -> None:
    fields: dict[str, Any] = {"a\r\nSet-Cookie: x": 1, "ü" * 100: 2, "": 3} | {f"f{n}": n for n in range(50)}
    ignored = asked(**fields).ignored
    assert ignored[:3] == ("a??Set-Cookie??x", "?" * 64, "?")
    assert ignored[-1] == "..."
    assert len(", ".join(ignored)) < 1000


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": SECRET, "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": SECRET}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": SECRET}}]}]},
        {"verbosity": SECRET},
        {"tool_choice": SECRET},
        {"reasoning_effort": SECRET},
        {"metadata": {"key": SECRET * 20}},
        {"temperature": SECRET},
        {"model": SECRET * 20},
        {"tools": [{"type": "function", "function": {"name": f"{SECRET} {SECRET}"}}]},
        {"unknown": SECRET, "strict": True},
    ],
)
def test_a_complaint_never_repeats_what_was_sent(fields: dict[str, Any]) -> None:
    assert "verysecret" not in str(refused(**fields))


def test_a_body_is_told_from_another_by_its_digest() -> None:
    assert digest_of(b"{}") == hashlib.sha256(b"{}").digest()
    assert digest_of(b"{}") != digest_of(b"{ }")
