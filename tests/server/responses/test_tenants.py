"""A tenant sees nothing of another one's responses and conversations, whatever it calls with their ids."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from tests.server.responses.responding import PATH, body, checked, problem, responding
from tests.server.support.contract import contract
from tests.server.support.turning import Gate, two_tenants, using

from forkpoint.testing import Heard, Reply, Script, ScriptedCall

CALLS = [
    (method.upper(), path, call)
    for path, calls in contract().document["paths"].items()
    for method, call in calls.items()
    if path.startswith((f"{PATH}/", "/v1/conversations/"))
]
NOBODYS = {"response": "resp_" + "0" * 32, "conversation": "conv_" + "0" * 32, "item": f"msg_{'0' * 32}_r1"}


def answers(heard: Heard) -> Reply:
    if heard.text == "Hold" and heard.body["messages"][-1]["role"] == "user":
        return Reply(calls=(ScriptedCall("hold", '{"line":"1"}', "w1"),))
    return Reply(f"You said: {heard.text}")


@pytest.fixture(scope="module")
def tenants() -> Iterator[tuple[httpx2.Client, httpx2.Client]]:
    """Clients of tenants one and two. A response of tenant one runs."""
    gate = Gate()
    with responding(keyring=two_tenants(), tools=[gate.tool]) as place:
        place.models.script = Script(answers)
        with using(place.server.url, "key-of-one") as one, using(place.server.url, "key-of-two") as two:
            yield one.http, two.http
            gate.open()


@pytest.fixture(scope="module")
def theirs(tenants: tuple[httpx2.Client, httpx2.Client]) -> dict[str, str]:
    """What tenant one has: a conversation with a response, and a response that runs."""
    one, _ = tenants
    conversation = one.post("/v1/conversations", json={}).json()["id"]
    made = checked(one.post(PATH, json=body("Mine", conversation=conversation)))
    runs = checked(one.post(PATH, json=body("Hold", background=True)))
    item = made["output"][0]["id"]
    return {"response": made["id"], "conversation": conversation, "item": item, "runs": runs["id"]}


def everything(client: httpx2.Client, ids: dict[str, str]) -> list[Any]:
    """What can be read of a conversation and its response."""
    paths = (
        f"{PATH}/{ids['response']}",
        f"{PATH}/{ids['response']}/input_items",
        f"/v1/conversations/{ids['conversation']}",
        f"/v1/conversations/{ids['conversation']}/items",
    )
    return [client.get(path).json() for path in paths]


@pytest.mark.parametrize(("method", "path", "call"), CALLS, ids=[call["operationId"] for *_, call in CALLS])
@pytest.mark.parametrize("which", ["response", "runs"])
def test_what_another_tenant_has_is_answered_as_what_nobody_has(
    tenants: tuple[httpx2.Client, httpx2.Client],
    theirs: dict[str, str],
    method: str,
    path: str,
    call: dict[str, Any],
    which: str,
) -> None:
    one, two = tenants
    sent = call.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
    before = everything(one, theirs)

    def asked(ids: dict[str, str]) -> tuple[int, str]:
        answered = two.request(method, path.format(**ids), json=sent, headers={"X-Request-Id": "same"})
        text = answered.text
        for name, id in ids.items():
            text = text.replace(id, name)
        return answered.status_code, text

    ids = {name: theirs[name] for name in NOBODYS} | {"response": theirs[which]}
    assert asked(ids) == asked(NOBODYS)
    assert asked(ids)[0] == 404
    assert everything(one, theirs) == before


def test_no_response_stands_on_what_another_tenant_has(
    tenants: tuple[httpx2.Client, httpx2.Client], theirs: dict[str, str]
) -> None:
    one, two = tenants
    before = everything(one, theirs)
    gone_on = two.post(PATH, json=body("On", previous_response_id=theirs["response"]))
    assert problem(gone_on)[:2] == (400, "previous_response_not_found")
    assert problem(two.post(PATH, json=body("On", conversation=theirs["conversation"])))[:2] == (404, "not_found")
    reference = [{"type": "item_reference", "id": theirs["item"]}]
    assert problem(two.post(PATH, json=body(reference))) == (400, "invalid", "input[0].id")
    assert everything(one, theirs) == before


def test_a_name_means_another_conversation_for_each_tenant(tenants: tuple[httpx2.Client, httpx2.Client]) -> None:
    for client in tenants:
        said = client.post(PATH, json=body("One"), headers={"X-Conversation-Id": "plans"})
        assert said.headers["x-conversation-status"] == "created"


def test_a_running_response_of_another_tenant_is_neither_told_nor_cancelled(
    tenants: tuple[httpx2.Client, httpx2.Client], theirs: dict[str, str]
) -> None:
    one, two = tenants
    path = f"{PATH}/{theirs['runs']}"
    assert two.get(path, params={"stream": True}).status_code == 404
    assert two.post(f"{path}/cancel").status_code == 404
    assert one.get(path).json()["status"] == "in_progress"
