"""Standing approvals: given with an approval, used without a question, listed, revoked, forked; in both homes."""

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from tests.conversation.support import tools as shared
from tests.conversation.support.agents import Signal, agent_of, asks, call, kinds, messages_of
from tests.conversation.support.homes import Home, LocalHome
from tests.conversation.support.other_process import heard as heard_of
from tests.conversation.support.other_process import start
from tests.conversation.support.team import lead, orders, spawn, wait

from forkpoint import Agent, AsyncConversation, Hook, ToolContext, TurnFailed, tool
from forkpoint.agent import Block, HookContext
from forkpoint.backend.messages import as_message
from forkpoint.backend.options import DecidedCall, Decision, How, NewTurn
from forkpoint.conversation import Turn
from forkpoint.engine.standing_approvals import MOST, rules_of
from forkpoint.errors import BadArgument, NotFound, TurnOpen
from forkpoint.events import ApprovalAsked, ApprovalGiven, StagedEvent
from forkpoint.testing import Fault, Heard, Reply
from forkpoint.workspace import set_trust
from forkpoint.workspace.defaults import settings_file

pytestmark = pytest.mark.anyio


class Tools:
    """A risky tool, a shell, and what ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

        @tool(risky=True)
        def delete(what: str) -> str:
            """Deletes."""
            self.ran.append(what)
            return f"{what} is gone"

        @tool(risky=True, secrets="shell")
        def shell(ctx: ToolContext, command: str, timeout: int = 120) -> str:
            """Runs a command."""
            self.ran.append(command)
            return "ran"

        self.both = [delete, shell]

    def agent(self, **settings: Any) -> Agent:
        """An agent whose model asks for what it is told: ``delete x``, or a command after a dollar sign."""
        return agent_of(obey, tools=self.both, approval="risky", **settings)


def obey(heard: Heard) -> Reply:
    messages = messages_of(heard)
    if messages[-1]["role"] == "tool":
        return Reply("done")
    lines = str(messages[-1]["content"]).splitlines()
    calls = []
    for number, line in enumerate(lines):
        id = f"c{len(messages)}-{number}"
        calls.append(call("shell", id, command=line[2:]) if line.startswith("$ ") else call("delete", id, what=line))
    return asks(*calls)


def given(turn: Turn) -> list[ApprovalGiven]:
    return [event.body for event in turn.events if isinstance(event.body, ApprovalGiven)]


async def always(conversation: AsyncConversation, message: str, way: str, by: str | None = None) -> Turn:
    """Says a message, and approves the one call that waits, for good."""
    turn = await conversation.run(message)
    assert turn.outcome == "awaiting_approval"
    return await conversation.approve(turn.waiting[0], always=way, by=by)


# Given and used.


async def test_a_call_that_was_allowed_for_good_runs_without_a_question_and_history_says_why(home: Home) -> None:
    tools = Tools()
    async with AsyncConversation(home.agent(tools.agent()), store=home.store) as conversation:
        first = await always(conversation, "x", "call", by="ann")
        assert first.outcome == "committed"
        (rule,) = await conversation.approvals()
        assert (rule.kind, rule.tool, rule.arguments, rule.by) == ("call", "delete", '{"what": "x"}', "ann")
        assert (rule.turn, rule.call) == (first.id, first.calls[0].id)
        assert [(one.by, one.always, one.standing, one.allows) for one in given(first)] == [
            ("ann", rule.id, None, 'delete({"what": "x"})')
        ]
        again = await conversation.run("x")
        assert again.outcome == "committed"
        assert [(one.by, one.always, one.standing) for one in given(again)] == [("ann", None, rule.id)]
        assert kinds(again.events).count("approval_asked") == 1, "that it was to be asked about is there too"
        other = await conversation.run("y")
        assert other.outcome == "awaiting_approval"
        assert tools.ran == ["x", "x"]


async def test_an_approval_that_names_a_call_twice_is_refused_and_the_turn_still_waits(home: Home) -> None:
    tools = Tools()
    async with AsyncConversation(home.agent(tools.agent()), store=home.store) as conversation:
        turn = await conversation.run("x\ny")
        first, second = turn.waiting
        for verb, calls, more in (
            ("approve", (first, first), {"always": "call"}),
            ("approve", (first.id, second, first), {}),
            ("deny", (first.id, first.id), {}),
        ):
            with pytest.raises(BadArgument, match="it stands there twice"):
                await getattr(conversation, verb)(*calls, **more)
            assert await conversation.turn(turn) == turn
        assert await conversation.approvals() == ()
        assert tools.ran == []
        assert (await conversation.approve(*turn.waiting, always="call")).outcome == "committed"


async def test_a_tool_may_be_allowed_as_a_whole_and_a_shell_never(home: Home) -> None:
    tools = Tools()
    async with AsyncConversation(home.agent(tools.agent()), store=home.store) as conversation:
        await always(conversation, "x", "tool")
        assert (await conversation.run("y\nz")).outcome == "committed"
        turn = await conversation.run("$ git status")
        for way, why in (("tool", "never allowed as a whole"), ("prefix:git", "must say which"), ("all", "it is call")):
            with pytest.raises(BadArgument, match=why):
                await conversation.approve(turn.waiting[0], always=way)
        assert await conversation.status() == "awaiting_approval", "nothing was decided"
        assert sorted(tools.ran) == ["x", "y", "z"]
        assert len(await conversation.approvals()) == 1


async def test_a_prefix_allows_plain_commands_that_begin_with_it_and_asks_about_all_others(tmp_path: Path) -> None:
    tools = Tools()
    async with AsyncConversation(tools.agent(), store=LocalHome(tmp_path).store) as conversation:
        await always(conversation, "$ git status -s", "prefix:git status")
        assert (await conversation.run("$ git status --branch")).outcome == "committed"
        for command in ("git status; rm -rf /", "git status $(x)", "git statusx", "git status\u00a0x", "git push"):
            turn = await conversation.run(f"$ {command}")
            assert [one.arguments for one in turn.waiting], command
            await conversation.deny(*turn.waiting)
        assert tools.ran == ["git status -s", "git status --branch"]


async def test_calls_that_wait_beside_it_are_allowed_too_if_they_are_such(tmp_path: Path) -> None:
    tools = Tools()
    async with AsyncConversation(tools.agent(), store=LocalHome(tmp_path).store) as conversation:
        turn = await conversation.run("x\ny\n$ ls")
        turn = await conversation.approve(turn.waiting[0], always="tool")
        assert turn.outcome == "awaiting_approval"
        assert [one.tool for one in turn.waiting] == ["shell"]
        assert sorted(tools.ran) == ["x", "y"]
        turn = await conversation.approve(*turn.waiting)
        assert turn.outcome == "committed"


async def test_several_calls_get_a_standing_approval_each_and_a_prefix_is_of_one(tmp_path: Path) -> None:
    async with AsyncConversation((Tools().agent()), store=LocalHome(tmp_path).store) as conversation:
        turn = await conversation.run("$ git status\n$ git status -s")
        with pytest.raises(BadArgument, match="of one call"):
            await conversation.approve(*turn.waiting, always="prefix:git status")
        await conversation.approve(*turn.waiting, always="call")
        assert len(await conversation.approvals()) == 2
        await always(conversation, "$ ls", "call")
        assert (await conversation.run("$ ls\n$ git status")).outcome == "committed"
        assert len(await conversation.approvals()) == 3, "the same is not given twice"


async def test_it_is_given_though_the_turn_fails_after_it(tmp_path: Path) -> None:
    ran: list[str] = []

    @tool(risky=True)
    def delete(what: str) -> str:
        """Deletes."""
        ran.append(what)
        return "gone"

    deletes = [asks(call("delete", f"d{n}", what="x")) for n in (1, 2)]
    answers: list[Reply | str] = [deletes[0], Reply(fault=Fault("overloaded")), deletes[1], "done"]
    agent = agent_of(answers, tools=[delete], approval="risky")
    async with AsyncConversation(agent, store=LocalHome(tmp_path).store) as conversation:
        turn = await conversation.run("go")
        with pytest.raises(TurnFailed):
            await conversation.approve(turn.waiting[0], always="tool")
        assert len(await conversation.approvals()) == 1
        assert (await conversation.retry()).outcome == "committed"
        assert ran == ["x", "x"]


async def test_hooks_run_before_a_call_that_is_allowed_for_good(tmp_path: Path) -> None:
    tools = Tools()
    asked: list[str] = []

    def refuse(context: HookContext) -> Block | None:
        asked.append(context.moment)
        return Block("not twice") if len(asked) > 1 else None

    hook = Hook("before_tool", function=refuse, name="refuse")
    async with AsyncConversation((tools.agent(hooks=[hook])), store=LocalHome(tmp_path).store) as conversation:
        await always(conversation, "x", "tool")
        asked.append("from here on it refuses")
        turn = await conversation.run("y")
        assert (turn.outcome, turn.calls[0].status) == ("committed", "denied")
        assert tools.ran == ["x"]


async def test_where_nobody_can_be_asked_what_was_allowed_runs_and_all_else_is_denied(tmp_path: Path) -> None:
    tools = Tools()
    agent = tools.agent()
    async with AsyncConversation(agent, store=LocalHome(tmp_path).store) as conversation:
        await always(conversation, "x", "call")
        backend = await conversation._backend()
        for message, status in (("x", "done"), ("y", "denied")):
            new = NewTurn(given=(as_message(message),), how=How(attended=False))
            turn = await backend.turns.run(conversation.id, agent, new, lambda _: None)
            assert turn.calls[0].status == status


# Listed and revoked.


async def test_what_was_revoked_is_asked_about_again_and_stays_in_the_record(home: Home) -> None:
    tools = Tools()
    async with AsyncConversation(home.agent(tools.agent()), store=home.store) as conversation:
        assert await conversation.approvals() == ()
        with pytest.raises(NotFound):
            await conversation.revoke_approval("no-such")
        await always(conversation, "x", "tool")
        with pytest.raises(NotFound):
            await conversation.revoke_approval("no-such")
        (rule,) = await conversation.approvals()
        revoked = await conversation.revoke_approval(rule.id, by="ben")
        assert (revoked.id, revoked.revoked_by, revoked.revoked is not None) == (rule.id, "ben", True)
        assert await conversation.revoke_approval(rule, by="someone else") == revoked, "once more changes nothing"
        assert await conversation.approvals() == ()
        assert await conversation.approvals(revoked=True) == (revoked,)
        assert (await conversation.run("y")).outcome == "awaiting_approval"


async def test_it_can_be_revoked_while_a_turn_waits(tmp_path: Path) -> None:
    tools = Tools()
    async with AsyncConversation(tools.agent(), store=LocalHome(tmp_path).store) as conversation:
        await always(conversation, "x", "tool")
        turn = await conversation.run("$ ls")
        with pytest.raises(TurnOpen):
            await conversation.update_state({"a": 1})
        await conversation.revoke_approval((await conversation.approvals())[0])
        await conversation.approve(*turn.waiting)
        assert (await conversation.run("y")).outcome == "awaiting_approval"


async def test_a_turn_that_runs_asks_about_the_next_call_after_another_process_has_revoked_it(tmp_path: Path) -> None:
    home, begun, go_on = LocalHome(tmp_path), Signal(), Signal()

    @tool(risky=True)
    async def work(x: int) -> str:
        """Works."""
        if x == 2:
            begun.set()
            await go_on.wait()
        return "worked"

    answers = [asks(call("work", f"c{n}", x=n)) for n in (1, 2, 3)]
    agent = agent_of([*answers, "done"], tools=[work], approval="risky")
    async with AsyncConversation(agent, conversation_id="c", store=home.store) as conversation:
        turn = await conversation.run("go")
        ended: list[Turn] = []

        async def approve() -> None:
            ended.append(await conversation.approve(*turn.waiting, always="tool"))

        async with anyio.create_task_group() as group:
            group.start_soon(approve)
            await begun.wait()
            (rule,) = await conversation.approvals()
            revoke = [sys.executable, "-m", "forkpoint", "approvals", "c", "--revoke", rule.id, "--store", home.store]
            await anyio.run_process(revoke)
            go_on.set()
        assert ended[0].outcome == "awaiting_approval"
        assert [one.arguments for one in ended[0].waiting] == ['{"x": 3}']


async def test_a_conversation_has_room_for_so_many(tmp_path: Path) -> None:
    tools = Tools()
    async with AsyncConversation(tools.agent(), store=LocalHome(tmp_path).store) as conversation:
        await always(conversation, "x", "call")
        (rule,) = await conversation.approvals()
        backend: Any = await conversation._backend()
        many = tuple(replace(rule, id=str(n), arguments=str(n)) for n in range(MOST - 1))
        await backend._standing.give(conversation.id, many)
        turn = await conversation.run("y")
        with pytest.raises(BadArgument, match="revoke what is not needed"):
            await conversation.approve(*turn.waiting, always="call")
        for one in many:
            await backend._standing.revoke(conversation.id, one.id, None)
        await conversation.approve(*turn.waiting, always="call")
        assert len(await conversation.approvals()) == 2


# Forks, rewinds, other places.


async def test_a_fork_has_its_sources_of_today_and_from_then_on_its_own(home: Home) -> None:
    tools = Tools()
    async with AsyncConversation(home.agent(tools.agent()), store=home.store) as conversation:
        early = await conversation.run("nothing")
        early = await conversation.deny(*early.waiting)
        await always(conversation, "x", "tool")
        async with await conversation.fork(at=early) as fork:
            assert await fork.approvals() == await conversation.approvals()
            assert (await fork.run("y")).outcome == "committed"
            await conversation.revoke_approval((await conversation.approvals())[0])
            assert (await fork.run("z")).outcome == "committed", "neither changes the other's"
            assert (await conversation.run("z")).outcome == "awaiting_approval"
        async with await conversation.fork() as fork:
            assert await fork.approvals() == ()


async def test_a_rewind_neither_takes_one_back_nor_brings_a_revoked_one_back(tmp_path: Path) -> None:
    tools = Tools()
    async with AsyncConversation(tools.agent(), store=LocalHome(tmp_path).store) as conversation:
        first = await always(conversation, "x", "tool")
        (rule,) = await conversation.approvals()
        await conversation.run("y")
        aside = await conversation.rewind(at=first)
        assert aside is not None
        assert await conversation.approvals() == (rule,) == await aside.approvals()
        await aside.close()
        await conversation.revoke_approval(rule)
        aside = await conversation.rewind(before=first)
        assert aside is not None
        await aside.close()
        assert await conversation.approvals() == ()
        assert (await conversation.run("x")).outcome == "awaiting_approval"


async def test_in_another_folder_or_one_that_is_untrusted_somebody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    tools, project, other = Tools(), tmp_path / "project", tmp_path / "other"
    project.mkdir()
    other.mkdir()
    agent, store, config = tools.agent(), LocalHome(tmp_path).store, settings_file()
    async with AsyncConversation(agent, workspace=project, store=store) as conversation:
        await always(conversation, "x", "tool")
        async with await conversation.fork(workspace=other) as fork:
            assert (await fork.run("x")).outcome == "awaiting_approval"
        async with await conversation.fork(workspace="copy") as fork:
            assert (await fork.run("x")).outcome == "committed", "a copy of the folder is as trusted as the folder"
        assert set_trust(project, "untrusted", config).warning is None
        turn = await conversation.run("x")
        assert turn.outcome == "awaiting_approval"
        with pytest.raises(BadArgument, match="is untrusted"):
            await conversation.approve(*turn.waiting, always="tool")
        await conversation.deny(*turn.waiting)
        assert set_trust(project, "trusted", config).warning is None
        assert (await conversation.run("x")).outcome == "committed"


async def test_another_agents_tool_of_the_same_name_is_asked_about(tmp_path: Path) -> None:
    tools, store = Tools(), LocalHome(tmp_path).store

    @tool(risky=True)
    def delete(what: str, really: bool = True) -> str:
        """Deletes otherwise."""
        return what

    async with AsyncConversation(tools.agent(), store=store) as conversation:
        await always(conversation, "x", "tool")
        await conversation.change_agent(agent_of(obey, tools=[delete], approval="risky"))
        assert (await conversation.run("x")).outcome == "awaiting_approval"
        assert len(await conversation.approvals()) == 1, "a note of other settings changes nothing of them"


async def test_a_sub_agent_asks_about_what_its_parent_was_allowed(tmp_path: Path) -> None:
    tools = Tools()
    agent = lead(tools=tools.both, approval="risky")
    delete = [call("delete", what="x")]
    async with AsyncConversation(agent, store=LocalHome(tmp_path).store) as parent:
        await always(parent, orders(delete), "tool")
        turn = await parent.run(orders([spawn(orders(delete), fork="all")], [wait()]))
        assert turn.outcome == "committed"
        (member,) = await parent.list_agents()
        assert member.status == "awaiting_approval"
        assert tools.ran == ["x"], "only what the parent itself asked for"


# Crashes.


async def test_what_a_process_leaves_that_dies_between_the_rule_and_the_decision_is_allowed_when_the_turn_goes_on(
    tmp_path: Path,
) -> None:
    tools = Tools()
    agent = tools.agent()
    async with AsyncConversation(agent, store=LocalHome(tmp_path).store) as conversation:
        turn = await conversation.run("x")
        backend: Any = await conversation._backend()
        decision = Decision(True, (DecidedCall(turn.waiting[0].id, turn.waiting[0].digest),), "ann", always="call")
        steps = [step for step in turn.events if isinstance(step, StagedEvent)]
        (rule,) = await backend._standing.give(conversation.id, rules_of(decision, turn.id, steps, agent, None))
        resumed = await conversation.resume()
        assert (resumed.outcome, tools.ran) == ("committed", ["x"])
        assert [(one.by, one.standing) for one in given(resumed)] == [("ann", rule.id)]


async def test_a_process_that_is_gone_leaves_its_standing_approval_to_the_next(tmp_path: Path) -> None:
    store, erase = LocalHome(tmp_path).store, shared.steps([("erase", {})])
    agent = shared.agent(approval="risky")
    async with AsyncConversation(agent, conversation_id="c", store=store, workspace=tmp_path) as conversation:
        await conversation.run(erase)
    told = heard_of(start(store, "c", "approve", always="call", by="the other process"))
    assert told["outcome"] == "committed"
    async with await AsyncConversation.open("c", store=store) as conversation:
        turn = await conversation.run(erase)
        assert turn.outcome == "committed"
        assert [one.by for one in given(turn)] == ["the other process"]
        assert [isinstance(event.body, ApprovalAsked) for event in turn.events].count(True) == 1


async def test_what_only_a_newer_version_understands_allows_nothing_and_is_kept(tmp_path: Path) -> None:
    tools, home = Tools(), LocalHome(tmp_path)
    newer = '{"id":"n1","kind":"everything","tool":"delete","tool_digest":"","given":0,"colour":"blue"}'
    async with AsyncConversation(tools.agent(), store=home.store) as conversation:
        turn = await conversation.run("x")
        async with await home.opened() as store:
            assert await store.change_approvals(conversation.id, f"[{newer}]", if_approvals="[]")
            assert await conversation.approvals(revoked=True) == ()
            turn = await conversation.approve(*turn.waiting, always="call")
            assert turn.outcome == "committed"
            assert (await conversation.run("y")).outcome == "awaiting_approval"
            await conversation.revoke_approval((await conversation.approvals())[0])
            assert newer in await store.approvals(conversation.id)


async def test_of_two_who_give_and_revoke_at_once_nothing_is_lost(tmp_path: Path) -> None:
    tools = Tools()
    async with AsyncConversation(tools.agent(), store=LocalHome(tmp_path).store) as conversation:
        await always(conversation, "x", "call")
        (rule,) = await conversation.approvals()
        backend: Any = await conversation._backend()
        async with anyio.create_task_group() as group:
            for n in range(10):
                group.start_soon(
                    backend._standing.give, conversation.id, (replace(rule, id=f"n{n}", arguments=str(n)),)
                )
            group.start_soon(conversation.revoke_approval, rule)
        assert len(await conversation.approvals()) == 10
        assert len(await conversation.approvals(revoked=True)) == 11
