"""`keep()`: a branch's head becomes that of the conversation, and what stood there is set aside. And `rename()`."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from msgspec.structs import replace
from tests.conversation.support.agents import Signal, agent_of
from tests.conversation.support.homes import Home
from tests.conversation.support.other_process import heard, start
from tests.conversation.support.tools import agent as obedient
from tests.conversation.test_cache_keys import agent_at, answer, each_wire, history_of, llm_at, shown, shows, unmarked

from forkpoint import Agent, AsyncConversation, AsyncConversations, Conversation, Limits, Tool, tool
from forkpoint.agent.hooks.hook import Hook
from forkpoint.agent.stored.document import bind
from forkpoint.agent.team.offer import Role, SubAgents
from forkpoint.backend.settings import Settings
from forkpoint.errors import (
    AlreadyExists,
    BadArgument,
    BadName,
    Busy,
    CannotKeep,
    KeyReused,
    NoAgent,
    NotFound,
    Stale,
    TurnOpen,
)
from forkpoint.events import ManifestChanged, Text, ToolCall, UserMessage
from forkpoint.ids import new_id
from forkpoint.llm import own_identity
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.store.protocol import Store
from forkpoint.store.values import Lineage, NewConversation
from forkpoint.testing import ModelServer, Reply, Script, ScriptedCall, SimulatedCache

pytestmark = pytest.mark.anyio

ECHO = Agent("scripted/echo", instructions="Be brief.")
LONG = Agent("scripted/echo", instructions="Be long.")


@pytest.fixture
async def store(home: Home, places: None) -> AsyncIterator[Store]:
    """What stands behind the home, for whoever looks at what is stored."""
    async with await home.opened() as store:
        yield store


@pytest.fixture
async def build(home: Home, store: Store) -> AsyncConversation:
    """Two turns, under a name that people know."""
    build = AsyncConversation(
        home.agent(ECHO), conversation_id="build", store=home.store, title="Build 1234", tags={"kind": "ci"}
    )
    await build.run("one")
    await build.run("two")
    return build


async def another(build: AsyncConversation, home: Home, agent: Agent | None = LONG) -> AsyncConversation:
    """A branch that has gone another way after the first turn."""
    first = (await build.turns()).items[0]
    branch = await build.fork(at=first, agent=None if agent is None else home.agent(agent), conversation_id=None)
    await branch.run("other")
    return branch


async def said(conversation: AsyncConversation) -> list[str]:
    bodies = [event.body for event in await conversation.events(kinds=["user_message"])]
    parts = [part for body in bodies if isinstance(body, UserMessage) for part in body.parts]
    return [part.text for part in parts if isinstance(part, Text)]


async def kept(conversation: AsyncConversation, branch: AsyncConversation | str, **more: Any) -> AsyncConversation:
    """Keeps a branch, and gives what was set aside, which must be there."""
    aside = await conversation.keep(branch, **more)
    assert aside is not None
    return aside


# The head, and what stays.


async def test_the_head_goes_to_the_branch_under_the_old_name_and_back(
    home: Home, store: Store, build: AsyncConversation
) -> None:
    branch = await another(build, home)
    before, theirs = await store.read(build.id), await store.read(branch.id)
    aside = await kept(build, branch)
    now = await store.read(build.id)
    assert (await said(build), await said(branch), await said(aside)) == (
        ["one", "other"],
        ["one", "other"],
        ["one", "two"],
    )
    assert await store.read(branch.id) == theirs, "the branch stays as it is"
    for field in ("id", "name", "title", "tags", "family", "lineage", "created", "status", "carries_metrics"):
        assert getattr(now, field) == getattr(before, field), f"keep has changed the {field}"
    first = (await build.turns()).items[0].id
    shared = [event.id for event in await build.events() if event.turn == first]
    assert (await aside.info()).lineage == Lineage("aside", build.id, shared[-1])
    await build.run("on")
    back = await kept(build, aside)
    assert (await said(build), await said(back)) == (["one", "two"], ["one", "other", "on"])
    undone = await store.read(build.id)
    assert (undone.head, undone.settings, undone.cache) == (before.head, before.settings, before.cache)
    assert (await store.read(aside.id)).settings == before.settings
    assert [one.kind for one in (await store.records(build.id)).items][-3:] == ["kept", "committed", "kept"]
    assert (await store.verify()).ok


@pytest.mark.parametrize("how", ["object", "id", "name"])
async def test_a_branch_is_named_by_itself_its_id_or_its_name(home: Home, build: AsyncConversation, how: str) -> None:
    branch = await another(build, home, agent=None)
    await branch.rename("second-try")
    await kept(build, branch if how == "object" else branch.id if how == "id" else "second-try")
    assert await said(build) == ["one", "other"]


async def test_a_branch_that_went_on_from_the_head_sets_nothing_aside(home: Home, build: AsyncConversation) -> None:
    branch = await build.fork()
    await branch.run("three")
    stats = await build.stats()
    assert await build.keep(branch) is None
    assert await said(build) == ["one", "two", "three"]
    assert (await build.stats()).spent == stats.spent
    assert await build.keep(branch) is None, "it stands there already"
    assert (await build.info()).revision == 3


async def test_an_agent_that_would_be_lost_is_set_aside(home: Home, store: Store, build: AsyncConversation) -> None:
    branch = await build.fork(agent=home.agent(LONG))
    await branch.run("three")
    settings = (await store.read(build.id)).settings
    aside = await kept(build, branch)
    assert await said(aside) == ["one", "two"]
    await kept(build, aside)
    assert (await store.read(build.id)).settings == settings


async def test_several_keeps_and_undos_stand_in_the_tree_and_count_every_token_once(
    home: Home, store: Store, build: AsyncConversation
) -> None:
    branches = [await another(build, home), await another(build, home, agent=None)]
    asides = [await kept(build, branch) for branch in branches]
    asides.append(await kept(build, asides[0]))
    (root,) = await build.tree()
    found = {one.info.id: (one.info.lineage.kind, one.info.lineage.source) for one in root.branches}
    expected = {branch.id: ("fork", build.id) for branch in branches} | {
        aside.id: ("aside", build.id) for aside in asides
    }
    assert (root.info.name, found) == ("build", expected)
    everyone = [build, *branches, *asides]
    stats = [await one.stats() for one in everyone]
    assert {one.family.calls for one in stats} == {4}
    assert sum(one.spent.calls for one in stats) == 4
    listed = {info.id for info in (await AsyncConversation.list(store=home.store)).items}
    assert listed == {one.id for one in everyone}
    assert (await store.verify()).ok


# What is refused.


async def test_what_cannot_be_kept_is_refused_and_nothing_has_changed(
    home: Home, store: Store, build: AsyncConversation
) -> None:
    branch = await another(build, home)
    stranger = AsyncConversation(home.agent(ECHO), store=home.store)
    await stranger.run("elsewhere")
    child = NewConversation(
        id=new_id(), family=build.id, settings=Settings.of(ECHO, None).to_json(), lineage=Lineage("sub_agent", build.id)
    )
    await store.create(child)
    before = await store.read(build.id)
    for other, code in (
        (stranger, "cannot_keep"),
        (build, "keeps_itself"),
        ("build", "keeps_itself"),
        (child.id, "cannot_keep"),
    ):
        with pytest.raises(CannotKeep) as refused:
            await build.keep(other)
        assert refused.value.code == code
    for missing in ("nobody", new_id()):
        with pytest.raises(NotFound):
            await build.keep(missing)
    with pytest.raises(Stale):
        await build.keep(branch, if_revision=7)
    new = AsyncConversation(home.agent(ECHO), conversation_id="new", store=home.store)
    with pytest.raises(CannotKeep):
        await new.keep(branch)
    with pytest.raises(NotFound):
        await store.find("new")
    assert await store.read(build.id) == before
    await kept(build, branch, if_revision=before.revision)


async def test_a_running_or_waiting_turn_here_is_in_the_way_and_one_in_the_branch_is_not(
    home: Home, places: None
) -> None:
    signals = [(Signal(), Signal()), (Signal(), Signal())]  # of the turn in the branch, and of the one here
    runs = iter(signals)

    @tool(risky=True)
    async def risky() -> str:
        """Waits."""
        return "done"

    @tool
    async def hold() -> str:
        """Waits until it is told."""
        begun, go = next(runs)
        begun.set()
        await go.wait()
        return "held"

    replies = {
        "hold": Reply(calls=(ScriptedCall("hold", "{}", "h"),)),
        "risky": Reply(calls=(ScriptedCall("risky", "{}", "r"),)),
    }

    def reply(heard: Any) -> Reply:
        return (
            replies.get(heard.text, Reply("Done.")) if heard.body["messages"][-1]["role"] == "user" else Reply("Done.")
        )

    agent = agent_of(reply, tools=[risky, hold], approval="risky")
    build = AsyncConversation(home.agent(agent), store=home.store)
    first = await build.run("one")
    branch = await build.fork(before=first)
    await branch.run("other")
    (begun, go), (begun_here, go_here) = signals
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(branch.run, "hold")
        await begun.wait()
        aside = await kept(build, branch)
        assert (await branch.status(), await said(build)) == ("running", ["other"])
        go.set()
    assert await said(build) == ["other"], "only what was committed is kept"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(build.run, "hold")
        await begun_here.wait()
        with pytest.raises(Busy):
            await build.keep(aside)
        go_here.set()
    assert (await build.run("risky")).outcome == "awaiting_approval"
    with pytest.raises(TurnOpen):
        await build.keep(aside)
    await build.discard()
    await kept(build, aside)
    assert await said(build) == ["one"]


async def test_a_branch_that_waits_for_the_clients_own_tools_is_kept_once_they_are_answered(
    home: Home, places: None
) -> None:
    def reply(heard: Any) -> Reply:
        is_asked = heard.text == "browse" and heard.body["messages"][-1]["role"] == "user"
        return Reply(calls=(ScriptedCall("browse", "{}", "b"),)) if is_asked else Reply("Seen.")

    agent = agent_of(reply, client_tools=[ToolSchema("browse", "Opens a page.")])
    build = AsyncConversation(home.agent(agent), store=home.store)
    first = await build.run("one")
    branch = await build.fork(before=first)
    await branch.run("browse")
    with pytest.raises(CannotKeep) as refused:
        await build.keep(branch)
    assert refused.value.code == "branch_not_ready"
    await branch.run(results={"b": "a page"})
    await kept(build, branch)
    assert await said(build) == ["browse"]


# One key, one effect.


async def test_one_key_keeps_once_although_the_branch_is_gone_by_then(home: Home, build: AsyncConversation) -> None:
    branch = await another(build, home)
    aside = await kept(build, branch, key="k")
    await build.run("on")
    again = await kept(build, branch, key="k")
    assert (again.id, await said(build)) == (aside.id, ["one", "other", "on"])
    id = branch.id
    await branch.delete()
    assert (await kept(build, id, key="k")).id == aside.id
    with pytest.raises(KeyReused):
        await build.keep(aside, key="k")
    await aside.delete()
    assert await build.keep(id, key="k") is None
    assert await said(build) == ["one", "other", "on"]


async def test_of_two_keeps_at_once_each_is_whole(home: Home, store: Store, build: AsyncConversation) -> None:
    branches = [await another(build, home, agent=None) for _ in range(4)]
    async with anyio.create_task_group() as tasks:
        for branch in branches:
            tasks.start_soon(kept, build, branch)
    assert (await store.read(build.id)).revision == 6
    assert (await store.verify()).ok


# The agent, and what guards it.


STRICT: dict[str, Any] = {
    "approval": "always",
    "unattended": "deny",
    "limits": Limits(steps=3),
    "hooks": (Hook("before_tool", command="exit 2"),),
}
LOOSE: dict[str, Any] = {
    "approval": "never",
    "unattended": "run",
    "limits": Limits(steps=99),
    "hooks": (Hook("after_tool", command="true"),),
}


@pytest.mark.parametrize(("mine", "theirs"), [(STRICT, LOOSE), (LOOSE, STRICT), (STRICT, {}), ({}, LOOSE)])
async def test_whatever_the_branch_allows_itself_the_conversation_stays_as_careful_as_it_was(
    home: Home, store: Store, mine: dict[str, Any], theirs: dict[str, Any]
) -> None:
    build = AsyncConversation(home.agent(Agent("scripted/echo", **mine)), store=home.store)
    first = await build.run("one")
    other = Agent("scripted/echo", instructions="Be long.", name="other", **theirs)
    branch = await build.fork(before=first, agent=home.agent(other))
    await branch.run("two")
    await kept(build, branch)
    agent = bind(Settings.from_json((await store.read(build.id)).settings).agent_json or "")
    assert agent.instructions == "Be long."
    plain = Agent("scripted/echo", **mine)
    for guard in ("approval", "unattended", "limits", "hooks"):
        assert getattr(agent, guard) == getattr(plain, guard), f"the branch's {guard} came along"


async def test_a_call_that_waited_here_still_waits_after_a_careless_branch_was_kept(home: Home, places: None) -> None:
    did: list[str] = []

    @tool(risky=True)
    def deploy() -> str:
        """Deploys."""
        did.append("deployed")
        return "deployed"

    def reply(heard: Any) -> Reply:
        is_asked = heard.text == "deploy" and heard.body["messages"][-1]["role"] == "user"
        return Reply(calls=(ScriptedCall("deploy", "{}", "d"),)) if is_asked else Reply("Done.")

    careful = agent_of(reply, tools=[deploy], approval="risky")
    careless = careful.replace(approval="never", instructions="Be quick.")
    build = AsyncConversation(home.agent(careful), store=home.store)
    first = await build.run("one")
    branch = await build.fork(before=first, agent=home.agent(careless))
    await branch.run("deploy")
    assert did == ["deployed"]
    await kept(build, branch)
    assert (await build.run("deploy")).outcome == "awaiting_approval"
    assert did == ["deployed"]
    await build.discard()
    elsewhere = await build.fork()
    assert (await elsewhere.run("deploy")).outcome == "awaiting_approval", "a fork has the guards of its source"


async def test_a_workspace_and_standing_approvals_stay(home: Home, store: Store, tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for folder in (mine, theirs):
        folder.mkdir()
    build = AsyncConversation(home.agent(ECHO), store=home.store, workspace=mine)
    first = await build.run("one")
    branch = await build.fork(before=first, workspace=theirs, agent=home.agent(LONG))
    await branch.run("two")
    await store.change_approvals(build.id, "[1]", if_approvals="[]")
    aside = await kept(build, branch)
    assert (await build.info()).workspace == (await aside.info()).workspace == str(mine)
    assert (await branch.info()).workspace == str(theirs)
    assert (await store.approvals(build.id), await store.approvals(branch.id)) == ("[1]", "[]")


async def test_the_object_answers_with_the_agent_of_the_branch_whose_functions_nobody_can_import(places: None) -> None:
    """Those of the branch's object are taken, and this conversation's own policy."""

    @tool
    def here() -> str:
        """Is only here."""
        return "here"

    def asks(call: ToolCall, tool: Tool) -> bool | str:
        return "it is asked" if call.tool == "here" else False

    def reply(heard: Any) -> Reply:
        is_asked = heard.text == "use it" and heard.body["messages"][-1]["role"] == "user"
        return Reply(calls=(ScriptedCall("here", "{}", "c"),)) if is_asked else Reply("Done.")

    plain = agent_of(reply, approval=asks)
    able = plain.replace(tools=[here], approval="never")
    build = AsyncConversation(plain, store="memory:")
    first = await build.run("one")
    branch = await build.fork(before=first, agent=able)
    await branch.run("use it")
    aside = await kept(build, branch)
    assert build.agent is not None
    assert [one.name for one in build.agent.tools] == ["here"]
    assert build.agent.approval is asks
    assert (await build.run("use it")).outcome == "awaiting_approval"
    await build.discard()
    await kept(build, aside)
    assert build.agent is not None
    assert build.agent.tools == ()
    assert build.agent.approval is asks
    by_id = await AsyncConversation.open(build.id, agent=plain, store="memory:")
    await kept(by_id, branch.id)
    assert by_id.agent is None, "the tool is in nothing that was given here"
    with pytest.raises(NoAgent):
        await by_id.run("use it")


async def test_an_object_that_was_opened_before_runs_with_what_is_stored_now(
    home: Home, store: Store, build: AsyncConversation
) -> None:
    opened = await AsyncConversation.open("build", store=home.store)
    branch = await another(build, home)
    await kept(build, branch)
    turn = await opened.run("on")
    assert await said(opened) == ["one", "other", "on"]
    assert not any(isinstance(event.body, ManifestChanged) for event in turn.events), "it is the agent of the branch"
    assert Settings.from_json((await store.read(build.id)).settings).agent_json == LONG.to_json()


async def test_a_process_that_had_the_conversation_open_goes_on_where_it_stands_now(tmp_path: Path) -> None:
    file = f"sqlite:///{tmp_path}/store.db"

    def prepare() -> str:
        with Conversation(obedient(), conversation_id="build", store=file) as build:
            first = build.run("say one")
            with build.fork(before=first) as branch:
                branch.run("say other")
                return branch.id

    branch = await anyio.to_thread.run_sync(prepare)
    process = start(file, "build", "run", "say on", ready=True)
    assert process.stdout.readline() == "ready\n"
    with Conversation.open("build", store=file) as build:
        aside = await anyio.to_thread.run_sync(build.keep, branch)
        assert aside is not None
        aside.close()
    process.stdin.write("go\n")
    process.stdin.flush()
    assert (await anyio.to_thread.run_sync(heard, process))["outcome"] == "committed"

    def look() -> list[str]:
        with Conversation.open("build", store=file, bind=False) as build:
            return [turn.input[0].parts[0].text for turn in build.turns().items]  # type: ignore[union-attr]

    assert await anyio.to_thread.run_sync(look) == ["say other", "say on"]


# The cache.


@pytest.fixture
def server(places: None) -> Iterator[ModelServer]:
    with ModelServer(Script(answer)) as server:
        yield server


@each_wire
async def test_the_next_request_starts_with_the_branchs_exact_blocks_and_shows_its_key(
    server: ModelServer, home: Home, wire: str
) -> None:
    build = AsyncConversation(home.agent(agent_at(server, wire)), store=home.store)
    first = await build.run("look")
    other = Agent(llm_at(server, wire), instructions="Be long.", tools=agent_at(server, wire).tools, approval="always")
    branch = await build.fork(at=first, agent=home.agent(other.replace(approval="never")))
    await branch.run("look here")
    theirs = server.last
    await build.run("look there")
    mine = server.last
    aside = await kept(build, branch)
    for conversation in (build, branch):
        await conversation.run("and now?")
    ours, same = server.requests[-2:]
    assert ours.blocks[: len(theirs.blocks)] == theirs.blocks
    assert history_of(ours).startswith(history_of(theirs))
    assert unmarked(ours) == unmarked(same), "the branch itself would have sent the same"
    assert shown(ours) == shown(theirs) == shows(own_identity(branch.id), wire)
    identity = await build.cache()
    assert (identity.key, identity.inherited_from) == (own_identity(branch.id).key, branch.id)
    assert await branch.cache() == own_identity(branch.id), "the branch's own identity does not change"

    await kept(build, aside)
    for conversation in (build, aside):
        await conversation.run("and now?")
        assert server.last.blocks[: len(mine.blocks)] == mine.blocks
        assert shown(server.last) == shown(mine) == shows(own_identity(build.id), wire)
    assert await build.cache() == own_identity(build.id), "what it shows is its own again"


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_the_first_prompt_after_a_keep_and_after_its_undo_is_in_the_cache(
    server: ModelServer, home: Home, wire: str
) -> None:
    server.cache = SimulatedCache(minimum=64, granularity=16)
    build = AsyncConversation(
        home.agent(Agent(llm_at(server, wire), instructions="You answer questions about a build. " * 200)),
        store=home.store,
    )
    first = await build.run("Why did it fail?")
    other = Agent(llm_at(server, wire), instructions="You answer other questions about a build. " * 200)
    branch = await build.fork(before=first, agent=home.agent(other))
    await branch.run("Why did it fail?")
    aside = await kept(build, branch)
    turn = await build.run("What if?")
    assert turn.usage.cached > 0.9 * turn.usage.input
    await kept(build, aside)
    turn = await build.run("What if not?")
    assert turn.usage.cached > 0.9 * turn.usage.input


async def test_a_key_that_came_with_a_branch_is_dropped_with_another_agent(server: ModelServer, home: Home) -> None:
    build = AsyncConversation(home.agent(agent_at(server)), store=home.store)
    first = await build.run("one")
    branch = await build.fork(before=first)
    await branch.run("two")
    await kept(build, branch)
    await build.change_agent(home.agent(Agent(llm_at(server, "chat"), instructions="Be long.")))
    await build.run("three")
    assert shown(server.last) == shows(own_identity(build.id))
    assert branch.id in ((await build.cache()).dropped or "")
    await branch.run("four")
    assert shown(server.last) == shows(own_identity(branch.id))


# Sub-agents.


async def test_a_sub_agent_of_the_branch_is_known_and_the_first_message_to_it_goes_to_a_fork_of_it(
    home: Home, store: Store
) -> None:
    agent = Agent("scripted/echo", sub_agents=SubAgents(roles={"scout": Role("looks around")}))
    build = AsyncConversation(home.agent(agent), store=home.store)
    first = await build.run("one")
    branch = await build.fork(before=first)
    await branch.run("other")
    scout = await branch.spawn_agent("look around", nickname="scout", role="scout")
    before = await store.read(scout.id)
    aside = await kept(build, branch)
    assert [member.conversation for member in await build.list_agents()] == [scout.id]
    assert await aside.list_agents() == ()
    turn = await build.send_to_agent("scout", "hello")
    assert (await store.read(turn.conversation)).lineage == Lineage("sub_agent", build.id)
    assert await store.read(scout.id) == before
    assert (await store.verify()).ok


# Export and import, erasure, the sync face.


async def test_a_family_that_was_kept_is_exported_and_imported_whole(
    home: Home, build: AsyncConversation, tmp_path: Path
) -> None:
    branch = await another(build, home)
    aside = await kept(build, branch)
    await build.run("on")
    await build.export(tmp_path / "family.jsonl", family=True)
    async with AsyncConversations(f"sqlite:///{tmp_path / 'copy.db'}") as copies:
        await copies.import_(tmp_path / "family.jsonl")
        assert (await copies.verify()).ok
        there = await AsyncConversation.open("build", store=f"sqlite:///{tmp_path / 'copy.db'}")
        assert (await said(there), await there.cache()) == (await said(build), await build.cache())
        await there.keep(aside.id)
        assert await said(there) == ["one", "two"]
        assert (await copies.verify()).ok
        await there.close()
    await build.export(tmp_path / "one.jsonl")
    async with AsyncConversations(f"sqlite:///{tmp_path / 'alone.db'}") as copies:
        await copies.import_(tmp_path / "one.jsonl")
        assert (await copies.verify()).ok


async def test_what_is_erased_of_a_branch_is_erased_where_it_was_kept(
    home: Home, store: Store, build: AsyncConversation
) -> None:
    branch = await another(build, home)
    await kept(build, branch)
    await branch.erase(turn=(await branch.turns()).items[-1], reason="asked")
    assert await said(build) == ["one"]
    assert (await build.run("on")).outcome == "committed"
    assert (await store.verify()).ok


def test_the_sync_face_keeps_and_renames_too() -> None:
    with Conversation(ECHO, conversation_id="build", store="memory:") as build:
        first = build.run("one")
        with build.fork(before=first) as branch:
            branch.run("other")
            aside = build.keep(branch)
            assert aside is not None
            assert type(aside) is Conversation
            with aside:
                assert [turn.text for turn in build.turns().items] == ["You said: other"]
                assert build.rename("winner").name == build.name == "winner"
                back = build.keep(aside)
            assert back is not None
            back.close()


# Names.


async def test_a_name_changes_alone_and_the_object_follows(home: Home, store: Store, build: AsyncConversation) -> None:
    before = await store.read(build.id)
    info = await build.rename("winner")
    assert (info.name, build.name, repr(build)) == ("winner", "winner", "<AsyncConversation winner>")
    now = await store.read(build.id)
    assert replace(now, name="build", updated=before.updated) == before
    assert (await AsyncConversation.open("winner", store=home.store)).id == build.id
    with pytest.raises(NotFound):
        await AsyncConversation.open("build", store=home.store)
    records = len((await store.records(build.id)).items)
    assert (await build.rename("winner")).name == "winner", "its own name is no error"
    assert len((await store.records(build.id)).items) == records
    assert (await build.rename(build.id)).name == build.id
    assert (await build.run("three")).outcome == "committed"
    assert (await store.verify()).ok


async def test_a_name_that_is_taken_or_no_name_is_refused(home: Home, build: AsyncConversation) -> None:
    other = await build.fork(conversation_id="other")
    for name in ("build", build.id):
        with pytest.raises(AlreadyExists):
            await other.rename(name)
    malformed: list[Any] = ["", "a b", "../up", "undefined", "x" * 129]
    for name in malformed:
        with pytest.raises(BadName):
            await other.rename(name)
    with pytest.raises(BadArgument, match="name=None"):
        await other.rename(None)  # type: ignore[arg-type]
    assert other.name == (await other.info()).name == "other"


async def test_a_name_changes_while_a_turn_runs(home: Home, places: None) -> None:
    begun, go = Signal(), Signal()

    @tool
    async def hold() -> str:
        """Waits until it is told."""
        begun.set()
        await go.wait()
        return "held"

    def reply(heard: Any) -> Reply:
        is_asked = heard.body["messages"][-1]["role"] == "user"
        return Reply(calls=(ScriptedCall("hold", "{}", "h"),)) if is_asked else Reply("Done.")

    build = AsyncConversation(home.agent(agent_of(reply, tools=[hold])), conversation_id="build", store=home.store)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(build.run, "hold")
        await begun.wait()
        await build.rename("winner")
        go.set()
    assert ((await build.info()).name, len((await build.turns()).items)) == ("winner", 1)


async def test_a_conversation_that_has_not_begun_can_be_renamed(home: Home, places: None) -> None:
    new = AsyncConversation(home.agent(ECHO), store=home.store)
    assert (await new.rename("mine")).name == new.name == "mine"
    await new.run("one")
    assert (await AsyncConversation.open("mine", store=home.store)).id == new.id
    taken = AsyncConversation(home.agent(ECHO), store=home.store)
    await taken.rename("mine")
    with pytest.raises(AlreadyExists):
        await taken.run("one")
