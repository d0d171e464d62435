"""The fields of a request: what goes upstream, what changes the answer, what is passed over, and what is refused."""

import base64
import json
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.server.chat.chatting import agents_at
from tests.server.chat.lists_of_messages import (
    Chat,
    Message,
    answer,
    assistant,
    function,
    look,
    put_together,
    refused,
    system,
    user,
)
from tests.server.support.serving import served

from forkpoint.events import Usage
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.settings import ServerSettings
from forkpoint.testing import Fault, Heard, ModelServer, Reply, Script, ScriptedCall

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
POINT = {"type": "json_schema", "json_schema": {"name": "point", "strict": True, "schema": SCHEMA}}


def reply(heard: Heard) -> Reply:
    """Answers in the form that is wanted the second time; looks, if it is told to; is cut, if it may not say much."""
    messages: list[Message] = heard.body["messages"]
    most = heard.body.get("max_tokens") or heard.body.get("max_completion_tokens")
    if "form" in heard.text:
        told = sum(message["role"] == "assistant" for message in messages)
        return Reply('{"x": 7}' if told else "Seven, I think.", reasoning=f"Try {told}", piece=3)
    if heard.text.startswith("look") and messages[-1]["role"] != "tool":
        usage = Usage(calls=1, input=100, cached=60, output=10, reasoning=4)
        return Reply("Looking.", reasoning="First.", calls=(ScriptedCall("look", '{"what":"it"}'),), usage=usage)
    usage = Usage(calls=1, input=130, cached=100, output=20, reasoning=5)
    return Reply("Well.", reasoning="Second.", usage=usage, finish="length" if most == 5 else None)


@pytest.fixture(scope="module")
def models() -> Iterator[ModelServer]:
    with ModelServer(Script(reply)) as running:
        yield running


@pytest.fixture(scope="module")
def chat(models: ModelServer) -> Iterator[Chat]:
    helper = agents_at(models, tools=[look]).named("helper")
    responses = agents_at(models, llm={"api": "responses"}).named("helper")
    with served(agents=Catalog({"helper": helper, "responses": responses})) as server:
        running = Chat(server)
        yield running
        running.verify()
        running.close()


@pytest.fixture(scope="module")
def strict(models: ModelServer) -> Iterator[Chat]:
    """A server that is strict, and shows no thoughts."""
    settings = ServerSettings(strict=True, reasoning="off")
    with served(agents=agents_at(models, tools=[look]), settings=settings) as server:
        running = Chat(server)
        yield running
        running.close()


@contextmanager
def saying(models: ModelServer, *replies: Reply, repeat: bool = False) -> Iterator[None]:
    """Within the block these are the model's answers."""
    usual, models.script = models.script, Script(replies, repeat=repeat)
    try:
        yield
    finally:
        models.script = usual


# What goes upstream.


@pytest.mark.parametrize("name", [None, "sampled"])
def test_sampling_goes_upstream(chat: Chat, models: ModelServer, name: str | None) -> None:
    fields: dict[str, Any] = {
        "temperature": 0.25,
        "top_p": 0.5,
        "seed": 7,
        "stop": ["END", "STOP"],
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"50256": -100},
        "verbosity": "low",
        "service_tier": "flex",
    }
    response = chat.post([user("Hello")], name, **fields)
    assert answer(response)["content"] == "Well."
    assert "X-Ignored-Fields" not in response.headers
    assert {field: models.last.json.get(field) for field in fields} == fields
    assert "temperature" not in _asked(chat, models, name), "it holds for one request"


def test_a_field_that_the_models_api_has_no_place_for_is_named(chat: Chat, models: ModelServer) -> None:
    response = chat.post([user("Hello")], top_k=3)
    assert response.headers["X-Ignored-Fields"] == "top_k"
    assert "top_k" not in models.last.json


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_an_answer_that_may_not_be_longer_is_cut_and_says_so(chat: Chat, models: ModelServer, field: str) -> None:
    short: dict[str, Any] = {field: 5}
    longer: dict[str, Any] = {field: 50}
    response = chat.post([user("Hello")], **short)
    assert response.json()["choices"][0]["finish_reason"] == "length"
    assert 5 in {models.last.json.get("max_tokens"), models.last.json.get("max_completion_tokens")}
    assert put_together(chat.stream([user("Hello")], "cut", **short))[1] == "length"
    assert chat.post([user("Hello")], **longer).json()["choices"][0]["finish_reason"] == "stop"


def test_how_much_it_is_to_think_goes_upstream_and_is_a_recorded_change(chat: Chat, models: ModelServer) -> None:
    chat.say([user("Hello")], "thinks", reasoning_effort="high")
    assert models.last.json["reasoning_effort"] == "high"
    chat.say([user("Hello")], "thinks", reasoning_effort="high")
    chat.say([user("Hello")], "thinks")
    assert "reasoning_effort" not in models.last.json


def test_a_picture_arrives_upstream(chat: Chat, models: ModelServer) -> None:
    shown = f"data:image/png;base64,{base64.b64encode(_png()).decode()}"
    image = {"type": "image_url", "image_url": {"url": shown, "detail": "low"}}
    chat.say([{"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}], "picture")
    parts = models.last.json["messages"][-1]["content"]
    assert [part["type"] for part in parts] == ["text", "image_url"]
    assert parts[1]["image_url"]["url"] == shown
    chat.say([user("And now?")], "picture")
    (of_picture,) = [one for one in models.last.json["messages"] if isinstance(one["content"], list)]
    assert of_picture["content"] == parts, "it is the same in the next request"


def test_a_picture_alone_is_a_message(chat: Chat, models: ModelServer) -> None:
    shown = f"data:image/png;base64,{base64.b64encode(_png()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": shown}}]
    assert chat.say([{"role": "user", "content": content}], "picture-alone") == "Well."
    assert models.last.json["messages"][-1]["content"][0]["image_url"]["url"] == shown


# What changes nothing.


def test_null_and_values_that_change_nothing_always_pass(strict: Chat, models: ModelServer) -> None:
    nothing: dict[str, Any] = {
        "n": 1,
        "logprobs": False,
        "top_logprobs": 0,
        "modalities": ["text"],
        "functions": [],
        "stop": [],
        "tools": [],
        "tool_choice": "auto",
        "logit_bias": {},
        "metadata": {},
        "response_format": {"type": "text"},
        "service_tier": "auto",
        "stream": False,
    }
    others = (
        *("audio", "prediction", "function_call", "web_search_options", "stream_options", "temperature", "top_p"),
        *("seed", "presence_penalty", "frequency_penalty", "max_tokens", "max_completion_tokens", "user", "store"),
        *("reasoning_effort", "prompt_cache_key", "verbosity", "parallel_tool_calls"),
    )
    nulls = dict.fromkeys((*nothing, *others))
    sent: list[Any] = []
    for number, fields in enumerate(({}, nulls, nothing)):
        response = strict.post([user("Hello")], f"nothing-{number}", **fields)
        assert answer(response)["content"] == "Well."
        assert "X-Ignored-Fields" not in response.headers
        sent.append({**models.last.json, "prompt_cache_key": None})
    assert sent[0] == sent[1] == sent[2]


def test_messages_as_the_sdks_send_them_back_pass(chat: Chat, models: ModelServer) -> None:
    nulls = dict.fromkeys(("refusal", "audio", "function_call", "tool_calls", "parsed"))
    back = {**assistant("First."), **nulls, "annotations": [], "reasoning_content": "Hm."}
    chat.say([user("one"), back, user("two")])
    assert models.last.json["messages"][1]["content"] == "First."


# What cannot be done.


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("audio", {"voice": "x", "format": "mp3"}),
        ("modalities", ["text", "audio"]),
        ("functions", [{"name": "f"}]),
        ("prediction", {"type": "content", "content": "x"}),
        ("web_search_options", {}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_would_change_the_answers_shape_is_400_by_name(chat: Chat, field: str, value: Any, stream: bool) -> None:
    response = chat.post([user("Hello")], "impossible", stream=stream, **{field: value})
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
    assert field in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == field
    assert "impossible" not in chat.names()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "hot"),
        ("max_tokens", 0),
        ("tool_choice", "required"),
        ("response_format", {"type": "xml"}),
        ("stop", 5),
        ("messages", "Hello"),
        ("metadata", {"x": 1}),
    ],
)
def test_what_cannot_be_is_400_by_name(chat: Chat, field: str, value: Any) -> None:
    response = chat.post([user("Hello")], **{field: value}) if field != "messages" else chat.post(value)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(field)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages": []}', b'"x"', b'{"model": 5}'])
def test_a_body_that_is_no_request_is_400(chat: Chat, body: bytes) -> None:
    response = chat.http.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


def test_fields_that_nobody_knows_are_named_in_the_answer(chat: Chat, models: ModelServer) -> None:
    response = chat.post([user("Hello")], "unknown", chat_template="x", min_p=0.1)
    assert answer(response)["content"] == "Well."
    assert response.headers["X-Ignored-Fields"] == "chat_template, min_p"
    assert not {"chat_template", "min_p"} & set(models.last.json)
    streamed = chat.post([user("Hello")], "unknown", stream=True, min_p=0.1)
    assert streamed.headers["X-Ignored-Fields"] == "min_p"


def test_fields_that_nobody_knows_are_400_where_the_server_is_strict(strict: Chat) -> None:
    response = strict.post([user("Hello")], "strict", min_p=0.1)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "min_p")
    assert "strict" not in strict.names()
    assert strict.post([user("Hello")], "strict", prompt_cache_key="x", temperature=1).status_code == 200


# What has an effect here.


def test_user_and_metadata_are_tags_of_a_conversation_that_is_made(chat: Chat) -> None:
    chat.say([user("Hello")], "tagged", user="u-1", metadata={"team": "red", "title": "A talk"})
    info = chat.get("/tagged")
    tags = {"user": "u-1", "team": "red", "title": "A talk"}
    assert (info["tags"], info["title"]) == (tags, "A talk")
    chat.say([user("Hello")], "tagged", user="u-2", metadata={"team": "blue"})
    assert chat.get("/tagged")["tags"] == tags, "it was made once"


def test_store_has_no_effect_and_says_so_where_it_was_wanted(chat: Chat) -> None:
    before = chat.names()
    assert chat.post([user("Hello")], store=True).headers["X-Ignored-Fields"] == "store"
    assert "X-Ignored-Fields" not in chat.post([user("Hello")], store=False).headers
    assert chat.names() == before
    assert "X-Ignored-Fields" not in chat.post([user("Hello")], "stored", store=True).headers
    chat.post([user("Hello")], "stored-too", store=False)
    assert chat.names() - before == {"stored", "stored-too"}


# Answers in a form.


@pytest.mark.parametrize("wanted", [POINT, {"type": "json_object"}], ids=["schema", "object"])
@pytest.mark.parametrize("name", [None, "formed"])
def test_a_wrong_answer_is_corrected_and_only_the_right_one_is_shown(
    chat: Chat, models: ModelServer, wanted: dict[str, Any], name: str | None
) -> None:
    name = name and f"{name}-{wanted['type']}"
    before = len(models.requests)
    whole = answer(chat.post([user("in this form")], name, response_format=wanted))
    assert json.loads(whole["content"]) == {"x": 7}
    assert len(models.requests) - before == 2
    chunks = chat.stream([user("in this form")], name and f"{name}-streamed", response_format=wanted)
    assert put_together(chunks)[0]["content"] == '{"x": 7}'
    assert "Seven" not in json.dumps(chunks)


def test_the_schema_goes_upstream_and_a_request_without_it_is_free_again(chat: Chat, models: ModelServer) -> None:
    chat.say([user("in this form")], "schema", response_format=POINT)
    sent = models.last.json["response_format"]
    assert (sent["type"], sent["json_schema"]["schema"]) == ("json_schema", SCHEMA)
    assert chat.say([user("Hello")], "schema") == "Well."
    assert "response_format" not in models.last.json


def test_with_a_form_the_words_before_our_tools_are_not_shown(chat: Chat, models: ModelServer) -> None:
    looks = Reply("Looking.", calls=(ScriptedCall("look", '{"what":"it"}'),))
    with saying(models, looks, Reply('{"x": 1}', piece=2), repeat=True):
        assert chat.say([user("Hello")], response_format=POINT) == '{"x": 1}'
        assert put_together(chat.stream([user("Hello")], response_format=POINT))[0]["content"] == '{"x": 1}'


@pytest.mark.parametrize("name", [None, "fenced"])
def test_a_fence_around_an_answer_with_a_form_is_not_shown_and_the_answer_is_known_again(
    chat: Chat, models: ModelServer, name: str | None
) -> None:
    with saying(models, Reply('```json\n{"x": 1}\n```', piece=3), repeat=True):
        before = len(models.requests)
        shown = chat.say([user("Hello")], name, response_format=POINT)
        streamed = put_together(chat.stream([user("Hello")], response_format=POINT))[0]["content"]
        assert (json.loads(shown), json.loads(streamed)) == ({"x": 1}, {"x": 1})
        chat.say([user("Hello"), assistant(shown), user("Again")], name, response_format=POINT)
        assert len(models.requests) - before == 3
    if name is not None:
        assert models.last.json["messages"][-2]["content"] == '```json\n{"x": 1}\n```', "it went on in its history"


def test_an_answer_that_never_has_the_form_fails_and_keeps_nothing(chat: Chat, models: ModelServer) -> None:
    with saying(models, Reply("No."), repeat=True):
        response = chat.post([user("Hello")], "never", response_format=POINT)
    refused(response, 502, "bad_output")
    assert response.headers["x-should-retry"] == "false"
    assert "never" not in chat.names()


# Usage and thoughts.


def test_usage_is_the_sum_of_all_calls_of_the_turn_with_what_was_cached(chat: Chat) -> None:
    expected = {
        "prompt_tokens": 230,
        "completion_tokens": 30,
        "total_tokens": 260,
        "prompt_tokens_details": {"cached_tokens": 160},
        "completion_tokens_details": {"reasoning_tokens": 9},
    }
    assert chat.post([user("look")], "used").json()["usage"] == expected
    chunks = chat.stream([user("look")], stream_options={"include_usage": True})
    assert (chunks[-1]["choices"], chunks[-1]["usage"]) == ([], expected)
    assert {json.dumps(chunk["usage"]) for chunk in chunks[:-1]} == {"null"}
    assert not any("usage" in chunk for chunk in chat.stream([user("look")]))


def test_usage_counts_corrections_too(chat: Chat, models: ModelServer) -> None:
    before = len(models.requests)
    response = chat.post([user("in this form")], response_format=POINT)
    both = sum(one.prompt.tokens for one in models.requests[before:])
    assert response.json()["usage"]["prompt_tokens"] == both


def test_thoughts_are_shown_beside_the_words(chat: Chat) -> None:
    message = answer(chat.post([user("look")], "thoughts"))
    assert (message["content"], message["reasoning_content"]) == ("Looking.\n\nWell.", "First.\n\nSecond.")
    streamed, _ = put_together(chat.stream([user("look")], "thoughts-streamed"))
    assert (streamed["content"], streamed["reasoning_content"]) == ("Looking.\n\nWell.", "First.\n\nSecond.")


def test_thoughts_are_not_shown_where_the_server_says_so_but_kept(strict: Chat, models: ModelServer) -> None:
    assert "reasoning_content" not in strict.post([user("look")], "hidden").text
    assert "reasoning_content" not in strict.post([user("look")], "hidden", stream=True).text
    assert [event["text"] for event in strict.events("hidden", "reasoning")] == ["First.", "Second."] * 2
    assert "reasoning_content" in json.dumps(models.last.json), "the model gets its own back"


# The shape of an answer.


def test_an_answer_has_the_shape_that_clients_know(chat: Chat) -> None:
    response = chat.post([system("Be brief."), user("Hello")], "shape")
    body = response.json()
    assert set(body) == {"id", "object", "created", "model", "choices", "usage"}
    assert (body["object"], body["model"]) == ("chat.completion", "helper")
    (choice,) = body["choices"]
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    assert set(choice["message"]) == {"role", "content", "refusal", "reasoning_content"}


def test_the_chunks_of_a_stream_have_it_too(chat: Chat) -> None:
    chunks = chat.stream([user("Hello")], "chunks")
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    deltas = [chunk["choices"][0] for chunk in chunks]
    assert deltas[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert [choice["finish_reason"] for choice in deltas] == [None] * (len(deltas) - 1) + ["stop"]
    assert deltas[-1]["delta"] == {}


def test_a_call_without_words_has_no_content(chat: Chat, models: ModelServer) -> None:
    with saying(models, Reply(calls=(ScriptedCall("time"),))):
        assert answer(chat.post([user("Hello")], tools=[function("time")]))["content"] is None


# Models of other kinds.


def test_sampling_that_a_wire_has_no_place_for_is_named_and_left_out(chat: Chat, models: ModelServer) -> None:
    fields: dict[str, Any] = {"temperature": 0.5, "stop": "END", "seed": 1, "max_tokens": 50}
    with saying(models, Reply("Well.")):
        response = chat.post([user("Hello")], "other-wire", model="responses", **fields)
    assert answer(response)["content"] == "Well."
    assert set(response.headers["X-Ignored-Fields"].split(", ")) == {"stop", "seed"}
    body = models.last.json
    assert (body["temperature"], body["max_output_tokens"]) == (0.5, 50)
    assert not {"stop", "seed"} & set(body)


def test_the_models_own_refusal_of_a_request_is_400(chat: Chat, models: ModelServer) -> None:
    with saying(models, Reply(fault=Fault("context_too_long")), Reply(fault=Fault("refused"))):
        refused(chat.post([user("Hello")], "long"), 400, "context_length_exceeded")
        refused(chat.post([user("Hello")], "long"), 400, "content_filter")
    assert "long" not in chat.names()


def _asked(chat: Chat, models: ModelServer, name: str | None) -> dict[str, Any]:
    """The body upstream of a plain request."""
    chat.say([user("Hello")], name)
    body: dict[str, Any] = models.last.json
    return body


def _png() -> bytes:
    """A picture of one black pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")
