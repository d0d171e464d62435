"""A conversation from a list of messages, and its history as such a list, in both homes."""

from typing import Any

import pytest
from tests.conversation.support.agents import agent_of, messages_of, said
from tests.conversation.support.homes import Home

from forkpoint import AsyncConversation, Conversation
from forkpoint.errors import AlreadyExists, BadArgument, BadMessages
from forkpoint.events import Imported
from forkpoint.testing import Heard, Reply

pytestmark = pytest.mark.anyio

CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
LIST: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "What is it?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "a tree"},
    {"role": "assistant", "content": "A tree."},
]
BLOCKS: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "What is it?"}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]},
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "a"}]}],
    },
    {"role": "assistant", "content": [{"type": "text", "text": "A tree."}]},
]


async def test_the_list_is_history_before_any_turn_and_the_next_turn_goes_on_from_it(home: Home) -> None:
    heard: list[Any] = []

    def reply(call: Heard) -> Reply:
        heard.extend(messages_of(call))
        return Reply("An oak.")

    agent = home.agent(agent_of(reply))
    async with await AsyncConversation.from_messages(
        LIST, agent=agent, store=home.store, title="Trees"
    ) as conversation:
        first, *rest = await conversation.events()
        assert first.body == Imported("openai messages", len(rest))
        assert (await conversation.info()).title == "Trees"
        assert (await conversation.turns()).items == ()
        assert await conversation.messages() == LIST
        turn = await conversation.run("Which one?")
        assert [(one["role"], one["content"]) for one in heard] == [
            *((one["role"], one["content"]) for one in LIST),
            ("user", "Which one?"),
        ]
        assert said(turn.events) == [("user", "Which one?"), ("assistant", "An oak.")]
        assert (await conversation.messages())[-1] == {"role": "assistant", "content": "An oak."}
        assert (await conversation.verify()).ok


async def test_a_list_in_anthropic_s_form_comes_back_in_it(home: Home) -> None:
    agent = home.agent(agent_of([]))
    async with await AsyncConversation.from_messages(BLOCKS, agent=agent, store=home.store) as conversation:
        assert await conversation.messages("anthropic") == BLOCKS
        assert [one["role"] for one in await conversation.messages("openai")] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        fork = await conversation.fork()
        assert await fork.messages("anthropic") == BLOCKS
        await fork.close()
        with pytest.raises(BadArgument, match="openai or anthropic"):
            await conversation.messages("gemini")  # type: ignore[arg-type]


async def test_a_list_that_ends_with_the_user_s_words_is_answered_by_going_on(home: Home) -> None:
    agent = home.agent(agent_of(["An oak."]))
    ends = [*LIST, {"role": "user", "content": "Which one?"}]
    async with await AsyncConversation.from_messages(ends, agent=agent, store=home.store) as conversation:
        assert (await conversation.go_on()).text == "An oak."


async def test_a_list_with_one_wrong_message_makes_no_conversation(home: Home) -> None:
    agent = home.agent(agent_of([]))
    wrong = [*LIST, {"role": "tool", "tool_call_id": "call_1", "content": "again"}]
    with pytest.raises(BadMessages, match=r"Message 5 of the list.* \(messages\[5\]\)"):
        await AsyncConversation.from_messages(wrong, agent=agent, store=home.store)
    assert (await AsyncConversation.list(store=home.store)).items == ()


async def test_a_name_that_is_taken_is_refused_and_nothing_is_added_there(home: Home) -> None:
    agent = home.agent(agent_of(["ok"]))
    async with AsyncConversation(agent, conversation_id="tree", store=home.store) as there:
        await there.run("hello")
        with pytest.raises(AlreadyExists):
            await AsyncConversation.from_messages(LIST, agent=agent, conversation_id="tree", store=home.store)
        assert [one["content"] for one in await there.messages()] == ["hello", "ok"]


def test_the_synchronous_conversation_has_both(home: Home) -> None:
    with Conversation.from_messages(LIST, agent=home.agent(agent_of([])), store=home.store) as conversation:
        assert isinstance(conversation, Conversation)
        assert conversation.messages() == LIST


async def test_a_draft_has_no_messages(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of([])), store=home.store) as conversation:
        assert await conversation.messages() == []
