"""The newest turns first: `turns(newest_first=True)` and `last_turn`, in a store and on a server."""

from functools import partial

import pytest
from tests.conversation.support.agents import agent_of
from tests.conversation.support.homes import Home

from forkpoint import Agent, AsyncConversation, Conversation, TurnFailed
from forkpoint.errors import BadName
from forkpoint.paging import every
from forkpoint.testing import Fault, Reply

pytestmark = pytest.mark.anyio

BROKEN = Reply("never heard", fault=Fault("overloaded"))


async def test_the_last_turn_is_found_in_a_conversation_of_many_pages(home: Home) -> None:
    async with AsyncConversation(home.agent(Agent("scripted/echo")), store=home.store) as conversation:
        assert await conversation.last_turn() is None, "nothing was run yet"
        assert (await conversation.turns(newest_first=True)).items == ()
        turns = [await conversation.run(str(n)) for n in range(53)]
        await conversation.update_state({"seen": True})  # a note is not a turn
        last = await conversation.last_turn()
        assert last is not None
        assert (last.id, last.text) == (turns[-1].id, "You said: 52")
        assert (await conversation.turns()).items[-1].id == turns[49].id, "a page of the oldest turns ends before it"
        page = await conversation.turns(newest_first=True, limit=2)
        assert [turn.id for turn in page.items] == [turns[52].id, turns[51].id]
        newest = every(partial(conversation.turns, newest_first=True), limit=20)
        assert [turn.id async for turn in newest] == [turn.id for turn in reversed(turns)]
        with pytest.raises(BadName):
            await conversation.turns(cursor=page.next)  # it is a cursor of the other order


async def test_the_last_turn_has_any_outcome_unless_only_history_counts(home: Home) -> None:
    agent = home.agent(agent_of(["first", BROKEN, BROKEN, BROKEN, BROKEN]))
    async with AsyncConversation(agent, store=home.store) as conversation:
        done = await conversation.run("one")
        with pytest.raises(TurnFailed) as failed:
            await conversation.run("two")
        last, history = await conversation.last_turn(), await conversation.last_turn(committed=True)
        assert last is not None
        assert history is not None
        assert (last.id, last.outcome, history.id) == (failed.value.id, "failed", done.id)
        only = await conversation.turns(newest_first=True, committed=True)
        assert [turn.id for turn in only.items] == [done.id]
        async with await conversation.fork() as fork:
            inherited = await fork.last_turn()
            assert inherited is not None
            assert inherited.id == done.id, "a fork has its source's history, and none of its tries"


def test_a_page_is_full_however_many_notes_stand_between() -> None:
    with Conversation(Agent("scripted/echo"), store="memory:") as conversation:
        for n in range(3):
            conversation.run(str(n))
            conversation.update_state({"n": n})
        for newest_first in (False, True):
            page = conversation.turns(limit=2, newest_first=newest_first)
            rest = conversation.turns(cursor=page.next, newest_first=newest_first)
            assert [len(page.items), len(rest.items)] == [2, 1]
            assert rest.next is None
