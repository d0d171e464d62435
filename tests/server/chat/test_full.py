"""Clients whose list is the truth: where it goes on, what of it becomes a branch, and that nothing is lost."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.chat.lists_of_messages import (
    FULL,
    NAME,
    Chat,
    Message,
    answer,
    assistant,
    chatting,
    function,
    refused,
    result,
    system,
    user,
)

from forkpoint.server.http.keys import ApiKey, Keyring, OneKey
from forkpoint.server.settings import ConversationHeader, ServerSettings


@pytest.fixture(scope="module")
def chat() -> Iterator[Chat]:
    with chatting("full", headers=FULL) as running:
        yield running


def heard(chat: Chat) -> list[str]:
    """What the model was asked last, but for its instructions."""
    assert chat.model is not None
    return [line for line in chat.model.heard if not line.startswith("system")]


def lived(chat: Chat, name: str, *questions: str) -> list[Message]:
    """A list, as a client has it that asked these questions one after the other."""
    messages: list[Message] = []
    for question in questions:
        messages.append(user(question))
        messages.append(assistant(chat.say(messages, name)))
    return messages


def said(messages: list[Message]) -> list[str]:
    return [f"{message['role']}: {message['content']}" for message in messages]


def of_users(lines: list[str]) -> list[str]:
    return [line.removeprefix("user: ") for line in lines if line.startswith("user: ")]


# Going on.


def test_a_continuation_keeps_the_tools_and_the_thoughts_that_the_client_never_saw(chat: Chat) -> None:
    first = chat.say([user('use look {"what":"it"}')], "continued")
    assert first == "On it.\n\nDone: saw it"
    response = chat.post([user('use look {"what":"it"}'), assistant(first), user("two")], "continued")
    assert response.headers["X-Conversation-Status"] == "continued"
    thoughts = [line for line in heard(chat) if line.startswith("thought")]
    assert heard(chat) == [
        'user: use look {"what":"it"}',
        "thought: A tool will do.",
        "assistant: On it.",
        'call: look {"what":"it"}',
        "result: saw it",
        thoughts[1],
        "assistant: Done: saw it",
        "user: two",
    ]
    assert chat.aside("continued") == []
    assert chat.events("continued", "imported") == []


@pytest.mark.parametrize("shown", ["On it.\nDone: saw it", "  On it. Done:   saw it\n\n", "On it.Done: saw it"])
def test_white_space_is_no_difference(chat: Chat, shown: str) -> None:
    name = f"white-{len(shown)}"
    chat.say([user('use  look {"what":"it"}')], name)
    chat.say([user('use look\n{"what":"it"} '), assistant(shown), user("two")], name)
    assert (chat.aside(name), chat.events(name, "imported")) == ([], [])
    assert "result: saw it" in heard(chat)


@pytest.mark.parametrize("number", [0, 1], ids=["first", "last"])
def test_an_edited_answer_is_a_branch_with_the_clients_text(chat: Chat, number: int) -> None:
    name = f"polished-{number}"
    messages = lived(chat, name, 'use look {"what":"it"}', "two")
    old = chat.history(name)
    edited = [*messages]
    edited[2 * number + 1] = assistant("Polished by somebody.")
    response = chat.post([*edited, user("three")], name)
    assert response.headers["X-Conversation-Status"] == "branched"
    spoken = [line for line in heard(chat) if not line.startswith("thought")]
    assert spoken[-5 + 2 * number :] == [*said(edited[2 * number :]), "user: three"]
    assert ("result: saw it" in heard(chat)) == (number == 1), "what stands before the edit is as it was"
    assert [event["count"] for event in chat.events(name, "imported")] == [4 - 2 * number]
    assert [chat.history(one) for one in chat.aside(name)] == [old]
    again = chat.post([*edited, user("three"), assistant(answer(response)["content"]), user("four")], name)
    assert again.headers["X-Conversation-Status"] == "continued"
    assert len(chat.aside(name)) == 1, "the next request finds the client's text, and branches no more"


@pytest.mark.parametrize(
    "shown",
    [
        "<think>A tool will do.</think>On it.\n\nDone: saw it",
        '<details type="reasoning" done="true">\n<summary>Thought</summary>\n> A\n</details>\nOn it. Done: saw it',
    ],
    ids=["think", "details"],
)
def test_thoughts_that_a_client_writes_into_an_answer_are_no_edit(chat: Chat, shown: str) -> None:
    name = f"thoughts-{len(shown)}"
    chat.say([user('use look {"what":"it"}')], name)
    chat.say([user('use look {"what":"it"}'), assistant(shown), user("two")], name)
    assert (chat.aside(name), chat.events(name, "imported")) == ([], [])
    assert "result: saw it" in heard(chat)


def test_steps_that_a_client_tells_apart_are_one_answer(chat: Chat) -> None:
    chat.say([user('use look {"what":"it"}')], "steps")
    apart = [assistant("On it."), assistant("Done: saw it")]
    chat.say([user('use look {"what":"it"}'), *apart, user("two")], "steps")
    assert (chat.aside("steps"), chat.events("steps", "imported")) == ([], [])


# A window.


@pytest.mark.parametrize("start", [2, 4, 6])
def test_a_trimmed_list_is_a_continuation(chat: Chat, start: int) -> None:
    name = f"window-{start}"
    messages = lived(chat, name, "one", 'use look {"what":"it"}', "three", "four")
    chat.say([*messages[start:], user("five")], name)
    assert of_users(heard(chat)) == ["one", 'use look {"what":"it"}', "three", "four", "five"]
    assert (chat.aside(name), chat.events(name, "imported")) == ([], [])


def test_a_trimmed_list_whose_answers_were_edited_goes_on_with_all_that_stands_before_it(chat: Chat) -> None:
    messages = lived(chat, "window-changed", "one", "two", "three")
    changed = [message if message["role"] == "user" else assistant("Changed.") for message in messages[2:]]
    chat.say([*changed, user("four")], "window-changed")
    assert of_users(heard(chat)) == ["one", "two", "three", "four"]
    assert heard(chat).count("assistant: Changed.") == 2
    assert [event["count"] for event in chat.events("window-changed", "imported")] == [4]
    assert len(chat.aside("window-changed")) == 1


def test_a_message_edited_in_a_trimmed_list_is_a_branch_of_the_whole_path(chat: Chat) -> None:
    messages = lived(chat, "window-edit", "one", "two", "three", "four")
    chat.say([*messages[2:6], user("other")], "window-edit")
    assert of_users(heard(chat)) == ["one", "two", "three", "other"]
    assert [of_users(lines) for lines in chat.everything("window-edit").values()] == [
        ["one", "two", "three", "other"],
        ["one", "two", "three", "four"],
    ]


def test_a_window_may_begin_with_a_result_or_an_answer(chat: Chat) -> None:
    tools = [function("weather")]
    messages = lived(chat, "cut-off", "one", "two")
    message = answer(chat.post([*messages, user("use weather")], "cut-off", tools=tools))
    messages += [user("use weather"), message, result(message["tool_calls"][0]["id"], "sun")]
    messages.append(assistant(chat.say(messages, "cut-off", tools=tools)))
    for start in (1, 6, 5, 4):
        messages.append(user(f"from {start}"))
        messages.append(assistant(chat.say(messages[start:], "cut-off", tools=tools)))
        assert of_users(heard(chat))[:2] == ["one", "two"]
    assert (chat.aside("cut-off"), chat.events("cut-off", "imported")) == ([], [])


# Lists as clients have them.


@pytest.mark.parametrize(
    "before",
    [
        [user("first part"), user("second part")],
        [assistant("Hello, what can I do for you?"), user("one")],
        [user("one"), assistant(""), user("two")],
        [user("one"), assistant(None), user("two")],
        [user("one"), system("From now on in French."), user("two")],
        [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "and more"}]}],
    ],
    ids=["two questions", "a greeting", "a blank answer", "no answer", "instructions between", "parts"],
)
def test_an_unusual_list_goes_on_where_it_was(chat: Chat, before: list[Message]) -> None:
    assert chat.model is not None
    name = f"unusual-{len(str(before))}"
    first = chat.say(before, name)
    imported = len(chat.events(name, "imported"))
    second = chat.say([*before, assistant(first), user("next")], name)
    chat.say([*before, assistant(first), user("next"), assistant(second), user("last")], name)
    assert of_users(heard(chat))[-2:] == ["next", "last"]
    assert (chat.aside(name), len(chat.events(name, "imported"))) == ([], imported)
    again = chat.say(before, name)
    assert (again != first, len(chat.aside(name))) == (True, 1)
    assert not any("next" in line for line in heard(chat))


def test_a_question_whose_answer_failed_may_stay_in_the_list(chat: Chat) -> None:
    messages = lived(chat, "stays", "one")
    messages.append(user("fail"))
    assert chat.post(messages, "stays").status_code == 502
    messages.append(user("again"))
    messages.append(assistant(chat.say(messages, "stays")))
    assert of_users(heard(chat)) == ["one", "fail", "again"]
    chat.say([*messages, user("on")], "stays")
    assert of_users(heard(chat)) == ["one", "fail", "again", "on"]
    assert chat.aside("stays") == []


# Branches.


@pytest.mark.parametrize("number", [1, 2], ids=["middle", "last"])
def test_an_edited_message_is_a_branch_and_the_old_one_is_kept(chat: Chat, number: int) -> None:
    name = f"edit-{number}"
    messages = lived(chat, name, 'use look {"what":"it"}', "two", "three")
    old = chat.history(name)
    id = chat.get(f"/{name}")["id"]
    response = chat.post([*messages[: 2 * number], user("edited")], name)
    assert response.headers[NAME] == name
    expected = [*['use look {"what":"it"}', "two", "three"][:number], "edited"]
    assert of_users(heard(chat)) == of_users(chat.history(name)) == expected
    assert response.headers["X-Conversation-Status"] == "branched"
    assert "result: saw it" in heard(chat), "what is kept is kept with its tools"
    assert chat.get(f"/{name}")["id"] == id, "the name points to the newest branch"
    (aside,) = chat.aside(name)
    assert chat.history(aside) == old
    chat.say([*messages[: 2 * number], user("edited"), assistant(answer(response)["content"]), user("on")], name)
    assert of_users(heard(chat)) == [*expected, "on"]
    assert chat.aside(name) == [aside]


def test_the_name_goes_to_an_edited_first_message_when_a_second_request_continues_it(chat: Chat) -> None:
    messages = lived(chat, "first", 'use look {"what":"it"}', "two")
    old = chat.history("first")
    response = chat.post([user("edited")], "first")
    edited = answer(response)["content"]
    assert (response.headers[NAME], response.headers["X-Conversation-Status"]) == ("first", "branched")
    assert of_users(heard(chat)) == ["edited"]
    assert chat.history("first") == old, "the name stays until somebody goes on there"
    (aside,) = chat.aside("first")
    assert response.headers["X-Conversation-Branch"] == aside
    assert chat.history(aside) == ["user: edited", f"assistant: {edited}"]
    response = chat.post([user("edited"), assistant(edited), user("on")], "first")
    assert "X-Conversation-Branch" not in response.headers
    assert of_users(chat.history("first")) == of_users(heard(chat)) == ["edited", "on"]
    assert old in [chat.history(one) for one in chat.aside("first")]
    chat.say([*messages, user("three")], "first")
    assert of_users(chat.history("first")) == ['use look {"what":"it"}', "two", "three"]
    assert "result: saw it" in heard(chat)


def test_a_title_that_no_rule_knows_takes_neither_the_name_nor_the_instructions(chat: Chat) -> None:
    messages = lived(chat, "untitled", "one")
    for _ in range(2):
        response = chat.post([system("Answer with a title."), user("Find a title for: one")], "untitled")
        assert response.headers["X-Conversation-Status"] == "branched"
        assert of_users(chat.history("untitled")) == ["one"]
    chat.say([*messages, user("two")], "untitled")
    assert heard(chat)[0] == "user: one"
    assert chat.model is not None
    assert not any("title" in line for line in chat.model.heard)
    assert of_users(chat.history("untitled")) == ["one", "two"]


def test_a_title_that_comes_first_loses_the_name_to_the_chat_that_goes_on(chat: Chat) -> None:
    chat.say([user("Find a title for: one")], "title-first")
    first = chat.say([user("one")], "title-first")
    assert of_users(heard(chat)) == ["one"]
    second = chat.say([user("one"), assistant(first), user("two")], "title-first")
    assert of_users(chat.history("title-first")) == ["one", "two"]
    chat.say([user("one"), assistant(first), user("two"), assistant(second), user("three")], "title-first")
    assert of_users(chat.history("title-first")) == ["one", "two", "three"]


@pytest.mark.parametrize("number", [0, 1], ids=["first", "last"])
def test_a_regenerated_answer_is_a_branch(chat: Chat, number: int) -> None:
    name = f"again-{number}"
    messages = lived(chat, name, "one", "two")
    asked = messages[: 2 * number + 1]
    again = chat.say(asked, name)
    assert again != messages[2 * number + 1]["content"]
    assert of_users(heard(chat)) == ["one", "two"][: number + 1]
    assert chat.history(name) == [*said(asked), f"assistant: {again}"]
    assert [chat.history(one) for one in chat.aside(name)] == [said(messages)]


def test_going_back_to_an_older_alternative_continues_that_one(chat: Chat) -> None:
    old = lived(chat, "back", "one", 'use look {"what":"it"}')
    other = lived(chat, "other-way", "x")  # another conversation, which has no part in this
    edited = [*old[:2], user("edited")]
    edited.append(assistant(chat.say(edited, "back")))
    (aside,) = chat.aside("back")
    chat.say([*old, user("three")], "back")
    assert of_users(heard(chat)) == ["one", 'use look {"what":"it"}', "three"]
    assert "result: saw it" in heard(chat)
    assert chat.events("back", "imported") == []
    assert [of_users(lines) for lines in chat.everything("back").values()] == [
        ["one", 'use look {"what":"it"}', "three"],
        ["one", 'use look {"what":"it"}'],
        ["one", "edited"],
    ]
    chat.say([*edited, user("three, edited")], "back")
    assert of_users(heard(chat)) == ["one", "edited", "three, edited"]
    assert aside in chat.aside("back")
    assert said(other) == chat.history("other-way")


def test_of_two_answers_to_the_same_question_the_one_that_the_client_shows_is_continued(chat: Chat) -> None:
    first = chat.say([user("one")], "either")
    second = chat.say([user("one")], "either")
    assert first != second
    for shown in (first, second, first):
        chat.say([user("one"), assistant(shown), user("and?")], "either")
        assert f"assistant: {shown}" in heard(chat)
        assert chat.events("either", "imported") == []


def test_nothing_is_lost_by_many_regenerations(chat: Chat) -> None:
    answers = [chat.say([user("one")], "many") for _ in range(5)]
    assert len(set(answers)) == 5
    kept = list(chat.everything("many").values())
    assert sorted(kept) == sorted(["user: one", f"assistant: {text}"] for text in answers)
    assert kept[0][1] == f"assistant: {answers[-1]}", "the name points to the newest"


def test_a_list_of_which_nothing_matches_stands_at_the_root(chat: Chat) -> None:
    messages = lived(chat, "root", "one", "two")
    new = [user("a"), assistant("A."), user("b"), assistant("B.")]
    chat.say([*new, user("c")], "root")
    assert heard(chat) == [*said(new), "user: c"]
    assert chat.history("root") == said(messages)
    (aside,) = chat.aside("root")
    assert [event["count"] for event in chat.events(aside, "imported")] == [4]


def test_a_list_that_goes_on_differently_is_imported_as_far_as_it_is_new(chat: Chat) -> None:
    messages = lived(chat, "differs", 'use look {"what":"it"}', "two", "three")
    new = [user("other"), assistant("Elsewhere."), user("still"), assistant("There.")]
    chat.say([*messages[:2], *new, user("now")], "differs")
    assert of_users(heard(chat)) == ['use look {"what":"it"}', "other", "still", "now"]
    assert "result: saw it" in heard(chat)
    assert [event["count"] for event in chat.events("differs", "imported")] == [4]
    assert len(chat.aside("differs")) == 1


def test_a_longer_list_is_imported_as_far_as_it_is_new_without_any_branch(chat: Chat) -> None:
    messages = lived(chat, "longer", "one")
    new = [user("elsewhere"), assistant("Yes.")]
    third = chat.say([*messages, *new, user("now")], "longer")
    assert of_users(heard(chat)) == ["one", "elsewhere", "now"]
    assert [event["count"] for event in chat.events("longer", "imported")] == [2]
    assert chat.aside("longer") == []
    chat.say([*messages, *new, user("now"), assistant(third), user("and now")], "longer")
    assert of_users(heard(chat)) == ["one", "elsewhere", "now", "and now"]
    assert (len(chat.events("longer", "imported")), chat.aside("longer")) == (1, [])


def test_an_imported_history_is_continued_and_edited_like_a_lived_one(chat: Chat) -> None:
    before = [user("a"), assistant("A."), user("b"), assistant("B.")]
    third = chat.say([*before, user("c")], "imports")
    chat.say([*before, user("c"), assistant(third), user("d")], "imports")
    assert (chat.aside("imports"), len(chat.events("imports", "imported"))) == ([], 1)
    chat.say([*before[:2], user("edited")], "imports")
    assert heard(chat) == ["user: a", "assistant: A.", "user: edited"]
    assert [of_users(chat.history(one)) for one in chat.aside("imports")] == [["a", "b", "c", "d"]]


def test_branches_share_what_is_the_same_in_them(chat: Chat) -> None:
    messages = lived(chat, "shared", "one", "two")
    chat.say([*messages[:2], user("edited")], "shared")
    ids = [[event["id"] for event in chat.get(f"/{one}/events")["items"]] for one in ("shared", *chat.aside("shared"))]
    turns = chat.get("/shared/events")["items"]
    first = [event["id"] for event in turns if event["turn"] == turns[0]["turn"]]
    assert ids[0][: len(first)] == ids[1][: len(first)] == first
    assert not set(ids[0][len(first) :]) & set(ids[1][len(first) :])


# Tools of the client.


def test_results_at_the_end_of_the_list_go_on_with_the_calls_that_are_open(chat: Chat) -> None:
    tools = [function("weather", city="string")]
    message = answer(chat.post([user('use weather {"city":"Rome"}')], "client-tools", tools=tools))
    (call,) = message["tool_calls"]
    asked = [user('use weather {"city":"Rome"}'), message, result(call["id"], "sun")]
    second = chat.say(asked, "client-tools", tools=tools)
    assert second == "Done: sun"
    chat.say([*asked, assistant(second), user("Thanks")], "client-tools", tools=tools)
    assert (chat.aside("client-tools"), chat.events("client-tools", "imported")) == ([], [])
    assert [line for line in heard(chat) if not line.startswith("thought")] == [
        'user: use weather {"city":"Rome"}',
        "assistant: On it.",
        'call: weather {"city":"Rome"}',
        "result: sun",
        "assistant: Done: sun",
        "user: Thanks",
    ]


def test_an_answer_after_results_can_be_regenerated(chat: Chat) -> None:
    tools = [function("weather", city="string")]
    message = answer(chat.post([user('use weather {"city":"Rome"}')], "client-again", tools=tools))
    asked = [user('use weather {"city":"Rome"}'), message, result(message["tool_calls"][0]["id"], "sun")]
    for _ in range(2):
        assert chat.say(asked, "client-again", tools=tools) == "Done: sun"
    assert [line for line in heard(chat) if line.startswith("result")] == ["result: sun"]
    assert len(chat.aside("client-again")) == 1
    assert chat.events("client-again", "imported") == []


def test_a_question_with_calls_can_be_asked_again(chat: Chat) -> None:
    tools = [function("weather", city="string")]
    asked = [user('use weather {"city":"Rome"}')]
    first = answer(chat.post(asked, "calls-again", tools=tools))["tool_calls"]
    second = answer(chat.post(asked, "calls-again", tools=tools))["tool_calls"]
    assert (len(first), len(second)) == (1, 1)
    assert of_users(heard(chat)) == ['use weather {"city":"Rome"}']
    assert len(chat.aside("calls-again")) == 1
    old = [user('use weather {"city":"Rome"}'), assistant("On it.", (first[0]["id"], "weather", '{"city":"Rome"}'))]
    assert chat.say([*old, result(first[0]["id"], "snow")], "calls-again", tools=tools) == "Done: snow"


@pytest.mark.parametrize(
    "rest",
    [[result("0", "sun")], [user("Never mind")], [result("0", "sun"), result("1", "rain"), user("In Celsius")]],
    ids=["half of the results", "a message instead", "a message too"],
)
def test_whatever_the_client_does_with_calls_its_list_goes_on(chat: Chat, rest: list[Message]) -> None:
    name, tools = f"rest-{len(str(rest))}", [function("weather")]
    message = answer(chat.post([user("use weather; weather")], name, tools=tools))
    ids = {str(number): call["id"] for number, call in enumerate(message["tool_calls"])}
    given = [one | {"tool_call_id": ids[one["tool_call_id"]]} if one["role"] == "tool" else one for one in rest]
    messages = [user("use weather; weather"), message, *given]
    for question in ("next", "last"):
        messages += [assistant(chat.say(messages, name, tools=tools)), user(question)]
    assert (chat.aside(name), chat.events(name, "imported")) == ([], [])
    assert of_users(heard(chat))[-1] == "next"


def test_results_of_nobody_are_400_and_nothing_changes(chat: Chat) -> None:
    messages = lived(chat, "strangers", "one")
    before = chat.standing("strangers")
    assert chat.post([*messages, result("c9", "sun")], "strangers").status_code == 400
    assert chat.post([user("edited"), result("c9", "sun")], "strangers").status_code == 400
    assert chat.standing("strangers") == before


# Other ways to the same conversation.


def test_a_turn_that_the_client_knows_nothing_of_is_set_aside(chat: Chat) -> None:
    messages = lived(chat, "unseen", "one")
    chat.http.post("/api/conversations/unseen/turns", json={"message": "native"})
    chat.say([*messages, user("two")], "unseen")
    assert of_users(heard(chat)) == ["one", "two"]
    assert [of_users(chat.history(one)) for one in chat.aside("unseen")] == [["one", "native"]]


def test_notes_at_the_end_of_a_branch_belong_to_it(chat: Chat) -> None:
    messages = lived(chat, "noted", "one")
    assert chat.http.patch("/api/conversations/noted/state", json={"set": {"mood": "good"}}).status_code == 200
    edited = chat.say([user("edited")], "noted")
    chat.say([user("edited"), assistant(edited), user("on")], "noted")
    assert chat.events("noted", "state_change") == []
    chat.say([*messages, user("two")], "noted")
    assert [event["set"] for event in chat.events("noted", "state_change")] == [[["mood", '"good"']]]
    assert of_users(heard(chat)) == ["one", "two"]


def test_what_was_rewound_is_found_again(chat: Chat) -> None:
    messages = lived(chat, "rewound", "one", 'use look {"what":"it"}')
    first = chat.get("/rewound/turns")["items"][0]["id"]
    assert chat.http.post("/api/conversations/rewound/rewind", json={"at": first}).status_code == 200
    chat.say([*messages, user("three")], "rewound")
    assert of_users(heard(chat)) == ["one", 'use look {"what":"it"}', "three"]
    assert "result: saw it" in heard(chat)
    assert chat.events("rewound", "imported") == []


def test_what_was_deleted_is_imported_from_the_list(chat: Chat) -> None:
    messages = lived(chat, "deleted", "one", "two")
    chat.say([*messages[:2], user("edited")], "deleted")
    (aside,) = chat.aside("deleted")
    assert chat.http.delete(f"/api/conversations/{aside}").status_code == 204
    chat.say([*messages, user("three")], "deleted")
    assert [event["count"] for event in chat.events("deleted", "imported")] == [2]
    assert chat.http.delete("/api/conversations/deleted").status_code == 204
    response = chat.post([*messages, user("three")], "deleted")
    assert response.headers["X-Conversation-Status"] == "created"
    assert heard(chat) == [*said(messages), "user: three"]


def test_a_fork_of_it_is_another_conversation_whose_answers_are_not_its_own(chat: Chat) -> None:
    messages = lived(chat, "forked", "one")
    chat.http.post("/api/conversations/forked/fork", json={"id": "a-fork"})
    messages += [user("in the fork")]
    messages.append(assistant(chat.say(messages, "a-fork")))
    chat.say([*messages, user("two")], "forked")
    assert [event["count"] for event in chat.events("forked", "imported")] == [2]
    assert of_users(chat.history("a-fork")) == ["one", "in the fork"]


# Failures.


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_failed_edit_leaves_the_name_and_the_head_as_they_were(chat: Chat, number: int, stream: bool) -> None:
    name = f"failed-edit-{number}-{stream}"
    messages = lived(chat, name, "one", "two")
    before = chat.standing(name)
    response = chat.post([*messages[: 2 * number], user("fail")], name, stream=stream)
    assert response.status_code == 502 or (stream and '"error"' in response.text and "[DONE]" not in response.text)
    assert chat.standing(name) == before
    chat.say([*messages, user("three")], name)
    assert of_users(heard(chat)) == ["one", "two", "three"]
    assert chat.aside(name) == []


def test_a_failed_edit_sent_again_is_the_edit(chat: Chat) -> None:
    messages = lived(chat, "edit-again", "one", "two")
    new = [user("a"), assistant("A.")]
    assert chat.post([*messages[:2], *new, user("fail")], "edit-again").status_code == 502
    chat.say([*messages[:2], *new, user("works")], "edit-again")
    assert heard(chat)[-3:] == ["user: a", "assistant: A.", "user: works"]
    assert [of_users(lines) for lines in chat.everything("edit-again").values()] == [
        ["one", "a", "works"],
        ["one", "two"],
    ]


def test_an_edit_that_is_cancelled_leaves_everything_as_it_was(chat: Chat) -> None:
    messages = lived(chat, "cancelled", "one", "two")
    before = chat.standing("cancelled")
    answered = chat.soon([*messages[:2], user('use hold {"at":"edit"}')], "cancelled")
    chat.gates.reached("edit")
    open = chat.get("/cancelled")["open_turn"]
    chat.http.post(f"/api/conversations/cancelled/turns/{open}/cancel")
    chat.gates.open("edit")
    refused(answered.result(20), 409, "turn_cancelled")
    assert chat.standing("cancelled") == before
    chat.say([*messages, user("three")], "cancelled")
    assert chat.aside("cancelled") == []


# Instructions.


def test_the_clients_instructions_apply_and_a_change_is_recorded_once(chat: Chat) -> None:
    assert chat.model is not None
    messages: list[Message] = []
    for number, text in enumerate(["In French.", "In French.", "In German.", "In German.", ""]):
        messages.append(user(f"Question {number}"))
        before = [system(text)] if text else []
        messages.append(assistant(chat.say([*before, *messages], "instructed")))
        assert chat.model.heard[0] == f"system: Be kind.{chr(10) * 2 if text else ''}{text}"
    changes = chat.events("instructed", "manifest_changed")
    assert len(changes) == 3
    assert chat.aside("instructed") == []


def test_an_edit_with_other_instructions_leaves_the_old_branch_its_own(chat: Chat) -> None:
    assert chat.model is not None
    first = chat.say([system("In French."), user("one")], "instructed-edit")
    chat.say([system("In German."), user("edited")], "instructed-edit")
    chat.say([system("In French."), user("one"), assistant(first), user("two")], "instructed-edit")
    assert chat.model.heard[0] == "system: Be kind.\n\nIn French."
    assert len(chat.events("instructed-edit", "manifest_changed")) == 1, "on this path nothing changed"


# How it is chosen.

SECRET, PLAIN = "key-of-one-who-sends-all", "key-of-one-who-does-not"
HEADERS = (ConversationHeader(NAME), ConversationHeader("X-Full", "full"), ConversationHeader("X-Latest", "latest"))


@pytest.fixture(scope="module")
def choosing() -> Iterator[Chat]:
    keyring = Keyring([OneKey(SECRET, ApiKey("f", "f", "one", history="full")), OneKey(PLAIN, ApiKey("p", "p", "one"))])
    settings = ServerSettings(conversation_headers=HEADERS)
    with chatting("full-chosen", key=PLAIN, keyring=keyring, settings=settings) as running:
        yield running


@pytest.mark.parametrize(
    ("key", "header", "asked", "expected"),
    [
        (PLAIN, NAME, None, "latest"),
        (SECRET, NAME, None, "full"),
        (PLAIN, "X-Full", None, "full"),
        (SECRET, "X-Latest", None, "latest"),
        (PLAIN, NAME, "full", "full"),
        (PLAIN, NAME, "FULL", "full"),
        (PLAIN, NAME, "", "latest"),
        (SECRET, NAME, "latest", "latest"),
        (SECRET, "X-Full", "latest", "latest"),
        (SECRET, "X-Latest", "full", "full"),
    ],
    ids=str,
)
def test_a_request_says_it_or_else_its_header_or_else_its_key(
    choosing: Chat, key: str, header: str, asked: str | None, expected: str
) -> None:
    name = f"chosen-{'f' if key == SECRET else 'p'}-{header}-{'unsaid' if asked is None else asked}"
    headers: dict[str, str] = {header: name, "Authorization": f"Bearer {key}"}
    if asked is not None:
        headers["X-Conversation-History"] = asked
    choosing.say([user("one")], headers=headers)
    choosing.say([user("edited")], headers=headers)
    assert of_users(heard(choosing)) == (["one", "edited"] if expected == "latest" else ["edited"])


def test_a_way_that_nobody_knows_is_400(choosing: Chat) -> None:
    response = choosing.post([user("one")], "unknown-way", {"X-Conversation-History": "some"})
    assert "X-Conversation-History" in refused(response, 400, "bad_request")


def test_it_is_never_guessed_from_what_a_list_looks_like(choosing: Chat) -> None:
    """A list that looks like an edit is none, for a client that nobody said sends whole lists."""
    first = choosing.say([user("one")], "unguessed")
    choosing.say([user("one"), assistant(first), user("two")], "unguessed")
    choosing.say([user("edited")], "unguessed")
    assert of_users(heard(choosing)) == ["one", "two", "edited"]


def test_one_conversation_can_be_used_in_both_ways(choosing: Chat) -> None:
    first = choosing.say([user("one")], "both")
    second = choosing.say([user("two")], "both")
    choosing.say([user("one"), assistant(first), user("two"), assistant(second), user("three")], "both", FULL)
    assert of_users(heard(choosing)) == ["one", "two", "three"]
    assert choosing.aside("both") == []
    choosing.say([user("four")], "both")
    assert of_users(heard(choosing)) == ["one", "two", "three", "four"]
    choosing.say([user("one"), assistant(first), user("edited")], "both", FULL)
    choosing.say([user("on")], "both")
    assert of_users(heard(choosing)) == ["one", "edited", "on"]


# Restarts.


def test_a_server_that_was_restarted_knows_where_a_list_goes_on(tmp_path: Any) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    with chatting("full-restarted", headers=FULL, store=store) as chat:
        messages = lived(chat, "kept", 'use look {"what":"it"}', "two")
        chat.say([user("edited")], "kept")
    with chatting("full-restarted", headers=FULL, store=store) as chat:
        chat.say([*messages, user("three")], "kept")
        assert of_users(heard(chat)) == ['use look {"what":"it"}', "two", "three"]
        assert "result: saw it" in heard(chat)
        assert chat.events("kept", "imported") == []
