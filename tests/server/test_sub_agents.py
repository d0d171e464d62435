"""Sub-agents over HTTP: made, talked to, waited for and closed; what happens once, and who sees it."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from tests.server.support.contract import checked
from tests.server.support.serving import Served, served
from tests.server.support.streaming import Reader
from tests.server.support.turning import PATIENCE, Api, Gate, holds, model, obedient, two_tenants, using

from forkpoint.agent import Agent, Role, SubAgents
from forkpoint.ids import new_id
from forkpoint.llm import LLM, Retries
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.settings import ServerSettings
from forkpoint.testing import Fault, Heard, ModelServer, Reply, Script, ScriptedCall

PLACE = "/api/conversations"
GATE = Gate()


def patient(heard: Heard) -> Reply:
    """A model that does as it is told, or never ends."""
    return Reply("Well", fault=Fault("hang", after=1)) if heard.text == "hang" else obedient(heard)


def careless(heard: Heard) -> Reply:
    """A model that is broken in a way that is nobody's business."""
    raise RuntimeError("there is no /secret/folder")


def agents() -> Catalog:
    reader = Agent(model(obedient, "reader-of-agents"), name="reads", instructions="You read.")
    broken = Agent(model(careless, "broken-of-agents"), name="breaks")
    team = SubAgents(
        agents={"reader": reader, "broken": broken},
        roles={"judge": Role("judges", instructions="You judge.")},
        models=["scripted/echo"],
        depth=1,
        most=8,
    )
    return Catalog(
        {"lead": Agent(model(patient, "lead-of-agents"), tools=[GATE.tool], sub_agents=team)},
        allow_models=["scripted/*"],
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(agents=agents(), keyring=two_tenants(), settings=ServerSettings(grace=0, max_body=100_000)) as running:
        yield running
        GATE.open()


@pytest.fixture
def client(server: Served) -> Iterator[httpx2.Client]:
    with checked(server, "key-of-one") as client:
        yield client


@pytest.fixture
def api(server: Served) -> Iterator[Api]:
    with using(server.url, "key-of-one") as api:
        yield api


@pytest.fixture
def gate() -> Iterator[Gate]:
    GATE.runs.clear()
    GATE._open.clear()
    yield GATE
    GATE.open()


@pytest.fixture
def lead(client: httpx2.Client) -> str:
    return str(client.post(PLACE, json={}).json()["id"])


def spawn(client: httpx2.Client, lead: str, task: str = "find it", *, key: str | None = None, **body: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    answered = client.post(f"{PLACE}/{lead}/agents", json={"task": task, **body}, headers=headers)
    assert answered.status_code == 201, answered.text
    return answered.json()


def members(client: httpx2.Client, lead: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"{PLACE}/{lead}/agents").json()["items"]
    return found


def turns(client: httpx2.Client, id: str) -> list[tuple[str, str]]:
    found = client.get(f"{PLACE}/{id}/turns").json()["items"]
    return [(turn["outcome"], turn["text"]) for turn in found]


def code(answered: httpx2.Response) -> tuple[int, str]:
    return answered.status_code, answered.json()["error"]["code"]


# Spawning.


def test_a_sub_agent_is_made_and_its_task_runs_by_itself(client: httpx2.Client, lead: str) -> None:
    answered = client.post(
        f"{PLACE}/{lead}/agents", json={"task": "find it", "nickname": "scout", "title": "T", "tags": {"a": "b"}}
    )
    child = answered.json()
    assert answered.status_code == 201
    assert answered.headers["location"] == f"{PLACE}/{child['id']}"
    assert (child["parent"], child["path"], child["nickname"], child["depth"]) == (lead, "/root/scout", "scout", 1)
    assert child["lineage"] == {"kind": "sub_agent", "source": lead, "at": None, "turn": None, "call": None}
    assert child["tags"] == {"a": "b", "title": "T"}
    turn = client.get(f"{PLACE}/{child['id']}/turns/{child['turn']}", params={"wait": PATIENCE}).json()
    assert (turn["outcome"], turn["text"]) == ("committed", "You said: find it")
    assert members(client, lead) == [
        {
            "conversation": child["id"],
            "path": "/root/scout",
            "nickname": "scout",
            "role": None,
            "depth": 1,
            "task": "find it",
            "status": "idle",
            "answer": "You said: find it",
            "error": None,
            "turn": child["turn"],
        }
    ]


def test_one_that_is_not_to_run_yet_waits_for_its_first_turn(client: httpx2.Client, lead: str) -> None:
    child = spawn(client, lead, run=False)
    assert (child["turn"], child["open_turn"], child["status"]) == (None, None, "idle")
    assert turns(client, child["id"]) == []
    answered = client.post(f"{PLACE}/{child['id']}/turns", json={"message": "find it"})
    assert answered.json()["text"] == "You said: find it"


def test_the_turn_of_a_task_is_followed_and_cancelled_as_any_other(api: Api, lead: str) -> None:
    child = api.post(f"{lead}/agents", task="hang", nickname="scout").json()
    assert (child["status"], child["open_turn"]) == ("running", child["turn"])
    assert api.get(f"{lead}/agents/scout")["status"] == "running"
    with api.streamed("GET", f"{child['id']}/turns/{child['turn']}") as stream:
        ((_, snapshot),) = stream.until("snapshot")
        assert snapshot["turn"] == child["turn"]
        assert api.post(f"{child['id']}/turns/{child['turn']}/cancel").json()["outcome"] == "cancelled"
        assert stream.until("error")[-1][1]["error"]["code"] == "turn_cancelled"
    assert api.get(f"{lead}/agents/scout")["status"] == "cancelled"


def test_whoever_follows_the_parent_hears_of_its_sub_agents(server: Served, client: httpx2.Client, lead: str) -> None:
    with Reader.of(server.url, lead, key="key-of-one") as reader:
        child = spawn(client, lead, nickname="scout")
        heard = reader.until("event")[-1].data
        assert (heard["kind"], heard["body"]["conversation"]) == ("sub_agent_spawned", child["id"])
        client.post(f"{PLACE}/{lead}/agents/scout/close")
        assert reader.until("event")[-1].data["body"]["outcome"] == "closed"


@pytest.mark.parametrize(
    ("body", "model", "nickname"),
    [
        ({"agent": "reader"}, "scripted/reader-of-agents", "reader"),
        ({"role": "judge"}, "scripted/lead-of-agents", "judge"),
        ({"model": "scripted/echo"}, "scripted/echo", "agent"),
        ({"agent": {"llm": {"model": "scripted/echo"}, "instructions": "Be brief."}}, "scripted/echo", "agent"),
    ],
)
def test_a_sub_agent_is_who_it_is_asked_to_be(
    client: httpx2.Client, lead: str, body: dict[str, Any], model: str, nickname: str
) -> None:
    child = spawn(client, lead, run=False, **body)
    assert str(child["model"]).startswith(model)
    assert child["nickname"] == nickname
    assert client.post(f"{PLACE}/{child['id']}/turns", json={"message": "Hi"}).status_code == 200


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"fork": "all"}, (409, "spawn_refused")),
        ({"fork": 2}, (409, "spawn_refused")),
        ({"role": "cook"}, (409, "spawn_refused")),
        ({"agent": "nobody"}, (409, "spawn_refused")),
        ({"agent": "lead"}, (409, "spawn_refused")),  # one of the server's, which this agent does not offer
        ({"model": "openai/gpt-5.6"}, (409, "spawn_refused")),
        ({"agent": {"llm": {"model": "openai/gpt-5.6"}}}, (422, "bad_agent")),
        ({"agent": {"llm": "scripted/echo", "tools": [{"name": "x"}]}}, (422, "bad_agent")),
        ({"task": " "}, (422, "not_whole")),
        ({"task": 3}, (422, "invalid")),
        ({"tsak": "find it"}, (422, "invalid")),
        ({"tags": {"a": 1}}, (422, "invalid")),
        ({"title": "x" * 90_000}, (413, "too_large")),
        ({"task": "x" * 100_000}, (413, "too_large")),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_made(
    client: httpx2.Client, lead: str, body: dict[str, Any], expected: tuple[int, str]
) -> None:
    for run in (True, False):
        answered = client.post(f"{PLACE}/{lead}/agents", json={"task": "find it", "run": run, **body})
        assert code(answered) == expected, answered.text
    assert members(client, lead) == []
    assert len(client.get(f"{PLACE}/{lead}/tree").json()["items"]) == 1


def test_a_body_is_needed_and_must_be_json(client: httpx2.Client, lead: str) -> None:
    assert code(client.post(f"{PLACE}/{lead}/agents")) == (422, "invalid")
    text = {"Content-Type": "text/plain"}
    assert code(client.post(f"{PLACE}/{lead}/agents", content=b"{}", headers=text)) == (400, "bad_request")
    assert code(client.post(f"{PLACE}/{new_id()}/agents", json={"task": "find it"})) == (404, "not_found")


def test_sub_agents_go_no_deeper_than_they_may(client: httpx2.Client, lead: str) -> None:
    child = spawn(client, lead, run=False)
    answered = client.post(f"{PLACE}/{child['id']}/agents", json={"task": "deeper"})
    assert code(answered) == (409, "spawn_refused")
    assert "1 deep" in answered.json()["error"]["message"]


def test_while_a_turn_holds_the_parent_sub_agents_are_neither_made_nor_closed_from_outside(
    api: Api, gate: Gate, lead: str
) -> None:
    api.post(f"{lead}/agents", task="find it", nickname="scout", run=False, key=f"k-{lead}")
    api.run(lead, holds("x"), prefer="respond-async")
    gate.reached()
    assert code(api.post(f"{lead}/agents", task="find it")) == (409, "busy")
    assert code(api.post(f"{lead}/agents/scout/close")) == (409, "busy")
    again = api.post(f"{lead}/agents", task="find it", nickname="scout", run=False, key=f"k-{lead}")
    assert again.status_code == 201, "what was made before is given, whatever runs"
    assert api.post(f"{lead}/agents/scout/messages", message="Hi").json()["text"] == "You said: Hi"


# Talking to it.


def test_a_sub_agent_is_talked_to_by_its_nickname_its_path_or_its_id(client: httpx2.Client, lead: str) -> None:
    child = spawn(client, lead, nickname="scout", run=False)["id"]
    for name in ("scout", "/root/scout", quote("/root/scout", safe=""), child):
        answered = client.post(f"{PLACE}/{lead}/agents/{name}/messages", json={"message": f"to {name}"})
        assert (answered.status_code, answered.json()["conversation"]) == (200, child), answered.text
        assert answered.json()["text"] == f"You said: to {name}"
        assert client.get(f"{PLACE}/{lead}/agents/{name}").json()["answer"] == f"You said: to {name}"
        assert client.post(f"{PLACE}/{lead}/agents/{name}/reach").json()["id"] == child


def test_a_message_is_answered_in_all_ways_that_a_turn_is(api: Api, gate: Gate, lead: str) -> None:
    child = api.post(f"{lead}/agents", task="find it", nickname="scout", run=False).json()["id"]
    with api.streamed("POST", f"{lead}/agents/scout/messages", message="Hi") as stream:
        frames = list(stream)
    assert [frames[0][0], frames[-1][0]] == ["turn_started", "turn"]
    assert frames[-1][1]["conversation"] == child
    begun = api.post(f"{lead}/agents/scout/messages", message=holds("x"), prefer="respond-async")
    assert (begun.status_code, begun.json()["outcome"]) == (202, "running")
    assert begun.headers["location"] == f"{PLACE}/{child}/turns/{begun.json()['id']}"
    gate.reached()
    gate.open()
    assert api.get(f"{lead}/agents/scout", wait=PATIENCE)["answer"] == "Done: held x"
    assert code(api.post(f"{lead}/agents/scout/messages")) == (422, "nothing_to_run")


def test_who_is_no_sub_agent_is_404_and_those_that_are_there_are_named(client: httpx2.Client, lead: str) -> None:
    spawn(client, lead, nickname="scout", run=False)
    for method, path, body in (
        ("POST", "nobody/messages", {"message": "Hi"}),
        ("POST", "nobody/reach", {}),
        ("POST", "nobody/close", {}),
        ("GET", "nobody", None),
        ("GET", f"{lead}", None),
        ("GET", "/root/nobody", None),
    ):
        answered = client.request(method, f"{PLACE}/{lead}/agents/{path}", json=body)
        assert code(answered) == (404, "no_such_agent"), path
        assert answered.json()["error"]["details"]["known"] == "scout"


def test_what_is_not_asked_like_this_is_405(client: httpx2.Client, lead: str) -> None:
    spawn(client, lead, nickname="scout", run=False)
    for method, path, allowed in (
        ("PUT", "agents", "GET, POST"),
        ("DELETE", "agents/scout", "GET"),
        ("GET", "agents/scout/messages", "POST"),
        ("GET", "agents/scout/close", "POST"),
    ):
        answered = client.request(method, f"{PLACE}/{lead}/{path}")
        assert (code(answered), answered.headers["allow"]) == ((405, "method_not_allowed"), allowed)


def test_a_sub_agent_that_fails_says_why_and_nothing_that_is_the_servers_own_affair(
    client: httpx2.Client, lead: str
) -> None:
    spawn(client, lead, agent="broken", nickname="broken")
    answered = client.get(f"{PLACE}/{lead}/agents/broken", params={"wait": PATIENCE})
    assert (answered.json()["status"], answered.json()["answer"]) == ("failed", None)
    assert "request id" in answered.json()["error"]
    for text in (answered.text, client.get(f"{PLACE}/{lead}/agents").text):
        assert "/secret" not in text


# Waiting and closing.


def test_waiting_for_a_sub_agent_ends_when_nothing_runs_there_or_the_time_is_up(
    api: Api, gate: Gate, lead: str
) -> None:
    api.post(f"{lead}/agents", task=holds("x"), nickname="scout")
    gate.reached()
    assert api.get(f"{lead}/agents/scout", wait=0.01)["status"] == "running"
    waiting = api.soon(api.get, f"{lead}/agents/scout", wait=PATIENCE)
    gate.open()
    assert waiting.result()["answer"] == "Done: held x"
    assert code(api.http.get(f"{PLACE}/{lead}/agents/scout", params={"wait": 61})) == (422, "invalid")


def test_closing_cancels_what_runs_and_from_then_on_nothing_more_is_said_to_it(api: Api, lead: str) -> None:
    child = api.post(f"{lead}/agents", task="hang", nickname="scout").json()["id"]
    closed = api.post(f"{lead}/agents/scout/close").json()
    assert (closed["status"], closed["conversation"]) == ("closed", child)
    assert api.outcomes(child) == ["cancelled"]
    assert api.post(f"{lead}/agents/scout/close").json() == closed, "once more changes nothing"
    for path, body in (("messages", {"message": "Hi"}), ("reach", {})):
        assert code(api.post(f"{lead}/agents/scout/{path}", **body)) == (409, "agent_closed")
    assert api.run(child, "Hi").json()["text"] == "You said: Hi", "it is a conversation like any other"


# Once.


def test_with_one_key_there_is_one_sub_agent_and_one_turn(api: Api, gate: Gate, lead: str) -> None:
    body = {"task": holds("x"), "nickname": "scout"}
    first = api.post(f"{lead}/agents", key=f"k-{lead}", **body).json()
    gate.reached()
    while_it_runs = api.post(f"{lead}/agents", key=f"k-{lead}", **body)
    assert (while_it_runs.status_code, while_it_runs.json()["turn"]) == (201, first["turn"])
    gate.open()
    assert api.get(f"{lead}/agents/scout", wait=PATIENCE)["answer"] == "Done: held x"
    after = api.post(f"{lead}/agents", key=f"k-{lead}", **body).json()
    assert (after["id"], after["turn"]) == (first["id"], first["turn"])
    assert gate.runs == ["x"]
    assert len(api.get(f"{lead}/agents")["items"]) == 1
    other = api.post(f"{lead}/agents", key=f"k-{lead}", task="another")
    assert code(other) == (422, "key_reused")


def test_a_message_with_one_key_is_one_turn(client: httpx2.Client, lead: str) -> None:
    child = spawn(client, lead, nickname="scout", run=False)["id"]
    place, headers = f"{PLACE}/{lead}/agents/scout/messages", {"Idempotency-Key": f"m-{lead}"}
    first, again = (client.post(place, json={"message": "Hi"}, headers=headers).json() for _ in range(2))
    assert again == first
    assert len(turns(client, child)) == 1
    assert code(client.post(place, json={"message": "Ho"}, headers=headers)) == (422, "key_reused")


def test_one_whose_task_could_not_be_begun_is_made_once_and_its_task_begins_with_the_same_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KEY_OF_A_CHILD", "sk-test")
    with ModelServer(Script(lambda heard: Reply("Found it."))) as models:
        llm = LLM("openai/test", base_url=models.url, api_key_env="KEY_OF_A_CHILD", retries=Retries(attempts=1))
        keyed = Agent(llm, name="keyed")
        lead = Agent("scripted/echo", sub_agents=SubAgents(agents={"keyed": keyed}))
        with served(agents=Catalog({"lead": lead})) as server, checked(server) as client:
            monkeypatch.delenv("KEY_OF_A_CHILD")
            id = client.post(PLACE, json={}).json()["id"]
            body, headers = {"task": "find it", "agent": "keyed"}, {"Idempotency-Key": "k"}
            assert code(client.post(f"{PLACE}/{id}/agents", json=body, headers=headers)) == (503, "missing_key")
            (member,) = members(client, id)
            assert (member["status"], member["turn"]) == ("idle", None)
            monkeypatch.setenv("KEY_OF_A_CHILD", "sk-test")
            children = [spawn(client, id, agent="keyed", key="k") for _ in range(2)]
            assert {child["id"] for child in children} == {member["conversation"]}
            assert len({child["turn"] for child in children}) == 1
            found = client.get(f"{PLACE}/{id}/agents/keyed", params={"wait": PATIENCE}).json()
            assert found["answer"] == "Found it."
            assert turns(client, member["conversation"]) == [("committed", "Found it.")]


def test_where_there_is_no_room_for_its_turn_no_sub_agent_is_made(gate: Gate) -> None:
    with served(agents=agents(), settings=ServerSettings(max_turns=1, grace=0)) as server, using(server.url) as api:
        lead, other = api.create(), api.create()
        api.run(other, holds("x"), prefer="respond-async")
        gate.reached()
        assert code(api.post(f"{lead}/agents", task="find it")) == (429, "too_many")
        assert api.get(f"{lead}/agents")["items"] == []
        gate.open()


# Whose.


def test_sub_agents_of_another_tenant_are_like_those_that_never_were(
    server: Served, client: httpx2.Client, lead: str
) -> None:
    child = spawn(client, lead, nickname="scout", run=False)["id"]
    with checked(server, "key-of-two") as other:
        ours = other.post(PLACE, json={}).json()["id"]
        for method, path, body in (
            ("POST", "agents", {"task": "find it"}),
            ("GET", "agents", None),
            ("GET", "agents/scout", None),
            ("POST", "agents/scout/messages", {"message": "Hi"}),
            ("POST", "agents/scout/reach", {}),
            ("POST", "agents/scout/close", {}),
        ):
            assert code(other.request(method, f"{PLACE}/{lead}/{path}", json=body)) == (404, "not_found")
            if "scout" in path:
                place = f"{PLACE}/{ours}/{path.replace('scout', child)}"
                assert code(other.request(method, place, json=body)) == (404, "no_such_agent")
        assert code(other.get(f"{PLACE}/{child}")) == (404, "not_found")
    assert [member["status"] for member in members(client, lead)] == ["idle"]
    assert turns(client, child) == []


def test_a_fork_that_reaches_a_sub_agent_whose_turn_failed_still_shows_it() -> None:
    def leads(heard: Heard) -> Reply:
        said = heard.body["messages"]
        asked = max(n for n, message in enumerate(said) if message["role"] == "user")
        match [message["role"] for message in said[asked + 1 :]].count("tool"):
            case 0:
                spawn = ScriptedCall("spawn_agent", '{"task": "go", "agent": "broken", "nickname": "bob"}', "c0")
                return Reply(calls=(spawn,))
            case 1:
                return Reply(calls=(ScriptedCall("wait_agent", "{}", "c1"),))
            case _:
                return Reply("ok")

    broken = Agent(model(careless, "broken-of-a-fork"), name="breaks")
    team = SubAgents(agents={"broken": broken}, depth=1, most=8)
    offered = Catalog({"lead": Agent(model(leads, "lead-of-a-fork"), sub_agents=team)})
    with served(agents=offered, keyring=two_tenants()) as server, checked(server, "key-of-one") as client:
        lead = client.post("/api/conversations", json={}).json()["id"]
        assert client.post(f"/api/conversations/{lead}/turns", json={"message": "hi"}).json()["outcome"] == "committed"
        fork = client.post(f"/api/conversations/{lead}/fork", json={}).json()["id"]
        assert client.post(f"/api/conversations/{fork}/agents/bob/reach").status_code == 200
        (bob,) = members(client, fork)
        assert bob["status"] == "failed"
        assert "secret" not in bob["error"]
        closed = client.post(f"/api/conversations/{fork}/agents/bob/close")
        assert (closed.status_code, closed.json()["status"]) == (200, "closed")
