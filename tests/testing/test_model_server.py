"""The recording model server, as the providers' own clients see it."""

import contextlib
import gc
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import anyio
import openai
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from forkpoint.events import Usage
from forkpoint.llm.scripts import Fault, FaultKind, Heard, Reply, Script, ScriptedCall
from forkpoint.testing.model_server import ModelServer
from forkpoint.testing.simulated_cache import SimulatedCache

pytestmark = pytest.mark.anyio

WIRES = ("chat", "responses", "messages")
PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}

FULL = Reply(
    text="Snow ☃ falls on the roof, and the cat sleeps.",
    reasoning="They ask about weather, so I look out of the window.",
    calls=(ScriptedCall("look", '{"at": "the roof", "for": "snow"}', "look_1"), ScriptedCall("wait")),
    usage=Usage(calls=1, input=100, cached=40, written=20, output=30, reasoning=10),
)


def a_body(wire: str, *, stream: bool = False, text: str = "hi", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    prompt: dict[str, Any] = {"input": messages} if wire == "responses" else {"messages": messages}
    if wire == "messages":
        prompt["max_tokens"] = 100
    return {"model": "some-model", **prompt, "stream": stream, **fields}


def post(server: ModelServer, wire: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any, bytes]:
    """Status, headers and body of the response, whatever the status is."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        server.url + PATHS[wire], data, {"content-type": "application/json", **(headers or {})}
    )
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def events_in(stream: bytes) -> list[tuple[str, str]]:
    """The events of a stream: name and data."""
    events = []
    for block in stream.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        if lines:
            events.append((lines.get("event", ""), lines["data"]))
    return events


def documents_in(stream: bytes) -> list[Any]:
    return [json.loads(data) for _, data in events_in(stream) if data != "[DONE]"]


def pieces_in(stream: bytes) -> str:
    """All that was said in a stream on any wire: thoughts, words and arguments."""
    said = ""
    for document in documents_in(stream):
        if document.get("choices"):
            delta = document["choices"][0]["delta"]
            said += delta.get("reasoning_content", "") + (delta.get("content") or "")
            said += "".join(call["function"]["arguments"] for call in delta.get("tool_calls", ()))
        elif document.get("type", "").endswith(".delta"):
            said += document["delta"]
        elif document.get("type") == "content_block_delta":
            delta = document["delta"]
            said += delta.get("thinking", "") + delta.get("text", "") + delta.get("partial_json", "")
    return said


ALL_SAID = "".join(FULL.thoughts) + FULL.text + FULL.calls[0].arguments + FULL.calls[1].arguments


@contextlib.contextmanager
def serving(*replies: Reply, cache: SimulatedCache | None = None, repeat: bool = False) -> Iterator[ModelServer]:
    with ModelServer(Script(replies, repeat=repeat), cache=cache) as server:
        yield server


@contextlib.asynccontextmanager
async def openai_client(server: ModelServer) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(base_url=server.url, api_key="a key", max_retries=0) as client:
        yield client


@contextlib.asynccontextmanager
async def anthropic_client(server: ModelServer) -> AsyncIterator[Any]:
    async with anthropic.AsyncAnthropic(base_url=server.root, api_key="a key", max_retries=0) as client:
        yield client


# The providers' own clients.


async def test_openai_hears_a_streamed_chat_completion() -> None:
    with serving(FULL) as server:
        async with openai_client(server) as client:
            stream = await client.chat.completions.create(
                **a_body("chat", stream=True, stream_options={"include_usage": True})
            )
            chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == FULL.text
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == FULL.reasoning
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [(call.index, call.id, call.function.name) for call in calls if call.id] == [
        (0, "look_1", "look"),
        (1, "call_1_2", "wait"),
    ]
    assert "".join(call.function.arguments for call in calls if call.index == 0) == FULL.calls[0].arguments
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.prompt_tokens == 100
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 40
    assert chunks[-1].usage.prompt_tokens_details.cache_write_tokens == 20
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == 10


async def test_openai_hears_a_whole_chat_completion() -> None:
    with serving(FULL) as server:
        async with openai_client(server) as client:
            whole = await client.chat.completions.create(**a_body("chat"))
    [choice] = whole.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", FULL.text)
    assert choice.message.reasoning_content == FULL.reasoning
    assert [call.function.arguments for call in choice.message.tool_calls] == [FULL.calls[0].arguments, "{}"]
    assert (whole.usage.prompt_tokens, whole.usage.total_tokens) == (100, 130)


async def test_openai_hears_a_streamed_response() -> None:
    with serving(FULL) as server:
        async with openai_client(server) as client, client.responses.stream(**_bare("responses")) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = list(dict.fromkeys(event.type for event in events))
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.output_item.done",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.completed",
    ]
    _assert_is_full(final)


async def test_openai_hears_a_whole_response() -> None:
    with serving(FULL) as server:
        async with openai_client(server) as client:
            _assert_is_full(await client.responses.create(**a_body("responses")))


def _assert_is_full(response: Any) -> None:
    assert response.status == "completed"
    assert response.output_text == FULL.text
    thought, message, look, wait = response.output
    assert thought.summary[0].text == FULL.reasoning
    assert thought.encrypted_content
    assert message.status == "completed"
    assert (look.call_id, look.name, look.arguments) == ("look_1", "look", FULL.calls[0].arguments)
    assert (wait.call_id, wait.arguments) == ("call_1_2", "{}")
    assert response.usage.input_tokens == 100
    assert response.usage.input_tokens_details.cached_tokens == 40
    assert response.usage.input_tokens_details.cache_write_tokens == 20
    assert response.usage.output_tokens_details.reasoning_tokens == 10


async def test_anthropic_hears_a_streamed_message() -> None:
    with serving(FULL) as server:
        async with anthropic_client(server) as client, client.messages.stream(**_bare("messages")) as stream:
            kinds = [event.type async for event in stream]
            message = await stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert {"thinking", "signature", "text", "input_json"} <= set(kinds)  # the client's own names for kinds of deltas
    _assert_is_full_message(message)


async def test_anthropic_hears_a_whole_message() -> None:
    with serving(FULL) as server:
        async with anthropic_client(server) as client:
            _assert_is_full_message(await client.messages.create(**a_body("messages")))


def _assert_is_full_message(message: Any) -> None:
    thought, text, look, wait = message.content
    assert (thought.type, thought.thinking) == ("thinking", FULL.reasoning)
    assert thought.signature
    assert text.text == FULL.text
    assert (look.id, look.name, look.input) == ("look_1", "look", {"at": "the roof", "for": "snow"})
    assert (wait.name, wait.input) == ("wait", {})
    assert message.stop_reason == "tool_use"
    assert message.usage.input_tokens == 40, "what was cached or written does not count as input on this wire"
    assert message.usage.cache_read_input_tokens == 40
    assert message.usage.cache_creation_input_tokens == 20
    assert message.usage.output_tokens == 30
    assert message.usage.output_tokens_details.thinking_tokens == 10


def _bare(wire: str) -> dict[str, Any]:
    return {name: value for name, value in a_body(wire).items() if name != "stream"}


def _creator(wire: str, ours: openai.AsyncOpenAI, theirs: anthropic.AsyncAnthropic) -> Any:
    creators = {
        "chat": ours.chat.completions.create,
        "responses": ours.responses.create,
        "messages": theirs.messages.create,
    }
    return creators[wire]


async def _listen(stream: AsyncIterator[Any], heard: list[Any]) -> None:
    async for event in stream:
        heard.append(event)  # noqa: PERF401 - what was heard before an error counts


# Shapes. The clients take what comes without checking it, so their types are asked here.


ENDINGS = (
    FULL,
    Reply("Only words."),
    Reply("Cut", finish="length"),
    Reply("No more", fault=Fault("refused", after=1)),
    Reply(calls=FULL.calls, fault=Fault("unfinished_call")),
    Reply(fault=Fault("empty")),
)


@pytest.mark.parametrize("reply", ENDINGS, ids=lambda reply: reply.finished + str(reply.fault and reply.fault.kind))
def test_everything_that_is_sent_has_a_type_in_the_providers_libraries(reply: Reply) -> None:
    adapters: dict[str, tuple[Any, Any]] = {
        "chat": (ChatCompletion, ChatCompletionChunk),
        "responses": (Response, ResponseStreamEvent),
        "messages": (Message, RawMessageStreamEvent),
    }
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}]
    with serving(reply, repeat=True) as server:
        for wire, (whole, event) in adapters.items():
            extra: dict[str, Any] = {"tools": tools, "instructions": "Be kind."} if wire == "responses" else {}
            TypeAdapter(whole).validate_json(post(server, wire, a_body(wire, **extra))[2])
            for document in documents_in(post(server, wire, a_body(wire, stream=True, **extra))[2]):
                if document.get("type") != "ping":  # of which the library has no type
                    TypeAdapter(event).validate_python(document)


@pytest.mark.parametrize("wire", WIRES)
def test_the_same_reply_has_the_same_content_on_each_wire(wire: str) -> None:
    with serving(FULL) as server:
        assert pieces_in(post(server, wire, a_body(wire, stream=True))[2]) == ALL_SAID


@pytest.mark.parametrize("wire", ["responses", "messages"])
def test_events_are_named_as_their_type(wire: str) -> None:
    with serving(FULL) as server:
        for name, data in events_in(post(server, wire, a_body(wire, stream=True))[2]):
            assert json.loads(data)["type"] == name


def test_a_streamed_chat_completion_tells_usage_only_if_asked() -> None:
    with serving(FULL, repeat=True) as server:
        plain = post(server, "chat", a_body("chat", stream=True))[2]
        counted = post(server, "chat", a_body("chat", stream=True, stream_options={"include_usage": True}))[2]
    assert b"usage" not in plain
    assert [document["usage"] is None for document in documents_in(counted)][-2:] == [True, False]
    assert plain.endswith(b"data: [DONE]\n\n")
    assert counted.endswith(b"data: [DONE]\n\n")


def test_a_reply_that_reached_its_limit_says_so_on_each_wire() -> None:
    with serving(Reply("So far", finish="length"), repeat=True) as server:
        chat, response, message = (json.loads(post(server, wire, a_body(wire))[2]) for wire in WIRES)
    assert chat["choices"][0]["finish_reason"] == "length"
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert message["stop_reason"] == "max_tokens"


def test_output_is_estimated_if_a_reply_has_no_usage() -> None:
    with serving(Reply("twelve bytes", reasoning="four")) as server:
        usage = json.loads(post(server, "chat", a_body("chat"))[2])["usage"]
    assert usage["completion_tokens"] == 4
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 1}
    assert usage["prompt_tokens"] > 0
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}


# Faults that are errors.


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("kind", "status", "type", "code"),
    [
        ("authentication", 401, "invalid_request_error", "invalid_api_key"),
        ("quota", 429, "insufficient_quota", "insufficient_quota"),
        ("rate_limit", 429, "requests", "rate_limit_exceeded"),
        ("context_too_long", 400, "invalid_request_error", "context_length_exceeded"),
        ("bad_request", 400, "invalid_request_error", "invalid_value"),
        ("overloaded", 503, "service_unavailable_error", "server_is_overloaded"),
        ("status", 500, "server_error", "server_error"),
    ],
)
@pytest.mark.parametrize("wire", ["chat", "responses"])
def test_openai_wires_have_openais_errors(
    wire: str, kind: FaultKind, status: int, type: str, code: str, stream: bool
) -> None:
    with serving(Reply(fault=Fault(kind))) as server:
        got, _, body = post(server, wire, a_body(wire, stream=stream))
    error = json.loads(body)["error"]
    assert (got, error["type"], error["code"]) == (status, type, code)
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("kind", "status", "type"),
    [
        ("authentication", 401, "authentication_error"),
        ("quota", 402, "billing_error"),
        ("rate_limit", 429, "rate_limit_error"),
        ("context_too_long", 400, "invalid_request_error"),
        ("bad_request", 400, "invalid_request_error"),
        ("overloaded", 529, "overloaded_error"),
        ("status", 500, "api_error"),
    ],
)
def test_the_messages_wire_has_anthropics_errors(kind: FaultKind, status: int, type: str, stream: bool) -> None:
    with serving(Reply(fault=Fault(kind))) as server:
        got, headers, body = post(server, "messages", a_body("messages", stream=stream))
    error = ErrorResponse.model_validate_json(body)
    assert (got, error.error.type) == (status, type)
    assert error.request_id == headers["request-id"]
    if kind == "context_too_long":
        assert error.error.message.startswith("prompt is too long: ")


@pytest.mark.parametrize("wire", WIRES)
def test_a_fault_can_name_its_status_and_its_message(wire: str) -> None:
    with serving(Reply(fault=Fault("status", status=418, message="I am a teapot"))) as server:
        status, _, body = post(server, wire, a_body(wire))
    assert (status, json.loads(body)["error"]["message"]) == (418, "I am a teapot")


@pytest.mark.parametrize("wire", WIRES)
def test_a_provider_can_say_when_to_come_again(wire: str) -> None:
    replies = [Reply(fault=Fault("rate_limit", retry_after=wish)) for wish in (None, 2, 0.25)]
    with serving(*replies) as server:
        said = [post(server, wire, a_body(wire))[1] for _ in replies]
    assert [(headers["retry-after"], headers["retry-after-ms"]) for headers in said] == [
        (None, None),
        ("2", None),
        ("0.25", "250"),
    ]


async def test_the_clients_raise_their_own_errors() -> None:
    with serving(Reply(fault=Fault("quota")), repeat=True) as server:
        async with openai_client(server) as client:
            with pytest.raises(openai.RateLimitError) as refused:
                await client.chat.completions.create(**a_body("chat"))
            assert refused.value.code == "insufficient_quota"
        server.script = Script([Reply(fault=Fault("overloaded"))])
        async with anthropic_client(server) as client:
            with pytest.raises(anthropic.OverloadedError):
                await client.messages.create(**a_body("messages"))


async def test_an_error_in_the_middle_of_a_chat_completion_is_an_error_chunk() -> None:
    with serving(Reply("x" * 100, fault=Fault("overloaded", after=2))) as server:
        async with openai_client(server) as client:
            stream = await client.chat.completions.create(**a_body("chat", stream=True))
            chunks: list[Any] = []
            with pytest.raises(openai.APIError) as raised:
                await _listen(stream, chunks)
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == "x" * 32
    assert raised.value.code == "server_is_overloaded"


@pytest.mark.parametrize(
    ("kind", "type"),
    [
        ("rate_limit", "response.failed"),
        ("context_too_long", "response.failed"),
        ("quota", "response.failed"),
        ("bad_request", "error"),
    ],
)
async def test_an_error_in_the_middle_of_a_response_ends_it(kind: FaultKind, type: str) -> None:
    with serving(Reply("x" * 100, fault=Fault(kind, after=2, message="no more"))) as server:
        async with openai_client(server) as client:
            events = [event async for event in await client.responses.create(**a_body("responses", stream=True))]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "x" * 32
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == type
    assert (last.message if type == "error" else last.response.error.message) == "no more"


async def test_an_error_in_the_middle_of_a_message_is_an_error_event() -> None:
    with serving(Reply("x" * 100, fault=Fault("overloaded", after=2))) as server:
        async with anthropic_client(server) as client:
            stream = await client.messages.create(**a_body("messages", stream=True))
            events: list[Any] = []
            with pytest.raises(anthropic.APIStatusError) as raised:
                await _listen(stream, events)
    assert "".join(event.delta.text for event in events if event.type == "content_block_delta") == "x" * 32
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["error"]["type"] == "overloaded_error"


@pytest.mark.parametrize("wire", WIRES)
def test_an_error_after_more_pieces_than_there_are_comes_instead_of_the_end(wire: str) -> None:
    with serving(Reply("short", fault=Fault("overloaded", after=99))) as server:
        stream = post(server, wire, a_body(wire, stream=True))[2]
    assert pieces_in(stream) == "short"
    assert b"error" in stream.split(b"\n\n")[-2]
    assert not any(end in stream for end in (b"[DONE]", b"response.completed", b"message_stop"))


@pytest.mark.parametrize("wire", WIRES)
def test_a_server_refuses_the_cache_key_only_where_it_is_sent(wire: str) -> None:
    with serving(Reply("Fine", fault=Fault("refuses_cache_key")), repeat=True) as server:
        status, _, body = post(server, wire, a_body(wire, prompt_cache_key="k"))
        assert status == 400
        assert "prompt_cache_key" in json.loads(body)["error"]["message"]
        if wire != "messages":
            assert json.loads(body)["error"]["param"] == "prompt_cache_key"
        assert post(server, wire, a_body(wire))[0] == 200


def test_a_prompt_that_is_refused_before_the_first_piece_is_what_each_provider_makes_of_it() -> None:
    with serving(Reply("No", fault=Fault("refused")), repeat=True) as server:
        status, _, body = post(server, "chat", a_body("chat", stream=True))
        assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_prompt")
        for stream in (False, True):
            status, _, body = post(server, "responses", a_body("responses", stream=stream))
            response = documents_in(body)[-1]["response"] if stream else json.loads(body)
            assert (status, response["status"], response["output"]) == (200, "incomplete", [])
            assert response["incomplete_details"] == {"reason": "content_filter"}
        status, _, body = post(server, "messages", a_body("messages"))
        assert (status, json.loads(body)["stop_reason"], json.loads(body)["content"]) == (200, "refusal", [])


def test_an_answer_that_is_refused_later_stops_there() -> None:
    with serving(Reply("x" * 100, fault=Fault("refused", after=2)), repeat=True) as server:
        streams = {wire: post(server, wire, a_body(wire, stream=True))[2] for wire in WIRES}
    assert {wire: pieces_in(stream) for wire, stream in streams.items()} == dict.fromkeys(WIRES, "x" * 32)
    assert documents_in(streams["chat"])[-1]["choices"][0]["finish_reason"] == "content_filter"
    assert documents_in(streams["responses"])[-1]["type"] == "response.incomplete"
    assert documents_in(streams["messages"])[-2]["delta"]["stop_reason"] == "refusal"


# Faults of the connection and of the form.


@pytest.mark.parametrize("wire", WIRES)
def test_a_cut_connection_leaves_an_incomplete_body(wire: str) -> None:
    with serving(Reply("x" * 100, fault=Fault("cut", after=2)), repeat=True) as server:
        with pytest.raises(http.client.IncompleteRead) as cut:
            post(server, wire, a_body(wire, stream=True))
        assert pieces_in(cut.value.partial) == "x" * 32
        with pytest.raises(http.client.IncompleteRead):
            post(server, wire, a_body(wire))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", WIRES)
def test_a_connection_that_is_cut_at_once_has_no_response(wire: str, stream: bool) -> None:
    with serving(Reply("x", fault=Fault("cut"))) as server, pytest.raises(http.client.RemoteDisconnected):
        post(server, wire, a_body(wire, stream=stream))


@pytest.mark.parametrize("wire", WIRES)
async def test_a_cut_connection_is_an_error_to_the_providers_clients(wire: str) -> None:
    with serving(Reply("x" * 100, fault=Fault("cut", after=2))) as server:
        async with openai_client(server) as ours, anthropic_client(server) as theirs:
            create = _creator(wire, ours, theirs)
            with pytest.raises(Exception, match=r"peer closed|[Cc]onnection"):
                await _listen(await create(**a_body(wire, stream=True)), [])


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_hanging_answer_ends_when_its_client_leaves(wire: str, after: int, stream: bool) -> None:
    with serving(Reply("x" * 100, fault=Fault("hang", after=after))) as server:
        connection = _ask(server, wire, stream=stream)
        await server.heard(1)
        if after:
            with connection.makefile("rb") as answer:
                assert answer.readline() == b"HTTP/1.1 200 \r\n"
        connection.close()
        await server.idle()


@pytest.mark.parametrize("wire", WIRES)
def test_a_server_stops_whatever_hangs(wire: str) -> None:
    with contextlib.ExitStack() as stack:
        with serving(Reply("x" * 100, fault=Fault("hang", after=1)), repeat=True) as server:
            clients = [stack.enter_context(_ask(server, wire, stream=True)) for _ in range(5)]
            stack.enter_context(socket.create_connection(("127.0.0.1", _port(server))))  # says nothing at all
            server.wait_for(5)
        for client in clients:
            with contextlib.suppress(ConnectionResetError):
                while client.recv(65536):
                    pass  # it ends, so the connection is gone


def test_a_server_can_stop_while_clients_connect() -> None:
    def connect(port: int) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for _ in range(30):
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                connection.sendall(_question("chat", stream=True))

    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            with serving(Reply("x", fault=Fault("hang")), repeat=True) as server:
                connecting = [pool.submit(connect, _port(server)) for _ in range(4)]
                server.wait_for(3)
            for future in connecting:
                future.result()
    gc.collect()  # a connection that nobody closed would warn here, and a warning is an error


def test_what_goes_wrong_in_the_server_itself_is_raised_when_it_stops() -> None:
    server = ModelServer(Script([Reply("half a character: \ud83d")])).start()
    with pytest.raises(http.client.RemoteDisconnected):
        post(server, "chat", a_body("chat"))
    with pytest.raises(UnicodeEncodeError):
        server.stop()


@pytest.mark.parametrize("wire", WIRES)
def test_a_client_that_does_not_wait_for_a_slow_answer_is_noticed(wire: str) -> None:
    with serving(Reply("x", delay=3600), Reply("x" * 100, pace=3600)) as server:
        for _ in range(2):
            _ask(server, wire, stream=True).close()
        server.wait_for(2)
        server.wait_idle()


def test_a_delay_and_a_pace_slow_an_answer_and_change_nothing_else() -> None:
    with serving(Reply("abc", piece=1, delay=0.001, pace=0.001), repeat=True) as server:
        assert pieces_in(post(server, "chat", a_body("chat", stream=True))[2]) == "abc"
        assert json.loads(post(server, "chat", a_body("chat"))[2])["choices"][0]["message"]["content"] == "abc"


@pytest.mark.parametrize("wire", WIRES)
async def test_a_malformed_piece_is_no_json(wire: str) -> None:
    with serving(Reply("x" * 100, fault=Fault("malformed", after=1)), repeat=True) as server:
        last = events_in(post(server, wire, a_body(wire, stream=True))[2])[-1][1]
        with pytest.raises(json.JSONDecodeError):
            json.loads(last)
        with pytest.raises(json.JSONDecodeError):
            json.loads(post(server, wire, a_body(wire))[2])
        async with openai_client(server) as ours, anthropic_client(server) as theirs:
            create = _creator(wire, ours, theirs)
            with pytest.raises(json.JSONDecodeError):
                await _listen(await create(**a_body(wire, stream=True)), [])


@pytest.mark.parametrize("after", [0, 2, 99])
@pytest.mark.parametrize("wire", WIRES)
def test_an_unfinished_answer_never_says_that_it_has_ended(wire: str, after: int) -> None:
    with serving(Reply("x" * 100, fault=Fault("unfinished", after=after)), repeat=True) as server:
        stream = post(server, wire, a_body(wire, stream=True))[2]
        whole = json.loads(post(server, wire, a_body(wire))[2])
    assert pieces_in(stream) == "x" * min(16 * after, 100)
    assert not any(end in stream for end in (b"[DONE]", b'"finish_reason":"', b"response.completed", b"message_delta"))
    match wire:
        case "chat":
            assert whole["choices"][0]["finish_reason"] is None
        case "responses":
            assert whole["status"] == "in_progress"
        case "messages":
            assert whole["stop_reason"] is None


@pytest.mark.parametrize("wire", WIRES)
def test_an_unfinished_call_ends_inside_its_arguments(wire: str) -> None:
    calls = (ScriptedCall("look"), ScriptedCall("look", '{"at": "everything"}'))
    with serving(Reply("Well", calls=calls, fault=Fault("unfinished_call"))) as server:
        stream = post(server, wire, a_body(wire, stream=True))[2]
    assert pieces_in(stream) == 'Well{}{"at": "ev'
    match wire:
        case "chat":
            assert documents_in(stream)[-1]["choices"][0]["finish_reason"] == "length"
        case "responses":
            end = documents_in(stream)[-1]
            assert end["type"] == "response.incomplete"
            assert end["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
            assert [item["status"] for item in end["response"]["output"]] == ["completed", "completed", "incomplete"]
        case "messages":
            assert documents_in(stream)[-2]["delta"]["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("wire", WIRES)
def test_an_empty_answer_is_well_formed(wire: str) -> None:
    with serving(Reply("not said", fault=Fault("empty")), repeat=True) as server:
        stream = post(server, wire, a_body(wire, stream=True))[2]
        whole = json.loads(post(server, wire, a_body(wire))[2])
    assert pieces_in(stream) == ""
    assert any(end in stream for end in (b'"finish_reason":"stop"', b"response.completed", b'"end_turn"'))
    match wire:
        case "chat":
            assert whole["choices"][0]["message"]["content"] is None
        case "responses":
            assert whole["output"] == []
        case "messages":
            assert whole["content"] == []


def _port(server: ModelServer) -> int:
    return int(server.root.rpartition(":")[2])


def _ask(server: ModelServer, wire: str, *, stream: bool) -> socket.socket:
    """A connection on which a question was sent, and no answer read."""
    connection = socket.create_connection(("127.0.0.1", _port(server)))
    connection.sendall(_question(wire, stream=stream))
    return connection


def _question(wire: str, *, stream: bool) -> bytes:
    body = json.dumps(a_body(wire, stream=stream)).encode()
    head = f"POST /v1{PATHS[wire]} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


# What is recorded.


def test_a_request_is_recorded_byte_for_byte() -> None:
    body = b'{"model":  "m", "messages": [{"content":"\xe2\x98\x83","role":"user"}],"prompt_cache_key":"k"}'
    with serving(FULL) as server:
        with socket.create_connection(("127.0.0.1", _port(server))) as connection:
            head = (
                f"POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: h\r\nX-Session-ID: s\r\nContent-Length: {len(body)}"
            )
            connection.sendall(head.encode() + b"\r\n\r\n" + body)
            [recorded] = server.wait_for(1)
        server.wait_idle()
    assert recorded.body == body
    assert recorded.json["messages"] == [{"content": "☃", "role": "user"}]
    assert (recorded.number, recorded.method, recorded.path) == (0, "POST", "/v1/chat/completions")
    assert (recorded.wire, recorded.key, recorded.model) == ("chat", "k", "m")
    assert ("X-Session-ID", "s") in recorded.headers, "names are kept as they were sent"
    assert recorded.header("x-session-id") == "s"
    assert recorded.header("authorization") is None


def test_what_is_no_json_is_refused_and_recorded() -> None:
    with serving(FULL) as server:
        for wire in WIRES:
            assert post(server, wire, b"{")[0] == 400
            assert post(server, wire, b"[]")[0] == 400
        assert server.requests[0].json is None
        assert server.requests[0].blocks == ()
        assert server.script.taken == 0, "no reply is spent on it"


@pytest.mark.parametrize("wire", WIRES)
def test_a_request_without_a_field_that_the_provider_requires_is_refused(wire: str) -> None:
    body = a_body(wire)
    del body["model"]
    with serving(FULL) as server:
        status, _, said = post(server, wire, body)
    assert status == 400
    assert "model" in json.loads(said)["error"]["message"]


def test_blocks_are_the_prompt_in_the_order_in_which_a_model_reads_it() -> None:
    ephemeral = {"cache_control": {"type": "ephemeral"}}
    body = {
        "messages": [
            {"role": "user", "content": "hello"},
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "there", **ephemeral}],
            },
        ],
        "model": "m",
        "max_tokens": 1,
        "system": [{"type": "text", "text": "Be kind.", **ephemeral}],
        "tools": [{"name": "look", "input_schema": {}}],
    }
    with serving(FULL) as server:
        post(server, "messages", body)
        recorded = server.last
    assert [json.loads(block) for block in recorded.blocks] == [
        {"name": "look", "input_schema": {}},
        {"type": "text", "text": "Be kind."},
        {"role": "user", "content": {"type": "text", "text": "hello"}},
        {"role": "assistant", "content": {"type": "text", "text": "hi"}},
        {"role": "assistant", "content": {"type": "text", "text": "there"}},
    ]
    assert recorded.marks == (1, 4)


def test_five_marks_are_too_many_for_anthropic() -> None:
    marked = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    body = a_body("messages") | {"messages": [{"role": "user", "content": [marked] * 5}]}
    with serving(FULL) as server:
        status, _, said = post(server, "messages", body)
    assert status == 400
    assert "maximum of 4 blocks" in json.loads(said)["error"]["message"]


def test_other_paths_are_answered_and_recorded_too() -> None:
    with serving(FULL) as server:
        with urllib.request.urlopen(f"{server.url}/models") as response:
            assert [model["id"] for model in json.load(response)["data"]] == ["scripted"]
        for path, status in (("/v1/nowhere", 404), ("/v1/chat/completions", 405)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(server.root + path)
            assert refused.value.code == status
            refused.value.close()
        assert [(request.path, request.wire) for request in server.requests] == [
            ("/v1/models", None),
            ("/v1/nowhere", None),
            ("/v1/chat/completions", None),
        ]


async def test_both_clients_can_list_models() -> None:
    with serving(FULL) as server:
        async with openai_client(server) as ours, anthropic_client(server) as theirs:
            assert [model.id async for model in ours.models.list()] == ["scripted"]
            assert [model.id async for model in theirs.models.list()] == ["scripted"]


async def test_a_client_uses_one_connection_for_many_requests() -> None:
    with serving(FULL, repeat=True) as server:
        async with openai_client(server) as client:
            for stream in (False, True, False):
                answer = await client.chat.completions.create(**a_body("chat", stream=stream))
                if stream:
                    _ = [chunk async for chunk in answer]
        assert server.connections == 1
        assert len(server.requests) == 3


# Many at once, and waiting.


def test_requests_from_many_threads_take_one_reply_each() -> None:
    count = 50
    with serving(*(Reply(f"answer {place}") for place in range(count))) as server:
        with ThreadPoolExecutor(10) as pool:
            bodies = list(pool.map(lambda _: json.loads(post(server, "chat", a_body("chat"))[2]), range(count)))
        assert {body["choices"][0]["message"]["content"] for body in bodies} == {f"answer {n}" for n in range(count)}
        assert [request.number for request in server.requests] == list(range(count))


async def test_answers_are_held_while_a_test_looks() -> None:
    with serving(Reply("at last")) as server:
        answers: list[str] = []

        async def ask() -> None:
            async with openai_client(server) as client:
                whole = await client.chat.completions.create(**a_body("chat"))
                answers.append(whole.choices[0].message.content)

        async with anyio.create_task_group() as group:
            with server.holding():
                group.start_soon(ask)
                await server.heard(1)
                assert answers == []
        assert answers == ["at last"]


def test_waiting_in_vain_says_what_came() -> None:
    with serving(FULL) as server:
        post(server, "chat", a_body("chat"))
        server.wait_idle()
        with pytest.raises(TimeoutError, match=r"2 requests: 1 came, 0 are open"):
            server.wait_for(2, timeout=0)


async def test_waiting_can_be_cancelled() -> None:
    with serving(FULL) as server:
        async with anyio.create_task_group() as group:
            group.start_soon(server.heard, 99)
            group.start_soon(server.heard, 98)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()


def test_a_script_can_be_replaced() -> None:
    with serving(Reply("one"), repeat=True) as server:
        first = post(server, "chat", a_body("chat"))[2]
        server.script = Script(lambda heard: Reply(f"{heard.wire} {heard.model}: {heard.text}"))
        second = post(server, "responses", a_body("responses", text="who?"))[2]
    assert b"one" in first
    assert json.loads(second)["output"][0]["content"][0]["text"] == "responses some-model: who?"


@pytest.mark.parametrize("wire", WIRES)
def test_a_client_is_told_of_a_script_that_is_used_up_or_raises(wire: str) -> None:
    def fails(heard: Heard) -> Reply:
        raise AssertionError("this should not have been asked")

    with serving() as server:
        for script, words in ((Script([]), "it has 0 replies"), (Script(fails), "should not have been asked")):
            server.script = script
            status, _, body = post(server, wire, a_body(wire))
            assert status == 400, "a client must not try again"
            assert words in json.loads(body)["error"]["message"]


def test_a_server_that_is_not_started_says_so() -> None:
    with pytest.raises(RuntimeError, match="with statement"):
        _ = ModelServer(Script([])).url


def test_a_port_that_is_taken_is_an_error() -> None:
    with serving(FULL) as server, pytest.raises(OSError, match=r"(?i)address already in use"):
        ModelServer(Script([]), port=_port(server)).start()


# Usage from a cache.


def test_a_cache_counts_what_each_wire_reports() -> None:
    long = "word " * 2000
    with serving(Reply("ok"), repeat=True, cache=SimulatedCache()) as server:
        chat = [json.loads(post(server, "chat", a_body("chat", text=long))[2])["usage"] for _ in range(2)]
        assert [usage["prompt_tokens_details"]["cached_tokens"] > 0 for usage in chat] == [False, True]
        assert [usage["prompt_tokens_details"]["cache_write_tokens"] > 0 for usage in chat] == [True, False]
        body = a_body("responses", text=long, prompt_cache_key="another")
        response = [json.loads(post(server, "responses", body)[2])["usage"] for _ in range(2)]
        assert [usage["input_tokens_details"]["cached_tokens"] > 0 for usage in response] == [False, True]
        body = a_body("messages", text=long, cache_control={"type": "ephemeral"})
        message = [json.loads(post(server, "messages", body)[2])["usage"] for _ in range(2)]
        assert [usage["cache_read_input_tokens"] > 0 for usage in message] == [False, True]
        assert [usage["cache_creation_input_tokens"] > 0 for usage in message] == [True, False]
        assert [usage["input_tokens"] for usage in message] == [0, 0]


def test_a_request_that_is_refused_writes_nothing_to_the_cache() -> None:
    body = a_body("chat", text="word " * 2000)
    with serving(Reply(fault=Fault("overloaded")), Reply("ok"), cache=SimulatedCache()) as server:
        post(server, "chat", body)
        usage = json.loads(post(server, "chat", body)[2])["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_script_can_bring_its_own_cache() -> None:
    body = a_body("chat", text="word " * 2000)
    with ModelServer(Script([Reply("ok")], repeat=True, cache=SimulatedCache())) as server:
        post(server, "chat", body)
        assert json.loads(post(server, "chat", body)[2])["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


# As a process.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_runs_as_a_process_until_it_is_told_to_end(number: signal.Signals, tmp_path: Any) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"text": "from a file"}]')
    command = [sys.executable, "-m", "forkpoint.testing.model_server", "--port", "0", "--script", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        data = json.dumps(a_body("chat")).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{url}/chat/completions", data)) as response:
            assert json.load(response)["choices"][0]["message"]["content"] == "from a file"
        process.send_signal(number)
        assert process.wait() == 0
