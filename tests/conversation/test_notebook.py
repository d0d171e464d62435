"""How turns, conversations and trees look in a notebook, whoever wrote what is in them."""

import re
from html.parser import HTMLParser

import pytest
from tests.conversation.support.agents import agent_of, asks, call
from tests.conversation.support.homes import Home

from forkpoint import AsyncConversation, Conversation, tool

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)> & \"'"
PLAIN = {"div", "p", "b", "ul", "li", "code", "pre", "blockquote"}


class Tags(HTMLParser):
    """The elements of a text, each of which has its end, and what stands in them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.used: set[str] = set()
        self.words = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert attrs in ([], [("style", "white-space: pre-wrap")])
        self.used.add(tag)
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def shown(value: object) -> str:
    """The words that a value shows. There is nothing but plain elements around them."""
    html = value._repr_html_()  # type: ignore[attr-defined]
    read = Tags(html)
    assert read.used <= PLAIN
    return read.words


@tool
def look(at: str) -> str:
    """Looks."""
    return EVIL


def test_whatever_anybody_wrote_is_shown_as_text(home: Home) -> None:
    agent = home.agent(agent_of([asks(call("look", at=EVIL)), EVIL], tools=[look]))
    with Conversation(agent, store=home.store, title=EVIL) as conversation:
        turn = conversation.run(EVIL)
        words = shown(turn)
        assert words.count("<script>alert(1)</script>") == 3, "the question, the call and the answer"
        assert words.startswith("Turn committed")
        assert EVIL in shown(conversation)
        assert EVIL in shown(conversation.tree())
        assert shown(conversation.tree()[0]) == shown(conversation.tree())


def test_a_conversation_shows_its_last_turns_and_a_tree_its_branches(home: Home) -> None:
    agent = home.agent(agent_of([f"answer {n}" for n in range(5)]))
    with Conversation(agent, conversation_id="tree", store=home.store) as conversation:
        for n in range(5):
            conversation.run(f"question {n}")
        assert re.findall(r"answer \d", shown(conversation)) == ["answer 2", "answer 3", "answer 4"]
        with conversation.fork(conversation_id="branch"):
            words = shown(conversation.tree())
            assert words.index("tree") < words.index("branch")


def test_what_is_long_is_cut(home: Home) -> None:
    with Conversation(home.agent(agent_of(["x" * 3_000])), store=home.store) as conversation:
        words = shown(conversation.run("go"))
        assert "x" * 2_000 + "… [1,000 more characters]" in words


def test_an_object_whose_store_is_not_open_shows_what_it_knows_and_reads_nothing() -> None:
    conversation = Conversation(agent_of([]), conversation_id="new", store="http://127.0.0.1:9")
    assert shown(conversation).startswith("Conversation new")
    conversation.close()
    assert shown(conversation).startswith("Conversation new")


@pytest.mark.anyio
async def test_an_async_conversation_shows_what_the_object_knows(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["ok"])), conversation_id="a", store=home.store) as conversation:
        conversation.send_message("hello")
        assert shown(conversation).startswith("Conversation a")
        assert "1 messages to run" in shown(conversation)
        await conversation.run()
        assert (await conversation.tree())[0].info.name == "a"
