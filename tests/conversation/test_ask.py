"""Side questions: answered from the history as it is; nothing of them is kept but what they cost."""

from typing import Any

import anyio
import pytest
from tests.conversation.support.agents import Watcher, agent_of, asks, call, messages_of, script_of, scripted, served
from tests.conversation.support.homes import Home

from forkpoint import Agent, AsyncConversation, TurnCancelled, tool
from forkpoint.errors import ModelUnavailable, NoAgent, NotFound
from forkpoint.events import Usage
from forkpoint.llm import Price, TextPiece
from forkpoint.testing import Fault, Heard, ModelServer, Reply

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])

HANGS = Reply("never heard", piece=1, fault=Fault("hang", after=1))


def paid(text: str, tokens: int, fault: Fault | None = None) -> Reply:
    return Reply(text, usage=Usage(calls=1, input=tokens, output=1), fault=fault)


@both
async def test_a_side_question_is_answered_from_the_history_and_nothing_of_it_is_kept(home: Home) -> None:
    heard: list[Any] = []

    def answer(asked: Heard) -> Reply:
        heard.append([message["content"] for message in messages_of(asked)])
        return Reply(f"answer {asked.number}")

    async with AsyncConversation(home.agent(agent_of(answer)), store=home.store) as conversation:
        await conversation.run("one")
        before, turns = await conversation.info(), (await conversation.turns()).items
        aside = await conversation.ask("by the way?")
        assert aside.text == "answer 1"
        assert heard[1] == ["one", "answer 0", "by the way?"]
        after = await conversation.info()
        assert (after.revision, after.head, after.digest) == (before.revision, before.head, before.digest)
        assert (await conversation.turns()).items == turns
        await conversation.run("two")
        assert heard[2] == ["one", "answer 0", "two"]


async def test_what_a_side_question_cost_is_counted_in_the_branch_and_the_family(home: Home) -> None:
    llm = scripted([paid("one", 100), paid("aside", 20), paid("two", 3)], price=Price(input=1, output=0))
    async with AsyncConversation(home.agent(Agent(llm)), store=home.store) as conversation:
        await conversation.run("1")
        fork = await conversation.fork()
        aside = await fork.ask("?")
        assert aside.usage.input == 20
        assert aside.cost == pytest.approx(20e-6)
        assert (await fork.stats()).spent.input == 20
        assert (await conversation.stats()).spent.input == 100, "the source pays nothing for its fork"
        assert (await conversation.stats()).family.input == (await fork.stats()).family.input == 120
        await fork.close()


async def test_a_side_question_that_fails_is_charged_too_and_raises_its_error(home: Home) -> None:
    agent = agent_of([paid("one", 100), paid("x", 20, Fault("overloaded"))])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        await conversation.run("1")
        with pytest.raises(ModelUnavailable):
            await conversation.ask("?")
        stats = await conversation.stats()
        assert stats.spent == stats.family == Usage(calls=2, input=120, output=2)


@both
async def test_a_side_question_that_is_cancelled_is_charged_too(home: Home) -> None:
    watcher = Watcher()
    hangs = Reply("x", piece=1, usage=Usage(calls=1, input=20), fault=Fault("hang", after=1))
    agent = agent_of([paid("one", 100), hangs])
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:
        await conversation.run("1")
        watcher.told.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(conversation.ask, "?")
            await watcher.until(TextPiece)
            tasks.cancel_scope.cancel()
        if home.store.startswith("http"):  # its server hears a moment later that the client is gone
            with anyio.fail_after(20):
                while (await conversation.stats()).spent.input == 100:
                    pass
        assert (await conversation.stats()).spent.input == 120


async def test_a_side_question_is_answered_while_a_turn_runs_and_sees_only_what_is_committed(home: Home) -> None:
    watcher = Watcher()
    heard: list[Any] = []

    def answer(asked: Heard) -> Reply:
        heard.append([message["content"] for message in messages_of(asked)])
        return HANGS if asked.text == "two" else Reply("ok")

    async with AsyncConversation(home.agent(agent_of(answer)), store=home.store, callbacks=[watcher]) as conversation:
        await conversation.run("one")
        watcher.told.clear()

        async def run() -> None:
            with pytest.raises(TurnCancelled):
                await conversation.run("two")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await watcher.until(TextPiece)
            assert (await conversation.ask("?")).text == "ok"
            assert heard[-1] == ["one", "ok", "?"]
            assert await conversation.status() == "running", "and the turn goes on"
            await conversation.cancel()


async def test_a_side_question_while_the_first_turn_runs(home: Home) -> None:
    watcher = Watcher()

    def answer(asked: Heard) -> Reply:
        return HANGS if asked.text == "one" else Reply("ok")

    async with AsyncConversation(home.agent(agent_of(answer)), store=home.store, callbacks=[watcher]) as conversation:

        async def run() -> None:
            with pytest.raises(TurnCancelled):
                await conversation.run("one")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await watcher.until(TextPiece)
            assert (await conversation.ask("?")).text == "ok"
            await conversation.cancel()


async def test_tools_are_not_used_for_a_side_question_though_the_prompt_is_the_same(home: Home) -> None:
    ran: list[str] = []

    @tool
    def look() -> None:
        """Looks."""
        ran.append("look")

    with ModelServer(script_of(["one", "aside"])) as server:
        async with AsyncConversation(home.agent(Agent(served(server), tools=[look])), store=home.store) as conversation:
            await conversation.run("1")
            await conversation.ask("?")
            run, aside = server.requests
            assert aside.json["tool_choice"] == "none"
            assert aside.json["tools"] == run.json["tools"], "so that the cache is found"
            assert aside.key == run.key
            assert aside.blocks[: len(run.blocks)] == run.blocks


async def test_a_model_that_asks_for_a_tool_all_the_same_runs_none(home: Home) -> None:
    ran: list[str] = []

    @tool
    def look() -> None:
        """Looks."""
        ran.append("look")

    agent = agent_of(["one", asks(call("look"), text="Let me see."), "two"], tools=[look])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        await conversation.run("1")
        aside = await conversation.ask("?")
        assert aside.text == "Let me see."
        assert ran == []
        assert (await conversation.run("2")).text == "two"


async def test_a_new_conversation_can_be_asked_first(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["aside", "one"])), store=home.store) as conversation:
        assert (await conversation.ask("?")).text == "aside"
        assert await conversation.events() == []
        assert (await conversation.run("1")).text == "one"


async def test_a_new_conversation_can_be_asked_several_things_at_once(home: Home) -> None:
    found: list[str] = []

    async def ask(question: str) -> None:
        found.append((await conversation.ask(question)).text)

    async with AsyncConversation(
        home.agent(agent_of(lambda heard: Reply(f"to {heard.text}"))), store=home.store
    ) as conversation:
        async with anyio.create_task_group() as tasks:
            for n in range(5):
                tasks.start_soon(ask, str(n))
        assert sorted(found) == [f"to {n}" for n in range(5)]
        assert (await conversation.stats()).spent.calls == 5


async def test_what_was_sent_and_not_run_is_not_part_of_a_side_question(home: Home) -> None:
    async with AsyncConversation(
        home.agent(agent_of(lambda heard: Reply(heard.text))), store=home.store
    ) as conversation:
        conversation.send_message("queued")
        assert (await conversation.ask("aside")).text == "aside"
        assert len(conversation.pending) == 1


async def test_pieces_of_a_side_question_are_told_and_no_turn_is(home: Home) -> None:
    watcher = Watcher()
    async with AsyncConversation(
        home.agent(agent_of(["aside"])), store=home.store, callbacks=[watcher]
    ) as conversation:
        await conversation.ask("?")
        assert watcher.told == [TextPiece("aside")]


async def test_a_conversation_without_its_agent_cannot_be_asked() -> None:
    """On a server its agent is always at hand."""
    async with AsyncConversation(agent_of(["one"]), store="memory:") as conversation:
        await conversation.run("1")
        async with await AsyncConversation.open(conversation.id, bind=False, store="memory:") as reader:
            with pytest.raises(NoAgent):
                await reader.ask("?")


async def test_a_conversation_that_is_gone_cannot_be_asked(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["one"])), store=home.store) as conversation:
        await conversation.run("1")
        other = await AsyncConversation.open(conversation.id, store=home.store)
        await conversation.delete()
        with pytest.raises(NotFound):
            await other.ask("?")
        await other.close()
