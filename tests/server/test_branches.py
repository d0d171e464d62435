"""Forks, rewinds, keeps and families over HTTP."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from tests.server.support.contract import checked
from tests.server.support.serving import Served, served

from forkpoint.agent import Agent
from forkpoint.ids import new_id
from forkpoint.server.agents.catalog import Catalog
from forkpoint.testing import Heard, Reply, Script

PLACE = "/api/conversations"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    def reply(heard: Heard) -> Reply:
        return Reply(f"Heard {heard.text}.", pace=0.05 if heard.text == "wait" else 0, piece=1)

    Script(reply).register("of-branches")
    agents = Catalog({"support": Agent("scripted/of-branches"), "other": Agent("scripted/echo")})
    with served(agents=agents) as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[httpx2.Client]:
    with checked(server) as client:
        yield client


@pytest.fixture
def source(client: httpx2.Client) -> dict[str, Any]:
    """A conversation of two turns, with their ids."""
    info = client.post(PLACE, json={"title": "Source", "tags": {"kind": "debug"}}).json()
    turns = [client.post(f"{PLACE}/{info['id']}/turns", json={"message": one}).json() for one in ("one", "two")]
    found: dict[str, Any] = client.get(f"{PLACE}/{info['id']}").json()
    return found | {"turns": [turn["id"] for turn in turns], "ends": [turn["events"][-1]["id"] for turn in turns]}


def refused(response: httpx2.Response, status: int, code: str) -> None:
    assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text


def events(client: httpx2.Client, id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"{PLACE}/{id}/events").json()["items"]
    return found


# Forks.


def test_a_fork_without_a_body_is_one_of_the_head(client: httpx2.Client, source: dict[str, Any]) -> None:
    answered = client.post(f"{PLACE}/{source['id']}/fork")
    fork = answered.json()
    assert answered.status_code == 201
    assert answered.headers["location"] == f"{PLACE}/{fork['id']}"
    assert answered.headers["etag"] == client.get(answered.headers["location"]).headers["etag"]
    assert fork["lineage"] == {"kind": "fork", "source": source["id"], "at": source["head"], "turn": None, "call": None}
    assert (fork["events"], fork["inherited_events"]) == (source["events"], source["events"])
    assert (fork["family"], fork["digest"], fork["agent"]) == (source["family"], source["digest"], "support")
    assert (fork["title"], fork["tags"]) == (None, {})
    assert fork["cache"]["key"] != source["cache"]["key"]
    assert events(client, fork["id"]) == events(client, source["id"])


def test_a_fork_goes_its_own_way(client: httpx2.Client, source: dict[str, Any]) -> None:
    fork = client.post(f"{PLACE}/{source['id']}/fork").json()["id"]
    client.post(f"{PLACE}/{fork}/turns", json={"message": "three"})
    assert len(events(client, fork)) > len(events(client, source["id"])) == source["events"]


@pytest.mark.parametrize(("way", "turns"), [("at", 1), ("before", 1)])
def test_a_fork_is_at_a_turn_or_an_event_or_before_it(
    client: httpx2.Client, source: dict[str, Any], way: str, turns: int
) -> None:
    first, second = source["turns"]
    whole = events(client, source["id"])
    length = sum(event["turn"] == first for event in whole)
    point = {"at": first, "before": second}[way]
    by_turn = client.post(f"{PLACE}/{source['id']}/fork", json={way: point}).json()
    assert by_turn["events"] == length
    position = {"at": whole[length - 1]["id"], "before": whole[length]["id"]}[way]
    by_event = client.post(f"{PLACE}/{source['id']}/fork", json={way: position}).json()
    assert by_event["digest"] == by_turn["digest"]
    assert events(client, by_event["id"]) == whole[:length]


def test_a_fork_has_all_that_it_is_given(client: httpx2.Client, source: dict[str, Any]) -> None:
    id = new_id()
    body = {
        "id": id,
        "name": f"named-{id}",
        "title": "A fork",
        "tags": {"kind": "try"},
        "agent": "other",
        "reset_metrics": False,
    }
    fork = client.post(f"{PLACE}/{source['id']}/fork", json=body).json()
    assert (fork["id"], fork["name"], fork["agent"]) == (id, f"named-{id}", "other")
    assert fork["tags"] == {"kind": "try", "title": "A fork"}
    stats = client.get(f"{PLACE}/{id}/stats").json()
    assert stats["carries_metrics"]
    assert stats["total"] == stats["inherited"] != stats["spent"]
    fresh = client.post(f"{PLACE}/{source['id']}/fork", json={"id": f"of-{id}"}).json()
    assert fresh["name"] == f"of-{id}"
    assert client.get(f"{PLACE}/{fresh['id']}/stats").json()["total"]["calls"] == 0
    refused(client.post(f"{PLACE}/{source['id']}/fork", json={"id": f"of-{id}"}), 409, "exists")
    refused(client.post(f"{PLACE}/{source['id']}/fork", json={"agent": "nobody"}), 404, "not_found")


def test_a_fork_may_show_the_provider_what_its_source_shows(client: httpx2.Client, source: dict[str, Any]) -> None:
    fork = client.post(f"{PLACE}/{source['id']}/fork", json={"cache": "inherit"}).json()
    assert fork["cache"]["key"] == source["cache"]["key"]
    assert fork["cache"]["inherited_from"] == source["id"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"at": "nonsense"}, "bad_position"),
        ({"at": "999-999"}, "bad_position"),
        ({"at": "9223372036854775808-1"}, "bad_position"),
        ({"at": "\0"}, "bad_position"),
        ({"at": "1-1", "before": "1-1"}, None),
    ],
)
def test_a_place_that_is_none_is_422_and_makes_nothing(
    client: httpx2.Client, source: dict[str, Any], body: dict[str, str], code: str | None
) -> None:
    answered = client.post(f"{PLACE}/{source['id']}/fork", json=body)
    assert answered.status_code == 422, answered.text
    assert code is None or answered.json()["error"]["code"] == code
    refused(client.post(f"{PLACE}/{source['id']}/fork", json={"before": new_id()}), 404, "not_found")
    assert len(client.get(f"{PLACE}/{source['id']}/tree").json()["items"]) == 1


def test_one_key_makes_one_fork_even_if_its_source_has_gone_on(client: httpx2.Client, source: dict[str, Any]) -> None:
    place, key = f"{PLACE}/{source['id']}", {"Idempotency-Key": f"fork-{source['id']}"}
    first = client.post(f"{place}/fork", json={"title": "One"}, headers=key).json()
    client.post(f"{place}/turns", json={"message": "three"})
    assert client.post(f"{place}/fork", json={"title": "One"}, headers=key).json() == first
    refused(client.post(f"{place}/fork", json={"title": "Two"}, headers=key), 422, "key_reused")
    client.delete(place)
    assert client.post(f"{place}/fork", json={"title": "One"}, headers=key).json() == first
    refused(client.post(f"{place}/fork", json={"title": "One"}, headers={"Idempotency-Key": "fresh"}), 404, "not_found")


def test_a_fork_does_not_wait_for_a_turn_that_runs(client: httpx2.Client, source: dict[str, Any]) -> None:
    place = f"{PLACE}/{source['id']}"
    begun = client.post(f"{place}/turns", json={"message": "wait"}, headers={"Prefer": "respond-async"})
    fork = client.post(f"{place}/fork").json()
    assert client.get(place).json()["status"] == "running"
    assert (fork["digest"], fork["status"]) == (source["digest"], "idle")
    refused(client.post(f"{place}/rewind", json={"at": source["turns"][0]}), 409, "busy")
    client.post(f"{begun.headers['location']}/cancel")


# Rewinds.


def test_a_rewind_moves_the_head_and_keeps_what_stood_after_it(client: httpx2.Client, source: dict[str, Any]) -> None:
    place = f"{PLACE}/{source['id']}"
    whole = events(client, source["id"])
    answered = client.post(f"{place}/rewind", json={"at": source["turns"][0]})
    body = answered.json()
    assert body["conversation"] == client.get(place).json()
    assert answered.headers["etag"] == client.get(place).headers["etag"]
    assert body["conversation"]["head"] == source["ends"][0]
    assert body["aside"]["lineage"]["kind"] == "aside"
    assert events(client, body["aside"]["id"]) == whole
    again = client.post(f"{place}/rewind", json={"at": source["turns"][0]}).json()
    assert again["aside"] is None, "nothing stood after that point"


def test_a_rewind_before_the_first_turn_leaves_nothing(client: httpx2.Client, source: dict[str, Any]) -> None:
    body = client.post(f"{PLACE}/{source['id']}/rewind", json={"before": source["turns"][0]}).json()
    assert (body["conversation"]["events"], body["conversation"]["head"]) == (0, None)


def test_a_rewind_needs_one_place_to_go_to(client: httpx2.Client, source: dict[str, Any]) -> None:
    place = f"{PLACE}/{source['id']}/rewind"
    for body in ({}, {"at": source["turns"][0], "before": source["turns"][1]}):
        refused(client.post(place, json=body), 422, "bad_position")
    refused(client.post(place), 422, "bad_position")
    refused(client.post(place, json={"at": "nonsense"}), 422, "bad_position")
    assert client.get(f"{PLACE}/{source['id']}").json()["digest"] == source["digest"]


def test_one_key_rewinds_once(client: httpx2.Client, source: dict[str, Any]) -> None:
    place, key = f"{PLACE}/{source['id']}", {"Idempotency-Key": f"rewind-{source['id']}"}
    body = {"before": source["turns"][1]}
    first = client.post(f"{place}/rewind", json=body, headers=key).json()
    client.post(f"{place}/turns", json={"message": "another two"})
    again = client.post(f"{place}/rewind", json=body, headers=key).json()
    assert again["aside"]["id"] == first["aside"]["id"]
    assert again["conversation"]["events"] > first["conversation"]["events"]


# Keeps.


def branched(client: httpx2.Client, source: dict[str, Any], name: str | None = None) -> str:
    """A branch of the source that has gone another way after the first turn."""
    body = {"at": source["turns"][0], "agent": "other"} | ({"name": name} if name else {})
    branch: str = client.post(f"{PLACE}/{source['id']}/fork", json=body).json()["id"]
    client.post(f"{PLACE}/{branch}/turns", json={"message": "other"})
    return branch


def test_a_keep_moves_the_head_and_sets_aside_what_stood_there(client: httpx2.Client, source: dict[str, Any]) -> None:
    place, name = f"{PLACE}/{source['id']}", f"try-{source['id']}"
    branch = branched(client, source, name)
    whole, theirs = events(client, source["id"]), client.get(f"{PLACE}/{branch}").json()
    answered = client.post(f"{place}/keep", json={"branch": name})
    body = answered.json()
    assert answered.status_code == 200
    assert body["conversation"] == client.get(place).json()
    assert answered.headers["etag"] == client.get(place).headers["etag"]
    now = body["conversation"]
    assert (now["head"], now["agent"]) == (theirs["head"], "other")
    assert (now["id"], now["name"], now["title"]) == (source["id"], source["name"], "Source")
    assert (now["tags"], now["cache"]["key"]) == (source["tags"], theirs["cache"]["key"])
    assert client.get(f"{PLACE}/{branch}").json() == theirs
    assert (body["aside"]["lineage"]["kind"], body["aside"]["agent"]) == ("aside", "support")
    assert events(client, body["aside"]["id"]) == whole
    back = client.post(f"{place}/keep", json={"branch": body["aside"]["id"]}).json()["conversation"]
    assert (back["head"], back["agent"], back["cache"]) == (source["head"], "support", source["cache"])
    ahead = client.post(f"{place}/fork").json()["id"]
    client.post(f"{PLACE}/{ahead}/turns", json={"message": "three"})
    assert client.post(f"{place}/keep", json={"branch": ahead}).json()["aside"] is None


def test_a_keep_of_what_cannot_be_kept_is_refused_and_changes_nothing(
    client: httpx2.Client, source: dict[str, Any]
) -> None:
    place = f"{PLACE}/{source['id']}"
    stranger = client.post(PLACE, json={}).json()["id"]
    refused(client.post(f"{place}/keep", json={"branch": stranger}), 422, "cannot_keep")
    refused(client.post(f"{place}/keep", json={"branch": source["id"]}), 422, "keeps_itself")
    refused(client.post(f"{place}/keep", json={"branch": new_id()}), 404, "not_found")
    refused(client.post(f"{PLACE}/{new_id()}/keep", json={"branch": source["id"]}), 404, "not_found")
    for body in ({}, {"branch": ""}, {"branch": 7}, {"branch": source["id"], "at": "x"}):
        assert client.post(f"{place}/keep", json=body).status_code == 422
    begun = client.post(f"{place}/turns", json={"message": "wait"}, headers={"Prefer": "respond-async"})
    refused(client.post(f"{place}/keep", json={"branch": branched(client, source)}), 409, "busy")
    client.post(f"{begun.headers['location']}/cancel")
    assert client.get(place).json()["digest"] == source["digest"]


def test_one_key_keeps_once(client: httpx2.Client, source: dict[str, Any]) -> None:
    place, key = f"{PLACE}/{source['id']}", {"Idempotency-Key": f"keep-{source['id']}"}
    branch = branched(client, source)
    first = client.post(f"{place}/keep", json={"branch": branch}, headers=key).json()
    client.post(f"{place}/turns", json={"message": "on"})
    client.delete(f"{PLACE}/{branch}")
    again = client.post(f"{place}/keep", json={"branch": branch}, headers=key).json()
    assert again["aside"]["id"] == first["aside"]["id"]
    assert again["conversation"]["events"] > first["conversation"]["events"]
    refused(client.post(f"{place}/keep", json={"branch": source["id"]}, headers=key), 422, "key_reused")


# Families.


def test_a_tree_has_the_whole_family_sources_first(client: httpx2.Client, source: dict[str, Any]) -> None:
    place = f"{PLACE}/{source['id']}"
    child = client.post(f"{place}/fork").json()["id"]
    grandchild = client.post(f"{PLACE}/{child}/fork").json()["id"]
    aside = client.post(f"{place}/rewind", json={"at": source["turns"][0]}).json()["aside"]["id"]
    for member in (source["id"], child, grandchild, aside):
        family = client.get(f"{PLACE}/{member}/tree").json()["items"]
        ids = [info["id"] for info in family]
        assert set(ids) == {source["id"], child, grandchild, aside}
        for place_in_list, info in enumerate(family):
            assert info["lineage"]["source"] is None or info["lineage"]["source"] in ids[:place_in_list]
    shown = client.get(f"{place}/tree", params={"asides": False}).json()["items"]
    assert {info["id"] for info in shown} == {source["id"], child, grandchild}
