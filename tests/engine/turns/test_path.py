"""Reading a path for a run: no more than its prompt shows, and the prompt is the same as if all of it were read."""

import signal
import sqlite3
import sys
from collections.abc import Awaitable
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conversation.support.agents import agent_of, asks, call
from tests.llm.paths import Commit, common, histories, manifest_for, told, unreadable
from tests.llm.test_rendering_stability import everything

from forkpoint import Agent, AsyncConversation
from forkpoint.engine.turns import path
from forkpoint.engine.turns.path import backwards, calls_among, newest, rendered
from forkpoint.errors import BadPosition, Unpaired
from forkpoint.events import (
    AssistantMessage,
    Condensation,
    Event,
    ManifestChanged,
    NewEvent,
    Opaque,
    Position,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    encode_body,
)
from forkpoint.history.landmarks import LANDMARKS
from forkpoint.ids import new_id
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.llm.prompt.rendering import render
from forkpoint.store.protocol import Store
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import NewConversation, NewFork
from forkpoint.testing import Heard, Reply

pytestmark = pytest.mark.anyio

T = TypeVar("T")

MANIFEST = manifest_for("chat")
BROWSE = ToolSchema("browse", "Opens a page, at the client's.")
LONG = 2_000
KEPT = 50
MOST = 250  # events that may be read of a path that shows so few


class Counting:
    """A store that counts the events that are read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def events(self, *args: Any, **kwargs: Any) -> list[Event]:
        found = await self._store.events(*args, **kwargs)
        self.count += len(found)
        return found


def said(number: int) -> NewEvent:
    words = (Text(f"number {number}"),)
    return NewEvent(AssistantMessage(words) if number % 2 else UserMessage(words))


async def long_path(store: Store, *last: NewEvent, kept: int = KEPT) -> str:
    """A long conversation that was condensed near its end."""
    id = new_id()
    system = NewEvent(SystemMessage((Text("Be kind."),)))
    await store.create(NewConversation(id=id), [system, *(said(n) for n in range(LONG - 1))])
    await store.note(id, new_id(), [NewEvent(Condensation("They counted.", LONG - kept + 1))])
    await store.note(id, new_id(), [said(0), said(1), *last])
    return id


async def same_as_whole(store: Store, id: str) -> None:
    at = (await store.read(id)).head.position
    for wire in ("chat", "messages"):
        manifest = manifest_for(wire)
        short, full = await rendered(store, id, at, manifest), render(manifest, await store.events(id))
        assert everything(wire, short) == everything(wire, full)


# The prompt of what was read is the prompt of the whole path.


@settings(common, max_examples=50)
@given(commits=histories(damage=False, max_turns=5), data=st.data())
def test_the_prompt_of_what_is_shown_is_that_of_the_whole_path(
    tmp_path_factory: pytest.TempPathFactory, commits: list[Commit], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(path, "_FEW", data.draw(st.sampled_from([1, 2, 5])))
        anyio.run(compare, tmp_path_factory.mktemp("path") / "a.db", commits, data)


async def compare(file: Path, commits: list[Commit], data: st.DataObject) -> None:
    id = new_id()
    ends: list[Position] = []
    async with await SqliteStore.open(file) as store:
        await store.create(NewConversation(id=id))
        for events in commits:
            new = [NewEvent(event.body, event.envelope.response) for event in events]  # type: ignore[arg-type]
            committed = await store.note(id, new_id(), new)
            for body in () if committed.head.open_calls else between(committed.last.ordinal, data):
                committed = await store.note(id, new_id(), [NewEvent(body)])
            ends.append(committed.last)
        damage(file, data, await store.events(id))
        for conversation, at in [*((id, end) for end in ends), *await fork_somewhere(store, id, ends[-1], data)]:
            whole = await store.events(conversation, at=at)
            for wire in ("messages", data.draw(st.sampled_from(["chat", "responses", "local"]))):
                manifest = manifest_for(wire)
                short, full = await rendered(store, conversation, at, manifest), render(manifest, whole)
                left, right = everything(wire, short, at.ordinal), everything(wire, full, at.ordinal)
                del left["lost"], right["lost"]
                differ = [name for name in left if left[name] != right[name]]
                assert not differ, f"{wire} at {at}: {differ} differ:\n{told(whole)}"
                assert short.exchange == full.exchange
                assert short.later == full.later
                assert set(dict(short.lost)) <= set(dict(full.lost))


def between(ordinal: int, data: st.DataObject) -> list[Condensation | SystemMessage]:
    """More of what a prompt that is read short could get wrong: it may come anywhere, and keep any part of the path."""
    kept_from = st.integers(1, ordinal + 3)
    condensation = st.builds(Condensation, st.sampled_from(["one summary", "another"]), kept_from)
    system = st.builds(SystemMessage, st.tuples(st.builds(Text, st.sampled_from(["Be kind.", "Be brief."]))))
    return data.draw(st.lists(condensation | system, max_size=3))


def damage(file: Path, data: st.DataObject, events: list[Event]) -> None:
    """Erases some events, and makes some unreadable."""
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        landmarks = [event for event in events if event.kind in LANDMARKS] or events
        for event in data.draw(st.lists(st.sampled_from(events) | st.sampled_from(landmarks), max_size=2)):
            key, body = event.id.segment << 32 | event.id.ordinal, unreadable(event).body
            payload = encode_body(body) if isinstance(body, Opaque) and data.draw(st.booleans()) else None
            db.execute("UPDATE event SET payload = ?, salt = NULL WHERE id = ?", (payload, key))


async def fork_somewhere(store: Store, id: str, head: Position, data: st.DataObject) -> list[tuple[str, Position]]:
    """A fork in the middle of a path, perhaps inside of a turn, that goes on by itself."""
    for ordinal in range(data.draw(st.integers(1, head.ordinal)), head.ordinal):
        place = (await store.events(id, after=ordinal - 1, limit=1))[0].id
        try:
            fork = await store.fork(id, NewFork(id=new_id(), cache="{}"), at=place)
        except (BadPosition, Unpaired):  # here a turn answers calls of the client that it made itself
            continue
        grown = fork.head.position
        assert grown is not None
        if not fork.head.open_calls and data.draw(st.booleans()):
            new = [NewEvent(Condensation("in the fork", data.draw(st.integers(1, ordinal + 1)))), said(0), said(1)]
            grown = (await store.note(fork.id, new_id(), new)).last
        return [(fork.id, place), (fork.id, grown)]
    return []


async def test_an_older_summary_that_reaches_further_is_still_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any program may write a condenser: this one first keeps nothing, not even what follows, and later something."""
    monkeypatch.setattr(path, "_FEW", 2)
    async with await SqliteStore.open(None) as store:
        id = new_id()
        await store.create(NewConversation(id=id), [said(0), said(1), NewEvent(Condensation("All of it.", 50))])
        await store.note(id, new_id(), [said(n) for n in range(20)])
        await store.note(id, new_id(), [NewEvent(Condensation("The rest.", 15)), said(0)])
        await same_as_whole(store, id)
        at = (await store.read(id)).head.position
        assert b"All of it." in b"".join(block.text for block in (await rendered(store, id, at, MANIFEST)).blocks)


async def test_ids_that_depend_on_all_that_stands_before_are_made_from_the_whole_path() -> None:
    """On the wire of messages a short id of another provider's call is made longer, by what stands before it."""
    async with await SqliteStore.open(None) as store:
        id = await long_path(store, kept=2)
        asked = [said(0), *exchange_with_a_call(), said(1)]
        first = await store.note(id, new_id(), asked)
        await store.note(id, new_id(), [NewEvent(Condensation("And again.", first.first.ordinal + 1)), said(0)])
        await same_as_whole(store, id)


def exchange_with_a_call() -> list[NewEvent]:
    call = NewEvent(ToolCall("c1", "look", "{}", provider="elsewhere/chat"), response=1)
    return [call, NewEvent(ToolResult("c1", "look", (Text("seen"),)))]


# What is read.


async def test_a_condensed_path_is_read_as_far_as_its_prompt_shows_it() -> None:
    async with await SqliteStore.open(None) as inner:
        id = await long_path(inner)
        await same_as_whole(inner, id)
        store = Counting(inner)
        head = (await inner.read(id)).head
        await rendered(store, id, head.position, MANIFEST)
        assert KEPT <= store.count <= MOST


async def test_a_path_without_a_condensation_is_read_whole() -> None:
    async with await SqliteStore.open(None) as inner:
        id, store = new_id(), Counting(inner)
        await inner.create(NewConversation(id=id), [said(n) for n in range(300)])
        await rendered(store, id, (await inner.read(id)).head.position, MANIFEST)
        assert store.count == 300


async def test_a_fork_before_the_condensation_has_the_whole_path() -> None:
    async with await SqliteStore.open(None) as store:
        id = await long_path(store)
        place = (await store.events(id, after=299, limit=1))[0].id
        fork = await store.fork(id, NewFork(id=new_id(), cache="{}"), at=place)
        assert len((await rendered(store, fork.id, place, MANIFEST)).blocks) >= 300
        await same_as_whole(store, fork.id)


async def test_every_act_on_a_long_conversation_reads_what_its_prompt_shows() -> None:
    def answer(heard: Heard) -> Reply:
        if heard.text == "call":
            return asks(call("browse", "c1"))
        return Reply("yes", usage=Usage(calls=1, input=10, output=1))

    agent = agent_of(answer, client_tools=[BROWSE], instructions="one", sub_agents=True)
    async with await SqliteStore.open(None) as inner:
        store = Counting(inner)
        async with AsyncConversation(agent, store=store) as conversation:
            await conversation.run("hello")
            id = conversation.id
        await inner.note(id, new_id(), [said(n) for n in range(LONG)])
        await inner.note(id, new_id(), [NewEvent(Condensation("They counted.", LONG - KEPT))])

        async def reads(act: Awaitable[T]) -> T:
            store.count = 0
            done = await act
            assert store.count <= 2 * MOST, "more was read than the prompt shows"
            return done

        other = Agent(agent.llm, client_tools=[BROWSE], instructions="two", sub_agents=True)
        async with await reads(AsyncConversation.open(id, agent=agent, store=store)) as fresh:
            await reads(fresh.run("and now?"))
            await reads(fresh.run("and then?"))
            await reads(fresh.ask("by the way?"))
            await reads(fresh.request("what if?"))
            await reads(fresh.request())
            fork = await reads(fresh.fork())
            await reads(fork.run("you too"))
            await reads(fresh.change_agent(other))
            await reads(fresh.run("call"))
            await reads(fresh.run(results={"c1": "done"}))
            await reads(fresh.turns())
            await reads(fresh.stats())
            await reads(fresh.condense())
            await fork.close()


async def test_a_store_from_before_there_were_landmarks_is_read_once_and_then_short(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    async with await SqliteStore.open(file) as store:
        id = await long_path(store)
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("DELETE FROM landmark")
        db.execute("UPDATE segment SET landmarks = NULL")
    async with await SqliteStore.open(file) as store:
        await same_as_whole(store, id)
    async with await SqliteStore.open(file) as inner:
        counting = Counting(inner)
        await rendered(counting, id, (await inner.read(id)).head.position, MANIFEST)
        assert counting.count <= MOST


KILLED = """
import os, signal, sys
from forkpoint import Agent, Conversation

conversation = Conversation.open(sys.argv[1], agent=Agent("scripted/echo"), store=f"sqlite:///{sys.argv[2]}")
conversation.run("and now?")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
async def test_a_conversation_whose_process_was_killed_between_turns_is_read_short_and_right(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    agent = Agent("scripted/echo")
    async with AsyncConversation(agent, store=file) as conversation:
        await conversation.run("hello")
        id = conversation.id
    async with await SqliteStore.open(file) as store:
        await store.note(id, new_id(), [said(n) for n in range(LONG)])
        await store.note(id, new_id(), [NewEvent(Condensation("They counted.", LONG - KEPT))])
    died = await anyio.run_process([sys.executable, "-c", KILLED, id, str(file)], check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    async with await SqliteStore.open(file) as inner:
        await same_as_whole(inner, id)
        assert (await inner.verify()).ok
        counting = Counting(inner)
        async with await AsyncConversation.open(id, agent=agent, store=counting) as again:
            await again.run("still there?")
        assert counting.count <= MOST
        await same_as_whole(inner, id)


# Finding events.


async def test_the_newest_event_of_a_kind_that_can_be_read_is_found(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    async with await SqliteStore.open(file) as store:
        id = new_id()
        await store.create(NewConversation(id=id), [said(0), said(1)])
        head = (await store.read(id)).head.position
        assert await newest(store, id, "manifest_changed", head) is None
        assert await newest(store, id, "manifest_changed", None) is None
        for name in ("one", "two"):
            head = (await store.note(id, new_id(), [NewEvent(ManifestChanged(name, "{}")), said(0)])).last
        found = await newest(store, id, "manifest_changed", head)
        assert found is not None
        assert found.body == ManifestChanged("two", "{}")
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("UPDATE event SET payload = NULL, salt = NULL WHERE id & 4294967295 = ?", (found.id.ordinal,))
    async with await SqliteStore.open(file) as store:
        found = await newest(store, id, "manifest_changed", head)
        assert found is not None
        assert found.body == ManifestChanged("one", "{}"), "the newest was erased"


async def test_events_are_read_backwards_and_only_as_far_as_they_are_wanted() -> None:
    async with await SqliteStore.open(None) as inner:
        id, store = new_id(), Counting(inner)
        await inner.create(NewConversation(id=id), [said(n) for n in range(LONG)])
        head = (await inner.read(id)).head.position
        ordinals = [event.id.ordinal async for event in backwards(inner, id, head)]
        assert ordinals == list(range(LONG, 0, -1))
        assert [event.id.ordinal async for event in backwards(inner, id, head, before=3)] == [2, 1]
        assert [event async for event in backwards(inner, id, None)] == []
        async with aclosing(backwards(store, id, head)) as events:
            await anext(events)
        assert store.count <= 64


async def test_calls_are_found_from_the_end_on() -> None:
    async with await SqliteStore.open(None) as inner:
        id, store = new_id(), Counting(inner)
        await inner.create(NewConversation(id=id), [*exchange_with_a_call(), *(said(n) for n in range(LONG))])
        head = (await inner.note(id, new_id(), exchange_with_a_call())).last
        assert [event.id.ordinal for event in await calls_among(store, id, head, ["c1"])] == [LONG + 3]
        assert store.count <= 64
        assert [event.id.ordinal for event in await calls_among(inner, id, head, ["c1", "c2"])] == [1, LONG + 3]
        assert await calls_among(inner, id, head, []) == []
