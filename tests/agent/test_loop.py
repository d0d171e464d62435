"""The loop begins wherever a journal stands; a response is on disk before its tools start, a result when it ends."""

from typing import Any

import anyio
import pytest
from tests.agent.journal import Memory, asked, run, says, work
from tests.conversation.support.agents import Answers, agent_of, asks, call

from forkpoint.agent import Limits, ToolContext, tool
from forkpoint.agent.loop import MAY_HAVE_RUN, Done, Waiting, stand
from forkpoint.errors import BadOutput, LimitReached, ModelUnavailable, TurnLost
from forkpoint.events import (
    AnyBody,
    ApprovalAsked,
    ApprovalDenied,
    ApprovalGiven,
    AssistantMessage,
    ModelCalled,
    NewEvent,
    Reasoning,
    StagedEvent,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    seal,
)
from forkpoint.testing import Fault, Heard, Reply

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


# From the start to the answer.


@both
async def test_a_model_is_asked_until_it_asks_for_no_more_tools() -> None:
    journal = Memory(says("go"))
    agent = agent_of([asks(call("work", "a")), asks(call("work", "b")), "done"], tools=[work])
    assert await run(agent, journal) == Done()
    assert [type(body).__name__ for body in journal.bodies] == [
        "UserMessage",
        "ModelCalled",
        "ToolCall",
        "ToolResult",
        "ModelCalled",
        "ToolCall",
        "ToolResult",
        "ModelCalled",
        "AssistantMessage",
    ]
    assert [step.envelope.response for step in journal.so_far] == [None, None, 1, None, None, 2, None, None, 3]
    assert journal.spent.calls == 3
    assert journal.on_disk == 7, "the last answer goes to disk with the commit"


async def test_a_turn_without_tools_writes_nothing_before_its_commit() -> None:
    journal = Memory(says("go"))
    await run(agent_of(["done"]), journal)
    assert journal.on_disk == 1


async def test_a_model_that_fails_raises_its_error_and_what_it_cost_is_in_the_journal() -> None:
    journal = Memory(says("go"))
    with pytest.raises(ModelUnavailable):
        await run(agent_of([Reply("x", fault=Fault("overloaded"))]), journal)
    assert journal.spent.calls == 1
    assert isinstance(journal.bodies[-1], ModelCalled)
    assert journal.bodies[-1].error == "model_overloaded"


# The promise.


@both
async def test_a_response_is_on_disk_before_the_first_of_its_tools_starts() -> None:
    seen: list[list[str]] = []

    @tool
    async def looks() -> None:
        """Looks at what is on disk."""
        seen.append([type(body).__name__ for body in journal.flushed])

    journal = Memory(says("go"))
    answers: Answers = [Reply("So.", reasoning="Hm.", calls=(call("looks", "a"), call("looks", "b"))), "done"]
    await run(agent_of(answers, tools=[looks]), journal)
    whole = ["UserMessage", "ModelCalled", "Reasoning", "AssistantMessage", "ToolCall", "ToolCall"]
    assert [one[: len(whole)] for one in seen] == [whole] * 2


async def test_a_result_is_on_disk_when_its_tool_ends_and_not_when_the_last_one_does() -> None:
    seen: list[Any] = []
    ended = anyio.Event()

    @tool
    async def quick() -> str:
        """Ends at once."""
        return "quick"

    @tool
    async def slow() -> str:
        """Ends after the quick one, and looks."""
        await ended.wait()
        seen.extend(body.call_id for body in journal.flushed if isinstance(body, ToolResult))
        return "slow"

    def told(update: Any) -> None:
        if type(update).__name__ == "CallEnded":
            ended.set()

    journal = Memory(says("go"))
    agent = agent_of([asks(call("slow", "s"), call("quick", "q")), "done"], tools=[quick, slow])
    await run(agent, journal, tell=told)
    assert seen == ["q"]


async def test_a_journal_that_refuses_the_response_starts_no_tool() -> None:
    ran: list[str] = []

    @tool
    async def never() -> None:
        """Must not run."""
        ran.append("never")

    journal = Memory(says("go"), refuse=lambda steps: any(isinstance(step.body, ToolCall) for step in steps))
    with pytest.raises(TurnLost):
        await run(agent_of([asks(call("never"))], tools=[never]), journal)
    assert ran == []


async def test_a_journal_that_refuses_a_result_stops_the_other_calls_and_is_raised_as_itself() -> None:
    cancelled: list[str] = []

    @tool
    async def quick() -> None:
        """Ends at once."""

    @tool
    async def slow() -> None:
        """Is stopped."""
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.append("slow")
            raise

    journal = Memory(says("go"), refuse=lambda steps: any(isinstance(step.body, ToolResult) for step in steps))
    agent = agent_of([asks(call("slow"), call("quick"))], tools=[quick, slow])
    with pytest.raises(TurnLost):
        await run(agent, journal)
    assert cancelled == ["slow"]


# From wherever a journal stands.


async def test_a_call_with_a_result_is_not_run_again() -> None:
    ran: list[str] = []

    @tool(name="work")
    async def counted() -> None:
        """Counts."""
        ran.append("work")

    journal = Memory(says("go"), *asked("a"), NewEvent(ToolResult("a", "work", (Text("worked"),))))
    shown: list[Any] = []

    def answer(heard: Heard) -> Reply:
        shown.append(heard.body["messages"])
        return Reply("done")

    assert await run(agent_of(answer, tools=[counted]), journal) == Done()
    assert ran == []
    assert [message["role"] for message in shown[0]] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("how", ["unknown", "fresh", "rerun", "repeatable", "no such tool"])
async def test_a_call_without_a_result_is_run_only_if_it_cannot_have_been_or_may_be_again(how: str) -> None:
    ran: list[str] = []

    @tool(name="work", repeatable=how == "repeatable")
    async def counted() -> str:
        """Counts."""
        ran.append("work")
        return "worked"

    journal = Memory(says("go"), *asked("a", tool="nothing" if how == "no such tool" else "work"))
    settings: dict[str, Any] = {how: ["a"]} if how in {"fresh", "rerun"} else {}
    assert await run(agent_of(["done"], tools=[counted]), journal, **settings) == Done()
    (result,) = (body for body in journal.bodies if isinstance(body, ToolResult))
    match how:
        case "unknown":
            assert (result.status, result.parts, ran) == ("unknown", (Text(MAY_HAVE_RUN),), [])
        case "no such tool":
            assert (result.status, ran) == ("failed", [])
        case _:
            assert (result.status, ran) == ("done", ["work"])


async def test_what_is_unknown_is_on_disk_before_anything_else_is_started() -> None:
    seen: list[Any] = []

    @tool(repeatable=True)
    async def again() -> None:
        """Looks."""
        seen.extend(body.status for body in journal.flushed if isinstance(body, ToolResult))

    journal = Memory(says("go"), *asked("a"), NewEvent(ToolCall("b", "again", "{}"), response=1))
    await run(agent_of(["done"], tools=[work, again]), journal)
    assert seen == ["unknown"]


async def test_an_answer_that_is_in_the_journal_is_not_asked_for_again() -> None:
    said = NewEvent(AssistantMessage((Text("done"),)), response=1)
    assert await run(agent_of([]), Memory(says("go"), *asked(), said)) == Done()


async def test_a_call_keeps_its_key_wherever_the_loop_begins() -> None:
    keys: list[str] = []

    @tool(name="work", repeatable=True)
    async def keyed(ctx: ToolContext) -> None:
        """Keeps its key."""
        keys.append(ctx.key)

    agent = agent_of([asks(call("work", "c1")), asks(call("work", "c1")), "done"], tools=[keyed])
    journal = Memory(says("go"))
    await run(agent, journal, turn="T")
    assert len(set(keys)) == 2, "an id that a model used twice is two calls"
    again = Memory(*(NewEvent(step.body, step.envelope.response) for step in journal.so_far[:6]))  # type: ignore[arg-type]
    assert isinstance(again.bodies[-1], ToolCall)
    await run(agent_of(["done"], tools=[keyed]), again, turn="T")
    assert keys[2] == keys[1]
    await run(agent_of(["done"], tools=[keyed]), Memory(says("go"), *asked("c1")), turn="another")
    assert keys[3] not in keys[:3]


# Waiting.


async def test_calls_that_wait_are_given_and_the_others_have_run() -> None:
    @tool(risky=True)
    def delete() -> None:
        """Deletes."""

    journal = Memory(says("go"))
    agent = agent_of([asks(call("work", "w"), call("delete", "d"))], tools=[work, delete], approval="risky")
    waiting = await run(agent, journal)
    assert isinstance(waiting, Waiting)
    assert [one.call_id for one in waiting.calls] == ["d"]
    assert [body.call_id for body in journal.bodies if isinstance(body, ToolResult)] == ["w"]
    assert isinstance(await run(agent, journal), Waiting), "and they go on waiting"


async def test_an_approval_is_on_disk_before_what_it_allows_is_started() -> None:
    seen: list[Any] = []

    @tool(name="work", risky=True)
    async def risky() -> None:
        """Looks."""
        seen.extend(type(body).__name__ for body in journal.flushed)

    asking = NewEvent(ApprovalAsked("a", "work", "it is risky"))
    journal = Memory(says("go"), *asked("a"), asking)
    journal.add([NewEvent(ApprovalGiven("a", "work"))])
    await run(agent_of(["done"], tools=[risky], approval="risky"), journal, fresh=["a"])
    assert seen[-1] == "ApprovalGiven"


# Limits and forms.


@pytest.mark.parametrize(
    ("limits", "what"), [(Limits(steps=2), "steps"), (Limits(tokens=20), "tokens"), (Limits(steps=1), "steps")]
)
async def test_a_limit_is_looked_at_before_each_call_of_the_model(limits: Limits, what: str) -> None:
    journal = Memory(says("go"))
    paid = Reply(calls=(call("work"),), usage=Usage(calls=1, input=9, output=1))
    with pytest.raises(LimitReached) as reached:
        await run(agent_of([paid] * 9, tools=[work]), journal, limits=limits)
    assert reached.value.what == what
    assert journal.spent.calls == (1 if limits.steps == 1 else 2)
    assert not stand(journal.so_far).open, "what was asked for has its results"


async def test_a_limit_of_dollars_does_not_hold_where_no_price_is_known() -> None:
    journal = Memory(says("go"))
    journal.spent = Usage(calls=1, unpriced=1)
    with pytest.raises(LimitReached, match="price"):
        await run(agent_of(["never"]), journal, limits=Limits(dollars=100))


async def test_an_answer_in_the_wrong_form_is_corrected_so_often_and_no_more() -> None:
    journal = Memory(says("go"))
    with pytest.raises(BadOutput):
        await run(agent_of(["one", "two", "three", '{"a": 1}'], output=dict[str, int]), journal)
    assert journal.spent.calls == 3
    assert sum(isinstance(body, SystemMessage) for body in journal.bodies) == 2


# How a turn stands.


def standing(*events: tuple[AnyBody, int | None]) -> Any:
    return stand(StagedEvent(seal(NewEvent(body, response), 0), body) for body, response in events)


def said(text: str) -> AssistantMessage:
    return AssistantMessage((Text(text),))


def test_nothing_has_happened() -> None:
    found = standing((UserMessage((Text("go"),)), None))
    assert (found.open, found.waiting, found.answer, found.asked, found.responses) == ((), {}, None, 0, 0)


def test_an_answer_is_all_that_the_last_response_said() -> None:
    found = standing((Reasoning("Hm."), 1), (said("one "), 1), (said("two"), 1))
    assert (found.answer, found.responses) == ("one two", 1)


def test_what_was_said_before_a_call_or_beside_it_is_no_answer() -> None:
    calls = ToolCall("a", "work", "{}")
    assert standing((said("So."), 1), (calls, 1)).answer is None
    assert standing((calls, 1), (said("So."), 1)).answer is None
    assert standing((said("So."), 1), (calls, 1), (ToolResult("a", "work"), None)).answer is None
    done = standing((said("So."), 1), (calls, 1), (ToolResult("a", "work"), None), (said("Done."), 2))
    assert (done.answer, done.open, done.responses) == ("Done.", (), 2)


def test_calls_without_a_result_are_open_and_those_that_were_asked_about_wait() -> None:
    one, two, three = (ToolCall(id, "work", "{}") for id in "abc")
    calls: list[tuple[AnyBody, int | None]] = [(one, 1), (two, 1), (three, 1)]
    asked_about: list[tuple[AnyBody, int | None]] = [(ApprovalAsked(id, "work", None), None) for id in "bc"]
    found = standing(*calls, *asked_about, (ToolResult("a", "work"), None))
    assert found.open == (two, three)
    assert found.waiting.keys() == {"b", "c"}
    assert all(found.waiting.values()), "there is always a reason to show"
    given = standing(*calls, *asked_about, (ApprovalGiven("b", "work"), None), (ApprovalDenied("c", "work"), None))
    assert given.waiting == {}
    assert given.open == (one, two, three)


def test_corrections_and_questions_are_counted() -> None:
    called = ModelCalled("m", "p", Usage(calls=1))
    found = standing(
        (called, None), (said("x"), 1), (SystemMessage((Text("no"),)), None), (called, None), (said("y"), 2)
    )
    assert (found.asked, found.responses, found.corrections, found.answer) == (2, 2, 1, "y")


def test_the_client_s_calls_are_apart_from_ours() -> None:
    ours, theirs = ToolCall("a", "work", "{}"), ToolCall("b", "browse", "{}", client=True)
    found = standing((said("So."), 1), (theirs, 1), (ours, 1))
    assert (found.open, found.handed, found.answer) == ((ours,), (theirs,), None)
    answered = standing((theirs, 1), (ours, 1), (ToolResult("a", "work"), None), (ToolResult("b", "browse"), None))
    assert (answered.open, answered.handed) == ((), ())


def test_what_a_turn_was_given_is_neither_its_answer_nor_a_correction() -> None:
    called = ModelCalled("m", "p", Usage(calls=1))
    go: tuple[AnyBody, int | None] = (UserMessage((Text("go"),)), None)
    system: tuple[AnyBody, int | None] = (SystemMessage((Text("Be brief."),)), None)
    imported: list[tuple[AnyBody, int | None]] = [go, (said("earlier"), 1), system, go, (said("later"), 2)]
    assert standing(*imported, go).answer is None, "the model is yet to be asked"
    found = standing(*imported, system, go, (called, None), (said("done"), 3))
    assert (found.answer, found.corrections, found.asked, found.answered) == ("done", 0, 1, 1)


def test_a_call_that_failed_was_asked_and_not_answered() -> None:
    found = standing((ModelCalled("m", "p", Usage(calls=1), error="model_overloaded"), None))
    assert (found.asked, found.answered) == (1, 0)
