"""Budgets of conversations and families: what is refused, what goes on after a budget was raised, what it says."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.conversation.support.agents import Answers, Signal, call, scripted
from tests.conversation.support.homes import Home
from tests.conversation.support.team import lead, orders, spawn, wait

from forkpoint import Agent, AsyncConversation, Budget, Conversation, Limits, TurnFailed, tool
from forkpoint.agent.agent import AtLimit
from forkpoint.conversation import BudgetStanding, Turn
from forkpoint.errors import BadArgument, BudgetExceeded, ForkpointError, ModelUnavailable
from forkpoint.events import TurnStopped, Usage
from forkpoint.llm import LLM, Price, Retries
from forkpoint.llm.worst_case import LEAST, OVERHEAD
from forkpoint.store import open_store
from forkpoint.testing import Fault, Heard, Reply, Script

pytestmark = pytest.mark.anyio

both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])

PRICE = Price(input=1.0, output=10.0)


@tool
def work() -> str:
    """Works."""
    return "worked"


def paid(input: int = 60, output: int = 40, *, last: bool = True) -> Reply:
    """An answer that costs so many tokens."""
    asked = () if last else (call("work"),)
    return Reply("done" if last else "", calls=asked, usage=Usage(calls=1, input=input, output=output))


def spender(answers: Answers, *, repeat: bool = False, max_tokens: int = 100, **settings: Any) -> Agent:
    """An agent whose calls can cost 100 tokens of output and a bounded prompt."""
    return Agent(scripted(answers, repeat=repeat, max_tokens=max_tokens, price=PRICE), tools=[work], **settings)


def standing(found: tuple[BudgetStanding, ...], scope: str = "conversation") -> BudgetStanding:
    return next(one for one in found if one.scope == scope)


async def exceeded(conversation: AsyncConversation, act: str = "run", *args: str) -> tuple[Turn, BudgetExceeded]:
    """A turn that a budget ended, and the reason."""
    with pytest.raises(TurnFailed) as failed:
        await getattr(conversation, act)(*args)
    cause, turn = failed.value.cause, failed.value.turn
    assert isinstance(cause, BudgetExceeded)
    assert isinstance(turn, Turn)
    assert turn.error is not None
    assert turn.error.code == "budget_exceeded"
    return turn, cause


async def test_a_budget_is_set_shown_and_removed(home: Home) -> None:
    agent = home.agent(spender([paid()], repeat=True))
    async with AsyncConversation(agent, store=home.store, family_budget=Budget(turns=3)) as conversation:
        assert await conversation.budget() == (), "nothing is there yet"
        await conversation.run("one")
        (family,) = await conversation.budget()
        assert (family.scope, family.conversation, family.apart) == ("family", None, False)
        assert (family.spent.tokens, family.spent.turns, family.left.turns, family.left.tokens) == (100, 1, 2, None)
        own, also = await conversation.set_budget(Budget(dollars=0.5, tokens=10**6))
        assert (own.scope, own.conversation, also) == ("conversation", conversation.id, family)
        assert (own.spent.dollars, own.left.dollars) == (0.00046, 0.49954), "what was spent before counts"
        fork = await conversation.fork(budget=Budget(turns=1))
        assert [(one.conversation, one.apart) for one in await fork.budget()] == [(fork.id, True)]
        await fork.run("two")
        with pytest.raises(BudgetExceeded) as refused:
            await fork.run("three")
        assert refused.value.whose == f"conversation {fork.id}"
        assert "of 1 turns, 1 are spent" in str(refused.value)
        assert await conversation.set_budget(None) == (family,)
        assert await conversation.set_budget(None, scope="family") == ()
        with pytest.raises(BadArgument):
            await conversation.set_budget(Budget(turns=1), scope="tenant")  # type: ignore[arg-type]
        assert (await conversation.verify()).ok


async def test_a_call_that_a_budget_does_not_allow_is_not_made_and_the_turn_goes_on_once_it_is_raised(
    home: Home,
) -> None:
    heard: list[Heard] = []

    def answer(told: Heard) -> Reply:
        heard.append(told)
        return paid(1900, last=False) if len(heard) == 2 else paid()

    agent = home.agent(spender(answer))
    async with AsyncConversation(agent, store=home.store) as conversation:
        await conversation.run("one")
        await conversation.set_budget(Budget(tokens=3000))
        turn, why = await exceeded(conversation, "run", "go on")
        assert (why.whose, why.what, why.limit) == (f"conversation {conversation.id}", "tokens", "3,000")
        assert (why.spent, why.reserved) == ("2,040", "0"), "the first call of the turn was allowed"
        assert len(heard) == 2, "the second was not made"
        assert [one.status for one in turn.calls] == ["done"]
        assert len(await conversation.events()) == 4, "nothing has moved"
        again, _ = await exceeded(conversation, "resume")
        assert again.usage == turn.usage, "no model was asked"
        await conversation.set_budget(Budget(tokens=10**6))
        done = await conversation.resume()
        assert (done.id, done.outcome, done.text) == (turn.id, "committed", "done")
        assert standing(await conversation.budget()).spent.turns == 2, "a resumed turn is one turn"


async def test_at_a_budget_a_turn_stops_and_commits_if_its_limits_say_so() -> None:
    agent = spender([paid(last=False)], repeat=True, limits=Limits(at_limit="stop"))
    async with AsyncConversation(agent, store="memory:", budget=Budget(tokens=4000)) as conversation:
        turn = await conversation.run("go")
        stopped = turn.events[-1].body
        assert isinstance(stopped, TurnStopped)
        assert stopped.what == f"tokens, by the budget of conversation {conversation.id}"
        assert (turn.outcome, stopped.limit) == ("committed", "4,000")


async def test_a_budget_of_which_nothing_is_left_is_said_to_be_used_up() -> None:
    async with AsyncConversation(spender([paid(), paid()]), conversation_id="mine", store="memory:") as conversation:
        await conversation.set_budget(Budget(turns=1))
        await conversation.run("one")
        with pytest.raises(ForkpointError) as refused:
            await conversation.run("two")
        cause = getattr(refused.value, "cause", None) or refused.value
        assert isinstance(cause, BudgetExceeded)
        assert cause.used_up
        assert "The budget of conversation mine is used up: of 1 turns, 1 are spent" in str(cause)
        assert "more may be needed" not in str(refused.value)


async def test_an_answer_is_made_shorter_to_fit_if_that_leaves_a_sensible_one() -> None:
    limits: list[int] = []

    def answer(told: Heard) -> Reply:
        limits.append(told.body["max_tokens"])
        return paid()

    agent = spender(answer, max_tokens=5000)
    async with AsyncConversation(agent, store="memory:", budget=Budget(tokens=OVERHEAD + 3000)) as conversation:
        await conversation.run("one")
        assert LEAST <= limits[0] < 3000
        await conversation.set_budget(Budget(tokens=OVERHEAD + 900))
        _, why = await exceeded(conversation, "run", "two")
        assert why.what == "tokens"
        assert len(limits) == 1


async def test_a_request_without_a_limit_of_output_is_sent_with_one_and_without_a_budget_as_it_is() -> None:
    limits: list[int | None] = []

    def answer(told: Heard) -> Reply:
        limits.append(told.body.get("max_tokens"))
        return paid()

    agent = Agent(scripted(answer))
    async with AsyncConversation(agent, store="memory:") as conversation:
        await conversation.run("one")
        await conversation.set_budget(Budget(tokens=10**6), scope="family")
        await conversation.run("two")
        assert limits == [None, 16_384]


@pytest.mark.parametrize("at_limit", ["fail", "stop"])
async def test_a_model_without_a_known_price_is_refused_where_dollars_are_limited(at_limit: AtLimit) -> None:
    llm = LLM("openai/never-heard-of", base_url="http://127.0.0.1:9/v1")
    agent = Agent(llm, limits=Limits(at_limit=at_limit))
    async with AsyncConversation(agent, store="memory:", budget=Budget(dollars=5)) as conversation:
        with pytest.raises(TurnFailed) as failed:
            await conversation.run("one")
        assert isinstance(failed.value.cause, BudgetExceeded)
        assert failed.value.cause.code == "budget_unpriced"
        assert "LLM(price=" in str(failed.value.cause)


async def test_attempts_that_failed_are_covered_by_what_is_reserved() -> None:
    cut = Reply("half an ans", usage=Usage(calls=1, input=500, output=700), fault=Fault("cut", after=1))
    llm = scripted([cut, paid()], max_tokens=1000, price=PRICE, retries=Retries(attempts=3, wait=0.001))
    room = OVERHEAD + 1000 + 400
    async with AsyncConversation(Agent(llm), store="memory:", budget=Budget(tokens=room)) as conversation:
        turn, why = await exceeded(conversation, "run", "one")
        assert (turn.usage.input, turn.usage.output) == (500, 700), "the second attempt was not made"
        assert int(why.needed.replace(",", "")) > room
    async with AsyncConversation(Agent(llm), store="memory:", budget=Budget(tokens=room)) as conversation:
        assert (await conversation.run("one")).text == "done"


async def test_a_side_question_draws_from_the_budget_and_gives_back_what_it_does_not_use(home: Home) -> None:
    agent = home.agent(spender([paid(), paid(), Reply("x", fault=Fault("overloaded")), paid()]))
    async with AsyncConversation(agent, store=home.store, budget=Budget(tokens=10**5)) as conversation:
        await conversation.run("one")
        await conversation.ask("and?")
        with pytest.raises(ModelUnavailable):
            await conversation.ask("and?")
        own = standing(await conversation.budget())
        assert (own.reserved.tokens, own.spent.turns) == (0, 1)
        assert own.spent.tokens is not None
        assert own.spent.tokens >= 200
        await conversation.set_budget(Budget(tokens=own.spent.tokens + 10))
        with pytest.raises(BudgetExceeded):
            await conversation.ask("and?")
        assert standing(await conversation.budget()).reserved.tokens == 0
        assert (await conversation.verify()).ok


async def test_a_side_question_whose_conversation_is_deleted_meanwhile_keeps_nothing_reserved() -> None:
    asked = Signal()

    def answer(heard: Heard) -> Reply:
        if heard.number:
            asked.set()
        return Reply("never heard", piece=1, fault=Fault("hang", after=1)) if heard.number else paid()

    store = await open_store("memory:")
    async with AsyncConversation(spender(answer), store=store) as conversation:
        await conversation.run("one")
        await conversation.set_budget(Budget(tokens=10**5), scope="family")
        fork = await conversation.fork()
        async with anyio.create_task_group() as group:
            group.start_soon(fork.ask, "and?")
            await asked.wait()
            assert standing(await conversation.budget(), "family").reserved.tokens
            await store.delete(fork.id)
            group.cancel_scope.cancel()
        assert standing(await conversation.budget(), "family").reserved.tokens == 0
        assert (await conversation.verify()).ok
    await store.close()


async def test_a_condensation_draws_from_the_budget_and_without_room_the_path_stays_as_it_is() -> None:
    agent = spender([paid()], repeat=True)
    async with AsyncConversation(agent, store="memory:") as conversation:
        for word in ("one", "two", "three", "four"):
            await conversation.run(word)
        await conversation.set_budget(Budget(tokens=405))
        with pytest.raises(BudgetExceeded):
            await conversation.condense()
        assert standing(await conversation.budget()).reserved.tokens == 0
        await conversation.set_budget(Budget(tokens=10**6))
        assert await conversation.condense() is not None
        own = standing(await conversation.budget())
        assert (own.spent.tokens, own.reserved.tokens, own.spent.turns) == (500, 0, 4)
        assert (await conversation.verify()).ok


async def test_a_summary_that_is_brought_draws_from_the_budget_and_without_room_nothing_is_brought() -> None:
    agent = spender([paid()], repeat=True)
    async with AsyncConversation(agent, store="memory:") as conversation:
        await conversation.run("one")
        async with await conversation.fork() as branch:
            await branch.run("two")
            await conversation.set_budget(Budget(tokens=110))
            with pytest.raises(BudgetExceeded):
                await conversation.bring(branch, "summary")
            assert standing(await conversation.budget()).reserved.tokens == 0
            await conversation.set_budget(Budget(tokens=10**6))
            await conversation.bring(branch, "summary")
        own = standing(await conversation.budget())
        assert (own.spent.tokens, own.reserved.tokens, own.spent.turns) == (200, 0, 1)
        assert (await conversation.verify()).ok


async def test_a_sub_agent_draws_from_its_parents_budget_and_the_parent_hears_when_nothing_is_left() -> None:
    async with AsyncConversation(lead(), store="memory:", budget=Budget(turns=3)) as parent:
        turn = await parent.run(orders([spawn("look"), spawn("listen")], [wait()]))
        assert turn.text.count("Did ") == 2
        assert standing(await parent.budget()).spent.turns == 3
        await parent.set_budget(Budget(turns=4))
        turn = await parent.run(orders([spawn("taste")], [wait()]))
        assert (turn.outcome, standing(await parent.budget()).spent.turns) == ("committed", 4)
        assert "is used up: of 4 turns" in turn.text, "the parent's call has a result that says so"
        assert (await parent.verify()).ok


async def test_a_sub_agent_with_a_budget_of_its_own_draws_from_no_other(home: Home) -> None:
    agent = home.agent(Agent(scripted([paid()], repeat=True), sub_agents=True))
    async with AsyncConversation(agent, store=home.store, budget=Budget(turns=1)) as parent:
        await parent.run("one")
        shared = await parent.spawn_agent("look")
        with pytest.raises(BudgetExceeded):
            await shared.run()
        alone = await parent.spawn_agent("look", budget=Budget(turns=1))
        await alone.run()
        with pytest.raises(BudgetExceeded) as refused:
            await alone.run("more")
        assert refused.value.whose == f"conversation {alone.id}"
        await shared.close()
        await alone.close()


@both
async def test_time_ends_a_turn_when_none_is_left_and_it_goes_on_when_there_is_more() -> None:
    hangs = Reply("never heard", piece=1, fault=Fault("hang", after=1))
    agent = spender([hangs, paid()])
    async with AsyncConversation(agent, store="memory:", budget=Budget(seconds=0.2)) as conversation:
        with anyio.fail_after(20):
            turn, why = await exceeded(conversation, "run", "one")
        assert (why.what, why.limit) == ("seconds", "0.2")
        own = standing(await conversation.budget())
        assert own.reserved.seconds == 0
        assert own.spent.seconds is not None
        assert own.spent.seconds >= 0.2
        with pytest.raises(BudgetExceeded):
            await conversation.resume()
        await conversation.set_budget(Budget(seconds=100))
        done = await conversation.resume()
        assert (done.id, done.text) == (turn.id, "done")
        assert (await conversation.verify()).ok


async def test_messages_that_come_before_the_commit_give_a_turn_no_more_time() -> None:
    heard = anyio.Event()

    def answer(_: Heard) -> Reply:
        heard.set()
        return Reply("done", delay=0.4)

    agent = spender(answer)
    async with AsyncConversation(agent, store="memory:", budget=Budget(seconds=0.6)) as conversation:

        async def steer() -> None:
            await heard.wait()
            await conversation.steer("And now?")

        async with anyio.create_task_group() as group:
            group.start_soon(steer)
            turn, why = await exceeded(conversation, "run", "one")
        assert why.what == "seconds"
        assert len(turn.steered) == 1
        assert standing(await conversation.budget()).reserved.seconds == 0


@both
async def test_the_limit_in_seconds_of_a_turn_still_holds_under_a_budget_of_time() -> None:
    hangs = Reply("never heard", piece=1, fault=Fault("hang", after=1))
    agent = spender([hangs], limits=Limits(seconds=0.1))
    async with AsyncConversation(agent, store="memory:", budget=Budget(seconds=100)) as conversation:
        with pytest.raises(TurnFailed) as failed:
            await conversation.run("one")
        assert getattr(failed.value.cause, "code", None) == "limit_reached"


async def test_what_a_cancelled_turn_had_reserved_is_given_back() -> None:
    hangs = Reply("never heard", piece=1, fault=Fault("hang", after=1))
    agent = spender([hangs])
    async with AsyncConversation(
        agent, store="memory:", budget=Budget(tokens=5000, turns=1, seconds=60)
    ) as conversation:
        async with conversation.run_stream("one") as stream:
            async for _ in stream:
                if standing(await conversation.budget()).reserved.tokens:
                    break
        own = standing(await conversation.budget())
        assert (own.reserved.tokens, own.reserved.turns, own.reserved.seconds) == (0, 0, 0)
        assert (await conversation.verify()).ok


def test_a_conversation_without_await_has_the_same(tmp_path: Path) -> None:
    script = Script([paid()], repeat=True).register("budget_sync")
    with Conversation(
        Agent(LLM(script, max_tokens=10)), store=tmp_path / "x.db", budget=Budget(turns=1)
    ) as conversation:
        conversation.run("one")
        with pytest.raises(BudgetExceeded):
            conversation.run("two")
        conversation.set_budget(None)
        assert conversation.budget() == ()
        assert conversation.run("two").outcome == "committed"
