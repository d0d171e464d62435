"""An item that a request names by its id is said to the model once: it stands on the path, or it is said again."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.responses.responding import Place, function, problem, responding, result
from tests.server.support.turning import left_nothing

from forkpoint.testing import Heard, Reply, Script

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
MISSING = (400, "invalid", "input[0].id")


@pytest.fixture(scope="module")
def shared() -> Iterator[Place]:
    with responding() as place:
        yield place
        left_nothing(place.server)


@pytest.fixture
def place(shared: Place) -> Place:
    shared.models.script = Script(echo)
    return shared


def echo(heard: Heard) -> Reply:
    return Reply(f"You said: {heard.text}")


def to(*items: Any) -> list[dict[str, Any]]:
    """References to items, and a question about them."""
    named = [{"type": "item_reference", "id": item["id"]} for item in items]
    return [*named, {"role": "user", "content": "What was that?"}]


def prompt(place: Place) -> list[str]:
    """What the model was sent last: words, and the ids of calls."""
    said: list[str] = []
    for message in place.models.last.json["messages"]:
        content = message["content"] or []
        said += [content] if isinstance(content, str) else [part["text"] for part in content]
        said += [call["id"] for call in message.get("tool_calls", ())]
    return said


@pytest.mark.parametrize("where", ["nowhere", "after a response", "after a response, not stored", "in a conversation"])
def test_an_item_from_elsewhere_is_said_again(place: Place, where: str) -> None:
    (item,) = place.ask("The fact")["output"]
    after: dict[str, Any] = {"store": "not stored" not in where}
    if "after a response" in where:
        after["previous_response_id"] = place.ask("Other")["id"]
    if where == "in a conversation":
        after["conversation"] = place.api.http.post("/v1/conversations", json={}).json()["id"]
    place.ask(to(item), **after)
    assert prompt(place)[-2:] == ["You said: The fact", "What was that?"]


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
def test_an_item_on_the_path_is_not_said_twice(place: Place, store: bool) -> None:
    first = place.ask("One")
    second = place.ask("Two", previous_response_id=first["id"])
    given = place.api.http.get(f"/v1/responses/{second['id']}/input_items").json()["data"]
    place.ask(to(*first["output"], *given), store=store, previous_response_id=second["id"])
    assert prompt(place) == ["One", "You said: One", "Two", "You said: Two", "What was that?"]


def test_an_item_behind_the_response_that_is_gone_on_from_is_said_again(place: Place) -> None:
    first = place.ask("One")
    second = place.ask("Two", previous_response_id=first["id"])
    place.ask(to(*second["output"]), previous_response_id=first["id"])
    assert prompt(place) == ["One", "You said: One", "You said: Two", "What was that?"]


def test_an_item_that_was_added_to_a_conversation_is_known_everywhere(place: Place) -> None:
    item = {"type": "message", "role": "user", "content": "The fact"}
    id = place.api.http.post("/v1/conversations", json={"items": [item]}).json()["id"]
    (added,) = place.api.http.get(f"/v1/conversations/{id}/items").json()["data"]
    place.ask(to(added), conversation=id)
    assert prompt(place) == ["The fact", "What was that?"]
    place.ask(to(added))
    assert prompt(place) == ["The fact", "What was that?"]


def test_a_call_and_its_result_are_said_again_together(place: Place) -> None:
    asked = place.ask([{"role": "user", "content": "Look"}, CALL, result("c1", "snow")], tools=[function("look")])
    path = f"/v1/responses/{asked['id']}/input_items"
    given = place.api.http.get(path, params={"order": "asc"}).json()["data"]
    place.ask(to(*given))
    assert prompt(place) == ["Look", "c1", "snow", "What was that?"]
    place.ask(to(*given), previous_response_id=asked["id"])
    assert prompt(place) == ["Look", "c1", "snow", "You said: Look", "What was that?"]
    assert problem(place.post(to(given[-1])))[:2] == (400, "call_not_open")


def test_an_item_of_a_deleted_response_is_unknown(place: Place) -> None:
    first = place.ask("One")
    second = place.ask("Two", previous_response_id=first["id"])
    assert place.api.http.delete(f"/v1/responses/{first['id']}").status_code == 200
    assert problem(place.post(to(*first["output"]))) == MISSING
    assert problem(place.post(to(*first["output"]), previous_response_id=second["id"])) == MISSING
    assert problem(place.post(to({"id": "msg_1"}))) == MISSING
