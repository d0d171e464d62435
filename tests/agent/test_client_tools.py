"""Calls of the client's tools are handed over: ours run first, and the turn is done with the client's calls open."""

from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.journal import Memory, asked, run, says, work
from tests.conversation.support.agents import agent_of, asks, call, messages_of
from tests.llm.provider_rules import broken_rules

from forkpoint.agent import tool
from forkpoint.agent.loop import Done, Waiting, stand
from forkpoint.errors import TurnLost
from forkpoint.events import (
    ApprovalAsked,
    ApprovalGiven,
    AssistantMessage,
    NewEvent,
    StagedEvent,
    Text,
    ToolCall,
    ToolResult,
)
from forkpoint.history.pairing import NO_CALLS, OpenCalls, in_call_order
from forkpoint.llm.answers import Answer
from forkpoint.llm.attempt import Hearing
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.llm.request import Request
from forkpoint.testing import Heard, Reply

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])

BROWSE = ToolSchema("browse", "Opens a page.")


def calls_in(journal: Memory) -> dict[str, bool]:
    """Each call's id, and whether it is the client's."""
    return {body.call_id: body.client for body in journal.bodies if isinstance(body, ToolCall)}


def results_in(journal: Memory) -> dict[str, str]:
    return {body.call_id: body.status for body in journal.bodies if isinstance(body, ToolResult)}


@both
async def test_a_call_of_a_client_s_tool_ends_the_turn_and_stays_open() -> None:
    journal = Memory(says("go"))
    agent = agent_of([asks(call("browse", "b", page="x"), text="One moment.")], client_tools=[BROWSE])
    assert await run(agent, journal) == Done()
    found = stand(journal.so_far)
    assert found.open == ()
    assert found.handed == (ToolCall("b", "browse", '{"page": "x"}', client=True, provider="scripted/scripted"),)
    assert AssistantMessage((Text("One moment."),), provider="scripted/scripted") in journal.bodies
    assert journal.on_disk == 1, "nothing was started, so the commit is soon enough"


class Provider:
    """Somebody whose items are not to be lost."""

    async def ask(self, request: Request, hearing: Hearing) -> Answer:
        origin = request.rendering.manifest.origin
        return Answer((ToolCall("b", "browse", "{ }", provider=origin, item='{"id": "fc_1"}'),), "tool_calls")

    async def aclose(self) -> None: ...


async def test_a_call_that_is_handed_over_keeps_what_the_provider_said_of_it() -> None:
    journal = Memory(says("go"))
    agent = agent_of([], client_tools=[BROWSE])
    assert await run(agent, journal, providers={"scripted": Provider()}) == Done()
    (handed,) = stand(journal.so_far).handed
    assert handed == ToolCall("b", "browse", "{ }", True, agent.manifest.origin, '{"id": "fc_1"}')


@both
@pytest.mark.parametrize("ours_first", [True, False], ids=["ours first", "the client's first"])
async def test_of_calls_of_both_kinds_ours_run_and_then_the_turn_is_done(ours_first: bool) -> None:
    ours, theirs = call("work", "w"), call("browse", "b")
    journal = Memory(says("go"))
    agent = agent_of([asks(*((ours, theirs) if ours_first else (theirs, ours)))], tools=[work], client_tools=[BROWSE])
    assert await run(agent, journal) == Done()
    assert calls_in(journal) == {"w": False, "b": True}
    assert results_in(journal) == {"w": "done"}
    assert [one.call_id for one in stand(journal.so_far).handed] == ["b"]
    assert journal.on_disk == len(journal.so_far), "a result is on disk when its tool ends"


async def test_a_response_with_calls_of_both_kinds_is_on_disk_before_ours_start() -> None:
    ran: list[str] = []

    @tool(name="work")
    def runs() -> None:
        """Runs."""
        ran.append("work")

    def refuse(events: Any) -> bool:
        return any(isinstance(event.body, ToolCall) for event in events)

    agent = agent_of([asks(call("browse"), call("work"))], tools=[runs], client_tools=[BROWSE])
    with pytest.raises(TurnLost):
        await run(agent, Memory(says("go"), refuse=refuse))
    assert ran == []


async def test_a_turn_that_stood_with_calls_handed_over_is_done_when_it_is_resumed() -> None:
    already = [*asked("w"), NewEvent(ToolCall("b", "browse", "{}", client=True), response=1)]
    journal = Memory(says("go"), *already, NewEvent(ToolResult("w", "work")))
    assert await run(agent_of([], tools=[work], client_tools=[BROWSE]), journal) == Done()
    assert journal.spent.calls == 0, "nobody was asked again"


async def test_a_turn_that_stood_with_calls_of_both_kinds_ends_with_ours_settled_and_the_client_s_open() -> None:
    already = [*asked("w"), NewEvent(ToolCall("b", "browse", "{}", client=True), response=1)]
    journal = Memory(says("go"), *already)
    assert await run(agent_of([], tools=[work], client_tools=[BROWSE]), journal) == Done()
    assert results_in(journal) == {"w": "unknown"}


async def test_calls_handed_over_are_no_answer_whose_form_could_be_wrong() -> None:
    journal = Memory(says("go"))
    agent = agent_of([asks(call("browse"), text="no JSON")], client_tools=[BROWSE], output=dict[str, int])
    assert await run(agent, journal) == Done()
    assert journal.spent.calls == 1


async def test_an_approval_is_never_asked_for_a_call_that_runs_elsewhere() -> None:
    journal = Memory(says("go"))
    agent = agent_of([asks(call("browse"))], client_tools=[BROWSE], approval="always")
    assert await run(agent, journal) == Done()
    assert not any(isinstance(body, ApprovalAsked) for body in journal.bodies)


async def test_ours_wait_for_an_approval_while_the_client_s_stay_open() -> None:
    journal = Memory(says("go"))
    replies = [asks(call("browse", "b"), call("work", "w"))]
    agent = agent_of(replies, tools=[work], client_tools=[BROWSE], approval="always")
    waiting = await run(agent, journal)
    assert isinstance(waiting, Waiting)
    assert [one.call_id for one in waiting.calls] == ["w"]
    journal.add([NewEvent(ApprovalGiven("w", "work"))])
    assert await run(agent, journal, fresh=["w"]) == Done()
    assert results_in(journal) == {"w": "done"}
    assert [one.call_id for one in stand(journal.so_far).handed] == ["b"]


async def test_a_tool_that_nobody_has_is_answered_here() -> None:
    journal = Memory(says("go"))
    agent = agent_of([asks(call("nothing", "n")), "done"], client_tools=[BROWSE])
    assert await run(agent, journal) == Done()
    assert (calls_in(journal), results_in(journal)) == ({"n": False}, {"n": "failed"})


async def test_the_model_goes_on_with_the_client_s_results_in_the_next_turn() -> None:
    heard: list[list[dict[str, Any]]] = []

    def answer(one: Heard) -> Reply:
        heard.append(messages_of(one))
        return asks(call("browse", "b")) if one.number == 0 else Reply("done")

    agent = agent_of(answer, client_tools=[BROWSE])
    first = Memory(says("go"))
    await run(agent, first)
    second = Memory(NewEvent(ToolResult("b", "browse", (Text("a page"),))))
    assert await run(agent, second, path=first.so_far) == Done()
    assert stand(second.so_far).answer == "done"
    assert [message["role"] for message in heard[1]] == ["user", "assistant", "tool"]
    assert heard[1][2]["content"] == "a page"


# Any turns.

KINDS = {"ours": "work", "client": "browse", "risky": "delete", "stranger": "nothing"}
responses = st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=4)


@tool(risky=True)
def delete() -> str:
    """Deletes."""
    return "deleted"


@settings(max_examples=60, deadline=None, database=None)
@given(
    st.lists(st.tuples(responses, st.booleans()), min_size=1, max_size=6), st.sampled_from(["deny", "run"]), st.data()
)
def test_whatever_a_model_calls_and_a_client_answers_history_is_paired(
    script: list[tuple[list[str], bool]], unattended: Any, data: st.DataObject
) -> None:
    """Over turns: ours have results when a turn is done, the client's at the start of the next, whatever it gives."""
    refused: list[str] = []

    def answer(one: Heard) -> Reply:
        refused.extend(broken_rules("chat", msgspec.json.encode(one.body)))
        if one.number >= len(script):
            return Reply("done")
        kinds, speaks = script[one.number]
        calls = (call(KINDS[kind], f"{one.number}-{n}") for n, kind in enumerate(kinds))
        return asks(*calls, text="So." if speaks else "")

    agent = agent_of(answer, tools=[work, delete], client_tools=[BROWSE], approval="risky", unattended=unattended)
    path: list[StagedEvent] = []
    open: OpenCalls = NO_CALLS
    for _ in range(len(script) + 1):
        given_back = data.draw(st.permutations(open.client))
        missing = data.draw(st.sets(st.sampled_from(given_back))) if given_back else set()
        results = [
            ToolResult(id, "browse", (Text("a page"),), "not_answered" if id in missing else "done")
            for id in given_back
        ]
        speaks = not results or data.draw(st.booleans())
        journal = Memory(*map(NewEvent, results), *([says("go")] if speaks else []))
        path_before = list(path)
        assert anyio.run(lambda: run(agent, journal, path=path_before, attended=False)) == Done()  # noqa: B023
        order = in_call_order([step.envelope for step in journal.so_far], open)
        committed = [journal.so_far[place] for place in order]
        open = open.after(step.envelope for step in committed).at_a_commit()
        assert open.client == tuple(one.call_id for one in stand(journal.so_far).handed)
        path += committed
        if not open:
            break
    denied = {step.body.call_id for step in path if isinstance(step.body, ToolResult) and step.body.status == "denied"}
    risky = {step.body.call_id for step in path if isinstance(step.body, ToolCall) and step.body.tool == "delete"}
    assert denied == (risky if unattended == "deny" else set())
    assert refused == [], "a provider would not have taken what was sent"
