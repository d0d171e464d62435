"""A typed answer: checked before the commit, corrected a few times, and the same wherever the turn is read."""

import dataclasses
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from tests.conversation.support.agents import Answers, agent_of, asks, call, kinds, messages_of, said
from tests.conversation.support.homes import Home

from forkpoint import Agent, AsyncConversation, TurnFailed, tool
from forkpoint.agent.loop import CORRECTIONS
from forkpoint.conversation import Turn
from forkpoint.errors import BadOutput
from forkpoint.testing import Fault, Heard, Reply

pytestmark = pytest.mark.anyio


class Weather(msgspec.Struct):
    city: str
    degrees: int


@dataclasses.dataclass
class Weathered:
    city: str
    degrees: int


class WeatherDict(TypedDict):
    city: str
    degrees: int


class WeatherModel(pydantic.BaseModel):
    city: str
    degrees: int


GOOD = '{"city": "Bern", "degrees": 7}'
BAD = '{"city": "Bern", "degrees": "cold"}'


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Weather, Weather("Bern", 7)),
        (Weathered, Weathered("Bern", 7)),
        (WeatherDict, {"city": "Bern", "degrees": 7}),
        (WeatherModel, WeatherModel(city="Bern", degrees=7)),
        (dict[str, Any], {"city": "Bern", "degrees": 7}),
    ],
    ids=["msgspec", "dataclass", "TypedDict", "pydantic", "dict"],
)
async def test_the_answer_has_the_type_that_the_agent_names(home: Home, kind: Any, value: Any) -> None:
    schemas: list[Any] = []

    def answer(heard: Heard) -> Reply:
        schemas.append(heard.body.get("response_format"))
        return Reply(GOOD)

    async with AsyncConversation(home.agent(agent_of(answer, output=kind)), store=home.store) as conversation:
        turn = await conversation.run("How is Bern?")
        assert turn.output == value
        assert type(turn.output) is type(value)
        assert turn.text == GOOD
        assert schemas[0] is not None, "the provider is told the form"


async def test_without_a_type_there_is_no_output(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of([GOOD])), store=home.store) as conversation:
        assert (await conversation.run("How is Bern?")).output is None


async def test_an_answer_in_the_wrong_form_is_corrected_and_the_correction_is_recorded(home: Home) -> None:
    shown: list[Any] = []

    def answer(heard: Heard) -> Reply:
        shown.append(messages_of(heard))
        return Reply(["Cold!", BAD, GOOD][heard.number])

    async with AsyncConversation(home.agent(agent_of(answer, output=Weather)), store=home.store) as conversation:
        turn = await conversation.run("How is Bern?")
        assert turn.output == Weather("Bern", 7)
        assert turn.text == GOOD
        assert turn.usage.calls == 3
        told = [text for role, text in said(turn.events) if role == "system"]
        assert len(told) == 2
        assert "JSON" in told[0]
        assert "degrees" in told[1], "it says what is wrong, so that the model can mend it"
        assert [text for role, text in said(turn.events) if role == "assistant"] == ["Cold!", BAD, GOOD]
        assert told[0] in str(shown[1])
        assert shown[2][: len(shown[1])] == shown[1], "and the prompt only grows"


async def test_the_corrections_end_and_then_the_turn_has_failed(home: Home) -> None:
    tries = CORRECTIONS + 1
    async with AsyncConversation(
        home.agent(agent_of([BAD] * tries + [GOOD], output=Weather)), store=home.store
    ) as conversation:
        with pytest.raises(TurnFailed) as failed:
            await conversation.run("How is Bern?")
        cause = failed.value.cause
        assert isinstance(cause, BadOutput)
        assert cause.tries == tries
        assert "degrees" in cause.why
        assert await conversation.events() == []
        turn = failed.value.turn
        assert isinstance(turn, Turn)
        assert turn.usage.calls == tries
        assert turn.output is None
        assert (await conversation.retry()).output == Weather("Bern", 7)


async def test_corrections_of_an_earlier_turn_do_not_count(home: Home) -> None:
    answers: Answers = [BAD, BAD, GOOD, BAD, BAD, GOOD]
    async with AsyncConversation(home.agent(agent_of(answers, output=Weather)), store=home.store) as conversation:
        for _ in range(2):
            assert (await conversation.run("How is Bern?")).output == Weather("Bern", 7)


async def test_tools_run_before_the_answer_and_are_not_checked_against_its_form(home: Home) -> None:
    @tool
    def measure() -> str:
        """Measures."""
        return "7"

    answers: Answers = [asks(call("measure"), text="Let me see."), BAD, asks(call("measure")), GOOD]
    agent = agent_of(answers, output=Weather, tools=[measure])
    typed = Agent(agent.llm, output=Weather)  # all that matters here of an agent that only a server has
    async with await AsyncConversation.open(
        "weather", create=home.agent(agent), agent=home.at_hand(agent) or typed, store=home.store
    ) as conversation:
        turn = await conversation.run("How is Bern?")
        assert turn.output == Weather("Bern", 7)
        assert kinds(turn.events).count("system_message") == 1


async def test_a_correction_survives_a_failure_and_counts_after_resuming(home: Home) -> None:
    overloaded = Reply("x", fault=Fault("overloaded"))
    answers: Answers = [BAD, overloaded, BAD, overloaded, BAD, GOOD]
    async with AsyncConversation(home.agent(agent_of(answers, output=Weather)), store=home.store) as conversation:
        for act in (conversation.run("How is Bern?"), conversation.resume()):
            with pytest.raises(TurnFailed):
                await act
        with pytest.raises(TurnFailed) as failed:
            await conversation.resume()
        assert isinstance(failed.value.cause, BadOutput)


async def test_the_typed_answer_is_there_again_when_the_turn_is_read_or_joined(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of([GOOD], output=Weather)), store=home.store) as conversation:
        turn = await conversation.run("How is Bern?", key="k")
        again = await conversation.run("How is Bern?", key="k")
        assert again == turn
        assert again.output == Weather("Bern", 7)
        assert (await conversation.turn(turn.id)).output == Weather("Bern", 7)
        assert [one.output for one in (await conversation.turns()).items] == [Weather("Bern", 7)]


async def test_a_stream_ends_with_the_typed_answer(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of([GOOD], output=Weather)), store=home.store) as conversation:
        async with conversation.run_stream("How is Bern?") as stream:
            updates = [update async for update in stream]
        assert isinstance(updates[-1], Turn)
        assert updates[-1].output == Weather("Bern", 7)
        assert stream.turn == updates[-1]


async def test_callbacks_are_told_the_typed_answer(home: Home) -> None:
    told: list[Any] = []
    agent = agent_of([GOOD], output=Weather)
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[told.append]) as conversation:
        turn = await conversation.run("How is Bern?")
        assert told[-1] == turn


async def test_a_side_question_is_not_bound_to_the_form(home: Home) -> None:
    async with AsyncConversation(
        home.agent(agent_of([GOOD, "Cold."], output=Weather)), store=home.store
    ) as conversation:
        await conversation.run("How is Bern?")
        assert (await conversation.ask("In one word?")).text == "Cold."
