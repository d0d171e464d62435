"""Steering the turn of a chat completion: what a client was told stays told, and its lists go on where they did."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.chat.chatting import Spoken, agents_at, spoken
from tests.server.chat.lists_of_messages import (
    FULL,
    Chat,
    answer,
    assistant,
    function,
    lines,
    look,
    obedient,
    result,
    user,
)
from tests.server.support.serving import served
from tests.server.support.turning import PATIENCE, using

from forkpoint.testing import ModelServer, Script

ROME = 'weather {"city":"Rome"}'
TOOLS = [function("weather", city="string")]


@pytest.fixture(scope="module")
def models() -> Iterator[ModelServer]:
    with ModelServer(Script(obedient)) as running:
        yield running


@pytest.fixture(scope="module")
def chat(models: ModelServer) -> Iterator[Chat]:
    with served(agents=agents_at(models, tools=[look])) as server:
        running = Chat(server)
        yield running
        running.verify()
        running.close()


def steered(chat: Chat, models: ModelServer, name: str, message: str, *, asks: str, **fields: object) -> Spoken:
    """A streamed completion whose turn is steered while its model thinks."""
    with using(chat.server.url) as api:
        before = len(models.requests)
        with models.holding():
            waits = api.soon(chat.post, [user(asks)], name, stream=True, headers=FULL, **fields)
            models.wait_for(before + 1)
            turn = api.get(name)["open_turn"]
            assert api.post(f"{name}/turns/{turn}/steer", message=message).status_code == 200
        return spoken(waits.result(PATIENCE))


def test_an_answer_goes_on_after_the_message_and_the_client_s_list_is_found_again(
    chat: Chat, models: ModelServer
) -> None:
    told = steered(chat, models, "goes-on", "Be brief.", asks="one")
    assert (told.finishes, told.errors) == (["stop"], [])
    assert [one.partition(" to ")[2].strip() for one in told.text.split("Answer")[1:]] == ["one", "Be brief."]
    again = chat.post([user("one"), assistant(told.text), user("two")], "goes-on", headers=FULL)
    assert again.headers["X-Conversation-Status"] == "continued"
    asked = [line for line in lines(models.last.json) if line.startswith("user")]
    assert asked == ["user: one", "user: Be brief.", "user: two"], "the model still knows what the client never saw"


@pytest.mark.parametrize("ours", ["", 'look {"what":"a"}; '], ids=["alone", "beside one of ours"])
def test_calls_that_a_stream_has_handed_out_stay_handed_and_the_message_stays_with_the_turn(
    chat: Chat, models: ModelServer, ours: str
) -> None:
    name = "handed-with-ours" if ours else "handed"
    before = len(models.requests)
    told = steered(chat, models, name, "Never mind.", asks=f"use {ours}{ROME}", tools=TOOLS)
    assert (told.finishes, told.errors, told.done) == (["tool_calls"], [], True)
    (call,) = told.calls
    assert (call["name"], call["arguments"]) == ("weather", '{"city":"Rome"}')
    assert len(models.requests) == before + 1, "the model was not asked again behind the client's back"
    turn = stays_with_its_turn(chat, name)
    assert turn["handed"] == [call["id"]]

    asked = [user(f"use {ours}{ROME}"), assistant("On it.", (call["id"], "weather", call["arguments"]))]
    again = chat.post([*asked, result(call["id"], "sun")], name, headers=FULL, tools=TOOLS)
    assert again.headers["X-Conversation-Status"] == "continued"
    found = [line for line in lines(models.last.json) if line.startswith(("user", "result"))]
    assert found == [f"user: use {ours}{ROME}", *(["result: saw a"] if ours else []), "result: sun"]
    assert stays_with_its_turn(chat, name) == turn, "it is not given to another turn, nor lost"


def test_a_message_that_came_with_a_result_of_ours_is_delivered_before_calls_are_handed_out(
    chat: Chat, models: ModelServer
) -> None:
    told = steered(chat, models, "delivered", f"use {ROME}", asks='use look {"what":"a"}', tools=TOOLS)
    assert (told.finishes, told.errors, [one["name"] for one in told.calls]) == (["tool_calls"], [], ["weather"])
    with using(chat.server.url) as api:
        (turn,) = api.get("delivered/turns")["items"]
    assert (turn["outcome"], len(turn["handed"])) == ("committed", 1)
    assert [one["delivered"] for one in turn["steered"]] == [True]
    chat.post([result(told.calls[0]["id"], "sun")], "delivered", tools=TOOLS)
    found = [line for line in lines(models.last.json) if line.startswith(("user", "result"))]
    assert found == ['user: use look {"what":"a"}', "result: saw a", f"user: use {ROME}", "result: sun"]


def stays_with_its_turn(chat: Chat, name: str) -> Any:
    """The first turn of a conversation, which has the one message that it was not given."""
    with using(chat.server.url) as api:
        turn = api.get(f"{name}/turns")["items"][0]
    assert turn["outcome"] == "committed"
    (left,) = turn["steered"]
    assert "delivered" not in left
    assert left["message"]["parts"][0]["text"] == "Never mind."
    return turn


def test_calls_that_nobody_was_told_of_are_taken_back(chat: Chat, models: ModelServer) -> None:
    with using(chat.server.url) as api:
        before = len(models.requests)
        with models.holding():
            waits = api.soon(chat.post, [user(f"use {ROME}")], "taken-back", tools=TOOLS)
            models.wait_for(before + 1)
            turn = api.get("taken-back")["open_turn"]
            assert api.post(f"taken-back/turns/{turn}/steer", message="Never mind.").status_code == 200
        response = waits.result(PATIENCE)
    assert response.json()["choices"][0]["finish_reason"] == "stop"
    assert "Never mind." in answer(response)["content"]
    assert not answer(response).get("tool_calls")
