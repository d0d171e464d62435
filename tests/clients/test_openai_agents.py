"""The `openai-agents` package as a client: its runner and its session, of which nothing is changed."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    OpenAIResponsesWSModel,
    RunConfig,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI
from tests.clients.support.witness import AsyncWitnessed, Witness
from tests.server.responses.responding import Place, responding
from tests.server.support.turning import Visits, left_nothing, obedient

from forkpoint.server.wires.responses.items.ids import conversation_named
from forkpoint.testing import Heard, Reply, Script, ScriptedCall

WEATHER = '[["weather", {"city": "Oslo"}]]'
ANSWER = "Done: snow in Oslo"

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the package knows no other loop


@pytest.fixture(scope="module")
def shared() -> Iterator[Place]:
    with responding() as place:
        yield place
        left_nothing(place.server)


@pytest.fixture
def place(shared: Place) -> Place:
    shared.models.script = Script(obedient)
    return shared


class Talk:
    """An agent of the package whose model is this server, and a witness of what it is answered."""

    def __init__(self, client: AsyncOpenAI, witness: Witness, *, streamed: bool) -> None:
        self.client = client
        self.witness = witness
        self._streamed = streamed
        model = OpenAIResponsesModel("helper", client)
        self.agent = Agent("Ida", instructions="Be short.", tools=[function_tool(weather)], model=model)

    async def run(self, said: Any, **options: Any) -> Any:
        """A run that has ended."""
        config = RunConfig(tracing_disabled=True)
        if not self._streamed:
            return await Runner.run(self.agent, said, run_config=config, **options)
        run = Runner.run_streamed(self.agent, said, run_config=config, **options)
        pieces = [event.data.delta async for event in run.stream_events() if _is_text(event)]
        assert "".join(pieces).endswith(run.final_output)
        return run

    @property
    def sent(self) -> list[Any]:
        """The bodies of its requests for responses."""
        return [one.sent for one in self.witness.responses]


def weather(city: str) -> str:
    """Says how the weather is."""
    return f"snow in {city}"


@asynccontextmanager
async def talking(place: Place, *, streamed: bool = False) -> AsyncIterator[Talk]:
    witness = Witness()
    http = httpx2.AsyncClient(transport=AsyncWitnessed(witness))
    async with AsyncOpenAI(base_url=f"{place.server.url}/v1", api_key="any", http_client=http) as client:
        yield Talk(client, witness, streamed=streamed)
    witness.check()


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
async def talk(place: Place, request: pytest.FixtureRequest) -> AsyncIterator[Talk]:
    async with talking(place, streamed=request.param) as made:
        yield made


def prompt(place: Place) -> list[tuple[str, str | None]]:
    """What the model was sent last."""
    return [(message["role"], message.get("content")) for message in place.models.last.json["messages"]]


def _is_text(event: Any) -> bool:
    return bool(event.type == "raw_response_event" and event.data.type == "response.output_text.delta")


async def test_a_run_with_a_tool_chains_its_requests_by_itself(place: Place, talk: Talk) -> None:
    run = await talk.run(WEATHER, auto_previous_response_id=True)
    assert run.final_output == ANSWER
    asked, answered = talk.sent
    assert "previous_response_id" not in asked
    assert answered["previous_response_id"] == talk.witness.responses[0].answer["id"]
    assert [item["type"] for item in answered["input"]] == ["function_call_output"]
    assert prompt(place) == [("system", "Be short."), ("user", WEATHER), ("assistant", None), ("tool", "snow in Oslo")]
    first, last = (one.answer["id"] for one in talk.witness.responses)
    assert place.conversation(first) == place.conversation(last), "it went on in place"
    assert place.said(last) == [WEATHER, ANSWER]


async def test_runs_go_on_from_the_response_that_they_name_and_fork_there(place: Place, talk: Talk) -> None:
    first = await talk.run("One")
    second = await talk.run("Two", previous_response_id=first.last_response_id)
    other = await talk.run(WEATHER, previous_response_id=first.last_response_id)
    assert (second.final_output, other.final_output) == ("You said: Two", ANSWER)
    assert place.said(second.last_response_id) == ["One", "You said: One", "Two", "You said: Two"]
    assert place.said(other.last_response_id) == ["One", "You said: One", WEATHER, ANSWER]
    assert place.conversation(second.last_response_id) != place.conversation(other.last_response_id)


async def test_runs_of_one_conversation_are_its_turns(place: Place, talk: Talk) -> None:
    id = (await talk.client.conversations.create()).id
    await talk.run(WEATHER, conversation_id=id)
    run = await talk.run("Two", conversation_id=id)
    assert run.final_output == "You said: Two"
    assert [one["conversation"] for one in talk.sent] == [id] * 3
    conversation = conversation_named(id)
    assert place.api.said(conversation) == [WEATHER, ANSWER, "Two", "You said: Two"]
    assert place.api.outcomes(conversation) == ["committed"] * 3
    items = [item async for item in talk.client.conversations.items.list(id, order="asc", limit=2)]
    kinds = ["message", "function_call", "function_call_output", "message", "message", "message"]
    assert [item.type for item in items] == kinds


async def test_a_session_keeps_a_tool_call_in_order_and_goes_on(place: Place, talk: Talk) -> None:
    session = OpenAIConversationsSession(openai_client=talk.client)
    run = await talk.run(WEATHER, session=session)
    assert run.final_output == ANSWER
    items: list[Any] = list(await session.get_items())
    assert [item["type"] for item in items] == ["message", "function_call", "function_call_output", "message"]
    assert items[1]["call_id"] == items[2]["call_id"]
    assert (items[1]["arguments"], items[2]["output"]) == ('{"city": "Oslo"}', "snow in Oslo")
    again = await talk.run("Two", session=session)
    assert again.final_output == "You said: Two"
    assert prompt(place)[1:] == [
        ("user", WEATHER),
        ("assistant", None),
        ("tool", "snow in Oslo"),
        ("assistant", ANSWER),
        ("user", "Two"),
    ]
    assert place.api.said(conversation_named(session.session_id)) == [WEATHER, ANSWER, "Two", "You said: Two"]


async def test_each_item_of_a_session_can_be_popped_from_the_end(place: Place, talk: Talk) -> None:
    session = OpenAIConversationsSession(openai_client=talk.client)
    await talk.run(WEATHER, session=session)
    popped: list[Any] = []
    while (item := await session.pop_item()) is not None:
        popped.append(item)
    assert [item["type"] for item in popped] == ["message", "function_call_output", "function_call", "message"]
    assert await session.get_items() == []
    run = await talk.run("Two", session=session)
    assert run.final_output == "You said: Two"
    assert place.api.said(conversation_named(session.session_id)) == ["Two", "You said: Two"]


async def test_a_call_whose_result_was_popped_can_be_answered_again(place: Place) -> None:
    async with talking(place) as talk:
        session = OpenAIConversationsSession(openai_client=talk.client)
        await talk.run(WEATHER, session=session)
        await session.pop_item()
        result: Any = await session.pop_item()
        await session.add_items([{"type": "function_call_output", "call_id": result["call_id"], "output": "rain"}])
        items: list[Any] = list(await session.get_items())
        assert items[-1]["output"] == "rain"


async def test_parallel_calls_in_a_session_are_kept_and_popped_one_by_one(place: Place) -> None:
    calls = tuple(ScriptedCall("weather", f'{{"city":"{city}"}}', f"call-{city}") for city in ("Oslo", "Rome"))

    def two_at_once(heard: Heard) -> Reply:
        return Reply(calls=calls) if heard.body["messages"][-1]["role"] == "user" else Reply("Both")

    place.models.script = Script(two_at_once)
    async with talking(place) as talk:
        session = OpenAIConversationsSession(openai_client=talk.client)
        assert (await talk.run("Both?", session=session)).final_output == "Both"
        kinds = ["message", *["function_call"] * 2, *["function_call_output"] * 2, "message"]
        items: list[Any] = list(await session.get_items())
        assert [item["type"] for item in items] == kinds
        popped: list[Any] = [await session.pop_item() for _ in range(3)]
        assert [item["type"] for item in popped] == ["message", "function_call_output", "function_call_output"]


async def test_a_session_that_is_cleared_is_gone_and_begins_anew(place: Place) -> None:
    async with talking(place) as talk:
        session = OpenAIConversationsSession(openai_client=talk.client)
        await talk.run("One", session=session)
        cleared = conversation_named(session.session_id)
        await session.clear_session()
        assert place.api.http.get(f"/api/conversations/{cleared}").status_code == 404
        await talk.run("Two", session=session)
        assert place.api.said(conversation_named(session.session_id)) == ["Two", "You said: Two"]


async def test_a_session_of_more_items_than_a_request_and_a_page_hold_is_read_whole(place: Place) -> None:
    async with talking(place) as talk:
        session = OpenAIConversationsSession(openai_client=talk.client)
        said: list[Any] = [{"role": "user", "content": f"Line {n}"} for n in range(45)]
        await session.add_items(said)
        items: list[Any] = list(await session.get_items())
        assert [item["content"][0]["text"] for item in items] == [one["content"] for one in said]
        assert len(await session.get_items(limit=3)) == 3
        await talk.run("Last", session=session)


async def test_of_two_runs_in_one_conversation_the_second_waits_and_both_succeed(place: Place) -> None:
    async with talking(place) as talk:
        id = (await talk.client.conversations.create()).id
        heard = len(place.models.requests)
        with Visits() as visits, place.models.holding():
            first = asyncio.create_task(talk.run("One", conversation_id=id))
            await place.models.heard(heard + 1)
            second = asyncio.create_task(talk.run("Two", conversation_id=id))
            await asyncio.to_thread(visits.until_begins, "POST /v1/responses 400")
        assert [run.final_output for run in await asyncio.gather(first, second)] == ["You said: One", "You said: Two"]
        (refused,) = (one for one in talk.witness.responses if one.status != 200)
        assert (refused.status, refused.answer["error"]["code"]) == (400, "conversation_locked")
        assert place.api.said(conversation_named(id)) == ["One", "You said: One", "Two", "You said: Two"]


@pytest.mark.parametrize("stored", [True, False])
async def test_its_model_for_websockets_runs_tools_on_one_connection(place: Place, stored: bool) -> None:
    client = AsyncOpenAI(base_url=f"{place.server.url}/v1", api_key="any")
    model = OpenAIResponsesWSModel("helper", client)
    settings = ModelSettings(store=stored)
    agent = Agent("Ida", instructions="Be short.", tools=[function_tool(weather)], model=model, model_settings=settings)
    config = RunConfig(tracing_disabled=True)
    done = await Runner.run(agent, WEATHER, run_config=config, auto_previous_response_id=True)
    assert done.final_output == ANSWER
    next = await Runner.run(agent, "Thanks", run_config=config, previous_response_id=done.last_response_id)
    assert next.final_output
    said = [one["role"] for one in place.models.last.json["messages"]]
    assert said == ["system", "user", "assistant", "tool", "assistant", "user"]
    await model.close()
