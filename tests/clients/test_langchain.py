"""The `langchain-openai` package as a client of responses: nothing of it is changed but its base URL."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from tests.clients.support.witness import AsyncWitnessed, Witness, Witnessed
from tests.server.responses.responding import Place, responding
from tests.server.support.turning import left_nothing, obedient

from forkpoint.testing import Fault, Reply, Script

WEATHER = '[["weather", {"city": "Oslo"}]]'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def shared() -> Iterator[Place]:
    with responding() as place:
        yield place
        left_nothing(place.server)


@pytest.fixture
def place(shared: Place) -> Place:
    shared.models.script = Script(obedient)
    return shared


@pytest.fixture
def witness() -> Iterator[Witness]:
    made = Witness()
    yield made
    made.check()


@pytest.fixture
def http(witness: Witness) -> Iterator[httpx2.Client]:
    with httpx2.Client(transport=Witnessed(witness)) as made:
        yield made


@pytest.fixture
async def async_http(witness: Witness) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(transport=AsyncWitnessed(witness)) as made:
        yield made


@pytest.fixture
def chat(place: Place, http: httpx2.Client) -> Any:
    return model(place, http_client=http)


@pytest.fixture
def chained(place: Place, http: httpx2.Client) -> Any:
    return model(place, http_client=http, use_previous_response_id=True)


def model(place: Place, **options: Any) -> Any:
    return ChatOpenAI(
        model="helper", base_url=f"{place.server.url}/v1", api_key="any", use_responses_api=True, **options
    )


def _weather(city: str) -> str:
    """Says how the weather is."""
    return f"snow in {city}"


weather: Any = tool("weather")(_weather)


def sent(witness: Witness) -> list[Any]:
    return [one.sent for one in witness.responses]


def prompt(place: Place) -> list[tuple[str, str | None]]:
    """What the model was sent last."""
    return [(message["role"], message.get("content")) for message in place.models.last.json["messages"]]


def streamed(chat: Any, said: Any) -> Any:
    """The answer, put together from its pieces."""
    pieces = list(chat.stream(said))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    return whole


def test_an_answer_is_text_with_an_id_that_can_be_chained_from(chat: Any, witness: Witness) -> None:
    answer = chat.invoke([SystemMessage("Be short."), HumanMessage("One")])
    assert answer.text == "You said: One"
    assert answer.response_metadata["id"] == witness.responses[0].answer["id"]
    assert answer.response_metadata["id"].startswith("resp_")
    assert answer.response_metadata["status"] == "completed"
    assert answer.usage_metadata["total_tokens"] > 0


@pytest.mark.parametrize("ask", [lambda chat, said: chat.invoke(said), streamed], ids=["whole", "streamed"])
def test_a_chat_sends_only_what_is_new_after_the_response_that_it_goes_on_from(
    place: Place, chained: Any, witness: Witness, ask: Any
) -> None:
    talk: list[Any] = [HumanMessage("One")]
    first = ask(chained, talk)
    second = ask(chained, [*talk, first, HumanMessage("Two")])
    other = ask(chained, [*talk, first, HumanMessage("Other")])
    assert (first.text, second.text, other.text) == ("You said: One", "You said: Two", "You said: Other")
    id = first.response_metadata["id"]
    assert [one.get("previous_response_id") for one in sent(witness)] == [None, id, id]
    assert [len(one["input"]) for one in sent(witness)] == [1, 1, 1]
    assert prompt(place) == [("user", "One"), ("assistant", "You said: One"), ("user", "Other")]
    assert place.said(second.response_metadata["id"]) == ["One", "You said: One", "Two", "You said: Two"]
    assert place.said(other.response_metadata["id"]) == ["One", "You said: One", "Other", "You said: Other"]


@pytest.mark.parametrize("ask", [lambda chat, said: chat.invoke(said), streamed], ids=["whole", "streamed"])
@pytest.mark.parametrize("is_chained", [False, True], ids=["stateless", "chained"])
def test_a_bound_tool_is_called_and_its_result_answered(
    place: Place, http: httpx2.Client, witness: Witness, ask: Any, is_chained: bool
) -> None:
    chat = model(place, http_client=http, use_previous_response_id=is_chained).bind_tools([weather])
    talk: list[Any] = [HumanMessage(WEATHER)]
    called = ask(chat, talk)
    (call,) = called.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Oslo"})
    done = ask(chat, [*talk, called, weather.invoke(call)])
    assert done.text == "Done: snow in Oslo"
    assert len(sent(witness)[1]["input"]) == (1 if is_chained else 3)
    assert prompt(place) == [("user", WEATHER), ("assistant", None), ("tool", "snow in Oslo")]


def test_a_whole_history_that_the_client_keeps_is_taken_as_it_is_echoed(
    place: Place, chat: Any, witness: Witness
) -> None:
    talk: list[Any] = [SystemMessage("Be short."), HumanMessage("One")]
    talk += [chat.invoke(talk), HumanMessage("Two")]
    talk += [streamed(chat, talk), HumanMessage("Three")]
    assert chat.invoke(talk).text == "You said: Three"
    echoed = [item for item in sent(witness)[-1]["input"] if item["role"] == "assistant"]
    assert [item["id"] for item in echoed] == [one.answer["output"][0]["id"] for one in witness.responses[:2]]
    words = ["One", "You said: One", "Two", "You said: Two", "Three"]
    assert [said for role, said in prompt(place) if role in {"user", "assistant"}] == words


def test_a_tool_message_made_by_hand_answers_the_call(place: Place, chained: Any, witness: Witness) -> None:
    chat = chained.bind_tools([weather])
    called = chat.invoke([HumanMessage(WEATHER)])
    result = ToolMessage("rain", tool_call_id=called.tool_calls[0]["id"])
    assert chat.invoke([HumanMessage(WEATHER), called, result]).text == "Done: rain"


@pytest.mark.anyio
async def test_the_async_client_does_the_same(place: Place, async_http: httpx2.AsyncClient, witness: Witness) -> None:
    chat = model(place, http_async_client=async_http, use_previous_response_id=True)
    first: AIMessage = await chat.ainvoke([HumanMessage("One")])
    said = [HumanMessage("One"), first, HumanMessage("Two")]
    assert "".join([piece.text async for piece in chat.astream(said)]) == "You said: Two"
    assert sent(witness)[1]["previous_response_id"] == first.response_metadata["id"]


def test_a_stream_whose_model_dies_raises_and_is_never_a_cut_answer(place: Place, chat: Any, witness: Witness) -> None:
    place.script(Reply("One two three", piece=4, fault=Fault("cut", after=2)))
    with pytest.raises(ValueError, match="server_error"):
        streamed(chat, "Hello")
    assert witness.responses[0].events[-1]["type"] == "response.failed"
    place.models.script = Script(obedient)
    assert chat.invoke("Again").text == "You said: Again"
