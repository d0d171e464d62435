"""Messages: what may be one, how they are queued, and that none is lost or sent twice."""

from typing import Any

import pytest
from tests.conversation.support.agents import agent_of, asks, call, said, script_of, served
from tests.conversation.support.homes import Home

from forkpoint import Agent, AsyncConversation, TurnFailed, tool
from forkpoint.backend.messages import as_message, read_input, write_input
from forkpoint.conversation import TurnStarted
from forkpoint.errors import BadArgument, NothingToRun, NotWhole
from forkpoint.events import File, Image, Text, UserMessage
from forkpoint.testing import Fault, ModelServer, Reply
from forkpoint.updates import CallStarted

pytestmark = pytest.mark.anyio

PNG = Image("image/png", data="iVBORw0KGgo=")
PDF = File("report.pdf", "application/pdf", data="JVBERi0=")


def words(conversation: AsyncConversation) -> list[str]:
    return [part.text for message in conversation.pending for part in message.parts if isinstance(part, Text)]


# What may be a message.


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("hello", (Text("hello"),)),
        (Text("hello"), (Text("hello"),)),
        (PNG, (PNG,)),
        ([Text("look:"), PNG, PDF], (Text("look:"), PNG, PDF)),
        ((Text("look:"), PNG), (Text("look:"), PNG)),
        (["look:", PNG, "and say"], (Text("look:"), PNG, Text("and say"))),
        (UserMessage((Text("hello"),)), (Text("hello"),)),
    ],
    ids=["str", "Text", "Image", "list", "tuple", "texts in a list", "UserMessage"],
)
async def test_a_message_is_a_text_a_part_or_several(home: Home, given: Any, parts: Any) -> None:
    async with AsyncConversation(home.agent(agent_of(["ok"])), store=home.store) as conversation:
        turn = await conversation.run(given)
        assert turn.input == (UserMessage(parts),)
        (sent,) = (event.body for event in turn.events if isinstance(event.body, UserMessage))
        assert sent.parts == parts


async def test_pictures_and_files_reach_the_model(home: Home) -> None:
    with ModelServer(script_of(["I see."])) as server:
        async with AsyncConversation(
            home.agent(Agent(served(server, api="responses"))), store=home.store
        ) as conversation:
            await conversation.run([Text("look:"), PNG, PDF])
            content = server.last.json["input"][-1]["content"]
            assert [part["type"] for part in content] == ["input_text", "input_image", "input_file"]
            assert PNG.data is not None
            assert PNG.data in content[1]["image_url"]


async def test_a_large_picture_is_a_message_like_any_other(home: Home) -> None:
    large = Image("image/png", data="A" * (6 << 20))
    async with AsyncConversation(home.agent(agent_of(["I see."])), store=home.store) as conversation:
        turn = await conversation.run(large)
        assert turn.input == (UserMessage((large,)),)


WRONG: list[Any] = [
    "",
    " \n",
    [],
    [Text("fine"), Text("")],
    Image("image/png"),
    File("x", "text/plain"),
    "\ud800",
    Text("a\udfffb"),
    5,
    None,
    True,
    ...,
    b"bytes",
    {"role": "user", "content": "hello"},
    ["hello", ""],
    [5],
    Image("image/png", data="no base64!"),
    File("x", "text/plain", data="YQ"),
    Text(5),  # type: ignore[arg-type]
    UserMessage(5),  # type: ignore[arg-type]
    UserMessage(("hello",)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("wrong", WRONG, ids=ascii)
async def test_what_is_no_message_is_refused_at_once_and_nothing_is_kept_of_it(wrong: Any) -> None:
    """Before any home is asked."""
    async with AsyncConversation(agent_of(["ok"]), store="memory:") as conversation:
        conversation.send_message("queued")
        with pytest.raises((BadArgument, NotWhole)):
            conversation.send_message(wrong)
        if wrong is not None:  # which means to run() that there is no further one
            with pytest.raises((BadArgument, NotWhole)):
                await conversation.run(wrong)
        with pytest.raises((BadArgument, NotWhole)):
            await conversation.ask(wrong)
        assert words(conversation) == ["queued"]
        assert said((await conversation.run()).events) == [("user", "queued"), ("assistant", "ok")]


def test_a_message_comes_back_from_the_store_as_it_was() -> None:
    messages = (as_message("one"), as_message([Text("two"), PNG, PDF]))
    assert read_input(write_input(messages)) == messages
    assert read_input(None) == ()


# Queueing.


async def test_messages_that_were_sent_are_one_turn_in_order(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["ok"])), store=home.store) as conversation:
        conversation.send_message("one")
        conversation.send_message("two")
        assert words(conversation) == ["one", "two"]
        turn = await conversation.run("three")
        assert said(turn.events) == [("user", "one"), ("user", "two"), ("user", "three"), ("assistant", "ok")]
        assert len(turn.input) == 3
        assert conversation.pending == ()


async def test_a_run_without_any_message_is_refused(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of([])), store=home.store) as conversation:
        with pytest.raises(NothingToRun):
            await conversation.run()


async def test_what_was_sent_lives_in_its_object_only(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["ok", "ok"])), store=home.store) as conversation:
        await conversation.run("hello")
        conversation.send_message("queued")
        async with await AsyncConversation.open(conversation.id, store=home.store) as other:
            assert other.pending == ()
            with pytest.raises(NothingToRun):
                await other.run()


@pytest.mark.parametrize("outcome", ["committed", "failed", "waiting"])
async def test_a_message_sent_while_a_turn_runs_is_for_the_next(home: Home, outcome: str) -> None:
    @tool
    async def sends() -> str:
        """Sends a message while the turn runs."""
        conversation.send_message("later")
        return "sent"

    def sends_too(update: Any) -> None:
        if isinstance(update, TurnStarted | CallStarted):
            conversation.send_message("also")

    last = Reply("x", fault=Fault("overloaded")) if outcome == "failed" else Reply("ok")
    agent = agent_of(
        [asks(call("sends")), last, "next"], tools=[sends], approval="always" if outcome == "waiting" else "never"
    )
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[sends_too]) as conversation:
        if outcome == "failed":
            with pytest.raises(TurnFailed):
                await conversation.run("go")
        else:
            turn = await conversation.run("go")
            assert turn.outcome == ("committed" if outcome == "committed" else "awaiting_approval")
        assert sorted(words(conversation)) == (["also"] if outcome == "waiting" else ["also", "also", "later"])


async def test_a_retry_and_a_resume_leave_what_was_sent_for_the_next_turn(home: Home) -> None:
    overloaded = Reply("x", fault=Fault("overloaded"))
    async with AsyncConversation(
        home.agent(agent_of([overloaded, overloaded, "ok", "next"])), store=home.store
    ) as conversation:
        with pytest.raises(TurnFailed):
            await conversation.run("go")
        conversation.send_message("later")
        with pytest.raises(TurnFailed):
            await conversation.retry()
        assert said((await conversation.resume()).events) == [("user", "go"), ("assistant", "ok")]
        assert words(conversation) == ["later"]
        assert said((await conversation.run()).events) == [("user", "later"), ("assistant", "next")]


async def test_a_stream_takes_what_was_sent_like_a_run(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["ok"])), store=home.store) as conversation:
        conversation.send_message("one")
        async with conversation.run_stream("two") as stream:
            async for _ in stream:
                pass
        assert stream.turn is not None
        assert said(stream.turn.events)[:2] == [("user", "one"), ("user", "two")]
        assert conversation.pending == ()


async def test_a_retry_leaves_a_message_like_its_own_for_the_next_turn(home: Home) -> None:
    async with AsyncConversation(
        home.agent(agent_of([Reply(fault=Fault("overloaded")), "one", "two"])), store=home.store
    ) as conversation:
        with pytest.raises(TurnFailed):
            await conversation.run("again")
        conversation.send_message("again")
        assert (await conversation.retry()).text == "one"
        assert len(conversation.pending) == 1
        assert (await conversation.run()).text == "two"
