"""The official `openai` package as a client: nothing of it is changed, only its base URL and a header."""

import base64
import json
import secrets
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageFunctionToolCall, ChatCompletionToolUnionParam
from pydantic import BaseModel
from tests.clients.support.world import KEY, MODEL, World, orders, world

from forkpoint.testing import Reply, ScriptedCall

PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002000001"
        "e221bc330000000049454e44ae426082"
    )
).decode()


class Weather(BaseModel):
    city: str
    degrees: int


def function(name: str, **properties: str) -> ChatCompletionToolUnionParam:
    """A tool of the client."""
    schema: dict[str, object] = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
    }
    return {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": schema}}


TOOLS = [function("weather", city="string"), function("clock", zone="string")]
WEATHER, CLOCK = ScriptedCall("weather", '{"city": "Oslo"}', "w1"), ScriptedCall("clock", '{"zone":"CET"}', "c1")
ASKS_ONE, ASKS_TWO = Reply(calls=(WEATHER,)), Reply(calls=(WEATHER, CLOCK))


@pytest.fixture(scope="module")
def servers() -> Iterator[World]:
    with world() as made:
        yield made


@pytest.fixture(scope="module")
def client(servers: World) -> Iterator[OpenAI]:
    with OpenAI(base_url=servers.url, api_key=KEY) as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"chat-{secrets.token_hex(4)}"


@pytest.fixture
def talk(client: OpenAI, name: str) -> OpenAI:
    """The client, as somebody has it who sets the header once."""
    return client.with_options(default_headers={"X-Conversation-Id": name})


def say(client: OpenAI, said: str | list[Any], **settings: Any) -> Any:
    """The answer to a message, or to a list of them."""
    messages: Any = [{"role": "user", "content": said}] if isinstance(said, str) else said
    return client.chat.completions.create(model=MODEL, messages=messages, **settings)


def answered(call_id: str, text: str) -> Any:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def statuses(servers: World, name: str) -> dict[str, str]:
    """What the calls in a conversation's history came to."""
    return {one["call_id"]: one.get("status", "done") for one in servers.events(name, "tool_result")}


# Answers.


def test_an_answer_without_a_conversation_stands_alone(client: OpenAI, servers: World) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "Anyone?"}]
    )
    completion = raw.parse()
    assert completion.id.startswith("chatcmpl-")
    assert (completion.object, completion.model) == ("chat.completion", MODEL)
    assert completion.choices[0].message.role == "assistant"
    assert completion.choices[0].message.content == "You said: Anyone?"
    assert completion.choices[0].message.tool_calls is None
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.prompt_tokens > 0
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    assert "x-conversation-id" not in raw.headers
    assert completion._request_id == raw.headers["x-request-id"]

    say(client, "And now?")
    assert [message["content"] for message in servers.prompt] == ["And now?"]


def test_answers_go_back_into_the_list_as_the_objects_that_they_are(client: OpenAI, servers: World) -> None:
    messages: list[Any] = [{"role": "user", "content": orders(Reply("Hi.", reasoning="Be kind."))}]
    messages.append(say(client, messages).choices[0].message)
    messages.append({"role": "user", "content": "Two"})
    with client.chat.completions.stream(model=MODEL, messages=messages) as stream:
        messages.append(stream.get_final_completion().choices[0].message)
    messages.append({"role": "user", "content": "Three"})
    say(client, messages)
    assert [message["role"] for message in servers.prompt] == ["user", "assistant"] * 2 + ["user"]
    assert [message["content"] for message in servers.prompt[1:]] == ["Hi.", "Two", "You said: Two", "Three"]


def test_a_conversation_is_created_and_then_continued(client: OpenAI, servers: World, name: str) -> None:
    seen = []
    for text in ("One", "Two"):
        raw = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "user", "content": text}], extra_headers={"X-Conversation-Id": name}
        )
        assert raw.headers["x-conversation-id"] == name
        assert raw.parse().id == f"chatcmpl-{raw.headers['x-turn-id']}"
        seen.append(raw.headers["x-conversation-status"])
    assert seen == ["created", "continued"]
    assert [message["content"] for message in servers.prompt] == ["One", "You said: One", "Two"]
    assert servers.api.outcomes(name) == ["committed", "committed"]


def test_only_the_newest_message_of_a_list_is_news(talk: OpenAI, servers: World, name: str) -> None:
    first: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "One"}]
    say(talk, first)
    more: Any = [*first, {"role": "assistant", "content": "Something else"}, {"role": "user", "content": "Two"}]
    say(talk, more)
    assert [message["content"] for message in servers.prompt] == ["Be brief.", "One", "You said: One", "Two"]


def test_the_server_can_make_the_name(client: OpenAI, servers: World) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=messages, extra_headers={"X-Conversation-Create": "true"}
    )
    made = raw.headers["x-conversation-id"]
    assert raw.headers["x-conversation-status"] == "created"
    say(client, "Again", extra_headers={"X-Conversation-Id": made})
    assert servers.api.outcomes(made) == ["committed", "committed"]


def test_a_conversation_can_begin_as_a_fork_of_another(talk: OpenAI, servers: World, name: str) -> None:
    turn = talk.chat.completions.with_raw_response.create(model=MODEL, messages=[{"role": "user", "content": "One"}])
    say(talk, "Two")
    sources = {name: ["One", "Two", "Three"], f"{name}@{turn.headers['x-turn-id']}": ["One", "Three"]}
    for source, expected in sources.items():
        fork = f"fork-{secrets.token_hex(4)}"
        say(talk, "Three", extra_headers={"X-Conversation-Id": fork, "X-Fork-From": source})
        assert [message["content"] for message in servers.prompt if message["role"] == "user"] == expected
        assert servers.api.get(fork)["lineage"]["kind"] == "fork"
    assert len(servers.api.outcomes(name)) == 2


def test_a_side_request_leaves_the_conversation_alone(talk: OpenAI, servers: World, name: str) -> None:
    say(talk, "Hello")
    side = talk.chat.completions.create(model=f"{MODEL}:side", messages=[{"role": "user", "content": "A title?"}])
    assert side.model == f"{MODEL}:side"
    assert [message["content"] for message in servers.prompt] == ["A title?"]
    assert servers.api.outcomes(name) == ["committed"]


def test_thoughts_come_as_an_extra_field(talk: OpenAI) -> None:
    thinks = Reply("Four.", reasoning="Two and two.", piece=3)
    message = say(talk, orders(thinks)).choices[0].message
    assert (message.content, message.reasoning_content) == ("Four.", "Two and two.")

    chunks = list(say(talk, orders(thinks), stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "Two and two."
    assert "".join(delta.content or "" for delta in deltas) == "Four."


def test_an_image_reaches_the_model(talk: OpenAI, servers: World, name: str) -> None:
    url = f"data:image/png;base64,{PIXEL}"
    content: Any = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    talk.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": content}])
    sent = servers.prompt[-1]["content"]
    assert [part["type"] for part in sent] == ["text", "image_url"]
    assert sent[1]["image_url"]["url"] == url
    image = servers.events(name, "user_message")[0]["parts"][1]
    assert (image["type"], image["media_type"], image["data"]) == ("image", "image/png", PIXEL)


def test_sampling_fields_reach_the_model_and_unknown_ones_are_named(talk: OpenAI, servers: World) -> None:
    raw = talk.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello"}],
        temperature=0.25,
        top_p=0.5,
        seed=7,
        stop=["END"],
        n=1,
        logit_bias=None,
        extra_body={"unheard_of": 1},
    )
    body = servers.models.last.json
    assert (body["temperature"], body["top_p"], body["seed"], body["stop"]) == (0.25, 0.5, 7, ["END"])
    assert raw.headers["x-ignored-fields"] == "unheard_of"


def test_models_are_listed_and_found(client: OpenAI) -> None:
    listed = {model.id: model.object for model in client.models.list()}
    assert listed[MODEL] == listed[f"{MODEL}:side"] == "model"
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nobody")
    assert caught.value.code == "model_not_found"


# Streams.


def test_a_stream_has_the_chunks_that_clients_expect(talk: OpenAI, servers: World, name: str) -> None:
    raw = talk.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    assert raw.headers["x-conversation-id"] == name
    assert raw.headers["x-conversation-status"] == "created"
    *chunks, last, usage = raw.parse()
    assert {chunk.id for chunk in (*chunks, last, usage)} == {f"chatcmpl-{raw.headers['x-turn-id']}"}
    assert {chunk.model for chunk in (*chunks, last, usage)} == {MODEL}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len(chunks) > 3, "it came in pieces"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "You said: Hello"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * len(chunks)
    assert all(chunk.usage is None for chunk in (*chunks, last))
    assert last.choices[0].finish_reason == "stop"
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.total_tokens == usage.usage.prompt_tokens + usage.usage.completion_tokens > 0
    assert servers.api.outcomes(name) == ["committed"]


def test_a_stream_ends_with_done_and_counts_only_if_asked(talk: OpenAI) -> None:
    with talk.chat.completions.with_streaming_response.create(
        model=MODEL, messages=[{"role": "user", "content": "Hello"}], stream=True
    ) as response:
        frames = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert response.headers["content-type"].startswith("text/event-stream")
    assert frames.pop() == "[DONE]"
    assert json.loads(frames[-1])["choices"][0]["finish_reason"] == "stop"
    assert not any(json.loads(frame).get("usage") for frame in frames)


def test_the_stream_helper_gives_events_and_the_whole(talk: OpenAI, servers: World, name: str) -> None:
    with talk.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": "Hello"}], stream_options={"include_usage": True}
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    assert "".join(event.delta for event in events if event.type == "content.delta") == "You said: Hello"
    assert [event.content for event in events if event.type == "content.done"] == ["You said: Hello"]
    assert final.choices[0].message.content == "You said: Hello"
    assert final.choices[0].finish_reason == "stop"
    assert final.usage is not None
    assert servers.api.outcomes(name) == ["committed"]


# Answers in a form.


def test_an_answer_is_parsed_into_a_class(talk: OpenAI, servers: World) -> None:
    in_form = Reply('{"city": "Oslo", "degrees": -3}', piece=5)
    parsed = talk.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": orders(in_form)}], response_format=Weather
    )
    assert parsed.choices[0].message.parsed == Weather(city="Oslo", degrees=-3)
    schema = servers.models.last.json["response_format"]["json_schema"]["schema"]
    assert schema["required"] == ["city", "degrees"]

    with talk.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": orders(in_form)}], response_format=Weather
    ) as stream:
        stream.until_done()
        assert stream.get_final_completion().choices[0].message.parsed == Weather(city="Oslo", degrees=-3)


def test_an_answer_that_was_cut_short_says_so(talk: OpenAI) -> None:
    cut = Reply("Four score and", finish="length")
    assert say(talk, orders(cut)).choices[0].finish_reason == "length"


# Tools of the client.


def test_a_call_is_handed_out_and_its_result_goes_on(talk: OpenAI, servers: World, name: str) -> None:
    asked: Any = [{"role": "user", "content": orders(ASKS_ONE)}]
    choice = say(talk, asked, tools=TOOLS).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert (call.id, call.function.name, call.function.arguments) == ("w1", "weather", '{"city": "Oslo"}')

    with_result = [*asked, choice.message, answered("w1", "Snow")]
    done = say(talk, with_result, tools=TOOLS).choices[0]
    assert (done.finish_reason, done.message.content) == ("stop", "It says: Snow")
    assert [message["role"] for message in servers.prompt] == ["user", "assistant", "tool"]
    assert servers.api.outcomes(name) == ["committed", "committed"]


def test_parallel_calls_are_answered_in_any_order(talk: OpenAI, servers: World, name: str) -> None:
    asked: Any = [{"role": "user", "content": orders(ASKS_TWO)}]
    message = say(talk, asked, tools=TOOLS).choices[0].message
    assert [call.id for call in message.tool_calls or ()] == ["w1", "c1"]

    results = [answered("c1", "Noon"), answered("w1", "Snow")]
    done = say(talk, [*asked, message, *results], tools=TOOLS)
    assert sorted(done.choices[0].message.content.removeprefix("It says: ").split(" | ")) == ["Noon", "Snow"]
    assert statuses(servers, name) == {"w1": "done", "c1": "done"}


def test_half_of_the_results_leave_the_other_call_unanswered(talk: OpenAI, servers: World, name: str) -> None:
    asked: Any = [{"role": "user", "content": orders(ASKS_TWO)}]
    message = say(talk, asked, tools=TOOLS).choices[0].message
    half = [*asked, message, answered("c1", "Noon")]
    assert say(talk, half, tools=TOOLS).choices[0].finish_reason == "stop"
    assert statuses(servers, name) == {"w1": "not_answered", "c1": "done"}
    assert [one.get("tool_call_id") for one in servers.prompt if one["role"] == "tool"] == ["w1", "c1"]


def test_a_new_message_instead_of_results_leaves_both_unanswered(talk: OpenAI, servers: World, name: str) -> None:
    say(talk, orders(ASKS_TWO), tools=TOOLS)
    assert say(talk, "Never mind.", tools=TOOLS).choices[0].message.content == "You said: Never mind."
    assert statuses(servers, name) == {"w1": "not_answered", "c1": "not_answered"}
    assert [message["role"] for message in servers.prompt] == ["user", "assistant", "tool", "tool", "user"]


def test_results_and_a_new_message_come_together(talk: OpenAI, servers: World, name: str) -> None:
    asked: list[Any] = [{"role": "user", "content": orders(ASKS_TWO)}]
    message = say(talk, asked, tools=TOOLS).choices[0].message
    more = [answered("w1", "Snow"), answered("c1", "Noon"), {"role": "user", "content": "And now?"}]
    assert say(talk, [*asked, message, *more], tools=TOOLS).choices[0].message.content == "You said: And now?"
    assert statuses(servers, name) == {"w1": "done", "c1": "done"}
    assert [message["role"] for message in servers.prompt] == ["user", "assistant", "tool", "tool", "user"]


def test_a_model_may_use_the_id_of_a_call_again(talk: OpenAI, servers: World) -> None:
    for weather in ("Snow", "Rain"):
        asked: list[Any] = [{"role": "user", "content": orders(ASKS_ONE)}]
        message = say(talk, asked, tools=TOOLS).choices[0].message
        done = say(talk, [*asked, message, answered("w1", weather)], tools=TOOLS)
        assert done.choices[0].message.content == f"It says: {weather}"
    assert [message["content"] for message in servers.prompt if message["role"] == "tool"] == ["Snow", "Rain"]


def test_a_result_for_a_call_that_nobody_made_is_refused(talk: OpenAI, servers: World, name: str) -> None:
    asked: Any = [{"role": "user", "content": orders(ASKS_ONE)}]
    message = say(talk, asked, tools=TOOLS).choices[0].message
    with pytest.raises(openai.BadRequestError):
        say(talk, [*asked, message, answered("x9", "Snow")], tools=TOOLS)
    assert servers.api.outcomes(name) == ["committed"]
    say(talk, [*asked, message, answered("w1", "Snow")], tools=TOOLS)


def test_only_the_clients_own_tools_are_seen(talk: OpenAI, servers: World, name: str) -> None:
    both = Reply("Let me see.", calls=(ScriptedCall("shelf", '{"book": "Ida"}', "s1"), WEATHER))
    asked: Any = [{"role": "user", "content": orders(both)}]
    choice = say(talk, asked, tools=TOOLS).choices[0]
    assert [call.id for call in choice.message.tool_calls or ()] == ["w1"]
    assert choice.message.content == "Let me see."
    assert statuses(servers, name) == {"s1": "done"}

    done = say(talk, [*asked, choice.message, answered("w1", "Snow")])
    assert done.choices[0].message.content == "It says: Ida stands on shelf 3 | Snow"


def test_calls_stream_with_their_index(talk: OpenAI, servers: World, name: str) -> None:
    with talk.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": orders(ASKS_TWO)}], tools=TOOLS
    ) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion().choices[0]
    assert [(event.index, event.name, event.arguments) for event in done] == [
        (0, "weather", '{"city": "Oslo"}'),
        (1, "clock", '{"zone":"CET"}'),
    ]
    assert final.finish_reason == "tool_calls"
    assert [call.id for call in final.message.tool_calls or ()] == ["w1", "c1"]
    assert servers.api.outcomes(name) == ["committed"]


def test_arguments_are_parsed_into_a_class(talk: OpenAI) -> None:
    call = ScriptedCall("Weather", '{"city": "Oslo", "degrees": 4}', "w1")
    parsed = talk.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": orders(Reply(calls=(call,)))}],
        tools=[openai.pydantic_function_tool(Weather)],
    )
    calls = parsed.choices[0].message.tool_calls or []
    assert [call.function.parsed_arguments for call in calls] == [Weather(city="Oslo", degrees=4)]


# The async client.


@pytest.mark.anyio
async def test_the_async_client_does_the_same(servers: World, name: str) -> None:
    headers = {"X-Conversation-Id": name}
    async with AsyncOpenAI(base_url=servers.url, api_key=KEY, default_headers=headers) as client:
        whole = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "One"}])
        assert whole.choices[0].message.content == "You said: One"

        pieces = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Two"}], stream=True
        )
        text = [chunk.choices[0].delta.content or "" async for chunk in pieces]
        assert "".join(text) == "You said: Two"

        async with client.chat.completions.stream(
            model=MODEL, messages=[{"role": "user", "content": "Three"}]
        ) as stream:
            assert (await stream.get_final_completion()).choices[0].message.content == "You said: Three"

        parsed = await client.chat.completions.parse(
            model=MODEL,
            messages=[{"role": "user", "content": orders(Reply('{"city": "Oslo", "degrees": 1}'))}],
            response_format=Weather,
        )
        assert parsed.choices[0].message.parsed == Weather(city="Oslo", degrees=1)
        assert [model.id async for model in client.models.list()].count(MODEL) == 1
    assert servers.api.outcomes(name) == ["committed"] * 4
