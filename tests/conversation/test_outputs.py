"""Answers of any type that has a schema, in both homes: as they are, in an object where they must be, or in a fence."""

import dataclasses
import enum
import json
from typing import Any, Literal, TypedDict

import msgspec
import pydantic
import pytest
from tests.conversation.support.agents import agent_of, script_of, served
from tests.conversation.support.homes import Home

from forkpoint import Agent, AsyncConversation
from forkpoint.testing import ModelServer

pytestmark = pytest.mark.anyio


@dataclasses.dataclass
class Person:
    name: str


class Verdict(TypedDict):
    fixed: bool


class Circle(msgspec.Struct, tag=True):
    radius: float


class Square(msgspec.Struct, tag=True):
    side: float


class Address(pydantic.BaseModel):
    street: str


class Colour(enum.Enum):
    RED = "red"


OBJECTS: list[tuple[Any, str, Any]] = [
    (Person, '{"name": "Ann"}', Person("Ann")),
    (Verdict, '{"fixed": true}', {"fixed": True}),
    (Address, '{"street": "High St"}', Address(street="High St")),
    (dict[str, int], '{"a": 1}', {"a": 1}),
    ({"type": "object", "required": ["a"], "title": "Form"}, '{"a": [1]}', {"a": [1]}),
]
WRAPPED: list[tuple[Any, str, Any]] = [
    (int, '{"value": 3}', 3),
    (str, '{"value": "yes"}', "yes"),
    (list[int], '{"value": [1, 2]}', [1, 2]),
    (list[Person], '{"value": [{"name": "Ann"}]}', [Person("Ann")]),
    (list[Address], '{"value": [{"street": "High St"}]}', [Address(street="High St")]),
    (Literal["yes", "no"], '{"value": "no"}', "no"),
    (Colour, '{"value": "red"}', Colour.RED),
    (Circle | Square, '{"value": {"type": "Square", "side": 2}}', Square(2)),
    (int | None, '{"value": null}', None),
]


@pytest.mark.parametrize(("output", "text", "value"), [*OBJECTS, *WRAPPED], ids=lambda one: str(one)[:40])
async def test_an_answer_is_read_as_its_type_and_again_after_it_was_opened(
    home: Home, output: Any, text: str, value: Any
) -> None:
    agent = agent_of([text], output=output)
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("go")
        assert (turn.output, turn.text, turn.usage.calls) == (value, text, 1)
        assert type(turn.output) is type(value)
    given = agent if home.store.startswith("http") else None  # a server has no types of ours
    async with await AsyncConversation.open(conversation.id, agent=given, store=home.store) as again:
        assert (await again.turn(turn.id)).output == value


async def test_a_type_that_is_no_object_stands_in_one_for_the_provider() -> None:
    with ModelServer(script_of(['{"value": [1]}'])) as server:
        async with AsyncConversation(Agent(served(server), output=list[int]), store="memory:") as conversation:
            assert (await conversation.run("go")).output == [1]
    form = server.last.json["response_format"]["json_schema"]
    assert form["schema"] == {
        "type": "object",
        "properties": {"value": {"type": "array", "items": {"type": "integer"}}},
        "required": ["value"],
        "additionalProperties": False,
    }
    assert form["strict"] is True


@pytest.mark.parametrize("output", [Person, {"type": "object", "required": ["name"]}], ids=["type", "schema"])
async def test_json_in_a_fence_is_read_without_another_call(home: Home, output: Any) -> None:
    fenced = '```json\n{"name": "Ann"}\n```'
    agent = agent_of([fenced], output=output)
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("go")
    assert (turn.usage.calls, turn.text) == (1, fenced), "history has what the model wrote"
    assert turn.output == (Person("Ann") if output is Person else {"name": "Ann"})


async def test_words_around_a_fence_cost_another_call_as_any_other_form_does(home: Home) -> None:
    agent = agent_of(['Here:\n```json\n{"value": 1}\n```', "1", '{"value": 1}'], output=int)
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("go")
    assert (turn.usage.calls, turn.output) == (3, 1)


async def test_a_schema_that_is_no_object_goes_to_the_provider_as_it_is() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    with ModelServer(script_of(["[1]"])) as server:
        async with AsyncConversation(Agent(served(server), output=schema), store="memory:") as conversation:
            assert (await conversation.run("go")).output == [1]
    assert server.last.json["response_format"]["json_schema"]["schema"] == schema
    assert json.loads(Agent("scripted/echo", output=schema).to_json())["output"]["name"] == "answer"
