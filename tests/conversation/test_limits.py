"""Limits: where a turn ends as failed, and how it goes on with higher ones; or where it is stopped, and committed.

An agent with tools is one of a server's own there, and nobody may raise its limits from afar: the tests that do so have
a store of this process alone.
"""

import anyio
import pytest
from tests.conversation.support.agents import Answers, Signal, agent_of, asks, call, kinds, messages_of, said, scripted
from tests.conversation.support.homes import Home
from tests.conversation.support.team import lead, orders, spawn, told, wait

from forkpoint import Agent, AsyncConversation, Limits, SubAgents, TurnFailed, tool
from forkpoint.conversation import Turn
from forkpoint.errors import BadAgent, LimitReached
from forkpoint.events import ApprovalAsked, TurnStopped, Usage
from forkpoint.llm import Price
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.testing import Fault, Heard, Reply, ScriptedCall

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


# The same call, again and again.


@tool
def look(at: str) -> str:
    """Looks at something."""
    return f"looked at {at}"


async def test_the_same_call_again_and_again_fails_the_turn_and_is_not_run_once_more() -> None:
    ran: list[str] = []

    @tool
    def ask(about: str) -> str:
        """Asks."""
        ran.append(about)
        return "nothing new"

    same = asks(call("ask", about="x"))
    other = asks(ScriptedCall("ask", '{ "about":"x"}'))  # the same, written in another way
    agent = agent_of([same, other, same, same, "gave up"], tools=[ask], limits=Limits(repeats=2))
    async with AsyncConversation(agent, store="memory:") as conversation:
        turn, cause = await failing(conversation, "run", "go")
        assert (cause.what, cause.limit) == ("identical calls in a row", "2")
        assert [made.status for made in turn.calls] == ["done", "done", "not_run"]
        again, _ = await failing(conversation, "resume")
        assert [made.status for made in again.calls] == ["done", "done", "not_run", "not_run"]
        done = await conversation.resume()
        assert (done.text, ran) == ("gave up", ["x", "x"]), "the model has heard of it, and did something else"


async def test_with_a_higher_limit_the_same_call_runs_again() -> None:
    agent = agent_of([asks(call("work"))] * 3 + [Reply("done")], tools=[work], limits=Limits(repeats=1))
    async with AsyncConversation(agent, store="memory:") as conversation:
        await failing(conversation, "run", "go")
        done = await conversation.resume(limits=Limits(repeats=9))
        assert (done.text, [made.status for made in done.calls]) == ("done", ["done", "not_run", "done"])


async def test_calls_that_differ_or_have_another_between_them_are_no_repetition(home: Home) -> None:
    rounds = [asks(call("look", at="a")), asks(call("look", at="b")), asks(call("look", at="a")), asks(call("work"))]
    agent = agent_of([*rounds * 2, "done"], tools=[look, work], limits=Limits(repeats=1))
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        assert (await conversation.run("go")).text == "done"
        assert (await AsyncConversation.open(conversation.id, bind=False, store=home.store)).id == conversation.id


async def test_the_same_call_several_times_in_one_answer_counts_too_and_none_of_that_answer_runs() -> None:
    calls = asks(call("look", "a", at="x"), call("work", "b"), call("work", "c"))
    agent = agent_of([calls, "done"], tools=[look, work], limits=Limits(repeats=1))
    async with AsyncConversation(agent, store="memory:") as conversation:
        turn, _ = await failing(conversation, "run", "go")
        assert [(made.id, made.status) for made in turn.calls] == [("a", "not_run"), ("b", "not_run"), ("c", "not_run")]
        assert (await conversation.resume()).text == "done"


# Stopped, and committed.


STOP = Limits(steps=2, at_limit="stop")


async def test_a_turn_may_be_stopped_at_its_limit_and_the_next_message_goes_on(home: Home) -> None:
    heard: list[list[str]] = []

    def model(asked: Heard) -> Reply:
        heard.append([f"{one['role']}: {one.get('content')}" for one in messages_of(asked)])
        return Reply("done") if asked.text == "go on" else asks(call("work"))

    agent = agent_of(model, tools=[work], limits=STOP)
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("go")
        assert (turn.outcome, turn.text, turn.stopped) == ("committed", "", "2 steps")
        assert [made.status for made in turn.calls] == ["done", "done"]
        assert turn.events[-1].body == TurnStopped("steps", "2")
        assert [event.kind for event in await conversation.events()][-1] == "turn_stopped"
        fork = await conversation.fork()
        for branch in (conversation, fork):
            assert ((await branch.run("go on")).text, (await branch.info()).status) == ("done", "idle")
        assert heard[-1][-2:] == [
            "user: <stopped>\nThe turn ended here: it reached its limit of 2 steps.\n</stopped>",
            "user: go on",
        ]
        assert heard[-1][: len(heard[1])] == heard[1], "what was sent before is how every prompt begins"
        assert (await AsyncConversation.verify_store(store=home.store)).ok


@pytest.mark.parametrize("limits", [{"tokens": 10}, {"dollars": 0.00001}, {"repeats": 1}], ids=str)
async def test_any_limit_can_stop_a_turn(limits: dict[str, float]) -> None:
    llm = scripted([paid(10, 1)] * 2 + [paid(1, last=True)], price=Price(input=1, output=1))
    agent = Agent(llm, tools=[work], limits=Limits(**limits, at_limit="stop"))  # type: ignore[arg-type]
    async with AsyncConversation(agent, store="memory:") as conversation:
        turn = await conversation.run("go")
        assert (turn.outcome, turn.text, turn.error) == ("committed", "", None)
        assert turn.stopped is not None
        (stopped,) = [event.body for event in turn.events if isinstance(event.body, TurnStopped)]
        assert stopped.what == next(iter(limits)).replace("repeats", "identical calls in a row")
        assert {made.status for made in turn.calls} == ({"done", "not_run"} if "repeats" in limits else {"done"})


@both
async def test_what_the_clock_stops_is_committed_with_a_result_for_each_call() -> None:
    quick = Signal()

    @tool
    async def forever() -> None:
        """Never ends."""
        await anyio.sleep_forever()

    @tool
    def soon() -> str:
        """Ends."""
        quick.set()
        return "ended"

    @tool(risky=True)
    def careful() -> str:
        """Asks first."""
        return "never"

    calls = [call("forever", "f"), call("soon", "s"), call("careful", "c"), call("browse", "b")]
    agent = agent_of(
        [asks(*calls), "done"],
        tools=[forever, soon, careful],
        client_tools=[ToolSchema("browse")],
        approval="risky",
        limits=Limits(seconds=2, at_limit="stop"),  # enough for what is quick, on a busy machine
    )
    async with AsyncConversation(agent, store="memory:") as conversation:
        turn = await conversation.run("go")
        assert (turn.outcome, turn.stopped) == ("committed", "2 seconds")
        assert {made.id: made.status for made in turn.calls} == {
            "f": "unknown",
            "s": "done",
            "c": "not_run",
            "b": "not_run",
        }
        assert any(isinstance(event.body, ApprovalAsked) for event in turn.events)
        assert quick.is_set()
        assert (await conversation.run("go on")).text == "done"


@both
async def test_an_answer_that_the_clock_cuts_off_is_not_committed(home: Home) -> None:
    cut = Reply("half of it", fault=Fault("hang", after=1))
    agent = agent_of([cut, "done"], limits=Limits(seconds=0.05, at_limit="stop"))
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("go")
        assert (turn.outcome, turn.text, turn.stopped) == ("committed", "", "0.05 seconds")
        assert said(turn.events) == [("user", "go")]
        assert turn.usage.calls == 1, "what was asked was paid for"
        assert (await conversation.run("go on")).text == "done"


async def test_a_stopped_turn_has_no_output_and_is_not_run_again_by_its_key(home: Home) -> None:
    agent = agent_of(["no form", "none", '{"a": 1}'], output=dict[str, int], limits=STOP)
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("go", key="once")
        assert (turn.output, turn.text, turn.stopped) == (None, "", "2 steps")
        assert (await conversation.run("go", key="once")).id == turn.id
        assert (await conversation.run("go on")).output == {"a": 1}


async def test_a_sub_agent_that_was_stopped_says_so_to_its_parent() -> None:
    lazy = agent_of([asks(call("work"))] * 9, tools=[work], limits=STOP)
    async with AsyncConversation(lead(SubAgents(agents={"lazy": lazy})), store="memory:") as parent:
        (heard,) = told((await parent.run(orders([spawn("the work", agent="lazy")], [wait()]))).text)
        assert (heard["status"], heard["error"]) == ("idle", "It reached its limit of 2 steps, and has no answer.")
        assert "answer" not in heard


async def test_whoever_works_for_a_turn_that_the_clock_stops_is_stopped_and_recorded() -> None:
    @tool
    async def forever() -> None:
        """Never ends."""
        await anyio.sleep_forever()

    agent = lead(tools=[forever], limits=Limits(seconds=2, at_limit="stop"))
    async with AsyncConversation(agent, store="memory:") as parent:
        turn = await parent.run(orders([spawn(orders([call("forever")]))], [wait()]))
        assert (turn.outcome, turn.stopped) == ("committed", "2 seconds")
        assert [(made.tool, made.status) for made in turn.calls] == [("spawn_agent", "done"), ("wait_agent", "unknown")]
        assert kinds(turn.events)[-1] == "sub_agent_finished"
        (member,) = await parent.list_agents()
        assert member.status in ("cancelled", "idle")


async def test_what_is_no_way_to_end_is_refused() -> None:
    with pytest.raises(BadAgent, match="fail or stop"):
        Limits(at_limit="pause")  # type: ignore[arg-type]
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(BadAgent, match="repeats"):
            Limits(repeats=wrong)  # type: ignore[arg-type]
