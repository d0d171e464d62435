"""Steering a turn over HTTP: through any server, by any key that may use it, once for each Idempotency-Key."""

from collections.abc import Iterator

import pytest
from tests.server.support.serving import Served, served
from tests.server.support.turning import PATIENCE, Api, Gate, agents_of, holds, two_tenants, using


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def server(gate: Gate) -> Iterator[Served]:
    with served(agents=agents_of(gate.tool), keyring=two_tenants()) as server:
        yield server
        gate.open()


@pytest.fixture
def api(server: Served) -> Iterator[Api]:
    with using(server.url, "key-of-one") as api:
        yield api


def begun(api: Api, gate: Gate) -> tuple[str, str]:
    """A conversation, and its turn, which waits in a tool."""
    id = api.create()
    turn = api.run(id, holds("x"), prefer="respond-async").json()["id"]
    gate.reached()
    return id, turn


def test_a_message_comes_with_the_results_and_is_told_in_the_streams(api: Api, gate: Gate) -> None:
    id, turn = begun(api, gate)
    sent = api.post(f"{id}/turns/{turn}/steer", message="Be brief.")
    assert sent.status_code == 200
    receipt = sent.json()
    told = (receipt["turn"], receipt["conversation"], receipt["outcome"], receipt["delivered"])
    assert told == (turn, id, "running", False)
    assert api.turn(id, turn)["steered"] == [
        {
            "id": receipt["id"],
            "time": api.turn(id, turn)["steered"][0]["time"],
            "message": {"kind": "user_message", "parts": [{"type": "text", "text": "Be brief."}]},
            "by": "one",
        }
    ]
    with api.streamed("GET", f"{id}/turns/{turn}") as joined:
        joined.until("snapshot")
        gate.open()
        frames = joined.until("turn")
    kinds = [kind for kind, _ in frames]
    assert kinds.index("call_ended") < kinds.index("steered") < kinds.index("text")
    (steered,) = [data for kind, data in frames if kind == "steered"]
    assert (steered["id"], steered["by"], steered["turn"]) == (receipt["id"], "one", turn)
    ended = frames[-1][1]
    assert (ended["text"], ended["steered"][0]["delivered"]) == ("You said: Be brief.", True)
    assert [event["steer"] for event in api.get(f"{id}/events")["items"] if "steer" in event] == [receipt["id"]]


def test_a_repeat_with_its_key_is_the_same_message(api: Api, gate: Gate) -> None:
    id, turn = begun(api, gate)
    first = api.post(f"{id}/turns/{turn}/steer", key="k1", message="Be brief.")
    assert api.post(f"{id}/turns/{turn}/steer", key="k1", message="Be brief.").json() == first.json()
    refused = api.post(f"{id}/turns/{turn}/steer", key="k1", message="Be long.")
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "key_reused")
    gate.open()
    assert len(api.turn(id, turn, wait=PATIENCE)["steered"]) == 1
    again = api.post(f"{id}/turns/{turn}/steer", key="k1", message="Be brief.").json()
    assert again == first.json() | {"outcome": "committed", "delivered": True}


def test_what_cannot_be_steered_is_refused_with_what_to_do(server: Served, api: Api, gate: Gate) -> None:
    id, turn = begun(api, gate)
    with using(server.url, "key-of-two") as stranger:
        assert stranger.post(f"{id}/turns/{turn}/steer", message="hi").status_code == 404
    for body in ({}, {"message": "  "}, {"message": "hi", "colour": "red"}):
        assert api.post(f"{id}/turns/{turn}/steer", **body).status_code == 422
    assert api.post(f"{id}/turns/0197b1f2-7a10-7000-8000-000000000000/steer", message="hi").status_code == 404
    gate.open()
    api.turn(id, turn, wait=PATIENCE)
    over = api.post(f"{id}/turns/{turn}/steer", message="hi")
    assert (over.status_code, over.json()["error"]["code"]) == (409, "no_such_turn")
    assert "send it as the next" in over.json()["error"]["message"]
