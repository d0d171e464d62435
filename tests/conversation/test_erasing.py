"""Erasing and holding, as callers see them, in both homes: what is left, what models are shown, and who is told."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from tests.conversation.support.agents import PATIENCE, Signal, agent_of, asks, call, messages_of, script_of, scripted
from tests.conversation.support.homes import Home
from tests.conversation.support.team import obedient, orders, spawn, wait

from forkpoint import LLM, Agent, AsyncConversation, AsyncConversations, Conversation, TurnFailed, Window, tool
from forkpoint.errors import BadArgument, Busy, Held, NotFound, NotResumable
from forkpoint.events import Gone
from forkpoint.testing import Fault, Heard, ModelServer, Reply

pytestmark = pytest.mark.anyio

SECRET = "Ann-Kathrin-4711"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def found_in(file: Path) -> list[str]:
    """The files of a store that have the text."""
    near = [path for path in file.parent.rglob(f"{file.name}*") if path.is_file()]
    return [path.name for path in near if SECRET.encode() in path.read_bytes()]


class Hearing:
    """A model that says what it heard, and all that it was sent."""

    def __init__(self) -> None:
        self.sent: list[list[dict[str, Any]]] = []

    def __call__(self, heard: Heard) -> Reply:
        self.sent.append(messages_of(heard))
        return Reply(f"You said: {heard.text}")


async def test_an_erased_turn_is_gone_from_the_files_and_the_next_prompt(home: Home) -> None:
    model = Hearing()
    agent = home.agent(agent_of(model))
    async with AsyncConversation(agent, store=home.store, title=f"I am {SECRET}") as conversation:
        first = await conversation.run(f"I am {SECRET}")
        await conversation.run("Hello")
        fork = await conversation.fork()
        await fork.run("In the fork")
        assert SECRET in json.dumps(model.sent[-1])
        preview = await conversation.erase(turn=first, reason="a request", preview=True)
        assert (preview.done, preview.touched) == (False, 2)
        assert {one.id for one in preview.touched_named} == {conversation.id, fork.id}
        assert found_in(home.file)
        receipt = await conversation.erase(turn=first, reason="a request")
        assert (receipt.done, receipt.reason, receipt.turns) == (True, "a request", (first.id,))
        assert found_in(home.file) == []
        for branch in (conversation, fork):
            await branch.run("And now?")
            sent = model.sent[-1]
            assert SECRET not in json.dumps(sent)
            assert [message["content"] for message in sent[:2]] == ["[erased]", "[erased]"]
        assert await conversation.title() is None
        assert (await conversation.verify()).ok
        await fork.close()
    assert found_in(home.file) == []


async def test_what_is_to_be_erased_has_to_be_said_once_and_with_a_reason(home: Home) -> None:
    async with AsyncConversation(home.agent("scripted/echo"), store=home.store) as conversation:
        turn = await conversation.run("Hello")
        for wrong in ({}, {"turn": turn, "everything": True}, {"turn": turn, "event": "1-1"}):
            with pytest.raises(BadArgument):
                await conversation.erase(reason="why", **wrong)  # type: ignore[arg-type]
        with pytest.raises(BadArgument):
            await conversation.erase(reason=" ", everything=True)
        with pytest.raises(NotFound):
            await conversation.erase(reason="why", event="1-99")
        receipt = await conversation.erase(reason="why", event=(await conversation.events())[0])
        assert receipt.positions[0] == "1-1"


@pytest.mark.parametrize("fork", ["none", "all"])
@pytest.mark.parametrize("whose", ["parent", "child"])
async def test_a_task_and_an_answer_go_from_the_parent_and_from_the_sub_agent(
    home: Home, fork: str, whose: Literal["parent", "child"]
) -> None:
    agent = home.agent(Agent(scripted(obedient), sub_agents=True))
    async with AsyncConversation(agent, store=home.store) as parent:
        await parent.run("Hello")
        done = await parent.run(orders([spawn(f"find {SECRET}", "c1", fork=fork)], [wait("c2")], say="It is done."))
        (member,) = await parent.list_agents()
        assert found_in(home.file)
        if whose == "parent":
            await parent.erase(turn=done, reason="a request")
        else:
            async with await AsyncConversation.open(member.conversation, store=home.store, bind=False) as child:
                await child.erase(everything=True, reason="a request")
                assert all(isinstance(event.body, Gone) for event in await child.events())
        store = await home.opened()
        try:
            checked = await store.verify()
            assert checked.ok, checked.flaws
        finally:
            await store.close()
        if whose == "parent":
            assert found_in(home.file) == []
    left = found_in(home.file)
    # The parent's message asked for the sub-agent in its own words: nobody chose to erase it.
    assert left == [] if whose == "parent" or fork == "all" else left == [home.file.name]


async def test_a_failed_try_and_its_retry_and_an_error_that_quotes_are_erased_together(home: Home) -> None:
    faulty = Reply(f"about {SECRET}", fault=Fault("bad_request"))
    agent = home.agent(agent_of([faulty, "fine", faulty]))
    async with AsyncConversation(agent, store=home.store) as conversation:
        with pytest.raises(TurnFailed):
            await conversation.run(f"I am {SECRET}")
        done = await conversation.retry()
        with pytest.raises(TurnFailed):
            await conversation.run("More")
        await conversation.erase(turn=done, reason="a request")
        assert found_in(home.file) == []
        failed = [turn for turn in (await conversation.turns()).items if turn.outcome == "failed"]
        assert [turn.error for turn in failed] == [None, None]
        with pytest.raises(NotResumable):
            await conversation.resume(failed[0])
        assert (await conversation.verify()).ok


async def test_a_summary_is_erased_and_the_prompt_still_begins_after_it(home: Home) -> None:
    model = Hearing()
    agent = home.agent(Agent(scripted(model), condenser=Window(events=1000)))
    async with AsyncConversation(agent, store=home.store) as conversation:
        first = await conversation.run(f"I am {SECRET}. " + "It was a long story. " * 50)
        for n in range(3):
            await conversation.run(f"{n} " + "And then it went on. " * 50)
        made = await conversation.condense()
        assert made is not None
        receipt = await conversation.erase(turn=first, reason="a request")
        assert len(receipt.summaries) == 1
        assert found_in(home.file) == []
        await conversation.run("And now?")
        assert "[erased]" in json.dumps(model.sent[-1][0])
        assert SECRET not in json.dumps(model.sent[-1])
        assert len(model.sent[-1]) < 8
        assert (await conversation.verify()).ok


@tool
def look(at: str) -> str:
    """Looks."""
    return f"seen at {at}"


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
async def test_every_provider_is_sent_paired_calls_after_an_erasure(home: Home, api: Any) -> None:
    with ModelServer(script_of([asks(call("look", "call_1", at=SECRET)), "done", "fine"])) as server:
        if api == "messages":
            llm = LLM("anthropic/test", base_url=server.url.removesuffix("/v1"), api_key="k")
        else:
            llm = LLM("openai/test", base_url=server.url, api_key="k", api=api)
        agent = home.agent(Agent(llm, tools=[look]))
        async with AsyncConversation(agent, store=home.store) as conversation:
            first = await conversation.run(f"Look for {SECRET}")
            await conversation.erase(turn=first, reason="a request")
            assert found_in(home.file) == []
            assert (await conversation.run("And?")).text == "fine"
            body = server.requests[-1].body.decode()
            assert SECRET not in body
            assert "[erased]" in body
            assert body.count("call_") >= 2


async def test_a_running_turn_is_in_the_way_unless_it_is_cancelled(home: Home) -> None:
    started, never = Signal(), Signal()

    @tool
    async def dawdle() -> str:
        """Takes its time."""
        started.set()
        await never.wait()
        return "late"

    agent = home.agent(agent_of(["one", asks(call("dawdle"))], tools=[dawdle]))
    async with AsyncConversation(agent, store=home.store) as conversation:
        first = await conversation.run(f"I am {SECRET}")
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:

                async def run() -> None:
                    with pytest.raises(Exception, match="cancelled"):
                        await conversation.run("Slowly")

                group.start_soon(run)
                await started.wait()
                with pytest.raises(Busy):
                    await conversation.erase(turn=first, reason="a request")
                await conversation.erase(turn=first, reason="a request", cancel=True)
        assert found_in(home.file) == []


async def test_a_held_family_is_not_erased_or_deleted_until_it_is_released(home: Home) -> None:
    async with AsyncConversation(home.agent("scripted/echo"), store=home.store) as conversation:
        await conversation.run("Hello")
        held = await conversation.hold("case 17")
        assert await conversation.holds() == (held,)
        async with AsyncConversations(home.store) as all_of_them:
            assert await all_of_them.holds() == (held,)
        for act in (conversation.erase(everything=True, reason="no"), conversation.delete()):
            with pytest.raises(Held, match="case 17"):
                await act
        assert await conversation.release(held.id) == (held,)
        assert await conversation.release() == ()
        await conversation.erase(everything=True, reason="yes")


async def test_conversations_with_a_tag_and_all_of_a_tenant_are_erased_family_by_family(home: Home) -> None:
    agent = home.agent("scripted/echo")
    async with AsyncConversations(home.store) as conversations:
        for who in (SECRET, SECRET, "somebody else"):
            async with await conversations.create(agent, tags={"who": who}) as one:
                await one.run(f"I am {who}")
        with pytest.raises(BadArgument):
            await conversations.erase(reason="why")
        previews = await conversations.erase(tags={"who": SECRET}, reason="why", preview=True)
        assert [one.done for one in previews] == [False, False]
        assert len(await conversations.erase(tags={"who": SECRET}, reason="why")) == 2
        assert found_in(home.file) == []
        listed = (await conversations.erasures()).items
        assert [one.reason for one in listed] == ["why", "why"]
        assert len(await conversations.erase(tenant=True, reason="all")) == 3
        page: Sequence[Any] = (await conversations.list()).items
        for info in page:
            async with await conversations.open(info.id, bind=False) as one:
                assert all(isinstance(event.body, Gone) for event in await one.events())
        assert (await conversations.verify()).ok


async def test_another_process_is_shown_no_prompt_from_before_an_erasure(tmp_path: Path) -> None:
    """Two engines on one file stand for two processes: each has its own memory."""
    from forkpoint.engine import Engine
    from forkpoint.store import open_store

    model = Hearing()
    agent = agent_of(model)
    where = f"sqlite:///{tmp_path / 'x.db'}"
    async with await open_store(where) as one, await open_store(where) as other:
        for store in (one, other):
            assert isinstance(Engine(store, owns_store=False), Engine)
        async with AsyncConversation(agent, store=one) as here:
            first = await here.run(f"I am {SECRET}")
            async with await AsyncConversation.open(here.id, agent=agent, store=other) as there:
                await there.run("Hello")  # its prompt is in the memory of both
                await here.erase(turn=first, reason="a request")
                assert (await there.ask("And?")).text
                assert SECRET not in json.dumps(model.sent[-1])
                await there.run("And now?")
                assert SECRET not in json.dumps(model.sent[-1])


def test_the_same_without_await(tmp_path: Path) -> None:
    with Conversation(Agent("scripted/echo"), store=f"sqlite:///{tmp_path / 'x.db'}") as conversation:
        conversation.run(f"I am {SECRET}")
        hold = conversation.hold("case 17")
        assert conversation.holds() == conversation.release() == (hold,)
        assert conversation.erase(everything=True, reason="a request").events
    assert found_in(tmp_path / "x.db") == []
