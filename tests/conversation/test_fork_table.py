"""The table of what a fork copies, as data: each row has the fields that it covers, and a check of what it promises.

A walk goes through every field of everything that is stored of a conversation, and fails if one has no row: whoever
adds a field decides what a fork does with it. docs/forks.md shows the same rows. All of it is true of forks that are
made in this process and of those that a server makes.
"""

import dataclasses
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeAlias, assert_never

import msgspec
import pytest
from msgspec import Struct, defstruct
from tests.conversation.support.homes import Home, home_of

from forkpoint import LLM, Agent, AsyncConversation, Budget, Limits, Secret, ToolContext, tool
from forkpoint.agent.condense.condenser import Window
from forkpoint.agent.hooks.hook import Hook
from forkpoint.agent.mcp import McpServer, Offered
from forkpoint.agent.skills.skill import Skill
from forkpoint.agent.team.offer import Role, SubAgents
from forkpoint.backend.callbacks import Update
from forkpoint.backend.results import Info, Isolation, Stats
from forkpoint.backend.settings import Settings, SubAgentOf
from forkpoint.conversation.place import Where
from forkpoint.events import Condensation, HookRun, NewEvent, Opaque, SkillActivated, ToolCall, Usage
from forkpoint.history.state import State
from forkpoint.ids import new_id
from forkpoint.llm.prompt.identity import CacheIdentity, own_identity
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.remote.addresses import KEY
from forkpoint.server.http.keys import Keyring, OneKey
from forkpoint.store import open_store
from forkpoint.store.protocol import Store
from forkpoint.store.values import Head, Lineage, NewConversation, StoredConversation
from forkpoint.testing import Reply, Script, ScriptedCall

pytestmark = pytest.mark.anyio

GUIDE = Path(__file__).parents[2] / "docs" / "forks.md"
TENANT = "acme"


# What a fork does with a field.


class Same(Struct, frozen=True):
    """The fork has what the source has."""


class Own(Struct, frozen=True):
    """The fork has one of its own."""


class Starts(Struct, frozen=True):
    """The fork starts with this value, whatever the source has."""

    value: Any


class Follows(Struct, frozen=True):
    """The fork's follows from the source's record."""

    rule: Callable[[StoredConversation], Any]


Relation: TypeAlias = Same | Own | Starts | Follows


class Row(Struct, frozen=True):
    """One row: what it is about, what becomes of each field that it covers, and a check of all it promises."""

    name: str
    fields: Mapping[str, Relation]  # by the name of the class and of the field
    check: "Callable[[Case], Awaitable[None]]"


# The example: a conversation with something to copy, or to leave behind, in every field.


@dataclasses.dataclass
class Verdict:
    verdict: str


@tool
def remember(ctx: ToolContext, fact: str) -> str:
    """Remembers a fact."""
    ctx.state["fact"] = fact
    return "remembered"


@tool(risky=True)
def deploy(stage: str) -> str:
    """Deploys."""
    return f"deployed to {stage}"


def said(verdict: str) -> Reply:
    return Reply(f'{{"verdict":"{verdict}"}}')


class Visualizer:
    """Counts what it was told, and keeps those that it made for forks."""

    def __init__(self) -> None:
        self.told = 0
        self.made: list[Visualizer] = []

    def __call__(self, update: Update, /) -> None:
        self.told += 1

    def for_fork(self) -> "Visualizer":
        self.made.append(Visualizer())
        return self.made[-1]


class Case(Struct):
    """A source that has everything, and a fork of it as it is made by default."""

    store: Store  # what stands behind the home, for whoever looks at what is stored
    home: Home
    at: Where  # the home, as conversations are told of it
    agent: Agent
    source: AsyncConversation
    fork: AsyncConversation
    folder: Path
    first_turn: str  # of the root that the source is a fork of
    told: list[Update]
    visualizer: Visualizer

    async def records(self) -> tuple[StoredConversation, StoredConversation]:
        return await self.store.read(self.source.id), await self.store.read(self.fork.id)


@pytest.fixture(params=["local", "remote"])
async def case(
    request: pytest.FixtureRequest, tmp_path: Path, places: None, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Case]:
    """The example of a tenant that is not the default: with a store of this process, or by its key to a server."""
    monkeypatch.setenv(KEY, token_hex())
    with home_of(request.param, tmp_path, Keyring([OneKey.from_environment(KEY, TENANT)])) as home:
        async with await home.opened() as everybody:
            store = everybody.within(TENANT)
            yield await example(store, home, store if request.param == "local" else home.store, tmp_path)


async def example(store: Store, home: Home, at: Where, folder: Path) -> Case:
    """The source waits for an approval, is itself a fork that inherits, and has state of every kind."""
    replies = [
        said("first"),
        Reply(calls=(ScriptedCall("remember", '{"fact":"blue"}'),), reasoning="Worth remembering."),
        said("second"),
        Reply(calls=(ScriptedCall("deploy", '{"stage":"test"}'),)),
        said("third"),
        said("fourth"),
        said("fifth"),
    ]
    agent = Agent(
        LLM(Script(replies).register(f"table-{folder.name}"), temperature=0.5),
        instructions="Be brief.",
        tools=[remember, deploy],
        client_tools=[ToolSchema("browse", "Opens a page.")],
        output=Verdict,
        limits=Limits(steps=7, tokens=70_000, dollars=7.5, seconds=70.0, repeats=7, at_limit="stop"),
        approval="risky",
        unattended="run",
        name="builder",
        sub_agents=SubAgents(roles={"scout": Role("looks around")}, depth=3),
        skills=[Skill("deploy", "Tag it first.")],
        condenser=Window(events=500),
        secrets={"TOKEN": Secret(env="FORK_TABLE_TOKEN")},
        hooks=[Hook("before_tool", command="exit 2", tools="delete_*")],
        mcp=[Offered(McpServer("find", command=["finder"]), ())],
    )
    root = AsyncConversation(home.agent(agent), store=at, workspace=folder)
    first = await root.run("one")
    told: list[Update] = []
    source = await root.fork(conversation_id="source", cache="inherit", reset_metrics=False)
    visualizer = Visualizer()
    source = await AsyncConversation.open(
        source.id, agent=home.agent(agent), store=at, callbacks=[told.append], visualizer=visualizer
    )
    await source.describe(title="The source", tags={"kind": "ci"})
    await source.run("two")
    settings = Settings.from_json((await store.read(source.id)).settings)
    await store.note(
        source.id,
        new_id(),
        [
            NewEvent(SkillActivated("deploying", "How to deploy.")),
            NewEvent(HookRun("lint", "before_tool", command="lint .", exit_code=0)),
            NewEvent(Condensation("They began.", kept_from=3)),
            NewEvent(Opaque("weather", '{"kind":"weather","sky":"blue"}')),
            NewEvent(ToolCall("browse_1", "browse", "{}", client=True), response=1),
        ],
        settings=msgspec.structs.replace(settings, system="Speak plainly.").to_json(),
    )
    assert (await source.run("three")).outcome == "awaiting_approval"
    source.send_message("not run yet")
    return Case(store, home, at, agent, source, await source.fork(), folder, first.id, told, visualizer)


# The rows, as they stand in docs/forks.md.


async def check_itself(case: Case) -> None:
    source, fork = await case.records()
    assert fork.lineage == Lineage("fork", source.id, source.head.position)
    assert fork.created >= source.created
    named = await case.source.fork(conversation_id="a-name")
    assert (await case.store.find("a-name")).id == named.id


async def check_events(case: Case) -> None:
    theirs, ours = await case.source.events(), await case.fork.events()
    assert [event.id for event in ours] == [event.id for event in theirs]
    assert ours == theirs
    earlier = await case.source.fork(at=case.first_turn)
    assert await earlier.events() == [event for event in theirs if event.turn == case.first_turn]


async def check_agent(case: Case) -> None:
    assert case.fork.agent is case.source.agent
    other = Agent("scripted/echo", name="another")
    replaced = await case.source.fork(agent=other)
    assert replaced.agent is other
    assert (await replaced.info()).agent == "another"
    assert (await case.source.info()).agent == "builder"


async def check_state(case: Case) -> None:
    assert await case.fork.agent_state() == {"fact": "blue"}
    assert (await case.store.state(case.fork.id)).skills == ("deploying",)
    earlier = await case.source.fork(at=case.first_turn)
    state = await case.store.state(earlier.id)
    assert (state.values, state.skills, state.summary, state.kept_from) == ((), (), None, 1)


async def check_safety(case: Case) -> None:
    agent = case.agent
    await case.source.discard()
    hooks = (Hook("before_tool", command="exit 2"),)
    strict = agent.replace(limits=Limits(steps=2), approval="always", hooks=hooks, name="strict")
    await case.source.change_agent(case.home.agent(strict))
    earlier = await case.source.fork(at=case.first_turn)
    stored = await stored_agent(case.store, earlier.id, agent)
    kept = (stored.approval, stored.limits, stored.hooks)
    assert kept == ("always", Limits(steps=2), hooks), "a fork must not weaken safety silently"


async def check_standing(case: Case) -> None:
    (waiting,) = (await case.source.turns()).items[-1].waiting
    await case.source.approve(waiting, always="tool")
    (rule,) = await case.source.approvals()
    assert await case.fork.approvals() == (), "a fork that was made before has its own"
    earlier = await case.source.fork(at=case.first_turn)
    assert await earlier.approvals() == (rule,)
    await case.source.revoke_approval(rule)
    assert await earlier.approvals() == (rule,)
    assert await (await case.source.fork()).approvals() == ()


async def check_budget(case: Case) -> None:
    await case.source.set_budget(Budget(tokens=10**6), scope="family")
    await case.source.set_budget(Budget(tokens=10**5))
    shared = await case.source.fork()
    (family,) = await shared.budget()
    assert (family.scope, family.limits.tokens) == ("family", 10**6)
    alone = await case.source.fork(budget=Budget(tokens=5))
    (own,) = await alone.budget()
    assert (own.conversation, own.limits.tokens, own.apart) == (alone.id, 5, True)
    await case.source.set_budget(None)
    await case.source.set_budget(None, scope="family")
    assert await case.fork.budget() == ()


async def check_tags(case: Case) -> None:
    assert await case.fork.tags() == {}
    tagged = await case.source.fork(title="Follow-up", tags={"kind": "debug", "title": "not this"})
    assert await tagged.tags() == {"kind": "debug", "title": "Follow-up"}
    assert await case.source.tags() == {"kind": "ci", "title": "The source"}


async def check_metrics(case: Case) -> None:
    source = await case.source.stats()
    fork = await case.fork.stats()
    assert source.spent.calls == 3  # one of them in the turn that waits
    assert (fork.total, fork.inherited.calls, fork.family) == (Usage(), 3, source.family)
    carried = await (await case.source.fork(reset_metrics=False)).stats()
    assert (carried.spent, carried.total) == (Usage(), carried.inherited)
    assert carried.family == source.family


async def check_status(case: Case) -> None:
    assert (await case.source.status(), await case.fork.status()) == ("awaiting_approval", "idle")
    assert case.fork.pending == ()
    before = len(case.told), case.visualizer.told
    assert before > (0, 0)
    heard: list[Update] = []
    fork = await case.source.fork(callbacks=[heard.append])
    assert (await fork.run("four")).outcome == "committed"
    assert (await case.fork.run("five")).outcome == "committed"
    assert (len(case.told), case.visualizer.told) == before, "what runs in a fork was told to its source's listeners"
    assert heard
    assert [shown.told for shown in case.visualizer.made] == [len(heard)] * 2, "each fork has one of the same kind"


async def check_cache(case: Case) -> None:
    assert await case.fork.cache() == own_identity(case.fork.id)
    theirs = await case.source.cache()
    warm = await case.source.fork(cache="inherit")
    assert ((await warm.cache()).key, (await warm.cache()).inherited_from) == (theirs.key, case.source.id)
    assert await case.source.cache() == theirs


async def check_workspace(case: Case) -> None:
    assert case.fork.workspace == case.folder
    (other := case.folder / "other").mkdir()
    moved = await case.source.fork(workspace=other)
    assert (moved.workspace, case.source.workspace) == (other, case.folder)
    assert (await moved.info()).workspace == str(other)
    isolations = [(await one.info()).isolation for one in (case.fork, moved)]
    assert isolations == [Isolation("share"), Isolation("path")], "a record says plainly whether a folder is shared"


async def check_sub_agents(case: Case) -> None:
    turn = (await case.source.turns()).items[1].id
    child = await case.store.create(
        NewConversation(
            id=new_id(),
            family=(await case.source.info()).family,
            lineage=Lineage("sub_agent", case.source.id, turn=turn, call="c1"),
            settings=Settings(sub_agent=SubAgentOf(case.source.id, "/root/scout", "scout", 1, "explorer")).to_json(),
        )
    )
    fork = await case.source.fork()
    assert await case.store.read(child.id) == child, "forking a conversation changed its sub-agent"
    family = (await case.store.conversations(family=child.family)).items
    assert [one.id for one in family if one.lineage.kind == "sub_agent"] == [child.id]
    scout = await AsyncConversation.open(child.id, store=case.at)
    own = await scout.fork()
    assert (await own.info()).lineage == Lineage("fork", child.id), "a fork of a sub-agent is nobody's sub-agent"
    places = [(of.parent, of.path, of.nickname, of.role, of.depth) for of in (await scout.info(), await own.info())]
    assert places == [(case.source.id, "/root/scout", "scout", "explorer", 1), (None, None, None, None, 0)]
    assert Settings.from_json((await case.store.read(own.id)).settings) == Settings.from_json(child.settings)
    await fork.close()


TABLE: Sequence[Row] = (
    Row(
        "itself",
        {
            "StoredConversation.id": Own(),
            "StoredConversation.tenant": Same(),
            "StoredConversation.name": Own(),
            "StoredConversation.family": Same(),
            "StoredConversation.revision": Starts(0),
            "StoredConversation.lineage": Follows(lambda source: Lineage("fork", source.id, source.head.position)),
            "StoredConversation.draft": Starts(False),
            "Info.draft": Starts(False),
            "Info.glance": Starts(None),
            "StoredConversation.created": Own(),
            "StoredConversation.updated": Own(),
            "StoredConversation.used": Own(),
            "Lineage.kind": Starts("fork"),
            "Lineage.source": Follows(lambda source: source.id),
            "Lineage.at": Follows(lambda source: source.head.position),
            "Info.id": Own(),
            "Info.name": Own(),
            "Info.family": Same(),
            "Info.lineage": Follows(lambda source: Lineage("fork", source.id, source.head.position)),
            "Info.revision": Starts(0),
            "Info.created": Own(),
            "Info.updated": Own(),
        },
        check_itself,
    ),
    Row(
        "events",
        {
            "StoredConversation.head": Same(),
            "Head.position": Same(),
            "Head.digest": Same(),
            "Head.turn": Same(),
            "Head.open_calls": Same(),
            "Info.events": Same(),
            "Info.head": Same(),
            "Info.digest": Same(),
            "Stats.events": Same(),
        },
        check_events,
    ),
    Row(
        "agent",
        {
            "StoredConversation.settings": Same(),
            "Settings.agent": Same(),
            "Agent.llm": Same(),
            "Agent.instructions": Same(),
            "Agent.tools": Same(),
            "Agent.client_tools": Same(),
            "Agent.output": Same(),
            "Agent.name": Same(),
            "Agent.sub_agents": Same(),
            "Agent.skills": Same(),
            "Agent.condenser": Same(),
            "Agent.mcp": Same(),
            "Agent.secrets": Same(),
            "Info.model": Same(),
            "Info.agent": Same(),
        },
        check_agent,
    ),
    Row(
        "agent state, activated skills, condensations",
        {
            "Head.state_of": Same(),
            "Head.state": Same(),
            "State.values": Same(),
            "State.skills": Same(),
            "State.manifest": Same(),
            "State.kept_from": Same(),
            "State.summary": Same(),
            "State.partial": Same(),
        },
        check_state,
    ),
    Row(
        "approval policy, limits, hooks",
        {
            "Agent.approval": Same(),
            "Agent.unattended": Same(),
            "Agent.hooks": Same(),
            "Agent.limits": Same(),
            "Limits.steps": Same(),
            "Limits.tokens": Same(),
            "Limits.dollars": Same(),
            "Limits.seconds": Same(),
            "Limits.repeats": Same(),
            "Limits.at_limit": Same(),
        },
        check_safety,
    ),
    Row("standing approvals", {}, check_standing),
    Row("budget", {}, check_budget),
    Row(
        "title and tags",
        {
            "StoredConversation.title": Starts(None),
            "StoredConversation.tags": Starts(()),
            "Info.title": Starts(None),
            "Info.tags": Starts({}),
        },
        check_tags,
    ),
    Row(
        "metrics",
        {
            "StoredConversation.own_from": Follows(lambda source: source.head.ordinal),
            "StoredConversation.inherited": Follows(lambda source: source.head.totals),
            "StoredConversation.carries_metrics": Starts(False),
            "Head.totals": Same(),
            "Info.inherited_events": Follows(lambda source: source.head.ordinal),
            "Stats.spent": Starts(Usage()),
            "Stats.inherited": Follows(lambda source: source.head.totals),
            "Stats.family": Same(),
            "Stats.carries_metrics": Starts(False),
        },
        check_metrics,
    ),
    Row(
        "status, visualizer, callbacks",
        {
            "StoredConversation.status": Starts("idle"),
            "StoredConversation.open_turn": Starts(None),
            "Info.status": Starts("idle"),
            "Info.open_turn": Starts(None),
        },
        check_status,
    ),
    Row(
        "prompt cache key",
        {
            "StoredConversation.cache": Own(),
            "CacheIdentity.key": Own(),
            "CacheIdentity.session": Own(),
            "CacheIdentity.inherited_from": Starts(None),
            "CacheIdentity.manifest": Starts(None),
            "CacheIdentity.dropped": Starts(None),
            "Info.cache": Own(),
        },
        check_cache,
    ),
    Row(
        "workspace",
        {
            "Settings.workspace": Same(),
            "Settings.made": Same(),
            "Settings.placed": Same(),
            "Settings.guarded_by": Same(),
            "Settings.system": Same(),
            "Settings.project": Same(),
            "Info.workspace": Same(),
            "Info.isolation": Same(),
        },
        check_workspace,
    ),
    Row(
        "sub-agents",
        {
            "Lineage.turn": Starts(None),
            "Lineage.call": Starts(None),
            "Settings.sub_agent": Same(),
            "Info.parent": Starts(None),  # a fork of a sub-agent is nobody's
            "Info.path": Starts(None),
            "Info.nickname": Starts(None),
            "Info.role": Starts(None),
            "Info.depth": Starts(0),
        },
        check_sub_agents,
    ),
)

WALKED: Sequence[type] = (StoredConversation, Head, Lineage, CacheIdentity, Settings, Agent, Limits, State, Info, Stats)

SHOWN_ELSEWHERE = {
    "StoredConversation.draft": "test_fork.py forks a draft",
    "Info.draft": "test_fork.py forks a draft",
    "Info.glance": "only a list that was asked for it has one; test_glances.py forks, and lists both",
    "Lineage.kind": "the source is a fork too; test_fork.py forks a root, and the check of sub-agents one of those",
    "Head.state": "it is only there in the middle of a turn; test_fork.py forks at an event",
    "CacheIdentity.dropped": "what has dropped a key inherits none; test_cache_keys.py drops one and forks",
    "Lineage.turn": "the source is no sub-agent; the row's check forks one",
    "Lineage.call": "the source is no sub-agent; the row's check forks one",
    "Settings.made": "the source works in a folder that was there; test_workspaces.py forks one that was made",
    "Settings.placed": "the source shares its folder; test_workspaces.py forks one that has its own",
    "Settings.guarded_by": "no project guards the source; test_pinned_projects.py forks one that is guarded",
    "Settings.project": "no project told the source anything; test_trust.py forks one that was told",
    "Settings.sub_agent": "the source is no sub-agent; the row's check forks one",
    "Info.parent": "the source is no sub-agent; the row's check forks one",
    "Info.path": "the source is no sub-agent; the row's check forks one",
    "Info.nickname": "the source is no sub-agent; the row's check forks one",
    "Info.role": "the source is no sub-agent; the row's check forks one",
    "Info.depth": "the source is no sub-agent; the row's check forks one",
}
"""Fields in which the example has nothing to copy or to leave behind, and why that is no gap."""


# The walk.


def fields_of(kind: type) -> list[str]:
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return [field.name for field in msgspec.structs.fields(kind)]


def without_a_row(kind: type, table: Sequence[Row] = TABLE) -> list[str]:
    """The fields of a class that no row covers."""
    covered = {field for row in table for field in row.fields}
    return [name for field in fields_of(kind) if (name := f"{kind.__name__}.{field}") not in covered]


def what_to_do(fields: Sequence[str]) -> str:
    return (
        f"No row of the table of what a fork copies covers {', '.join(fields)}. Decide what a fork does with it, in"
        " `fork()` and in the table of docs/forks.md; then add it to a row of TABLE here, with Same, Own, Starts or"
        " Follows, and let the example have a value there that shows it."
    )


@pytest.mark.parametrize("kind", WALKED, ids=lambda kind: kind.__name__)
def test_every_field_that_is_stored_has_a_row_in_the_table(kind: type) -> None:
    missing = without_a_row(kind)
    assert not missing, what_to_do(missing)


def test_the_walk_finds_a_field_that_nobody_thought_of() -> None:
    record = defstruct("StoredConversation", [("colour", str)], bases=(StoredConversation,), frozen=True)
    settings = defstruct("Settings", [("colour", str, "blue")], bases=(Settings,), frozen=True)
    agent = dataclasses.make_dataclass("Agent", [("colour", str)], bases=(Agent,), frozen=True, init=False)
    for kind in (record, settings, agent):
        missing = without_a_row(kind)
        assert missing == [f"{kind.__name__}.colour"]
        assert f"{kind.__name__}.colour. Decide what a fork does with it" in what_to_do(missing)


def test_no_row_covers_what_is_no_longer_there_and_no_field_has_two() -> None:
    named = [field for row in TABLE for field in row.fields]
    there = {f"{kind.__name__}.{field}" for kind in WALKED for field in fields_of(kind)}
    assert set(named) <= there, "a row of TABLE names a field that does not exist: take it out"
    assert len(named) == len(set(named)), "two rows of TABLE say what becomes of one field: keep one"
    assert set(SHOWN_ELSEWHERE) <= there


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
async def test_a_fork_is_as_the_row_says(case: Case, row: Row) -> None:
    await row.check(case)
    assert (await case.store.verify()).ok


async def test_each_field_of_a_fork_is_as_its_row_says(case: Case) -> None:
    source_record, _ = await case.records()
    theirs, ours = await values_of(case.store, case.source), await values_of(case.store, case.fork)
    wrong = []
    for row in TABLE:
        for field, relation in row.fields.items():
            match relation:
                case Same():
                    right = ours[field] == theirs[field]
                case Own():
                    right = ours[field] != theirs[field]
                case Starts(value=value):
                    right = ours[field] == value
                case Follows(rule=rule):
                    right = ours[field] == rule(source_record)
                case _ as never:
                    assert_never(never)
            if not right:
                wrong.append(f"{field} ({row.name}): {relation}, but {theirs[field]!r} became {ours[field]!r}")
    assert not wrong, "\n".join(wrong)


async def test_the_example_has_something_to_copy_or_to_leave_behind_in_every_field(case: Case) -> None:
    """Else "the same" would be true of nothing, and "starts empty" of what was empty before."""
    theirs = await values_of(case.store, case.source)
    async with await open_store("memory:") as elsewhere:
        blank = await AsyncConversation.open("blank", create=Agent("scripted/echo"), store=elsewhere)
        blanks = await values_of(elsewhere, blank)
    idle = []
    for row in TABLE:
        for field, relation in row.fields.items():
            if field in SHOWN_ELSEWHERE:
                continue
            match relation:
                case Same():
                    shows = theirs[field] != blanks[field]
                case Starts(value=value):
                    shows = theirs[field] != value
                case _:
                    shows = True
            if not shows:
                idle.append(f"{field} is {theirs[field]!r} in the example: give it a value that shows something")
    assert not idle, "\n".join(idle)


async def test_a_replaced_agent_or_workspace_leaves_every_other_setting_as_it_is(case: Case) -> None:
    """Settings are copied whole: a list of fields to copy would drop the next one that is added.

    Whose folder it is, and how that was made, goes with the folder.
    """
    (other := case.folder / "other").mkdir()
    source = Settings.from_json((await case.records())[0].settings)
    changed = {
        "agent": await case.source.fork(agent=Agent("scripted/echo")),
        "workspace": await case.source.fork(workspace=other),
    }
    for replaced, fork in changed.items():
        settings = Settings.from_json((await case.store.read(fork.id)).settings)
        for field in fields_of(Settings):
            kept = getattr(settings, field) == getattr(source, field)
            goes = {"workspace": ("workspace", "placed"), "agent": ("agent",)}[replaced]
            assert kept == (field not in goes), f"a fork with another {replaced} has lost Settings.{field}"


def test_the_guide_shows_the_same_rows() -> None:
    table = GUIDE.read_text().split("## The table")[1].split("\n## ")[0]
    shown = re.findall(r"^\| \*\*(.+?)\*\* \|", table, re.MULTILINE)
    assert shown == [row.name for row in TABLE], "docs/forks.md and TABLE name different rows: bring them together"


async def values_of(store: Store, conversation: AsyncConversation) -> dict[str, Any]:
    """Every walked field of a conversation, as it is stored."""
    record = await store.read(conversation.id)
    agent = await stored_agent(store, conversation.id, conversation.agent)
    seen: Sequence[Any] = (
        record,
        record.head,
        record.lineage,
        CacheIdentity.from_json(record.cache),
        Settings.from_json(record.settings),
        agent,
        agent.limits,
        await store.state(conversation.id),
        await conversation.info(),
        await conversation.stats(),
    )
    assert {type(one) for one in seen} == set(WALKED)
    return {f"{type(one).__name__}.{field}": getattr(one, field) for one in seen for field in fields_of(type(one))}


async def stored_agent(store: Store, id: str, given: Agent | None) -> Agent:
    """The agent that is stored with a conversation; its functions are those of the agent given."""
    agent = Settings.from_json((await store.read(id)).settings).bound(given)
    assert agent is not None
    return agent
