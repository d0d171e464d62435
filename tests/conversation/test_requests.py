"""Looking at requests: what is shown is what is sent, byte for byte, and why its cache was missed."""

from pathlib import Path
from typing import Any

import pytest
from tests.conversation.support.agents import agent_of, asks, call, script_of, served
from tests.conversation.support.homes import Home

from forkpoint import Agent, AsyncConversation, Conversation, TurnFailed, tool
from forkpoint.errors import NoSuchTurn, NotWhole
from forkpoint.llm import LLM
from forkpoint.testing import Fault, ModelServer, Reply, SimulatedCache

pytestmark = pytest.mark.anyio


@tool
def look(at: str) -> str:
    """Looks."""
    return f"{at} is fine"


def model(server: ModelServer, wire: Any) -> LLM:
    if wire == "messages":
        return LLM("anthropic/test", base_url=server.root, retries=served(server).retries)
    return served(server, api=wire)


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
async def test_what_is_shown_before_a_run_is_what_the_run_then_sends(home: Home, wire: Any) -> None:
    answers = script_of(["Hello.", asks(call("look", at="a"), call("look", at="b")), "Fine.", "Bye."])
    with ModelServer(answers) as server:
        agent = Agent(model(server, wire), instructions="Be brief.", tools=[look])
        async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
            for message in ("Hi!", "And the disk?", "Thanks."):
                shown = await conversation.request(message)
                before = len(server.requests)
                await conversation.run(message)
                assert shown.body.encode() == server.requests[before].body
                headers = dict(server.requests[before].headers)
                assert {name: headers[name] for name, _ in shown.headers} == dict(shown.headers)
                if wire != "messages":
                    assert shown.key == server.requests[before].key


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
async def test_what_was_sent_can_be_shown_again_for_each_turn(home: Home, wire: Any) -> None:
    answers = script_of(["Hello.", asks(call("look", at="a"), call("look", at="b")), "Fine.", "Bye."])
    with ModelServer(answers) as server:
        agent = Agent(model(server, wire), instructions="Be brief.", tools=[look])
        async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
            turns = [await conversation.run(message) for message in ("Hi!", "And the disk?", "Thanks.")]
            assert (await conversation.request()).body.encode() == server.requests[3].body
            for turn, last in zip(turns, (0, 2, 3), strict=True):
                shown = await conversation.request(turn=turn.id)
                assert shown.body.encode() == server.requests[last].body
                assert shown.prefix == turn.steps[-1].prefix
                assert shown.blocks == turn.steps[-1].blocks


async def test_what_is_in_common_with_the_request_before_is_counted(home: Home) -> None:
    with ModelServer(script_of(["Hello.", "Bye."]), cache=SimulatedCache()) as server:
        async with AsyncConversation(
            home.agent(Agent(served(server), instructions="Be brief.")), store=home.store
        ) as conversation:
            first = await conversation.request("Hi!")
            assert (first.shared, first.why, first.cached) == (0, "there is no request before it", None)
            await conversation.run("Hi!")
            second = await conversation.request("Thanks.")
            assert second.shared == first.blocks
            assert second.why == "it continues the request before it"
            await conversation.run("Thanks.")
            sent = await conversation.request()
            assert sent.shared == first.blocks
            assert sent.cached is not None


async def test_after_another_agent_it_says_what_changed(home: Home) -> None:
    agent = agent_of(["one", "two"], instructions="Be long.")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        await conversation.run("1")
        await conversation.change_agent(home.agent(Agent(agent.llm, instructions="Be brief.", tools=[look])))
        shown = await conversation.request("2")
        assert shown.shared == 0
        assert "instructions" in shown.why
        assert "tool look added" in shown.why
        await conversation.run("2")
        assert "instructions" in (await conversation.request()).why
        assert "no request before" in (await conversation.request(turn=(await conversation.turns()).items[0].id)).why


async def test_after_another_model_it_says_so_and_shows_both(home: Home) -> None:
    with ModelServer(script_of(["one", "two"])) as server:
        async with AsyncConversation(home.agent(Agent(served(server))), store=home.store) as conversation:
            first = await conversation.run("1")
            await conversation.change_agent(home.agent(Agent(LLM("openai/other", base_url=server.url))))
            shown = await conversation.request("2")
            assert "model test to other" in shown.why
            await conversation.run("2")
            assert shown.body.encode() == server.requests[1].body
            assert "model test to other" in (await conversation.request()).why
            assert (await conversation.request(turn=first.id)).body.encode() == server.requests[0].body


async def test_a_request_is_shown_with_the_settings_of_its_time(home: Home) -> None:
    with ModelServer(script_of(["one", "two"])) as server:
        async with AsyncConversation(
            home.agent(Agent(served(server, temperature=0.5))), store=home.store
        ) as conversation:
            turns = [await conversation.run("1")]
            await conversation.change_agent(home.agent(Agent(served(server, temperature=1.0))))
            turns.append(await conversation.run("2"))
            for turn, sent in zip(turns, server.requests, strict=True):
                assert (await conversation.request(turn=turn.id)).body.encode() == sent.body


async def test_after_another_wire_it_says_so(home: Home) -> None:
    with ModelServer(script_of(["one", "two"])) as server:
        async with AsyncConversation(home.agent(Agent(served(server, api="chat"))), store=home.store) as conversation:
            await conversation.run("1")
            await conversation.change_agent(home.agent(Agent(served(server, api="responses"))))
            shown = await conversation.request("2")
            assert "wire chat to responses" in shown.why
            await conversation.run("2")
            assert shown.body.encode() == server.requests[1].body


async def test_a_failed_try_is_not_the_request_before(home: Home) -> None:
    overloaded = Reply("x", fault=Fault("overloaded"))
    async with AsyncConversation(home.agent(agent_of(["one", overloaded, "two"])), store=home.store) as conversation:
        first = await conversation.run("1")
        with pytest.raises(TurnFailed) as failed:
            await conversation.run("2")
        assert (await conversation.request()).prefix == first.steps[0].prefix
        with pytest.raises(NoSuchTurn):
            await conversation.request(turn=failed.value.id)


async def test_before_anything_was_sent_there_is_nothing_to_show(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["one"])), store=home.store) as conversation:
        with pytest.raises(NoSuchTurn):
            await conversation.request()
        await conversation.update_state({"a": 1})
        with pytest.raises(NoSuchTurn):
            await conversation.request()


async def test_looking_changes_nothing_and_asks_nobody(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["one"])), store=home.store) as conversation:
        await conversation.run("1")
        before = await conversation.info()
        await conversation.request("2")
        await conversation.request()
        assert await conversation.info() == before
        assert (await conversation.stats()).spent.calls == 1


async def test_looking_at_a_new_conversation_does_not_make_it(tmp_path: Path) -> None:
    async with AsyncConversation(agent_of(["one"]), store=tmp_path / "a.db") as conversation:
        shown = await conversation.request("1")
        assert '"1"' in shown.body
        assert (await AsyncConversation.list(store=tmp_path / "a.db")).items == ()


async def test_what_is_no_message_cannot_be_shown(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["one"])), store=home.store) as conversation:
        with pytest.raises(NotWhole):
            await conversation.request(" ")


def test_it_is_the_same_without_await(home: Home) -> None:
    with (
        ModelServer(script_of(["Hello."])) as server,
        Conversation(home.agent(Agent(served(server))), store=home.store) as one,
    ):
        shown = one.request("Hi!")
        one.run("Hi!")
        assert shown.body.encode() == server.last.body == one.request().body.encode()
