"""One `Idempotency-Key` is one response: whoever sends the same request again gets the response that there is."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest
from tests.server.chat.chatting import post, until
from tests.server.responses.responding import (
    PATH,
    Place,
    body,
    checked,
    events_of,
    function,
    problem,
    responding,
    result,
    text_of,
)
from tests.server.support.turning import left_nothing, using

from forkpoint.engine.placement import Placement
from forkpoint.server.http.keys import ApiKey, Keyring, OneKey
from forkpoint.server.wires.responses.items.ids import conversation_id
from forkpoint.testing import Heard, Reply, Script, ScriptedCall

TOOLS = [function("weather")]
NOT_OPEN = (400, "call_not_open")


def answers(heard: Heard) -> Reply:
    """Calls the client's tool if it is told to. No two answers are the same."""
    if heard.body["messages"][-1]["role"] == "user" and heard.text == "call":
        return Reply(calls=(ScriptedCall("weather", '{"at":"sea"}', f"call-{heard.number}"),))
    return Reply(f"Answer {heard.number}")


def key(name: str) -> dict[str, str]:
    return {"Idempotency-Key": name}


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with responding() as place:
        place.models.script = Script(answers)
        yield place
        left_nothing(place.server)


def conversations(place: Place) -> set[str]:
    found = place.api.http.get("/api/conversations", params={"limit": 1000, "drafts": True}).json()
    return {one["id"] for one in found["items"]}


def say(client: httpx2.Client, text: str, headers: dict[str, str]) -> dict[str, Any]:
    return checked(client.post(PATH, json=body(text), headers=headers))


def where(place: Place, how: str) -> dict[str, Any]:
    """The fields and headers that say where a response stands."""
    if how == "new":
        return {}
    first = place.ask("One")
    if how == "in place":
        return {"previous_response_id": first["id"]}
    if how == "on a fork":
        place.ask("Two", previous_response_id=first["id"])
        return {"previous_response_id": first["id"]}
    if how == "in a conversation":
        return {"conversation": conversation_id(place.conversation(first["id"]))}
    return {"headers": {"X-Conversation-Id": "by-its-name"}}


@pytest.mark.parametrize("how", ["new", "in place", "on a fork", "in a conversation", "by a header"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_same_key_and_body_give_the_same_response(place: Place, how: str, stream: bool) -> None:
    at, text = where(place, how), f"Go on {stream}"
    headers = at.pop("headers", {}) | key(f"same {how} {stream}".replace(" ", "-"))
    count = len(place.models.requests)
    tries = [place.post(text, stream=stream, headers=headers, **at) for _ in range(3)]
    first, *others = [events_of(one)[-1]["response"] if stream else one.json() for one in tries]
    assert first["status"] == "completed"
    assert others == [first] * 2
    assert len({(one.headers["x-turn-id"], one.headers["x-conversation-id"]) for one in tries}) == 1
    assert [one.headers["x-conversation-status"] for one in tries[1:]] == [
        "branched" if how == "on a fork" else "continued"
    ] * 2
    assert place.get(first["id"]) == first
    assert len(place.models.requests) == count + 1
    assert place.said(first["id"]).count(text) == 1


def test_another_body_under_a_key_is_refused_as_in_chat(place: Place) -> None:
    """A stream and a whole answer are two bodies."""
    taken = key("taken")
    first = place.ask("One", headers=taken)
    count = len(place.models.requests)
    others: list[dict[str, Any]] = [
        {"input": "Two"},
        {"input": "One", "stream": True},
        {"input": "One", "previous_response_id": first["id"]},
    ]
    refused = [place.post(headers=taken, **other) for other in others]
    chats = [
        post(place.api.http, text, conversation="keyed-chat", headers=key("taken-by-chat"), stream=stream)
        for text, stream in [("One", False), ("Two", False), ("One", True)]
    ]
    assert [problem(one)[:2] for one in refused] == [(400, "key_reused")] * 3
    assert [problem(one)[:2] for one in chats[1:]] == [(400, "key_reused")] * 2
    assert {one.headers["x-should-retry"] for one in (*refused, *chats[1:])} == {"false"}
    assert len(place.models.requests) == count + 1, "of which the chat's first request is one"
    assert place.said(first["id"]) == ["One", "Answer " + str(count - 1)]


def test_a_key_of_another_conversation_is_refused_though_the_body_is_the_same(place: Place) -> None:
    """Headers name the conversations, so the bodies do not tell them apart."""
    taken = key("of-another")
    place.ask("One", headers={"X-Conversation-Id": "taker"} | taken)
    count = len(place.models.requests)
    for name in ("taker-2", "by-its-name"):
        refused = place.post("One", headers={"X-Conversation-Id": name} | taken)
        assert problem(refused)[:2] == (400, "key_reused")
    assert len(place.models.requests) == count


def test_a_name_that_the_server_made_up_is_the_same_again(place: Place) -> None:
    asked = {"X-Conversation-Create": "true"} | key("made-up")
    tries = [place.post("One", headers=asked) for _ in range(3)]
    assert [one.json() for one in tries] == [tries[0].json()] * 3
    assert len({one.headers["x-conversation-id"] for one in tries}) == 1


@pytest.mark.parametrize("how", ["in place", "on a fork", "new"])
def test_ten_at_once_with_one_key_are_one_turn(place: Place, how: str) -> None:
    at, count = where(place, how), len(place.models.requests)
    before = conversations(place)
    headers = key(f"ten-{how}".replace(" ", "-"))
    with ThreadPoolExecutor(10) as threads:
        with place.models.holding():
            asking = [threads.submit(place.post, "Go on", headers=headers, **at) for _ in range(10)]
            until(lambda: place.server.services.turns._count.total() == 10)
        tries = [one.result() for one in asking]
    first, *others = [one.json() for one in tries]
    assert first["status"] == "completed"
    assert others == [first] * 9
    assert len(place.models.requests) == count + 1
    assert conversations(place) - before == (set() if how == "in place" else {place.conversation(first["id"])})
    assert place.said(first["id"]).count("Go on") == 1


def test_results_of_the_clients_tools_with_a_key_are_answered_again(place: Place) -> None:
    """The calls are no longer open then, but nothing is asked of them."""
    called = place.ask("call", tools=TOOLS)
    (call,) = called["output"]
    asked = {"input": [result(call["call_id"], "sunny")], "tools": TOOLS, "previous_response_id": called["id"]}
    first, again = (place.ask(**asked, headers=key("results")) for _ in range(2))
    after = place.ask("More", tools=TOOLS, previous_response_id=first["id"])
    assert again == first
    assert place.ask(**asked, headers=key("results")) == first, "also after others went on from it"
    assert place.said(after["id"])[:-1] == ["call", text_of(first), "More"]
    assert problem(place.post(**asked | {"previous_response_id": after["id"]}, headers=key("new")))[:2] == NOT_OPEN


def test_results_that_are_answered_while_the_same_request_looks_for_its_key_are_answered_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = place.ask("call", tools=TOOLS)
    (call,) = called["output"]
    conversation = conversation_id(place.conversation(called["id"]))
    asked = {"input": [result(call["call_id"], "sunny")], "tools": TOOLS, "conversation": conversation}
    look, first = Placement.made_with, list[dict[str, Any]]()

    async def looks(self: Placement, key_: str, request: str) -> Any:
        monkeypatch.setattr(Placement, "made_with", look)
        found = await look(self, key_, request)
        first.append(await asyncio.to_thread(place.ask, **asked, headers=key("looked")))
        return found

    monkeypatch.setattr(Placement, "made_with", looks)
    assert place.ask(**asked, headers=key("looked")) == first[0]
    assert problem(place.post(**asked, headers=key("stranger")))[:2] == NOT_OPEN


def test_a_key_of_one_tenant_is_not_that_of_another() -> None:
    secrets = {"acme": "acme-" * 8, "zeta": "zeta-" * 8}
    keyring = Keyring([OneKey(secret, ApiKey(name, name, name)) for name, secret in secrets.items()])
    with responding(keyring=keyring) as place, ExitStack() as clients:
        place.models.script = Script(answers)
        acme, zeta = (clients.enter_context(using(place.server.url, secret)).http for secret in secrets.values())
        made = [say(client, "One", headers=key("order-77")) for client in (acme, zeta, acme, zeta)]
        assert made[:2] == made[2:]
        assert made[0]["id"] != made[1]["id"]
        assert [text_of(one) for one in made[:2]] == ["Answer 0", "Answer 1"]
        refused = zeta.post(PATH, json=body("Two", previous_response_id=made[0]["id"]), headers=key("order-78"))
        assert problem(refused)[:2] == (400, "previous_response_not_found")
        left_nothing(place.server)
