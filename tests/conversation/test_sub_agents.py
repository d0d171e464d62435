"""Sub-agents: conversations with a parent, at work while its turn runs, each with transactions of its own."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.conversation.support.agents import agent_of, call, messages_of, said, scripted
from tests.conversation.support.team import close, lead, obedient, orders, send, spawn, told, wait

from forkpoint.agent import Agent, Limits, Role, SubAgents, ToolContext, tool
from forkpoint.agent.builtin import shell
from forkpoint.conversation import AsyncConversation
from forkpoint.engine.resources import EngineOptions
from forkpoint.errors import SpawnRefused, TurnCancelled, TurnFailed
from forkpoint.events import Condensation, SubAgentFinished, SubAgentSpawned, Usage
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.store import Store, open_store
from forkpoint.testing import Fault, Heard, Reply

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with await open_store("memory:") as store:
        yield store


async def answer(conversation: AsyncConversation, *rounds: Any, say: str = "") -> list[dict[str, Any]]:
    """What the model was told last, after it did what it was told."""
    return told((await conversation.run(orders(*rounds, say=say))).text)


async def opened(store: Store, id: str) -> AsyncConversation:
    return await AsyncConversation.open(id, store=store, bind=False)


# At work.


@pytest.mark.parametrize("fork", ["none", "all", 1, "2"])
async def test_an_answer_of_a_sub_agent_is_a_result_in_its_parent(store: Store, fork: str | int) -> None:
    async with AsyncConversation(lead(), store=store) as parent:
        await parent.run("Hello")
        (done,) = await answer(parent, [spawn("the work", fork=fork, role="helper")], [wait()])
        assert done == {"agent": "helper", "status": "done", "role": "helper", "answer": "Did the work"}
        (member,) = await parent.list_agents()
        assert (member.path, member.depth, member.status) == ("/root/helper", 1, "idle")
        child = await opened(store, member.conversation)
        info = await child.info()
        assert (info.parent, info.path, info.nickname, info.role, info.depth) == (
            parent.id,
            "/root/helper",
            "helper",
            "helper",
            1,
        )
        assert info.lineage.kind == "sub_agent"
        assert said(await child.events())[-2:] == [("user", "the work"), ("assistant", "Did the work")]
        assert (await AsyncConversation.verify_store(store=store)).ok


async def test_a_sub_agent_knows_as_much_of_its_parents_history_as_was_said(store: Store) -> None:
    heard: dict[str, list[str]] = {}

    def model(asked: Heard) -> Reply:
        if not asked.text.startswith("{"):
            heard[asked.text] = [one["content"] for one in messages_of(asked) if one["role"] == "user"]
        return obedient(asked)

    async with AsyncConversation(Agent(scripted(model), sub_agents=True), store=store) as parent:
        for text in ("one", "two", "three"):
            await parent.run(text)
        rounds = [spawn(f"with {fork}", fork=fork, nickname=f"a{fork}") for fork in ("none", "all", 1, 2, 3, 4)]
        order = orders(rounds, [wait()])
        await parent.run(order)
        members = {one.nickname: one for one in await parent.list_agents()}
        windows = [
            [e.body for e in await (await opened(store, members[f"a{n}"].conversation)).events()] for n in (1, 3)
        ]
    hidden = "Summary of the conversation until here:\n\n{} of this conversation cannot be seen from here."
    assert heard["with none"] == ["with none"]
    assert heard["with all"] == ["one", "two", "three", order, "with all"]
    assert heard["with 3"] == ["one", "two", "three", order, "with 3"]
    assert heard["with 1"] == [hidden.format("2 earlier turns"), "three", order, "with 1"]
    assert heard["with 2"] == [hidden.format("1 earlier turn"), "two", "three", order, "with 2"]
    assert heard["with 4"] == ["one", "two", "three", order, "with 4"]
    assert [sum(isinstance(one, Condensation) for one in bodies) for bodies in windows] == [1, 0]


async def test_sub_agents_work_at_the_same_time_and_their_parent_goes_on(store: Store) -> None:
    here, both = anyio.Event(), anyio.Event()

    @tool
    async def meet() -> str:
        """Waits until two are here."""
        if here.is_set():
            both.set()
        here.set()
        await both.wait()
        return "met"

    agent = lead(tools=[meet])
    async with AsyncConversation(agent, store=store) as parent:
        task = orders([call("meet")], say="met")
        first, second = await answer(parent, [spawn(task), spawn(task)], [wait()])
        assert (first["answer"], second["answer"]) == ("met", "met")
        assert (first["agent"], second["agent"]) == ("agent", "agent-2")


async def test_a_parent_waits_for_as_long_as_it_says_or_for_the_first(store: Store) -> None:
    gate = anyio.Event()

    @tool
    async def hold() -> str:
        """Waits."""
        await gate.wait()
        return "held"

    @tool
    def let() -> str:
        """Lets it go on."""
        gate.set()
        return "let"

    slow = orders([call("hold")], say="slow")
    async with AsyncConversation(lead(tools=[hold, let]), store=store) as parent:
        turn = await parent.run(
            orders(
                [spawn(slow, nickname="slow"), spawn("quick", nickname="quick")],
                [wait(first=True)],
                [wait(agents=["slow"], seconds=0.01)],
                [call("let")],
                [wait(agents=["slow"])],
            )
        )
    waits = [told(one.result or "") for one in turn.calls if one.tool == "wait_agent"]
    assert [[one["status"] for one in each] for each in waits] == [["running", "done"], ["running"], ["done"]]


async def test_a_wait_in_the_same_response_waits_for_those_that_are_just_being_made(store: Store) -> None:
    async with AsyncConversation(lead(), store=store) as parent:
        turn = await parent.run(orders([spawn("one"), spawn("two"), wait()], say="done"))
        (waited,) = [told(one.result or "") for one in turn.calls if one.tool == "wait_agent"]
        assert [one["answer"] for one in waited] == ["Did one", "Did two"]


async def test_a_sub_agent_can_be_given_more_to_do(store: Store) -> None:
    async with AsyncConversation(lead(), store=store) as parent:
        await answer(parent, [spawn("first", nickname="x")], [wait()])
        (again,) = await answer(parent, [send("x", "second")], [wait()])
        assert again["answer"] == "Did second"
        (member,) = await parent.list_agents()
        assert [text for _, text in said(await (await opened(store, member.conversation)).events())] == [
            "first",
            "Did first",
            "second",
            "Did second",
        ]


async def test_one_that_is_at_work_takes_no_other_message(store: Store) -> None:
    gate = anyio.Event()

    @tool
    async def hold() -> str:
        """Waits."""
        await gate.wait()
        return "held"

    async with AsyncConversation(lead(tools=[hold]), store=store) as parent:
        turn = await parent.run(
            orders([spawn(orders([call("hold")]), nickname="x")], [send("x", "more")], [close("x")], say="end")
        )
        busy = next(one for one in turn.calls if one.tool == "send_to_agent")
        assert busy.status == "failed"
        assert busy.result is not None
        assert "x is still at work; wait for it, or close it" in busy.result


async def test_a_closed_sub_agent_is_readable_and_makes_room(store: Store) -> None:
    async with AsyncConversation(lead(SubAgents(most=1)), store=store) as parent:
        turn = await parent.run(
            orders(
                [spawn("a", nickname="a")],
                [wait()],
                [spawn("b", nickname="b")],
                [close("a")],
                [send("a", "more")],
                [spawn("c", nickname="c"), wait()],
                say="end",
            )
        )
        refused = [(one.tool, (one.result or "").partition(":")[0]) for one in turn.calls if one.status == "failed"]
        assert refused == [("spawn_agent", "SpawnRefused"), ("send_to_agent", "SpawnRefused")]
        a, c = await parent.list_agents()
        assert (a.status, a.answer, c.status) == ("closed", "Did a", "idle")


async def test_there_is_an_end_to_how_deep_they_go(store: Store) -> None:
    inner = orders([spawn("too deep")], say="stopped")
    middle = orders([spawn(inner, nickname="inner")], [wait()])
    async with AsyncConversation(lead(SubAgents(depth=2)), store=store) as parent:
        await parent.run(orders([spawn(middle, nickname="middle")], [wait()], say="end"))
        (first,) = await parent.list_agents()
        child = await opened(store, first.conversation)
        (second,) = await child.list_agents()
        assert (second.path, second.depth) == ("/root/middle/inner", 2)
        grandchild = await opened(store, second.conversation)
        (turn,) = (await grandchild.turns()).items
        (refused,) = turn.calls
        assert refused.status == "failed"
        assert "2 deep" in (refused.result or "")
        assert await grandchild.list_agents() == ()


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"role": "stranger"}, "there is no role 'stranger'; the roles are explorer"),
        ({"agent": "nobody"}, "there is no agent 'nobody'; the agents are: other"),
        ({"model": "openai/secret"}, "it may not have the model 'openai/secret'"),
        ({"nickname": "a b"}, "is no nickname"),
        ({"fork": "some"}, "must be none, all or a number of turns"),
        ({"fork": 0}, "must be none, all or a number of turns"),
        ({"task": "  "}, "its task is blank"),
    ],
)
async def test_what_cannot_be_made_is_said_to_the_model(store: Store, how: dict[str, Any], why: str) -> None:
    offered = SubAgents(roles={"explorer": Role()}, agents={"other": agent_of(["x"])})
    async with AsyncConversation(lead(offered), store=store) as parent:
        turn = await parent.run(orders([call("spawn_agent", **{"task": "x", **how})], say="end"))
        (refused,) = turn.calls
        assert refused.status == "failed"
        assert why in (refused.result or "")
        assert await parent.list_agents() == ()


async def test_ids_that_a_model_uses_again_are_other_calls(store: Store) -> None:
    async with AsyncConversation(lead(), store=store) as parent:
        turn = await parent.run(orders([spawn("one", "c0")], [spawn("two", "c0")], [wait("c0")]))
        assert [one["answer"] for one in told(turn.text)] == ["Did one", "Did two"]
        assert len({one.conversation for one in await parent.list_agents()}) == 2


# Who they are.


async def test_a_role_tells_a_sub_agent_who_it_is(store: Store) -> None:
    heard: list[list[dict[str, Any]]] = []

    def model(asked: Heard) -> Reply:
        if asked.text == "task":
            heard.append(messages_of(asked))
        return obedient(asked)

    offered = SubAgents(roles={"explorer": Role("explores", "Look around.")})
    agent = Agent(scripted(model), instructions="Be good.", sub_agents=offered)
    async with AsyncConversation(agent, store=store) as parent:
        calls = [spawn("task", role="explorer", fork=fork) for fork in ("none", "all")]
        await parent.run(orders([calls[0]], [wait()], [calls[1]], [wait()], say="end"))
    fresh, forked = heard
    assert fresh[0]["content"] == "Be good.\n\nLook around."
    assert forked[0]["content"] == "Be good."
    assert "You are the sub-agent explorer-2 now, in the role of explorer." in forked[-2]["content"]
    assert "Look around." in forked[-2]["content"]


async def test_another_agent_or_another_model_may_do_the_work(store: Store) -> None:
    other = agent_of(["I am other"], name="other")
    third = scripted(["I am third"])
    offered = SubAgents(agents={"other": other}, roles={"judge": Role(agent=agent_of(["I judge"]))}, models=[third])
    async with AsyncConversation(lead(offered), store=store) as parent:
        calls = [spawn("x", agent="other"), spawn("x", model=third.model), spawn("x", role="judge")]
        turn = await parent.run(orders(calls, [wait()]))
    answers = [one["answer"] for one in told(turn.text)]
    assert answers == ["I am other", "I am third", "I judge"]


async def test_a_tool_in_python_can_have_sub_agents_too(store: Store) -> None:
    @tool
    async def explore(ctx: ToolContext, ways: list[str]) -> list[str | None]:
        """Explores several ways at once."""
        for way in ways:
            await ctx.agents.spawn(way, nickname=way, fork="all")
        return [one.answer for one in await ctx.agents.wait()]

    async with AsyncConversation(lead(tools=[explore]), store=store) as parent:
        turn = await parent.run(orders([call("explore", ways=["left", "right", "up"])]))
        assert json.loads(turn.text) == ["Did left", "Did right", "Did up"]
        assert [one.nickname for one in await parent.list_agents()] == ["left", "right", "up"]


async def test_tools_of_the_client_are_not_run_in_a_sub_agent(store: Store) -> None:
    agent = lead(client_tools=[ToolSchema("theirs", "The client's.")])
    async with AsyncConversation(agent, store=store) as parent:
        (done,) = await answer(parent, [spawn(orders([call("theirs")]), fork="all")], [wait()])
        assert done["answer"].endswith("the tool is the client's, and a sub-agent has none.")


# Transactions of their own.


async def test_a_failed_parent_leaves_what_its_sub_agents_have_committed_and_nothing_in_itself(store: Store) -> None:
    gate = anyio.Event()

    @tool
    async def hold() -> str:
        """Waits for good."""
        await gate.wait()
        return "never"

    def model(asked: Heard) -> Reply:
        reply = obedient(asked)
        return Reply(fault=Fault("rate_limit")) if reply.text == "break" else reply

    agent = Agent(scripted(model), tools=[hold], sub_agents=True)
    async with AsyncConversation(agent, store=store) as parent:
        await parent.run("Hello")
        before = await parent.info()
        order = orders(
            [spawn("quick", nickname="quick"), spawn(orders([call("hold")]), nickname="slow")],
            [wait(agents=["quick"])],
            say="break",
        )
        with pytest.raises(TurnFailed):
            await parent.run(order)
        now = await parent.info()
        assert (now.head, now.digest, now.status) == (before.head, before.digest, "idle")
        assert await parent.list_agents() == ()
        children = (await store.conversations(parent=parent.id)).items
        outcomes = {}
        for child in children:
            conversation = await opened(store, child.id)
            (turn,) = (await conversation.turns()).items
            outcomes[(await conversation.info()).nickname] = (turn.outcome, child.status)
        assert outcomes == {"quick": ("committed", "idle"), "slow": ("cancelled", "idle")}


async def test_a_cancelled_parent_cancels_what_runs_beneath_it_at_any_depth(store: Store) -> None:
    deep = anyio.Event()

    @tool
    async def hold() -> str:
        """Waits for good."""
        deep.set()
        await anyio.sleep_forever()
        return "never"

    inner = orders([call("hold")])
    outer = orders([spawn(inner)], [wait()])
    async with AsyncConversation(lead(tools=[hold]), store=store) as parent:
        async with anyio.create_task_group() as group:

            async def run() -> None:
                with pytest.raises(TurnCancelled):
                    await parent.run(orders([spawn(outer)], [wait()]))

            group.start_soon(run)
            await deep.wait()
            await parent.cancel()
        page = await store.conversations()
        assert len(page.items) == 3
        for one in page.items:
            assert one.status == "idle"
            (turn,) = (await store.turns(one.id)).items
            assert turn.outcome == "cancelled"


async def test_who_still_works_when_the_answer_is_there_is_stopped(store: Store) -> None:
    @tool
    async def hold() -> str:
        """Waits for good."""
        await anyio.sleep_forever()
        return "never"

    async with AsyncConversation(lead(tools=[hold]), store=store) as parent:
        turn = await parent.run(orders([spawn(orders([call("hold")]), nickname="x")], say="Enough."))
        assert turn.text == "Enough."
        finished = [event.body for event in turn.events if isinstance(event.body, SubAgentFinished)]
        assert [one.outcome for one in finished] == ["cancelled"]
        (member,) = await parent.list_agents()
        assert member.status == "cancelled"
        (again,) = await answer(parent, [send("x", "short work")], [wait()])
        assert again["answer"] == "Did short work"


@pytest.mark.parametrize("fault", ["rate_limit", "bad_request", "cut"])
async def test_a_failed_sub_agent_is_an_error_to_its_parent(store: Store, fault: Any) -> None:
    failing = agent_of([Reply("Half", fault=Fault(fault))])
    async with AsyncConversation(lead(SubAgents(agents={"failing": failing})), store=store) as parent:
        (done,) = await answer(parent, [spawn("x", agent="failing")], [wait()])
        assert done["status"] == "failed"
        assert done["error"]
        assert "answer" not in done


async def test_a_sub_agent_that_somebody_stops_is_an_error_and_no_hang(store: Store) -> None:
    held = anyio.Event()

    @tool
    async def hold() -> str:
        """Waits for good."""
        held.set()
        await anyio.sleep_forever()
        return "never"

    async with AsyncConversation(lead(tools=[hold]), store=store) as parent:
        async with anyio.create_task_group() as group:

            async def stop() -> None:
                await held.wait()
                (member,) = await parent.list_agents()
                child = await opened(store, member.conversation)
                await child.cancel()

            group.start_soon(stop)
            (done,) = await answer(parent, [spawn(orders([call("hold")]))], [wait()])
        assert done["status"] == "cancelled"
        assert "stopped" in done["error"]


async def test_a_turn_that_is_resumed_finds_its_sub_agents_and_makes_no_others(store: Store) -> None:
    broken = True

    def model(asked: Heard) -> Reply:
        reply = obedient(asked)
        return Reply(fault=Fault("rate_limit")) if broken and len(reply.calls) == 1 else reply

    async with AsyncConversation(Agent(scripted(model), sub_agents=True), store=store) as parent:
        with pytest.raises(TurnFailed):
            await parent.run(orders([spawn("a", nickname="a"), spawn("b", nickname="b")], [wait()]))
        broken = False
        turn = await parent.resume()
        assert [one["agent"] for one in told(turn.text)] == ["a", "b"]
        assert len((await store.conversations(parent=parent.id)).items) == 2


async def test_a_first_turn_that_fails_leaves_its_sub_agents_with_a_parent(store: Store) -> None:
    def model(asked: Heard) -> Reply:
        reply = obedient(asked)
        return Reply(fault=Fault("rate_limit")) if reply.text == "break" else reply

    async with AsyncConversation(Agent(scripted(model), sub_agents=True), store=store) as parent:
        with pytest.raises(TurnFailed):
            await parent.run(orders([spawn("a", fork="all")], [wait()], say="break"))
        (child,) = (await store.conversations(parent=parent.id)).items
        assert said(await (await opened(store, child.id)).events())[-1] == ("assistant", "Did a")
        (root,) = await parent.tree()
        assert (root.info.id, root.branches[0].info.id) == (parent.id, child.id)


async def test_what_they_cost_counts_once(store: Store) -> None:
    used = Usage(calls=1, input=10, output=5)

    def model(asked: Heard) -> Reply:
        reply = obedient(asked)
        return Reply(reply.text, calls=reply.calls, usage=used)

    async with AsyncConversation(Agent(scripted(model), sub_agents=True), store=store) as parent:
        await parent.run("Hello")
        await parent.run(orders([spawn("a", fork="all"), spawn("b")], [wait()]))
        stats = await parent.stats()
        assert (stats.spent.calls, stats.spent.input) == (4, 40)
        assert (stats.family.calls, stats.family.input) == (6, 60)
        for member in await parent.list_agents():
            own = await (await opened(store, member.conversation)).stats()
            assert (own.spent.calls, own.spent.input) == (1, 10)


# What they share, and what they may.


@pytest.mark.parametrize("limit", [Limits(steps=6), Limits(tokens=90)])
async def test_a_budget_is_shared_and_not_multiplied(store: Store, limit: Limits) -> None:
    def model(asked: Heard) -> Reply:
        reply = obedient(asked)
        return Reply(reply.text, calls=reply.calls, usage=Usage(calls=1, input=10, output=5))

    agent = Agent(scripted(model), sub_agents=True, limits=limit)
    async with AsyncConversation(agent, store=store) as parent:
        eager = orders(*[[call("list_agents")] for _ in range(10)])
        with pytest.raises(TurnFailed, match="limit"):
            await parent.run(orders([spawn(eager)], [wait()], say="end"))
        (child,) = (await store.conversations(parent=parent.id)).items
        (turn,) = (await (await opened(store, child.id)).turns()).items
        assert turn.outcome == "failed"
        assert turn.error is not None
        assert "shared with whoever it works for" in turn.error.message
        assert (await parent.stats()).family.calls == 6


@pytest.mark.parametrize("mine", ["never", "risky", "always"])
@pytest.mark.parametrize("theirs", ["never", "risky", "always"])
async def test_a_sub_agent_asks_whenever_its_parent_would_have_to(store: Store, mine: Any, theirs: Any) -> None:
    @tool(risky=True)
    def write() -> str:
        """Writes."""
        return "written"

    @tool
    def read() -> str:
        """Reads."""
        return "read"

    helper = Agent(scripted(obedient), tools=[read, write], approval=theirs)
    agent = lead(SubAgents(roles={"helper": Role(agent=helper)}), approval=mine)
    async with AsyncConversation(agent, store=store) as parent:
        turn = await parent.run(
            orders(
                [spawn(orders([call("write")]), role="helper"), spawn(orders([call("read")]), role="helper")], [wait()]
            )
        )
        while turn.outcome == "awaiting_approval":
            turn = await parent.approve()
        statuses = [one["status"] for one in told(turn.text)]
        strictest = max(mine, theirs, key=["never", "risky", "always"].index)
        expected = {
            "never": ["done", "done"],
            "risky": ["awaiting_approval", "done"],
            "always": ["awaiting_approval", "awaiting_approval"],
        }
        assert statuses == expected[strictest]


async def test_somebody_approves_what_a_sub_agent_wants_and_its_parent_hears_of_it(store: Store) -> None:
    @tool(risky=True)
    def write() -> str:
        """Writes."""
        return "written"

    agent = lead(tools=[write], approval="risky")
    async with AsyncConversation(agent, store=store) as parent:
        (waits,) = await answer(parent, [spawn(orders([call("write")]), nickname="x")], [wait()])
        assert waits["status"] == "awaiting_approval"
        assert "write" in waits["error"]
        (member,) = await parent.list_agents()
        async with await AsyncConversation.open(member.conversation, agent=agent, store=store) as child:
            await child.open_turn()
            assert (await child.approve()).text == "written"
        (done,) = await answer(parent, [wait()])
        assert (done["status"], done["answer"]) == ("done", "written")


async def test_a_guardian_asks_before_every_call_and_has_a_key_of_its_own(store: Store) -> None:
    @tool
    def read() -> str:
        """Reads."""
        return "read"

    agent = lead(SubAgents(roles={"guardian": Role(guardian=True)}), tools=[read], approval="never")
    async with AsyncConversation(agent, store=store) as parent:
        (waits,) = await answer(parent, [spawn(orders([call("read")]), role="guardian", fork="all")], [wait()])
        assert waits["status"] == "awaiting_approval"
        (member,) = await parent.list_agents()
        assert (await (await opened(store, member.conversation)).cache()).inherited_from is None


async def test_children_end_their_work_before_their_parent_waits_for_somebody(store: Store) -> None:
    @tool(risky=True)
    def write() -> str:
        """Writes."""
        return "written"

    async with AsyncConversation(lead(tools=[write], approval="risky"), store=store) as parent:
        turn = await parent.run(orders([spawn("the work"), call("write")], [wait()]))
        assert turn.outcome == "awaiting_approval"
        (member,) = await parent.list_agents()
        assert (member.status, member.answer) == ("idle", "Did the work")
        assert [one["answer"] for one in told((await parent.approve()).text)] == ["Did the work"]


# Branches of the parent.


async def test_in_a_fork_of_the_parent_a_sub_agent_is_readable_and_the_first_message_forks_it(store: Store) -> None:
    async with AsyncConversation(lead(), store=store) as parent:
        await answer(parent, [spawn("first", nickname="x")], [wait()])
        fork = await parent.fork()
        await answer(parent, [send("x", "only in the source")], [wait()])
        (before,) = await fork.list_agents()
        (original,) = await parent.list_agents()
        assert before.conversation == original.conversation
        (again,) = await answer(fork, [send("x", "only in the fork")], [wait()])
        assert again["answer"] == "Did only in the fork"
        (other,) = await fork.list_agents()
        assert other.conversation != original.conversation
        assert (other.path, other.nickname) == (original.path, original.nickname)
        words = [text for _, text in said(await (await opened(store, other.conversation)).events())]
        assert words == ["first", "Did first", "only in the fork", "Did only in the fork"]
        words = [text for _, text in said(await (await opened(store, original.conversation)).events())]
        assert words == ["first", "Did first", "only in the source", "Did only in the source"]
        await answer(fork, [send("x", "and on")], [wait()])
        (still,) = await fork.list_agents()
        assert still.conversation == other.conversation
        info = await (await opened(store, other.conversation)).info()
        assert (info.parent, info.lineage.source, info.lineage.kind) == (fork.id, fork.id, "sub_agent")
        assert info.cache.inherited_from is None
        assert (await AsyncConversation.verify_store(store=store)).ok


async def test_after_a_rewind_a_sub_agent_is_met_where_the_path_knows_it(store: Store) -> None:
    async with AsyncConversation(lead(), store=store) as parent:
        turn = await parent.run(orders([spawn("first", nickname="x")], [wait()]))
        await answer(parent, [send("x", "regretted")], [wait()])
        aside = await parent.rewind(at=turn.id)
        await answer(parent, [send("x", "better")], [wait()])
        (mine,) = await parent.list_agents()
        words = [text for _, text in said(await (await opened(store, mine.conversation)).events())]
        assert words == ["first", "Did first", "better", "Did better"]
        assert aside is not None
        (theirs,) = await aside.list_agents()
        words = [text for _, text in said(await (await opened(store, theirs.conversation)).events())]
        assert words[-1] == "Did regretted"


async def test_before_it_was_spawned_there_is_no_sub_agent(store: Store) -> None:
    async with AsyncConversation(lead(), store=store) as parent:
        first = await parent.run("Hello")
        await answer(parent, [spawn("x")], [wait()])
        assert await (await parent.fork(at=first.id)).list_agents() == ()
        await parent.rewind(at=first.id)
        assert await parent.list_agents() == ()


async def test_what_somebody_tells_a_sub_agent_himself_is_no_other_branch(store: Store) -> None:
    agent = lead()
    async with AsyncConversation(agent, store=store) as parent:
        await answer(parent, [spawn("first", nickname="x")], [wait()])
        (member,) = await parent.list_agents()
        async with await AsyncConversation.open(member.conversation, agent=agent, store=store) as child:
            await child.run("a hint")
        await answer(parent, [send("x", "second")], [wait()])
        (same,) = await parent.list_agents()
        assert same.conversation == member.conversation
        words = [text for _, text in said(await (await opened(store, same.conversation)).events())]
        assert words[2:] == ["a hint", "Did a hint", "second", "Did second"]


async def test_deleting_a_parent_takes_its_sub_agents_along(store: Store) -> None:
    async with AsyncConversation(lead(), store=store) as parent:
        await answer(parent, [spawn("x", fork="all"), spawn("y")], [wait()])
        fork = await parent.fork()
        await parent.delete()
        assert [one.id for one in (await store.conversations()).items] == [fork.id]
        (gone, _) = await fork.list_agents()
        assert gone.answer is None
        turn = await fork.run(orders([send("agent", "are you there?")], say="end"))
        assert turn.calls[0].status == "failed"


async def test_without_a_conversation_there_are_no_sub_agents(store: Store) -> None:
    from forkpoint.backend.messages import as_message
    from forkpoint.engine.engine import Engine
    from forkpoint.llm.prompt.identity import own_identity

    backend = Engine(store, owns_store=False)
    turn = await backend.turns.once(
        lead(), [as_message(orders([spawn("x")]))], identity=own_identity("none"), tell=lambda _: None
    )
    assert "SpawnRefused" in turn.text
    await backend.close()


async def test_the_events_of_a_spawn_name_what_was_asked_for(store: Store) -> None:
    async with AsyncConversation(lead(), store=store) as parent:
        turn = await parent.run(orders([spawn("x", "call-1", nickname="n")], [wait("call-2")]))
        spawned = [event.body for event in turn.events if isinstance(event.body, SubAgentSpawned)]
        finished = [event.body for event in turn.events if isinstance(event.body, SubAgentFinished)]
        (member,) = await parent.list_agents()
        assert [(one.call_id, one.conversation, one.path, one.turn) for one in spawned] == [
            ("call-1", member.conversation, "/root/n", member.turn)
        ]
        assert [(one.call_id, one.outcome, one.turn) for one in finished] == [("call-2", "committed", member.turn)]


# What was found by attacks.


async def test_a_wait_beside_a_message_waits_for_the_answer_to_it(store: Store) -> None:
    async with AsyncConversation(lead(), store=store) as parent:
        await answer(parent, [spawn("first", nickname="x")], [wait()])
        turn = await parent.run(orders([send("x", "second"), wait()], say="end"))
        (waited,) = [told(one.result or "") for one in turn.calls if one.tool == "wait_agent"]
        assert [one["answer"] for one in waited] == ["Did second"]


async def test_one_call_of_a_tool_may_send_several_messages(store: Store) -> None:
    @tool
    async def drive(ctx: ToolContext, again: bool) -> list[str | None]:
        """Drives two others."""
        for nickname in () if again else ("a", "b"):
            await ctx.agents.spawn(f"first of {nickname}", nickname=nickname)
        answers = [one.answer for one in await ctx.agents.wait("a", "b")]
        for number in (1, 2):
            for nickname in ("a", "b"):
                await ctx.agents.send(nickname, f"{number} to {nickname}")
            answers += [one.answer for one in await ctx.agents.wait("a", "b")]
        return answers

    agent = lead(tools=[drive])
    async with AsyncConversation(agent, store=store) as parent:
        turn = await parent.run(orders([call("drive", again=False)]))
        assert json.loads(turn.text)[2:] == ["Did 1 to a", "Did 1 to b", "Did 2 to a", "Did 2 to b"]
        fork = await parent.fork()
        turn = await fork.run(orders([call("drive", again=True)]))
        assert json.loads(turn.text)[2:] == ["Did 1 to a", "Did 1 to b", "Did 2 to a", "Did 2 to b"]
        a, b = await fork.list_agents()
        assert a.conversation != b.conversation
        assert {one.conversation for one in await parent.list_agents()}.isdisjoint({a.conversation, b.conversation})


async def test_a_forked_sub_agent_has_no_siblings_in_its_team(store: Store) -> None:
    inner = orders([call("list_agents")])
    async with AsyncConversation(lead(SubAgents(most=3)), store=store) as parent:
        await answer(parent, [spawn("a", nickname="a")], [wait()])
        turn = await parent.run(orders([spawn("b", nickname="b")], [spawn(inner, nickname="c", fork="all")], [wait()]))
        assert [one.get("answer") for one in told(turn.text)][-1] == "[]"
        member = next(one for one in await parent.list_agents() if one.nickname == "c")
        assert await (await opened(store, member.conversation)).list_agents() == ()


async def test_what_was_told_from_outside_is_what_a_sub_agent_said_last(store: Store) -> None:
    async with AsyncConversation(lead(), store=store) as parent:
        await answer(parent, [spawn("one", nickname="a")], [wait()])
        turn = await parent.send_to_agent("a", "two")
        assert turn.text == "Did two"
        (member,) = await parent.list_agents()
        assert (member.answer, member.turn) == ("Did two", turn.id)
        async with await AsyncConversation.open(member.conversation, store=store, bind=False) as child:
            await child.update_state({"a": 1})
            await child.update_state({"a": 2})
        newest = await parent.wait_agent("a")
        assert newest is not None
        assert newest.id == turn.id


async def test_a_fork_does_not_hear_what_its_source_tells_a_sub_agent_later(store: Store) -> None:
    async with AsyncConversation(lead(), store=store) as parent:
        child = await parent.spawn_agent("before", nickname="a")
        await child.run()
        fork = await parent.fork()
        await parent.send_to_agent("a", "secret")
        await fork.send_to_agent("a", "open")
        (member,) = await fork.list_agents()
        words = [text for _, text in said(await (await opened(store, member.conversation)).events())]
        assert words == ["before", "Did before", "open", "Did open"]


async def test_closing_one_that_waits_for_an_approval_ends_its_turn(store: Store) -> None:
    @tool(risky=True)
    def write() -> str:
        """Writes."""
        return "written"

    async with AsyncConversation(lead(tools=[write], approval="risky"), store=store) as parent:
        await parent.run(orders([spawn(orders([call("write")]), nickname="x")], [wait()], [close("x")], say="end"))
        (member,) = await parent.list_agents()
        assert member.status == "closed"
        assert (await store.read(member.conversation)).open_turn is None


async def test_sub_agents_that_ask_at_the_same_time_take_no_more_steps_than_there_are(store: Store) -> None:
    def model(asked: Heard) -> Reply:
        reply = obedient(asked)
        return Reply(reply.text, calls=reply.calls, delay=0.05)

    agent = Agent(scripted(model), sub_agents=True, limits=Limits(steps=4))
    async with AsyncConversation(agent, store=store) as parent:
        with pytest.raises(TurnFailed):
            await parent.run(orders([spawn(f"task {n}") for n in range(8)], [wait()], say="end"))
        assert (await parent.stats()).family.calls <= 4


async def test_a_resumed_turn_knows_what_its_sub_agents_have_used(store: Store) -> None:
    broken = True

    def model(asked: Heard) -> Reply:
        reply = obedient(asked)
        return Reply(fault=Fault("rate_limit")) if broken and reply.text == "end" else reply

    agent = Agent(scripted(model), sub_agents=True, limits=Limits(steps=9))
    deep = orders([spawn("deep")], [wait()], say="x")
    async with AsyncConversation(agent, store=store) as parent:
        with pytest.raises(TurnFailed):
            await parent.run(orders([spawn(deep)], [wait()], say="end"))
        broken = False
        with pytest.raises(TurnFailed, match="limit of 7 steps"):
            await parent.resume(limits=Limits(steps=7))
        assert (await parent.resume(limits=Limits(steps=8))).text == "end"


async def test_a_sub_agent_has_no_more_rights_than_its_parent_has_by_now(store: Store) -> None:
    @tool(risky=True)
    def write() -> str:
        """Writes."""
        return "written"

    agent = lead(tools=[write])
    async with AsyncConversation(agent, store=store) as parent:
        await parent.run(orders([spawn("first", nickname="x")], [wait()], say="end"))
        await parent.change_agent(agent.replace(approval="risky"))
        (waits,) = await answer(parent, [send("x", orders([call("write")]))], [wait()])
        assert waits["status"] == "awaiting_approval"


@pytest.mark.parametrize("fork", ["9" * 5000, "-1", True, 0.5])
async def test_odd_words_on_how_much_history_are_refused(store: Store, fork: Any) -> None:
    async with AsyncConversation(lead(), store=store) as parent:
        turn = await parent.run(orders([spawn("x", fork=fork)], say="end"))
        assert turn.calls[0].status == "failed"
        assert await parent.list_agents() == ()


@pytest.mark.parametrize("nickname", ["..", ".", "-", "a/b", "ä", ""])
async def test_a_nickname_is_one_that_can_stand_in_an_address(store: Store, nickname: str) -> None:
    async with AsyncConversation(lead(), store=store) as parent:
        turn = await parent.run(orders([spawn("x", nickname=nickname)], say="end"))
        assert turn.calls[0].status == "failed"


async def test_a_sub_agent_that_sees_little_can_show_no_more_to_its_own(store: Store) -> None:
    heard: dict[str, list[str]] = {}

    def model(asked: Heard) -> Reply:
        if not asked.text.startswith("{"):
            heard[asked.text] = [one["content"] for one in messages_of(asked) if one["role"] == "user"]
        return obedient(asked)

    inner = orders([spawn("with three", fork=3)], [wait()])
    async with AsyncConversation(Agent(scripted(model), sub_agents=True), store=store) as parent:
        for text in ("one", "two", "three"):
            await parent.run(text)
        outer = orders([spawn(inner, fork=1)], [wait()])
        await parent.run(outer)
    assert heard["with three"][1:] == ["three", outer, inner, "with three"]
    assert "2 earlier turns" in heard["with three"][0]


async def test_who_follows_a_sub_agent_hears_that_it_was_stopped_with_its_parent() -> None:
    from forkpoint.backend.callbacks import Update
    from forkpoint.backend.results import Turn
    from forkpoint.engine.engine import Engine

    @tool
    async def hold() -> str:
        """Waits for good."""
        await anyio.sleep_forever()
        return "never"

    heard: dict[str, list[Update]] = {}

    def beside(conversation: str) -> Any:
        return heard.setdefault(conversation, []).append

    agent = lead(tools=[hold])
    async with await open_store("memory:") as store, AsyncConversation(agent, store=store) as made:
        await made.run("Hello")
        backend = Engine(store, options=EngineOptions(beside=beside), owns_store=False)
        info, settings = await backend.find(made.id)
        parent = AsyncConversation.over(backend, info, settings, agent)
        await parent.run(orders([spawn(orders([call("hold")]))], say="Enough."))
        await backend.close()
    (updates,) = heard.values()
    assert isinstance(updates[-1], Turn)
    assert updates[-1].outcome == "cancelled"


async def test_long_answers_of_some_leave_room_for_the_others(store: Store) -> None:
    long = Agent(scripted(lambda asked: Reply("x" * 60_000)))
    async with AsyncConversation(lead(SubAgents(agents={"long": long})), store=store) as parent:
        turn = await parent.run(orders([spawn("x", agent="long") for _ in range(4)], [wait()], say="end"))
        waited = told(next(one.result or "" for one in turn.calls if one.tool == "wait_agent"))
        assert [one["status"] for one in waited] == ["done"] * 4
        assert all("characters left out" in one["answer"] for one in waited)


async def test_what_nobody_foresaw_in_a_sub_agent_is_not_told_in_full(store: Store) -> None:
    def model(asked: Heard) -> Reply:
        if asked.text == "break":
            raise RuntimeError("there is no /secret/folder")
        return obedient(asked)

    async with AsyncConversation(Agent(scripted(model), sub_agents=True), store=store) as parent:
        (failed,) = await answer(parent, [spawn("break")], [wait()])
        assert failed["status"] == "failed"
        assert "secret" not in failed["error"]


async def test_a_task_that_a_tool_left_behind_can_spawn_nothing(store: Store) -> None:
    kept: list[ToolContext] = []

    @tool
    def keep(ctx: ToolContext) -> str:
        """Keeps its context."""
        kept.append(ctx)
        return "kept"

    async with AsyncConversation(lead(tools=[keep]), store=store) as parent:
        await parent.run(orders([call("keep")], say="end"))
        with pytest.raises(SpawnRefused, match="the call has ended"):
            await kept[0].agents.spawn("too late")
        assert (await store.conversations(parent=parent.id)).items == ()


async def test_whoever_asks_a_sub_agent_it_asks_about_what_its_parent_would_have_to_ask_about_now(store: Store) -> None:
    @tool(risky=True)
    def write() -> str:
        """Writes."""
        return "written"

    agent = lead(tools=[write])
    async with AsyncConversation(agent, store=store) as parent:
        await parent.run(orders([spawn("first", nickname="x")], [wait()], say="end"))
        await parent.change_agent(agent.replace(approval="risky"))
        twice = orders([call("write")], [call("write")], say="both")
        turn = await parent.send_to_agent("x", twice)
        assert turn.outcome == "awaiting_approval"
        (member,) = await parent.list_agents()
        async with await AsyncConversation.open(member.conversation, agent=agent, store=store) as child:
            await child.open_turn()
            assert (await child.approve()).outcome == "awaiting_approval"
            assert (await child.approve()).text == "both"
            assert (await child.run(orders([call("write")]))).outcome == "awaiting_approval"


async def test_a_policy_of_a_parent_that_is_a_function_holds_for_its_sub_agents(store: Store) -> None:
    @tool
    def write(what: str) -> str:
        """Writes."""
        return f"written {what}"

    agent = lead(tools=[write], approval=lambda call, tool: "secret" in call.arguments and "it is a secret")
    async with AsyncConversation(agent, store=store) as parent:
        tasks = [orders([call("write", what=what)]) for what in ("secret", "open")]
        turn = await parent.run(orders([spawn(task, fork="all") for task in tasks], [wait()]))
        while turn.outcome == "awaiting_approval":
            turn = await parent.approve()
        assert sorted(one["status"] for one in told(turn.text)) == ["awaiting_approval", "done"]


async def test_who_works_goes_on_while_the_client_answers_a_call(store: Store) -> None:
    agent = lead(client_tools=[ToolSchema("theirs", "The client's.")])
    async with AsyncConversation(agent, store=store) as parent:
        turn = await parent.run(orders([spawn("the work"), call("theirs", "c9")], [wait()]))
        assert [one.id for one in turn.handed] == ["c9"]
        (member,) = await parent.list_agents()
        assert (member.status, member.answer) == ("idle", "Did the work")
        turn = await parent.run(orders([wait()]), results={"c9": "here"})
        assert [one["answer"] for one in told(turn.text)] == ["Did the work"]


async def test_a_blank_message_is_refused_and_nobody_waits_for_it(store: Store) -> None:
    async with AsyncConversation(lead(), store=store) as parent:
        await answer(parent, [spawn("first", nickname="x")], [wait()])
        turn = await parent.run(orders([send("x", "  ")], [wait()], [call("list_agents")], say="end"))
        assert [one.status for one in turn.calls] == ["failed", "done", "done"]


@pytest.mark.parametrize("fork", ["none", "all"])
async def test_a_sub_agent_has_the_shell_environment_that_its_parents_tools_see_at_that_moment(
    store: Store, fork: str, tmp_path: Path
) -> None:
    (tmp_path / "src").mkdir()
    look = call("shell", command="echo in ${PWD##*/} with $MODE")
    async with AsyncConversation(lead(tools=[shell]), store=store, workspace=tmp_path) as parent:
        await parent.run(orders([call("shell", command="export MODE=committed")]))
        rounds = [call("shell", command="cd src; export MODE=staged")], [spawn(orders([look]), fork=fork)], [wait()]
        (done,) = await answer(parent, *rounds)
        assert done["answer"].startswith("in src with staged")
        made = await parent.spawn_agent("later", nickname="outside")
        assert (await made.run(orders([look]))).text.startswith("in src with staged")
        await made.run(orders([call("shell", command="cd ..; export MODE=theirs")]))
        assert (await parent.run(orders([look]))).text.startswith("in src with staged"), (
            "each has its own from there on"
        )


async def test_a_sub_agent_has_nothing_else_of_its_parents_state(store: Store) -> None:
    async with AsyncConversation(lead(), store=store) as parent:
        await parent.update_state({"mine": 1, "shell": {"cwd": "."}})
        await answer(parent, [spawn("the work")], [wait()])
        (member,) = await parent.list_agents()
        child = await opened(store, member.conversation)
        assert await child.agent_state() == {"shell": {"cwd": "."}}
        assert (await child.events())[0].kind == "state_change"
