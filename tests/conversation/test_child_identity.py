"""Whose cache key a sub-agent shows: decided when it is made, kept with it, and never taken from anybody later."""

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tests.conversation.support.agents import PATIENCE
from tests.conversation.support.families import Explorers, asks_for, first_requests, llm_at, shown
from tests.conversation.support.homes import Home

from forkpoint import Agent, AsyncConversation, Role, SubAgents
from forkpoint.conversation import Info
from forkpoint.conversation.place import close_all
from forkpoint.events import ManifestChanged
from forkpoint.llm import CacheIdentity, own_identity
from forkpoint.testing import ModelServer

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server(places: None) -> Iterator[ModelServer]:
    with Explorers().serve() as server:
        yield server


def lead_at(server: ModelServer, instructions: str = "You lead.") -> Agent:
    """An agent that can have sub-agents of each kind."""
    other = Agent(llm_at(server, "chat"), instructions="You are another.", sub_agents=True)
    roles = {
        "explorer": Role("explores", instructions="Look closely."),
        "other": Role("is another", agent=other),
        "guardian": Role("reviews", guardian=True),
    }
    models = [llm_at(server, "chat", "another-model")]
    return Agent(
        llm_at(server, "chat"),
        instructions=instructions,
        sub_agents=SubAgents(roles=roles, agents={"other": other}, models=models),
    )


async def begun(server: ModelServer, home: Home, agent: Agent | None = None) -> AsyncConversation:
    """A parent with a history."""
    parent = AsyncConversation(home.agent(agent or lead_at(server)), store=home.store)
    await parent.run("Hello.")
    return parent


async def made(parent: AsyncConversation, task: str = "the shore", fork: str | int = "all", **how: str) -> Info:
    """The sub-agent that a model's call makes. It has done its task."""
    turn = await parent.run(asks_for(task, fork=fork, **how))
    assert f"I saw {task}." in turn.text
    return await info_of(parent, (await parent.list_agents())[-1].conversation)


async def info_of(parent: AsyncConversation, id: str) -> Info:
    waiting = list(await parent.tree())
    while waiting:
        branch = waiting.pop()
        if branch.info.id == id:
            return branch.info
        waiting += branch.branches
    raise AssertionError(f"{id} is not in the family")


async def stored(home: Home, id: str) -> CacheIdentity:
    """The identity that stands in the file, for whoever opens the conversation next."""
    async with await home.opened() as store:
        return CacheIdentity.from_json((await store.read(id)).cache)


def shows(identity: CacheIdentity) -> tuple[str, str]:
    return identity.key, identity.session


# When it is made.


@pytest.mark.parametrize("fork", ["all", 1])
async def test_a_forked_child_inherits_its_parents_identity_and_keeps_it(
    server: ModelServer, home: Home, fork: str | int
) -> None:
    parent = await begun(server, home)
    child = await made(parent, fork=fork, role="explorer")
    own = own_identity(parent.id)
    assert child.id != parent.id
    assert shows(child.cache) == shows(own)
    assert (child.cache.inherited_from, child.cache.dropped) == (parent.id, None)
    assert await stored(home, child.id) == child.cache
    assert shown(first_requests(server.requests)["the shore"]) == shows(own)
    assert await parent.cache() == own


async def test_a_fresh_child_has_its_own(server: ModelServer, home: Home) -> None:
    parent = await begun(server, home)
    child = await made(parent, fork="none")
    assert child.cache == await stored(home, child.id) == own_identity(child.id)
    assert shown(first_requests(server.requests)["the shore"]) == shows(own_identity(child.id))
    assert await parent.cache() == own_identity(parent.id)


async def test_a_fresh_child_that_is_spawned_from_outside_has_its_own(server: ModelServer, home: Home) -> None:
    parent = await begun(server, home)
    async with await parent.spawn_agent("the shore") as child:
        await child.run()
        assert await child.cache() == await stored(home, child.id) == own_identity(child.id)
    assert shown(server.last) == shows(own_identity(child.id))


@pytest.mark.parametrize("how", [{"role": "other"}, {"agent": "other"}, {"model": "openai/another-model"}], ids=str)
async def test_a_forked_child_with_another_manifest_drops_the_key_and_says_why(
    server: ModelServer, home: Home, how: dict[str, str]
) -> None:
    parent = await begun(server, home)
    child = await made(parent, **how)
    assert shows(child.cache) == shows(own_identity(child.id))
    assert child.cache.inherited_from is None
    assert child.cache.dropped is not None
    assert f"inherited from {parent.id}, dropped" in child.cache.dropped
    assert await stored(home, child.id) == child.cache
    assert shown(first_requests(server.requests)["the shore"]) == shows(child.cache)


@pytest.mark.parametrize("fork", ["all", "none"])
async def test_a_guardian_has_its_own_whatever_it_knows(server: ModelServer, home: Home, fork: str) -> None:
    parent = await begun(server, home)
    child = await made(parent, fork=fork, role="guardian")
    assert child.cache == await stored(home, child.id) == own_identity(child.id), "nothing was dropped: it had none"
    assert shown(first_requests(server.requests)["the shore"]) == shows(own_identity(child.id))


async def test_a_child_inherits_what_its_parent_shows_and_not_what_it_would_show_by_itself(
    server: ModelServer, home: Home
) -> None:
    root = await begun(server, home)
    parent = await root.fork(cache="inherit")
    child = await made(parent)
    assert shows(child.cache) == shows(own_identity(root.id))
    assert child.cache.inherited_from == parent.id
    grandchild_task = asks_for("the hill")
    await parent.run(asks_for(grandchild_task))
    firsts = first_requests(server.requests)
    assert shown(firsts["the hill"]) == shown(firsts[grandchild_task]) == shows(own_identity(root.id))


async def test_a_child_of_a_parent_that_has_lost_its_inherited_key_inherits_the_one_it_shows_now(
    server: ModelServer, home: Home
) -> None:
    root = await begun(server, home)
    parent = await root.fork(cache="inherit")
    await parent.change_agent(home.agent(lead_at(server, "You lead otherwise.")))
    child = await made(parent)  # the turn that notices the other manifest spawns it
    assert shows(child.cache) == shows(own_identity(parent.id))
    assert (child.cache.inherited_from, child.cache.dropped) == (parent.id, None)
    assert shown(first_requests(server.requests)["the shore"]) == shows(own_identity(parent.id))


# When it is opened later.


async def test_who_a_child_is_comes_back_from_the_store(server: ModelServer, home: Home) -> None:
    agent = lead_at(server)
    parent = await begun(server, home, agent)
    deep = asks_for("the hill", role="explorer", nickname="climber")
    await parent.run(asks_for(deep, role="explorer"))
    (child,) = await parent.list_agents()
    await close_all()
    async with await AsyncConversation.open(child.conversation, agent=home.agent(agent), store=home.store) as again:
        info, (grandchild,) = await again.info(), await again.list_agents()
    assert (info.parent, info.role, info.nickname) == (parent.id, "explorer", "explorer")
    assert (info.path, info.depth) == ("/root/explorer", 1)
    assert (info.lineage.kind, info.lineage.source, info.family) == ("sub_agent", parent.id, parent.id)
    async with await AsyncConversation.open(grandchild.conversation, store=home.store) as again:
        info = await again.info()
    assert (info.parent, info.role, info.nickname) == (child.conversation, "explorer", "climber")
    assert (info.path, info.depth) == ("/root/explorer/climber", 2)


async def test_a_forked_child_that_is_opened_later_goes_on_with_the_key_that_it_inherited(
    server: ModelServer, home: Home
) -> None:
    agent = lead_at(server)
    parent = await begun(server, home, agent)
    child = await made(parent)
    await close_all()
    async with await AsyncConversation.open(child.id, agent=home.agent(agent), store=home.store) as again:
        await again.run("And the hill?")
        assert await again.cache() == child.cache
    assert shown(server.last) == shows(own_identity(parent.id))
    assert server.last.blocks[: len((first := first_requests(server.requests)["the shore"]).blocks)] == first.blocks


async def test_a_fresh_child_that_is_opened_beside_its_live_parent_keeps_its_own_key(
    server: ModelServer, home: Home
) -> None:
    agent = lead_at(server)
    parent = await begun(server, home, agent)
    child = await made(parent, fork="none")
    async with await AsyncConversation.open(child.id, agent=home.agent(agent), store=home.store) as again:
        with server.holding():  # while its parent is at work
            async with parent.run_stream("And the hill?"):
                await server.heard(len(server.requests) + 1)
                assert await again.cache() == own_identity(child.id)
        await again.run("And the valley?")
    assert shown(first_requests(server.requests)["And the valley?"]) == shows(own_identity(child.id))
    assert shown(first_requests(server.requests)["And the hill?"]) == shows(own_identity(parent.id))


async def test_a_child_keeps_its_key_when_its_parent_has_another_by_now(server: ModelServer, home: Home) -> None:
    """Nothing is looked up at the parent when a child is opened: what was persisted holds."""
    agent = lead_at(server)
    root = await begun(server, home, agent)
    parent = await root.fork(cache="inherit")
    child = await made(parent)
    await parent.change_agent(home.agent(lead_at(server, "You lead otherwise.")))
    await parent.run("Who are you?")
    assert shown(server.last) == shows(own_identity(parent.id)), "the parent should have lost the key that it inherited"
    async with await AsyncConversation.open(child.id, agent=home.agent(agent), store=home.store) as again:
        await again.run("And the hill?")
        assert await again.cache() == child.cache
    assert shown(server.last) == shows(own_identity(root.id))


async def test_a_child_that_dropped_the_key_does_not_get_it_back_by_being_opened(
    server: ModelServer, home: Home
) -> None:
    agent = lead_at(server)
    parent = await begun(server, home, agent)
    child = await made(parent)
    async with await AsyncConversation.open(child.id, agent=home.agent(agent), store=home.store) as again:
        await again.change_agent(home.agent(lead_at(server, "You explore otherwise.")))
        await again.run("one")
        dropped = await again.cache()
        assert shows(dropped) == shows(own_identity(child.id))
        assert f"inherited from {parent.id}, dropped" in (dropped.dropped or "")
        noted = (await again.events(kinds=["manifest_changed"]))[-1].body
        assert isinstance(noted, ManifestChanged)
        assert f"inherited from {parent.id}, dropped" in (noted.reason or "")
        await again.change_agent(home.agent(agent))
    await close_all()
    async with await AsyncConversation.open(child.id, agent=home.agent(agent), store=home.store) as again:
        await again.run("two")
        assert await again.cache() == dropped
    assert shown(server.last) == shows(own_identity(child.id))
    assert await stored(home, parent.id) == own_identity(parent.id)


async def test_a_parent_that_talks_to_its_child_in_a_later_turn_changes_nothing_about_it(
    server: ModelServer, home: Home
) -> None:
    parent = await begun(server, home)
    warm, cold = await made(parent, "the shore"), await made(parent, "the hill", fork="none")
    for child in (warm, cold):
        await parent.send_to_agent(child.id, f"Once more, {child.nickname}.")
        assert shown(server.last) == shows(child.cache)
        assert await stored(home, child.id) == child.cache


async def test_another_process_finds_each_child_as_it_was_made(server: ModelServer, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    agent = lead_at(server)
    async with AsyncConversation(agent, store=store) as parent:
        await parent.run("Hello.")
        warm, cold = await made(parent, "the shore", role="explorer"), await made(parent, "the hill", fork="none")
    program = textwrap.dedent("""
        import json, sys
        from forkpoint import Conversation
        for id in sys.argv[2:]:
            with Conversation.open(id, store=sys.argv[1]) as child:
                child.run("And now?")
                info = child.info()
                print(json.dumps([info.parent, info.path, info.nickname, info.role, info.depth, info.cache.to_json()]))
    """)
    command = [sys.executable, "-c", program, store, warm.id, cold.id]
    with anyio.fail_after(PATIENCE):
        said = (await anyio.run_process(command, cwd=ROOT, stderr=None)).stdout
    assert [json.loads(line) for line in said.splitlines()] == [
        [one.parent, one.path, one.nickname, one.role, one.depth, one.cache.to_json()] for one in (warm, cold)
    ]
    assert [shown(request) for request in server.requests[-2:]] == [shows(warm.cache), shows(cold.cache)]
    assert (warm.path, cold.path) == ("/root/explorer", "/root/agent")


# What is forked from it.


@pytest.mark.parametrize("fork", ["all", "none"])
async def test_a_fork_of_a_child_has_its_own_or_inherits_on_request(server: ModelServer, home: Home, fork: str) -> None:
    agent = lead_at(server)
    parent = await begun(server, home, agent)
    child = await made(parent, fork=fork)
    async with await AsyncConversation.open(child.id, agent=home.agent(agent), store=home.store) as again:
        own, warm = await again.fork(), await again.fork(cache="inherit")
    assert await own.cache() == own_identity(own.id)
    inherited = await warm.cache()
    assert shows(inherited) == shows(child.cache)
    assert inherited.inherited_from == child.id, "it is the child's, however the child came by it"
    for one in (own, warm):
        await one.run("And the hill?")
        assert shown(server.last) == shows(await one.cache())
        assert (await one.info()).lineage.kind == "fork"
    assert await stored(home, child.id) == child.cache


async def test_a_child_that_a_fork_of_its_parent_talks_to_is_forked_with_a_key_of_its_own(
    server: ModelServer, home: Home
) -> None:
    parent = await begun(server, home)
    child = await made(parent)
    branch = await parent.fork(cache="inherit")
    await branch.send_to_agent(child.nickname or "", "And the hill?")
    (theirs,) = await branch.list_agents()
    assert theirs.conversation != child.id
    info = await info_of(parent, theirs.conversation)
    assert info.cache == own_identity(theirs.conversation)
    assert (info.parent, info.path, info.nickname) == (branch.id, child.path, child.nickname)
    assert shown(server.last) == shows(own_identity(theirs.conversation))
    assert [one.conversation for one in await parent.list_agents()] == [child.id]
    assert await stored(home, child.id) == child.cache
