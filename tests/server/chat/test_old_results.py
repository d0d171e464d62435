"""Results of the client's tools that were told before: they are no news, and in the way of nothing."""

from collections.abc import Iterator

import pytest
from tests.server.chat.lists_of_messages import FULL, Chat, answer, assistant, chatting, function, refused, result, user

TOOLS = [function("weather")]


@pytest.fixture(scope="module")
def chat() -> Iterator[Chat]:
    with chatting("old-results") as chat:
        yield chat


def called(chat: Chat, name: str) -> str:
    (call,) = answer(chat.post([user("use weather")], name, tools=TOOLS))["tool_calls"]
    return str(call["id"])


def answered(chat: Chat, name: str) -> str:
    """A call whose result was told, and answered; the client never heard the answer."""
    call = called(chat, name)
    assert chat.say([result(call, "sun")], name, tools=TOOLS) == "Done: sun"
    return call


def results(chat: Chat) -> list[str]:
    """What the model was told last."""
    assert chat.model is not None
    return [line for line in chat.model.heard if line.startswith("result")]


def test_a_new_message_after_results_that_were_told_before_is_just_the_new_message(chat: Chat) -> None:
    call = answered(chat, "unheard")
    listed = [user("use weather"), assistant("On it.", (call, "weather", "{}")), result(call, "sun")]
    for number in (2, 3):
        assert chat.say([*listed, user("And now?")], "unheard", tools=TOOLS).endswith("And now?")
        assert results(chat) == ["result: sun"], "once, as it was told"
        assert len(chat.get("/unheard/turns")["items"]) == number + 1
    refused(chat.post(listed, "unheard", tools=TOOLS), 400, "call_not_open")


def test_what_is_news_is_taken_beside_what_is_not(chat: Chat) -> None:
    old = answered(chat, "mixed")
    new = called(chat, "mixed")
    chat.say([result(old, "sun"), result(new, "rain"), user("So?")], "mixed", tools=TOOLS)
    assert results(chat) == ["result: sun", "result: rain"]
    assert chat.history("mixed")[-3:-1] == ["result: rain", "user: So?"]


def test_a_result_of_a_call_that_never_was_is_400_also_beside_old_ones(chat: Chat) -> None:
    old = answered(chat, "stranger")
    before = chat.standing("stranger")
    said = refused(chat.post([result(old, "sun"), result("c9", "x"), user("So?")], "stranger"), 400, "call_not_open")
    assert "'c9'" in said
    assert chat.standing("stranger") == before


@pytest.mark.parametrize("mode", ["latest", "keyed", "full", "full and answered"])
def test_a_refusal_says_the_name_that_the_client_knows(chat: Chat, mode: str) -> None:
    name = f"named-{mode.replace(' ', '-')}"
    headers = {"latest": {}, "keyed": {"Idempotency-Key": "key-of-results"}}.get(mode, FULL)
    call = answered(chat, name) if mode.endswith("answered") else called(chat, name)
    listed = [user("use weather"), assistant("On it.", (call, "weather", "{}")), result("c9", "sun")]
    said = refused(chat.post(listed, name, headers, tools=TOOLS), 400, "call_not_open")
    assert f"conversation {name}," in said
    assert chat.get(f"/{name}")["id"] not in said
