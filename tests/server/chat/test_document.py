"""The OpenAPI document is true of chat completions: also where it says more than the structs can check."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from tests.server.support.contract import Contract
from tests.server.support.serving import Served, served
from tests.server.test_openapi import DOCUMENT

from forkpoint.agent import Agent
from forkpoint.errors import Invalid
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.settings import ServerSettings
from forkpoint.server.wires.chat.request import read_request
from forkpoint.testing import Fault, Heard, Reply, Script

CONTRACT = Contract(DOCUMENT)
REQUEST = {"$ref": "#/components/schemas/ChatRequest"}
CHAT = "/v1/chat/completions"
SAID = [{"role": "user", "content": "Hi"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "look"}}
PNG = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    def answer(heard: Heard) -> Reply:
        fails = heard.text == "fail"
        return (
            Reply("one two three", piece=4, pace=0.1, fault=Fault("bad_request", after=2))
            if fails
            else Reply(heard.text)
        )

    model = Script(answer).register("document")
    with served(agents=Catalog({"support": Agent(model)}), settings=ServerSettings(max_body=4096)) as server:
        yield server


@pytest.fixture
def client(server: Served) -> Iterator[httpx2.Client]:
    """A client whose every answer is held against the document that this code makes."""
    with server.client(event_hooks={"response": [CONTRACT.check]}) as client:
        yield client


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        ({}, {}, 400, "invalid"),
        ({"n": 2}, {}, 400, "unsupported"),
        ({"model": "gpt"}, {}, 404, "model_not_found"),
        (
            {"messages": [{"role": "assistant", "content": "Hi"}]},
            {"X-Conversation-Id": "a"},
            400,
            "no_new_user_message",
        ),
        ({"messages": [{"role": "tool", "tool_call_id": "x"}]}, {"X-Conversation-Id": "a"}, 400, "call_not_open"),
        ({}, {"X-Conversation-Id": "a b"}, 400, "bad_name"),
        ({}, {"X-Conversation-Id": "undefined"}, 400, "bad_name"),
        ({}, {"X-Conversation-Id": "a", "X-Conversation-History": "some"}, 400, "bad_request"),
        ({}, {"X-Conversation-Id": "a", "X-Fork-From": "nobody"}, 404, "not_found"),
        ({}, {"X-Conversation-Id": "a", "X-Fork-From": "kept@nowhere"}, 400, "bad_position"),
        ({}, {"X-Conversation-Id": "kept", "X-Fork-From": "other"}, 409, "exists"),
        ({}, {"X-Conversation-Id": "a", "Idempotency-Key": "used"}, 400, "key_reused"),
        ({"user": "x" * 5000}, {}, 413, "too_large"),
        ({}, {"Content-Type": "text/plain"}, 400, "bad_request"),
        ({}, {"Origin": "https://elsewhere.example"}, 403, "foreign_origin"),
    ],
)
def test_what_is_refused_is_in_the_document_under_its_status_and_code(
    client: httpx2.Client, body: dict[str, Any], headers: dict[str, str], status: int, code: str
) -> None:
    valid = {"model": "support", "messages": SAID}
    for name, key in (("kept", "used"), ("other", "also-used")):
        named = {"X-Conversation-Id": name, "Idempotency-Key": key}
        assert client.post(CHAT, json=valid, headers=named).status_code == 200
    sent = json.dumps(valid | body if body or headers else {})
    answered = client.post(CHAT, content=sent, headers={"Content-Type": "application/json"} | headers)
    assert (answered.status_code, answered.json()["error"]["code"]) == (status, code)


def test_a_contract_that_is_broken_under_v1_is_noticed(server: Served) -> None:
    lies = json.loads(json.dumps(DOCUMENT))
    del lies["paths"][CHAT]["post"]["responses"]["404"]
    del lies["paths"][CHAT]["post"]["responses"]["400"]["content"]["application/json"]["examples"]["unsupported"]
    lies["components"]["schemas"]["ChatUsage"]["required"].append("dollars")
    lies["components"]["schemas"]["ModelDocument"]["required"].append("price")
    with server.client(event_hooks={"response": [Contract(lies).check]}) as client:
        for fields in ({"model": "gpt"}, {"n": 2}, {}):
            with pytest.raises(AssertionError):
                client.post(CHAT, json=asked(fields))
        for path in ("/v1/models", "/v1/models/scripted/document"):
            with pytest.raises(AssertionError):
                client.get(path)


@pytest.mark.parametrize("named", [{}, {"X-Conversation-Id": "streams"}], ids=["alone", "in a conversation"])
def test_answers_and_their_headers_are_as_the_document_says_whole_and_as_a_stream(
    client: httpx2.Client, named: dict[str, str]
) -> None:
    promised = DOCUMENT["paths"][CHAT]["post"]["responses"]["200"]["headers"]
    body = {"model": "support", "messages": SAID, "colour": "red"}
    whole = client.post(CHAT, json=body, headers=named)
    stream = client.post(CHAT, json=body | {"stream": True, "stream_options": {"include_usage": True}}, headers=named)
    told = CONTRACT.check_frames(stream)
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in told if one["choices"]) == "Hi"
    assert told[-1]["usage"]
    for answered in (whole, stream):
        own = {name for name in answered.headers if name.startswith("x-")} - {"x-accel-buffering"}  # for proxies
        assert own <= {name.lower() for name in promised}
        in_conversation = {"x-conversation-id", "x-conversation-status", "x-turn-id"} if named else set()
        assert own == {"x-request-id", "x-ignored-fields"} | in_conversation


def test_a_stream_that_fails_after_it_has_begun_ends_as_the_document_says(client: httpx2.Client) -> None:
    body = {"model": "support", "messages": [{"role": "user", "content": "fail"}], "stream": True}
    told = CONTRACT.check_frames(client.post(CHAT, json=body))
    assert told[0]["choices"]
    described = DOCUMENT["paths"][CHAT]["post"]["responses"].values()
    assert any(f"`{told[-1]['error']['code']}`" in one["description"] for one in described)


@pytest.mark.parametrize("name", ["support", "scripted/document", "scripted/document:side"])
def test_a_model_is_in_the_document_whatever_its_name_has(client: httpx2.Client, name: str) -> None:
    assert client.get(f"/v1/models/{name}").json()["id"] == name
    assert client.get(f"/v1/models/{name}x").status_code == 404
    assert CONTRACT.operation("GET", f"/v1/models/{name}") is not None


def each(name: str, *values: Any) -> list[dict[str, Any]]:
    """Bodies that differ in one field."""
    return [{name: value} for value in values]


def each_message(*messages: Any) -> list[dict[str, Any]]:
    return each("messages", *([message] for message in messages))


TAKEN = [
    *each_message(
        {"role": "system", "content": "Hi"},
        {"role": "developer", "content": "Hi"},
        {"role": "user", "content": "Hi", "name": "ann"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user"},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": "https://example.com/a.png"}]},
        {"role": "user", "content": [{"type": "file", "file": {"file_data": "aGk=", "filename": "a.txt"}}]},
        {"role": "user", "content": [{"type": "file", "file": {"file_data": "data:text/plain;base64,aGk="}}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "look"}}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "function_call": None},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "Found."}]},
    ),
    *each("tool_choice", "none", "auto", "required", {"type": "function", "function": {"name": "look"}}),
    *each("tools", [{"type": "function", "function": {"name": "look", "parameters": {}, "strict": True}}]),
    *each("response_format", None, {"type": "text"}, {"type": "json_object"}),
    *each("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": True}}),
    {"temperature": 0, "top_p": 1, "top_k": -1, "seed": -1, "presence_penalty": -2, "frequency_penalty": 2.5},
    {"max_tokens": 1, "max_completion_tokens": 1, "stop": ["a", "b"], "logit_bias": {"50256": -100}},
    {"stop": "a", "verbosity": "low", "service_tier": "flex", "reasoning_effort": "minimal", "store": True},
    {"user": "ann", "safety_identifier": "x", "metadata": {"title": "A"}, "prompt_cache_key": "k", "new": [1]},
    {"n": 1, "logprobs": False, "top_logprobs": 0, "modalities": ["text"], "functions": []},
    {"n": None, "audio": None, "stream": None, "stream_options": None, "function_call": "auto"},
]
FORBIDDEN = [
    *each("model", None, "", " ", 5, "x" * 257),
    *each("messages", None, [], "Hi", [5], [{}], [{"content": "Hi"}]),
    *each_message(
        {"role": "function", "content": "Hi"},
        {"role": "user", "content": 5},
        {"role": "user", "content": [{"text": "Hi"}]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "/etc/passwd"}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": "data:text/plain;base64,aGk="}]},
        {"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]},
        {"role": "user", "content": [{"type": "file", "file": {"file_data": "?"}}]},
        {"role": "system", "content": [{"type": "image_url", "image_url": {"url": PNG}}]},
        {"role": "assistant", "tool_calls": [{"id": "", "function": {"name": "look"}}]},
        {"role": "assistant", "tool_calls": [CALL | {"type": "custom"}]},
        {"role": "assistant", "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "assistant", "audio": {"id": "a"}},
        {"role": "tool", "content": "Found."},
        {"role": "tool", "tool_call_id": "", "content": "Found."},
    ),
    *each("tools", [{"type": "custom"}], [{"function": {"name": "a"}}], [{"type": "function"}]),
    *(
        {"tools": [{"type": "function", "function": function}]}
        for function in ({}, {"name": "a b"}, {"name": "a", "parameters": []}, {"name": "a", "strict": "yes"})
    ),
    *each("tool_choice", "any", {}, {"type": "function"}, {"type": "custom"}),
    *each("response_format", "text", {}, {"type": "xml"}, {"type": "json_schema"}),
    *each("response_format", {"type": "json_schema", "json_schema": {"name": "a b"}}),
    *each("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": True}}),
    *each("metadata", {"": "a"}, {"a": "x" * 513}, {str(number): "" for number in range(17)}),
    {"stream": "yes"},
    {"stream_options": []},
    {"temperature": -1},
    {"top_p": 1.5},
    {"top_k": 0.5},
    {"seed": "1"},
    {"max_completion_tokens": 0},
    {"stop": [1]},
    {"logit_bias": {"1": "a"}},
    {"verbosity": "some"},
    {"reasoning_effort": "HIGH"},
    {"user": 1},
    {"store": 1},
    {"n": 2},
    {"logprobs": True},
    {"top_logprobs": 1},
    {"modalities": ["audio"]},
    {"audio": {}},
    {"functions": [{}]},
    {"function_call": {"name": "a"}},
    {"prediction": {}},
    {"web_search_options": {}},
    {"moderation": {}},
]


def asked(fields: dict[str, Any]) -> dict[str, Any]:
    return {"model": "support", "messages": SAID, "tools": [TOOL]} | fields


@pytest.mark.parametrize("fields", TAKEN, ids=str)
def test_what_the_document_takes_is_taken(fields: dict[str, Any]) -> None:
    CONTRACT.validate(REQUEST, asked(fields))
    read_request(json.dumps(asked(fields)).encode(), strict=False)


@pytest.mark.parametrize("fields", FORBIDDEN, ids=lambda fields: str(fields)[:100])
def test_what_the_document_forbids_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        CONTRACT.validate(REQUEST, asked(fields))
    with pytest.raises(Invalid):
        read_request(json.dumps(asked(fields)).encode(), strict=False)
