"""Responses whose conversation nobody named or used are kept for a time, and go with a collection."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from tests.server.responses.responding import Place, body, problem, responding
from tests.server.support.serving import ServerProcess
from tests.server.support.turning import Gate, left_nothing

from forkpoint.server.wires.responses.items.ids import conversation_id
from forkpoint.store import Retention
from forkpoint.store.address import open_store
from forkpoint.testing import Heard, Reply, Script, ScriptedCall


def test_an_old_response_is_gone_unless_somebody_has_named_its_conversation(tmp_path: Path) -> None:
    env = {"FORKPOINT_KEEP_RESPONSES": "0s"}
    with (
        ServerProcess("--model", "scripted/echo", folder=tmp_path, env=env) as server,
        httpx2.Client(base_url=server.url) as http,
    ):
        old, named = (http.post("/v1/responses", json=body(text, model="echo")) for text in ("One", "Two"))
        assert (old.status_code, named.status_code) == (200, 200), old.text
        conversation = named.headers["x-conversation-id"].removeprefix("conv_")
        assert http.patch(f"/api/conversations/{conversation}", json={"title": "Mine"}).status_code == 200
        assert http.post("/api/collect", json={"dry_run": True}).json()["responses"] == 1
        assert http.post("/api/collect").json()["responses"] == 1
        assert http.get(f"/v1/responses/{old.json()['id']}").status_code == 404
        on = http.post("/v1/responses", json=body("On", model="echo", previous_response_id=old.json()["id"]))
        assert problem(on) == (400, "previous_response_not_found", "previous_response_id")
        assert http.get(f"/v1/responses/{named.json()['id']}").json()["id"] == named.json()["id"]


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/forkpoint.db"


@pytest.fixture
def place(gate: Gate, url: str) -> Iterator[Place]:
    with responding(store=url, tools=[gate.tool]) as place:
        place.models.script = Script(obedient)
        yield place
        gate.open()
        left_nothing(place.server)


def collect(url: str) -> int:
    """Collects as if all time were over that a response is kept. Returns how many conversations of responses went."""

    async def collected() -> int:
        async with await open_store(url, retention=Retention(responses=0)) as store:
            return (await store.collect()).responses

    return asyncio.run(collected())


def obedient(heard: Heard) -> Reply:
    if heard.text == "Hold" and heard.body["messages"][-1]["role"] == "user":
        return Reply(calls=(ScriptedCall("hold", '{"line":"1"}', "w1"),))
    return Reply(f"You said: {heard.text}")


def natively(place: Place, id: str) -> None:
    assert place.api.run(id, "Mine").status_code == 200


def by_chat(place: Place, id: str) -> None:
    asked = {"model": "helper", "messages": [{"role": "user", "content": "Mine"}]}
    said = place.api.http.post("/v1/chat/completions", json=asked, headers={"X-Conversation-Id": id})
    assert said.status_code == 200, said.text


def as_a_conversation(place: Place, id: str) -> None:
    place.ask("Mine", conversation=conversation_id(id))


def with_an_item(place: Place, id: str) -> None:
    item = {"type": "message", "role": "user", "content": "Mine"}
    path = f"/v1/conversations/{conversation_id(id)}/items"
    assert place.api.http.post(path, json={"items": [item]}).status_code == 200


@pytest.mark.parametrize("use", [natively, by_chat, as_a_conversation, with_an_item])
def test_a_conversation_that_was_used_otherwise_is_somebodys_own(
    place: Place, url: str, use: Callable[[Place, str], None]
) -> None:
    first = place.ask("One")
    id = place.conversation(first["id"])
    use(place, id)
    newest = place.api.get(f"{id}/turns")["items"][-1]["id"]
    there = place.api.said(id)
    after = place.ask("Two", previous_response_id=f"resp_{newest.replace('-', '')}")
    assert place.conversation(after["id"]) != id
    assert collect(url) == 1, "what stands on it goes"
    assert place.api.said(id) == there
    assert place.api.http.delete(f"/v1/responses/resp_{newest.replace('-', '')}").status_code == 200
    assert place.api.said(id) == there


def test_one_that_runs_is_kept_until_it_has_ended(place: Place, gate: Gate, url: str) -> None:
    first = place.ask("One")
    made = place.ask("Hold", previous_response_id=first["id"], background=True)
    gate.reached()
    assert collect(url) == 0
    gate.open()
    left_nothing(place.server)
    assert place.get(made["id"])["status"] == "completed"
    assert collect(url) == 1


def test_what_is_held_is_kept(place: Place, url: str) -> None:
    held, other = place.ask("One"), place.ask("Two")
    path = f"/api/conversations/{place.conversation(held['id'])}/holds"
    assert place.api.http.post(path, json={"reason": "a case"}).status_code == 201
    assert collect(url) == 1
    assert place.get(held["id"])["id"] == held["id"]
    assert place.api.http.get(f"/v1/responses/{other['id']}").status_code == 404


def test_a_branch_keeps_what_it_stands_on_though_its_source_goes(place: Place, url: str) -> None:
    first = place.ask("One")
    second = place.ask("Two", previous_response_id=first["id"])
    branch = place.ask("Other", previous_response_id=first["id"])
    named = place.api.http.patch(f"/api/conversations/{place.conversation(branch['id'])}", json={"title": "Mine"})
    assert named.status_code == 200
    assert collect(url) == 1
    assert place.api.http.get(f"/v1/responses/{second['id']}").status_code == 404
    assert place.said(branch["id"]) == ["One", "You said: One", "Other", "You said: Other"]
    on = place.ask("On", previous_response_id=branch["id"])
    assert place.said(on["id"])[:2] == ["One", "You said: One"]
