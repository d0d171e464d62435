"""`if_revision`: who decided on what was there before hears `Stale`, and nothing has changed."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace
from tests.conversation.support.agents import agent_of
from tests.conversation.support.homes import Home

from forkpoint import Agent, AsyncConversation, Conversation
from forkpoint.conversation import Info
from forkpoint.errors import NotFound, Stale
from forkpoint.events import SettingsChanged

pytestmark = pytest.mark.anyio

ECHO = Agent("scripted/echo")
OTHER = Agent("scripted/echo", instructions="Be brief.")

Ask: TypeAlias = Callable[[AsyncConversation, int], Awaitable[Any]]


async def stream(conversation: AsyncConversation, revision: int) -> None:
    async with conversation.run_stream("three", if_revision=revision) as updates:
        async for _ in updates:
            pass


async def rewind(conversation: AsyncConversation, revision: int) -> None:
    first = (await conversation.turns()).items[0]
    await conversation.rewind(at=first, if_revision=revision)


WAYS: dict[str, Ask] = {
    "run": lambda conversation, revision: conversation.run("three", if_revision=revision),
    "run_stream": stream,
    "fork": lambda conversation, revision: conversation.fork(if_revision=revision),
    "fork with another agent": lambda conversation, revision: conversation.fork(agent=OTHER, if_revision=revision),
    "fork that inherits": lambda conversation, revision: conversation.fork(cache="inherit", if_revision=revision),
    "rewind": rewind,
    "change_agent": lambda conversation, revision: conversation.change_agent(OTHER, if_revision=revision),
    "change_agent to the same": lambda conversation, revision: conversation.change_agent(ECHO, if_revision=revision),
    "update_state": lambda conversation, revision: conversation.update_state({"a": 1}, if_revision=revision),
    "update_state of nothing": lambda conversation, revision: conversation.update_state({}, if_revision=revision),
    "delete": lambda conversation, revision: conversation.delete(if_revision=revision),
}
every_way = pytest.mark.parametrize("ask", WAYS.values(), ids=WAYS)


@pytest.fixture
async def conversation(home: Home) -> AsyncIterator[AsyncConversation]:
    async with AsyncConversation(home.agent(ECHO), store=home.store) as made:
        await made.run("one")
        await made.run("two")
        yield made


async def everything(home: Home, conversation: AsyncConversation) -> tuple[Any, ...]:
    listed = (await AsyncConversation.list(store=home.store)).items
    return listed, await conversation.info(), await conversation.turns(), await conversation.agent_state()


@every_way
async def test_another_revision_is_stale_and_nothing_changes(
    home: Home, conversation: AsyncConversation, ask: Ask
) -> None:
    before = await everything(home, conversation)
    for revision in (0, 1, 3, -1, 1 << 59):
        with pytest.raises(Stale) as stale:
            await ask(conversation, revision)
        assert (stale.value.conversation, stale.value.expected, stale.value.actual) == (conversation.id, revision, 2)
    assert await everything(home, conversation) == before
    assert conversation.agent is ECHO


@every_way
async def test_the_revision_that_was_read_is_good(conversation: AsyncConversation, ask: Ask) -> None:
    before: Info = await conversation.info()
    assert before.revision == 2
    await ask(conversation, before.revision)


@every_way
async def test_a_conversation_that_is_not_there_yet_is_at_revision_0(home: Home, ask: Ask) -> None:
    async with (
        AsyncConversation(home.agent(ECHO), store=home.store) as keeps_the_store,
        AsyncConversation(home.agent(ECHO), conversation_id="new", store=home.store) as conversation,
    ):
        await keeps_the_store.run("x")
        if ask is not rewind:  # there is nowhere to go back to
            with pytest.raises(Stale) as stale:
                await ask(conversation, 2)
            assert (stale.value.expected, stale.value.actual) == (2, 0)
            with pytest.raises(NotFound):
                await AsyncConversation.open("new", store=home.store)
            await ask(conversation, 0)


async def test_messages_of_a_turn_that_was_stale_wait_for_the_next(conversation: AsyncConversation) -> None:
    conversation.send_message("three")
    with pytest.raises(Stale):
        await conversation.run(if_revision=1)
    assert len(conversation.pending) == 1
    assert (await conversation.run(if_revision=2)).text == "You said: three"
    assert not conversation.pending


async def test_a_repeat_with_its_key_is_not_stale_although_it_moved_the_conversation_itself(
    conversation: AsyncConversation,
) -> None:
    turn = await conversation.run("three", key="k", if_revision=2)
    assert await conversation.run("three", key="k", if_revision=2) == turn


async def test_two_who_decided_on_the_same_revision_do_not_both_win(
    home: Home, conversation: AsyncConversation
) -> None:
    async with await AsyncConversation.open(conversation.id, store=home.store) as other:
        revision = (await other.info()).revision
        await conversation.update_state({"a": 1}, if_revision=revision)
        with pytest.raises(Stale):
            await other.update_state({"a": 2}, if_revision=revision)
        assert await other.agent_state() == {"a": 1}


async def test_the_agent_that_it_has_already_is_not_recorded_again(conversation: AsyncConversation) -> None:
    await conversation.change_agent(ECHO)
    assert (await conversation.info()).revision == 2
    for _ in range(2):
        await conversation.change_agent(OTHER)
    assert (await conversation.info()).revision == 3
    bodies = [event.body for event in await conversation.events(kinds=("settings_changed",))]
    assert len([body for body in bodies if isinstance(body, SettingsChanged)]) == 2, "what was, and what is now"
    await conversation.change_agent(ECHO)
    assert (await conversation.info()).revision == 4


def test_the_sync_conversation_has_it_too(home: Home) -> None:
    with Conversation(home.agent(agent_of(["one", "two"])), store=home.store) as conversation:
        first = conversation.run("one", if_revision=0)
        asked: list[Callable[[], object]] = [
            lambda: conversation.run("two", if_revision=7),
            lambda: conversation.fork(if_revision=7),
            lambda: conversation.rewind(before=first, if_revision=7),
            lambda: conversation.change_agent(home.agent(OTHER), if_revision=7),
            lambda: conversation.update_state({"a": 1}, if_revision=7),
            lambda: conversation.delete(if_revision=7),
        ]
        for ask in asked:
            with pytest.raises(Stale):
                ask()
        with pytest.raises(Stale), conversation.run_stream("two", if_revision=7) as stream:
            list(stream)
        assert conversation.info().revision == 1


async def test_a_description_replaces_only_what_was_read(conversation: AsyncConversation) -> None:
    read = await conversation.info()
    mine = await conversation.describe(title="Mine", if_info=read)
    assert mine.version != read.version
    for old in (read, replace(mine, revision=mine.revision + 1), replace(mine, tags={"title": "Other"})):
        with pytest.raises(Stale) as refused:
            await conversation.describe(title="Theirs", tags={"a": "b"}, if_info=old)
        assert refused.value.expected == old.version
    assert (await conversation.info()).tags == {"title": "Mine"}
    assert (await conversation.describe(tags={"a": "b"}, if_info=mine)).tags == {"title": "Mine", "a": "b"}
