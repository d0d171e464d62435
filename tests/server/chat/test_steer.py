"""Steering the turn of a chat completion: what a client was told stays told, and its lists go on where they did."""

from collections.abc import Iterator

import pytest
from tests.server.chat.chatting import Spoken, agents_at, spoken
from tests.server.chat.lists_of_messages import FULL, Chat, answer, assistant, function, lines, obedient, user
from tests.server.support.serving import served
from tests.server.support.turning import PATIENCE, using

from forkpoint.testing import ModelServer, Script


@pytest.fixture(scope="module")
def models() -> Iterator[ModelServer]:
    with ModelServer(Script(obedient)) as running:
        yield running


@pytest.fixture(scope="module")
def chat(models: ModelServer) -> Iterator[Chat]:
    with served(agents=agents_at(models)) as server:
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


def test_calls_that_a_stream_has_handed_out_stay_handed_and_the_message_stays_with_the_turn(
    chat: Chat, models: ModelServer
) -> None:
    tools = [function("weather", city="string")]
    told = steered(chat, models, "handed", "Never mind.", asks='use weather {"city":"Rome"}', tools=tools)
    assert told.finishes == ["tool_calls"]
    with using(chat.server.url) as api:
        (turn,) = api.get("handed/turns")["items"]
        assert (turn["outcome"], len(turn["handed"])) == ("committed", 1)
        (left,) = turn["steered"]
        assert "delivered" not in left
        assert left["message"]["parts"][0]["text"] == "Never mind."


def test_calls_that_nobody_was_told_of_are_taken_back(chat: Chat, models: ModelServer) -> None:
    tools = [function("weather", city="string")]
    with using(chat.server.url) as api:
        before = len(models.requests)
        with models.holding():
            waits = api.soon(chat.post, [user('use weather {"city":"Rome"}')], "taken-back", tools=tools)
            models.wait_for(before + 1)
            turn = api.get("taken-back")["open_turn"]
            assert api.post(f"taken-back/turns/{turn}/steer", message="Never mind.").status_code == 200
        response = waits.result(PATIENCE)
    assert response.json()["choices"][0]["finish_reason"] == "stop"
    assert "Never mind." in answer(response)["content"]
    assert not answer(response).get("tool_calls")
