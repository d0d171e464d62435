"""Condensing conversations: a note of its own after a turn, which fails nothing and changes no other branch."""

import anyio
import pytest
from tests.conversation.support.agents import Signal, agent_of, kinds, messages_of, scripted
from tests.conversation.support.homes import Home

from forkpoint import Agent, AsyncConversation, Skill, TurnFailed
from forkpoint.agent.condense.condenser import Condenser, Window
from forkpoint.errors import NoSuchTurn
from forkpoint.events import Condensation, Usage
from forkpoint.testing import Fault, Heard, Reply

pytestmark = pytest.mark.anyio

WINDOW = Window(events=12, keep=0.4)


def counted(heard: Heard) -> Reply:
    """An answer, with a prompt as long as its text."""
    said = sum(len(str(message["content"])) for message in messages_of(heard))
    return Reply(f"answer to {heard.text[-20:]}", usage=Usage(calls=1, input=said // 4, output=5))


class Notes:
    """A model that writes summaries, and what it was asked."""

    def __init__(self, *replies: Reply) -> None:
        self.heard: list[Heard] = []
        self._replies = list(replies)
        self.llm = scripted(self._answer)

    def _answer(self, heard: Heard) -> Reply:
        self.heard.append(heard)
        return (
            self._replies.pop(0) if self._replies else Reply(f"notes {len(self.heard)}", usage=Usage(1, 100, 0, 0, 10))
        )


async def condensations(conversation: AsyncConversation) -> list[Condensation]:
    return [event.body for event in await conversation.events() if isinstance(event.body, Condensation)]


async def shown(conversation: AsyncConversation) -> str:
    return str((await conversation.request("next")).body)


async def test_a_long_conversation_is_condensed_after_a_turn_and_goes_on(home: Home) -> None:
    agent = agent_of(counted, condenser=WINDOW)
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        for n in range(10):
            turn = await conversation.run(f"question {n}.")
            assert turn.outcome == "committed"
            assert "condensation" not in kinds(turn.events)
        notes = await condensations(conversation)
        assert 1 < len(notes) < 5
        prompt = await shown(conversation)
        assert "question 0." not in prompt
        assert "question 9." in prompt
        assert "question 0." in str([event.body for event in await conversation.events()]), "history stays"


async def test_a_model_writes_the_summary_and_what_it_cost_is_counted_once(home: Home) -> None:
    notes = Notes()
    agent = agent_of(counted, condenser=Condenser(tokens=200, llm=notes.llm))
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        spent = Usage()
        while len(notes.heard) < 2:
            spent += (await conversation.run("x" * 200)).usage
        first, second = await condensations(conversation)
        assert (first.summary, second.summary) == ("notes 1", "notes 2")
        assert "notes 1" in notes.heard[1].text
        assert "notes 2" in await shown(conversation)
        stats = await conversation.stats()
        assert stats.spent.input == spent.input + 200
        assert stats.family.input == spent.input + 200


@pytest.mark.parametrize(
    "reply",
    [
        Reply(fault=Fault("overloaded")),
        Reply("half of", fault=Fault("cut", after=1)),
        Reply("cut off", finish="length", usage=Usage(1, 100)),
        Reply("x" * 20_000),
    ],
    ids=["overloaded", "cut", "length", "long"],
)
async def test_a_failed_condensation_fails_nothing_and_is_not_tried_with_every_turn(reply: Reply) -> None:
    notes = Notes(reply)
    agent = agent_of(counted, condenser=Condenser(events=12, llm=notes.llm))
    async with AsyncConversation(agent, store="memory:") as conversation:
        for _ in range(4):
            assert (await conversation.run("question")).outcome == "committed"
        assert len(notes.heard) == 1
        assert not await condensations(conversation)
        for _ in range(3):
            await conversation.run("question")
        assert len(notes.heard) == 2
        assert len(await condensations(conversation)) == 1


async def test_forks_made_before_have_everything_and_those_made_after_have_the_summary(home: Home) -> None:
    agent = agent_of(counted, condenser=WINDOW)
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turns = [await conversation.run("question 0.")]
        before = await conversation.fork()
        while not await condensations(conversation):
            turns.append(await conversation.run(f"question {len(turns)}."))
        after = await conversation.fork()
        at_the_turn = await conversation.fork(at=turns[-1].id)
        assert "question 0." not in await shown(after)
        assert "question 0." in await shown(before)
        assert "question 0." in await shown(at_the_turn)
        ids = [event.id for event in await conversation.events()]
        assert [event.id for event in await at_the_turn.events()] == ids[: len(ids) - 1]
        await at_the_turn.run("go on")
        assert len(await condensations(at_the_turn)) == 1, "it is due there too, by itself"
        assert len(await condensations(conversation)) == 1


async def test_another_turn_that_comes_first_throws_the_summary_away_and_its_cost_is_counted() -> None:
    asked, go = Signal(), Signal()

    class Slow(Notes):
        def _answer(self, heard: Heard) -> Reply:
            asked.set()
            reply = super()._answer(heard)
            return reply if len(self.heard) > 1 else Reply(reply.text, delay=0.3, usage=Usage(1, 1000))

    notes = Slow()
    agent = agent_of(counted, condenser=Condenser(events=8, llm=notes.llm))
    async with AsyncConversation(agent, store="memory:") as conversation:
        await conversation.run("one")
        await conversation.run("two")
        other = await AsyncConversation.open(conversation.id, agent=agent, store="memory:")
        async with anyio.create_task_group() as group:
            group.start_soon(conversation.run, "three")
            await asked.wait()
            await other.run("four")
        go.set()
        assert len(await condensations(conversation)) == 1
        assert (await conversation.stats()).spent.input > 1000
        await other.close()


async def test_cancelling_a_turn_while_its_path_is_condensed_comes_too_late() -> None:
    asked = Signal()

    def hang(heard: Heard) -> Reply:
        asked.set()
        return Reply("notes", delay=60)

    agent = agent_of(counted, condenser=Condenser(events=4, llm=scripted(hang)))
    async with AsyncConversation(agent, store="memory:") as conversation:
        await conversation.run("one")
        ended = []

        async def run() -> None:
            ended.append(await conversation.run("two"))

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await asked.wait()
            assert (await conversation.cancel()).outcome == "committed"
        assert [turn.outcome for turn in ended] == ["committed"]
        assert not await condensations(conversation)


async def test_a_prompt_that_was_too_long_is_condensed_before_its_retry() -> None:
    long = True

    def answer(heard: Heard) -> Reply:
        too_long = long and len(messages_of(heard)) > 8
        return Reply(fault=Fault("context_too_long")) if too_long else counted(heard)

    agent = Agent(scripted(answer), condenser=Window(tokens=1_000_000))
    async with AsyncConversation(agent, store="memory:") as conversation:
        for n in range(4):
            await conversation.run(f"question {n}.")
        with pytest.raises(TurnFailed, match="too long"):
            await conversation.run("one more")
        turn = await conversation.retry()
        assert turn.outcome == "committed"
        assert len(await condensations(conversation)) == 1
        assert turn.retry_of is not None


async def test_a_skill_that_a_condensation_forgot_is_said_again_in_the_retry_that_calls_for_it() -> None:
    replies = [Reply("one"), Reply("two"), Reply(fault=Fault("context_too_long")), Reply("three")]
    skill = Skill("deploying", "B" * 40_000, words=("deploy",))
    agent = Agent(scripted(lambda heard: replies.pop(0)), skills=[skill], condenser=Window(tokens=50_000))
    async with AsyncConversation(agent, store="memory:") as conversation:
        await conversation.run("deploy 1")
        await conversation.run("more")
        with pytest.raises(TurnFailed, match="too long"):
            await conversation.run("deploy 2")
        turn = await conversation.retry()
        assert [event.envelope.kind for event in turn.events][:2] == ["skill_activated", "user_message"]
        assert "BBBB" in await shown(conversation)


async def test_a_retry_from_elsewhere_says_no_skill_again_that_was_told_meanwhile() -> None:
    replies = [Reply("one"), Reply(fault=Fault("context_too_long")), Reply("two"), Reply("three")]
    skill = Skill("deploying", "Mind it.", words=("deploy",))
    agent = Agent(scripted(lambda heard: replies.pop(0)), skills=[skill])
    async with AsyncConversation(agent, store="memory:") as conversation:
        await conversation.run("hello")
        with pytest.raises(TurnFailed) as failed:
            await conversation.run("deploy 1")
        await conversation.run("deploy 2")
        assert failed.value.turn is not None
        await conversation.retry(failed.value.turn.id)
        assert kinds(await conversation.events()).count("skill_activated") == 1


async def test_what_failed_is_retried_also_after_it_was_condensed(home: Home) -> None:
    replies = [Reply("one"), Reply("two"), Reply(fault=Fault("context_too_long")), Reply("notes"), Reply("three")]
    agent = home.agent(agent_of(lambda heard: replies.pop(0)))
    async with AsyncConversation(agent, store=home.store) as conversation:
        await conversation.run("1")
        await conversation.run("2")
        with pytest.raises(TurnFailed, match="too long") as failed:
            await conversation.run("the long task")
        assert await conversation.condense() is not None
        turn = await conversation.retry()
        assert failed.value.turn is not None
        assert (turn.text, turn.retry_of) == ("three", failed.value.turn.id)
        await conversation.update_state({"a": 2})
        with pytest.raises(NoSuchTurn, match="all that was run from here is committed"):
            await conversation.retry()
