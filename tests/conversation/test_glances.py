"""What a list shows of a conversation beside what it is: `Info.glance` and drafts, in a store and on a server."""

import pytest
from tests.conversation.support.agents import agent_of
from tests.conversation.support.homes import Home

from forkpoint import Agent, AsyncConversation, AsyncConversations, TurnFailed
from forkpoint.conversation import Glance, Info
from forkpoint.testing import Fault, Reply

pytestmark = pytest.mark.anyio

ECHO = Agent("scripted/echo")


async def glances(home: Home, **which: bool) -> dict[str, Glance]:
    async with AsyncConversations(home.store) as conversations:
        found = (await conversations.list(glance=True, **which)).items  # type: ignore[arg-type]
    assert all(info.glance is not None for info in found)
    return {info.name: info.glance for info in found if info.glance is not None}


async def test_a_list_shows_the_first_words_and_what_is_folded(home: Home) -> None:
    async with AsyncConversation(home.agent(ECHO), conversation_id="build", store=home.store) as build:
        first = await build.run("Why did\n  the build fail?")
        await build.run("And before?")
        async with await build.fork(conversation_id="disk") as disk:
            await disk.run("Was it the disk?")
            await (await disk.fork(conversation_id="silent")).close()
        aside = await build.rewind(at=first.id)
        assert aside is not None
        async with aside:
            name = aside.name
        assert await glances(home) == {
            "build": Glance("Why did the build fail?", asides=1),
            "disk": Glance("Was it the disk?"),
            "silent": Glance("Why did the build fail?"),
            name: Glance("And before?"),
        }
        assert set(await glances(home, asides=False)) == {"build", "disk", "silent"}


async def test_long_first_words_are_cut(home: Home) -> None:
    async with AsyncConversation(home.agent(ECHO), conversation_id="long", store=home.store) as conversation:
        await conversation.run("word " * 100)
    opening = (await glances(home))["long"].opening
    assert (len(opening), opening[:9], opening[-1]) == (200, "word word", "…")


async def test_erased_words_are_in_no_list(home: Home) -> None:
    async with AsyncConversation(home.agent(ECHO), conversation_id="secret", store=home.store) as conversation:
        await conversation.run("The word is Rumpelstilzchen.")
        await conversation.erase(reason="asked to", everything=True)
    assert [glance.opening for glance in (await glances(home)).values()] == [""]


async def test_a_conversation_whose_first_turn_failed_is_listed_as_a_draft_if_asked_for(home: Home) -> None:
    agent = home.agent(agent_of([Reply("never heard", fault=Fault("overloaded"))] * 4))
    async with AsyncConversations(home.store) as conversations:
        async with AsyncConversation(agent, conversation_id="first-try", store=home.store) as failed:
            with pytest.raises(TurnFailed):
                await failed.run("Anybody there?")
            assert (await failed.info()).draft
            assert (await conversations.list()).items == ()
            (found,) = (await conversations.list(drafts=True, glance=True)).items
            assert (found.name, found.draft, found.glance) == ("first-try", True, Glance("Anybody there?"))
        async with AsyncConversation(home.agent(ECHO), conversation_id="second", store=home.store) as fine:
            await fine.run("Hello")
            assert not (await fine.info()).draft
        for order in ("created", "used"):
            named = [info.name for info in (await conversations.list(drafts=True, order=order)).items]
            assert named == ["second", "first-try"]


async def test_a_glance_is_no_part_of_a_conversations_version(home: Home) -> None:
    async with AsyncConversation(home.agent(ECHO), conversation_id="build", store=home.store) as build:
        await build.run("Hello")
        async with AsyncConversations(home.store) as conversations:
            (listed,) = (await conversations.list(glance=True)).items
            (bare,) = (await conversations.list()).items
        info: Info = await build.info()
        assert (bare, bare.glance) == (info, None)
        assert (listed.glance, listed.version) == (Glance("Hello"), info.version)
        assert (await build.describe(title="Greetings", if_info=listed)).title == "Greetings"
