"""Looking into a conversation over HTTP: figures, state, what is sent, and whether anybody changed it."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.agent.mcp.calling import odd
from tests.server.support.contract import checked
from tests.server.support.serving import Served, served
from tests.server.support.turning import two_tenants

from forkpoint.agent import Agent, Hook, McpServer, Role, Secret, SubAgents, ToolContext, tool
from forkpoint.ids import new_id
from forkpoint.llm.model import LLM
from forkpoint.server.agents.catalog import Catalog
from forkpoint.testing import ModelServer, Reply, Script, ScriptedCall

PLACE = "/api/conversations"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[httpx2.Client]:
    with checked(server) as client:
        yield client


@pytest.fixture
def place(client: httpx2.Client) -> str:
    """The address of a conversation of one turn."""
    id = client.post(PLACE).json()["id"]
    client.post(f"{PLACE}/{id}/turns", json={"message": "Hi"})
    return f"{PLACE}/{id}"


def refused(response: httpx2.Response, status: int, code: str) -> None:
    assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text


# Figures.


def test_stats_tell_what_is_its_own_what_it_inherited_and_what_the_family_spent(
    client: httpx2.Client, place: str
) -> None:
    own = client.get(f"{place}/stats").json()
    assert own["spent"]["calls"] == own["family"]["calls"] == own["total"]["calls"] == 1
    assert own["inherited"]["calls"] == 0
    assert own["events"] == client.get(place).json()["events"]
    fork = client.post(f"{place}/fork").json()["id"]
    client.post(f"{PLACE}/{fork}/turns", json={"message": "More"})
    of_fork = client.get(f"{PLACE}/{fork}/stats").json()
    calls = {name: of_fork[name]["calls"] for name in ("spent", "inherited", "family", "total")}
    assert calls == {"spent": 1, "inherited": 1, "family": 2, "total": 1}
    client.post(f"{place}/ask", json={"message": "By the way?"})
    assert client.get(f"{place}/stats").json()["spent"]["calls"] == 2, "a side question costs too"


def test_usage_is_all_that_a_tenant_ever_spent_and_what_of_it_beside_conversations() -> None:
    with (
        served(keyring=two_tenants()) as server,
        checked(server, "key-of-one") as one,
        checked(server, "key-of-two") as two,
    ):
        nothing = one.get("/api/usage").json()
        assert nothing["total"] == nothing["beside"]
        assert set(nothing["total"].values()) == {0}
        place = f"{PLACE}/{one.post(PLACE).json()['id']}"
        for _ in range(2):
            one.post(f"{place}/turns", json={"message": "Hi"})
        one.post(f"{place}/ask", json={"message": "By the way?"})
        fork = one.post(f"{place}/fork").json()["id"]
        one.post(f"{PLACE}/{fork}/turns", json={"message": "More"})
        used = one.get("/api/usage").json()
        assert used["total"] == one.get(f"{place}/stats").json()["family"]
        assert (used["total"]["calls"], used["beside"]["calls"]) == (4, 0)
        asked = {"model": "echo", "messages": [{"role": "user", "content": "Hi"}]}
        assert one.post("/v1/chat/completions", json=asked).status_code == 200
        one.delete(place)
        after = one.get("/api/usage").json()
        assert (after["total"]["calls"], after["beside"]["calls"]) == (5, 1)
        assert after["total"]["input"] == used["total"]["input"] + after["beside"]["input"]
        assert two.get("/api/usage").json() == nothing


# State.


def test_state_is_set_read_and_removed(client: httpx2.Client, place: str) -> None:
    assert client.get(f"{place}/state").json() == {"state": {}}
    values = {"open": 3, "names": ["a", "é"], "deep": {"x": None, "y": 1.5, "z": False}}
    assert client.patch(f"{place}/state", json={"set": values}).json() == {"state": values}
    changed = client.patch(f"{place}/state", json={"set": {"open": 4}, "remove": ["names", "nothing"]}).json()
    assert changed == client.get(f"{place}/state").json() == {"state": {"open": 4, "deep": values["deep"]}}
    before = client.get(place).json()
    assert client.patch(f"{place}/state").json() == changed
    assert client.get(place).json() == before, "nothing was asked for"
    both = client.patch(f"{place}/state", json={"set": {"a": 1}, "remove": ["a"]})
    refused(both, 422, "invalid")
    assert both.json()["error"]["param"] == "remove"


def test_state_belongs_to_a_place_in_history(client: httpx2.Client, place: str) -> None:
    fork = client.post(f"{place}/fork").json()["id"]
    client.patch(f"{place}/state", json={"set": {"open": 3}})
    later = client.post(f"{place}/fork").json()["id"]
    assert client.get(f"{PLACE}/{fork}/state").json() == {"state": {}}
    assert client.get(f"{PLACE}/{later}/state").json() == {"state": {"open": 3}}


# What is sent.


def test_a_preview_is_what_is_sent_afterwards_to_the_byte() -> None:
    with ModelServer(Script([Reply("Fine.")], repeat=True)) as models:
        secret = (("X-Secret", "between-us"),)
        llm = LLM("openai/gpt-5.6", base_url=models.url, api_key="sk-of-the-server-123456", headers=secret)
        with served(agents=Catalog({"support": Agent(llm)})) as server, checked(server) as client:
            id = client.post(PLACE).json()["id"]
            place = f"{PLACE}/{id}"
            client.post(f"{place}/turns", json={"message": "First"})
            before = client.get(place).json()
            preview = client.post(f"{place}/request", json={"message": "Second"})
            assert client.get(place).json() == before, "looking changes nothing"
            assert len(models.requests) == 1, "looking sends nothing"
            client.post(f"{place}/turns", json={"message": "Second"})
            assert preview.json()["body"].encode() == models.requests[-1].body
            sent = client.get(f"{place}/request")
            assert sent.json()["body"] == preview.json()["body"]
            assert sent.json()["shared"] > 0
            for answered in (preview, sent):
                assert "sk-of-the-server" not in answered.text
                assert "between-us" not in answered.text
                assert models.url not in answered.text


def test_a_preview_can_be_of_a_conversation_that_is_not_there_yet(client: httpx2.Client) -> None:
    id = new_id()
    shown = client.post(f"{PLACE}/{id}/request", json={"message": "Hi", "create": {"title": "New"}})
    assert shown.status_code == 200
    assert "Hi" in shown.json()["body"]
    refused(client.get(f"{PLACE}/{id}"), 404, "not_found")
    refused(client.post(f"{PLACE}/{id}/request", json={"message": "Hi"}), 404, "not_found")


def test_what_a_turn_sent_is_shown_by_its_id(client: httpx2.Client, place: str) -> None:
    first = client.get(f"{place}/turns").json()["items"][0]["id"]
    client.post(f"{place}/turns", json={"message": "Another"})
    assert "Another" in client.get(f"{place}/request").json()["body"]
    assert "Another" not in client.get(f"{place}/request", params={"turn": first}).json()["body"]
    refused(client.get(f"{place}/request", params={"turn": new_id()}), 409, "no_such_turn")
    empty = client.post(PLACE).json()["id"]
    refused(client.get(f"{PLACE}/{empty}/request"), 409, "no_such_turn")
    refused(client.post(f"{place}/request", json={}), 422, "nothing_to_run")


def test_why_a_turn_missed_its_cache_is_told_with_codes_words_and_facts(client: httpx2.Client, place: str) -> None:
    first = client.get(f"{place}/turns").json()["items"][0]["id"]
    second = client.post(f"{place}/turns", json={"message": "Another"}).json()["id"]
    newest = client.get(f"{place}/turns/newest/cache").json()
    assert newest == client.get(f"{place}/turns/{second}/cache").json()
    assert (newest["turn"], newest["calls"][0]["before"]) == (second, first)
    assert [reason["code"] for reason in newest["calls"][0]["reasons"]] == ["not_reported"]
    told = client.get(f"{place}/turns/{first}/cache").json()["calls"][0]
    assert told["reasons"] == [
        {"code": "first_request", "words": "the first request of this conversation", "facts": {}}
    ]
    assert (told["possible"], told["cached"] + told["written"] + told["fresh"]) == (0, told["input"])
    refused(client.get(f"{place}/turns/{new_id()}/cache"), 404, "not_found")
    empty = client.post(PLACE).json()["id"]
    refused(client.get(f"{PLACE}/{empty}/turns/newest/cache"), 409, "no_such_turn")
    refused(client.get(f"{PLACE}/{empty}/turns/{first}/cache"), 409, "no_such_turn")


def test_another_tenant_is_told_nothing_of_a_turn() -> None:
    with (
        served(keyring=two_tenants()) as server,
        checked(server, "key-of-one") as one,
        checked(server, "key-of-two") as two,
    ):
        place = f"{PLACE}/{one.post(PLACE).json()['id']}"
        turn = one.post(f"{place}/turns", json={"message": "Hi"}).json()["id"]
        refused(two.get(f"{place}/turns/{turn}/cache"), 404, "not_found")
        own = f"{PLACE}/{two.post(PLACE).json()['id']}"
        refused(two.get(f"{own}/turns/{turn}/cache"), 404, "not_found")


def test_a_preview_says_how_many_tokens_it_would_take_and_that_it_is_an_estimate(
    client: httpx2.Client, place: str
) -> None:
    shown = client.post(f"{place}/request", json={"message": "Another"}).json()
    assert shown["tokens"] > 0
    assert shown["tokens_estimated"]
    assert "as in the request before it" in shown["tokens_how"]
    assert (shown["price_warm"], shown["price_cold"]) == (0.0, 0.0), "a scripted model costs nothing"
    sent = client.get(f"{place}/request").json()
    assert (sent["tokens_estimated"], sent["tokens_how"]) == (False, "counted by the provider")


def test_where_the_servers_models_are_is_in_no_event_that_a_tenant_reads() -> None:
    llm = LLM("openai/gpt-5.6", base_url="http://models.internal/v1", headers=(("X-Secret", "between-us"),))
    support = Agent(
        llm,
        instructions="Be kind.",
        hooks=[Hook("turn_start", command="exec hooks.internal")],
        mcp=[McpServer("find", url="https://mcp.internal", headers={"A": "between-us"})],
        sub_agents=SubAgents(agents={"other": Agent(llm)}, roles={"one": Role(agent=Agent(llm))}, models=[llm]),
    )
    agents = Catalog({"echo": Agent("scripted/echo"), "support": support})
    with served(agents=agents) as server, checked(server) as client:
        place = f"{PLACE}/{client.post(PLACE).json()['id']}"
        client.post(f"{place}/turns", json={"message": "Hi"})
        client.put(f"{place}/agent", json={"agent": "support"})
        client.put(f"{place}/agent", json={"agent": "echo"})
        events = client.get(f"{place}/events").json()
        changed = [event["body"]["settings"] for event in events["items"] if event["kind"] == "settings_changed"]
        assert any("Be kind." in settings for settings in changed)
        with client.stream("GET", f"{place}/events/stream") as following:
            streamed = ""
            for some in following.iter_text():
                streamed += some
                if f"id: {events['head']}\n" in streamed and streamed.endswith("\n\n"):
                    break
        said = [json.dumps(events), streamed, *(client.get(f"{place}{path}").text for path in ("", "/turns", "/tree"))]
    assert "Be kind." in streamed
    assert "find" in streamed, "which servers there are is no secret"
    for secret in ("http://models.internal", "between-us", "mcp.internal", "hooks.internal"):
        assert not any(secret in text for text in said)


@tool(secrets=["KEY"])
def sign(ctx: ToolContext) -> str:
    """Signs something."""
    return "signed"


def test_what_the_servers_hooks_and_secrets_are_is_in_no_turn_that_a_tenant_reads() -> None:
    script = Script([Reply(calls=(ScriptedCall("sign", "{}"),)), Reply("Done.")])
    signer = Agent(
        script.register("signs"),
        tools=[sign],
        hooks=[
            Hook("turn_start", command="exit 0; exec hooks.internal"),
            Hook("before_tool", command=["true", "hooks.internal"], name="guard"),
        ],
        secrets={"KEY": Secret(command=("/vault.internal",))},
        mcp=[odd(timeout=21.5)],
    )
    with served(agents=Catalog({"signer": signer})) as server, checked(server) as client:
        place = f"{PLACE}/{client.post(PLACE, json={'agent': 'signer'}).json()['id']}"
        ran = client.post(f"{place}/turns", json={"message": "Hi"})
        assert ran.json()["outcome"] == "committed"
        hooks = [event["body"]["hook"] for event in ran.json()["events"] if event["kind"] == "hook_run"]
        assert hooks == ["a hook of the server", "guard"]
        failed = client.post(f"{place}/turns", json={"message": "Hi"}, headers={"Accept": "text/event-stream"}).text
        assert "event: error" in failed, "the script has ended"
        paths = ("/events", "/turns?events=true", f"/turns/{ran.json()['id']}")
        said = [ran.text, failed, *(client.get(f"{place}{path}").text for path in paths)]
    assert "the secret KEY cannot be had" in said[0]
    for secret in ("hooks.internal", "vault.internal", "odd_server.py"):
        assert not [text for text in said if secret in text], secret


# Verifying.


def test_history_that_nobody_changed_is_verified(client: httpx2.Client, place: str) -> None:
    info = client.get(place).json()
    for body in (None, {}, {"head_digest": info["digest"]}):
        found = client.post(f"{place}/verify", json=body).json()
        counted = {"conversations": 1, "events": info["events"], "erased": 0, "records": 1, "chains": 1, "seals": 0}
        assert found == counted | {"ok": True, "flaws": [], "remarks": [], "since": None}
    missing = client.post(f"{place}/verify", json={"head_digest": "00" * 32}).json()
    assert not missing["ok"]
    assert missing["flaws"]
    assert client.post("/api/verify").json()["ok"]


def test_records_say_what_was_kept_about_a_conversation_page_by_page(client: httpx2.Client, place: str) -> None:
    client.patch(place, json={"title": "A title"})
    whole = client.get(f"{place}/records").json()
    assert [record["kind"] for record in whole["items"]] == ["born", "committed", "described"]
    assert whole["next"] is None
    first = client.get(f"{place}/records", params={"limit": 2}).json()
    rest = client.get(f"{place}/records", params={"cursor": first["next"]}).json()
    assert first["items"] + rest["items"] == whole["items"]
    turn = client.get(f"{place}/turns").json()["items"][0]
    committed = whole["items"][1]
    assert (committed["subject"], committed["body"]["turn"]["outcome"]) == (turn["id"], "committed")
    assert client.get(f"{place}/records", params={"cursor": "x"}).json()["error"]["code"] == "bad_cursor"
    assert client.get("/api/conversations/nobody/records").status_code == 404


def test_history_that_somebody_changed_is_found_without_telling_where_the_file_is(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    with served(f"sqlite:///{store}") as server, checked(server) as client:
        id = client.post(PLACE).json()["id"]
        client.post(f"{PLACE}/{id}/turns", json={"message": "I owe you 10"})
    with closing(sqlite3.connect(store)) as db, db:
        changed = db.execute("UPDATE event SET payload = replace(payload, 'owe you 10', 'owe you 99')").rowcount
        assert changed
    with served(f"sqlite:///{store}") as server, checked(server) as client:
        answers: list[dict[str, Any]] = []
        for path in (f"{PLACE}/{id}/verify", "/api/verify"):
            answered = client.post(path)
            assert answered.status_code == 200, answered.text
            assert str(tmp_path) not in answered.text
            answers.append(answered.json())
    for found in answers:
        assert not found["ok"]
        assert found["flaws"]
    assert json.dumps(answers)


# Condensing.


def test_a_conversation_is_condensed_on_request_and_says_what_prompts_show_now(
    client: httpx2.Client, place: str
) -> None:
    nothing = client.post(f"{place}/condense").json()
    assert nothing == {"condensed": False, "summary": None, "kept_from": None}, "there is only the newest turn"
    client.post(f"{place}/turns", json={"message": "And more"})
    before = client.get(place).json()
    refused(client.post(f"{place}/condense", headers={"If-Match": '"0"'}), 412, "stale")
    done = client.post(f"{place}/condense", json={})
    assert done.status_code == 200
    made = done.json()
    assert (made["condensed"], made["kept_from"] > 1) == (True, True)
    after = client.get(place).json()
    assert (after["revision"], after["events"]) == (before["revision"] + 1, before["events"] + 1)
    (note,) = client.get(f"{place}/events", params={"kind": "condensation"}).json()["items"]
    assert (note["body"]["summary"], note["body"]["kept_from"]) == (made["summary"], made["kept_from"])
    refused(client.post(f"{PLACE}/{new_id()}/condense"), 404, "not_found")
    refused(client.post(f"{place}/condense", json={"sooner": True}), 422, "invalid")
