"""Approval with other arguments: the call stays as the model wrote it, and everybody is told what was run."""

import signal
from pathlib import Path
from typing import Any

import pytest
from tests.conversation.support import tools as shared
from tests.conversation.support.agents import Watcher, agent_of, asks, call, messages_of, results
from tests.conversation.support.homes import Home
from tests.conversation.support.other_process import heard as heard_of
from tests.conversation.support.other_process import start
from tests.conversation.support.team import lead, orders, spawn

from forkpoint import AsyncConversation, Skill, TurnFailed, tool
from forkpoint.agent.hooks.hook import Block, Hook
from forkpoint.errors import BadArgument
from forkpoint.events import ApprovalGiven, SkillActivated, ToolCall
from forkpoint.testing import Fault, Heard, Reply
from forkpoint.updates import CallStarted

pytestmark = pytest.mark.anyio

ASKED = asks(call("deploy", "d", version="1.8"))


class Deploys:
    """A risky tool, and what ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

        @tool(risky=True)
        def deploy(version: str, slowly: bool = False) -> str:
            """Deploys."""
            self.ran.append(f"{version} {slowly}")
            return f"{version} is live"

        self.tools = [deploy]


@pytest.mark.parametrize("arguments", [{"version": "1.7"}, '{ "version" : "1.7" }'])
async def test_the_tool_runs_with_them_and_the_call_stays_as_it_was_asked_for(home: Home, arguments: Any) -> None:
    world, watcher = Deploys(), Watcher()
    shown: list[Any] = []

    def answer(heard: Heard) -> Reply:
        shown[:] = messages_of(heard)
        return Reply("I see.") if heard.number else ASKED

    agent = agent_of(answer, tools=world.tools, approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:
        (waits,) = (await conversation.run("go")).waiting
        turn = await conversation.approve(arguments={"d": arguments}, by="ann")
        text = arguments if isinstance(arguments, str) else '{"version":"1.7"}'
        assert world.ran == ["1.7 False"]
        (done,) = turn.calls
        assert (done.arguments, done.approved_arguments, done.status) == (waits.arguments, text, "done")
        assert done.digest == waits.digest
        bodies = [event.body for event in await conversation.events()]
        assert ApprovalGiven("d", "deploy", "ann", text) in bodies
        assert [body.arguments for body in bodies if isinstance(body, ToolCall)] == [waits.arguments]
        assert [update.call.arguments for update in watcher.of(CallStarted)] == [text]
        (told,) = [message["content"] for message in shown if message["role"] == "tool"]
        assert told.index(text) < told.index("1.7 is live"), "the model hears first what was run instead"
        assert shown[-2]["tool_calls"][0]["function"]["arguments"] == waits.arguments, "its own words are its own"
        assert (await conversation.verify()).ok


async def test_the_same_arguments_are_no_change(home: Home) -> None:
    world = Deploys()
    agent = agent_of([ASKED, "done"], tools=world.tools, approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        (waits,) = (await conversation.run("go")).waiting
        turn = await conversation.approve(waits, arguments={"d": waits.arguments})
        assert (turn.calls[0].approved_arguments, turn.calls[0].result) == (None, "1.8 is live")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"d": {"folder": "x"}}, "folder"),
        ({"d": "not JSON"}, "malformed"),
        ({"d": ""}, "not JSON"),
        ({"d": '{"version": "a", "version": "b"}'}, "'version' stands there twice"),
        ({"d": {"version": 7}}, "version"),
        ({"d": {"version": object()}}, "no JSON form"),
        ({"other": {"version": "1"}}, "not among the calls"),
    ],
)
async def test_arguments_that_the_tool_does_not_take_are_refused_and_nothing_is_recorded(
    home: Home, arguments: Any, why: str
) -> None:
    world = Deploys()
    agent = agent_of([ASKED, "done"], tools=world.tools, approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        before = await conversation.run("go")
        with pytest.raises(BadArgument, match=why):
            await conversation.approve(arguments=arguments)
        assert await conversation.turn(before) == before, "it still waits, as it did"
        assert world.ran == []
        assert (await conversation.approve()).outcome == "committed"


async def test_each_of_several_calls_can_have_its_own(home: Home) -> None:
    world = Deploys()
    asked = asks(call("deploy", "a", version="1"), call("deploy", "b", version="2"), call("deploy", "c", version="3"))
    agent = agent_of([asked, "done"], tools=world.tools, approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        await conversation.run("go")
        half = await conversation.approve("a", arguments={"a": {"version": "1a"}})
        assert half.outcome == "awaiting_approval"
        turn = await conversation.approve(arguments={"c": {"version": "3c", "slowly": True}})
        assert sorted(world.ran) == ["1a False", "2 False", "3c True"]
        assert [one.approved_arguments for one in turn.calls][1] is None


async def test_hooks_see_what_will_really_run_and_may_still_block_it() -> None:
    world, seen = Deploys(), []

    def guard(context: Any) -> Block | None:
        seen.append((context.moment, context.decoded["version"]))
        return Block("never 1.6") if context.decoded["version"] == "1.6" else None

    guards = [Hook("before_tool", function=guard), Hook("after_tool", function=guard)]
    for version, ran in (("1.7", ["1.7 False"]), ("1.6", [])):
        world.ran.clear()
        seen.clear()
        agent = agent_of([ASKED, "done"], tools=world.tools, approval="risky", hooks=guards)
        async with AsyncConversation(agent, store="memory:") as conversation:
            await conversation.run("go")
            turn = await conversation.approve(arguments={"d": {"version": version}})
            assert world.ran == ran
            before = [("before_tool", "1.8"), ("before_tool", version)]
            assert seen == (before if version == "1.6" else [*before, ("after_tool", "1.7")])
            (done,) = results(turn.events)
            assert done.status == ("denied" if version == "1.6" else "done")
            assert '"1.6"' in str(done.parts[0]) or version == "1.7"


async def test_skills_are_activated_by_the_files_that_are_really_touched() -> None:
    @tool(risky=True)
    def read(path: str) -> str:
        """Reads."""
        return "select 1"

    skills = [Skill("sql", "Mind the indexes.", files=("*.sql",)), Skill("text", "Mind the commas.", files=("*.txt",))]
    agent = agent_of([asks(call("read", "r", path="a.sql")), "done"], tools=[read], skills=skills, approval="risky")
    async with AsyncConversation(agent, store="memory:") as conversation:
        await conversation.run("go")
        turn = await conversation.approve(arguments={"r": {"path": "a.txt"}})
        named = [event.body.name for event in turn.events if isinstance(event.body, SkillActivated)]
        assert named == ["text"]


async def test_a_sub_agent_gets_the_task_that_was_approved_and_its_parent_hears_of_it() -> None:
    agent = lead(approval="always")
    async with AsyncConversation(agent, store="memory:") as parent:
        await parent.run(orders([spawn("Erase it all.", "s", nickname="x")], say="done"))
        turn = await parent.approve(arguments={"s": {"task": "Look at it.", "nickname": "x"}})
        (member,) = await parent.list_agents()
        assert member.task == "Look at it."
        (asked,) = turn.calls
        assert "Erase it all." in asked.arguments
        assert "Look at it." in (asked.result or "")


async def test_a_resumed_turn_runs_with_them_again_only_if_it_is_told_to(home: Home) -> None:
    ran: list[str] = []
    overloaded = Reply("x", fault=Fault("overloaded"))

    @tool(risky=True)
    def deploy(version: str) -> str:
        """Deploys."""
        ran.append(version)
        return "done"

    agent = agent_of([ASKED, overloaded, "fine"], tools=[deploy], approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        await conversation.run("go")
        with pytest.raises(TurnFailed):
            await conversation.approve(arguments={"d": {"version": "1.7"}})
        turn = await conversation.resume()
        assert (turn.text, ran, turn.calls[0].approved_arguments) == ("fine", ["1.7"], '{"version":"1.7"}')
        fork = await conversation.fork()
        assert [event.body for event in await fork.events()] == [event.body for event in await conversation.events()]
        await fork.close()


@pytest.mark.parametrize("rerun", [False, True])
async def test_a_crash_between_the_approval_and_the_result_keeps_them(tmp_path: Path, rerun: bool) -> None:
    store = f"sqlite:///{tmp_path / 'a.db'}"
    order = shared.steps([("die_once", {"line": "asked for"})])
    async with AsyncConversation(
        shared.agent(approval="risky"), conversation_id="waits", store=store, workspace=tmp_path
    ) as conversation:
        (waits,) = (await conversation.run(order)).waiting
    process = start(store, "waits", "approve", arguments={waits.id: {"line": "approved"}})
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    assert shared.logged(tmp_path) == ["approved"]
    told = heard_of(start(store, "waits", "resume", rerun=[waits.id] if rerun else []))
    assert told["outcome"] == "committed"
    assert shared.logged(tmp_path) == (["approved", "approved"] if rerun else ["approved"])
    async with await AsyncConversation.open("waits", store=store) as conversation:
        (turn,) = (await conversation.turns()).items
        (done,) = turn.calls
        assert (done.status, done.arguments) == ("done" if rerun else "unknown", waits.arguments)
        assert done.approved_arguments == '{"line":"approved"}'
        assert '{"line":"approved"}' in (done.result or ""), "what may have run is told too"
