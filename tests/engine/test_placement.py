"""Where a client's request goes on: by name, after a fork point, on the branch that its list continues."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tests.conversation.support.agents import agent_of

from forkpoint import Agent
from forkpoint.backend.options import How, NewTurn
from forkpoint.backend.results import Turn
from forkpoint.backend.settings import Settings
from forkpoint.engine.engine import Engine
from forkpoint.engine.placement import ClientList, ForkPoint, NamedDraft, Placement, StartingPoint, imported, paired
from forkpoint.errors import AlreadyExists, NotFound, TurnFailed, Unpaired
from forkpoint.events import AssistantMessage, Event, Imported, Position, Text, ToolCall, ToolResult, UserMessage
from forkpoint.llm.prompt.identity import own_identity
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.store import open_store
from forkpoint.store.values import Onto, StoredConversation
from forkpoint.testing import Fault, Heard, Reply, ScriptedCall

pytestmark = pytest.mark.anyio

LOOK = ToolSchema("look", "Looks.")


def user(text: str) -> UserMessage:
    return UserMessage((Text(text),))


def assistant(text: str) -> AssistantMessage:
    return AssistantMessage((Text(text),))


def end(turn: Turn) -> Position:
    """Where a committed turn ends."""
    last = turn.events[-1]
    assert isinstance(last, Event)
    return last.id


def reply(heard: Heard) -> Reply:
    """Says the text again, calls the client's tool, or fails, as the text asks for."""
    match heard.text:
        case "look":
            return Reply(calls=(ScriptedCall("look", "{}", "call-1"),))
        case "fail":
            return Reply("never heard", fault=Fault("bad_request"))
        case text:
            return Reply(f"You said: {text}")


class Wire:
    """A wire of these tests, on a store in memory."""

    def __init__(self, backend: Engine, agent: Agent) -> None:
        self.backend, self.agent = backend, agent
        self.placement: Placement = backend.placement

    async def say(self, text: str, wanted: NamedDraft | str = "talk", start: StartingPoint | None = None) -> Turn:
        """A turn of a request that is told from another by its text."""
        wanted = NamedDraft(wanted) if isinstance(wanted, str) else wanted
        record = await self.placement.claim(wanted, await self.placement.by_name(wanted.name))
        draft = wanted.new(Settings.of(self.agent, None)) if record is None else None
        start = start or StartingPoint((user(text),))
        id = draft.id if record is None else record.id  # type: ignore[union-attr]
        how = How(request=text, onto=start.onto)
        return await self.backend.turns.run(
            id, self.agent, NewTurn(given=start.given, draft=draft, how=how), lambda _: None
        )

    async def record(self, name: str = "talk") -> StoredConversation:
        record = await self.placement.by_name(name)
        assert record is not None
        return record

    async def start(self, *before: Any, has_key: bool = False, **listed: Any) -> StartingPoint:
        given = ClientList(source="test", before=before, **listed)
        return await self.placement.start(await self.record(), given, self.placement.path, has_key=has_key)


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    backend = Engine(await open_store("memory:"))
    try:
        yield Wire(backend, agent_of(reply, client_tools=[LOOK]))
    finally:
        await backend.close()


# Which conversation.


async def test_a_conversation_is_found_by_its_name_and_by_its_id(wire: Wire) -> None:
    assert await wire.placement.by_name("talk") is None
    turn = await wire.say("one")
    assert (await wire.record()).id == (await wire.record(turn.conversation)).id == turn.conversation


async def test_a_draft_of_a_failed_turn_is_used_again_only_by_a_request_that_would_make_the_same(wire: Wire) -> None:
    with pytest.raises(TurnFailed):
        await wire.say("fail")
    left = await wire.record()
    assert await wire.placement.is_abandoned(left.id)
    assert await wire.placement.claim(NamedDraft("talk"), left) == left
    assert await wire.placement.claim(NamedDraft("talk", title="Another"), left) is None
    assert await wire.placement.by_name("talk") is None, "it has lost its name"


async def test_a_name_is_freed_if_only_an_abandoned_draft_has_it(wire: Wire) -> None:
    assert not await wire.placement.free_name("talk")
    with pytest.raises(TurnFailed):
        await wire.say("fail")
    assert await wire.placement.free_name("talk")
    await wire.say("one")
    assert not await wire.placement.free_name("talk")


async def test_a_fork_point_is_a_turn_or_the_head_of_another_conversation(wire: Wire) -> None:
    first, second = await wire.say("one"), await wire.say("two")
    for turn in (first, second):
        point = ForkPoint("talk", turn.id)
        await wire.say("three", NamedDraft(f"after-{turn.id}", fork_of=point))
        assert (await wire.record(f"after-{turn.id}")).lineage.at == end(turn)
    await wire.say("three", NamedDraft("at-head", fork_of=ForkPoint("talk")))
    assert (await wire.record("at-head")).lineage.at == end(second)


async def test_a_fork_needs_its_source_and_a_name_that_is_free_or_its_own(wire: Wire) -> None:
    await wire.say("one")
    await wire.say("one", "other")
    with pytest.raises(NotFound):
        await wire.placement.claim(NamedDraft("new", fork_of=ForkPoint("nobody")), None)
    with pytest.raises(AlreadyExists):
        await wire.placement.claim(NamedDraft("other", fork_of=ForkPoint("talk")), await wire.record("other"))
    wanted = NamedDraft("fork", fork_of=ForkPoint("talk"))
    await wire.say("two", wanted)
    fork = await wire.record("fork")
    assert await wire.placement.claim(wanted, fork) == fork


# Beside a conversation.


async def test_a_list_that_has_nothing_in_common_with_any_branch_is_a_stranger(wire: Wire) -> None:
    await wire.say("one")
    assert (await wire.start(is_whole=True, message=user("two"))).is_stranger
    assert (await wire.start(user("a"), assistant("A."), is_whole=True, message=user("b"))).is_stranger
    again = await wire.start(is_whole=True, message=user("one"))
    assert not again.is_stranger, "another answer to the first question is wanted"
    edited = await wire.start(user("one"), assistant("Edited."), is_whole=True, message=user("two"))
    assert (edited.is_stranger, edited.onto) == (False, Onto((await wire.record()).id, None))
    assert [type(one) for one in edited.given] == [Imported, UserMessage, AssistantMessage, UserMessage]


async def test_an_aside_stands_where_the_list_goes_on_and_a_side_at_the_root(wire: Wire) -> None:
    await wire.say("one")
    record = await wire.record()
    settings = Settings.of(wire.agent, None)
    start = await wire.start(user("one"), assistant("You said: one"), is_whole=True, message=user("two"))
    for key in (None, "k"):
        aside = wire.placement.aside(record, start, settings, key)
        assert aside.beside is not None
        assert (aside.name, aside.beside.kind, aside.beside.source) == (None, "aside", record.id)
        assert aside.beside.onto == Onto(record.id, record.head.position)
        side = wire.placement.side(record, settings, own_identity("shared"), None, key)
        assert side.beside is not None
        assert (side.name, side.beside.kind, side.beside.at, side.beside.onto) == (
            None,
            "side",
            record.head.position,
            None,
        )
        again = wire.placement.aside(record, start, settings, key)
        assert (again.id == aside.id) == (key is not None), "a request with a key finds its branch again"


# Whether the request came before.


async def test_a_request_is_repeated_if_its_turn_was_committed_last(wire: Wire) -> None:
    turn = await wire.say("one")
    again = await wire.placement.repeated(await wire.record(), "one")
    assert again is not None
    assert again.id == turn.id
    assert await wire.placement.repeated(await wire.record(), "two") is None
    await wire.say("two")
    assert await wire.placement.repeated(await wire.record(), "one") is None


async def test_a_request_is_not_repeated_if_it_was_sent_again_since_and_did_not_commit(wire: Wire) -> None:
    await wire.say("one")
    with pytest.raises(TurnFailed):
        await wire.say("one", start=StartingPoint((user("fail"),)))
    assert await wire.placement.repeated(await wire.record(), "one") is None


# Where in the conversation.


async def test_of_a_list_that_is_not_whole_only_the_end_is_new(wire: Wire) -> None:
    await wire.say("one")
    start = await wire.start(user("anything"), assistant("at all"), message=user("two"))
    assert start == StartingPoint((user("two"),))


async def test_a_new_conversation_imports_the_list(wire: Wire) -> None:
    listed = ClientList(source="test", before=(user("one"), assistant("One.")), message=user("two"))
    start = await wire.placement.start(None, listed, wire.placement.path, has_key=False)
    assert start.given == (Imported("test", 2), user("one"), assistant("One."), user("two"))


async def test_a_whole_list_goes_on_at_the_head_if_it_is_as_the_client_was_left(wire: Wire) -> None:
    await wire.say("one")
    start = await wire.start(user("one"), assistant("You said: one"), message=user("two"), is_whole=True)
    assert (start.given, start.onto, len(start.path)) == ((user("two"),), None, 1)


async def test_a_whole_list_that_was_edited_goes_on_where_it_parts_from_the_path(wire: Wire) -> None:
    first = await wire.say("one")
    await wire.say("two")
    edited = await wire.start(user("one"), assistant("You said: one"), message=user("else"), is_whole=True)
    assert edited.onto is not None
    assert (edited.onto.position, edited.given) == (end(first), (user("else"),))
    await wire.say("else", start=edited)
    (aside,) = await wire.placement.set_aside((await wire.record()).id)
    back: Sequence[Any] = [user("one"), assistant("You said: one"), user("two"), assistant("You said: two")]
    start = await wire.start(*back, message=user("three"), is_whole=True)
    assert start.onto is not None
    assert (start.onto.branch, start.given) == (aside.id, (user("three"),))


async def test_results_are_taken_for_open_calls_and_no_others(wire: Wire) -> None:
    await wire.say("look")
    result, stranger = ToolResult("call-1", "look", (Text("Seen."),)), ToolResult("call-2", "look")
    assert (await wire.start(results=(result,))).given == (result,)
    with pytest.raises(Unpaired, check=Unpaired.call_not_open.made):
        await wire.start(results=(stranger,))
    assert (await wire.start(results=(stranger,), has_key=True)).given == (stranger,)


def test_each_call_has_a_result_and_each_result_a_call() -> None:
    call, result = ToolCall("a", "look", "{}"), ToolResult("a", "look")
    assert paired([result, user("one"), call, user("two")]) == [
        user("one"),
        call,
        ToolResult("a", "look", (), "not_answered"),
        user("two"),
    ]
    assert imported([result, user("one")], (), "test") == [
        Imported("test (1 results without their calls left out)", 1),
        user("one"),
    ]
