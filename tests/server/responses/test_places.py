"""A response goes on after the one that it names, and never waits for anybody or moves what is somebody else's."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.server.responses.responding import Place, function, problem, responding, result, text_of
from tests.server.support.turning import left_nothing

from forkpoint.server.wires.responses.items.ids import conversation_id
from forkpoint.testing import Heard, Reply, Script, ScriptedCall


def echo(heard: Heard) -> Reply:
    return Reply(f"You said: {heard.text}")


@pytest.fixture(scope="module")
def shared() -> Iterator[Place]:
    with responding() as place:
        yield place
        left_nothing(place.server)


@pytest.fixture
def place(shared: Place) -> Place:
    shared.models.script = Script(echo)
    return shared


def prompt(place: Place) -> list[str]:
    """What the model was sent last, in words."""
    return [message["content"] for message in place.models.last.json["messages"]]


def test_it_goes_on_in_place_where_only_responses_were(place: Place) -> None:
    first = place.ask("One")
    second = place.ask("Two", previous_response_id=first["id"])
    assert prompt(place) == ["One", "You said: One", "Two"]
    assert place.conversation(second["id"]) == place.conversation(first["id"])
    assert second["previous_response_id"] == first["id"]


def test_the_same_response_twice_makes_two_branches(place: Place) -> None:
    first = place.ask("One")
    second = place.ask("Two", previous_response_id=first["id"])
    other = place.post("Other", previous_response_id=first["id"])
    assert other.headers["x-conversation-status"] == "branched"
    assert prompt(place) == ["One", "You said: One", "Other"]
    assert place.said(second["id"]) == ["One", "You said: One", "Two", "You said: Two"]
    assert place.said(other.json()["id"]) == ["One", "You said: One", "Other", "You said: Other"]


def test_a_hundred_at_once_have_a_hundred_heads(place: Place) -> None:
    first = place.ask("One")
    place.api.http.patch(f"/api/conversations/{place.conversation(first['id'])}", json={"name": "kept"})
    source = place.api.get("kept")
    with ThreadPoolExecutor(100) as threads:
        answers = threads.map(lambda n: place.post(f"Go {n}", previous_response_id=first["id"]), range(100))
        made = [answer.json() for answer in answers]
    assert {text_of(one) for one in made} == {f"You said: Go {n}" for n in range(100)}
    assert len({place.conversation(one["id"]) for one in made}) == 100
    for n in (0, 50, 99):
        assert place.said(made[n]["id"]) == ["One", "You said: One", f"Go {n}", f"You said: Go {n}"]
    assert place.api.get("kept")["head"] == source["head"]


def test_of_many_at_once_after_an_unnamed_one_at_most_one_goes_on_in_place(place: Place) -> None:
    first = place.ask("One")
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda n: place.post(f"Go {n}", previous_response_id=first["id"]), range(16)))
    assert {text_of(one.json()) for one in answers} == {f"You said: Go {n}" for n in range(16)}
    assert len({one.headers["x-conversation-id"] for one in answers}) == 16
    assert [one.headers["x-conversation-status"] for one in answers].count("continued") <= 1


def test_a_retry_joins_the_fork_that_the_lost_try_made(place: Place) -> None:
    first = place.ask("One")
    place.api.http.patch(f"/api/conversations/{place.conversation(first['id'])}", json={"title": "Mine"})
    second = place.ask("Two", previous_response_id=first["id"])
    again = place.ask("Two", previous_response_id=first["id"], headers={"X-Stainless-Retry-Count": "1"})
    other = place.ask("Two", previous_response_id=first["id"])
    assert again["id"] == second["id"]
    assert place.conversation(other["id"]) != place.conversation(second["id"])


@pytest.mark.parametrize("change", [{"name": "mine"}, {"title": "Mine"}, {"tags": {}}], ids=["name", "title", "tags"])
def test_a_conversation_that_somebody_made_their_own_is_not_moved(place: Place, change: dict[str, Any]) -> None:
    first = place.ask("One")
    id = place.conversation(first["id"])
    if "name" in change:
        change = {"name": f"mine-{id}"}
    assert place.api.http.patch(f"/api/conversations/{id}", json=change).status_code == 200
    second = place.ask("Two", previous_response_id=first["id"])
    assert place.conversation(second["id"]) != id
    assert place.said(first["id"]) == ["One", "You said: One"]


def test_a_conversation_that_was_used_by_its_id_is_not_moved_by_a_previous_response(place: Place) -> None:
    first = place.ask("One")
    id = place.conversation(first["id"])
    second = place.ask("Two", conversation=conversation_id(id))
    third = place.ask("Three", previous_response_id=second["id"])
    assert place.conversation(second["id"]) == id
    assert place.conversation(third["id"]) != id


def test_a_request_that_is_refused_makes_no_conversation_anybodys_own(place: Place) -> None:
    first = place.ask("One")
    named = conversation_id(place.conversation(first["id"]))
    for refused in ([result("nobody", "x")], [{"type": "item_reference", "id": "msg_1"}], []):
        assert place.post(refused, conversation=named).status_code == 400
    second = place.ask("Two", previous_response_id=first["id"])
    assert place.conversation(second["id"]) == place.conversation(first["id"])


def test_a_native_turn_can_be_gone_on_from(place: Place) -> None:
    id = place.api.create()
    turn = place.api.run(id, "One").json()["id"]
    made = place.ask("Two", previous_response_id=f"resp_{turn.replace('-', '')}")
    assert place.said(made["id"]) == ["One", "You said: One", "Two", "You said: Two"]
    assert place.api.said(id) == ["One", "You said: One"]


def test_a_response_that_was_rewound_can_be_gone_on_from(place: Place) -> None:
    first = place.ask("One")
    second = place.ask("Two", previous_response_id=first["id"])
    id = place.conversation(first["id"])
    turn = place.api.get(f"{id}/turns")["items"][0]["id"]
    assert place.api.http.post(f"/api/conversations/{id}/rewind", json={"at": turn}).status_code == 200
    third = place.ask("Three", previous_response_id=second["id"])
    assert place.said(third["id"])[-4:] == ["Two", "You said: Two", "Three", "You said: Three"]


def test_open_calls_are_answered_on_each_branch(place: Place) -> None:
    place.script(Reply(calls=(ScriptedCall("mine", '{"at":"sea"}', "call-1"),)), Reply("Sun"), Reply("Rain"))
    asked = place.ask("Weather?", tools=[function("mine")])
    (call,) = asked["output"]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "mine", '{"at":"sea"}')
    one = place.ask([result(call["call_id"], "sun")], previous_response_id=asked["id"])
    other = place.ask([result(call["call_id"], "rain")], previous_response_id=asked["id"])
    assert (text_of(one), text_of(other)) == ("Sun", "Rain")


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
def test_a_result_without_its_call_is_refused_before_anything_begins(place: Place, store: bool) -> None:
    first = place.ask("One")
    for after in ({"previous_response_id": first["id"]}, {}):
        for input in ([result("nobody", "x")], [result("nobody", "x"), {"role": "user", "content": "Two"}]):
            assert problem(place.post(input, store=store, **after))[:2] == (400, "call_not_open")
    assert place.said(first["id"]) == ["One", "You said: One"]


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
def test_a_call_has_one_result(place: Place, store: bool) -> None:
    place.script(Reply(calls=(ScriptedCall("mine", "{}", "call-3"),)), Reply("Sun"))
    asked = place.ask("Weather?", tools=[function("mine")])
    results = [result("call-3", "sun"), result("call-3", "rain")]
    assert problem(place.post(results, store=store, previous_response_id=asked["id"])) == (400, "invalid", "input")
    answered = [*asked["output"], results[0]]  # the call that the path has, once more
    assert text_of(place.ask(answered, store=store, previous_response_id=asked["id"])) == "Sun"
    roles = [message["role"] for message in place.models.last.json["messages"]]
    assert roles == ["user", "assistant", "tool"]


def test_a_call_that_is_not_answered_is_recorded_as_that(place: Place) -> None:
    place.script(Reply(calls=(ScriptedCall("mine", "{}", "call-2"),)), Reply("Never mind"))
    asked = place.ask("Weather?", tools=[function("mine")])
    place.ask("Forget it", previous_response_id=asked["id"])
    events = place.api.get(f"{place.conversation(asked['id'])}/events")["items"]
    assert [one["body"]["status"] for one in events if one["kind"] == "tool_result"] == ["not_answered"]


@pytest.mark.parametrize("id", ["resp_0", "resp_" + "0" * 32, "chatcmpl-1", ""])
def test_a_response_that_is_not_there_cannot_be_gone_on_from(place: Place, id: str) -> None:
    assert problem(place.post("Two", previous_response_id=id)) == (
        400,
        "previous_response_not_found",
        "previous_response_id",
    )


def test_instructions_are_not_carried_over_and_a_change_is_recorded_once(place: Place) -> None:
    first = place.ask("One", instructions="Be brief.")
    assert prompt(place)[0] == "Be brief."
    second = place.ask("Two", previous_response_id=first["id"])
    assert prompt(place)[0] == "One"
    place.ask("Three", previous_response_id=second["id"])
    events = place.api.get(f"{place.conversation(first['id'])}/events")["items"]
    assert len([one for one in events if one["kind"] == "manifest_changed"]) == 2


def test_what_is_not_stored_leaves_nothing_but_its_cost(place: Place) -> None:
    first = place.ask("One")
    before = place.api.http.get("/api/conversations").json()["items"]
    made = place.ask("Two", previous_response_id=first["id"], store=False)
    assert prompt(place) == ["One", "You said: One", "Two"]
    assert place.api.http.get("/api/conversations").json()["items"] == before
    assert place.api.http.get(f"/v1/responses/{made['id']}").status_code == 404
    assert problem(place.post("Three", previous_response_id=made["id"]))[1] == "previous_response_not_found"
    assert made["store"] is False
