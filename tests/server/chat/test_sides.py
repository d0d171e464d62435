"""What clients ask beside a conversation: kept as sides, which never are its turns, its instructions or its name."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.chat.lists_of_messages import FULL, NAME, Chat, answer, assistant, chatting, refused, system, user
from tests.server.chat.test_side_rules import LIBRE, SAMPLES

from forkpoint.server.settings import ServerSettings

STATUS, BRANCH, TURN = "X-Conversation-Status", "X-Conversation-Branch", "X-Turn-Id"
ASIDE = {"X-Conversation-Side": "true"}
WAYS: list[tuple[dict[str, Any], dict[str, str]]] = [({"model": "helper:side"}, {}), ({}, ASIDE)]
EITHER = pytest.mark.parametrize(("fields", "headers"), WAYS, ids=["model", "header"])
BOTH = pytest.mark.parametrize("history", ["latest", "full"])


@pytest.fixture(scope="module")
def chat() -> Iterator[Chat]:
    with chatting("sides") as running:
        yield running


def heard(chat: Chat) -> list[str]:
    assert chat.model is not None
    return [line for line in chat.model.heard if not line.startswith("thought")]


@EITHER
@BOTH
def test_a_side_is_kept_beside_its_conversation_and_leaves_it_as_it_is(
    chat: Chat, fields: dict[str, Any], headers: dict[str, str], history: str
) -> None:
    name = f"kept-{history}-{len(headers)}"
    headers = headers | {"X-Conversation-History": history}
    first = chat.say([user("one")], name, headers={"X-Conversation-History": history})
    before, usage = chat.standing(name), chat.get(f"/{name}/stats")["family"]
    response = chat.post([system("Say it short."), user("A title?")], name, headers, **fields)
    assert (response.headers[NAME], response.headers[STATUS]) == (name, "side")
    assert heard(chat) == ["system: Be kind.", "system: Say it short.", "user: A title?"], "and nothing of the history"
    (side,) = chat.sides(name)
    assert response.headers[BRANCH] == side
    assert chat.standing(name) == before
    info = chat.get(f"/{side}")
    assert (info["name"], info["title"], info["lineage"]["source"]) == (side, None, before[0])
    assert info["lineage"]["at"] == before[1], "where its conversation stood"
    assert chat.get(f"/{side}/turns")["items"][0]["id"] == response.headers[TURN]
    assert chat.history(side)[-1] == f"assistant: {answer(response)['content']}"
    spent = response.json()["usage"]["prompt_tokens"]
    assert chat.get(f"/{name}/stats")["family"]["input"] == usage["input"] + spent, "it is counted once"
    two = chat.post([user("one"), assistant(first), user("two")], name, {"X-Conversation-History": history})
    assert two.headers[STATUS] == "continued"
    assert [line for line in heard(chat) if "title" in line or "short" in line] == []


def test_lists_leave_sides_out_and_trees_show_them(chat: Chat) -> None:
    chat.say([user("one")], "folded")
    chat.say([user("A title?")], "folded", ASIDE)
    (side,) = chat.sides("folded")
    assert side not in {one["id"] for one in chat.get("", limit=1000)["items"]}
    assert side in {one["id"] for one in chat.get("", limit=1000, sides=True)["items"]}
    assert side not in {one["id"] for one in chat.get("/folded/tree", sides=False)["items"]}


def test_deleting_a_conversation_deletes_its_sides(chat: Chat) -> None:
    chat.say([user("one")], "gone")
    chat.say([user("A title?")], "gone", ASIDE)
    (side,) = chat.sides("gone")
    assert chat.http.delete("/api/conversations/gone").status_code == 204
    assert chat.http.get(f"/api/conversations/{side}").status_code == 404


@BOTH
def test_a_side_is_never_busy(chat: Chat, history: str) -> None:
    name, way = f"running-{history}", {"X-Conversation-History": history}
    first = chat.say([user("one")], name, way)
    hold = user('use hold {"at":"' + name + '"}')
    running = chat.soon([user("one"), assistant(first), hold], name, way)
    chat.gates.reached(name)
    sides = [chat.soon([user(f"Tag {n}?")], name, way | ASIDE, stream=n % 2 == 0) for n in range(6)]
    sides += [chat.soon([user("The same?")], name, way | ASIDE) for _ in range(2)]
    for side in sides:
        assert (side.result(20).status_code, side.result(20).headers[STATUS]) == (200, "side")
    assert len(chat.sides(name)) == 8
    chat.gates.open(name)
    assert running.result(20).headers[STATUS] == "continued"
    assert [line for line in chat.history(name) if line.startswith("user: Tag")] == []


def test_a_side_that_comes_first_begins_nothing_and_is_not_kept(chat: Chat) -> None:
    before = chat.get("", limit=1000, sides=True)["items"]
    spent = chat.http.get("/api/usage").json()["beside"]["calls"]
    response = chat.post([system("Write titles."), user("A title?")], "not-yet", ASIDE)
    assert (response.headers[NAME], response.headers[STATUS]) == ("not-yet", "side")
    assert not {BRANCH.lower(), TURN.lower()} & set(response.headers), "there is nothing to look at"
    assert chat.get("", limit=1000, sides=True)["items"] == before
    assert chat.http.get("/api/usage").json()["beside"]["calls"] == spent + 1
    assert chat.post([user("one")], "not-yet").headers[STATUS] == "created"
    assert heard(chat) == ["system: Be kind.", "user: one"]


def test_a_side_of_a_first_turn_that_still_runs_is_kept_with_it(chat: Chat) -> None:
    running = chat.soon([user('use hold {"at":"draft"}')], "draft")
    chat.gates.reached("draft")
    assert chat.post([user("A title?")], "draft", ASIDE).headers[STATUS] == "side"
    assert "draft" not in chat.names(), "nobody has answered there yet"
    chat.gates.open("draft")
    assert running.result(20).headers[STATUS] == "created"
    assert len(chat.sides("draft")) == 1


@pytest.mark.parametrize(("client", "asks", "messages", "headers"), [SAMPLES[0], SAMPLES[7], SAMPLES[9], SAMPLES[-1]])
def test_a_request_of_a_known_client_is_a_side_without_being_told(
    chat: Chat, client: str, asks: str, messages: list[dict[str, Any]], headers: dict[str, str]
) -> None:
    name = f"known-{client}-{len(headers)}"
    chat.say([user("one")], name)
    response = chat.post(messages, name, headers)
    assert response.headers[STATUS] == "side"
    assert chat.get(f"/{response.headers[BRANCH]}")["title"] == f"{client}: {asks}"
    assert chat.history(name)[:1] == ["user: one"]
    assert chat.post(messages, name, headers | {"X-Conversation-Side": "false"}).headers[STATUS] == "continued"


def test_a_server_without_rules_takes_it_for_a_turn() -> None:
    with chatting("no-rules", settings=ServerSettings(side_rules=())) as chat:
        chat.say([user("one")], "plain")
        assert chat.post([user(LIBRE)], "plain").headers[STATUS] == "continued"
        assert chat.post([user("A title?")], "plain", ASIDE).headers[STATUS] == "side", "what is said still holds"


@pytest.mark.parametrize("said", ["maybe", "2"])
def test_the_header_is_true_or_false(chat: Chat, said: str) -> None:
    for name in ("said", None):
        response = chat.post([user("one")], name, {"X-Conversation-Side": said})
        assert "X-Conversation-Side" in refused(response, 400, "bad_request")


def test_one_key_is_one_side(chat: Chat) -> None:
    chat.say([user("one")], "keyed")
    key = ASIDE | {"Idempotency-Key": "the-title"}
    first, again = (chat.post([user("A title?")], "keyed", key) for _ in range(2))
    assert first.headers[TURN] == again.headers[TURN]
    assert answer(first)["content"] == answer(again)["content"]
    assert len(chat.sides("keyed")) == 1
    refused(chat.post([user("Another?")], "keyed", key), 400, "key_reused")


def test_a_side_that_fails_is_counted_and_leaves_its_conversation_free(chat: Chat) -> None:
    chat.say([user("one")], "unlucky")
    response = chat.post([user("fail")], "unlucky", ASIDE)
    assert response.status_code == 502
    assert chat.sides("unlucky") == [], "only what was answered is shown"
    assert chat.post([user("two")], "unlucky").headers[STATUS] == "continued"


def test_a_list_with_a_history_of_its_own_is_kept_whole(chat: Chat) -> None:
    chat.say([user("one")], "listed", FULL)
    before = [user("a"), assistant("A."), user("b")]
    chat.say(before, "listed", FULL | ASIDE)
    (side,) = chat.sides("listed")
    assert chat.history(side)[:-1] == ["user: a", "assistant: A.", "user: b"]
    assert [event["count"] for event in chat.events(side, "imported")] == [2]
    assert chat.history("listed")[:1] == ["user: one"]
