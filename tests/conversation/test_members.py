"""A conversation and its sub-agents, for whoever uses them from Python: the same in a store and on a server."""

from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.conversation.support.agents import (
    PATIENCE,
    Signal,
    Watcher,
    agent_of,
    asks,
    call,
    messages_of,
    said,
    scripted,
)
from tests.conversation.support.homes import Home

from forkpoint import Agent, AsyncConversation, Conversation, Role, SubAgents, TurnCancelled, TurnFailed, tool
from forkpoint.conversation import Branch, TurnStarted
from forkpoint.errors import BadArgument, Busy, KeyReused, NotFound, NotWhole, SpawnRefused
from forkpoint.testing import Fault, Heard, Reply

pytestmark = pytest.mark.anyio


def counts(heard: Heard) -> Reply:
    """Says what it was told last, and how much it knows."""
    if heard.text == "fail":
        return Reply("", fault=Fault("overloaded"))
    return Reply(f"{heard.text}: {sum(one['role'] == 'user' for one in messages_of(heard))}")


def hangs(heard: Heard) -> Reply:
    return Reply("never heard", piece=1, fault=Fault("hang", after=1)) if heard.text == "hang" else Reply("no")


@tool(risky=True)
def erase(file: str) -> str:
    """Erases something."""
    return f"{file} is gone"


READER = Agent(scripted(counts), instructions="You read.", name="reader")
LEAD = Agent(
    scripted(counts),
    sub_agents=SubAgents(
        agents={"reader": READER},
        roles={"judge": Role("judges", instructions="You judge."), "reads": Role("reads", agent=READER)},
        models=["scripted/echo"],
        depth=2,
        most=3,
    ),
)


def family(branches: Iterable[Branch]) -> Iterator[str]:
    """All conversations of a family."""
    for branch in branches:
        yield branch.info.id
        yield from family(branch.branches)


@pytest.fixture
async def lead(home: Home) -> AsyncIterator[AsyncConversation]:
    async with AsyncConversation(home.agent(LEAD), store=home.store) as conversation:
        yield conversation


# Spawning.


async def test_a_sub_agent_is_a_conversation_of_its_own_that_has_its_task_before_it(lead: AsyncConversation) -> None:
    await lead.run("one")
    async with await lead.spawn_agent("find it", nickname="scout", title="Scouting", tags={"a": "b"}) as child:
        assert [said_ for message in child.pending for said_ in message.parts] != []
        info, parent = await child.info(), await lead.info()
        assert (info.parent, info.path, info.nickname, info.role, info.depth) == (
            lead.id,
            "/root/scout",
            "scout",
            None,
            1,
        )
        assert (info.lineage.kind, info.lineage.source, info.family) == ("sub_agent", lead.id, parent.family)
        assert (info.title, info.tags) == ("Scouting", {"a": "b", "title": "Scouting"})
        turn = await child.run()
        assert (turn.outcome, turn.text) == ("committed", "find it: 1"), "it knows nothing of its parent's history"
        assert child.pending == ()
    (member,) = await lead.list_agents()
    assert (member.conversation, member.path, member.nickname, member.depth) == (child.id, "/root/scout", "scout", 1)
    assert (member.task, member.status, member.answer, member.turn) == ("find it", "idle", "find it: 1", turn.id)
    assert (member.error, member.role) == (None, None)


async def test_a_parent_that_nothing_was_said_to_yet_comes_into_being_with_its_sub_agent(home: Home) -> None:
    async with AsyncConversation(home.agent(LEAD), store=home.store, conversation_id="fresh") as lead:
        async with await lead.spawn_agent("find it") as child:
            assert (await child.info()).parent == lead.id
        async with await AsyncConversation.open("fresh", agent=home.agent(LEAD), store=home.store) as again:
            assert [one.conversation for one in await again.list_agents()] == [child.id]


async def test_a_sub_agent_is_who_it_is_asked_to_be(lead: AsyncConversation) -> None:
    models = {}
    for options in ({"agent": "reader"}, {"role": "reads"}, {"role": "judge"}):
        async with await lead.spawn_agent("who?", **options) as child:  # type: ignore[arg-type]
            info = await child.info()
            models[str(options)] = (info.model, info.role, info.nickname)
            assert (await child.run()).text == "who?: 1"
    reader, lead_model = READER.llm.model, LEAD.llm.model
    assert list(models.values()) == [
        (reader, None, "reader"),
        (reader, "reads", "reads"),
        (lead_model, "judge", "judge"),
    ]


async def test_a_sub_agent_may_be_an_agent_that_the_caller_brings_or_have_a_model_that_is_offered(
    home: Home, lead: AsyncConversation
) -> None:
    own = Agent(scripted(counts), instructions="You are mine.")
    async with await lead.spawn_agent("who?", agent=own) as child:
        assert (await child.info()).model == own.llm.model
        assert child.agent is not None
        assert child.agent.instructions == "You are mine."
        assert (await child.run()).text == "who?: 1"
    async with await lead.spawn_agent("who?", model="scripted/echo") as child:
        assert (await child.info()).model == "scripted/echo"


@pytest.mark.parametrize(
    "options",
    [
        {"fork": "all"},
        {"fork": 3},
        {"fork": "some"},
        {"role": "cook"},
        {"agent": "nobody"},
        {"model": "scripted/other"},
        {"nickname": "a/b"},
    ],
)
async def test_what_cannot_be_is_refused_with_the_reason_and_nothing_is_made(
    lead: AsyncConversation, options: dict[str, Any]
) -> None:
    with pytest.raises(SpawnRefused) as refused:
        await lead.spawn_agent("find it", **options)
    assert len(str(refused.value)) > 40
    assert await lead.list_agents() == ()
    assert list(family(await lead.tree())) == [lead.id]


async def test_what_is_no_task_or_no_agent_is_refused_before_anything_is_made(
    home: Home, lead: AsyncConversation
) -> None:
    with pytest.raises(NotWhole):
        await lead.spawn_agent("  ")
    with pytest.raises(BadArgument, match="agent=3"):
        await lead.spawn_agent("find it", agent=3)  # type: ignore[arg-type]
    assert (await AsyncConversation.list(store=home.store)).items == ()


async def test_there_are_no_more_sub_agents_than_there_may_be_and_they_go_no_deeper(lead: AsyncConversation) -> None:
    children = [await lead.spawn_agent("find it", nickname=name) for name in ("a", "b", "c")]
    with pytest.raises(SpawnRefused, match="3"):
        await lead.spawn_agent("find it")
    await lead.close_agent("a")
    async with await children[1].spawn_agent("deeper") as grandchild:
        info = await grandchild.info()
        assert (info.path, info.depth, info.parent) == ("/root/b/agent", 2, children[1].id)
        with pytest.raises(SpawnRefused, match="2"):
            await grandchild.spawn_agent("deepest")
    for child in [await lead.spawn_agent("find it"), *children]:
        await child.close()


async def test_sub_agents_that_are_spawned_at_once_are_all_there_and_none_too_many(lead: AsyncConversation) -> None:
    made, refused = [], []

    async def spawn(number: int) -> None:
        try:
            async with await lead.spawn_agent(f"task {number}", nickname="scout") as child:
                made.append(child.id)
        except SpawnRefused as error:
            refused.append(error)

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(spawn, number)
    members = await lead.list_agents()
    assert {one.conversation for one in members} == set(made)
    assert sorted(one.path for one in members) == ["/root/scout", "/root/scout-2", "/root/scout-3"]
    assert len(refused) == 2


async def test_a_sub_agent_asks_whenever_its_parent_would(home: Home) -> None:
    own = agent_of([asks(call("erase", "c1", file="a")), "Done."], tools=[erase], name="own")
    careful = agent_of(["unused"], approval="risky", sub_agents=SubAgents(agents={"own": own}))
    async with (
        AsyncConversation(home.agent(careful), store=home.store) as lead,
        await lead.spawn_agent("erase a", agent="own") as child,
    ):
        turn = await child.run()
        assert turn.outcome == "awaiting_approval"
        assert [one.status for one in await lead.list_agents()] == ["awaiting_approval"]
        waiting = await lead.wait_agent("own")
        assert waiting is not None
        assert waiting.id == turn.id
        assert (await child.approve()).text == "Done."
        assert [one.answer for one in await lead.list_agents()] == ["Done."]


async def test_while_a_turn_holds_the_parent_no_sub_agent_is_made_or_closed_from_outside(home: Home) -> None:
    held = Agent(scripted(hangs), sub_agents=True)
    async with AsyncConversation(home.agent(held), store=home.store) as lead:
        async with await lead.spawn_agent("no", nickname="first", key="k") as first:
            pass
        watcher = Watcher()
        async with (
            await AsyncConversation.open(
                lead.id, agent=home.agent(held), store=home.store, callbacks=[watcher]
            ) as other,
            anyio.create_task_group() as group,
        ):

            async def run() -> None:
                with pytest.raises(TurnCancelled):
                    await other.run("hang")

            group.start_soon(run)
            await watcher.until(TurnStarted)
            with pytest.raises(Busy):
                await lead.spawn_agent("no", nickname="second")
            with pytest.raises(Busy):
                await lead.close_agent("first")
            assert [one.nickname for one in await lead.list_agents()] == ["first"]
            async with await lead.spawn_agent("no", nickname="first", key="k") as again:
                assert again.id == first.id, "what was made before is given, whatever runs"
            assert (await lead.send_to_agent("first", "now")).text == "no", "the sub-agent itself is free"
            await other.cancel()


# Talking to it.


async def test_a_sub_agent_is_talked_to_by_its_nickname_its_path_or_its_id(lead: AsyncConversation) -> None:
    async with await lead.spawn_agent("one", nickname="scout") as child:
        await child.run()
    told = [(await lead.send_to_agent(name, "more")) for name in ("scout", "/root/scout", child.id)]
    assert [turn.text for turn in told] == ["more: 2", "more: 3", "more: 4"]
    assert {turn.conversation for turn in told} == {child.id}
    (member,) = await lead.list_agents()
    assert (member.task, member.answer, member.turn) == ("one", "more: 4", told[-1].id)


async def test_whoever_is_no_sub_agent_is_not_found_and_those_that_are_there_are_named(lead: AsyncConversation) -> None:
    async with await lead.spawn_agent("one", nickname="scout"):
        pass
    for ask in (
        lambda: lead.send_to_agent("nobody", "hi"),
        lambda: lead.wait_agent("nobody"),
        lambda: lead.close_agent("nobody"),
        lambda: lead.send_to_agent(lead.id, "hi"),
    ):
        with pytest.raises(NotFound, check=NotFound.no_such_agent.made, match="scout"):
            await ask()
    assert [one.status for one in await lead.list_agents()] == ["idle"]


async def test_a_turn_of_a_sub_agent_that_fails_fails_alone(lead: AsyncConversation) -> None:
    async with await lead.spawn_agent("one", nickname="scout") as child:
        await child.run()
    before = await lead.info()
    with pytest.raises(TurnFailed) as failed:
        await lead.send_to_agent("scout", "fail")
    (member,) = await lead.list_agents()
    assert (member.status, member.answer, member.turn) == ("failed", None, failed.value.id)
    assert member.error is not None
    assert "overloaded" in member.error or "could not answer" in member.error
    assert await lead.info() == before
    assert (await lead.send_to_agent("scout", "more")).text == "more: 2"


async def test_who_wants_to_hear_what_a_sub_agent_does_is_told(lead: AsyncConversation) -> None:
    watcher = Watcher()
    async with await lead.spawn_agent("one", callbacks=[watcher]) as child:
        await child.run()
    assert [one.conversation for one in watcher.of(TurnStarted)] == [child.id]
    other = Watcher()
    turn = await lead.send_to_agent("agent", "more", callbacks=[other])
    assert other.told[-1] == turn


# One key, one effect.


async def test_with_one_key_there_is_one_sub_agent_and_one_turn_of_it(lead: AsyncConversation) -> None:
    made = []
    for _ in range(2):
        async with await lead.spawn_agent("one", nickname="scout", key="k") as child:
            made.append((child.id, (await child.run(key="k-run")).id))
    assert made[0] == made[1]
    assert len(await lead.list_agents()) == 1
    with pytest.raises(KeyReused):
        await lead.spawn_agent("two", nickname="scout", key="k")
    first = await lead.send_to_agent("scout", "more", key="m")
    assert (await lead.send_to_agent("scout", "more", key="m")).id == first.id
    with pytest.raises(KeyReused):
        await lead.send_to_agent("scout", "other", key="m")


async def test_the_task_of_a_sub_agent_with_a_key_is_run_once_also_after_a_restart(home: Home) -> None:
    lead_id = ""
    ended = []
    for _ in range(2):  # the same program twice; the second time all its objects are new
        again = AsyncConversation.open(lead_id, agent=home.agent(LEAD), store=home.store) if lead_id else None
        async with await again if again else AsyncConversation(home.agent(LEAD), store=home.store) as lead:
            lead_id = lead.id
            async with await lead.spawn_agent("one", nickname="scout", key="k") as child:
                ended.append(await child.run())
                assert child.pending == ()
                assert (await child.run("more")).text == f"more: {len(ended) + 1}", "another message is another turn"
    assert ended[0] == ended[1]
    assert ended[0].text == "one: 1"


async def test_the_task_of_a_sub_agent_that_failed_is_run_again_with_its_key(lead: AsyncConversation) -> None:
    for _ in range(2):
        async with await lead.spawn_agent("fail", nickname="scout", key="k") as child:
            with pytest.raises(TurnFailed):
                await child.run()
            tries = (await child.turns()).items
    assert [turn.outcome for turn in tries] == ["failed", "failed"]


async def test_the_retry_of_a_task_with_a_key_is_the_answer_to_the_same_request(home: Home) -> None:
    agent = agent_of([Reply("", fault=Fault("overloaded")), "at last", "once more"], sub_agents=True)
    async with AsyncConversation(home.agent(agent), store=home.store) as lead:
        async with await lead.spawn_agent("one", nickname="scout", key="k") as child:
            with pytest.raises(TurnFailed):
                await child.run()
            retried = await child.retry()
        async with await lead.spawn_agent("one", nickname="scout", key="k") as child:
            assert await child.run() == retried
            assert [turn.outcome for turn in (await child.turns()).items] == ["failed", "committed"]


async def test_a_sub_agent_that_was_deleted_is_made_anew_with_its_key_and_works(lead: AsyncConversation) -> None:
    async with await lead.spawn_agent("one", nickname="scout", key="k") as child:
        await child.run()
        await child.delete()
    async with await lead.spawn_agent("one", nickname="other", key="l") as child:
        await child.run()
    async with await lead.spawn_agent("one", nickname="scout", key="k") as child:
        assert (await child.run()).text == "one: 1"


async def test_equal_requests_at_once_make_one_sub_agent_while_its_parent_moves(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'a.db'}"
    async with AsyncConversation(Agent(scripted(counts), sub_agents=True), store=store) as lead:
        await lead.run("hello")
        for round in range(5):
            made: list[str] = []

            async def spawn(key: str = f"k{round}", made: list[str] = made) -> None:
                async with await lead.spawn_agent("one", key=key) as child:
                    await child.run()
                    made.append(child.id)

            async def move() -> None:
                for step in range(5):
                    await lead.update_state({"step": str(step)})

            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(spawn)
                tasks.start_soon(move)
            assert len(made) == 4
            assert len(set(made)) == 1
            assert len(await lead.list_agents()) == round + 1


async def test_the_task_of_a_sub_agent_with_another_message_beside_it_is_not_run_twice_either(
    lead: AsyncConversation,
) -> None:
    async with await lead.spawn_agent("one", nickname="scout", key="k") as child:
        await child.run()
    async with await lead.spawn_agent("one", nickname="scout", key="k") as child:
        with pytest.raises(KeyReused):
            await child.run("and this")
        assert len((await child.turns()).items) == 1


# Waiting.


async def test_waiting_gives_the_newest_turn_whatever_it_came_to(lead: AsyncConversation) -> None:
    async with await lead.spawn_agent("one", nickname="scout") as child:
        assert await lead.wait_agent("scout") is None, "nothing was run there yet"
        turn = await child.run()
        assert await lead.wait_agent("scout", timeout=0) == turn
        with pytest.raises(TurnFailed) as failed:
            await child.run("fail")
        newest = await lead.wait_agent("/root/scout")
        assert newest is not None
        assert (newest.id, newest.outcome) == (failed.value.id, "failed")


async def test_waiting_lasts_until_nothing_runs_there_and_no_longer_than_it_is_to(home: Home) -> None:
    go = Signal()

    @tool
    async def hold() -> str:
        """Waits."""
        await go.wait()
        return "went"

    holder = agent_of([asks(call("hold")), "Done."], tools=[hold], sub_agents=True)
    async with (
        AsyncConversation(home.agent(holder), store=home.store) as lead,
        await lead.spawn_agent("hold on", nickname="holder") as child,
    ):
        watcher = Watcher()
        heard: list[Any] = []
        async with anyio.create_task_group() as group, child.run_stream() as stream:
            assert isinstance(await stream.__anext__(), TurnStarted)
            assert await lead.wait_agent("holder", timeout=0.02) is None
            assert [one.status for one in await lead.list_agents()] == ["running"]

            async def wait() -> None:
                with anyio.fail_after(PATIENCE):
                    heard.append(await lead.wait_agent("holder"))

            group.start_soon(wait)
            go.set()
            async for update in stream:
                watcher(update)
        assert heard == [stream.turn]


# Closing.


async def test_a_sub_agent_that_is_closed_can_be_read_and_forked_and_no_longer_be_talked_to(
    home: Home, lead: AsyncConversation
) -> None:
    async with await lead.spawn_agent("one", nickname="scout") as child:
        turn = await child.run()
        closed = await lead.close_agent("scout")
        assert (closed.status, closed.answer, closed.conversation) == ("closed", "one: 1", child.id)
        assert await lead.close_agent("scout") == closed, "once more changes nothing"
        assert await lead.list_agents() == (closed,)
        with pytest.raises(SpawnRefused, check=SpawnRefused.agent_closed.made, match="scout"):
            await lead.send_to_agent("scout", "more")
        assert (await child.turn(turn)).text == "one: 1"
        async with await child.fork() as fork:
            info = await fork.info()
            assert (info.lineage.kind, info.parent, info.path) == ("fork", None, None), "a fork of it is nobody's"
            assert (await fork.run("more")).text == "more: 2"
    async with await lead.spawn_agent("one", nickname="scout") as another:
        assert another.id != child.id


async def test_closing_cancels_what_runs_there(home: Home) -> None:
    hanging = Agent(scripted(hangs), sub_agents=True)
    async with (
        AsyncConversation(home.agent(hanging), store=home.store) as lead,
        await lead.spawn_agent("hang", nickname="scout") as child,
    ):
        async with anyio.create_task_group() as group:
            watcher = Watcher()

            async def run() -> None:
                with pytest.raises(TurnCancelled):
                    await lead.send_to_agent("scout", "hang", callbacks=[watcher])

            group.start_soon(run)
            await watcher.until(TurnStarted)
            assert (await lead.close_agent("scout")).status == "closed"
        assert await child.status() == "idle"
        (turn,) = (await child.turns()).items
        assert turn.outcome == "cancelled"


# Branches.


async def test_in_a_fork_of_the_parent_the_first_message_to_a_sub_agent_forks_it(lead: AsyncConversation) -> None:
    async with await lead.spawn_agent("one", nickname="scout") as child:
        await child.run()
        async with await lead.fork() as fork:
            (shared,) = await fork.list_agents()
            assert (shared.conversation, shared.answer) == (child.id, "one: 1")
            turn = await fork.send_to_agent("scout", "elsewhere")
            assert turn.text == "elsewhere: 2", "it knows what was said to it before"
            assert turn.conversation != child.id
            (theirs,) = await fork.list_agents()
            assert (theirs.conversation, theirs.nickname) == (turn.conversation, "scout")
            assert (await fork.send_to_agent("scout", "again")).conversation == turn.conversation, "forked once"
        assert said(await child.events())[-1] == ("assistant", "one: 1"), "the one here is as it was"
        (member,) = await lead.list_agents()
        assert (member.conversation, member.answer) == (child.id, "one: 1")


async def test_messages_to_a_sub_agent_of_another_branch_that_come_at_once_fork_it_once(
    lead: AsyncConversation,
) -> None:
    async with await lead.spawn_agent("one", nickname="scout") as child:
        await child.run()
    reached = set()
    async with await lead.fork() as fork:

        async def reach() -> None:
            async with await fork._reached("scout") as theirs:
                reached.add(theirs.id)

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(reach)
        assert reached == {one.conversation for one in await fork.list_agents()}
        first = await fork.send_to_agent("scout", "more", key="k")
        assert (await fork.send_to_agent("scout", "more", key="k")).id == first.id
    assert child.id not in reached


async def test_while_a_turn_holds_a_fork_of_the_parent_no_sub_agent_is_forked_for_it(home: Home) -> None:
    held = Agent(scripted(hangs), sub_agents=True)
    watcher = Watcher()
    async with (
        AsyncConversation(home.agent(held), store=home.store) as lead,
        await lead.spawn_agent("no", nickname="scout") as child,
        await lead.fork(callbacks=[watcher]) as fork,
        anyio.create_task_group() as group,
    ):
        await child.run()

        async def run() -> None:
            with pytest.raises(TurnCancelled):
                await fork.run("hang")

        group.start_soon(run)
        await watcher.until(TurnStarted)
        with pytest.raises(Busy):
            await fork.send_to_agent("scout", "more")
        await fork.cancel()
        assert set(family(await lead.tree())) == {lead.id, child.id, fork.id}, "nothing is left over"


async def test_deleting_the_parent_deletes_its_sub_agents(home: Home, lead: AsyncConversation) -> None:
    async with await lead.spawn_agent("one") as child:
        pass
    await lead.delete()
    with pytest.raises(NotFound):
        await AsyncConversation.open(child.id, store=home.store, bind=False)


# Without await.


def test_the_same_without_await(home: Home) -> None:
    with Conversation(home.agent(LEAD), store=home.store) as lead:
        with lead.spawn_agent("one", nickname="scout", key="k") as child:
            turn = child.run()
        assert lead.wait_agent("scout", timeout=1) == turn
        assert lead.send_to_agent("scout", "more").text == "more: 2"
        assert [one.answer for one in lead.list_agents()] == ["more: 2"]
        assert lead.close_agent("scout").status == "closed"
