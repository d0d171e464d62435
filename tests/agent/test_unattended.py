"""Where nobody can be asked, a call that would wait is denied with a recorded reason, or run if the agent says so."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.agent.journal import Memory, asked, run, says, work
from tests.conversation.support.agents import agent_of, asks, call, messages_of

from forkpoint.agent import tool
from forkpoint.agent.loop import Done, Waiting
from forkpoint.errors import ModelUnavailable
from forkpoint.events import (
    ApprovalAsked,
    ApprovalDenied,
    AssistantMessage,
    NewEvent,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from forkpoint.llm import Options, Retries
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.testing import Fault, Heard, Reply
from forkpoint.updates import CallEnded, CallStarted, CallWaits, Restarted, TextPiece

pytestmark = pytest.mark.anyio


class Writes(Memory):
    """A journal that keeps apart what was written together."""

    def __init__(self, *already: NewEvent) -> None:
        self.writes: list[list[str]] = []
        super().__init__(*already)

    def add(self, events: Sequence[NewEvent], usage: Usage = Usage()) -> None:
        self.writes.append([type(event.body).__name__ for event in events])
        super().add(events, usage)


ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@tool(risky=True)
def delete() -> str:
    """Deletes."""
    ran.append("delete")
    return "deleted"


async def test_a_call_that_would_wait_is_denied_in_the_same_write_as_the_response() -> None:
    heard: list[Any] = []

    def answer(one: Heard) -> Reply:
        heard.append(messages_of(one))
        return asks(call("work", "w"), call("delete", "d")) if one.number == 0 else Reply("done")

    journal, told = Writes(says("go")), list[Any]()
    agent = agent_of(answer, tools=[work, delete], approval="risky")
    assert await run(agent, journal, attended=False, tell=told.append) == Done()
    assert ["ToolCall", "ToolCall", "ApprovalAsked", "ApprovalDenied", "ToolResult"] in journal.writes
    assert ran == []
    (asking,) = (body for body in journal.bodies if isinstance(body, ApprovalAsked))
    (denial,) = (body for body in journal.bodies if isinstance(body, ApprovalDenied))
    results = {body.call_id: body for body in journal.bodies if isinstance(body, ToolResult)}
    assert (asking.call_id, asking.reason, denial.call_id, denial.by) == ("d", "the tool is risky", "d", None)
    assert denial.reason == "nobody can be asked here, and the agent's policy wants an approval (the tool is risky)"
    assert (results["w"].status, results["d"].status) == ("done", "denied")
    shown = next(message["content"] for message in heard[1] if message.get("tool_call_id") == "d")
    assert denial.reason in shown, "the model is told why"
    assert [one.result.call_id for one in told if isinstance(one, CallEnded)] == ["d", "w"]
    assert [one.call.call_id for one in told if isinstance(one, CallStarted)] == ["w"]
    assert not any(isinstance(one, CallWaits) for one in told)


async def test_what_was_denied_is_on_disk_before_the_model_hears_of_it() -> None:
    on_disk: list[bool] = []

    def answer(one: Heard) -> Reply:
        on_disk.append(any(isinstance(body, ApprovalDenied) for body in journal.flushed))
        return asks(call("delete")) if one.number == 0 else Reply("done")

    journal = Memory(says("go"))
    await run(agent_of(answer, tools=[delete], approval="always"), journal, attended=False)
    assert on_disk == [False, True]


async def test_an_agent_that_says_so_runs_it_unasked() -> None:
    journal = Memory(says("go"))
    agent = agent_of([asks(call("delete", "d")), "done"], tools=[delete], approval="always", unattended="run")
    assert await run(agent, journal, attended=False) == Done()
    assert ran == ["delete"]
    assert not any(isinstance(body, ApprovalAsked | ApprovalDenied) for body in journal.bodies)


async def test_what_an_agent_does_unattended_says_nothing_of_an_attended_turn() -> None:
    agent = agent_of([asks(call("delete", "d"))], tools=[delete], approval="always", unattended="run")
    assert isinstance(await run(agent, Memory(says("go"))), Waiting)
    assert ran == []


async def test_a_policy_that_fails_is_a_reason_to_deny() -> None:
    def policy(call: ToolCall, tool: Any) -> bool:
        raise ValueError("no idea")

    journal = Memory(says("go"))
    await run(agent_of([asks(call("delete", "d")), "done"], tools=[delete], approval=policy), journal, attended=False)
    (denial,) = (body for body in journal.bodies if isinstance(body, ApprovalDenied))
    assert denial.reason is not None
    assert "the approval policy failed (ValueError: no idea)" in denial.reason
    assert ran == []


async def test_what_somebody_was_asked_for_before_goes_on_waiting() -> None:
    journal = Memory(says("go"), *asked("d", tool="delete"), NewEvent(ApprovalAsked("d", "delete", "it is risky")))
    waiting = await run(agent_of([], tools=[delete], approval="risky"), journal, attended=False)
    assert isinstance(waiting, Waiting)


# What a turn asks of each call of its model.


async def choices(tool_choice: str, *, already: Sequence[NewEvent] = ()) -> list[Any]:
    """The choice of tools in each request of a turn that calls a tool twice."""
    heard: list[Any] = []

    def answer(one: Heard) -> Reply:
        heard.append(one.body.get("tool_choice"))
        return asks(call("work", f"w{one.number}")) if one.number < 2 else Reply("done")

    options = Options(tool_choice=tool_choice, temperature=0.5)
    await run(agent_of(answer, tools=[work]), Memory(says("go"), *already), options=options)
    return heard


NAMED = {"type": "function", "function": {"name": "work"}}


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("required", ["required", None, None]),
        ("work", [NAMED, None, None]),
        ("none", ["none"] * 3),
        ("auto", [None] * 3),
    ],
)
async def test_a_tool_that_must_be_used_is_demanded_once_and_none_all_the_time(choice: str, sent: list[Any]) -> None:
    assert await choices(choice) == sent


async def test_a_demand_that_was_answered_before_is_not_made_again_on_resuming() -> None:
    already = [*asked("before"), NewEvent(ToolResult("before", "work"))]
    assert (await choices("required", already=already))[0] is None


async def test_what_a_turn_was_given_answers_no_demand() -> None:
    already = [NewEvent(AssistantMessage((Text("earlier"),)), response=1), says("and now?")]
    assert (await choices("required", already=already))[0] == "required"


async def test_a_demand_that_failed_before_is_made_again_on_resuming() -> None:
    heard: list[Any] = []

    def answer(one: Heard) -> Reply:
        heard.append(one.body.get("tool_choice"))
        return Reply("x", fault=Fault("overloaded")) if one.number == 0 else Reply("done")

    agent, journal = agent_of(answer, tools=[work]), Memory(says("go"))
    options = Options(tool_choice="required")
    with pytest.raises(ModelUnavailable):
        await run(agent, journal, options=options)
    assert await run(agent, journal, options=options) == Done()
    assert heard == ["required", "required"]


async def test_a_client_s_tool_can_be_demanded() -> None:
    agent = agent_of([asks(call("browse"))], client_tools=[ToolSchema("browse")])
    assert await run(agent, Memory(says("go")), options=Options(tool_choice="browse")) == Done()


@pytest.mark.parametrize("final", [False, True])
async def test_what_cannot_be_taken_back_is_not_tried_again(final: bool) -> None:
    told: list[Any] = []
    broken = Reply("Hello there.", piece=5, fault=Fault("overloaded", after=1))
    agent = agent_of([broken, "Hello."])
    agent = agent.replace(llm=agent.llm.__class__(agent.llm.model, retries=Retries(attempts=2, wait=0.0)))
    journal = Memory(says("go"))
    if final:
        with pytest.raises(ModelUnavailable):
            await run(agent, journal, tell=told.append, final=True)
    else:
        assert await run(agent, journal, tell=told.append) == Done()
    assert any(isinstance(one, Restarted) for one in told) is not final
    assert isinstance(told[0], TextPiece)


async def test_a_reason_is_a_sentence_that_a_person_understands() -> None:
    journal = Memory(says("go"))
    agent = agent_of([asks(call("delete", "d")), "done"], tools=[delete], approval=lambda call, tool: "it is Friday")
    await run(agent, journal, attended=False)
    (result,) = (body for body in journal.bodies if isinstance(body, ToolResult))
    reason = "nobody can be asked here, and the agent's policy wants an approval (it is Friday)"
    assert result.parts == (Text(f"This call was not run: {reason}"),)
