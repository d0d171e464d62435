"""The `openai` package as a client of responses: each test runs with its client and with its asynchronous client."""

import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel
from tests.clients.support.witness import AsyncWitnessed, Witness, Witnessed
from tests.server.responses.responding import Place, function, responding, result
from tests.server.support.turning import left_nothing

from forkpoint.server.wires.responses.items.ids import conversation_named
from forkpoint.testing import Fault, Reply, ScriptedCall

CALLS = Reply(calls=(ScriptedCall("mine", '{"at":"sea"}', "c1"),), piece=3)
TEXTS = [f"Message {number}" for number in range(5)]

pytestmark = pytest.mark.anyio


class City(BaseModel):
    city: str


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with responding(llm={"api": "responses"}) as made:
        yield made
        left_nothing(made.server)


class Client:
    """One of the two clients, whose calls are all awaited here, and a witness of what it is answered."""

    def __init__(self, made: Any, witness: Witness) -> None:
        self.witness = witness
        self._made = made

    async def call(self, name: str, *places: Any, **fields: Any) -> Any:
        """What a method of the client gives: ``responses.create`` is one."""
        found = self._method(name)(*places, **fields)
        return await found if inspect.isawaitable(found) else found

    async def create(self, input: Any, **fields: Any) -> Any:
        return await self.call("responses.create", model="helper", input=input, **fields)

    async def all(self, name: str, *places: Any, **fields: Any) -> list[Any]:
        """Everything in a list, page by page, or in a stream."""
        found = self._method(name)(*places, **fields)
        if inspect.iscoroutine(found):
            found = await found
        return [one async for one in found] if hasattr(found, "__aiter__") else list(found)

    async def stream(self, input: Any, **fields: Any) -> tuple[list[Any], Any]:
        """The events that the package's helper gives, and the response that it puts together; None without one."""
        manager = self._made.responses.stream(model="helper", input=input, **fields)
        if isinstance(self._made, AsyncOpenAI):
            async with manager as stream:
                events = [event async for event in stream]
                return events, await stream.get_final_response() if is_whole(events) else None
        with manager as stream:
            events = list(stream)
            return events, stream.get_final_response() if is_whole(events) else None

    def _method(self, name: str) -> Any:
        found = self._made
        for part in name.split("."):
            found = getattr(found, part)
        return found


@pytest.fixture(params=["sync", "async"])
async def client(place: Place, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    witness = Witness()
    settings: dict[str, Any] = {"base_url": f"{place.server.url}/v1", "api_key": "any", "max_retries": 0}
    if request.param == "sync":
        with OpenAI(**settings, http_client=httpx2.Client(transport=Witnessed(witness))) as made:
            yield Client(made, witness)
    else:
        async with AsyncOpenAI(
            **settings, http_client=httpx2.AsyncClient(transport=AsyncWitnessed(witness))
        ) as made_async:
            yield Client(made_async, witness)
    witness.check()


def is_whole(events: list[Any]) -> bool:
    return bool(events[-1].type == "response.completed")


def deltas(events: list[Any], kind: str) -> str:
    return "".join(event.delta for event in events if event.type == f"response.{kind}.delta")


def texts(items: list[Any]) -> list[str]:
    return [item.content[0].text for item in items]


# Responses.


async def test_a_response_is_created_read_gone_on_from_and_deleted(place: Place, client: Client) -> None:
    place.script(Reply("First"), Reply("Second"))
    first = await client.create("One", instructions="Be brief.", metadata={"a": "b"})
    second = await client.create("Two", previous_response_id=first.id)
    assert (first.output_text, second.output_text) == ("First", "Second")
    assert (first.instructions, first.metadata) == ("Be brief.", {"a": "b"})
    assert await client.call("responses.retrieve", first.id, include=["reasoning.encrypted_content"]) == first
    assert place.said(second.id) == ["One", "First", "Two", "Second"]
    await client.call("responses.delete", second.id)
    with pytest.raises(NotFoundError):
        await client.call("responses.retrieve", second.id)
    with pytest.raises(BadRequestError) as refused:
        await client.create("Three", previous_response_id=second.id)
    assert refused.value.code == "previous_response_not_found"


async def test_the_helper_puts_text_together(place: Place, client: Client) -> None:
    place.script(Reply("Hello there", piece=3))
    events, final = await client.stream("Hi")
    assert deltas(events, "output_text") == final.output_text == "Hello there"
    assert (await client.call("responses.retrieve", final.id)).output[0].id == events[2].item.id == final.output[0].id


async def test_the_helper_puts_a_call_together_and_its_result_goes_on(place: Place, client: Client) -> None:
    place.script(CALLS, Reply("It is there"))
    events, final = await client.stream("Where?", tools=[function("mine")])
    (call,) = final.output
    assert (call.type, call.name, call.call_id, call.arguments) == ("function_call", "mine", "c1", '{"at":"sea"}')
    assert deltas(events, "function_call_arguments") == call.arguments
    answered = await client.create([result("c1", "at sea")], previous_response_id=final.id)
    assert answered.output_text == "It is there"


async def test_the_helper_puts_thoughts_together(place: Place, client: Client) -> None:
    place.script(Reply("Fine", reasoning=("First I look", "Then I count"), piece=4))
    events, final = await client.stream("Hi", include=["reasoning.encrypted_content"])
    *thoughts, said = final.output
    assert [thought.summary[0].text for thought in thoughts] == ["First I look", "Then I count"]
    assert all(thought.encrypted_content for thought in thoughts)
    assert deltas(events, "reasoning_summary_text") == "First I lookThen I count"
    assert (said.type, final.output_text) == ("message", "Fine")


async def test_the_helper_reads_a_refusal(place: Place, client: Client) -> None:
    place.script(Reply("No", fault=Fault("refused")))
    events, _ = await client.stream("Do harm")
    failed = events[-1].response
    assert (failed.status, failed.error.code) == ("failed", "invalid_prompt")
    (part,) = failed.output[0].content
    assert (part.type, part.refusal) == ("refusal", deltas(events, "refusal"))
    (done,) = (event for event in events if event.type == "response.refusal.done")
    assert done.refusal == part.refusal != ""


async def test_the_helper_reads_an_answer_in_a_form(place: Place, client: Client) -> None:
    place.script(Reply('{"city":"Bergen"}'))
    _, final = await client.stream("Where?", text_format=City)
    assert final.output_parsed == City(city="Bergen")


async def test_input_items_are_paged_by_two(place: Place, client: Client) -> None:
    place.script(Reply("Read"))
    made = await client.create([{"role": "user", "content": text} for text in TEXTS])
    items = await client.all("responses.input_items.list", made.id, limit=2, order="asc")
    assert texts(items) == TEXTS
    assert len([one for one in client.witness.exchanges if one.path.endswith("/input_items")]) == 3
    newest = await client.all("responses.input_items.list", made.id, limit=2)
    assert texts(newest) == TEXTS[::-1]


# In the background.


async def test_a_background_response_is_polled_and_its_events_are_read_after_a_number(
    place: Place, client: Client
) -> None:
    place.script(Reply("Done at last", piece=4))
    heard = len(place.models.requests)
    with place.models.holding():
        made = await client.create("One", background=True)
        await place.models.heard(heard + 1)
        assert (await client.call("responses.retrieve", made.id)).status == "in_progress"
    events = await client.all("responses.retrieve", made.id, stream=True)
    numbers = [event.sequence_number for event in events]
    assert numbers == list(range(len(events)))
    rest = await client.all("responses.retrieve", made.id, stream=True, starting_after=3)
    assert rest == events[4:]
    final = await client.call("responses.retrieve", made.id)
    assert (final.status, final.output_text) == ("completed", "Done at last")


async def test_a_cancel_ends_a_response_unless_it_comes_too_late(place: Place, client: Client) -> None:
    place.script(Reply("Never read"), Reply("Done"))
    heard = len(place.models.requests)
    with place.models.holding():
        early = await client.create("One", background=True)
        await place.models.heard(heard + 1)
        assert (await client.call("responses.cancel", early.id)).status == "cancelled"
    assert (await client.call("responses.retrieve", early.id)).status == "cancelled"
    late = await client.create("Two")
    cancelled = await client.call("responses.cancel", late.id)
    assert (cancelled.status, cancelled.output_text) == ("completed", "Done")


# Conversations.


async def test_a_conversation_is_made_read_changed_and_deleted(place: Place, client: Client) -> None:
    place.script(Reply("Noted"))
    made = await client.call("conversations.create", metadata={"team": "builds"})
    assert await client.call("conversations.retrieve", made.id) == made
    changed = await client.call("conversations.update", made.id, metadata={"team": "tests"})
    assert (changed.id, changed.metadata) == (made.id, {"team": "tests"})
    said = await client.create("Now", conversation=made.id)
    assert said.conversation.id == made.id
    assert place.api.said(conversation_named(made.id)) == ["Now", "Noted"]
    assert (await client.call("conversations.delete", made.id)).deleted
    with pytest.raises(NotFoundError):
        await client.call("conversations.retrieve", made.id)


async def test_items_of_a_conversation_are_made_paged_read_and_deleted(place: Place, client: Client) -> None:
    place.script(Reply("Noted"))
    first: Any = {"type": "message", "role": "user", "content": "First"}
    made = await client.call("conversations.create", items=[first])
    more = [{"type": "message", "role": "user", "content": text} for text in TEXTS]
    added = await client.call("conversations.items.create", made.id, items=more)
    assert texts(added.data) == TEXTS
    items = await client.all("conversations.items.list", made.id, limit=2, order="asc")
    assert texts(items) == ["First", *TEXTS]
    assert texts(await client.all("conversations.items.list", made.id, limit=2)) == [*TEXTS[::-1], "First"]
    found = await client.call("conversations.items.retrieve", items[2].id, conversation_id=made.id)
    assert found == items[2]
    after = await client.call("conversations.items.delete", items[-1].id, conversation_id=made.id)
    assert after.id == made.id
    await client.create("Now", conversation=made.id)
    left = await client.all("conversations.items.list", made.id, order="asc")
    assert texts(left) == ["First", *TEXTS[:-1], "Now", "Noted"]
