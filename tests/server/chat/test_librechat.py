"""A session as LibreChat has it: whole lists, a title asked for at the same time, and headers that may be empty."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.chat.lists_of_messages import (
    NAME,
    Chat,
    Message,
    answer,
    assistant,
    chatting,
    put_together,
    system,
    user,
)

from forkpoint.server.settings import ConversationHeader, ServerSettings

ALWAYS: dict[str, Any] = {"temperature": 1, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "user": "665f1c"}


@pytest.fixture(scope="module")
def chat() -> Iterator[Chat]:
    settings = ServerSettings(conversation_headers=(ConversationHeader(NAME, "full"),))
    with chatting("librechat", settings=settings) as running:
        yield running


@pytest.fixture
def id() -> str:
    """Of a new chat: it is made before the model is asked."""
    return str(uuid.uuid4())


def ask(chat: Chat, id: str, messages: list[Message]) -> str:
    message, finish = put_together(chat.stream(messages, id, **ALWAYS))
    assert finish == "stop"
    return str(message["content"])


def heard(chat: Chat) -> list[str]:
    assert chat.model is not None
    return [line for line in chat.model.heard if not line.startswith(("system", "thought"))]


@pytest.mark.parametrize(
    "title",
    [
        [system("Provide a concise title of this conversation: one")],
        [user("Provide a concise title of this conversation: one")],
    ],
    ids=["system", "user"],
)
def test_the_title_is_asked_for_while_the_first_answer_is_on_its_way(chat: Chat, id: str, title: list[Message]) -> None:
    running = chat.soon([user('use hold {"at":"' + id + '"}')], id, stream=True, **ALWAYS)
    chat.gates.reached(id)
    response = chat.post(title, id, model="helper:side", **ALWAYS)
    assert "Provide a concise title" in answer(response)["content"]
    assert (response.headers[NAME], response.headers["X-Conversation-Status"]) == (id, "side")
    chat.gates.open(id)
    finished = running.result(20)
    assert finished.headers["X-Conversation-Status"] == "created"
    assert "[DONE]" in finished.text
    users = [line for line in chat.history(id) if line.startswith("user")]
    assert users == ['user: use hold {"at":"' + id + '"}']
    assert len(chat.get(f"/{id}/turns")["items"]) == 1
    (side,) = chat.sides(id)
    assert "title" in chat.history(side)[-2]


@pytest.mark.parametrize("name", ["", "{{LIBRECHAT_BODY_CONVERSATIONID}}", "undefined", "a2f7f1a5"])
def test_models_are_listed_whatever_the_headers_say(chat: Chat, name: str) -> None:
    response = chat.http.get("/v1/models", headers={NAME: name, "X-Conversation-History": "?"})
    assert response.status_code == 200
    listed = response.json()
    assert listed["object"] == "list"
    assert {"helper", "helper:side"} <= {model["id"] for model in listed["data"]}
    assert chat.http.get("/v1/models/helper:side", headers={NAME: name}).json()["id"] == "helper:side"


def test_an_absent_id_is_an_empty_header_and_stateless(chat: Chat) -> None:
    before = chat.names()
    response = chat.post([user("one")], "", **ALWAYS)
    assert answer(response)["content"]
    assert NAME not in response.headers
    assert chat.names() == before


def test_an_id_that_was_not_filled_in_is_400_and_never_a_chat_that_all_share(chat: Chat) -> None:
    before = chat.names()
    response = chat.post([user("one")], "{{LIBRECHAT_BODY_CONVERSATIONID}}", **ALWAYS)
    assert response.status_code == 400
    assert chat.names() == before


def test_a_session_with_an_edit_and_a_trimmed_list(chat: Chat, id: str) -> None:
    messages: list[Message] = []
    for question in ("one", 'use look {"what":"it"}', "three"):
        messages.append(user(question))
        messages.append(assistant(ask(chat, id, messages)))
    ask(chat, id, [*messages[2:], user("four")])
    assert next(line for line in heard(chat) if line.startswith("user")) == "user: one", "a window goes on"
    assert "result: saw it" in heard(chat)
    ask(chat, id, [*messages[:4], user("three, edited")])
    assert heard(chat)[-1] == "user: three, edited"
    assert len(chat.aside(id)) == 1
    assert chat.get(f"/{id}")["tags"] == {"user": "665f1c"}


def test_its_own_fork_is_a_new_id_with_a_copied_list(chat: Chat, id: str) -> None:
    first = ask(chat, id, [user("one")])
    other = str(uuid.uuid4())
    ask(chat, other, [user("one"), assistant(first), user("two")])
    assert heard(chat) == ["user: one", f"assistant: {first}", "user: two"]
    assert {id, other} <= chat.names()
    assert [event["count"] for event in chat.events(other, "imported")] == [2]
