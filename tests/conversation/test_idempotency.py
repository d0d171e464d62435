"""One key, one effect: a repeat gives the same turn, joins one that runs, and a failed one frees its key."""

import asyncio
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.conversation.support import tools as shared
from tests.conversation.support.agents import PATIENCE, Signal, Watcher, agent_of, asks, call, scripted
from tests.conversation.support.homes import Home
from tests.conversation.support.other_process import heard as heard_of
from tests.conversation.support.other_process import start

from forkpoint import Agent, AsyncConversation, TurnCancelled, TurnFailed, tool
from forkpoint.conversation import Turn, TurnJoined
from forkpoint.errors import Busy, KeyReused, NotResumable
from forkpoint.llm import TextPiece
from forkpoint.testing import Fault, Reply

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])

OVERLOADED = Reply("x", fault=Fault("overloaded"))
HANGS = Reply("never heard", piece=1, fault=Fault("hang", after=1))


async def test_the_same_key_and_message_give_the_stored_turn_and_ask_nobody(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["once", "other"])), store=home.store) as conversation:
        turn = await conversation.run("hello", key="k")
        assert await conversation.run("hello", key="k") == turn
        async with await AsyncConversation.open(conversation.id, store=home.store) as other:
            assert await other.run("hello", key="k") == turn
        assert len((await conversation.turns()).items) == 1
        assert (await conversation.run("hello", key="l")).text == "other"
        assert await conversation.run("hello", key="k") == turn, "also after the conversation went on"


async def test_a_key_that_was_used_for_something_else_is_refused_and_nothing_happens(home: Home) -> None:
    agent = agent_of(["once", "twice"])
    async with (
        AsyncConversation(home.agent(agent), store=home.store) as conversation,
        AsyncConversation(home.agent(agent), store=home.store) as other,
    ):
        await conversation.run("hello", key="k")
        with pytest.raises(KeyReused):
            await conversation.run("something else", key="k")
        with pytest.raises(KeyReused):
            await other.run("hello", key="k")
        conversation.send_message("first")
        with pytest.raises(KeyReused):
            await conversation.run("hello", key="k")
        assert len(conversation.pending) == 1
        assert len(await conversation.events()) == 4
        assert (await other.run("hello")).text == "twice"


async def test_messages_that_a_stored_turn_had_are_not_pending_any_more(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["once", "next"])), store=home.store) as conversation:
        conversation.send_message("a")
        turn = await conversation.run("b", key="k")
        conversation.send_message("a")
        assert await conversation.run("b", key="k") == turn
        assert conversation.pending == ()


@both
async def test_a_repeat_joins_the_turn_that_runs(home: Home) -> None:
    started, release = Signal(), Signal()
    ran: list[str] = []

    @tool
    async def work() -> str:
        """Works."""
        ran.append("work")
        started.set()
        await release.wait()
        return "worked"

    found: list[Turn] = []
    agent = agent_of([asks(call("work")), "done"], tools=[work])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:

        async def run(one: AsyncConversation) -> None:
            found.append(await one.run("go", key="k"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, conversation)
            await started.wait()
            other = await AsyncConversation.open(conversation.id, agent=home.agent(agent), store=home.store)
            tasks.start_soon(run, conversation)
            tasks.start_soon(run, other)
            with pytest.raises(Busy):
                await conversation.run("go")
            release.set()
        await other.close()
        assert found[0] == found[1] == found[2]
        assert ran == ["work"]


async def test_whoever_joined_a_turn_that_fails_hears_that_too(home: Home) -> None:
    watcher = Watcher()
    agent = agent_of([HANGS, "again"])
    heard: list[Any] = []
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:

        async def run() -> None:
            try:
                await conversation.run("go", key="k")
            except TurnFailed as error:
                heard.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await watcher.until(TextPiece)
            tasks.start_soon(run)
            await watcher.until(TurnJoined)
            await conversation.cancel()
        assert [type(error) for error in heard] == [TurnCancelled] * 2
        assert heard[0].turn == heard[1].turn
        assert (await conversation.run("go", key="k")).text == "again", "and the key is free"


async def test_giving_up_on_a_turn_that_one_has_joined_does_not_stop_it(home: Home) -> None:
    started, release = Signal(), Signal()

    @tool
    async def work() -> str:
        """Works."""
        started.set()
        await release.wait()
        return "worked"

    watcher = Watcher()
    agent = agent_of([asks(call("work")), "done"], tools=[work])
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:
        running = asyncio.create_task(conversation.run("go", key="k"))
        await started.wait()
        joined = asyncio.create_task(conversation.run("go", key="k"))
        await watcher.until(TurnJoined)
        joined.cancel()
        with pytest.raises(asyncio.CancelledError):
            await joined
        release.set()
        assert (await running).text == "done"


@pytest.mark.parametrize("how", ["failed", "cancelled", "discarded"])
async def test_a_turn_that_did_not_commit_frees_its_key(home: Home, how: str) -> None:
    watcher = Watcher()

    @tool
    def look() -> str:
        """Looks."""
        return "seen"

    first = {"failed": OVERLOADED, "cancelled": HANGS, "discarded": asks(call("look"))}[how]
    approval = "always" if how == "discarded" else "never"
    agent = agent_of([first, "second"], tools=[look], approval=approval)
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:
        match how:
            case "failed":
                with pytest.raises(TurnFailed):
                    await conversation.run("go", key="k")
            case "cancelled":
                running = asyncio.create_task(conversation.run("go", key="k"))
                await watcher.until(TextPiece)
                await conversation.cancel()
                with pytest.raises(TurnCancelled):
                    await running
            case _:
                waiting = await conversation.run("go", key="k")
                assert await conversation.run("go", key="k") == waiting, "one that waits is not over"
                await conversation.discard()
        turn = await conversation.run("something else", key="k")
        assert turn.text == "second"


async def test_a_resumed_turn_has_its_key_again(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of([OVERLOADED, "resumed"])), store=home.store) as conversation:
        with pytest.raises(TurnFailed):
            await conversation.run("go", key="k")
        turn = await conversation.resume()
        assert await conversation.run("go", key="k") == turn


async def test_a_turn_whose_key_was_used_meanwhile_is_not_resumed(home: Home) -> None:
    agent = agent_of([OVERLOADED, "other"])
    async with (
        AsyncConversation(home.agent(agent), store=home.store) as conversation,
        AsyncConversation(home.agent(agent), store=home.store) as other,
    ):
        with pytest.raises(TurnFailed) as failed:
            await conversation.run("go", key="k")
        await other.run("go", key="k")
        with pytest.raises(NotResumable):
            await conversation.resume(failed.value.id)


async def test_a_retry_may_have_a_key(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of([OVERLOADED, "retried"])), store=home.store) as conversation:
        with pytest.raises(TurnFailed) as failed:
            await conversation.run("go")
        turn = await conversation.retry(key="r")
        assert await conversation.retry(failed.value.id, key="r") == turn
        assert len((await conversation.turns()).items) == 2


async def test_a_first_run_that_is_repeated_with_its_key_is_not_refused_as_taken(home: Home) -> None:
    agent = Agent(scripted(["once"]))
    async with AsyncConversation(home.agent(agent), conversation_id="mine", store=home.store) as conversation:
        turn = await conversation.run("go", key="k")
        async with await AsyncConversation.open("mine", create=home.agent(agent), store=home.store) as again:
            assert await again.run("go", key="k") == turn


async def test_a_repeat_joins_a_turn_that_another_process_runs(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'a.db'}"
    asked = shared.steps([("wait", {})])
    process = start(store, "joined", "run", asked, workspace=tmp_path, key="k")
    assert process.stdout.readline() == "waits\n"
    async with await AsyncConversation.open("joined", store=store) as conversation:
        with pytest.raises(Busy):
            await conversation.run(asked)
        with pytest.raises(Busy):
            await conversation.cancel()
        found: list[Turn] = []

        async def join() -> None:
            found.append(await conversation.run(asked, key="k"))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(join)
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
                assert found == []
                told = heard_of_after(process, "go")
        assert (found[0].id, found[0].text) == (told["turn"], told["text"])
        assert found[0].outcome == "committed"
        assert shared.logged(tmp_path) == ["waits"]


def heard_of_after(process: Any, line: str) -> dict[str, Any]:
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return heard_of(process)
