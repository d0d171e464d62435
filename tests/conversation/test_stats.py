"""What was spent: every token once, a branch's own apart from what it inherited, and no price is not nothing."""

import pytest
from tests.conversation.support.agents import Answers, agent_of, scripted
from tests.conversation.support.homes import Home

from forkpoint import Agent, AsyncConversation, TurnFailed
from forkpoint.conversation import Stats
from forkpoint.engine.engine import Engine
from forkpoint.events import Usage
from forkpoint.ids import new_id
from forkpoint.llm import LLM, Price, Retries
from forkpoint.remote.addresses import is_server
from forkpoint.remote.backend import RemoteBackend
from forkpoint.testing import Fault, ModelServer, Reply, Script

pytestmark = pytest.mark.anyio


def paid(tokens: int, *, cached: int = 0, fault: Fault | None = None) -> Reply:
    return Reply("x", usage=Usage(calls=1, input=tokens, cached=cached, output=1), fault=fault)


async def test_a_new_conversation_has_spent_nothing(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of([])), store=home.store) as conversation:
        stats = await conversation.stats()
        assert stats == Stats()
        assert (stats.cost, stats.family_cost, stats.cached_share, stats.events) == (0.0, 0.0, None, 0)


async def test_every_try_is_counted_once_whatever_became_of_it(home: Home) -> None:
    failed = Fault("overloaded")
    answers: Answers = [
        paid(1),
        paid(10, fault=failed),
        paid(100, fault=failed),
        paid(1000),
        paid(10_000, fault=failed),
    ]
    async with AsyncConversation(home.agent(agent_of(answers)), store=home.store) as conversation:
        await conversation.run("one")
        for act in (conversation.run("two"), conversation.retry()):
            with pytest.raises(TurnFailed):
                await act
        await conversation.resume()
        with pytest.raises(TurnFailed):
            await conversation.run("three")
        stats = await conversation.stats()
        assert stats.spent == stats.family == Usage(calls=5, input=11_111, output=5)
        assert stats.inherited == Usage()
        turns = (await conversation.turns()).items
        assert sum((turn.usage for turn in turns), Usage()) == stats.spent
        assert [turn.usage.input for turn in turns] == [1, 10, 1100, 10_000]


async def test_attempts_that_the_model_layer_repeated_by_itself_are_counted(home: Home) -> None:
    llm = scripted([paid(1, fault=Fault("overloaded")), paid(2)], retries=Retries(attempts=2, wait=0))
    async with AsyncConversation(home.agent(Agent(llm)), store=home.store) as conversation:
        turn = await conversation.run("hi")
        assert turn.usage == Usage(calls=2, input=3, output=2)
        assert turn.steps[0].attempts == 2
        assert (await conversation.stats()).spent == turn.usage


async def test_a_fork_starts_at_zero_and_shows_apart_what_it_inherited(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of([paid(1), paid(10), paid(100)])), store=home.store) as source:
        await source.run("one")
        async with await source.fork() as fork, await source.fork(reset_metrics=False) as carries:
            await fork.run("two")
            await source.run("three")
            stats = await fork.stats()
            assert (stats.spent.input, stats.inherited.input, stats.family.input) == (10, 1, 111)
            assert stats.total == stats.spent
            assert (await source.stats()).spent.input == 101
            kept = await carries.stats()
            assert (kept.spent.input, kept.inherited.input, kept.total.input) == (0, 1, 1)
            assert kept.carries_metrics
            assert kept.family == stats.family == (await source.stats()).family


async def test_what_a_deleted_branch_spent_stays_counted_in_the_family(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of([paid(1), paid(10)])), store=home.store) as source:
        await source.run("one")
        fork = await source.fork()
        await fork.run("two")
        await fork.delete()
        await fork.close()
        stats = await source.stats()
        assert (stats.spent.input, stats.family.input) == (1, 11)


async def test_the_cached_share_is_of_all_prompt_tokens(home: Home) -> None:
    async with AsyncConversation(
        home.agent(agent_of([paid(100), paid(300, cached=200)])), store=home.store
    ) as conversation:
        await conversation.run("one")
        await conversation.run("two")
        assert (await conversation.stats()).cached_share == pytest.approx(0.5)


async def test_a_price_gives_a_cost(home: Home) -> None:
    llm = scripted([paid(1_000_000, cached=500_000)], price=Price(input=2, cached=1, output=4))
    async with AsyncConversation(home.agent(Agent(llm)), store=home.store) as conversation:
        turn = await conversation.run("one")
        assert turn.cost == pytest.approx(1.5 + 4e-6)
        stats = await conversation.stats()
        assert stats.cost == stats.family_cost == turn.cost


async def test_where_no_price_is_known_there_is_no_cost_and_it_is_not_zero(home: Home) -> None:
    with ModelServer(Script([Reply("x"), Reply("y")])) as server:
        unpriced = LLM("openai/unheard-of", base_url=server.url)
        async with AsyncConversation(home.agent(Agent(unpriced)), store=home.store) as conversation:
            turn = await conversation.run("one")
            assert turn.usage.unpriced == 1
            assert turn.cost is None
            await conversation.change_agent(
                home.agent(Agent(scripted([paid(1_000_000)], price=Price(input=2, output=4))))
            )
            assert (await conversation.run("two")).cost is not None
            stats = await conversation.stats()
            assert stats.cost is None, "one unknown price makes the sum unknown"
            assert stats.family_cost is None


async def test_events_are_those_of_the_path(home: Home) -> None:
    async with AsyncConversation(
        home.agent(agent_of([paid(1), paid(1, fault=Fault("overloaded"))])), store=home.store
    ) as conversation:
        await conversation.run("one")
        with pytest.raises(TurnFailed):
            await conversation.run("two")
        assert (await conversation.stats()).events == len(await conversation.events()) == 4


async def test_all_that_was_ever_spent_is_known_where_it_was_spent(home: Home) -> None:
    backend = RemoteBackend(home.store) if is_server(home.store) else Engine(await home.opened())
    assert await backend.usage() == (Usage(), Usage())
    async with AsyncConversation(home.agent(agent_of([paid(1), paid(10)])), store=home.store) as conversation:
        await conversation.run("one")
        async with await conversation.fork() as fork:
            await fork.run("two")
        await conversation.delete()
    async with await home.opened() as store:
        await store.charge(None, new_id(), Usage(calls=1, input=100))
    assert await backend.usage() == (Usage(calls=3, input=111, output=2), Usage(calls=1, input=100))
    await backend.close()
