"""How two branches differ, and what one brings from another, over HTTP."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from tests.server.support.contract import checked
from tests.server.support.serving import Served, served

from forkpoint.agent import Agent, Hook
from forkpoint.ids import new_id
from forkpoint.llm import LLM
from forkpoint.server.agents.catalog import Catalog
from forkpoint.testing import Heard, Reply, Script

PLACE = "/api/conversations"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    def reply(heard: Heard) -> Reply:
        return Reply("In short." if heard.text.startswith("<branch>") else f"Heard {heard.text}.")

    model = LLM(Script(reply).register("of-compare"), extra='{"secret_route":1}')
    agents = {"support": Agent(model), "hooked": Agent(model, hooks=[Hook("turn_start", command="secret-command")])}
    with served(agents=Catalog(agents)) as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[httpx2.Client]:
    with checked(server) as client:
        yield client


@pytest.fixture
def family(client: httpx2.Client) -> tuple[str, str]:
    """A conversation and a branch of it that has gone on."""
    source = client.post(PLACE, json={}).json()["id"]
    client.post(f"{PLACE}/{source}/turns", json={"message": "one"})
    branch = client.post(f"{PLACE}/{source}/fork", json={"title": "Try"}).json()["id"]
    client.post(f"{PLACE}/{branch}/turns", json={"message": "two"})
    return source, branch


def refused(response: httpx2.Response, status: int, code: str) -> None:
    assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text


def test_two_branches_are_compared(client: httpx2.Client, family: tuple[str, str]) -> None:
    source, branch = family
    found = client.get(f"{PLACE}/{source}/diff", params={"with": branch}).json()
    assert (found["a"]["id"], found["b"]["id"], found["related"]) == (source, branch, True)
    assert [(pair["a"], pair["b"]["input"], pair["b"]["text"]) for pair in found["pairs"]] == [
        (None, "two", "Heard two.")
    ]
    assert found["b"]["usage"]["calls"] == 1
    assert client.get(f"{PLACE}/{source}/diff", params={"with": source}).json()["same"]


def test_a_comparison_without_the_other_one_or_with_nobody_is_refused(
    client: httpx2.Client, family: tuple[str, str]
) -> None:
    source, _ = family
    assert client.get(f"{PLACE}/{source}/diff").status_code == 422
    refused(client.get(f"{PLACE}/{source}/diff", params={"with": "nobody"}), 404, "not_found")
    for limit in ("0", "1001", "many"):
        assert client.get(f"{PLACE}/{source}/diff", params={"with": source, "limit": limit}).status_code == 422


def test_nothing_that_is_the_servers_is_told(client: httpx2.Client, family: tuple[str, str]) -> None:
    source, _ = family
    branch = client.post(f"{PLACE}/{source}/fork", json={"agent": "hooked"}).json()["id"]
    answered = client.get(f"{PLACE}/{source}/diff", params={"with": branch})
    (hooks,) = [one for one in answered.json()["settings"] if one["name"] == "hooks"]
    assert (hooks["a"], hooks["b"]) == (None, "1 hook")
    assert "secret" not in answered.text


@pytest.mark.parametrize("what", [None, "answer", "summary", "turns"])
def test_something_is_brought_once_for_a_key(client: httpx2.Client, family: tuple[str, str], what: str | None) -> None:
    source, branch = family
    body: dict[str, Any] = {"branch": branch} | ({} if what is None else {"what": what})
    once = {"Idempotency-Key": new_id()}
    first, again = (client.post(f"{PLACE}/{source}/bring", json=body, headers=once) for _ in range(2))
    assert (first.status_code, again.json()) == (200, first.json())
    done = first.json()
    assert (done["what"], done["source"], done["usage"]["calls"]) == (what or "answer", branch, int(what == "summary"))
    events = client.get(f"{PLACE}/{source}/events").json()["items"]
    assert [event["id"] for event in events[-len(done["events"]) :]] == [event["id"] for event in done["events"]]
    assert client.get(f"{PLACE}/{source}/stats").json()["spent"]["calls"] == 1 + (what == "summary")


def test_what_may_not_be_brought_is_refused_with_a_code(client: httpx2.Client, family: tuple[str, str]) -> None:
    source, branch = family
    place = f"{PLACE}/{source}/bring"
    refused(client.post(place, json={"branch": source}), 409, "bring_refused")
    refused(client.post(place, json={"branch": "nobody"}), 404, "not_found")
    refused(client.post(place, json={"branch": branch}, headers={"If-Match": '"7"'}), 412, "stale")
    assert client.post(place, json={"branch": branch, "what": "all"}).status_code == 422
    assert client.post(place, json={}).status_code == 422
    assert client.post(place, json={"branch": branch}, headers={"If-Match": "*"}).status_code == 200
