"""Clients of the Responses API as they are: the `openai` package, the Agents SDK, and LangChain."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from agents import Agent, OpenAIConversationsSession, OpenAIResponsesModel, RunConfig, Runner, function_tool
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel, SecretStr
from tests.clients.support.world import KEY, MODEL, World, orders, world

from forkpoint.testing import Reply, ScriptedCall

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
ASKS = Reply(calls=(ScriptedCall("weather", '{"city": "Oslo"}', "w1"),))


class Place(BaseModel):
    city: str


@pytest.fixture(scope="module")
def servers() -> Iterator[World]:
    with world() as made:
        yield made


@pytest.fixture(scope="module")
def client(servers: World) -> Iterator[OpenAI]:
    with OpenAI(base_url=servers.url, api_key=KEY, max_retries=0) as made:
        yield made


# The openai package.


def test_openai_creates_reads_chains_and_deletes(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="One")
    second = client.responses.create(model=MODEL, input="Two", previous_response_id=first.id)
    assert (first.output_text, second.output_text) == ("You said: One", "You said: Two")
    assert client.responses.retrieve(first.id, include=["reasoning.encrypted_content"]).output == first.output
    client.responses.delete(second.id)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(second.id)
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=MODEL, input="Three", previous_response_id=second.id)
    assert refused.value.code == "previous_response_not_found"


def test_openais_helper_reads_text_calls_and_forms_from_a_stream(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="Hello") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == "You said: Hello"
    with client.responses.stream(model=MODEL, input=orders(ASKS), tools=[WEATHER]) as stream:
        called: Any = stream.until_done().get_final_response().output[0]
    assert (called.type, called.call_id, called.arguments) == ("function_call", "w1", '{"city": "Oslo"}')
    with client.responses.stream(model=MODEL, input=orders(Reply('{"city":"Bergen"}')), text_format=Place) as stream:
        assert stream.get_final_response().output_parsed == Place(city="Bergen")


def test_openai_takes_up_a_background_response_and_pages_its_input(client: OpenAI) -> None:
    texts = [f"Message {n}" for n in range(5)]
    given: Any = [{"role": "user", "content": text} for text in texts]
    made = client.responses.create(model=MODEL, input=given, background=True)
    *_, last = client.responses.retrieve(made.id, stream=True, starting_after=1)
    assert last.type == "response.completed"
    assert client.responses.retrieve(made.id).status == "completed"
    assert client.responses.cancel(made.id).status == "completed"
    items: list[Any] = list(client.responses.input_items.list(made.id, limit=2, order="asc"))
    assert [item.content[0].text for item in items] == texts


def test_openai_uses_conversations(client: OpenAI) -> None:
    made = client.conversations.create(items=[{"type": "message", "role": "user", "content": "Before"}])
    client.responses.create(model=MODEL, input="Now", conversation=made.id)
    items: list[Any] = list(client.conversations.items.list(made.id, limit=2, order="asc"))
    assert [item.content[0].text for item in items] == ["Before", "Now", "You said: Now"]
    assert client.conversations.items.delete(items[-1].id, conversation_id=made.id).id == made.id
    assert client.conversations.update(made.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert client.conversations.delete(made.id).deleted


def test_openais_asynchronous_client_does_the_same(servers: World) -> None:
    async def use() -> list[str]:
        async with AsyncOpenAI(base_url=servers.url, api_key=KEY, max_retries=0) as client:
            first = await client.responses.create(model=MODEL, input="One")
            async with client.responses.stream(model=MODEL, input="Two", previous_response_id=first.id) as stream:
                final = await stream.get_final_response()
            items = [item async for item in client.responses.input_items.list(final.id)]
            return [first.output_text, final.output_text, items[0].type]

    assert asyncio.run(use()) == ["You said: One", "You said: Two", "message"]


# The Agents SDK.


@function_tool  # type: ignore[untyped-decorator]
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sun in {city}"


def helper(servers: World) -> tuple[AsyncOpenAI, Agent[Any]]:
    client = AsyncOpenAI(base_url=servers.url, api_key=KEY, max_retries=0)
    model = OpenAIResponsesModel(MODEL, client)
    return client, Agent(name="helper", instructions="Be brief.", model=model, tools=[weather])


QUIET = RunConfig(tracing_disabled=True)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("way", ["auto", "previous", "conversation", "session"])
def test_the_agents_sdk_runs_a_tool_and_goes_on(servers: World, way: str, streamed: bool) -> None:
    async def use() -> list[str]:
        client, agent = helper(servers)
        async with client:
            options: dict[str, Any] = {}
            if way == "auto":
                options = {"auto_previous_response_id": True}
            elif way == "conversation":
                options = {"conversation_id": (await client.conversations.create()).id}
            elif way == "session":
                options = {"session": OpenAIConversationsSession(openai_client=client)}
            first = await run(agent, orders(ASKS), options)
            if way in {"auto", "previous"}:
                options = {"previous_response_id": first.last_response_id} if way == "previous" else options
            second = await run(agent, "And now?", options)
            said = [first.final_output, second.final_output]
            if way == "session":
                session = options["session"]
                items = await session.get_items()
                said += [str(len(items)), str((await session.pop_item())["type"])]
                await session.clear_session()
            return said

    async def run(agent: Agent[Any], text: str, options: dict[str, Any]) -> Any:
        if not streamed:
            return await Runner.run(agent, text, run_config=QUIET, **options)
        result = Runner.run_streamed(agent, text, run_config=QUIET, **options)
        async for _ in result.stream_events():
            pass
        return result

    said = asyncio.run(use())
    assert said[:2] == ["It says: sun in Oslo", "You said: And now?"]
    assert said[2:] == (["6", "message"] if way == "session" else [])


def test_two_runs_of_the_agents_sdk_in_one_conversation_both_succeed(servers: World) -> None:
    slow = Reply("Slow", delay=0.5)

    async def use() -> list[str]:
        client, agent = helper(servers)
        async with client:
            id = (await client.conversations.create()).id
            runs = [Runner.run(agent, orders(slow), conversation_id=id, run_config=QUIET) for _ in range(2)]
            return [one.final_output for one in await asyncio.gather(*runs)]

    assert asyncio.run(use()) == ["Slow", "Slow"]


# LangChain.


@langchain_tool("weather")  # type: ignore[untyped-decorator]
def langchain_weather(city: str) -> str:
    """The weather in a city."""
    return f"sun in {city}"


def test_langchain_chains_streams_and_binds_tools(servers: World) -> None:
    model = ChatOpenAI(
        model=MODEL,
        base_url=servers.url,
        api_key=SecretStr(KEY),
        use_responses_api=True,
        use_previous_response_id=True,
        max_retries=0,
    )
    first = model.invoke("One")
    second = model.invoke([HumanMessage("One"), first, HumanMessage("Two")])
    assert (first.text, second.text) == ("You said: One", "You said: Two")
    assert servers.prompt[-3:] == [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "You said: One"},
        {"role": "user", "content": "Two"},
    ]
    assert "".join(chunk.text for chunk in model.stream("Three")) == "You said: Three"
    bound = model.bind_tools([langchain_weather])
    question = HumanMessage(orders(ASKS))
    asked: Any = bound.invoke([question])
    (call,) = asked.tool_calls
    answered = bound.invoke([question, asked, ToolMessage("sun in Oslo", tool_call_id=call["id"])])
    assert answered.text == "It says: sun in Oslo"
