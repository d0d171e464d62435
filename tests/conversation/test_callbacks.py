"""Callbacks and visualizers: told everything in order, in the loop's thread, and unable to harm a turn."""

import logging
from typing import Any

import anyio
import pytest
from tests.conversation.support.agents import Answers, Watcher, agent_of, asks, call
from tests.conversation.support.homes import Home

from forkpoint import AsyncConversation, ToolContext, TurnFailed, tool
from forkpoint.conversation import Turn, TurnStarted, Update, Visualizer
from forkpoint.events import Text, UserMessage
from forkpoint.llm import CallPiece, ReasoningPiece, TextPiece
from forkpoint.testing import Fault, Reply
from forkpoint.updates import Answered, CallEnded, CallProgress, CallStarted, CallWaits

pytestmark = pytest.mark.anyio

OVERLOADED = Reply("x", fault=Fault("overloaded"))


@tool
def look(ctx: ToolContext) -> str:
    """Looks."""
    ctx.progress("half")
    return "seen"


async def test_a_callback_is_told_everything_in_order_and_the_turn_last(home: Home) -> None:
    watcher = Watcher()
    answers: Answers = [Reply("Let me see.", reasoning="Hm.", calls=(call("look", "c"),)), "Fine."]
    async with AsyncConversation(
        home.agent(agent_of(answers, tools=[look])), store=home.store, callbacks=[watcher]
    ) as conversation:
        turn = await conversation.run("hi")
        assert [type(update) for update in watcher.told] == [
            TurnStarted,
            ReasoningPiece,
            TextPiece,
            CallPiece,
            Answered,
            CallStarted,
            CallProgress,
            CallEnded,
            TextPiece,
            Answered,
            Turn,
        ]
        started = watcher.told[0]
        assert started == TurnStarted(turn.id, conversation.id, (UserMessage((Text("hi"),)),), resumed=False)
        assert [update.called for update in watcher.of(Answered)] == list(turn.steps)
        assert watcher.told[-1] == turn


async def test_the_turn_is_told_when_it_is_committed_and_not_before(home: Home) -> None:
    seen: list[Any] = []
    tasks: Any = None

    def told(update: Update) -> None:
        if isinstance(update, Turn):
            tasks.start_soon(read)

    async def read() -> None:
        seen.append(await conversation.events())

    async with AsyncConversation(home.agent(agent_of(["Fine."])), store=home.store, callbacks=[told]) as conversation:
        async with anyio.create_task_group() as tasks:
            turn = await conversation.run("hi")
        assert seen == [list(turn.events)]


async def test_several_callbacks_and_a_visualizer_are_all_told(home: Home) -> None:
    watchers = [Watcher(), Watcher()]
    screen = Screen()
    async with AsyncConversation(
        home.agent(agent_of(["Fine."])), store=home.store, callbacks=watchers, visualizer=screen
    ) as conversation:
        await conversation.run("hi")
        assert watchers[0].told == watchers[1].told == screen.told
        assert len(screen.told) == 4


async def test_a_failed_turn_and_its_resumption_are_told(home: Home) -> None:
    watcher = Watcher()
    async with AsyncConversation(
        home.agent(agent_of([OVERLOADED, "Fine."])), store=home.store, callbacks=[watcher]
    ) as conversation:
        with pytest.raises(TurnFailed) as failed:
            await conversation.run("hi")
        assert watcher.names == ["TurnStarted", "Answered", "Turn"]
        assert watcher.told[-1] == failed.value.turn
        assert watcher.of(Answered)[0].called.error == "model_overloaded"
        watcher.told.clear()
        turn = await conversation.resume()
        assert watcher.told[0] == TurnStarted(turn.id, conversation.id, turn.input, resumed=True)
        assert watcher.told[-1] == turn


async def test_a_turn_that_waits_and_its_approval_are_told(home: Home) -> None:
    watcher = Watcher()
    agent = agent_of([asks(call("look", "c")), "Fine."], tools=[look], approval="always")
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:
        waiting = await conversation.run("hi")
        (waits,) = watcher.of(CallWaits)
        assert waits.call.call_id == "c"
        assert waits.reason == waiting.waiting[0].reason
        assert watcher.told[-1] == waiting
        assert watcher.of(CallStarted) == []
        watcher.told.clear()
        turn = await conversation.approve()
        assert watcher.names == [
            "TurnStarted",
            "CallStarted",
            "CallProgress",
            "CallEnded",
            "TextPiece",
            "Answered",
            "Turn",
        ]
        assert watcher.told[-1] == turn


async def test_a_callback_that_raises_costs_nothing_and_is_logged(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    def breaks(update: Update) -> None:
        raise RuntimeError(f"cannot show a {type(update).__name__}")

    watcher = Watcher()
    agent = agent_of([asks(call("look")), "Fine."], tools=[look])
    async with AsyncConversation(
        home.agent(agent), store=home.store, callbacks=[breaks, watcher], visualizer=Screen(broken=True)
    ) as c:
        with caplog.at_level(logging.ERROR, logger="forkpoint"):
            turn = await c.run("hi")
        assert (turn.outcome, turn.calls[0].status) == ("committed", "done")
        assert watcher.told[-1] == turn, "the others are told all the same"
        assert len(caplog.records) == 2 * len(watcher.told)
        assert all(record.exc_info for record in caplog.records)


async def test_a_callback_may_use_the_conversation_while_the_turn_runs(home: Home) -> None:
    found: list[Any] = []

    def told(update: Update) -> None:
        if isinstance(update, Answered):
            found.append((conversation.id, conversation.pending, conversation.agent is not None))
            conversation.send_message("a thought")

    async with AsyncConversation(
        home.agent(agent_of(["Fine.", "And?"])), store=home.store, callbacks=[told]
    ) as conversation:
        await conversation.run("hi")
        assert found == [(conversation.id, (), True)]
        assert len(conversation.pending) == 1


async def test_each_object_tells_its_own_callbacks(home: Home) -> None:
    mine, theirs = Watcher(), Watcher()
    agent = agent_of(["one", "two"])
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[mine]) as conversation:
        await conversation.run("hi")
        told = len(mine.told)
        async with await AsyncConversation.open(conversation.id, store=home.store, callbacks=[theirs]) as other:
            await other.run("ho")
        assert len(mine.told) == told
        assert len(theirs.told) == told


class Screen:
    """A visualizer."""

    def __init__(self, *, broken: bool = False) -> None:
        self.told: list[Update] = []
        self.broken = broken

    def __call__(self, update: Update, /) -> None:
        if self.broken:
            raise RuntimeError("the screen is gone")
        self.told.append(update)

    def for_fork(self) -> Visualizer:
        return Screen()


async def test_an_opened_conversation_has_the_visualizer_that_it_is_given(home: Home) -> None:
    screen = Screen()
    async with AsyncConversation(home.agent(agent_of(["one", "two"])), store=home.store) as conversation:
        await conversation.run("hi")
        async with await AsyncConversation.open(conversation.id, store=home.store, visualizer=screen) as other:
            turn = await other.run("ho")
        assert screen.told[-1] == turn
