"""Streams: a turn told as it happens. The last item is the turn; leaving early cancels it."""

import logging
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from tests.conversation.support.agents import PATIENCE, Answers, Watcher, agent_of, asks, call, said, scripted
from tests.conversation.support.homes import Home

from forkpoint import Agent, AsyncConversation, TurnCancelled, TurnFailed, tool
from forkpoint.conversation import Turn, TurnJoined, TurnStarted, TurnStream
from forkpoint.errors import MissingKey, ModelUnavailable, NothingToRun, NotWhole, TurnOpen
from forkpoint.llm import Restarted, Retries, TextPiece
from forkpoint.testing import Fault, Heard, Reply

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])

HANGS = Reply("never heard", piece=1, fault=Fault("hang", after=1))
OVERLOADED = Reply("x", fault=Fault("overloaded"))


@tool
def look() -> str:
    """Looks."""
    return "seen"


async def drain(stream: TurnStream) -> list[Any]:
    return [update async for update in stream]


@both
async def test_a_stream_tells_the_pieces_as_they_come_and_then_the_turn(home: Home) -> None:
    answers: Answers = [asks(call("look", "c")), Reply("Hello, world.", piece=5)]
    async with AsyncConversation(home.agent(agent_of(answers, tools=[look])), store=home.store) as conversation:
        async with conversation.run_stream("hi") as stream:
            updates = await drain(stream)
        names = [type(update).__name__ for update in updates]
        assert names == [
            "TurnStarted",
            "CallPiece",
            "Answered",
            "CallStarted",
            "CallEnded",
            "TextPiece",
            "TextPiece",
            "TextPiece",
            "Answered",
            "Turn",
        ]
        assert "".join(update.text for update in updates if isinstance(update, TextPiece)) == "Hello, world."
        turn = updates[-1]
        assert isinstance(turn, Turn)
        assert turn == stream.turn
        assert (turn.outcome, turn.text) == ("committed", "Hello, world.")
        assert list(turn.events) == await conversation.events(), "it is told after the commit"


async def test_a_turn_that_fails_is_raised_where_the_stream_is_read(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of([OVERLOADED, "again"])), store=home.store) as conversation:
        async with conversation.run_stream("hi") as stream:
            with pytest.raises(TurnFailed) as failed:
                await drain(stream)
            with pytest.raises(TurnFailed):
                await anext(stream)
        assert isinstance(failed.value.cause, ModelUnavailable)
        assert stream.turn is None
        assert (await conversation.retry()).text == "again"


async def test_a_failure_that_is_not_caught_leaves_the_block_as_itself(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of([OVERLOADED])), store=home.store) as conversation:
        with pytest.raises(TurnFailed) as failed:
            await read_all(conversation)
        assert isinstance(failed.value.cause, ModelUnavailable)


async def read_all(conversation: AsyncConversation) -> None:
    async with conversation.run_stream("hi") as stream:
        async for _ in stream:
            pass


@pytest.mark.parametrize("kind", ["nothing", "blank", "no key", "open"])
async def test_what_keeps_a_turn_from_beginning_is_raised_and_keeps_what_was_queued(
    home: Home, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    agent = agent_of([asks(call("look"))], tools=[look], approval="always")
    if kind == "no key":
        agent = Agent("openai/gpt-5.6")
    error = {"nothing": NothingToRun, "blank": NotWhole, "no key": MissingKey, "open": TurnOpen}[kind]
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        if kind == "open":
            await conversation.run("first")
        if kind != "nothing":
            conversation.send_message("queued")
        with pytest.raises(error):
            await stream_with(conversation, {"nothing": None, "blank": " "}.get(kind, "passed"))
        assert len(conversation.pending) == (kind != "nothing")


async def stream_with(conversation: AsyncConversation, message: str | None) -> None:
    async with conversation.run_stream(message) as stream:
        await drain(stream)


@both
async def test_leaving_early_cancels_the_turn_and_its_outcome_is_in_the_store(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["first", HANGS, "again"])), store=home.store) as conversation:
        await conversation.run("one")
        events = await conversation.events()
        async with conversation.run_stream("two") as stream:
            async for update in stream:
                if isinstance(update, TextPiece):
                    break
        assert [turn.outcome for turn in (await conversation.turns()).items] == ["committed", "cancelled"]
        assert await conversation.events() == events
        assert await conversation.status() == "idle"
        assert (await conversation.retry()).text == "again"


async def test_leaving_before_anything_was_read_cancels_it_too(home: Home) -> None:
    def answer(heard: Heard) -> Reply:
        return HANGS if heard.text == "hi" else Reply("next")

    async with AsyncConversation(home.agent(agent_of(answer)), store=home.store) as conversation:
        async with conversation.run_stream("hi"):
            pass
        assert await conversation.status() == "idle"
        assert (await conversation.run("more")).outcome == "committed"


@both
async def test_what_the_reader_raises_is_raised_as_itself_and_cancels_the_turn(home: Home) -> None:
    class Mine(Exception):
        pass

    async with AsyncConversation(home.agent(agent_of([HANGS])), store=home.store) as conversation:

        async def read() -> None:
            async with conversation.run_stream("hi") as stream:
                async for update in stream:
                    if isinstance(update, TextPiece):
                        raise Mine("enough")

        with pytest.raises(Mine, match="enough"):
            await read()
        assert [turn.outcome for turn in (await conversation.turns()).items] == ["cancelled"]


async def test_a_return_out_of_the_block_is_leaving_early(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of([HANGS])), store=home.store) as conversation:

        async def first_piece() -> str:
            async with conversation.run_stream("hi") as stream:
                async for update in stream:
                    if isinstance(update, TextPiece):
                        return update.text
            return ""

        assert await first_piece() == "n"
        assert [turn.outcome for turn in (await conversation.turns()).items] == ["cancelled"]


@both
async def test_a_slow_reader_does_not_hold_the_turn_up(home: Home) -> None:
    watcher = Watcher()
    agent = agent_of([Reply("x" * 500, piece=1)])
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:
        async with conversation.run_stream("hi") as stream:
            await anext(stream)
            await watcher.until(Turn)
            assert await conversation.status() == "idle", "it is committed though hardly anything was read"
            rest = await drain(stream)
        assert len(rest) == 500 + 2
        assert isinstance(rest[-1], Turn)


async def test_leaving_after_the_turn_was_committed_does_not_undo_it(home: Home) -> None:
    watcher = Watcher()
    async with AsyncConversation(home.agent(agent_of(["done"])), store=home.store, callbacks=[watcher]) as conversation:
        async with conversation.run_stream("hi"):
            await watcher.until(Turn)
        assert [turn.outcome for turn in (await conversation.turns()).items] == ["committed"]


async def test_an_answer_that_is_begun_again_is_told_so_that_its_pieces_can_be_taken_back(home: Home) -> None:
    cut = Reply("half of it", piece=4, fault=Fault("cut", after=1))
    llm = scripted([cut, "whole"], retries=Retries(attempts=2, wait=0))
    async with AsyncConversation(home.agent(Agent(llm)), store=home.store) as conversation:
        async with conversation.run_stream("hi") as stream:
            updates = await drain(stream)
        told = [update for update in updates if isinstance(update, TextPiece | Restarted)]
        assert told == [TextPiece("half"), Restarted("model_connection"), TextPiece("whole")]
        assert stream.turn is not None
        assert stream.turn.text == "whole"
        assert stream.turn.usage.calls == 2


async def test_a_turn_that_waits_ends_the_stream(home: Home) -> None:
    agent = agent_of([asks(call("look"))], tools=[look], approval="always")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        async with conversation.run_stream("hi") as stream:
            updates = await drain(stream)
        assert [type(update).__name__ for update in updates][-2:] == ["CallWaits", "Turn"]
        assert stream.turn is not None
        assert stream.turn.outcome == "awaiting_approval"


async def test_a_turn_that_somebody_else_cancels_is_raised_from_the_stream(home: Home) -> None:
    async with (
        AsyncConversation(home.agent(agent_of([HANGS])), store=home.store) as conversation,
        conversation.run_stream("hi") as stream,
    ):
        async for update in stream:
            if isinstance(update, TextPiece):
                break
        assert (await conversation.cancel()).outcome == "cancelled"
        with pytest.raises(TurnCancelled):
            await drain(stream)


@both
async def test_a_task_that_is_cancelled_in_the_block_ends_its_turn(home: Home) -> None:
    watcher = Watcher()
    agent = agent_of([HANGS])
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read_all, conversation)
            await watcher.until(TextPiece)
            tasks.cancel_scope.cancel()
        assert [turn.outcome for turn in (await conversation.turns()).items] == ["cancelled"]


async def test_two_conversations_stream_at_once(home: Home) -> None:
    async def read(conversation: AsyncConversation) -> None:
        async with conversation.run_stream("hi") as stream:
            async for _ in stream:
                await checkpoint()
        found.append(said(await conversation.events()))

    found: list[Any] = []
    conversations = [
        AsyncConversation(home.agent(agent_of([Reply("x" * 50, piece=1)])), store=home.store) for _ in range(3)
    ]
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for conversation in conversations:
                tasks.start_soon(read, conversation)
    assert found == [[("user", "hi"), ("assistant", "x" * 50)]] * 3
    for conversation in conversations:
        await conversation.close()


async def test_callbacks_are_told_the_same_and_leaving_a_stream_is_not_logged_as_their_fault(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = Watcher()
    async with AsyncConversation(
        home.agent(agent_of([HANGS, "x"])), store=home.store, callbacks=[watcher]
    ) as conversation:
        with caplog.at_level(logging.WARNING):
            async with conversation.run_stream("hi") as stream:
                async for update in stream:
                    if isinstance(update, TextPiece):
                        break
        assert caplog.records == []
        assert isinstance(watcher.told[0], TurnStarted)
        watcher.told.clear()
        async with conversation.run_stream("again") as stream:
            assert await drain(stream) == watcher.told


async def test_a_stream_with_a_key_that_was_used_gives_the_turn_at_once(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["once"])), store=home.store) as conversation:
        turn = await conversation.run("hi", key="k")
        async with conversation.run_stream("hi", key="k") as stream:
            assert await drain(stream) == [TurnJoined(turn.id, conversation.id), turn]
