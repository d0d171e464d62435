"""Erasing and holding over HTTP, as any client sees it. tests/conversation/test_erasing.py has what goes."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.support.serving import served
from tests.server.support.turning import Api, using


@pytest.fixture
def api() -> Iterator[Api]:
    with served() as server, using(server.url) as api:
        yield api


def test_a_dry_run_changes_nothing_and_a_receipt_says_what_went(api: Api) -> None:
    id = api.create(id="ann")
    turn = api.run(id, "I am Ann").json()
    asked = {"turn": turn["id"], "reason": "a request"}
    shown = api.post("ann/erase", dry_run=True, **asked).json()
    assert (shown["done"], shown["touched_named"]) == (False, [{"id": id, "name": "ann"}])
    assert None not in [event["body"] for event in api.get("ann/events")["items"]]
    receipt = api.post("ann/erase", **asked).json()
    assert (receipt["turns"], receipt["reason"]) == ([turn["id"]], "a request")
    assert None in [event["body"] for event in api.get("ann/events")["items"]]
    (listed,) = api.http.get("/api/erasures").json()["items"]
    assert (listed["id"], listed["runs"]) == (receipt["id"], receipt["runs"])


def test_what_is_held_is_refused_with_the_reasons(api: Api) -> None:
    api.create(id="ann")
    api.run("ann", "I am Ann")
    held = api.post("ann/holds", reason="case 17")
    assert held.status_code == 201
    for refused in (
        api.post("ann/erase", everything=True, reason="no"),
        api.http.delete("/api/conversations/ann"),
        api.http.post("/api/erase", json={"everything": True, "reason": "no"}),
    ):
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "held")
        assert "case 17" in refused.json()["error"]["message"]
    assert api.http.get("/api/holds").json() == api.get("ann/holds") == {"items": [held.json()]}
    ended = api.http.delete(f"/api/conversations/ann/holds/{held.json()['id']}")
    assert ended.json() == {"items": [held.json()]}
    assert api.http.delete("/api/conversations/ann/holds").json() == {"items": []}
    assert len(api.http.post("/api/erase", json={"everything": True, "reason": "yes"}).json()["items"]) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"reason": "x"},
        {"reason": "", "everything": True},
        {"everything": True},
        {"reason": "x", "everything": True, "event": "1-1"},
        {"reason": "x", "event": "nowhere"},
    ],
)
def test_what_is_meant_has_to_be_said(api: Api, body: dict[str, Any]) -> None:
    api.create(id="ann")
    assert api.post("ann/erase", **body).status_code in (400, 422)
