"""Another model for a conversation: with the next turn, or with a retry. A model that fails is not baked in."""

from itertools import count

import pytest
from tests.conversation.support.homes import Home

from forkpoint import LLM, Agent, AsyncConversation, TurnFailed, tool
from forkpoint.events import SettingsChanged
from forkpoint.llm.model import Retries
from forkpoint.testing import Fault, Reply, Script

pytestmark = pytest.mark.anyio

_NUMBERS = count()


def model(*replies: Reply) -> LLM:
    name = Script(list(replies)).register(f"other-model-{next(_NUMBERS)}")
    return LLM(name, retries=Retries(attempts=1))


WRONG = Reply(fault=Fault("authentication"))


@tool
def look(at: str) -> str:
    """Looks at something."""
    return f"{at} is fine"


async def test_a_failed_first_turn_is_retried_with_another_model_that_is_kept_then(home: Home) -> None:
    wrong, good = model(WRONG, WRONG), model(Reply("Paris."), Reply("Madrid."))
    agent = Agent(wrong, instructions="Be brief.")
    async with AsyncConversation(agent, conversation_id="talk", store=home.store) as talk:
        with pytest.raises(TurnFailed) as failed:
            await talk.run("Where?")
        assert failed.value.cause is not None
        turn = await talk.retry(model=good)
        assert (turn.text, turn.retry_of) == ("Paris.", failed.value.id)
        assert (await talk.info()).model == good.model
    async with await AsyncConversation.open("talk", store=home.store) as again:
        assert (await again.run("And there?")).text == "Madrid."
        assert (await again.info()).model == good.model
        sent = await again.request("And where?")
        assert "Be brief." in sent.body, "all else of the agent stays"


async def test_a_retry_that_fails_too_changes_nothing(home: Home) -> None:
    first, other = model(Reply("Paris."), WRONG, Reply("Madrid.")), model(WRONG)
    async with AsyncConversation(Agent(first), conversation_id="talk", store=home.store) as talk:
        await talk.run("Where?")
        with pytest.raises(TurnFailed):
            await talk.run("And there?")
        before = await talk.info()
        with pytest.raises(TurnFailed):
            await talk.retry(model=other)
        after = await talk.info()
        assert (after.model, after.revision, after.digest) == (before.model, before.revision, before.digest)
    async with await AsyncConversation.open("talk", store=home.store) as again:
        assert (await again.retry()).text == "Madrid.", "it still has its own model"


async def test_the_next_turn_may_have_another_model(home: Home) -> None:
    first, other = model(Reply("Paris.")), model(Reply("Madrid."))
    async with AsyncConversation(Agent(first), conversation_id="talk", store=home.store) as talk:
        await talk.run("Where?")
        await talk.use_model(other)
        assert (await talk.info()).model == first.model, "nothing is written yet"
        assert (await talk.run("And there?")).text == "Madrid."
        assert (await talk.info()).model == other.model
        changed = [event.body for event in await talk.events() if isinstance(event.body, SettingsChanged)]
        assert [other.model in body.settings for body in changed] == [False, True], "it is recorded"


async def test_a_conversation_that_is_not_made_yet_begins_with_the_other_model(home: Home) -> None:
    other = model(Reply("Madrid."))
    async with AsyncConversation(Agent(model(), instructions="Be brief."), store=home.store) as talk:
        await talk.use_model(other)
        assert (await talk.run("Where?")).text == "Madrid."
        assert not [event for event in await talk.events() if isinstance(event.body, SettingsChanged)]


async def test_tools_and_all_else_of_the_agent_stay() -> None:
    agent = Agent(model(Reply("One.")), instructions="Be brief.", tools=[look])
    async with AsyncConversation(agent, store="memory:") as talk:
        await talk.run("Where?")
        await talk.use_model(model(Reply("Two.")))
        await talk.run("And there?")
        assert talk.agent is not None
        assert ([one.name for one in talk.agent.tools], talk.agent.instructions) == (["look"], "Be brief.")


async def test_another_key_for_the_same_model_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM("openai/x", base_url="http://127.0.0.1:1/v1", api_key_env="ONE_KEY")
    async with AsyncConversation(Agent(llm), store="memory:") as talk:
        await talk.use_model(llm.replace(api_key_env="OTHER_KEY"))
        assert talk.agent is not None
        assert talk.agent.llm.api_key_env == "OTHER_KEY"
