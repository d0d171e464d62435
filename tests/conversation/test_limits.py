"""Limits: where a turn ends as failed, and how it goes on with higher ones.

An agent with tools is one of a server's own there, and nobody may raise its limits from afar: the tests that do so have
a store of this process alone.
"""

import anyio
import pytest
from tests.conversation.support.agents import Answers, agent_of, asks, call, scripted
from tests.conversation.support.homes import Home

from forkpoint import Agent, AsyncConversation, Limits, TurnFailed, tool
from forkpoint.conversation import Turn
from forkpoint.errors import BadAgent, LimitReached
from forkpoint.events import Usage
from forkpoint.llm import Price
from forkpoint.testing import Fault, Reply, ScriptedCall

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


@tool
def work() -> str:
    """Works."""
    return "worked"


def paid(input: int = 0, output: int = 0, *, last: bool = False) -> Reply:
    """An answer that costs so many tokens."""
    asked = () if last else (call("work"),)
    return Reply("done" if last else "", calls=asked, usage=Usage(calls=1, input=input, output=output))


async def failing(conversation: AsyncConversation, act: str = "run", *args: str) -> tuple[Turn, LimitReached]:
    with pytest.raises(TurnFailed) as failed:
        await getattr(conversation, act)(*args)
    cause, turn = failed.value.cause, failed.value.turn
    assert isinstance(cause, LimitReached)
    assert isinstance(turn, Turn)
    assert turn.error is not None
    assert (turn.outcome, turn.error.code) == ("failed", "limit_reached")
    return turn, cause


async def test_a_turn_that_has_asked_so_often_is_failed_and_goes_on_with_a_higher_limit() -> None:
    agent = agent_of([asks(call("work"))] * 3 + [Reply("done")], tools=[work], limits=Limits(steps=3))
    async with AsyncConversation(agent, store="memory:") as conversation:
        turn, cause = await failing(conversation, "run", "go")
        assert (cause.what, cause.limit) == ("steps", "3")
        assert len(turn.calls) == 3, "what was asked for has run, and is kept"
        assert await conversation.events() == []
        again, _ = await failing(conversation, "resume")
        assert again.usage.calls == 3, "a turn that is at its limit asks nobody"
        done = await conversation.resume(limits=Limits(steps=4))
        assert (done.id, done.outcome, done.text, len(done.calls)) == (turn.id, "committed", "done", 3)


async def test_a_turn_may_use_exactly_its_limit_of_steps(home: Home) -> None:
    agent = agent_of([asks(call("work")), asks(call("work")), "done"], tools=[work], limits=Limits(steps=3))
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        assert (await conversation.run("go")).text == "done"
        assert agent.limits.steps == 3


async def test_tokens_in_and_out_are_limited_and_those_of_earlier_tries_of_the_turn_count() -> None:
    answers: Answers = [
        paid(40, 20),
        Reply("x", usage=Usage(calls=1, input=30), fault=Fault("overloaded")),
        paid(9, 2),
        paid(1, 1, last=True),
    ]
    agent = agent_of(answers, tools=[work], limits=Limits(tokens=100))
    async with AsyncConversation(agent, store="memory:") as conversation:
        with pytest.raises(TurnFailed):
            await conversation.run("go")
        turn, cause = await failing(conversation, "resume")
        assert (cause.what, turn.usage.input + turn.usage.output) == ("tokens", 101)
        done = await conversation.resume(limits=Limits(tokens=1000))
        assert done.text == "done"
        assert done.usage == Usage(calls=4, input=80, output=23)


async def test_a_retry_begins_with_the_whole_limit_again(home: Home) -> None:
    answers: Answers = [paid(99), Reply("x", fault=Fault("overloaded")), paid(99), paid(1, last=True)]
    async with AsyncConversation(
        home.agent(agent_of(answers, tools=[work], limits=Limits(tokens=100))), store=home.store
    ) as conversation:
        with pytest.raises(TurnFailed):
            await conversation.run("go")
        assert (await conversation.retry()).text == "done"


async def test_dollars_are_limited() -> None:
    llm = scripted([paid(1_000_000), paid(1_000_000), paid(1, last=True)], price=Price(input=1, output=1))
    async with AsyncConversation(Agent(llm, tools=[work], limits=Limits(dollars=1.5)), store="memory:") as conversation:
        turn, cause = await failing(conversation, "run", "go")
        assert (cause.what, cause.limit) == ("dollars", "1.5")
        assert turn.cost == pytest.approx(2.0)
        done = await conversation.resume(limits=Limits(dollars=3))
        assert done.text == "done"


@both
async def test_seconds_are_limited_while_a_model_is_asked(home: Home) -> None:
    agent = agent_of([Reply("x", fault=Fault("hang")), "done"], limits=Limits(seconds=0.02))
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn, cause = await failing(conversation, "run", "go")
        assert (cause.what, cause.limit) == ("seconds", "0.02")
        assert turn.usage.calls == 1, "what was asked was paid for"
        done = await conversation.resume(limits=Limits())
        assert done.text == "done"
        assert done.calls == ()


@both
async def test_seconds_are_limited_while_a_tool_runs() -> None:
    @tool
    async def forever() -> None:
        """Never ends."""
        await anyio.sleep_forever()

    agent = agent_of([asks(ScriptedCall("forever", "{}", "f")), "done"], tools=[forever], limits=Limits(seconds=0.02))
    async with AsyncConversation(agent, store="memory:") as conversation:
        turn, cause = await failing(conversation, "run", "go")
        assert (cause.what, cause.limit) == ("seconds", "0.02")
        assert turn.usage.calls == 1, "what was asked was paid for"
        done = await conversation.resume(limits=Limits())
        assert done.text == "done"
        assert [(made.id, made.status) for made in done.calls] == [("f", "unknown")]


async def test_limits_given_to_resume_are_for_that_time_only() -> None:
    agent = agent_of([asks(call("work"))] * 2 + [Reply("done")], tools=[work], limits=Limits(steps=1))
    async with AsyncConversation(agent, store="memory:") as conversation:
        await failing(conversation, "run", "go")
        with pytest.raises(TurnFailed):
            await conversation.resume(limits=Limits(steps=2))
        await failing(conversation, "resume")
        assert conversation.agent is not None
        assert conversation.agent.limits == Limits(steps=1)
        assert (await conversation.resume(limits=Limits(steps=None))).text == "done"


async def test_a_limit_that_is_none_is_refused_when_the_agent_is_made() -> None:
    for wrong in ({"steps": 0}, {"tokens": -1}, {"dollars": float("nan")}, {"seconds": float("inf")}, {"steps": 1.5}):
        with pytest.raises(BadAgent):
            Limits(**wrong)
