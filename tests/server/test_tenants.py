"""Who calls, and what they see: tenants cannot see, fork, guess or disturb each other's conversations."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.support.contract import checked, contract
from tests.server.support.serving import Served, served

from forkpoint.agent import Agent
from forkpoint.ids import new_id
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.http.keys import ApiKey, Keyring, Keys, OneKey, add_key, revoke_key

PLACE = "/api/conversations"
ACME, ZETA, ALSO_ACME = "acme-" * 8, "zeta-" * 8, "also-" * 8
DOCUMENT = contract().document
CALLS = [
    (method.upper(), path, call)
    for path, calls in DOCUMENT["paths"].items()
    for method, call in calls.items()
    if path.startswith("/api/")
]
WITH_ID = [one for one in CALLS if "{id}" in one[1]]
WITH_TURN = [one for one in CALLS if "{turn}" in one[1]]


def names(calls: list[tuple[str, str, dict[str, Any]]]) -> list[str]:
    return [call["operationId"] for *_, call in calls]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    keyring = Keyring(
        [
            OneKey(ACME, ApiKey("a", "a", "acme")),
            OneKey(ZETA, ApiKey("z", "z", "zeta")),
            OneKey(ALSO_ACME, ApiKey("b", "b", "acme")),
        ]
    )
    agents = Catalog({"support": Agent("scripted/echo")})
    with served(agents=agents, keyring=keyring) as running:
        yield running


@pytest.fixture(scope="module")
def acme(server: Served) -> Iterator[httpx2.Client]:
    with checked(server, ACME) as client:
        yield client


@pytest.fixture(scope="module")
def zeta(server: Served) -> Iterator[httpx2.Client]:
    with checked(server, ZETA) as client:
        yield client


@pytest.fixture(scope="module")
def theirs(acme: httpx2.Client) -> dict[str, Any]:
    """A conversation of acme with two turns, a fork, and a name."""
    made: dict[str, Any] = acme.post(PLACE, json={"id": "plans", "tags": {"kind": "secret"}}).json()
    turns = [acme.post(f"{PLACE}/plans/turns", json={"message": f"Turn {one}"}).json()["id"] for one in "ab"]
    fork = acme.post(f"{PLACE}/plans/fork", json={"id": "plans-b"}).json()["id"]
    return made | {"turns": turns, "fork": fork}


def request(client: httpx2.Client, method: str, path: str, call: dict[str, Any], **headers: str) -> httpx2.Response:
    """A call as its own example has it."""
    body = call.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
    asked = [one for one in call.get("parameters", ()) if one["in"] == "query" and one["required"]]
    query = {one["name"]: one["schema"]["examples"][0] for one in asked}
    return client.request(method, path, params=query, json=body, headers={"X-Request-Id": "same", **headers})


# Keys.


@pytest.mark.parametrize(("method", "path", "call"), CALLS, ids=names(CALLS))
def test_without_a_key_every_call_is_401(server: Served, method: str, path: str, call: dict[str, Any]) -> None:
    path = path.replace("{id}", "plans").replace("{turn}", new_id())
    with checked(server) as client:
        unauthorized(client.request(method, path))
        unauthorized(client.request(method, path, headers={"Authorization": "Bearer wrong"}))


@pytest.mark.parametrize(
    "given", ["Bearer", f"Basic {ACME}", ACME, f"Bearer {ACME}x", f"Bearer {ACME} {ACME}", "Bearer é"]
)
def test_what_is_no_key_of_ours_is_401_and_is_not_repeated(server: Served, given: str) -> None:
    with checked(server) as client:
        answered = client.get(PLACE, headers={b"Authorization": given.encode()})
        unauthorized(answered)
        assert "acme" not in answered.text


def unauthorized(answered: httpx2.Response) -> None:
    assert (answered.status_code, answered.json()["error"]["code"]) == (401, "unauthorized"), answered.text
    assert answered.headers["www-authenticate"] == "Bearer"


def test_what_operators_ask_needs_no_key(server: Served) -> None:
    with checked(server) as client:
        for path in ("/health", "/ready", "/metrics", "/openapi.json"):
            assert client.get(path).status_code == 200


def test_two_keys_of_a_tenant_see_the_same(server: Served, theirs: dict[str, Any]) -> None:
    with checked(server, ALSO_ACME) as other:
        assert other.get(f"{PLACE}/plans").json()["id"] == theirs["id"]


def test_a_key_that_is_revoked_stops_working_within_a_second(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    made = add_key(file, "laptop", "acme")
    with served(keyring=Keyring([Keys(file)])) as server, checked(server, made.token) as client:
        assert client.get(PLACE).status_code == 200
        revoke_key(file, made.key.id)
        until = time.monotonic() + 5
        revoked = time.monotonic()
        while client.get(PLACE).status_code != 401:
            assert time.monotonic() < until, "it still works"
        assert time.monotonic() - revoked < 2


# Tenants.


@pytest.mark.parametrize(("method", "path", "call"), WITH_ID, ids=names(WITH_ID))
def test_what_is_anothers_is_404_to_the_byte_like_what_never_was(
    zeta: httpx2.Client, acme: httpx2.Client, theirs: dict[str, Any], method: str, path: str, call: dict[str, Any]
) -> None:
    before = acme.get(f"{PLACE}/plans").content, acme.get(f"{PLACE}/plans/events").content
    for given, never in ((theirs["id"], new_id()), ("plans", "p1ans"), (theirs["fork"], new_id())):
        turn = theirs["turns"][0]
        if given == "plans" and call["operationId"] == "run_turn":
            continue  # it has `create` in no example, and a name of theirs is none of ours
        foreign = request(zeta, method, path.replace("{id}", given).replace("{turn}", turn), call)
        absent = request(zeta, method, path.replace("{id}", never).replace("{turn}", turn), call)
        assert foreign.status_code == 404, foreign.text
        assert foreign.json()["error"]["code"] == "not_found"
        assert foreign.content == absent.content.replace(never.encode(), given.encode())
        assert headers_of(foreign) == headers_of(absent)
    assert (acme.get(f"{PLACE}/plans").content, acme.get(f"{PLACE}/plans/events").content) == before


@pytest.mark.parametrize(("method", "path", "call"), WITH_TURN, ids=names(WITH_TURN))
def test_a_turn_of_another_tenant_is_in_none_of_ours(
    zeta: httpx2.Client, theirs: dict[str, Any], method: str, path: str, call: dict[str, Any]
) -> None:
    ours = zeta.post(PLACE, json={}).json()["id"]
    never = new_id()
    foreign = request(zeta, method, path.replace("{id}", ours).replace("{turn}", theirs["turns"][0]), call)
    absent = request(zeta, method, path.replace("{id}", ours).replace("{turn}", never), call)
    assert foreign.status_code in {404, 409}
    assert foreign.status_code == absent.status_code
    assert foreign.content == absent.content.replace(never.encode(), theirs["turns"][0].encode())


def test_places_of_another_tenant_are_no_places_of_ours(zeta: httpx2.Client, theirs: dict[str, Any]) -> None:
    ours = zeta.post(PLACE, json={}).json()["id"]
    zeta.post(f"{PLACE}/{ours}/turns", json={"message": "Hi"})
    never = new_id()
    for path, body in (
        ("fork", {"at": "TURN"}),
        ("fork", {"before": "TURN"}),
        ("rewind", {"at": "TURN"}),
        ("keep", {"branch": "TURN"}),
        ("request", {"turn": "TURN"}),
    ):
        answers = []
        for turn in (theirs["turns"][0], never):
            said = {name: turn if value == "TURN" else value for name, value in body.items()}
            answered = (
                zeta.get(f"{PLACE}/{ours}/request", params=said)
                if path == "request"
                else zeta.post(f"{PLACE}/{ours}/{path}", json=said, headers={"X-Request-Id": "same"})
            )
            text = re.sub(r'"request_id":"[^"]*"', "", answered.text)
            answers.append((answered.status_code, text.replace(turn, "TURN")))
        assert answers[0] == answers[1]
        assert answers[0][0] >= 400, (path, body, answers)
    for place in ("events?at=", "events?after="):
        assert zeta.get(f"{PLACE}/{ours}/{place}9-9").status_code in {200, 404}


def test_two_tenants_have_the_same_names_and_each_its_own_conversations(server: Served) -> None:
    with checked(server, ACME) as acme, checked(server, ZETA) as zeta:
        made = [client.post(PLACE, json={"id": "shared-name"}).json()["id"] for client in (acme, zeta)]
        assert made[0] != made[1]
        for client, text in ((acme, "of acme"), (zeta, "of zeta")):
            client.post(f"{PLACE}/shared-name/turns", json={"message": text})
        for client, id, text, others in ((acme, made[0], "of acme", "of zeta"), (zeta, made[1], "of zeta", "of acme")):
            assert client.get(f"{PLACE}/shared-name").json()["id"] == id
            said = client.get(f"{PLACE}/{id}/events").text
            assert text in said
            assert others not in said


def test_lists_trees_and_checks_show_a_tenant_its_own_only(
    acme: httpx2.Client, zeta: httpx2.Client, theirs: dict[str, Any]
) -> None:
    listed = zeta.get(PLACE, params={"limit": 1000}).text
    assert theirs["id"] not in listed
    assert theirs["fork"] not in listed
    assert zeta.get(PLACE, params={"tag": "kind=secret"}).json()["items"] == []
    own = acme.get(PLACE, params={"limit": 1000}).json()["items"]
    assert zeta.post("/api/verify").json()["conversations"] != acme.post("/api/verify").json()["conversations"]
    assert {theirs["id"], theirs["fork"]} <= {one["id"] for one in own}


def test_a_cursor_of_another_tenant_leads_to_nothing_of_theirs(
    acme: httpx2.Client, zeta: httpx2.Client, theirs: dict[str, Any]
) -> None:
    cursor = acme.get(PLACE, params={"limit": 1}).json()["next"]
    assert cursor
    page = zeta.get(PLACE, params={"cursor": cursor, "limit": 1000})
    assert theirs["id"] not in page.text


def test_one_idempotency_key_is_one_effect_for_each_tenant(acme: httpx2.Client, zeta: httpx2.Client) -> None:
    key = {"Idempotency-Key": "order-77"}
    made = [client.post(PLACE, json={"title": "Mine"}, headers=key).json()["id"] for client in (acme, zeta, acme, zeta)]
    assert made[:2] == made[2:]
    assert made[0] != made[1]
    reused = zeta.post(PLACE, json={"title": "Other"}, headers=key)
    assert (reused.status_code, reused.json()["error"]["code"]) == (422, "key_reused")


def test_what_a_tenant_deleted_is_gone_for_it_and_was_never_there_for_others(
    acme: httpx2.Client, zeta: httpx2.Client
) -> None:
    id = acme.post(PLACE, json={"id": "short-lived"}).json()["id"]
    assert acme.delete(f"{PLACE}/{id}").status_code == 204
    same = {"X-Request-Id": "same"}
    gone, never = (client.get(f"{PLACE}/{id}", headers=same) for client in (acme, zeta))
    assert gone.status_code == never.status_code == 404
    assert gone.content == never.content


def test_an_id_that_another_tenant_has_is_free_for_us_so_nobody_learns_who_has_it(
    acme: httpx2.Client, zeta: httpx2.Client, theirs: dict[str, Any]
) -> None:
    before = acme.get(f"{PLACE}/plans").content, acme.get(f"{PLACE}/plans/events").content
    ours = zeta.post(PLACE, json={"id": theirs["id"]})
    assert ours.status_code == 201
    assert (ours.json()["name"], ours.json()["events"]) == (theirs["id"], 0)
    zeta.post(f"{PLACE}/{theirs['id']}/turns", json={"message": "of zeta"})
    zeta.post(f"{PLACE}/{theirs['fork']}/turns", json={"message": "of zeta", "create": {}})
    for id in (theirs["id"], theirs["fork"]):
        assert "of zeta" in zeta.get(f"{PLACE}/{id}/events").text
        assert "of zeta" not in acme.get(f"{PLACE}/{id}/events").text
        assert len(zeta.get(f"{PLACE}/{id}/tree").json()["items"]) == 1
        assert zeta.delete(f"{PLACE}/{id}").status_code == 204
    assert (acme.get(f"{PLACE}/plans").content, acme.get(f"{PLACE}/plans/events").content) == before


def headers_of(response: httpx2.Response) -> dict[str, str]:
    """All headers but the time and the length, which is the body's."""
    return {name: value for name, value in response.headers.items() if name not in {"date", "content-length"}}
