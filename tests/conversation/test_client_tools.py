"""Calls that are handed to the client: a committed turn leaves them open, and the next one answers each of them."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from tests.conversation.support.agents import Watcher, agent_of, asks, call, kinds, messages_of, results
from tests.conversation.support.homes import Home, RemoteHome

from forkpoint import Agent, AsyncConversation, Conversation, TurnFailed, tool
from forkpoint.agent.stored.document import portable_document
from forkpoint.backend.options import NewTurn
from forkpoint.conversation import Turn, TurnStarted
from forkpoint.engine.engine import Engine
from forkpoint.errors import BadArgument, BadPosition, NothingToRun, NotWhole, Unpaired
from forkpoint.events import AssistantMessage, Event, Image, Imported, Text, ToolResult, UserMessage
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.testing import Fault, Heard, Reply

pytestmark = pytest.mark.anyio

BROWSE = ToolSchema("browse", "Opens a page.", '{"type":"object","properties":{"page":{"type":"string"}}}')
BOTH = asks(call("browse", "a", page="x"), call("browse", "b", page="y"), text="One moment.")
OVERLOADED = Reply("never heard", fault=Fault("overloaded"))


@tool
def look(at: str) -> str:
    """Looks at something."""
    return f"{at} is fine"


class Model:
    """A model that answers as it is told to, and keeps what it was shown."""

    def __init__(self, *replies: Reply | str) -> None:
        self._replies = list(replies)
        self.shown: list[list[dict[str, Any]]] = []

    def __call__(self, heard: Heard) -> Reply:
        self.shown.append(messages_of(heard))
        reply = self._replies.pop(0)
        return Reply(reply) if isinstance(reply, str) else reply

    @property
    def last(self) -> list[tuple[str, Any]]:
        """The last request in short: who says what."""
        return [(message["role"], message["content"]) for message in self.shown[-1]]

    def agent(self, **settings: Any) -> Agent:
        return agent_of(self, client_tools=[BROWSE], **settings)


async def fails_on(conversation: AsyncConversation, **given: Any) -> Turn:
    with pytest.raises(TurnFailed) as failed:
        await conversation.run(**given)
    assert isinstance(failed.value.turn, Turn)
    return failed.value.turn


# Handing over.


async def test_a_turn_that_hands_calls_to_the_client_is_committed_with_them_open(home: Home) -> None:
    model = Model(BOTH)
    async with AsyncConversation(home.agent(model.agent()), store=home.store) as conversation:
        turn = await conversation.run("Read both.")
        assert turn.outcome == "committed"
        assert [(one.id, one.tool, one.arguments, one.status) for one in turn.handed] == [
            ("a", "browse", '{"page": "x"}', "handed"),
            ("b", "browse", '{"page": "y"}', "handed"),
        ]
        assert (turn.text, turn.waiting) == ("One moment.", ())
        assert (await conversation.info()).status == "idle"
        assert await conversation.turn(turn.id) == turn
        assert (await conversation.verify()).ok


async def test_ours_run_first_and_only_the_client_s_are_handed(home: Home) -> None:
    model = Model(asks(call("browse", "a", page="x"), call("look", "l", at="it")), "Done.")
    async with AsyncConversation(home.agent(model.agent(tools=[look])), store=home.store) as conversation:
        turn = await conversation.run("Go.")
        assert [one.id for one in turn.handed] == ["a"]
        assert {one.id: one.status for one in turn.calls} == {"a": "handed", "l": "done"}
        await conversation.run(results={"a": "a page"})
        told = {message["tool_call_id"]: message["content"] for message in model.shown[-1] if message["role"] == "tool"}
        assert told == {"a": "a page", "l": "it is fine"}


async def test_an_agent_with_client_tools_is_sent_to_a_server_as_data(home: Home) -> None:
    agent = Model(BOTH).agent()
    assert home.agent(agent) is agent
    assert json.loads(portable_document(agent))["client_tools"][0]["name"] == "browse"
    async with AsyncConversation(agent, store=home.store) as conversation:
        assert len((await conversation.run("Read.")).handed) == 2


# Answering.


async def test_the_next_turn_gives_the_model_each_result_and_then_what_is_said(home: Home) -> None:
    model = Model(BOTH, "Both are short.")
    async with AsyncConversation(home.agent(model.agent()), store=home.store) as conversation:
        await conversation.run("Read both.")
        turn = await conversation.run("Be quick.", results={"b": "page y", "a": "page x"})
        assert turn.text == "Both are short."
        assert turn.handed == ()
        assert [message.parts for message in turn.input] == [(Text("Be quick."),)]
        assert [one.call_id for one in turn.given if isinstance(one, ToolResult)] == ["b", "a"]
        assert model.last == [
            ("user", "Read both."),
            ("assistant", "One moment."),
            ("tool", "page x"),
            ("tool", "page y"),
            ("user", "Be quick."),
        ]
        assert [(one.call_id, one.tool, one.status) for one in results(turn.events)] == [
            ("a", "browse", "done"),
            ("b", "browse", "done"),
        ]
        assert (await conversation.verify()).ok


async def test_results_alone_are_enough_for_a_turn(home: Home) -> None:
    model = Model(BOTH, "Fine.")
    async with AsyncConversation(home.agent(model.agent()), store=home.store) as conversation:
        await conversation.run("Read both.")
        turn = await conversation.run(results={"a": "", "b": "page y"})
        assert (turn.text, turn.input) == ("Fine.", ())
        assert model.last[-2:] == [("tool", "(no output)"), ("tool", "page y")]
        with pytest.raises(NothingToRun):
            await conversation.run(results={})


async def test_a_call_without_a_result_is_recorded_as_not_answered(home: Home) -> None:
    model = Model(BOTH, "Only one, then.")
    async with AsyncConversation(home.agent(model.agent()), store=home.store) as conversation:
        await conversation.run("Read both.")
        turn = await conversation.run(results={"b": "page y"})
        assert [(one.call_id, one.status) for one in results(turn.events)] == [("a", "not_answered"), ("b", "done")]
        first, second = (content for role, content in model.last if role == "tool")
        assert first, "the model is told that there is none"
        assert ("page" in first, second) == (False, "page y")


async def test_a_new_message_instead_of_results_goes_on_without_them(home: Home) -> None:
    model = Model(BOTH, "As you like.")
    async with AsyncConversation(home.agent(model.agent()), store=home.store) as conversation:
        await conversation.run("Read both.")
        turn = await conversation.run("Never mind.")
        assert [one.status for one in results(turn.events)] == ["not_answered", "not_answered"]
        assert turn.input[0].parts == (Text("Never mind."),)
        assert (await conversation.verify()).ok


async def test_a_result_may_be_parts_or_say_that_it_failed(home: Home) -> None:
    model = Model(BOTH, "I see.")
    picture = Image("image/png", "iVBORw==")
    async with AsyncConversation(home.agent(model.agent()), store=home.store) as conversation:
        await conversation.run("Read both.")
        failed = ToolResult("another id", "another tool", (Text("no such page"),), "failed")
        turn = await conversation.run(results={"a": [Text("as seen"), picture], "b": failed})
        assert [(one.call_id, one.tool, one.status, one.parts) for one in results(turn.events)] == [
            ("a", "browse", "done", (Text("as seen"), picture)),
            ("b", "browse", "failed", (Text("no such page"),)),
        ]


@pytest.mark.parametrize("wrong", [{"a": 5}, {"a": "\ud800"}, {"": "x"}], ids=["no text", "no Unicode", "no call"])
async def test_a_result_that_is_none_is_refused_and_nothing_has_begun(home: Home, wrong: dict[str, Any]) -> None:
    async with AsyncConversation(home.agent(Model(BOTH).agent()), store=home.store) as conversation:
        await conversation.run("Read both.")
        before = await conversation.info()
        with pytest.raises((BadArgument, NotWhole)):
            await conversation.run(results=wrong)
        assert await conversation.info() == before
        assert len((await conversation.turns()).items) == 1


async def test_a_result_for_a_call_that_is_not_open_is_refused_and_nothing_has_begun(home: Home) -> None:
    model = Model(BOTH, "Fine.")
    async with AsyncConversation(home.agent(model.agent()), store=home.store) as conversation:
        await conversation.run("Read both.")
        before, turns = await conversation.info(), await conversation.turns()
        with pytest.raises(Unpaired, check=Unpaired.call_not_open.made) as refused:
            await conversation.run("And?", results={"a": "page x", "c": "page z"})
        assert (refused.value.call_id, "a, b" in str(refused.value)) == ("c", True)
        assert await conversation.info() == before
        assert await conversation.turns() == turns, "no failed turn is left behind"
        await conversation.run(results={"a": "page x"})
        with pytest.raises(Unpaired, check=Unpaired.call_not_open.made):
            await conversation.run("Again.", results={"a": "page x"})
        assert len(model.shown) == 2


async def test_calls_are_answered_with_the_same_key_once(home: Home) -> None:
    model = Model(BOTH, "Fine.")
    async with AsyncConversation(home.agent(model.agent()), store=home.store) as conversation:
        await conversation.run("Read both.")
        first = await conversation.run(results={"a": "page x"}, key="answers")
        assert (await conversation.run(results={"a": "page x"}, key="answers")).id == first.id
        assert len(model.shown) == 2


# When it does not work at once.


async def test_a_turn_that_failed_leaves_the_calls_open_and_a_retry_has_its_results(home: Home) -> None:
    model = Model(BOTH, OVERLOADED, "Fine.")
    async with AsyncConversation(home.agent(model.agent()), store=home.store) as conversation:
        await conversation.run("Read both.")
        failed = await fails_on(conversation, message="Well?", results={"a": "page x", "b": "page y"})
        turn = await conversation.retry()
        assert (turn.retry_of, turn.given) == (failed.id, failed.given)
        assert model.shown[2] == model.shown[1]
        assert (await conversation.verify()).ok


async def test_a_retry_has_the_history_from_elsewhere_that_the_turn_was_given(home: Home) -> None:
    model = Model("Hello.", OVERLOADED, "Fine.")
    agent = model.agent()
    given = (
        Imported("a client", 2),
        UserMessage((Text("Read it."),)),
        AssistantMessage((Text("It is short."),)),
        UserMessage((Text("Shorter?"),)),
    )
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        await conversation.run("Hi.")
        other = Engine(await home.opened())
        with pytest.raises(TurnFailed):
            await other.turns.run(conversation.id, agent, NewTurn(given=given), lambda _: None)
        await other.close()
        turn = await conversation.retry()
        assert turn.given == given
        assert model.last[2:] == [("user", "Read it."), ("assistant", "It is short."), ("user", "Shorter?")]


async def test_after_a_failure_the_calls_can_be_answered_otherwise(home: Home) -> None:
    model = Model(BOTH, OVERLOADED, "Fine.")
    async with AsyncConversation(home.agent(model.agent()), store=home.store) as conversation:
        await conversation.run("Read both.")
        await fails_on(conversation, results={"a": "page x"})
        await conversation.run(results={"b": "page y"})
        assert [content for role, content in model.last if role == "tool"][1] == "page y"
        assert "page x" not in str(model.last)


async def test_a_failed_turn_with_results_is_resumed_with_them(home: Home) -> None:
    model = Model(BOTH, asks(call("look", "l", at="it")), OVERLOADED, "Fine.")
    async with AsyncConversation(home.agent(model.agent(tools=[look])), store=home.store) as conversation:
        await conversation.run("Read both.")
        await fails_on(conversation, results={"a": "page x", "b": "page y"})
        turn = await conversation.resume()
        assert [(one.call_id, one.status) for one in results(turn.events)] == [
            ("a", "done"),
            ("b", "done"),
            ("l", "done"),
        ]
        assert model.shown[3] == model.shown[2]
        assert (await conversation.verify()).ok


# Branches.


async def test_a_fork_at_an_open_call_answers_it_apart(home: Home) -> None:
    model = Model(BOTH, "Here.", "There.")
    async with AsyncConversation(home.agent(model.agent()), store=home.store) as conversation:
        turn = await conversation.run("Read both.")
        fork = await conversation.fork()
        at_turn = await conversation.fork(at=turn)
        await conversation.run(results={"a": "here x", "b": "here y"})
        await fork.run(results={"a": "there x"})
        assert [message["content"] for message in model.shown[1]][2:] == ["here x", "here y"]
        assert [message["content"] for message in model.shown[2]][2] == "there x"
        with pytest.raises(Unpaired, check=Unpaired.call_not_open.made):
            await at_turn.run(results={"z": "nobody asked"})
        inside = [event.id for event in turn.events if isinstance(event, Event)][-2]
        with pytest.raises(BadPosition):  # between two calls of one answer
            await conversation.fork(at=inside)
        for one in (conversation, fork, at_turn):
            assert (await one.verify()).ok
        await fork.close()
        await at_turn.close()


async def test_a_rewind_opens_the_calls_again(home: Home) -> None:
    model = Model(BOTH, "Once.", "Again.")
    async with AsyncConversation(home.agent(model.agent()), store=home.store) as conversation:
        first = await conversation.run("Read both.")
        second = await conversation.run(results={"a": "page x", "b": "page y"})
        await conversation.rewind(before=second)
        turn = await conversation.run(results={"a": "other x", "b": "other y"})
        assert turn.text == "Again."
        assert model.last[-2:] == [("tool", "other x"), ("tool", "other y")]
        await conversation.rewind(before=first)
        with pytest.raises(Unpaired, check=Unpaired.call_not_open.made):
            await conversation.run(results={"a": "too late"})


# Elsewhere.


async def test_who_opens_it_anew_can_answer(home: Home) -> None:
    model = Model(BOTH, "Fine.")
    agent = home.agent(model.agent())
    async with AsyncConversation(agent, store=home.store, conversation_id="shared") as conversation:
        handed = (await conversation.run("Read both.")).handed
    async with await AsyncConversation.open("shared", store=home.store) as again:
        last = (await again.turns()).items[-1]
        assert last.handed == handed
        turn = await again.run(results={one.id: f"read {one.arguments}" for one in last.handed})
        assert turn.text == "Fine."
        assert model.last[-1] == ("tool", 'read {"page": "y"}')


async def test_a_stream_tells_what_is_handed_and_takes_results(home: Home) -> None:
    model = Model(BOTH, "Fine.")
    watcher = Watcher()
    async with AsyncConversation(home.agent(model.agent()), store=home.store, callbacks=[watcher]) as conversation:
        async with conversation.run_stream("Read both.") as stream:
            updates = [update async for update in stream]
        assert isinstance(updates[-1], Turn)
        assert [one.id for one in updates[-1].handed] == ["a", "b"]
        async with conversation.run_stream(results={"a": "page x"}) as stream:
            last = [update async for update in stream][-1]
        assert isinstance(last, Turn)
        assert last.text == "Fine."
        assert watcher.of(TurnStarted)[-1].input == ()
        with pytest.raises(Unpaired, check=Unpaired.call_not_open.made):
            async with conversation.run_stream(results={"a": "page x"}) as stream:
                [update async for update in stream]


def test_the_same_without_async(home: Home) -> None:
    model = Model(BOTH, "Fine.", "Again.")
    with Conversation(home.agent(model.agent()), store=home.store) as conversation:
        turn = conversation.run("Read both.")
        with conversation.run_stream(results={one.id: "a page" for one in turn.handed}) as stream:
            last = list(stream)[-1]
            assert isinstance(last, Turn)
            assert last.text == "Fine."
        with pytest.raises(Unpaired, check=Unpaired.call_not_open.made):
            conversation.run(results={"a": "a page"})


async def test_a_side_question_while_calls_are_open_leaves_them_open(home: Home) -> None:
    model = Model(BOTH, "Aside.", "Fine.")
    async with AsyncConversation(home.agent(model.agent()), store=home.store) as conversation:
        await conversation.run("Read both.")
        assert (await conversation.ask("By the way?")).text == "Aside."
        assert [role for role, _ in model.last] == ["user", "assistant", "tool", "tool", "user"]
        await conversation.run(results={"a": "page x", "b": "page y"})
        assert model.last[-2:] == [("tool", "page x"), ("tool", "page y")]


@dataclass
class Verdict:
    verdict: str


async def test_a_turn_that_hands_calls_has_no_output_yet(home: Home) -> None:
    model = Model(BOTH, '{"verdict":"good"}')
    async with AsyncConversation(home.agent(model.agent(output=Verdict)), store=home.store) as conversation:
        turn = await conversation.run("Read both.")
        assert (turn.outcome, turn.output) == ("committed", None)
        answered = await conversation.run(results={"a": "page x"})
        assert kinds(answered.events)[-1] == "assistant_message"
        assert answered.output == (Verdict("good") if not isinstance(home, RemoteHome) else answered.output)
