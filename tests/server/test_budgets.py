"""Budgets over HTTP: who may set one, what is refused and how, natively and in chat completions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.chat.chatting import post, problem, user
from tests.server.support.serving import served
from tests.server.support.turning import Api, using

from forkpoint.server.http.keys import ROLES, Keyring, Keys, Role, add_key


@pytest.fixture
def api() -> Iterator[Api]:
    with served() as server, using(server.url) as api:
        yield api


def put(api: Api, id: str, **limits: Any) -> httpx2.Response:
    return api.http.put(f"/api/conversations/{id}/budget", json=limits)


def test_a_budget_is_set_read_and_removed(api: Api) -> None:
    api.create(id="ann", budget={"turns": 5}, family_budget={"dollars": 2.0})
    own, family = api.get("ann/budget")["items"]
    assert (own["limits"], own["left"]["turns"]) == ({"turns": 5}, 5)
    assert (family["scope"], family["conversation"], family["limits"]) == ("family", None, {"dollars": 2.0})
    changed = put(api, "ann", tokens=10**6, scope="family")
    assert changed.status_code == 200
    assert [one["limits"] for one in changed.json()["items"]] == [{"turns": 5}, {"tokens": 10**6}]
    left = api.http.delete("/api/conversations/ann/budget", params={"scope": "family"}).json()
    assert [one["scope"] for one in left["items"]] == ["conversation"]
    assert api.http.delete("/api/conversations/ann/budget").json() == {"items": []}


def test_a_first_turn_makes_a_conversation_with_its_budget(api: Api) -> None:
    made = api.http.post(
        "/api/conversations/new/turns", json={"message": "hi", "create": {"budget": {"turns": 1}, "name": "new"}}
    )
    assert made.status_code == 200, made.text
    assert api.run("new", "more").status_code == 402


@pytest.mark.parametrize(
    "body", [{}, {"scope": "family"}, {"dollars": -1}, {"tokens": 1.5}, {"turns": 1, "scope": "x"}]
)
def test_a_budget_that_cannot_be_is_refused(api: Api, body: dict[str, Any]) -> None:
    api.create(id="ann")
    assert put(api, "ann", **body).status_code == 422
    assert api.get("ann/budget") == {"items": []}


def test_what_a_budget_does_not_allow_is_402_and_says_which_budget(api: Api) -> None:
    id = api.create(id="ann")
    api.run("ann", "one")
    put(api, "ann", turns=1)
    refused = api.run("ann", "two")
    assert refused.status_code == 402
    error = refused.json()["error"]
    assert (error["code"], error["details"]["whose"], error["details"]["limit"]) == (
        "budget_exceeded",
        f"conversation {id}",
        "1",
    )
    assert "PUT /api/conversations/ID/budget" in error["message"]
    put(api, "ann", tokens=100)  # a turn may begin, and has no room for a call
    failed = api.run("ann", "two")
    assert (failed.status_code, failed.json()["error"]["code"]) == (402, "turn_failed")
    assert failed.json()["error"]["cause"]["code"] == "budget_exceeded"
    assert api.post("ann/ask", message="and?").status_code == 402
    assert api.http.delete("/api/conversations/ann/budget").status_code == 200
    turn = failed.json()["turn"]["id"]
    assert api.post(f"ann/turns/{turn}/resume").json()["outcome"] == "committed"


@pytest.mark.parametrize("stream", [False, True])
def test_in_chat_completions_it_is_an_error_that_sdks_do_not_retry(api: Api, stream: bool) -> None:
    model = api.http.get("/v1/models").json()["data"][0]["id"]
    assert post(api.http, [user("one")], conversation="ann", model=model).status_code == 200
    put(api, "ann", turns=1)
    refused = post(api.http, [user("two")], conversation="ann", model=model, stream=stream)
    assert problem(refused) == (402, "budget_exceeded")
    assert refused.headers["x-should-retry"] == "false"
    told = refused.json()["error"]
    assert (told["type"], "raise the budget" in told["message"]) == ("invalid_request_error", True)
    put(api, "ann", tokens=100)
    failed = post(api.http, [user("two")], conversation="ann", model=model)
    assert problem(failed) == (402, "budget_exceeded")
    assert failed.headers["x-should-retry"] == "false"


def test_setting_a_budget_and_leaving_the_familys_need_the_role_operate(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    tokens = {role: add_key(file, f"{role}er", role=role).token for role in ROLES}
    with served(keyring=Keyring([Keys(file)])) as server:

        def ask(role: Role, method: str, path: str, **body: Any) -> int:
            headers = {"Authorization": f"Bearer {tokens[role]}"}
            with httpx2.Client(base_url=server.url, headers=headers) as http:
                return http.request(method, path, json=body or None).status_code

        here = "/api/conversations/ann"
        assert ask("use", "POST", "/api/conversations", id="ann", budget={"turns": 9}) == 201
        assert [ask(role, "GET", f"{here}/budget") for role in tokens] == [200, 200, 200]
        assert [ask(role, "PUT", f"{here}/budget", turns=5) for role in tokens] == [403, 403, 200]
        assert ask("use", "DELETE", f"{here}/budget") == 403
        assert ask("use", "POST", f"{here}/fork") == 201
        assert ask("use", "POST", f"{here}/fork", budget={"dollars": 1000}) == 403
        assert ask("operate", "POST", f"{here}/fork", budget={"dollars": 1000}) == 201
        assert ask("use", "POST", f"{here}/agents", task="x", run=False, budget={"dollars": 1000}) == 403
