"""`fork()`: everything that was there, with the same ids, in a conversation of its own that nobody else can change.

What each field does stands in test_fork_table.py; whose cache key is whose, byte by byte, in test_cache_keys.py.
"""

import inspect
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest
from tests.conversation.support.agents import Signal
from tests.conversation.support.homes import Home

from forkpoint import LLM, Agent, AsyncConversation, Conversation, Limits, ToolContext, TurnFailed, tool
from forkpoint.backend.callbacks import Update
from forkpoint.backend.results import Branch
from forkpoint.backend.settings import Settings
from forkpoint.errors import (
    AlreadyExists,
    BadArgument,
    BadName,
    BadPosition,
    BadWorkspace,
    ConversationClosed,
    ForkpointError,
    NoSuchTurn,
    NotFound,
)
from forkpoint.events import (
    Event,
    HookRun,
    ManifestChanged,
    ModelCalled,
    NewEvent,
    Reasoning,
    SettingsChanged,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)
from forkpoint.ids import new_id
from forkpoint.llm import own_identity
from forkpoint.llm.model import Price, Retries
from forkpoint.store.protocol import Store
from forkpoint.store.values import Lineage, StoredConversation
from forkpoint.testing import Fault, Heard, ModelServer, Reply, Script, ScriptedCall

pytestmark = pytest.mark.anyio

ECHO = Agent("scripted/echo")
PROMPT = 20.0  # seconds that something which does not wait may take on a busy machine


@tool
def remember(ctx: ToolContext, key: str, value: int) -> str:
    """Remembers a number."""
    ctx.state[key] = value
    return f"{key} is {value}"


def rich_replies() -> list[Reply]:
    """Two turns: one that thinks and remembers, and one that remembers something else."""
    return [
        Reply(calls=(ScriptedCall("remember", '{"key": "a", "value": 1}', "call_a"),), reasoning="I should note it."),
        Reply("Noted.", reasoning="That is done."),
        Reply(calls=(ScriptedCall("remember", '{"key":"a","value":2}', "call_b"),)),
        Reply("Changed."),
        Reply("Later."),
    ]


def rich_agent(name: str) -> Agent:
    priced = LLM(Script(rich_replies(), repeat=True).register(name), price=Price(1.0, 2.0))
    return Agent(priced, tools=[remember], instructions="Be brief.")


@pytest.fixture
async def store(home: Home, places: None) -> AsyncIterator[Store]:
    """What stands behind the home, for whoever looks at what is stored."""
    async with await home.opened() as store:
        yield store


@pytest.fixture
async def source(home: Home, store: Store, request: pytest.FixtureRequest) -> AsyncIterator[AsyncConversation]:
    """Two committed turns, with thoughts, calls and state."""
    async with AsyncConversation(home.agent(rich_agent(request.node.name)), store=home.store) as source:
        await source.run("one")
        await source.run("two")
        yield source


async def turns_of(conversation: AsyncConversation) -> list[str]:
    return [turn.id for turn in (await conversation.turns()).items]


async def asked(conversation: AsyncConversation) -> list[str]:
    """What users have said, along the path."""
    events = await conversation.events(kinds=["user_message"])
    return [part.text for event in events for part in body(event, UserMessage).parts if isinstance(part, Text)]


def body(event: Event, kind: type[Any]) -> Any:
    assert isinstance(event.body, kind)
    return event.body


async def everything(store: Store, conversation: AsyncConversation) -> tuple[Any, ...]:
    """All that is stored of a conversation."""
    id = conversation.id
    turns = await store.turns(id)
    return await store.read(id), await store.events(id), await store.state(id), turns, await store.spent(id)


def rows(file: Path) -> Counter[tuple[Any, ...]]:
    """Every row of the database but the signs of life of its processes, and the keys that make requests happen once."""
    found: Counter[tuple[Any, ...]] = Counter()
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            if table not in {"holder", "idempotency"}:
                found.update((table, *row) for row in db.execute(f"SELECT * FROM {table}"))
    return found


# Whose it is.


async def test_a_fork_has_a_fresh_id_and_is_found_by_it(home: Home, source: AsyncConversation) -> None:
    fork = await source.fork()
    assert fork.id != source.id
    assert fork.name == fork.id
    again = await AsyncConversation.open(fork.id, agent=source.agent, store=home.store)
    assert await again.events() == await source.events()


async def test_a_fork_has_the_id_or_the_name_that_it_is_given(home: Home, source: AsyncConversation) -> None:
    id = new_id()
    assert (await source.fork(conversation_id=id)).id == id
    named = await source.fork(conversation_id="follow-up")
    assert (named.name, (await AsyncConversation.open("follow-up", bind=False, store=home.store)).id) == (
        "follow-up",
        named.id,
    )
    with pytest.raises(BadName):
        await source.fork(conversation_id="not a name")


async def test_a_fork_says_where_it_comes_from(source: AsyncConversation) -> None:
    info = await source.info()
    fork = await (await source.fork()).info()
    assert (fork.lineage.kind, fork.lineage.source, str(fork.lineage.at)) == ("fork", source.id, info.head)
    assert (fork.family, fork.inherited_events, fork.events) == (info.family, info.events, info.events)
    (root,) = await source.tree()
    assert (root.info.id, [branch.info.id for branch in root.branches]) == (source.id, [fork.id])


@pytest.mark.parametrize("given", ["id", "name", "its own id", "its own name"])
async def test_a_fork_onto_what_exists_is_refused_and_nothing_is_changed(
    store: Store, source: AsyncConversation, tmp_path: Path, given: str
) -> None:
    there = await source.fork(conversation_id="there")
    onto = {"id": there.id, "name": "there", "its own id": source.id, "its own name": source.name}[given]
    before = rows(tmp_path / "forkpoint.db")
    with pytest.raises(AlreadyExists) as refused:
        await source.fork(conversation_id=onto, title="Taken over", tags={"a": "b"})
    assert onto in str(refused.value)
    assert rows(tmp_path / "forkpoint.db") == before
    assert (await store.verify()).ok


# What is in it.


async def test_a_fork_has_the_same_events_with_the_same_ids(source: AsyncConversation) -> None:
    theirs, ours = await source.events(), await (await source.fork()).events()
    assert [event.id for event in ours] == [event.id for event in theirs]
    assert ours == theirs
    assert await turns_of(await source.fork()) == await turns_of(source)


async def test_thoughts_pairs_records_of_calls_and_of_hooks_are_kept(store: Store, source: AsyncConversation) -> None:
    await store.note(source.id, new_id(), [NewEvent(HookRun("lint", "after_tool", command="lint .", exit_code=1))])
    theirs, ours = await source.events(), await (await source.fork()).events()
    by_kind = Counter(event.kind for event in ours)
    assert by_kind["reasoning"] == by_kind["tool_call"] == by_kind["tool_result"] == 2
    assert (by_kind["model_called"], by_kind["hook_run"]) == (4, 1)
    for kind in (Reasoning, ToolCall, ToolResult, ModelCalled, HookRun):
        assert [e.body for e in ours if isinstance(e.body, kind)] == [
            e.body for e in theirs if isinstance(e.body, kind)
        ]
    calls = [event.body.call_id for event in ours if isinstance(event.body, ToolCall)]
    results = [event.body.call_id for event in ours if isinstance(event.body, ToolResult)]
    assert calls == results == ["call_a", "call_b"]
    arguments = [event.body.arguments for event in ours if isinstance(event.body, ToolCall)]
    assert arguments == ['{"key": "a", "value": 1}', '{"key":"a","value":2}'], "the exact text that the model wrote"


async def test_nothing_that_is_shared_can_be_changed(source: AsyncConversation) -> None:
    event = (await (await source.fork()).events())[0]
    with pytest.raises(AttributeError):
        event.turn = "another"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        event.body.hash = "another"  # type: ignore[misc,union-attr]
    state = await source.agent_state()
    state["a"] = 99
    assert await source.agent_state() == {"a": 2}


async def test_a_fork_has_the_agents_state_and_each_goes_its_own_way(source: AsyncConversation) -> None:
    fork = await source.fork()
    assert await fork.agent_state() == {"a": 2}
    await fork.update_state({"b": [1]}, remove=["a"])
    await source.update_state({"a": 3})
    assert (await fork.agent_state(), await source.agent_state()) == ({"b": [1]}, {"a": 3})


async def test_a_fork_is_idle_and_has_nothing_pending(source: AsyncConversation) -> None:
    source.send_message("not run yet")
    fork = await source.fork()
    assert (await fork.status(), fork.pending, (await fork.info()).open_turn) == ("idle", (), None)
    assert len(source.pending) == 1
    with pytest.raises(NoSuchTurn):
        await fork.retry()


async def test_a_fork_of_a_conversation_that_waits_for_approval_waits_for_nothing(home: Home, places: None) -> None:
    replies = [Reply("Hello."), Reply(calls=(ScriptedCall("remember", '{"key":"a","value":1}'),)), Reply("On.")]
    model = Script([*replies, Reply("Done.")]).register("fork-of-waiting")
    source = AsyncConversation(home.agent(Agent(model, tools=[remember], approval="always")), store=home.store)
    await source.run("one")
    waiting = await source.run("two")
    assert waiting.outcome == "awaiting_approval"
    fork = await source.fork()
    assert (await fork.status(), await asked(fork)) == ("idle", ["one"])
    with pytest.raises(NoSuchTurn):
        await fork.approve()
    assert (await fork.run("three")).text == "On."
    assert (await source.approve()).text == "Done."
    assert (await asked(source), await asked(fork)) == (["one", "two"], ["one", "three"])
    assert (await source.agent_state(), await fork.agent_state()) == ({"a": 1}, {})


# Apart, in both directions.


async def test_whatever_happens_in_a_fork_leaves_its_source_as_it_was(
    store: Store, source: AsyncConversation, tmp_path: Path
) -> None:
    await source.describe(title="The source", tags={"kind": "ci"})
    before = await everything(store, source)
    fork = await source.fork(workspace=tmp_path, cache="inherit", title="The fork")
    await fork.run("three")
    await fork.describe(title="Another", tags={"x": "y"})
    await fork.update_state({"a": 100, "b": 1})
    await fork.change_agent(ECHO)
    await fork.run("four")
    await fork.ask("By the way?")
    await fork.rewind(before=(await turns_of(fork))[0])
    await fork.delete()
    assert await everything(store, source) == before
    assert (await store.verify()).ok


async def test_whatever_happens_in_a_source_leaves_its_fork_as_it_was(store: Store, source: AsyncConversation) -> None:
    fork = await source.fork(title="The fork", tags={"kind": "debug"})
    before = await everything(store, fork)
    await source.run("three")
    await source.describe(title="Another", tags={"x": "y"})
    await source.update_state({"a": 100})
    await source.change_agent(ECHO)
    await source.run("four")
    await source.ask("By the way?")
    await source.rewind(before=(await turns_of(source))[0])
    assert await everything(store, fork) == before
    await source.delete()
    await store.collect()
    assert await everything(store, fork) == before
    assert (await fork.run("on")).outcome == "committed"
    assert (await store.verify()).ok


async def test_source_and_fork_go_on_from_the_same_point(source: AsyncConversation) -> None:
    fork = await source.fork()
    shared = await source.events()
    await fork.run("in the fork")
    await source.run("in the source")
    assert (await source.events())[: len(shared)] == (await fork.events())[: len(shared)] == shared
    assert await asked(source) == ["one", "two", "in the source"]
    assert await asked(fork) == ["one", "two", "in the fork"]


async def test_a_fork_of_a_fork_has_the_whole_path_and_stands_alone(store: Store, source: AsyncConversation) -> None:
    conversations = [source]
    for depth in range(5):
        conversations.append(await conversations[-1].fork())
        await conversations[-1].run(f"depth {depth}")
    assert await asked(conversations[-1]) == ["one", "two", *(f"depth {depth}" for depth in range(5))]
    assert await asked(source) == ["one", "two"]
    lineage = (await conversations[-1].info()).lineage
    assert lineage.source == conversations[-2].id
    tree: tuple[Branch, ...] = await source.tree()
    for conversation in conversations:
        (branch,) = tree
        assert branch.info.id == conversation.id
        tree = branch.branches
    assert (await store.verify()).ok


# Metrics.


async def test_metrics_start_at_zero_and_what_was_inherited_is_shown_apart(source: AsyncConversation) -> None:
    theirs = await source.stats()
    assert theirs.total.calls == 4
    fork = await source.fork()
    ours = await fork.stats()
    assert (ours.total, ours.cost, ours.inherited) == (Usage(), 0.0, theirs.total)
    turn = await fork.run("three")
    ours = await fork.stats()
    assert (ours.total, ours.spent, ours.inherited) == (turn.usage, turn.usage, theirs.total)


async def test_metrics_are_carried_over_on_request_and_go_on_counting(source: AsyncConversation) -> None:
    theirs = await source.stats()
    fork = await source.fork(reset_metrics=False)
    ours = await fork.stats()
    assert (ours.total, ours.cost) == (theirs.total, theirs.cost)
    assert theirs.cost
    turn = await fork.run("three")
    ours = await fork.stats()
    assert (ours.total, ours.spent) == (theirs.total + turn.usage, turn.usage)
    later = await (await fork.fork(reset_metrics=False)).stats()
    assert later.total == ours.total


async def test_the_family_counts_each_token_once_whatever_was_carried_over(source: AsyncConversation) -> None:
    spent = (await source.stats()).spent
    branches = [source]
    for carried in (False, True):
        branches.append(await source.fork(reset_metrics=not carried))
        branches.append(await branches[-1].fork(reset_metrics=not carried))
    branches.append(await source.fork(at=(await turns_of(source))[0]))
    events = await source.events()
    middle = next(event for event in events if event.kind == "tool_result")
    branches.append(await source.fork(at=middle))
    for branch in branches:
        spent += (await branch.run("on")).usage
        spent += (await branch.ask("By the way?")).usage
    assert {(await branch.stats()).family for branch in branches} == {spent}
    own = [(await branch.stats()).spent for branch in branches]
    assert sum(own, Usage()) == spent


async def test_what_failed_tries_cost_stays_with_the_conversation_that_paid_for_them(home: Home, places: None) -> None:
    replies = [Reply("Hello."), Reply("no", fault=Fault("overloaded", after=1)), Reply("Yes.")]
    model = LLM(Script(replies).register("fork-after-failure"), retries=Retries(attempts=1), price=Price(1.0, 1.0))
    source = AsyncConversation(home.agent(Agent(model)), store=home.store)
    good = await source.run("one")
    with pytest.raises(TurnFailed) as failed:
        await source.run("two")
    lost = failed.value.turn
    assert lost is not None
    assert lost.usage.calls == 1
    with pytest.raises(BadPosition, match="only what is committed is history"):
        await source.fork(at=lost)
    fork = await source.fork(reset_metrics=False)
    assert ((await fork.stats()).total, (await source.stats()).total) == (good.usage, good.usage + lost.usage)
    assert await asked(fork) == ["one"], "a failed try is no history, so no fork has it"
    assert [turn.outcome for turn in (await fork.turns()).items] == ["committed"]
    await fork.run("three")
    assert (await fork.stats()).family == (await source.stats()).family


# The agent.


async def test_another_agent_answers_in_the_fork_alone(home: Home, source: AsyncConversation) -> None:
    fork = await source.fork(agent=home.agent(ECHO))
    assert fork.agent is ECHO
    assert (await fork.run("Who are you?")).text == "You said: Who are you?"
    assert (await source.run("three")).text == "Later."
    assert (await source.info()).model != (await fork.info()).model == "scripted/echo"
    changed = (await fork.events(kinds=["manifest_changed"]))[-1]
    assert "model" in body(changed, ManifestChanged).reason
    again = await AsyncConversation.open(fork.id, store=home.store)
    assert (await again.run("And now?")).text == "You said: And now?"


@pytest.mark.parametrize("alias", ["the same agent", "another agent with the same LLM"])
@pytest.mark.parametrize("cache", ["own", "inherit"])
async def test_an_aliased_agent_cannot_touch_the_sources_key(home: Home, alias: str, cache: Any) -> None:
    def echo(heard: Heard) -> Reply:
        return Reply(f"You said: {heard.text}")

    with ModelServer(Script(echo)) as server:
        llm = LLM("openai/a-model", base_url=server.url)
        before = msgspec.structs.asdict(llm)
        sources = Agent(llm, instructions="Be brief.")
        async with AsyncConversation(home.agent(sources), store=home.store) as source:
            own = await source.cache()
            await source.run("source")
            agent = sources if alias == "the same agent" else Agent(llm, instructions="Be long.")
            async with await source.fork(agent=home.agent(agent), cache=cache) as fork:
                for _ in range(2):
                    await fork.run("fork")
                    await source.run("source")
                assert await source.cache() == own
                inherits = cache == "inherit" and alias == "the same agent"
                shown = own if inherits else own_identity(fork.id)
                for request in server.requests:
                    words = request.json["messages"][-1]["content"]
                    expected = own if words == "source" else shown
                    assert (request.key, request.header("x-session-id")) == (expected.key, expected.session), words
        assert [request.json["messages"][-1]["content"] for request in server.requests].count("source") == 3
        assert msgspec.structs.asdict(llm) == before


async def test_a_fork_keeps_the_safety_of_today_also_at_an_earlier_turn(home: Home, source: AsyncConversation) -> None:
    first, _ = await turns_of(source)
    replies = [Reply(calls=(ScriptedCall("remember", '{"key":"a","value":9}'),))]
    model = Script(replies, repeat=True).register("fork-safety")
    strict = Agent(model, tools=[remember], approval="always", limits=Limits(steps=1))
    await source.change_agent(home.agent(strict))
    fork = await source.fork(at=first)
    assert await fork.agent_state() == {"a": 1}, "the state is of that turn"
    waiting = await fork.run("again")
    assert (waiting.outcome, [call.tool for call in waiting.waiting]) == ("awaiting_approval", ["remember"])
    with pytest.raises(TurnFailed, match="limit of 1 steps"):
        await fork.approve()
    again = await AsyncConversation.open(fork.id, agent=home.agent(strict), store=home.store)
    assert again.agent == home.at_hand(strict)


class Between:
    """A store in which something else happens at the worst moment: just before a fork is written."""

    def __init__(self, store: Store, happens: Any) -> None:
        self._store = store
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def fork(self, source: str, *args: Any, **options: Any) -> StoredConversation:
        await self._happens(source)
        return await self._store.fork(source, *args, **options)


@pytest.mark.parametrize("moved", [False, True], ids=["in the same folder", "in another folder"])
async def test_a_fork_never_has_a_policy_from_before_what_its_own_history_says(
    store: Store, tmp_path: Path, moved: bool
) -> None:
    """Somebody makes the source stricter while it is being forked: the fork has the note, so it has the policy."""
    strict = Agent("scripted/echo", approval="always", name="strict")

    async def tighten(source: str) -> None:
        other = await AsyncConversation.open(source, store=store)
        if (await other.info()).agent != "strict":
            await other.change_agent(strict)

    between: Any = Between(store, tighten)
    source = AsyncConversation(ECHO, store=between)
    await source.run("one")
    fork = await (source.fork(workspace=tmp_path) if moved else source.fork())
    noted = [event.body for event in await fork.events() if isinstance(event.body, SettingsChanged)]
    assert noted, "the change came first"
    stored = Settings.from_json((await store.read(fork.id)).settings)
    assert stored.agent_json == Settings.from_json(noted[-1].settings).agent_json


# Title and tags, workspace, those who listen.


async def test_a_fork_has_only_the_tags_that_it_is_given(source: AsyncConversation) -> None:
    await source.describe(title="The source", tags={"kind": "ci"})
    bare = await source.fork()
    assert (await bare.title(), await bare.tags()) == (None, {})
    tagged = await source.fork(tags={"kind": "debug", "user": "ada"})
    assert (await tagged.title(), await tagged.tags()) == (None, {"kind": "debug", "user": "ada"})
    assert await source.tags() == {"kind": "ci", "title": "The source"}


async def test_a_title_wins_over_a_tag_of_that_name_and_is_shown_as_one(home: Home, source: AsyncConversation) -> None:
    both = await source.fork(title="This one", tags={"title": "Not this", "a": "b"})
    assert (await both.title(), await both.tags()) == ("This one", {"title": "This one", "a": "b"})
    tagged = await source.fork(tags={"title": "From the tag"})
    assert (await tagged.title(), await tagged.tags()) == ("From the tag", {"title": "From the tag"})
    listed = await AsyncConversation.list(store=home.store, tags={"a": "b"})
    assert [info.id for info in listed.items] == [both.id]


async def test_a_fork_works_in_the_same_folder_or_in_one_that_is_named(
    home: Home, places: None, tmp_path: Path
) -> None:
    @tool
    def write(ctx: ToolContext) -> str:
        """Writes a file."""
        assert ctx.workspace is not None
        (ctx.workspace / "written").write_text(ctx.call_id)
        return "written"

    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    replies = [Reply(calls=(ScriptedCall("write"),)), Reply("Done.")]
    agent = Agent(Script(replies, repeat=True).register("fork-workspace"), tools=[write])
    source = AsyncConversation(home.agent(agent), store=home.store, workspace=tmp_path / "one")
    assert (await source.fork()).workspace == tmp_path / "one"
    fork = await source.fork(workspace=tmp_path / "other")
    await fork.run("write")
    assert [(tmp_path / name / "written").exists() for name in ("one", "other")] == [False, True]
    assert ((await source.info()).workspace, source.workspace) == (str(tmp_path / "one"), tmp_path / "one")


@pytest.mark.parametrize(
    ("workspace", "error"), [("worktree", BadArgument), ("copy", BadArgument), ("no/such/folder", BadWorkspace)]
)
async def test_a_workspace_that_cannot_be_had_is_refused_and_nothing_is_made(
    source: AsyncConversation, tmp_path: Path, workspace: str, error: type[ForkpointError]
) -> None:
    before = rows(tmp_path / "forkpoint.db")
    with pytest.raises(error):
        await source.fork(workspace=workspace)
    assert rows(tmp_path / "forkpoint.db") == before


async def test_an_unknown_cache_policy_is_refused_and_nothing_is_made(
    source: AsyncConversation, tmp_path: Path
) -> None:
    before = rows(tmp_path / "forkpoint.db")
    with pytest.raises((ForkpointError, ValueError)):
        await source.fork(cache="share")  # type: ignore[arg-type]
    assert rows(tmp_path / "forkpoint.db") == before


class Screen:
    """A visualizer that writes down what it is told."""

    def __init__(self, title: str = "source") -> None:
        self.title = title
        self.seen: list[Update] = []
        self.forks: list[Screen] = []

    def __call__(self, update: Update, /) -> None:
        self.seen.append(update)

    def for_fork(self) -> "Screen":
        self.forks.append(Screen(f"fork of {self.title}"))
        return self.forks[-1]


async def test_a_fork_has_a_visualizer_of_the_same_kind_and_callbacks_only_if_given(home: Home, places: None) -> None:
    told: list[Update] = []
    heard: list[Update] = []
    screen = Screen()
    source = AsyncConversation(home.agent(ECHO), store=home.store, callbacks=[told.append], visualizer=screen)
    await source.run("one")
    before = len(told)
    assert before == len(screen.seen) > 0
    fork = await source.fork(callbacks=[heard.append])
    await fork.run("two")
    assert len(told) == len(screen.seen) == before
    (shown,) = screen.forks
    assert (shown.title, shown.seen) == ("fork of source", heard)
    assert heard
    await (await fork.fork()).run("three")
    assert [deeper.title for deeper in shown.forks] == ["fork of fork of source"]
    assert len(heard) == len(shown.seen)


# While a turn runs.


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("first", [False, True], ids=["a later turn", "the first turn"])
async def test_a_fork_does_not_wait_for_a_turn_that_runs_and_sees_the_last_commit(
    home: Home, store: Store, first: bool, anyio_backend: str
) -> None:
    started, go_on = Signal(), Signal()

    @tool
    async def wait(ctx: ToolContext) -> str:
        """Waits until it is told to go on."""
        ctx.state["waited"] = True
        started.set()
        await go_on.wait()
        return "waited"

    replies = [] if first else [Reply("Hello.")]
    replies += [Reply("Let me see.", calls=(ScriptedCall("wait"),)), Reply("In the fork."), Reply("Done.")]
    agent = Agent(Script(replies).register(f"fork-running-{first}-{anyio_backend}"), tools=[wait])
    source = AsyncConversation(home.agent(agent), store=home.store)
    if not first:
        await source.run("one")
    committed = await source.events()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(source.run, "two")
        with anyio.fail_after(PROMPT):
            await started.wait()
            fork = await source.fork()
            assert await source.status() == "running"
            assert (await fork.events(), await fork.agent_state(), await fork.status()) == (committed, {}, "idle")
            assert (await fork.run("three")).text == "In the fork."
            assert await source.status() == "running"
        go_on.set()
    before = [] if first else ["one"]
    assert (await asked(source), await asked(fork)) == ([*before, "two"], [*before, "three"])
    assert (await source.agent_state(), await fork.agent_state()) == ({"waited": True}, {})
    assert (await store.verify()).ok


# Where.


async def test_a_fork_at_an_earlier_turn_has_what_was_there(source: AsyncConversation) -> None:
    first, second = await turns_of(source)
    turn = await source.turn(first)
    last = turn.events[-1]
    assert isinstance(last, Event)
    for at in (first, turn, last, str(last.id), last.id):
        fork = await source.fork(at=at)
        assert (await fork.events(), await fork.agent_state()) == (list(turn.events), {"a": 1})
        assert (await fork.stats()).inherited == turn.usage
    for before in (second, await source.turn(second), (await source.turn(second)).events[0]):
        fork = await source.fork(before=before)  # type: ignore[arg-type]
        assert (await fork.events(), await fork.agent_state()) == (list(turn.events), {"a": 1})
    assert await (await source.fork(at=second)).events() == await source.events()


async def test_a_fork_before_the_first_turn_is_empty(source: AsyncConversation) -> None:
    first, _ = await turns_of(source)
    fork = await source.fork(before=first)
    assert (await fork.events(), await fork.agent_state(), (await fork.info()).head) == ([], {}, None)
    assert (await fork.run("one")).outcome == "committed"
    assert (await source.stats()).inherited == Usage()


async def test_a_fork_at_an_event_has_the_state_of_that_event(source: AsyncConversation) -> None:
    events = await source.events()
    result = next(event for event in events if event.kind == "tool_result")
    question = next(event for event in events if event.kind == "user_message")
    after, before = await source.fork(at=result), await source.fork(at=question)
    assert (await after.events())[-1] == result
    assert (await after.agent_state(), await before.agent_state()) == ({"a": 1}, {})
    first = (await source.turns()).items[0]
    assert (await before.stats()).inherited == Usage()
    assert (await after.stats()).inherited == first.steps[0].usage, "the rest of the turn is not the fork's to inherit"
    assert (await after.run("go on")).outcome == "committed"
    assert (await (await after.fork()).agent_state()) == {"a": 1}


async def test_a_place_inside_a_tool_exchange_or_a_response_is_refused_with_those_that_are_safe(
    store: Store, source: AsyncConversation, tmp_path: Path
) -> None:
    events = await source.events()
    before = rows(tmp_path / "forkpoint.db")
    safe, refused = [], []
    for event in events:
        try:
            await source.fork(at=event)
            safe.append(event)
        except BadPosition as error:
            refused.append(event)
            ordinal = event.id.ordinal
            nearest = [int(place.split("-")[1]) for place in error.nearest]
            assert nearest[0] < ordinal < nearest[1]
            between = {other.kind for other in events[nearest[0] : nearest[1] - 1]}
            assert between & {"tool_call", "reasoning"}, "the nearest places are those around the exchange"
            for place in error.nearest:
                await source.fork(at=place)
    assert {event.kind for event in refused} == {"reasoning", "tool_call", "state_change"}
    assert {"user_message", "tool_result", "assistant_message"} <= {event.kind for event in safe}
    added = rows(tmp_path / "forkpoint.db") - before
    assert {row[0] for row in added} == {"conversation"}
    assert added.total() == len(safe) + 2 * len(refused), "a refused fork has left something behind"
    assert (await store.verify()).ok


async def test_a_place_that_is_not_on_the_path_is_refused_and_nothing_is_made(
    source: AsyncConversation, tmp_path: Path
) -> None:
    fork = await source.fork()
    elsewhere = await fork.run("in the fork")
    before = rows(tmp_path / "forkpoint.db")
    for at in (elsewhere, elsewhere.id, elsewhere.events[-1], "1-999", "nowhere"):
        with pytest.raises(BadPosition, match="nearest safe positions"):
            await source.fork(at=at)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        await source.fork(at=new_id())
    with pytest.raises(BadPosition):
        await source.fork(at=(await turns_of(source))[0], before=(await turns_of(source))[1])
    assert rows(tmp_path / "forkpoint.db") == before


# Of what is hardly there.


async def test_a_fork_of_an_empty_conversation_is_empty(home: Home, places: None) -> None:
    source = AsyncConversation(home.agent(ECHO), conversation_id="source", store=home.store, title="The source")
    fork = await source.fork(title="The fork")
    assert (await fork.events(), (await fork.stats()).inherited) == ([], Usage())
    assert (await fork.info()).lineage == Lineage("fork", source.id, None)
    await fork.run("one")
    assert (await source.events(), await asked(fork)) == ([], ["one"])
    listed = {info.title for info in (await AsyncConversation.list(store=home.store)).items}
    assert listed == {"The source", "The fork"}


async def test_a_fork_of_a_conversation_whose_first_turn_failed_is_empty_and_both_stay(
    home: Home, store: Store
) -> None:
    replies = [Reply("", fault=Fault("overloaded")), Reply("In the fork."), Reply("Again.")]
    model = LLM(Script(replies).register("fork-of-a-draft"), retries=Retries(attempts=1))
    source = AsyncConversation(home.agent(Agent(model)), store=home.store)
    with pytest.raises(TurnFailed):
        await source.run("one")
    fork = await source.fork()
    assert (await fork.events(), await fork.status()) == ([], "idle")
    assert not (await store.read(fork.id)).draft
    assert (await fork.run("two")).text == "In the fork."
    assert (await source.retry()).text == "Again."
    assert (await asked(source), await asked(fork)) == (["one"], ["two"])


async def test_a_closed_conversation_is_not_forked(source: AsyncConversation) -> None:
    await source.close()
    with pytest.raises(ConversationClosed):
        await source.fork()


# Many, elsewhere, and what it costs.


async def test_64_forks_at_once_are_64_conversations(store: Store, source: AsyncConversation) -> None:
    shared = await source.events()
    forks: list[AsyncConversation] = []

    async def fork_and_run(number: int) -> None:
        fork = await source.fork(agent=ECHO, tags={"number": str(number)})
        assert await fork.events() == shared
        await fork.run(f"I am {number}")
        forks.append(fork)

    async with anyio.create_task_group() as tasks:
        for number in range(64):
            tasks.start_soon(fork_and_run, number)
    assert len({fork.id for fork in forks}) == 64
    assert len({(await fork.cache()).key for fork in forks} | {(await source.cache()).key}) == 65
    for fork in forks:
        assert await asked(fork) == ["one", "two", f"I am {(await fork.tags())['number']}"]
        assert (await fork.stats()).spent.calls == 1
    assert await source.events() == shared
    assert (await source.stats()).family.calls == 4 + 64
    assert (await store.verify()).ok


OTHER_PROCESS = """
import sys
from forkpoint import Agent, Conversation, tool
from forkpoint.testing import Reply, Script, ScriptedCall

@tool
def wait() -> str:
    "Waits until it is told to go on."
    print("running", flush=True)
    return sys.stdin.readline().strip()

replies = [Reply("Hello."), Reply(calls=(ScriptedCall("wait"),)), Reply("Done.")]
agent = Agent(Script(replies).register("other"), tools=[wait])
with Conversation(agent, conversation_id="theirs", store=sys.argv[1]) as source:
    source.run("one")
    source.run("two")
    print(len(source.events()), flush=True)
"""


def other_process(address: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OTHER_PROCESS, address]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def test_a_conversation_that_another_process_runs_is_forked_without_waiting_for_it(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path / 'theirs.db'}"
    with other_process(address) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with anyio.fail_after(PROMPT):
                line = await anyio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)
            assert line == "running\n"
            async with await AsyncConversation.open("theirs", bind=False, store=address) as source:
                assert await source.status() == "running"
                async with await source.fork(agent=ECHO) as fork:
                    assert (await fork.run("here")).text == "You said: here"
                    assert (await asked(fork), await asked(source)) == (["one", "here"], ["one"])
                    assert await source.status() == "running"
                    process.stdin.write("go on\n")
                    process.stdin.flush()
                    with anyio.fail_after(PROMPT):
                        length = await anyio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)
                    assert len(await source.events()) == int(length)
                    assert (await asked(source), await asked(fork)) == (["one", "two"], ["one", "here"])
                    assert (await source.verify()).ok
        finally:
            process.kill()


@pytest.mark.parametrize("length", [10, 2_000])
async def test_a_fork_writes_one_row_however_long_the_history(store: Store, tmp_path: Path, length: int) -> None:
    file = tmp_path / "forkpoint.db"
    source = AsyncConversation(ECHO, store=store)
    first = await source.run("one")
    long = [NewEvent(UserMessage((Text(f"remark {number}"),))) for number in range(length)]
    await store.note(source.id, new_id(), long)
    await source.run("two")
    places: list[dict[str, Any]] = [{}, {"at": first}, {"at": (await source.events())[length // 2]}, {"before": first}]
    options = {"title": "t", "tags": {"a": "b"}, "reset_metrics": False, "cache": "inherit", "workspace": tmp_path}
    for given in (*places, options):
        before = rows(file)
        fork = await source.fork(**given)
        after = rows(file)
        assert not before - after, "a fork has changed or removed a row"
        (table, *row), *tags = sorted((after - before).elements(), key=lambda row: str(row[0]))
        assert table == "conversation"
        assert bytes.fromhex(fork.id.replace("-", "")) in row
        assert [table for table, *_ in tags] == ["tag"] * len(given.get("tags", ())), "one more row for each tag"


def test_the_plain_api_forks_in_the_same_words(home: Home, tmp_path: Path) -> None:
    asynchronous, plain = (list(inspect.signature(kind.fork).parameters) for kind in (AsyncConversation, Conversation))
    assert asynchronous == plain
    (tmp_path / "other").mkdir()
    heard: list[Update] = []
    with Conversation(home.agent(ECHO), store=home.store, visualizer=Screen()) as source:
        first = source.run("one")
        source.run("two")
        with source.fork(
            conversation_id="follow-up",
            at=first,
            title="Follow-up",
            tags={"a": "b"},
            reset_metrics=False,
            cache="inherit",
            workspace=tmp_path / "other",
            callbacks=[heard.append],
        ) as fork:
            assert (fork.name, len(fork.events()), fork.tags()) == ("follow-up", 4, {"a": "b", "title": "Follow-up"})
            assert (fork.workspace, fork.cache().key) == (tmp_path / "other", source.cache().key)
            assert fork.stats().total == first.usage
            assert fork.run("three").text == "You said: three"
            assert heard
            assert fork.id in {branch.info.id for branch in source.tree()[0].branches}
