"""Conversations over HTTP: made, listed, read, described, deleted; who answers in them."""

import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from tests.server.support.contract import checked
from tests.server.support.serving import Served, served

from forkpoint.agent import Agent, tool
from forkpoint.ids import new_id
from forkpoint.server.agents.catalog import Catalog
from forkpoint.testing import Fault, Heard, Reply, Script

PLACE = "/api/conversations"


@tool
def search(words: str) -> str:
    """Look something up."""
    return words


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    def reply(heard: Heard) -> Reply:
        if heard.text == "fail":
            return Reply(fault=Fault("bad_request"))
        return Reply("One. Two. Three.", pace=0 if heard.text != "wait" else 0.05, piece=1)

    Script(reply).register("of-conversations")
    agents = Catalog(
        {"support": Agent("scripted/of-conversations", tools=[search]), "other": Agent("scripted/echo")},
        allow_models=["scripted/*"],
    )
    with served(agents=agents) as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[httpx2.Client]:
    with checked(server) as client:
        yield client


def refused(response: httpx2.Response, status: int, code: str) -> None:
    assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text


def made(client: httpx2.Client, **body: Any) -> dict[str, Any]:
    answered = client.post(PLACE, json=body)
    assert answered.status_code == 201, answered.text
    info: dict[str, Any] = answered.json()
    return info


def test_agents_are_listed_with_the_default_first(client: httpx2.Client) -> None:
    assert client.get("/api/agents").json() == {
        "items": [
            {"name": "support", "model": "scripted/of-conversations", "tools": ["search"], "default": True},
            {"name": "other", "model": "scripted/echo", "tools": [], "default": False},
        ]
    }


# Making.


def test_a_conversation_is_made_of_nothing(client: httpx2.Client) -> None:
    for answered in (client.post(PLACE), client.post(PLACE, json={})):
        info = answered.json()
        assert answered.status_code == 201
        assert answered.headers["location"] == f"{PLACE}/{info['id']}"
        assert (info["agent"], info["name"], info["revision"], info["events"]) == ("support", info["id"], 0, 0)
        assert client.get(answered.headers["location"]).json() == info
        assert client.get(answered.headers["location"]).headers["etag"] == answered.headers["etag"]


def test_a_conversation_is_made_with_everything(client: httpx2.Client) -> None:
    id = new_id()
    info = made(client, id=id, name="everything", agent="other", title="A title", tags={"kind": "debug"})
    assert (info["id"], info["name"], info["agent"]) == (id, "everything", "other")
    assert (info["title"], info["tags"]) == ("A title", {"kind": "debug", "title": "A title"})
    for name in (id, "everything"):
        assert client.get(f"{PLACE}/{name}").json() == info


def test_a_conversation_begins_with_messages_and_its_messages_can_be_read(client: httpx2.Client) -> None:
    messages = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A tree."}]
    info = made(client, messages=messages, id="a-tree")
    assert info["events"] == 3
    assert client.get(f"{PLACE}/a-tree/messages").json() == {"format": "openai", "messages": messages}
    blocks = [one | {"content": [{"type": "text", "text": one["content"]}]} for one in messages]
    assert client.get(f"{PLACE}/a-tree/messages?format=anthropic").json() == {"format": "anthropic", "messages": blocks}
    refused(client.get(f"{PLACE}/a-tree/messages?format=gemini"), 422, "invalid")
    refused(client.get(f"{PLACE}/nobody/messages"), 404, "not_found")


def test_messages_that_cannot_be_history_make_no_conversation(client: httpx2.Client) -> None:
    before = client.get(PLACE).json()
    answered = client.post(PLACE, json={"messages": [{"role": "user", "content": "a"}, {"role": "robot"}]})
    refused(answered, 422, "bad_messages")
    assert answered.json()["error"]["details"]["index"] == 1
    refused(client.post(PLACE, json={"messages": []}), 422, "bad_argument")
    refused(client.post(PLACE, json={"messages": [{"role": "user", "content": "a"}] * 10_001}), 413, "too_large")
    assert client.get(PLACE).json() == before


def test_one_key_makes_one_conversation_of_one_list(client: httpx2.Client) -> None:
    headers = {"Idempotency-Key": new_id()}
    body = {"messages": [{"role": "user", "content": "a"}]}
    first, again = (client.post(PLACE, json=body, headers=headers).json()["id"] for _ in range(2))
    assert first == again
    other = {"messages": [{"role": "user", "content": "b"}]}
    refused(client.post(PLACE, json=other, headers=headers), 422, "key_reused")


def test_an_id_that_is_none_is_a_name_for_a_fresh_one(client: httpx2.Client) -> None:
    info = made(client, id="a-name")
    assert info["name"] == "a-name"
    assert info["id"] != "a-name"
    refused(client.post(PLACE, json={"id": "a-name"}), 409, "exists")
    refused(client.post(PLACE, json={"id": info["id"]}), 409, "exists")
    refused(client.post(PLACE, json={"id": "not a name"}), 422, "invalid")


def test_an_agent_may_be_sent_as_data(client: httpx2.Client) -> None:
    info = made(client, agent={"llm": {"model": "scripted/echo"}, "instructions": "Be brief.", "name": "brief"})
    assert (info["agent"], info["model"]) == ("brief", "scripted/echo")
    said = client.post(f"{PLACE}/{info['id']}/turns", json={"message": "Hi"}).json()
    assert said["text"] == "You said: Hi"


def test_an_agent_that_is_not_offered_is_refused_and_nothing_is_made(client: httpx2.Client) -> None:
    before = client.get(PLACE).json()
    refused(client.post(PLACE, json={"agent": "nobody"}), 404, "not_found")
    refused(client.post(PLACE, json={"agent": {"llm": {"model": "openai/gpt-5.6"}}}), 422, "bad_agent")
    with_tools = {"llm": {"model": "scripted/echo"}, "tools": ["os:system"]}
    refused(client.post(PLACE, json={"agent": with_tools}), 422, "bad_agent")
    refused(client.post(PLACE, json={"workspace": "/etc"}), 422, "bad_workspace")
    assert client.get(PLACE).json() == before


def test_one_key_makes_one_conversation(client: httpx2.Client) -> None:
    key = {"Idempotency-Key": "make-one"}
    first, again = (client.post(PLACE, json={"title": "One"}, headers=key) for _ in range(2))
    assert first.json() == again.json()
    assert first.headers["etag"] == again.headers["etag"]
    refused(client.post(PLACE, json={"title": "Other"}, headers=key), 422, "key_reused")


# Lists.


def test_lists_are_newest_first_and_every_page_leads_to_the_next(client: httpx2.Client) -> None:
    ids = [made(client, tags={"list": "pages"})["id"] for _ in range(7)]
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(4):
        query = {"limit": "2", "tag": "list=pages"} | ({"cursor": cursor} if cursor else {})
        page = client.get(PLACE, params=query).json()
        seen += [info["id"] for info in page["items"]]
        cursor = page["next"]
    assert seen == ids[::-1]
    assert cursor is None
    refused(client.get(PLACE, params={"cursor": "nonsense"}), 400, "bad_cursor")


def test_lists_by_last_use_have_cursors_of_their_own(client: httpx2.Client) -> None:
    ids = [made(client, tags={"list": "use"})["id"] for _ in range(3)]
    query = {"tag": "list=use", "order": "used", "limit": "2"}
    page = client.get(PLACE, params=query).json()
    rest = client.get(PLACE, params=query | {"cursor": page["next"]}).json()
    assert [info["id"] for info in page["items"] + rest["items"]] == ids[::-1], "nobody has used them since"
    refused(client.get(PLACE, params={"cursor": page["next"]}), 400, "bad_cursor")
    refused(client.get(PLACE, params={"order": "size"}), 422, "invalid")


def test_lists_are_filtered_by_all_tags_and_by_status(client: httpx2.Client) -> None:
    both = made(client, tags={"team": "red", "kind": "a=b"})["id"]
    made(client, tags={"team": "red"})
    made(client, tags={"kind": "a=b"})
    found = client.get(PLACE, params=[("tag", "team=red"), ("tag", "kind=a=b")]).json()["items"]
    assert [info["id"] for info in found] == [both]
    assert client.get(PLACE, params={"tag": "team=blue"}).json() == {"items": [], "next": None}
    assert client.get(PLACE, params={"status": "running"}).json()["items"] == []
    idle = client.get(PLACE, params={"status": "idle", "tag": "team=red", "limit": 1000}).json()["items"]
    assert len(idle) == 2


# Reading, with ETags.


def test_the_etag_is_the_revision_and_changes_with_whatever_is_shown(client: httpx2.Client) -> None:
    place = f"{PLACE}/{made(client)['id']}"

    def etag() -> str:
        found = client.get(place)
        assert re.fullmatch(rf'"{found.json()["revision"]}-[0-9a-f]{{16}}"', found.headers["etag"])
        assert client.get(place).headers["etag"] == found.headers["etag"]
        return found.headers["etag"]

    seen = [etag()]
    client.post(f"{place}/turns", json={"message": "Hi"})
    seen.append(etag())
    for described in ({"title": "New"}, {"tags": {"a": "1"}}, {"title": ""}):
        assert client.patch(place, json=described).headers["etag"] == etag()
        seen.append(etag())
    begun = client.post(f"{place}/turns", json={"message": "wait"}, headers={"Prefer": "respond-async"})
    seen.append(etag())
    client.post(f"{begun.headers['location']}/cancel")
    assert len(set(seen)) == len(seen)


def test_a_description_that_was_changed_meanwhile_is_412_and_changes_nothing(client: httpx2.Client) -> None:
    place = f"{PLACE}/{made(client, title='Old', tags={'a': '1'})['id']}"
    first = client.get(place)
    mine = client.patch(place, json={"title": "Mine"}, headers={"If-Match": first.headers["etag"]})
    assert mine.status_code == 200
    theirs = client.patch(place, json={"title": "Theirs"}, headers={"If-Match": first.headers["etag"]})
    refused(theirs, 412, "stale")
    details = theirs.json()["error"]["details"]
    assert (details["expected"], details["actual"]) == (first.headers["etag"][1:-1], mine.headers["etag"][1:-1])
    assert client.get(place).json() == mine.json()
    for match in (mine.headers["etag"], "*", '"0"'):
        assert client.patch(place, json={"tags": {"b": match}}, headers={"If-Match": match}).status_code == 200
    refused(client.patch(place, json={"title": "Theirs"}, headers={"If-Match": '"1"'}), 412, "stale")


@pytest.mark.parametrize(
    "match", ["", "3", "rubbish", '"rubbish"', '"0-xyz"', 'W/"0"', '"0", "1"', '"' + "9" * 30 + '"']
)
def test_an_if_match_that_is_no_etag_is_400(client: httpx2.Client, match: str) -> None:
    place = f"{PLACE}/{made(client)['id']}"
    for method, path, body in (("PATCH", "", {"title": "New"}), ("POST", "/fork", {}), ("DELETE", "", None)):
        answered = client.request(method, place + path, json=body, headers={"If-Match": match})
        refused(answered, 400, "bad_request")
        assert "If-Match" in answered.json()["error"]["message"]
    assert client.get(place).json()["title"] is None


def test_a_call_that_cannot_keep_an_if_match_refuses_it(client: httpx2.Client) -> None:
    place = f"{PLACE}/{made(client)['id']}"
    for path in (PLACE, f"{place}/ask", f"{place}/agents", f"{place}/turns/x/cancel"):
        refused(client.post(path, json={}, headers={"If-Match": '"0"'}), 400, "bad_request")
    for path in (PLACE, place, f"{place}/turns", f"{place}/events", "/api/agents", "/v1/models"):
        for match in ('"0"', "rubbish"):
            assert client.get(path, headers={"If-Match": match}).status_code == 400
        assert client.get(path, headers={"If-Match": "*"}).status_code == 200
    assert client.post(PLACE, json={}, headers={"If-Match": "*"}).status_code == 201


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/turns", {"message": "Hi"}),
        ("POST", "/fork", {}),
        ("POST", "/rewind", {"before": "TURN"}),
        ("POST", "/keep", {"branch": "FORK"}),
        ("PUT", "/agent", {"agent": "other"}),
        ("PATCH", "/state", {"set": {"a": 1}}),
        ("DELETE", "", None),
    ],
)
def test_a_change_to_what_has_moved_meanwhile_is_412_and_changes_nothing(
    client: httpx2.Client, method: str, path: str, body: Any
) -> None:
    place = f"{PLACE}/{made(client)['id']}"
    old = client.get(place).headers["etag"]
    turn = client.post(f"{place}/turns", json={"message": "Hi"}).json()["id"]
    body = {"before": turn} if path == "/rewind" else body
    if path == "/keep":
        body = {"branch": client.post(f"{place}/fork", json={"before": turn}).json()["id"]}
    now = client.get(place)
    for stale in (old, '"0"', '"999999"', '"-1"'):
        answered = client.request(method, place + path, json=body, headers={"If-Match": stale})
        refused(answered, 412, "stale")
        assert answered.json()["error"]["details"]["actual"] == now.json()["revision"]
        assert client.get(place).json() == now.json()
    client.patch(place, json={"title": "A title is no part of the revision"})
    fresh = client.request(method, place + path, json=body, headers={"If-Match": now.headers["etag"]})
    assert fresh.status_code < 300, fresh.text


def test_a_star_matches_what_exists(client: httpx2.Client) -> None:
    place = f"{PLACE}/{made(client)['id']}"
    assert client.delete(place, headers={"If-Match": "*"}).status_code == 204
    assert client.delete(place, headers={"If-Match": "*"}).status_code == 404


# Describing.


def test_title_and_tags_are_given_replaced_and_removed(client: httpx2.Client) -> None:
    place = f"{PLACE}/{made(client, title='Old', tags={'a': '1', 'b': '2'})['id']}"
    assert client.patch(place, json={}).json()["tags"] == {"a": "1", "b": "2", "title": "Old"}
    assert client.patch(place, json={"title": "New"}).json()["tags"] == {"a": "1", "b": "2", "title": "New"}
    assert client.patch(place, json={"tags": {"c": "3"}}).json()["tags"] == {"c": "3", "title": "New"}
    assert client.patch(place, json={"tags": {"title": "Tagged"}}).json()["title"] == "Tagged"
    gone = client.patch(place, json={"title": "", "tags": {}})
    assert (gone.json()["title"], gone.json()["tags"]) == (None, {})
    assert gone.headers["etag"] == client.get(place).headers["etag"]


def test_a_name_is_changed_alone_or_with_title_and_tags_all_of_it_or_nothing(client: httpx2.Client) -> None:
    id = made(client, name="first-name")["id"]
    made(client, name="taken-name")
    place = f"{PLACE}/{id}"
    renamed = client.patch(f"{PLACE}/first-name", json={"name": "second-name"})
    assert (renamed.status_code, renamed.json()["name"], renamed.json()["revision"]) == (200, "second-name", 0)
    assert renamed.headers["etag"] == client.get(f"{PLACE}/second-name").headers["etag"]
    refused(client.get(f"{PLACE}/first-name"), 404, "not_found")
    all_of_it = client.patch(place, json={"name": "third-name", "title": "T", "tags": {"a": "1"}}).json()
    assert (all_of_it["name"], all_of_it["title"], all_of_it["tags"]) == ("third-name", "T", {"a": "1", "title": "T"})
    refused(client.patch(place, json={"name": "taken-name", "title": "Not this"}), 409, "exists")
    refused(client.patch(place, json={"name": "undefined", "title": "Not this"}), 422, "bad_name")
    stale = {"If-Match": renamed.headers["etag"]}
    refused(client.patch(place, json={"name": "fourth-name"}, headers=stale), 412, "stale")
    assert client.get(place).json() == all_of_it
    fresh = {"If-Match": client.get(place).headers["etag"]}
    assert client.patch(place, json={"name": "third-name"}, headers=fresh).json() == all_of_it, "its own name"
    assert client.patch(place, json={"name": id}, headers=fresh).json()["name"] == id


def test_describing_never_disturbs_a_turn_that_runs(client: httpx2.Client) -> None:
    place = f"{PLACE}/{made(client)['id']}"
    begun = client.post(f"{place}/turns", json={"message": "wait"}, headers={"Prefer": "respond-async"})
    assert begun.status_code == 202, begun.text
    described = client.patch(place, json={"title": "While it runs", "tags": {"a": "1"}})
    assert described.json()["status"] == "running", "it ended too soon to show anything"
    turn = client.get(begun.headers["location"], params={"wait": 20}).json()
    assert turn["outcome"] == "committed"
    info = client.get(place).json()
    assert (info["title"], info["revision"], info["status"]) == ("While it runs", 1, "idle")


# Deleting, and another agent.


def test_what_was_deleted_is_gone_and_its_forks_stay(client: httpx2.Client) -> None:
    info = made(client, id="to-delete")
    place = f"{PLACE}/to-delete"
    client.post(f"{place}/turns", json={"message": "Hi"})
    fork = client.post(f"{place}/fork").json()["id"]
    events = client.get(f"{PLACE}/{fork}/events").json()["items"]
    answered = client.delete(place)
    assert (answered.status_code, answered.content) == (204, b"")
    for gone in ("to-delete", info["id"]):
        refused(client.get(f"{PLACE}/{gone}"), 404, "not_found")
    assert client.get(f"{PLACE}/{fork}/events").json()["items"] == events
    assert made(client, id="to-delete")["id"] != info["id"]


def test_a_conversation_whose_turn_runs_is_not_deleted(client: httpx2.Client) -> None:
    place = f"{PLACE}/{made(client)['id']}"
    begun = client.post(f"{place}/turns", json={"message": "wait"}, headers={"Prefer": "respond-async"})
    refused(client.delete(place), 409, "busy")
    refused(client.put(f"{place}/agent", json={"agent": "other"}), 409, "busy")
    client.post(f"{begun.headers['location']}/cancel")
    assert client.delete(place).status_code == 204


def test_another_agent_answers_from_here_on(client: httpx2.Client) -> None:
    place = f"{PLACE}/{made(client)['id']}"
    client.post(f"{place}/turns", json={"message": "Hi"})
    changed = client.put(f"{place}/agent", json={"agent": "other"})
    assert (changed.json()["agent"], changed.json()["model"]) == ("other", "scripted/echo")
    assert changed.headers["etag"] == client.get(place).headers["etag"]
    assert client.post(f"{place}/turns", json={"message": "Hi"}).json()["text"] == "You said: Hi"
    kinds = [event["kind"] for event in client.get(f"{place}/events").json()["items"]]
    assert "settings_changed" in kinds
    again = client.put(f"{place}/agent", json={"agent": "other"})
    assert again.json()["revision"] == client.get(place).json()["revision"]
    refused(client.put(f"{place}/agent", json={"agent": "nobody"}), 404, "not_found")
    refused(client.put(f"{place}/agent"), 422, "invalid")
