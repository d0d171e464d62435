"""Conversations and their items: what clients add stands in the history, and the last item can be taken back."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.responses.responding import Place, problem, responding, result, text_of
from tests.server.support.turning import Gate, left_nothing

from forkpoint.server.wires.responses.items.ids import conversation_named
from forkpoint.testing import Heard, Reply, Script, ScriptedCall

PATH = "/v1/conversations"
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}


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


def create(place: Place, *items: Any, **fields: Any) -> str:
    made = place.api.http.post(PATH, json={"items": list(items), **fields})
    assert made.status_code == 200, made.text
    return str(made.json()["id"])


def add(place: Place, id: str, *items: Any) -> list[dict[str, Any]]:
    made = place.api.http.post(f"{PATH}/{id}/items", json={"items": list(items)})
    assert made.status_code == 200, made.text
    found: list[dict[str, Any]] = made.json()["data"]
    return found


def items(place: Place, id: str, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = place.api.http.get(f"{PATH}/{id}/items", params={"order": "asc"} | query).json()[
        "data"
    ]
    return found


def pop(place: Place, id: str) -> Any:
    (last,) = items(place, id, order="desc", limit=1)
    return place.api.http.delete(f"{PATH}/{id}/items/{last['id']}")


def conversations(place: Place) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = place.api.http.get("/api/conversations", params={"limit": 100}).json()["items"]
    return found


def branches(place: Place, id: str) -> int:
    """How many branches the family of a conversation has, with those that were set aside."""
    return len(place.api.http.get(f"/api/conversations/{conversation_named(id)}/tree").json()["items"])


def message(text: str, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def test_a_conversation_is_made_read_changed_and_deleted(place: Place) -> None:
    id = create(place, metadata={"team": "builds"})
    assert place.api.http.get(f"{PATH}/{id}").json()["metadata"] == {"team": "builds"}
    assert place.api.http.post(f"{PATH}/{id}", json={"metadata": {"a": "b"}}).json()["metadata"] == {"a": "b"}
    gone = place.api.http.delete(f"{PATH}/{id}")
    assert gone.json() == {"id": id, "object": "conversation.deleted", "deleted": True}
    assert place.api.http.get(f"{PATH}/{id}").status_code == 404


@pytest.mark.parametrize("key", ["responses", "responses.deleted", "responses.deleted.3"])
def test_metadata_has_no_tag_that_the_server_sets_itself(place: Place, key: str) -> None:
    id = create(place, metadata={"responses.mine": "1"})
    made = place.ask("One", conversation=id)
    place.ask("Two", conversation=id)
    assert place.api.http.delete(f"/v1/responses/{made['id']}").status_code == 200
    for path in (PATH, f"{PATH}/{id}"):
        refused = place.api.http.post(path, json={"metadata": {"a": "b", key: "unnamed"}})
        assert problem(refused) == (400, "invalid", "metadata")
    assert place.api.http.get(f"{PATH}/{id}").json()["metadata"] == {"responses.mine": "1"}
    assert place.api.http.get(f"/v1/responses/{made['id']}").status_code == 404


def test_a_response_is_a_turn_of_its_conversation(place: Place) -> None:
    id = create(place, message("One"), message("Fine", "assistant"))
    made = place.ask("Two", conversation={"id": id})
    assert made["conversation"] == {"id": id}
    assert [one["role"] for one in items(place, id)] == ["user", "assistant", "user", "assistant"]
    assert [one["id"] for one in items(place, id)][-1] == made["output"][0]["id"]
    assert place.models.last.json["messages"][0]["content"] == "One"


def test_a_busy_conversation_is_locked(place: Place) -> None:
    gate = Gate()
    with responding(
        Reply(calls=(ScriptedCall("hold", '{"line":"1"}', "w1"),)), Reply("Done"), tools=[gate.tool]
    ) as busy:
        id = create(busy)
        first = busy.api.soon(busy.post, "One", conversation=id)
        gate.reached()
        assert problem(busy.post("Two", conversation=id)) == (400, "conversation_locked", "conversation")
        added = busy.api.http.post(f"{PATH}/{id}/items", json={"items": [message("Three")]})
        assert problem(added)[:2] == (400, "conversation_locked")
        gate.open()
        assert text_of(first.result().json()) == "Done"


def test_each_item_that_was_added_can_be_taken_back(place: Place) -> None:
    id = create(place, message("One"))
    add(place, id, CALL, result("c1", "a"), message("Seen", "assistant"))
    kinds = ["message", "function_call_output", "function_call", "message"]
    assert [one["type"] for one in items(place, id, order="desc")] == kinds
    for left in range(3, -1, -1):
        assert pop(place, id).json()["id"] == id
        assert len(items(place, id)) == left
    assert branches(place, id) == 1, "nothing of it is kept"


def test_calls_made_at_once_and_their_results_are_taken_back_one_by_one(place: Place) -> None:
    id = create(place, message("One"))
    add(place, id, *(CALL | {"call_id": call} for call in ("c1", "c2", "c3")))
    add(place, id, *(result(call, "a") for call in ("c1", "c2", "c3")))
    kinds = ["message", *["function_call"] * 3, *["function_call_output"] * 3]
    for left in range(6, -1, -1):
        assert pop(place, id).status_code == 200
        assert [one["type"] for one in items(place, id)] == kinds[:left]
    assert branches(place, id) == 1, "nothing of it is kept"
    place.ask("Two", conversation=id)
    assert [one["content"] for one in place.models.last.json["messages"]] == ["Two"]


def test_the_calls_that_stay_are_answered_like_any_others(place: Place) -> None:
    id = create(place, message("One"), CALL, CALL | {"call_id": "c2"}, CALL | {"call_id": "c3"})
    first = items(place, id)[0]["id"]
    pop(place, id)
    assert [one.get("call_id") for one in items(place, id)] == [None, "c1", "c2"]
    assert items(place, id)[0]["id"] == first, "what was not said at once with it is as it was"
    place.ask([result("c1", "a"), result("c2", "b")], conversation=id)
    said = place.models.last.json["messages"]
    assert [one["role"] for one in said] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in said[1]["tool_calls"]] == ["c1", "c2"]


def test_what_a_model_said_in_one_response_is_taken_back_one_by_one() -> None:
    calls = tuple(ScriptedCall("look", "{}", call) for call in ("c1", "c2"))
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    with responding(Reply("I look twice.", calls=calls), Reply("Done")) as place:
        id = create(place)
        place.ask("One", conversation=id, tools=[tool])
        kinds = ["message", "message", "function_call", "function_call"]
        assert [one["type"] for one in items(place, id)] == kinds
        for left in range(3, 1, -1):
            assert pop(place, id).status_code == 200
            assert [one["type"] for one in items(place, id)] == kinds[:left]
        place.ask("Two", conversation=id)
        said = [(one["role"], one["content"]) for one in place.models.last.json["messages"]]
        assert said == [("user", "One"), ("assistant", "I look twice."), ("user", "Two")]


def test_a_call_is_open_again_once_the_message_after_it_is_taken_back(place: Place) -> None:
    id = create(place, CALL)
    add(place, id, message("Never mind"))
    pop(place, id)
    add(place, id, result("c1", "a"))
    assert [one["type"] for one in items(place, id)] == ["function_call", "function_call_output"]


def test_nothing_is_taken_back_while_somebody_holds_the_conversation(place: Place) -> None:
    id = create(place, message("One"))
    held = place.api.http.post(f"/api/conversations/{conversation_named(id)}/holds", json={"reason": "audit"})
    assert held.status_code < 300, held.text
    assert problem(pop(place, id))[:2] == (409, "held")
    assert len(items(place, id)) == 1


def test_an_item_that_others_stand_on_stays(place: Place) -> None:
    id = create(place, message("One"), message("Two"))
    first = items(place, id)[0]["id"]
    assert problem(place.api.http.delete(f"{PATH}/{id}/items/{first}"))[:2] == (400, "invalid")
    assert place.api.http.get(f"{PATH}/{id}/items/{first}").json()["content"][0]["text"] == "One"
    assert place.api.http.get(f"{PATH}/{id}/items/msg_nobody").status_code == 404


def test_items_are_added_all_or_none(place: Place) -> None:
    id = create(place, message("One"))
    for last in (result("c9", "x"), CALL, {"type": "shell_call"}):
        refused = place.api.http.post(f"{PATH}/{id}/items", json={"items": [message("Two"), CALL, last]})
        assert refused.status_code == 400, refused.text
        assert len(items(place, id)) == 1


def test_a_conversation_whose_items_are_refused_is_not_made(place: Place) -> None:
    before = len(conversations(place))
    for last in (result("c9", "x"), CALL):
        assert place.api.http.post(PATH, json={"items": [CALL, last]}).status_code == 400
    assert len(conversations(place)) == before


def test_thoughts_may_stand_between_calls_made_at_once(place: Place) -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "And then?"}]}
    id = create(place, CALL, thought, CALL | {"call_id": "c2"}, result("c1", "a"), result("c2", "b"))
    shown = [one["type"] for one in items(place, id)]
    assert shown == ["function_call", "reasoning", "function_call", *["function_call_output"] * 2]


def test_a_message_may_follow_a_call_that_nobody_answered(place: Place) -> None:
    id = create(place, message("One"), CALL)
    add(place, id, message("Never mind"))
    made = place.ask("Two", conversation=id)
    assert text_of(made) == "You said: Two"
    assert [one["type"] for one in items(place, id)] == ["message", "function_call", *["message"] * 3]


def kinds(place: Place, path: str) -> list[str]:
    return [item["type"] for item in place.api.http.get(path, params={"order": "asc"}).json()["data"]]


CUSTOM_CALL = {"type": "custom_tool_call", "call_id": "c1", "name": "shell", "input": "ls"}
CUSTOM_RESULT = {"type": "custom_tool_call_output", "call_id": "c1", "output": "files"}


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
def test_items_of_custom_tools_that_were_added_are_listed_as_that(place: Place, at_once: bool) -> None:
    id = create(place, message("One"))
    added = (
        add(place, id, CUSTOM_CALL, CUSTOM_RESULT)
        if at_once
        else [*add(place, id, CUSTOM_CALL), *add(place, id, CUSTOM_RESULT)]
    )
    assert [one["type"] for one in added] == ["custom_tool_call", "custom_tool_call_output"]
    assert items(place, id)[1:] == added
    assert added[0]["input"] == "ls"
    place.ask("Two", conversation=id)
    (call,) = place.models.last.json["messages"][1]["tool_calls"]
    assert call["function"] == {"name": "shell", "arguments": '{"input":"ls"}'}


def test_a_result_of_a_custom_tool_that_a_model_called_is_listed_as_that(place: Place) -> None:
    tool = {"type": "custom", "name": "shell"}
    for results_by_items in (True, False):
        id = create(place)
        place.script(Reply(calls=(ScriptedCall("shell", '{"input":"ls"}', "c1"),)), Reply("Fine"))
        place.ask("One", tools=[tool], conversation=id)
        if results_by_items:
            add(place, id, CUSTOM_RESULT)
        else:
            place.ask([CUSTOM_RESULT], conversation=id)
        assert kinds(place, f"{PATH}/{id}/items")[1:3] == ["custom_tool_call", "custom_tool_call_output"]


def test_input_items_of_custom_tools_are_that_though_the_request_lists_no_tools(place: Place) -> None:
    made = place.ask([message("One"), CUSTOM_CALL, CUSTOM_RESULT, message("Two")])
    shown = kinds(place, f"/v1/responses/{made['id']}/input_items")
    assert shown == ["message", "custom_tool_call", "custom_tool_call_output", "message"]


def test_pages_go_on_by_the_last_id_of_the_list(place: Place) -> None:
    id = create(place, *(message(f"Message {n}") for n in range(5)))
    seen: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = place.api.http.get(f"{PATH}/{id}/items", params={"limit": "2", "order": "asc"} | after).json()
        seen += [one["content"][0]["text"] for one in page["data"]]
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    assert seen == [f"Message {n}" for n in range(5)]
    empty = place.api.http.get(f"{PATH}/{create(place)}/items").json()
    assert empty == {"data": [], "first_id": None, "last_id": None, "has_more": False, "object": "list"}


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_of_a_long_conversation_have_each_item_once(place: Place, order: str) -> None:
    id = create(place)
    for n in range(12):
        add(place, id, *(message(f"{n}-{m}") for m in range(20)))
    place.ask("Last", conversation=id)
    texts = [f"{n}-{m}" for n in range(12) for m in range(20)] + ["Last", "You said: Last"]
    for limit in (7, 100):
        seen: list[str] = []
        after: dict[str, str] = {}
        while True:
            query = {"limit": str(limit), "order": order} | after
            page = place.api.http.get(f"{PATH}/{id}/items", params=query).json()
            seen += [one["content"][0]["text"] for one in page["data"]]
            if not page["has_more"]:
                break
            after = {"after": page["last_id"]}
        assert seen == (texts if order == "asc" else texts[::-1])


def test_the_end_of_a_long_conversation_is_read_without_the_rest(place: Place) -> None:
    id = create(place)
    for _ in range(20):
        add(place, id, *(message("x") for _ in range(20)))
    reads: list[int] = []
    backend = place.server.services.tenants.backend("default")
    read = backend.events

    async def counted(*args: Any, **kwargs: Any) -> Any:
        events = await read(*args, **kwargs)
        reads.append(len(events))
        return events

    backend.events = counted  # type: ignore[method-assign]
    try:
        last = items(place, id, order="desc", limit=1)[0]["id"]
        place.api.http.get(f"{PATH}/{id}/items/{last}")
        place.api.http.delete(f"{PATH}/{id}/items/{last}")
    finally:
        backend.events = read  # type: ignore[method-assign]
    assert sum(reads) < 250, reads


def test_an_item_of_another_branch_is_not_in_the_list(place: Place) -> None:
    id, other = create(place, message("One")), create(place, message("Two"))
    strange = items(place, other)[0]["id"]
    listed = place.api.http.get(f"{PATH}/{id}/items", params={"after": strange})
    assert problem(listed)[::2] == (400, "after")
    assert place.api.http.get(f"{PATH}/{id}/items/{strange}").status_code == 404


def test_a_header_names_a_conversation_as_in_chat(place: Place) -> None:
    one = place.post("One", headers={"X-Conversation-Id": "by-header"})
    assert one.headers["x-conversation-id"] == "by-header"
    place.ask("Two", headers={"X-Conversation-Id": "by-header"})
    fork = {"X-Conversation-Id": "by-fork", "X-Fork-From": f"by-header@{one.headers['x-turn-id']}"}
    place.ask("Three", headers=fork)
    assert place.api.said("by-header") == ["One", "You said: One", "Two", "You said: Two"]
    assert place.api.said("by-fork") == ["One", "You said: One", "Three", "You said: Three"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"items": "Hi"}, "items"),
        ({"items": [{"type": "message", "role": "user"}] * 21}, "items"),
        ({"items": [{"type": "shell_call"}]}, "items[0].type"),
    ],
)
def test_what_cannot_be_in_a_conversation_is_refused(place: Place, body: dict[str, Any], field: str) -> None:
    answer = place.api.http.post(PATH, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(field)


@pytest.mark.parametrize("value", [b'{"a":"\xff"}', b'"\xff"', b'{"a":1e999}', b"[1e999]"])
def test_what_cannot_be_read_is_refused_as_what_is_wrong(place: Place, value: bytes) -> None:
    id = create(place)
    for path, field in (
        (PATH, "metadata"),
        (PATH, "items"),
        (f"{PATH}/{id}", "metadata"),
        (f"{PATH}/{id}/items", "items"),
    ):
        sent = b'{"%s":%s}' % (field.encode(), value)
        refused = place.api.http.post(path, content=sent, headers={"Content-Type": "application/json"})
        assert refused.status_code == 400, (path, refused.text)
        assert refused.json()["error"]["param"].startswith(field)
