"""Results of the client's own tools over HTTP: a turn hands calls over, and the next request answers them."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from tests.server.support.contract import checked
from tests.server.support.serving import Served, served
from tests.server.support.turning import agents_of, asks, model

from forkpoint.agent import Agent
from forkpoint.agent.stored.document import portable_document
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.settings import ServerSettings
from forkpoint.testing import Fault, Heard, Reply, ScriptedCall

BROWSE = ToolSchema("browse", "Opens a page.")
READ = (ScriptedCall("browse", "{}", "c0"),)
READS = asks(("browse", {"page": "x"}), ("browse", {"page": "y"}))
PLACE = "/api/conversations"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(agents=agents_of(client_tools=[BROWSE]), settings=ServerSettings(max_messages=3)) as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[httpx2.Client]:
    with checked(server) as client:
        yield client


@pytest.fixture
def place(client: httpx2.Client) -> str:
    """The address of a conversation whose two calls, c0 and c1, are the client's to answer."""
    place = f"{PLACE}/{client.post(PLACE).json()['id']}"
    turn = client.post(f"{place}/turns", json={"message": READS}).json()
    assert (turn["outcome"], turn["handed"], turn["waiting"]) == ("committed", ["c0", "c1"], [])
    assert [(call["id"], call["status"]) for call in turn["calls"]] == [("c0", "handed"), ("c1", "handed")]
    return place


def refused(response: httpx2.Response, status: int, code: str) -> Any:
    assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text
    return response.json()["error"]["details"]


def answers(client: httpx2.Client, place: str, *results: dict[str, Any], **body: Any) -> httpx2.Response:
    return client.post(f"{place}/turns", json={"results": results, **body})


def results_in(turn: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Call, status and text of each result among a turn's events."""
    bodies = [event["body"] for event in turn["events"] if event["kind"] == "tool_result"]
    return [
        (one["call_id"], one.get("status", "done"), "".join(part["text"] for part in one.get("parts", ())))
        for one in bodies
    ]


def test_results_are_given_to_the_model_and_the_turn_says_what_it_was_given(client: httpx2.Client, place: str) -> None:
    turn = answers(
        client,
        place,
        {"call_id": "c1", "result": [{"type": "text", "text": "page y"}]},
        {"call_id": "c0", "result": "page x"},
    ).json()
    assert (turn["outcome"], turn["text"], turn["handed"]) == ("committed", "Done: page x | page y", [])
    assert turn["input"] == []
    assert [given["call_id"] for given in turn["given"]] == ["c1", "c0"]
    assert results_in(turn) == [("c0", "done", "page x"), ("c1", "done", "page y")]
    assert client.get(f"{place}/turns/{turn['id']}").json() == turn


def test_a_message_may_come_with_results_and_a_result_may_be_empty_or_a_failure(
    client: httpx2.Client, place: str
) -> None:
    turn = answers(
        client, place, {"call_id": "c0"}, {"call_id": "c1", "result": "no such page", "status": "failed"}, message="So?"
    ).json()
    assert turn["text"] == "You said: So?"
    assert results_in(turn) == [("c0", "done", ""), ("c1", "failed", "no such page")]


def test_a_message_instead_of_results_leaves_the_calls_without_an_answer(client: httpx2.Client, place: str) -> None:
    turn = client.post(f"{place}/turns", json={"message": "Never mind."}).json()
    assert [(call, status) for call, status, _ in results_in(turn)] == [("c0", "not_answered"), ("c1", "not_answered")]
    assert "given" not in turn


def test_only_calls_that_are_open_can_be_answered_and_nothing_has_begun(client: httpx2.Client, place: str) -> None:
    before = client.get(place).json()
    details = refused(answers(client, place, {"call_id": "c0"}, {"call_id": "c9"}), 422, "call_not_open")
    assert details["call"] == "c9"
    assert client.get(place).json() == before
    assert len(client.get(f"{place}/turns").json()["items"]) == 1
    assert answers(client, place, {"call_id": "c0", "result": "page x"}).status_code == 200
    refused(answers(client, place, {"call_id": "c0", "result": "page x"}), 422, "call_not_open")
    unborn = {"results": [{"call_id": "c0"}], "create": {}}
    refused(client.post(f"{PLACE}/unborn/turns", json=unborn), 422, "call_not_open")
    refused(client.get(f"{PLACE}/unborn"), 404, "not_found")


def test_a_stream_is_refused_with_a_status_too(client: httpx2.Client, place: str) -> None:
    body, headers = {"results": [{"call_id": "c9"}]}, {"Accept": "text/event-stream"}
    refused(client.post(f"{place}/turns", json=body, headers=headers), 422, "call_not_open")


@pytest.mark.parametrize(
    ("results", "status", "code"),
    [
        ([{"call_id": "c0"}, {"call_id": "c0"}], 422, "invalid"),
        ([{"call_id": ""}], 422, "invalid"),
        ([{"call_id": "x" * 1025}], 422, "invalid"),
        ([{"call_id": "c0", "status": "denied"}], 422, "invalid"),
        ([{"call_id": "c0", "tool": "browse"}], 422, "invalid"),
        ([{"call_id": "c0", "result": 5}], 422, "invalid"),
        ([{"call_id": "c0", "result": [{"type": "image", "media_type": "image/png"}]}], 422, "not_whole"),
        ([{"call_id": str(n)} for n in range(4)], 413, "too_large"),
        ([], 422, "nothing_to_run"),
    ],
    ids=["twice", "no call", "long", "status", "field", "type", "part", "many", "none"],
)
def test_what_is_no_result_is_refused_and_nothing_has_begun(
    client: httpx2.Client, place: str, results: list[Any], status: int, code: str
) -> None:
    refused(answers(client, place, *results), status, code)
    assert len(client.get(f"{place}/turns").json()["items"]) == 1


def test_the_same_key_answers_once(client: httpx2.Client, place: str) -> None:
    key = {"Idempotency-Key": "answer-1"}
    body = {"results": [{"call_id": "c0", "result": "page x"}]}
    first, again = (client.post(f"{place}/turns", json=body, headers=key).json() for _ in range(2))
    assert again == first
    other = {"results": [{"call_id": "c0", "result": "another"}]}
    refused(client.post(f"{place}/turns", json=other, headers=key), 422, "key_reused")


def test_a_failed_turn_is_tried_again_with_its_results() -> None:
    def answer(heard: Heard) -> Reply:
        if heard.number == 1:
            return Reply("x", fault=Fault("overloaded"))
        messages = heard.body["messages"]
        return Reply(f"Read {messages[-1]['content']}.") if heard.number else Reply(calls=READ)

    agents = agents_of(answers=answer, name="results-retry", client_tools=[BROWSE])
    with served(agents=agents) as server, checked(server) as client:
        place = f"{PLACE}/{client.post(PLACE).json()['id']}"
        client.post(f"{place}/turns", json={"message": "Read it."})
        failed = answers(client, place, {"call_id": "c0", "result": "page x"})
        turn = refused(failed, 502, "turn_failed")["id"]
        again = client.post(f"{place}/turns/{turn}/retry").json()
        assert (again["text"], again["retry_of"]) == ("Read page x.", turn)
        assert again["given"] == client.get(f"{place}/turns/{turn}").json()["given"]


def test_an_agent_that_a_client_sends_may_have_tools_of_the_client() -> None:
    sent = Agent(model(lambda _: Reply(calls=READ), "sent-with-tools"), client_tools=[BROWSE])
    with (
        served(agents=Catalog.of_model("scripted/echo", allow_models=["scripted/*"])) as other,
        checked(other) as client,
    ):
        body = f'{{"agent": {portable_document(sent)}}}'
        made = client.post(PLACE, content=body, headers={"Content-Type": "application/json"})
        assert made.status_code == 201, made.text
        turn = client.post(f"{PLACE}/{made.json()['id']}/turns", json={"message": "Read it."}).json()
        assert turn["handed"] == ["c0"]
