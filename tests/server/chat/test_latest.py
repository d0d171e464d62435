"""Clients of which only the newest message counts: what their first list says is history, and the rest is ours."""

from collections.abc import Iterator

import pytest
from tests.server.chat.lists_of_messages import Chat, Model, answer, assistant, chatting, refused, result, system, user

from forkpoint.agent import Agent
from forkpoint.server.settings import ServerSettings

OTHER = Model("latest-other")


@pytest.fixture(scope="module")
def chat() -> Iterator[Chat]:
    others = {"other": Agent(OTHER.llm, instructions="Be short.")}
    with chatting("latest", others=others) as running:
        yield running


def heard(chat: Chat) -> list[str]:
    assert chat.model is not None
    return chat.model.heard


# The first request.


def test_the_whole_first_list_is_imported_and_the_model_sees_all_of_it(chat: Chat) -> None:
    before = [user("one"), assistant("First."), user("two"), assistant("Second.")]
    said = chat.say([*before, user("three")], "imported")
    lived = ["user: one", "assistant: First.", "user: two", "assistant: Second.", "user: three"]
    assert heard(chat) == ["system: Be kind.", *lived]
    assert chat.history("imported") == [*lived, f"assistant: {said}"]
    (marked,) = chat.events("imported", "imported")
    assert marked == {"kind": "imported", "source": "chat completions", "count": 4}
    kinds = [event["kind"] for event in chat.events("imported")]
    assert kinds.index("imported") < kinds.index("user_message"), "what is imported stands behind the mark"


def test_a_first_list_of_one_message_imports_nothing(chat: Chat) -> None:
    chat.say([user("one")], "plain")
    assert chat.events("plain", "imported") == []


def test_imported_calls_have_their_results(chat: Chat) -> None:
    before = [
        user("Weather?"),
        assistant("A moment.", ("c1", "weather", '{"in": "Rome"}'), ("c2", "weather", "{}")),
        result("c2", "rain"),
        result("c1", "sun"),
        assistant("Sun and rain."),
    ]
    said = chat.say([*before, user("Thanks")], "calls")
    lived = [
        "user: Weather?",
        "assistant: A moment.",
        'call: weather {"in": "Rome"}',
        "call: weather {}",
        "result: sun",
        "result: rain",
        "assistant: Sun and rain.",
        "user: Thanks",
    ]
    assert chat.history("calls") == [*lived, f"assistant: {said}"]
    assert heard(chat) == ["system: Be kind.", *lived]
    assert {call["call_id"] for call in chat.events("calls", "tool_call")} == {"c1", "c2"}


def test_an_imported_call_without_a_result_is_recorded_as_not_answered(chat: Chat) -> None:
    before = [user("Weather?"), assistant(None, ("c1", "weather", "{}"), ("c2", "weather", "{}")), result("c1", "sun")]
    chat.say([*before, user("Never mind")], "unanswered")
    assert chat.history("unanswered")[3:5] == ["result: sun", "result (not_answered):"]
    assert [event["status"] for event in chat.events("unanswered", "tool_result")[1:]] == ["not_answered"]
    assert sum(line.startswith("result:") for line in heard(chat)) == 2, "no model takes a call without a result"


def test_a_result_whose_call_was_trimmed_away_is_left_out_and_counted(chat: Chat) -> None:
    said = chat.say([result("c0", "lost"), assistant("So it is."), user("Go on")], "orphan")
    assert chat.history("orphan") == ["assistant: So it is.", "user: Go on", f"assistant: {said}"]
    assert not any("lost" in line for line in heard(chat))
    (marked,) = chat.events("orphan", "imported")
    assert (marked["count"], "1 result" in marked["source"]) == (1, True)


# Later requests.


@pytest.mark.parametrize(
    "before",
    [
        [],
        [user("something else"), assistant("Never said.")],
        [user("one")],
        [user("one"), assistant("Edited"), user("x"), assistant("y"), user("z"), assistant("a")],
        [result("c9", "of nobody"), assistant("So.")],
        [assistant(None, ("c9", "weather", "{}")), result("c9", "sun"), assistant("Sun.")],
    ],
)
def test_later_only_the_newest_message_counts_whatever_else_the_list_says(
    chat: Chat, before: list[dict[str, str]]
) -> None:
    name = f"later-{len(before)}-{len(str(before))}"
    first = chat.say([user("one")], name)
    second = chat.say([*before, user("two")], name)
    lived = ["user: one", f"assistant: {first}", "user: two"]
    assert chat.history(name) == [*lived, f"assistant: {second}"]
    assert [line for line in heard(chat) if not line.startswith(("system", "thought"))] == lived
    assert chat.aside(name) == []


def test_a_name_that_was_made_through_the_native_api_is_continued(chat: Chat) -> None:
    chat.http.post("/api/conversations", json={"id": "native"})
    chat.http.post("/api/conversations/native/turns", json={"message": "one"})
    response = chat.post([user("not this"), assistant("nor this"), user("two")], "native")
    assert response.headers["X-Conversation-Status"] == "continued"
    assert [line for line in chat.history("native") if line.startswith("user")] == ["user: one", "user: two"]


# What is no new message.


@pytest.mark.parametrize(
    "messages",
    [
        [system("Only this.")],
        [user("one"), assistant("First.")],
        [user("one"), assistant("First."), user("  \n ")],
        [user("one"), assistant("First."), {"role": "user", "content": []}],
        [user("one"), assistant("First."), system("And so on.")],
    ],
)
@pytest.mark.parametrize("history", ["latest", "full"])
def test_without_a_new_message_nothing_older_is_used(chat: Chat, history: str, messages: list[dict[str, str]]) -> None:
    name = f"no-news-{history}"
    headers = {"X-Conversation-History": history}
    if name not in chat.names():
        assert chat.post(messages, name, headers).status_code == 400
        chat.say([user("one")], name, headers)
    before = chat.standing(name)
    refused(chat.post(messages, name, headers), 400, "no_new_user_message")
    assert chat.standing(name) == before


def test_system_messages_after_the_new_message_do_not_hide_it(chat: Chat) -> None:
    chat.say([user("one"), system("Speak up.")], "system-last")
    assert heard(chat) == ["system: Be kind.\n\nSpeak up.", "user: one"]


# Instructions.


def test_the_first_requests_instructions_stay(chat: Chat) -> None:
    chat.say([system("In French."), {"role": "developer", "content": "And loud."}, user("one")], "stays")
    chat.say([system("In German."), user("two")], "stays")
    assert heard(chat)[0] == "system: Be kind.\n\nIn French.\n\nAnd loud."
    chat.say([user("three")], "stays")
    assert heard(chat)[0] == "system: Be kind.\n\nIn French.\n\nAnd loud."
    assert len(chat.events("stays", "manifest_changed")) == 1


def test_later_instructions_apply_where_the_server_follows_them() -> None:
    with chatting("latest-follow", settings=ServerSettings(system="follow")) as chat:
        for text in ("In French.", "In German.", "In German."):
            chat.say([system(text), user("Hello")], "follows")
            assert heard(chat)[0] == f"system: Be kind.\n\n{text}"
        chat.say([user("Hello")], "follows")
        assert heard(chat)[0] == "system: Be kind.\n\nIn German.", "a list without any says nothing about them"
        assert len(chat.events("follows", "manifest_changed")) == 2


# The model's name.


def test_another_model_is_a_recorded_change_and_the_asked_for_name_is_echoed(chat: Chat) -> None:
    first = chat.say([user("one")], "models")
    response = chat.post([user("two")], "models", model="other")
    assert response.json()["model"] == "other"
    asked = [line for line in OTHER.heard if not line.startswith("thought")]
    assert asked == ["system: Be short.", "user: one", f"assistant: {first}", "user: two"]
    changes = chat.events("models", "manifest_changed")
    assert ["Be short." in change["manifest"] for change in changes] == [False, True]
    assert chat.get("/models")["agent"] == "other"
    chat.say([user("three")], "models", model="other")
    assert len(chat.events("models", "manifest_changed")) == 2


def test_a_failed_change_of_the_model_leaves_the_old_one(chat: Chat) -> None:
    chat.say([user("one")], "failed-change")
    before = chat.standing("failed-change")
    assert chat.post([user("fail")], "failed-change", model="other").status_code == 502
    assert chat.standing("failed-change") == before
    chat.say([user("two")], "failed-change")
    assert chat.get("/failed-change")["agent"] == "helper"


@pytest.mark.parametrize("provider", ["", "scripted/"])
def test_a_model_is_found_by_its_own_name_too_and_echoed_as_it_was_asked_for(chat: Chat, provider: str) -> None:
    assert chat.model is not None
    asked = provider + chat.model.llm.name
    response = chat.post([user("one")], f"by-name-{len(provider)}", model=asked)
    assert (answer(response)["content"][:6], response.json()["model"]) == ("Answer", asked)


def test_a_model_that_nobody_has_is_404_and_makes_no_conversation(chat: Chat) -> None:
    response = chat.post([user("one")], "nobody", model="gpt-0")
    refused(response, 404, "model_not_found")
    assert response.json()["error"]["param"] == "model"
    assert "nobody" not in chat.names()
