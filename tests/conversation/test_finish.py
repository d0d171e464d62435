"""How an answer ended: at its end, at a limit of tokens, or by its provider's filter. A turn says so wherever it is."""

from dataclasses import dataclass

import pytest
from tests.conversation.support.agents import agent_of
from tests.conversation.support.homes import Home

from forkpoint import AsyncConversation, TurnFailed, tool
from forkpoint.errors import BadOutput
from forkpoint.events import Usage
from forkpoint.testing import Fault, Reply, ScriptedCall

pytestmark = pytest.mark.anyio

CALL = ScriptedCall("look", "{}")


@dataclass
class Verdict:
    verdict: str


@tool
def look() -> str:
    """Looks."""
    return "seen"


@pytest.mark.parametrize(
    ("reply", "finish", "cut"),
    [
        (Reply("Whole."), "stop", None),
        (Reply("Cut of", finish="length", usage=Usage(1, output=256)), "length", "cut at the limit of 256 tokens"),
        (Reply("Cut of", finish="length", usage=Usage(1, input=9)), "length", "cut at a limit"),
        (Reply("Not all", finish="filter"), "filter", "cut off by its provider's filter"),
    ],
)
async def test_a_turn_says_how_its_answer_ended(home: Home, reply: Reply, finish: str, cut: str | None) -> None:
    agent = agent_of([Reply("Let me look.", calls=(CALL,)), reply], tools=[look])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("Hi")
        assert (turn.text, turn.finish, turn.cut) == (reply.text, finish, cut)
        (kept,) = (await conversation.turns()).items
        assert (kept.finish, kept.cut) == (finish, cut)


async def test_a_turn_without_an_answer_has_no_finish(home: Home) -> None:
    agent = agent_of([Reply(calls=(CALL,)), Reply(fault=Fault("refused"))], tools=[look], approval="always")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        waits = await conversation.run("Hi")
        assert (waits.outcome, waits.finish, waits.cut) == ("awaiting_approval", "tool_calls", None)
        with pytest.raises(TurnFailed) as failed:
            await conversation.approve()
    assert (failed.value.turn.outcome, failed.value.turn.finish) == ("failed", None)


async def test_a_side_answer_says_how_it_ended(home: Home) -> None:
    agent = agent_of(["Hello.", Reply("Cut of", finish="length")])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        await conversation.run("Hi")
        assert (await conversation.ask("What?")).finish == "length"


@pytest.mark.parametrize("finish", ["length", "filter"])
async def test_a_form_that_was_cut_says_so(home: Home, finish: str) -> None:
    agent = agent_of([Reply('{"verdict": "goo', finish=finish)], output=Verdict)  # type: ignore[arg-type]
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        with pytest.raises(TurnFailed, match="it was cut") as failed:
            await conversation.run("Hi")
    assert isinstance(failed.value.cause, BadOutput)
