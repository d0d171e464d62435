"""Whatever goes wrong with a family of sub-agents, each member's turn is whole or not there, and its parent is told.

Disk faults and cancellations are tried at a sample of all statements and awaits, as many as there is time for;
``python -m tests.conversation.faults.family`` tries them all. What must hold after each says
`tests/conversation/faults/family.py`. Processes that are killed are tried elsewhere.
"""

import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from tests.conversation.faults.disk import Disk
from tests.conversation.faults.family import Kind, Matrix
from tests.conversation.support.agents import Signal, call, said, scripted
from tests.conversation.support.team import lead, obedient, orders, send, spawn, told, wait

from forkpoint.agent import Agent, Limits, Role, SubAgents, ToolContext, tool
from forkpoint.conversation import AsyncConversation, Update
from forkpoint.errors import ForkpointError, TurnFailed
from forkpoint.events import SubAgentFinished, SubAgentSpawned, Usage
from forkpoint.llm import Timeouts
from forkpoint.store import Store, open_store
from forkpoint.store.sqlite import SqliteStore
from forkpoint.testing import Fault, Heard, Reply
from forkpoint.updates import CallStarted

pytestmark = pytest.mark.anyio

SECONDS = 1.5  # for each sample
AT_LEAST = 10  # faults, or it proved nothing
PATIENCE = 10  # seconds, after which something hangs

Both: TypeAlias = tuple[SqliteStore, SqliteStore]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with await open_store("memory:") as store:
        yield store


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def both(file: Path) -> AsyncIterator[Both]:
    """A store as two processes have it open."""
    async with await SqliteStore.open(file) as mine, await SqliteStore.open(file) as theirs:
        yield mine, theirs


async def opened(store: Store, id: str) -> AsyncConversation:
    return await AsyncConversation.open(id, store=store, bind=False)


async def words_of(store: Store, id: str) -> list[str]:
    """All that was said in a conversation."""
    return [text for _, text in said(await (await opened(store, id)).events())]


async def outcomes(store: Store, parent: str) -> dict[str, list[str]]:
    """How the turns of the sub-agents ended, by their nicknames."""
    found: dict[str, list[str]] = {}
    for child in (await store.conversations(parent=parent)).items:
        conversation = await opened(store, child.id)
        turns = [one.outcome for one in (await store.turns(child.id)).items if one.kind == "turn"]
        found[(await conversation.info()).nickname or ""] = [*turns, child.status]
    return found


# Struck anywhere.


async def tried(folder: Path, kind: Kind, hows: Sequence[str] = ()) -> None:
    """A sample of all blows, as large as there is time for."""
    matrix = await Matrix.make(folder)
    blows = [blow for blow in matrix.blows(kind) if not hows or blow.how in hows]
    until = time.monotonic() + SECONDS
    struck, problems = 0, []
    for blow in blows:
        if time.monotonic() > until and struck >= AT_LEAST:
            break
        verdict = await matrix.try_one(blow)
        struck += verdict.hit
        problems += [str(verdict)] if verdict.problem is not None else []
    assert not problems, f"{len(problems)} were not handled:\n" + "\n".join(problems[:5])
    assert struck >= AT_LEAST, "hardly any fault struck, so this proved nothing"


async def test_a_disk_that_fails_at_any_statement_leaves_the_family_whole(tmp_path: Path) -> None:
    await tried(tmp_path, "disk")


async def test_a_disk_that_fails_until_it_is_mended_leaves_the_family_whole(tmp_path: Path) -> None:
    await tried(
        tmp_path, "disk", ("i/o errors from here on", "disk full from here on", "fsync failed from here on, landed")
    )


async def test_a_parent_that_is_cancelled_at_any_await_leaves_nothing_at_work(tmp_path: Path) -> None:
    await tried(tmp_path, "cancel")


async def test_the_judge_finds_what_is_wrong(tmp_path: Path) -> None:
    matrix = await Matrix.make(tmp_path)
    matrix.reference = "something else"
    verdict = await matrix.try_one(next(blow for blow in matrix.blows("cancel") if blow.how == "task"))
    assert "the answer is" in (verdict.problem or "")


async def test_a_sub_agent_that_is_being_cancelled_when_its_parent_answers_is_told_as_it_ended(store: Store) -> None:
    async with AsyncConversation(lead(), store=store) as parent:
        for _ in range(10):
            turn = await parent.run(orders([spawn("quick")], say="Enough."))
            (heard,) = [one.body for one in turn.events if isinstance(one.body, SubAgentFinished)]
            assert heard.turn is not None
            assert heard.outcome == (await store.turn(heard.turn)).outcome


# Somebody else, at the same time.


async def test_another_process_that_resumes_a_parent_finds_its_sub_agents(both: Both) -> None:
    gone, both_spawned = anyio.Event(), anyio.Event()

    def follow(update: Update) -> None:
        if isinstance(update, CallStarted) and update.call.tool == "wait_agent":
            both_spawned.set()

    agent, hold = holding(lambda: gone.is_set())
    mine, theirs = both
    parent = AsyncConversation(agent, store=mine, callbacks=[follow])
    order = orders(
        [spawn(orders([call("hold")], say="held"), "s1", nickname="slow", fork="all"), spawn("b", nickname="quick")],
        [wait()],
    )
    async with anyio.create_task_group() as group:
        group.start_soon(losing, parent, order)
        await hold.wait()
        await both_spawned.wait()
        await mine.close()  # this process stalls, and loses all that it holds
        gone.set()
        async with await AsyncConversation.open(parent.id, agent=agent, store=theirs) as again:
            with anyio.fail_after(PATIENCE):
                turn = await again.resume()
        group.cancel_scope.cancel()  # the other one wakes up, too late
    assert {one["agent"]: one.get("answer") for one in told(turn.text)} == {"slow": "held", "quick": "Did b"}
    assert await outcomes(theirs, parent.id) == {"slow": ["committed", "idle"], "quick": ["committed", "idle"]}
    assert (await theirs.verify()).ok


@pytest.mark.parametrize("way", ["supersede", "discard"])
async def test_another_process_that_goes_on_without_a_turn_ends_what_it_had_begun_beneath(both: Both, way: str) -> None:
    agent, hold = holding(lambda: False)
    mine, theirs = both
    parent = AsyncConversation(agent, store=mine)
    inner = orders([spawn(orders([call("hold")]), nickname="inner")], [wait()])
    async with anyio.create_task_group() as group:
        group.start_soon(losing, parent, orders([spawn(inner, nickname="outer")], [wait()]))
        await hold.wait()
        await mine.close()
        async with await AsyncConversation.open(parent.id, agent=agent, store=theirs) as again:
            if way == "discard":
                await again.discard()
            turn = await again.run("Hello", supersede=way == "supersede")
        group.cancel_scope.cancel()
    assert turn.text == "Did Hello"
    assert await outcomes(theirs, parent.id) == {"outer": ["cancelled", "idle"]}
    (outer,) = (await theirs.conversations(parent=parent.id)).items
    assert await outcomes(theirs, outer.id) == {"inner": ["cancelled", "idle"]}


async def test_who_talks_to_a_sub_agent_that_works_hears_that_it_is_busy(both: Both) -> None:
    gate = anyio.Event()
    heard: list[str] = []

    @tool
    async def hold() -> str:
        """Waits for the other."""
        await gate.wait()
        return "held"

    @tool
    async def meddle(ctx: ToolContext) -> str:
        """Somebody else wants something of the sub-agent."""
        (member,) = await ctx.agents.list()
        async with await AsyncConversation.open(member.conversation, agent=agent, store=theirs) as child:
            for act in (child.run("me first"), child.delete(), child.rewind(before=member.turn), parent_of_it.delete()):
                with pytest.raises(ForkpointError) as refused:
                    await act
                heard.append(refused.value.code)
        gate.set()
        return "meddled"

    agent = lead(tools=[hold, meddle])
    mine, theirs = both
    async with AsyncConversation(agent, store=mine) as parent_of_it:
        turn = await parent_of_it.run(orders([spawn(orders([call("hold")], say="held"))], [call("meddle")], [wait()]))
        assert [one["answer"] for one in told(turn.text)] == ["held"]
        assert heard == ["busy"] * 4


async def test_a_sub_agent_that_works_for_somebody_else_takes_no_message(both: Both) -> None:
    agent, hold = holding(lambda: False)
    mine, theirs = both
    async with AsyncConversation(agent, store=mine) as parent:
        await parent.run(orders([spawn("first", nickname="x")], [wait()]))
        (member,) = await parent.list_agents()
        async with (
            await AsyncConversation.open(member.conversation, agent=agent, store=theirs) as child,
            anyio.create_task_group() as group,
        ):
            group.start_soon(losing, child, orders([call("hold")]))
            await hold.wait()
            turn = await parent.run(orders([send("x", "mine")], say="end"))
            (sent,) = turn.calls
            assert sent.status == "failed"
            assert "takes no message now" in (sent.result or "")
            (busy,) = await parent.list_agents()
            assert busy.status == "running"
            await child.cancel()
        (done,) = told((await parent.run(orders([send("x", "mine now")], [wait()]))).text)
        assert done["answer"] == "Did mine now"


async def test_a_message_that_was_given_past_an_interrupted_turn_is_given_once(both: Both) -> None:
    mine, theirs = both
    given, is_over = anyio.Event(), False

    @tool(repeatable=True)
    async def relay(ctx: ToolContext) -> str:
        """Tells the sub-agent something."""
        await ctx.agents.send("x", "mine")
        (member,) = await ctx.agents.wait("x")
        given.set()
        if not is_over:
            await anyio.sleep_forever()
        return member.answer or member.error or ""

    holder, hold = holding(lambda: False)
    agent = holder.replace(tools=[*holder.tools, relay])
    async with AsyncConversation(agent, store=mine) as parent, anyio.create_task_group() as group:
        await parent.run(orders([spawn("first", nickname="x")], [wait()]))
        (member,) = await parent.list_agents()
        child = await AsyncConversation.open(member.conversation, agent=agent, store=theirs)
        group.start_soon(losing, child, orders([call("hold")]))
        await hold.wait()
        await theirs.close()  # somebody else's turn there is interrupted
        group.start_soon(losing, parent, orders([call("relay")]))
        with anyio.fail_after(PATIENCE):
            await given.wait()
            await parent.cancel()
        is_over = True
        assert (await parent.resume()).text == "Did mine"
        assert (await words_of(mine, member.conversation)).count("mine") == 1
        group.cancel_scope.cancel()


async def test_a_sub_agent_that_is_deleted_is_an_error_and_no_hang(both: Both) -> None:
    @tool
    async def erase(ctx: ToolContext) -> str:
        """Somebody else deletes the sub-agent."""
        await ctx.agents.wait()
        (member,) = await ctx.agents.list()
        async with await AsyncConversation.open(member.conversation, store=theirs, bind=False) as child:
            await child.delete()
        return "gone"

    mine, theirs = both
    async with AsyncConversation(lead(tools=[erase]), store=mine) as parent:
        with anyio.fail_after(PATIENCE):
            turn = await parent.run(
                orders([spawn("x", fork="all", nickname="x")], [call("erase")], [send("x", "more")], [wait()])
            )
        (sent,) = [one for one in turn.calls if one.tool == "send_to_agent"]
        assert (sent.status, (sent.result or "").partition(":")[0]) == ("failed", "NotFound")
        (member,) = await parent.list_agents()
        assert (member.status, member.answer) == ("failed", None)
        (again,) = told((await parent.run(orders([wait()]))).text)
        assert again["error"] == "It was deleted."
        assert (await mine.verify()).ok


async def test_a_sub_agent_that_somebody_rewinds_goes_on_from_there(both: Both) -> None:
    @tool
    async def rewind(ctx: ToolContext) -> str:
        """Somebody else takes back what the sub-agent did."""
        (member,) = await ctx.agents.wait()
        async with await AsyncConversation.open(member.conversation, store=theirs, bind=False) as child:
            await child.rewind(before=member.turn)
        return "rewound"

    mine, theirs = both
    async with AsyncConversation(lead(tools=[rewind]), store=mine) as parent:
        order = orders([spawn("first", nickname="x")], [call("rewind")], [send("x", "second")], [wait()])
        (done,) = told((await parent.run(order)).text)
        assert done["answer"] == "Did second"
        (member,) = await parent.list_agents()
        assert (await words_of(theirs, member.conversation))[-2:] == ["second", "Did second"]
        assert (await mine.verify()).ok


# Models and tools of sub-agents.

FAILURES = {
    "an upstream failure": Reply(fault=Fault("status", status=500)),
    "a rate limit": Reply(fault=Fault("rate_limit", retry_after=7)),
    "a spent quota": Reply(fault=Fault("quota")),
    "a model that never speaks": Reply(fault=Fault("hang")),
    "a model that falls silent": Reply("Half an answer", piece=2, fault=Fault("hang", after=2)),
    "a connection that breaks at once": Reply(fault=Fault("cut")),
    "a stream that is cut": Reply("Half an answer", piece=2, fault=Fault("cut", after=3)),
    "an error within the stream": Reply("Half an answer", piece=2, fault=Fault("overloaded", after=3)),
    "a malformed stream": Reply("Half an answer", piece=2, fault=Fault("malformed", after=3)),
    "an answer without an end": Reply("Half an answer", piece=2, fault=Fault("unfinished", after=3)),
    "a refused prompt": Reply(fault=Fault("refused")),
    "a refused answer": Reply(reasoning="Half a thought", piece=2, fault=Fault("refused", after=3)),
    "an empty answer": Reply(fault=Fault("empty")),
    "a prompt that is too long": Reply(fault=Fault("context_too_long")),
    "a script that is broken": Reply("x", calls=(call("look"),), fault=Fault("unfinished_call", after=1)),
}


@pytest.mark.parametrize("at", [1, 2])
async def test_a_model_that_fails_in_one_sub_agent_disturbs_no_other_and_more_can_be_said_to_it(
    store: Store, at: int
) -> None:
    asked: dict[str, int] = {}

    def model(heard: Heard) -> Reply:
        name = heard.text.partition(":")[0]
        if name not in FAILURES:
            return obedient(heard)
        asked[name] = asked.get(name, 0) + 1
        return FAILURES[name] if asked[name] == at else Reply(calls=(call("look"),), usage=Usage(calls=1, input=10))

    llm = scripted(model, timeouts=Timeouts(first=0.3, idle=0.3))
    agent = Agent(llm, tools=[look], sub_agents=SubAgents(most=50))
    async with AsyncConversation(agent, store=store) as parent:
        spawns = [
            spawn(f"{kind}:", nickname=f"n{n}", fork="all" if n % 2 else "none") for n, kind in enumerate(FAILURES)
        ]
        with anyio.fail_after(PATIENCE):
            turn = await parent.run(orders([*spawns, spawn("healthy", nickname="healthy")], [wait()]))
        found = {one["agent"]: one for one in told(turn.text)}
        assert found.pop("healthy")["answer"] == "Did healthy"
        assert {one["status"] for one in found.values()} == {"failed"}, found
        assert all(one["error"] and "answer" not in one for one in found.values())
        assert set(asked.values()) == {at}
        ended = await outcomes(store, parent.id)
        assert {tuple(ends) for name, ends in ended.items() if name != "healthy"} == {("failed", "idle")}
        turn = await parent.run(orders([send(name, "again") for name in found], [wait(agents=list(found))]))
        assert {one["answer"] for one in told(turn.text)} == {"Did again"}
        used = [(await (await opened(store, one.conversation)).stats()).spent for one in await parent.list_agents()]
        stats = await parent.stats()
        assert stats.family == sum(used, stats.spent)


async def test_a_sub_agent_that_reaches_its_own_limits_leaves_its_parents(store: Store) -> None:
    short = Agent(scripted(obedient), tools=[look], limits=Limits(steps=1))
    agent = lead(SubAgents(roles={"short": Role(agent=short)}))
    async with AsyncConversation(agent, store=store) as parent:
        task = orders([call("look")], say="never")
        turn = await parent.run(orders([spawn(task, role="short"), spawn("brief", role="short")], [wait()]))
        failed, done = told(turn.text)
        assert failed["status"] == "failed"
        assert "limit of 1 steps" in failed["error"]
        assert "shared" not in failed["error"]
        assert done["answer"] == "Did brief"


async def test_a_parents_time_that_is_over_stops_its_sub_agents(store: Store) -> None:
    agent, _ = holding(lambda: False)
    async with AsyncConversation(agent.replace(limits=Limits(seconds=0.2)), store=store) as parent:
        task = orders([call("hold")])
        with anyio.fail_after(PATIENCE), pytest.raises(TurnFailed, match="seconds"):
            await parent.run(orders([spawn(task), spawn("quick", fork="all")], [wait()]))
        assert await parent.status() == "idle"
        assert await outcomes(store, parent.id) == {"agent": ["cancelled", "idle"], "agent-2": ["committed", "idle"]}


@pytest.mark.parametrize("way", ["cancel", "answer", "close"])
async def test_a_tool_that_ignores_a_cancellation_is_left_behind(store: Store, way: str) -> None:
    begun, over = Signal(), threading.Event()

    @tool
    def stubborn() -> str:
        """Does not listen."""
        begun.set()
        over.wait(PATIENCE)
        return "late"

    @tool
    async def until_it_works() -> str:
        """Waits for it."""
        await begun.wait()
        return "it works"

    ending = [call("close_agent", agent="x")] if way == "close" else [wait(seconds=0 if way == "answer" else None)]
    order = orders([spawn(orders([call("stubborn")]), nickname="x")], [call("until_it_works")], ending, say="Enough.")
    try:
        async with AsyncConversation(lead(tools=[stubborn, until_it_works]), store=store) as parent:
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as group:
                    group.start_soon(losing, parent, order)
                    await begun.wait()
                    if way == "cancel":
                        await parent.cancel()
            assert not over.is_set()
            assert await outcomes(store, parent.id) == {"x": ["cancelled", "idle"]}
            (child,) = (await store.conversations(parent=parent.id)).items
            (turn,) = (await (await opened(store, child.id)).turns()).items
            assert [one.status for one in turn.calls] == ["unknown"]
            over.set()
            assert await parent.status() == "idle"
    finally:
        over.set()


async def test_a_tool_whose_time_is_over_while_it_spawns_keeps_nobody_waiting(file: Path) -> None:
    slow = threading.Event()

    def meets(sql: str) -> None:
        if "INSERT INTO conversation" in sql and not slow.is_set():
            slow.set()
            time.sleep(0.3)  # a disk that takes its time

    @tool(timeout=0.1)
    async def hasty(ctx: ToolContext) -> str:
        """Has little time."""
        return (await ctx.agents.spawn("x", nickname="x")).status

    async with await SqliteStore.open(file) as store, AsyncConversation(lead(tools=[hasty]), store=store) as parent:
        await parent.run("Hello")
        id = parent.id
    async with (
        await SqliteStore.open(file, connect=Disk(meets).connect) as store,
        await AsyncConversation.open(id, agent=lead(tools=[hasty]), store=store, allow={"model"}) as parent,
    ):
        with anyio.fail_after(PATIENCE):
            turn = await parent.run(orders([call("hasty"), wait()], [wait()], say="end"))
        assert [one.status for one in turn.calls] == ["failed", "done", "done"]
        spawned = [one.body for one in turn.events if isinstance(one.body, SubAgentSpawned)]
        known = {one.conversation for one in await parent.list_agents()}
        worked = {one.id for one in (await store.conversations(parent=id)).items if (await store.turns(one.id)).items}
        assert known == worked == {one.conversation for one in spawned}, "somebody works whom nobody knows"


async def losing(conversation: AsyncConversation, message: str) -> None:
    """A turn of which something may be lost; that is seen elsewhere."""
    with suppress(ForkpointError):
        await conversation.run(message)


def holding(lets_go: Any) -> tuple[Agent, anyio.Event]:
    """An agent that does what it is told, with a tool that waits for good, unless it is let go; and when it does."""
    held = anyio.Event()

    @tool(repeatable=True)
    async def hold() -> str:
        """Waits."""
        held.set()
        if not lets_go():
            await anyio.sleep_forever()
        return "held"

    return lead(tools=[hold]), held


@tool
def look() -> str:
    """Looks."""
    return "seen"
