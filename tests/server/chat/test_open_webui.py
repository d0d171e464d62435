"""A session as Open WebUI has it: whole lists, the chat's id in a header of its own, and small requests beside."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.chat.lists_of_messages import Chat, Message, answer, assistant, chatting, put_together, refused, user

from forkpoint.server.settings import ConversationHeader, ServerSettings

HEADER = "X-OpenWebUI-Chat-Id"
TITLE = "### Task:\nGenerate a concise title.\n### Chat History:\n<chat_history>\nUSER: one\n</chat_history>"


class WebUI:
    """What its server sends for one chat."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self.id = str(uuid.uuid4())

    def ask(self, messages: list[Message], id: str | None = None) -> str:
        """An answer in a chat, streamed, as it always asks for it."""
        chunks = self.chat.stream(
            messages,
            headers={HEADER: id or self.id, "X-OpenWebUI-User-Id": "u1"},
            stream_options={"include_usage": True},
        )
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["total_tokens"] > 0
        message, finish = put_together(chunks)
        assert finish == "stop"
        return str(message["content"])

    def task(self, status: str = "side") -> str:
        """A title: one message, not streamed, with the same header."""
        headers = {HEADER: self.id, "X-OpenWebUI-User-Id": "u1"}
        body: dict[str, Any] = {"model": "helper:side", "stream": False, "max_completion_tokens": 1000}
        response = self.chat.post([user(TITLE)], headers=headers, **body)
        assert response.headers["x-conversation-status"] == status
        return str(answer(response)["content"])

    @property
    def heard(self) -> list[str]:
        assert self.chat.model is not None
        return [line for line in self.chat.model.heard if not line.startswith(("system", "thought"))]


@pytest.fixture(scope="module")
def chat() -> Iterator[Chat]:
    settings = ServerSettings(conversation_headers=(ConversationHeader(HEADER, "full"),))
    with chatting("open-webui", settings=settings) as running:
        yield running


@pytest.fixture
def webui(chat: Chat) -> WebUI:
    return WebUI(chat)


def test_a_whole_session(webui: WebUI) -> None:
    chat, id = webui.chat, webui.id
    names = [model["id"] for model in chat.http.get("/v1/models").json()["data"]]
    assert {"helper", "helper:side"} <= set(names), "it takes a task model only if it is listed"

    # A chat of two questions, with a title asked for after the first.
    first = webui.ask([user("one")])
    webui.task()
    look = [user("one"), assistant(first), user('use look {"what":"it"}')]
    second = webui.ask(look)
    old = chat.history(id)
    assert len(chat.get(f"/{id}/turns")["items"]) == 2, "the title is no turn"

    # The first answer again: a branch at the root.
    again = webui.ask([user("one")])
    assert again != first
    assert webui.heard == ["user: one"]
    assert chat.history(id) == ["user: one", f"assistant: {again}"]
    (aside,) = chat.aside(id)
    assert chat.history(aside) == old
    assert len(chat.sides(id)) == 1

    # The first message edited, and on from there.
    edited = webui.ask([user("one, edited")])
    assert webui.heard == ["user: one, edited"]
    webui.ask([user("one, edited"), assistant(edited), user("two")])
    assert webui.heard == ["user: one, edited", f"assistant: {edited}", "user: two"]
    webui.task()

    # Back to the first answer of all, with what our tools did there.
    webui.ask([*look, assistant(second), user("three")])
    assert webui.heard[:2] == ["user: one", f"assistant: {first}"]
    assert webui.heard[-1] == "user: three"
    assert "result: saw it" in webui.heard
    assert chat.events(id, "imported") == []

    # Back to the second answer to the first question.
    webui.ask([user("one"), assistant(again), user("four")])
    assert webui.heard == ["user: one", f"assistant: {again}", "user: four"]

    paths = list(chat.everything(id).values())
    asked = [[line for line in path if line.startswith("user")] for path in paths]
    assert asked[0] == ["user: one", "user: four"], "the name points to the newest"
    for path in (["user: one, edited", "user: two"], ["user: one", 'user: use look {"what":"it"}', "user: three"]):
        assert path in asked, "nothing is lost"
    assert id in chat.names()
    said = " ".join(line for path in paths for line in path)
    assert "Task" not in said


def test_a_title_can_be_asked_for_while_an_answer_is_on_its_way(webui: WebUI) -> None:
    running = webui.chat.soon([user('use hold {"at":"title"}')], headers={HEADER: webui.id}, stream=True)
    webui.chat.gates.reached("title")
    assert "Generate a concise title" in webui.task()
    assert webui.id not in webui.chat.names(), "a first answer that is not yet there is a draft"
    webui.chat.gates.open("title")
    assert "[DONE]" in running.result(20).text
    assert webui.id in webui.chat.names()


def test_the_very_same_request_twice_at_once_is_one_answer_and_one_409(webui: WebUI) -> None:
    asked = [user('use hold {"at":"both"}')]
    running = webui.chat.soon(asked, headers={HEADER: webui.id}, stream=True)
    webui.chat.gates.reached("both")
    response = webui.chat.post(asked, headers={HEADER: webui.id}, stream=True)
    refused(response, 409, "conversation_busy")
    assert response.headers["x-should-retry"] == "false"
    webui.chat.gates.open("both")
    assert running.result(20).status_code == 200
    assert webui.chat.aside(webui.id) == []


def test_two_temporary_chats_of_one_browser_have_the_same_id_and_do_not_see_each_other(webui: WebUI) -> None:
    id = "local:Ab3_-xYz0123456789aB"
    first = webui.ask([user("a secret")], id)
    webui.ask([user("a secret"), assistant(first), user("more")], id)
    webui.ask([user("something else")], id)
    assert webui.heard == ["user: something else"]
    assert webui.chat.get(f"/{id}")["name"] == id


def test_without_a_chat_it_is_stateless(webui: WebUI) -> None:
    before = webui.chat.names()
    assert answer(webui.chat.post([user("one")], headers={HEADER: ""}))["content"]
    assert answer(webui.chat.post([user("one")]))["content"]
    assert webui.chat.names() == before


def test_tools_that_it_runs_itself_come_back_as_a_longer_list(webui: WebUI) -> None:
    """And later, from its own database, with each step as a message of its own."""
    tool = {"type": "function", "function": {"name": "clock", "description": "", "parameters": None}}
    headers = {HEADER: webui.id}
    message, _ = put_together(webui.chat.stream([user("use clock")], headers=headers, tools=[tool]))
    (call,) = message["tool_calls"]
    steps = [
        user("use clock"),
        assistant("On it.", (call["id"], "clock", "{}")),
        {"role": "tool", "tool_call_id": call["id"], "content": "noon"},
    ]
    second, _ = put_together(webui.chat.stream(steps, headers=headers, tools=[tool]))
    assert second["content"] == "Done: noon"
    webui.chat.stream([*steps, assistant("Done: noon"), user("Thanks")], headers=headers, tools=[tool])
    assert webui.heard == [
        "user: use clock",
        "assistant: On it.",
        "call: clock {}",
        "result: noon",
        "assistant: Done: noon",
        "user: Thanks",
    ]
    assert (webui.chat.aside(webui.id), webui.chat.events(webui.id, "imported")) == ([], [])


def test_to_continue_an_answer_is_400_and_changes_nothing(webui: WebUI) -> None:
    first = webui.ask([user("one")])
    before = webui.chat.standing(webui.id)
    refused(webui.chat.post([user("one"), assistant(first)], headers={HEADER: webui.id}), 400, "no_new_user_message")
    assert webui.chat.standing(webui.id) == before


def test_an_answer_that_somebody_edited_there_is_what_the_model_gets(webui: WebUI) -> None:
    first = webui.ask([user("one")])
    thought = '<details type="reasoning" done="true" duration="1">\n<summary>Thought</summary>\n> Hm\n</details>\n'
    second = webui.ask([user("one"), assistant(thought + first), user("two")])
    assert webui.chat.aside(webui.id) == [], "how it shows thoughts is no edit"
    webui.ask([user("one"), assistant("Edited."), user("two"), assistant(second), user("three")])
    assert webui.heard == ["user: one", "assistant: Edited.", "user: two", f"assistant: {second}", "user: three"]
    assert len(webui.chat.aside(webui.id)) == 1
