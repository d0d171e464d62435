"""Turns that bring other settings, or stand elsewhere than at the head: it comes with the commit, or not at all."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from tests.conversation.support.agents import Watcher, agent_of, asks, call, kinds, messages_of, results, said
from tests.conversation.support.homes import new_file

from forkpoint import Agent, AsyncConversation, TurnCancelled, TurnFailed, tool
from forkpoint.backend.options import Continuation, Draft, ForkOptions, How, NewTurn
from forkpoint.backend.settings import Settings
from forkpoint.conversation import Turn
from forkpoint.engine.engine import Engine
from forkpoint.errors import Busy, ForkpointError, NotResumable, Unpaired
from forkpoint.events import (
    AssistantMessage,
    Event,
    Imported,
    ManifestChanged,
    Position,
    SettingsChanged,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
)
from forkpoint.ids import new_id
from forkpoint.llm import TextPiece
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.store import open_store
from forkpoint.store.protocol import Store
from forkpoint.store.values import Head, Onto
from forkpoint.testing import Fault, Heard, Reply
from forkpoint.updates import CallStarted

pytestmark = pytest.mark.anyio

OVERLOADED = Reply("never heard", fault=Fault("overloaded"))
HANGS = Reply("never heard", piece=1, fault=Fault("hang", after=1))
BROWSE = ToolSchema("browse", "Opens a page.")


class Model:
    """Answers with the number of the request, or as it is told to; and keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[list[str]] = []
        self.keys: list[str] = []
        self.next: Reply | None = None

    def __call__(self, heard: Heard) -> Reply:
        self.shown.append([message["content"] for message in messages_of(heard)])
        self.keys.append(heard.body["prompt_cache_key"])
        reply, self.next = self.next, None
        return reply or Reply(f"answer {len(self.shown)}")


class Talk:
    """A conversation of a backend, in the words of these tests."""

    def __init__(self, backend: Engine, store: Store, agent: Agent, model: Model, id: str | None = None) -> None:
        self.backend, self.store, self.agent, self.model = backend, store, agent, model
        self.id = id or new_id()

    async def run(self, text: str, *, agent: Agent | None = None, draft: bool = False, **options: Any) -> Turn:
        given = options.pop("given", (UserMessage((Text(text),)),))
        made = Draft(id=self.id, name=None, settings=Settings.of(self.agent, None)) if draft else None
        tell = options.pop("tell", lambda _: None)
        return await self.backend.turns.run(
            self.id, agent or self.agent, NewTurn(given=given, draft=made, how=How(**options)), tell
        )

    async def as_it_is(self) -> tuple[Any, ...]:
        """All that a turn may change, but for the record of the turn itself."""
        record, known = await self.store.read(self.id), self.backend.placement.known(self.id)
        if known is not None and known.revision == record.revision:  # what is remembered is right
            assert (known.head, known.settings) == (record.head, record.settings)
        aside = len(await self.backend.placement.set_aside(self.id))
        return replace(record, updated=0), await self.store.events(self.id), aside

    async def head(self) -> Head:
        return (await self.store.read(self.id)).head

    async def bodies(self, kind: type) -> list[Any]:
        return [event.body for event in await self.store.events(self.id) if isinstance(event.body, kind)]


@asynccontextmanager
async def beginning(file: Path, **settings: Any) -> AsyncIterator[Talk]:
    """A conversation without turns in a file, and a backend on it."""
    model = Model()
    store = await open_store(f"sqlite:///{file}")
    backend = Engine(store)
    try:
        yield Talk(backend, store, agent_of(model, instructions="Be brief.", **settings), model)
    finally:
        await backend.close()


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Talk]:
    """The same with two turns."""
    async with beginning(new_file(tmp_path)) as talk:
        await talk.run("one", draft=True)
        await talk.run("two")
        yield talk


def other(agent: Agent, instructions: str = "Be kind.") -> tuple[Agent, Settings]:
    """Another agent on the same model, and settings that name it."""
    made = Agent(agent.llm, instructions=instructions)
    return made, replace(Settings.of(made, None), system="Be kind.")


# Other settings.


async def test_other_settings_come_with_the_commit_and_are_recorded_once(talk: Talk) -> None:
    before = (await talk.store.read(talk.id)).settings
    agent, settings = other(talk.agent)
    turn = await talk.run("three", agent=agent, settings=settings)
    assert kinds(turn.events)[:4] == ["settings_changed", "settings_changed", "manifest_changed", "user_message"]
    assert [body.settings for body in await talk.bodies(SettingsChanged)] == [before, settings.to_json()]
    assert len(await talk.bodies(ManifestChanged)) == 2, "that of the first turn, and this one"
    assert talk.model.shown[-1] == ["Be kind.", "one", "answer 1", "two", "answer 2", "three"]
    record = await talk.store.read(talk.id)
    assert record.settings == settings.to_json()
    known = talk.backend.placement.known(talk.id)
    assert known is not None
    assert (known.revision, known.head, known.settings) == (record.revision, record.head, record.settings)
    assert Settings.from_json(record.settings).system == "Be kind."
    again = await talk.run("four", agent=agent, settings=settings)
    assert kinds(again.events)[0] == "user_message", "the same settings change nothing"
    assert talk.model.shown[-1][:1] + talk.model.shown[-1][-1:] == ["Be kind.", "four"]
    third, thirds = other(talk.agent, "Be quick.")
    await talk.run("five", agent=third, settings=thirds)
    recorded = [body.settings for body in await talk.bodies(SettingsChanged)]
    assert recorded == [before, settings.to_json(), thirds.to_json()], "what held before is known by now"
    assert (await talk.store.verify(talk.id)).ok


async def test_the_next_turn_has_them_whoever_runs_it(talk: Talk, tmp_path: Path) -> None:
    agent, settings = other(talk.agent)
    await talk.run("three", agent=agent, settings=settings)
    turn = await talk.run("four")  # by one who still has the first agent
    assert talk.model.shown[-1][0] == "Be kind."
    assert kinds(turn.events)[0] == "user_message"
    await talk.backend.close()
    async with await AsyncConversation.open(talk.id, store=f"sqlite:///{tmp_path / 'forkpoint.db'}") as again:
        await again.run("five")
        assert talk.model.shown[-1][0] == "Be kind."


async def test_a_conversation_without_history_has_nothing_to_record(tmp_path: Path) -> None:
    async with beginning(new_file(tmp_path)) as talk:
        await talk.backend.create(Draft(id=talk.id, name=None, settings=Settings.of(talk.agent, None)))
        agent, settings = other(talk.agent)
        talk.model.next = OVERLOADED
        before = await talk.as_it_is()
        with pytest.raises(TurnFailed):
            await talk.run("one", agent=agent, settings=settings)
        assert await talk.as_it_is() == before
        turn = await talk.run("one", agent=agent, settings=settings)
        assert kinds(turn.events)[:2] == ["manifest_changed", "user_message"]
        assert await talk.bodies(SettingsChanged) == []
        assert (await talk.store.read(talk.id)).settings == settings.to_json()


async def test_a_turn_that_fails_leaves_the_settings_and_what_is_known_of_them(talk: Talk) -> None:
    agent, settings = other(talk.agent)
    before = await talk.as_it_is()
    talk.model.next = OVERLOADED
    with pytest.raises(TurnFailed):
        await talk.run("three", agent=agent, settings=settings)
    assert await talk.as_it_is() == before
    await talk.run("three")
    assert talk.model.shown[-1] == ["Be brief.", "one", "answer 1", "two", "answer 2", "three"]


async def test_a_turn_that_is_cancelled_leaves_them_too(talk: Talk) -> None:
    agent, settings = other(talk.agent)
    before, watcher = await talk.as_it_is(), Watcher()
    talk.model.next = HANGS

    async def run() -> None:
        with pytest.raises(TurnCancelled):
            await talk.run("three", agent=agent, settings=settings, tell=watcher)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await watcher.until(TextPiece)
        await talk.backend.turns.cancel(talk.id)
    assert await talk.as_it_is() == before


@tool
async def ponder() -> str:
    """Takes its time."""
    await anyio.sleep_forever()
    return "never"


@asynccontextmanager
async def interrupted(file: Path, *, at_root: bool = False) -> AsyncIterator[tuple[Talk, Turn]]:
    """A turn whose process went away while a tool ran, as the next one on the same file finds it."""
    async with beginning(file) as first:
        await first.run("one", draft=True)
        watcher = Watcher()
        first.model.next = asks(call("ponder", "p"))
        agent = Agent(first.agent.llm, instructions="Be kind.", tools=[ponder])
        how: dict[str, Any] = {"settings": Settings.of(agent, None), "onto": Onto(first.id, None) if at_root else None}

        async def run() -> None:
            with suppress(ForkpointError):
                await first.run("two", agent=agent, tell=watcher, **how)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await watcher.until(CallStarted)
            await first.store.close()
            tasks.cancel_scope.cancel()
        store = await open_store(f"sqlite:///{file}")
        backend = Engine(store)
        talk = Talk(backend, store, agent, first.model, first.id)
        record = await store.read(talk.id)
        assert (record.status, record.open_turn is not None) == ("interrupted", True)
        try:
            yield talk, await backend.turns.read(talk.id, record.open_turn or "")
        finally:
            await backend.close()


async def test_a_turn_whose_process_is_gone_leaves_them_too(tmp_path: Path) -> None:
    async with interrupted(new_file(tmp_path)) as (talk, turn):
        assert "settings_changed" in kinds(turn.events)
        before = await talk.store.read(talk.id)
        await talk.backend.turns.discard(talk.id, turn.id)
        after = await talk.store.read(talk.id)
        assert (after.settings, after.head) == (before.settings, before.head)
        assert await talk.bodies(SettingsChanged) == []


async def test_a_turn_that_is_resumed_brings_the_settings_that_its_journal_says(tmp_path: Path) -> None:
    async with interrupted(new_file(tmp_path)) as (talk, turn):
        done = await talk.backend.turns.resume(talk.id, turn.id, talk.agent, Continuation(), lambda _: None)
        assert done.outcome == "committed"
        record, changes = await talk.store.read(talk.id), await talk.bodies(SettingsChanged)
        assert changes[-1].settings == record.settings
        assert kinds(done.events).count("manifest_changed") == 1
        assert talk.model.shown[-1][0] == "Be kind."
        assert (await talk.store.verify(talk.id)).ok


# Elsewhere.


async def after_turn(talk: Talk, number: int) -> Position:
    """Where a turn ends."""
    turns = (await talk.backend.turns.list(talk.id)).items
    last = turns[number - 1].events[-1]
    assert isinstance(last, Event)
    return last.id


async def test_a_turn_that_stands_elsewhere_moves_the_head_there_and_sets_aside_what_stood_at_it(talk: Talk) -> None:
    before, cache = await talk.head(), (await talk.store.read(talk.id)).cache
    at = await after_turn(talk, 1)
    turn = await talk.run("two, otherwise", onto=Onto(talk.id, at))
    assert talk.model.shown[-1] == ["Be brief.", "one", "answer 1", "two, otherwise"]
    assert kinds(turn.events)[0] == "user_message", "the prompt begins as before"
    (aside,) = await talk.backend.placement.set_aside(talk.id)
    assert (aside.head, aside.lineage.at) == (before, at)
    record, known = await talk.store.read(talk.id), talk.backend.placement.known(talk.id)
    assert record.cache == cache
    assert known is None or known.head == record.head, "what is remembered is not the path that it left"
    assert len(set(talk.model.keys)) == 1
    await talk.run("three")
    assert talk.model.shown[-1] == ["Be brief.", "one", "answer 1", "two, otherwise", "answer 3", "three"]
    assert (await talk.store.verify(None)).ok


async def test_a_turn_may_stand_at_the_root(talk: Talk) -> None:
    turn = await talk.run("anew", onto=Onto(talk.id, None))
    assert talk.model.shown[-1] == ["Be brief.", "anew"]
    assert kinds(turn.events)[:2] == ["manifest_changed", "user_message"]
    await talk.run("more")
    assert talk.model.shown[-1] == ["Be brief.", "anew", "answer 3", "more"]
    assert (await talk.store.events(talk.id))[0].id.ordinal == 1


async def test_a_turn_may_go_back_to_what_was_set_aside(talk: Talk) -> None:
    await talk.run("two, otherwise", onto=Onto(talk.id, await after_turn(talk, 1)))
    (aside,) = await talk.backend.placement.set_aside(talk.id)
    await talk.run("three", onto=Onto(aside.id, aside.head.position))
    assert talk.model.shown[-1] == ["Be brief.", "one", "answer 1", "two", "answer 2", "three"]
    newest, oldest = await talk.backend.placement.set_aside(talk.id)
    assert oldest.id == aside.id
    assert said(await talk.store.events(newest.id))[::2] == [("user", "one"), ("user", "two, otherwise")]
    await talk.run("four")
    assert talk.model.shown[-1][-3:] == ["three", "answer 4", "four"]
    assert (await talk.store.verify(None)).ok


async def test_nothing_is_set_aside_where_the_new_path_goes_on_from_the_old_head(talk: Talk) -> None:
    fork, _ = await talk.backend.branches.fork(talk.id, ForkOptions(id=new_id()))
    branch = Talk(talk.backend, talk.store, talk.agent, talk.model, fork.id)
    await branch.run("three in the fork")
    await talk.run("four", onto=Onto(fork.id, (await branch.head()).position))
    assert talk.model.shown[-1][-3:] == ["three in the fork", "answer 3", "four"]
    assert await talk.backend.placement.set_aside(talk.id) == []
    await talk.run("five")
    assert talk.model.shown[-1][-3:] == ["four", "answer 4", "five"]


async def test_the_head_is_no_other_place(talk: Talk) -> None:
    await talk.run("three", onto=Onto(talk.id, (await talk.head()).position))
    assert await talk.backend.placement.set_aside(talk.id) == []
    await talk.run("four")
    assert talk.model.shown[-1][-4:] == ["answer 2", "three", "answer 3", "four"]


@pytest.mark.parametrize("at_root", [False, True], ids=["at a turn", "at the root"])
async def test_a_failed_turn_elsewhere_leaves_all_as_it_was(talk: Talk, at_root: bool) -> None:
    before = await talk.as_it_is()
    agent, settings = other(talk.agent)
    talk.model.next = OVERLOADED
    at = None if at_root else await after_turn(talk, 1)
    with pytest.raises(TurnFailed):
        await talk.run("two", agent=agent, settings=settings, onto=Onto(talk.id, at))
    assert await talk.as_it_is() == before
    await talk.run("three")
    assert talk.model.shown[-1] == ["Be brief.", "one", "answer 1", "two", "answer 2", "three"]


async def test_a_cancelled_turn_elsewhere_leaves_all_as_it_was(talk: Talk) -> None:
    before, watcher = await talk.as_it_is(), Watcher()
    talk.model.next = HANGS
    at = await after_turn(talk, 1)

    async def run() -> None:
        with pytest.raises(TurnCancelled):
            await talk.run("two", onto=Onto(talk.id, at), tell=watcher)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await watcher.until(TextPiece)
        await talk.backend.turns.cancel(talk.id)
    assert await talk.as_it_is() == before


async def test_other_settings_and_another_place_come_together(talk: Talk) -> None:
    agent, settings = other(talk.agent)
    old = (await talk.store.read(talk.id)).settings
    at = await after_turn(talk, 1)
    turn = await talk.run("two, kindly", agent=agent, settings=settings, onto=Onto(talk.id, at))
    assert talk.model.shown[-1] == ["Be kind.", "one", "answer 1", "two, kindly"]
    assert kinds(turn.events).count("manifest_changed") == 1
    (aside,) = await talk.backend.placement.set_aside(talk.id)
    assert (aside.settings, (await talk.store.read(talk.id)).settings) == (old, settings.to_json())
    back = await talk.run("three, briefly", settings=Settings.from_json(old), onto=Onto(aside.id, aside.head.position))
    assert talk.model.shown[-1] == ["Be brief.", "one", "answer 1", "two", "answer 2", "three, briefly"]
    assert "manifest_changed" not in kinds(back.events), "on that path prompts have always begun so"
    assert len(set(talk.model.keys)) == 1
    assert (await talk.store.verify(None)).ok


async def test_calls_that_are_open_where_it_stands_are_answered_there(tmp_path: Path) -> None:
    async with beginning(new_file(tmp_path), client_tools=[BROWSE]) as talk:
        talk.model.next = asks(call("browse", "b"))
        await talk.run("read", draft=True)
        at = await after_turn(talk, 1)
        await talk.run("", given=(ToolResult("b", "", (Text("page"),)),))
        with pytest.raises(ForkpointError):
            await talk.run("", given=(ToolResult("b", "", (Text("page"),)),))
        turn = await talk.run("", given=(ToolResult("b", "", (Text("other"),)),), onto=Onto(talk.id, at))
        assert [(one.call_id, one.tool) for one in results(turn.events)] == [("b", "browse")]
        assert talk.model.shown[-1][-1] == "other"
        before = await talk.as_it_is()
        with pytest.raises((Unpaired, TurnFailed)):
            await talk.run("", given=(ToolResult("z", "", (Text("other"),)),), onto=Onto(talk.id, at))
        assert await talk.as_it_is() == before


async def test_open_calls_are_answered_before_anything_else_is_said_to_have_changed(tmp_path: Path) -> None:
    async with beginning(new_file(tmp_path), client_tools=[BROWSE]) as talk:
        talk.model.next = asks(call("browse", "b"))
        await talk.run("read", draft=True)
        agent, settings = other(talk.agent)
        turn = await talk.run("", given=(ToolResult("b", "", (Text("page"),)),), agent=agent, settings=settings)
        assert kinds(turn.events)[:4] == ["tool_result", "settings_changed", "settings_changed", "manifest_changed"]
        assert talk.model.shown[-1][-1] == "page"
        assert (await talk.store.verify(talk.id)).ok


async def test_history_from_elsewhere_brings_its_own_results(tmp_path: Path) -> None:
    async with beginning(new_file(tmp_path), client_tools=[BROWSE]) as talk:
        given = (
            Imported("a client", 4),
            UserMessage((Text("read"),)),
            ToolCall("b", "browse", "{}", client=True),
            ToolResult("b", "browse", (Text("page"),)),
            AssistantMessage((Text("It is short."),)),
            UserMessage((Text("shorter?"),)),
        )
        turn = await talk.run("", given=given, draft=True)
        assert [body.parts for body in turn.input] == [(Text("shorter?"),)]
        assert [content for content in talk.model.shown[-1] if content] == [
            "Be brief.",
            "read",
            "page",
            "It is short.",
            "shorter?",
        ]
        assert (await talk.backend.turns.read(talk.id, turn.id)).given == given


# Two on one file.


async def test_another_process_goes_on_from_where_the_head_is_now(talk: Talk, tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path / 'forkpoint.db'}")
    second = Talk(Engine(store), store, talk.agent, talk.model, talk.id)
    try:
        await second.run("three")  # it has a record and a prompt in memory by now
        agent, settings = other(talk.agent)
        await talk.run("two, kindly", agent=agent, settings=settings, onto=Onto(talk.id, await after_turn(talk, 1)))
        await second.run("three, kindly")
        assert talk.model.shown[-1] == ["Be kind.", "one", "answer 1", "two, kindly", "answer 4", "three, kindly"]
        await talk.run("four")
        assert talk.model.shown[-1][-3:] == ["three, kindly", "answer 5", "four"]
    finally:
        await second.backend.close()


async def test_while_a_turn_stands_elsewhere_no_other_begins(talk: Talk, tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path / 'forkpoint.db'}")
    second, watcher = Talk(Engine(store), store, talk.agent, talk.model, talk.id), Watcher()
    at = await after_turn(talk, 1)
    talk.model.next = HANGS

    async def run() -> None:
        with pytest.raises(TurnCancelled):
            await talk.run("two", onto=Onto(talk.id, at), tell=watcher)

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await watcher.until(TextPiece)
            for onto in (None, Onto(talk.id, None)):
                with pytest.raises(Busy):
                    await second.run("three", onto=onto)
            await talk.backend.turns.cancel(talk.id)
        await second.run("three")
        assert talk.model.shown[-1][-3:] == ["two", "answer 2", "three"]
    finally:
        await second.backend.close()


async def test_a_turn_elsewhere_whose_process_is_gone_moved_nothing_and_is_superseded(tmp_path: Path) -> None:
    async with interrupted(new_file(tmp_path), at_root=True) as (talk, turn):
        assert said(await talk.store.events(talk.id)) == [("user", "one"), ("assistant", "answer 1")]
        with pytest.raises(NotResumable):
            await talk.backend.turns.resume(talk.id, turn.id, talk.agent, Continuation(), lambda _: None)
        again = await talk.backend.turns.run(
            talk.id,
            talk.agent,
            NewTurn(given=turn.given, supersede=True, how=How(onto=Onto(talk.id, None))),
            lambda _: None,
        )
        assert again.outcome == "committed"
        assert talk.model.shown[-1] == ["Be brief.", "two"], "the settings that it would have brought are not there"
        assert len(await talk.backend.placement.set_aside(talk.id)) == 1


async def test_a_turn_elsewhere_that_was_interrupted_is_found_by_one_who_discards_what_is_open(tmp_path: Path) -> None:
    async with interrupted(new_file(tmp_path), at_root=True) as (talk, turn):
        info, settings = await talk.backend.find(talk.id)
        conversation = AsyncConversation.over(talk.backend, info, settings, talk.agent)
        assert (await conversation.discard()).id == turn.id
        assert await conversation.status() == "idle"
