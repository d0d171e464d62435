"""Turns over HTTP: as JSON, as a stream, asynchronously; how they fail, and what can be done then."""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from tests.server.support.serving import Served, served
from tests.server.support.turning import (
    PATIENCE,
    Api,
    Gate,
    agents_of,
    asks,
    holds,
    left_nothing,
    model,
    two_tenants,
    using,
)

from forkpoint.agent import Agent, Limits, tool
from forkpoint.llm import Timeouts
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.settings import ServerSettings
from forkpoint.testing import Fault, Heard, Reply, ScriptedCall


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def server(gate: Gate) -> Iterator[Served]:
    with served(agents=agents_of(add, gate.tool)) as server:
        yield server
        gate.open()


@pytest.fixture
def api(server: Served) -> Iterator[Api]:
    with using(server.url) as api:
        yield api


# How a turn is answered.


def test_a_turn_as_json_is_the_committed_turn_with_its_events(api: Api) -> None:
    id = api.create()
    turn = api.run(id, asks(("add", {"a": 2, "b": 3})))
    assert turn.status_code == 200
    said = turn.json()
    assert (said["outcome"], said["text"], said["conversation"]) == ("committed", "Done: 5", id)
    assert [(call["tool"], call["status"], call["result"]) for call in said["calls"]] == [("add", "done", "5")]
    assert said["events"] == api.get(f"{id}/events")["items"]
    assert said == api.turn(id, said["id"])


def test_a_turn_as_a_stream_is_told_as_it_happens_and_ends_with_the_turn(api: Api) -> None:
    id = api.create()
    with api.stream(id, asks(("add", {"a": 2, "b": 3}))) as stream:
        assert stream.response.status_code == 200
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        frames = list(stream)
    kinds = [kind for kind, _ in frames]
    assert kinds[0] == "turn_started"
    assert [kind for kind in kinds if kind.startswith("call_")] == ["call_started", "call_ended"]
    assert "".join(data["text"] for kind, data in frames if kind == "text") == "Done: 5"
    assert kinds.index("call_ended") < kinds.index("text")
    last, turn = frames[-1]
    assert last == "turn"
    assert turn == api.turn(id, turn["id"])
    assert {data["turn"] for kind, data in frames[1:-1]} == {turn["id"]}


def test_an_asynchronous_turn_is_acknowledged_when_it_has_begun_and_can_be_waited_for(api: Api, gate: Gate) -> None:
    id = api.create()
    begun = api.run(id, holds("x"), prefer="respond-async")
    assert begun.status_code == 202
    assert begun.headers["preference-applied"] == "respond-async"
    turn = begun.json()
    assert (turn["outcome"], begun.headers["location"]) == ("running", f"/api/conversations/{id}/turns/{turn['id']}")
    assert api.turn(id, turn["id"])["outcome"] == "running"
    assert api.get(id)["open_turn"] == turn["id"]
    gate.reached()
    assert api.turn(id, turn["id"], wait=0.001)["outcome"] == "running"  # nobody waits longer than asked for
    waits = api.soon(api.turn, id, turn["id"], wait=PATIENCE)
    with api.streamed("GET", f"{id}/turns/{turn['id']}") as joined:
        (first, snapshot), *_ = joined.until("snapshot")
        gate.open()
        assert (first, snapshot["turn"]) == ("snapshot", turn["id"])
        assert snapshot["updates"][0]["type"] == "turn_started"
        rest = joined.until("turn")
    assert rest[0][0] == "call_ended"
    assert rest[-1][1]["text"] == "Done: held x"
    assert waits.result()["outcome"] == "committed"
    assert api.turn(id, turn["id"]) == rest[-1][1]


def test_one_who_asks_for_a_turn_that_ended_before_gets_it_as_it_ended(api: Api) -> None:
    id = api.create()
    turn = api.run(id).json()
    assert api.turn(id, turn["id"], wait=PATIENCE) == turn
    with api.streamed("GET", f"{id}/turns/{turn['id']}") as stream:
        assert list(stream) == [("turn", turn)]
    missing = api.http.get(f"/api/conversations/{id}/turns/nothing", headers={"Accept": "text/event-stream"})
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "not_found"


def test_another_turn_is_refused_while_one_runs_and_names_it(api: Api, gate: Gate) -> None:
    id = api.create()
    turn = api.run(id, holds("x"), prefer="respond-async").json()["id"]
    gate.reached()
    refused = api.run(id, "Me too")
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "busy"
    assert refused.json()["error"]["details"]["turn"] == turn
    gate.open()
    assert api.turn(id, turn, wait=PATIENCE)["outcome"] == "committed"
    assert len(api.outcomes(id)) == 1


def test_a_turn_can_make_its_conversation_or_go_on_with_the_one_that_is_there(api: Api) -> None:
    made = api.run("my-name", "Hello", create={"title": "New"})
    assert made.status_code == 200
    assert api.get("my-name")["title"] == "New"
    more = api.run("my-name", "More", create={"title": "Newer"})
    assert (more.status_code, more.json()["conversation"]) == (200, made.json()["conversation"])
    assert api.get("my-name")["title"] == "New"
    refused = api.run("my-name", "Hello", create={"chosen": True})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "exists")
    assert api.said("my-name") == ["Hello", "You said: Hello", "More", "You said: More"]


# Failing.


FAULTS = {
    "overloaded": (Fault("overloaded"), 502, "model_overloaded"),
    "broken": (Fault("cut", after=1), 502, "model_connection"),
    "empty": (Fault("empty"), 502, "model_empty"),
    "key": (Fault("authentication"), 502, "model_key_refused"),
    "quota": (Fault("quota"), 502, "model_quota"),
    "slow down": (Fault("rate_limit", retry_after=7), 429, "model_rate_limit"),
    "too long": (Fault("context_too_long"), 400, "model_context_too_long"),
}


@pytest.fixture(scope="module")
def failing() -> Iterator[Api]:
    """A server whose model fails in the way that it is told to, once; then it works."""
    failed: set[tuple[str, str]] = set()

    def answers(heard: Heard) -> Reply:
        if heard.text in FAULTS and (heard.body["prompt_cache_key"], heard.text) not in failed:
            failed.add((heard.body["prompt_cache_key"], heard.text))
            return Reply("half an answer", piece=4, fault=FAULTS[heard.text][0])
        return Reply(f"Now {heard.text}")

    with served(agents=agents_of(answers=answers, name="failing")) as server, using(server.url) as api:
        yield api


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_turn_says_why_with_the_status_of_its_cause_and_nothing_has_moved(failing: Api, fault: str) -> None:
    _, status, _ = FAULTS[fault]
    id = failing.create()
    before = failing.get(id)
    failed = failing.run(id, fault)
    problem = failed.json()
    assert (failed.status_code, problem["error"]["code"]) == (status, "turn_failed")
    assert problem["error"]["cause"]["code"] == problem["turn"]["error"]["code"]
    assert failed.headers["x-request-id"] == problem["error"]["request_id"]
    assert failed.headers.get("retry-after") == ("7" if fault == "slow down" else None)
    assert problem["turn"]["outcome"] == "failed"
    after = failing.get(id)
    assert (after["head"], after["revision"], after["status"]) == (before["head"], before["revision"], "idle")
    assert failing.get(f"{id}/events")["items"] == []

    again = failing.post(f"{id}/turns/{problem['turn']['id']}/retry")
    assert (again.status_code, again.json()["text"]) == (200, f"Now {fault}")
    assert again.json()["retry_of"] == problem["turn"]["id"]


def test_a_failed_turn_as_a_stream_ends_with_the_error(failing: Api) -> None:
    id = failing.create()
    with failing.stream(id, "broken") as stream:
        *_, (last, problem) = list(stream)
    assert (last, problem["error"]["code"], problem["turn"]["outcome"]) == ("error", "turn_failed", "failed")
    with failing.streamed("GET", f"{id}/turns/{problem['turn']['id']}") as stream:
        ((last, later),) = list(stream)
    assert (last, later["turn"]) == ("error", problem["turn"])


def test_a_turn_that_failed_at_once_is_not_acknowledged_but_answered(failing: Api) -> None:
    id = failing.create()
    failed = failing.run(id, "overloaded", prefer="respond-async")
    if failed.status_code == 202:  # it had not failed yet
        assert failing.turn(id, failed.json()["id"], wait=PATIENCE)["outcome"] == "failed"
    else:
        assert failed.status_code == 502
        assert "preference-applied" not in failed.headers


def test_a_model_that_takes_too_long_is_504() -> None:
    hangs = replace(model([Reply("", fault=Fault("hang"))], "hangs"), timeouts=Timeouts(first=0.01))
    with served(agents=Catalog({"slow": Agent(hangs)})) as server, using(server.url) as api:
        late = api.run(api.create())
    assert (late.status_code, late.json()["error"]["cause"]["code"]) == (504, "model_timeout")


def test_a_failed_turn_is_resumed_after_its_last_finished_step_and_no_tool_runs_again() -> None:
    ran: list[str] = []

    @tool
    def book(flight: str) -> str:
        """Books a flight."""
        ran.append(flight)
        return f"booked {flight}"

    booking = Reply(calls=(ScriptedCall("book", '{"flight": "LH1"}', "b1"),))
    answers = [booking, Reply("", fault=Fault("overloaded")), Reply("You are booked")]
    with served(agents=agents_of(book, answers=answers, name="resumed")) as server, using(server.url) as api:
        id = api.create()
        failed = api.run(id, "Book it")
        assert failed.status_code == 502
        turn = failed.json()["turn"]
        assert [(call["tool"], call["status"]) for call in turn["calls"]] == [("book", "done")]
        resumed = api.post(f"{id}/turns/{turn['id']}/resume")
        assert (resumed.status_code, resumed.json()["id"], resumed.json()["text"]) == (
            200,
            turn["id"],
            "You are booked",
        )
        assert ran == ["LH1"]
        again = api.post(f"{id}/turns/{turn['id']}/resume")
        assert (again.status_code, again.json()["error"]["code"]) == (409, "not_resumable")


def test_a_turn_at_its_limit_is_422_and_a_client_cannot_lift_the_limits_of_the_servers_own_agent() -> None:
    with served(agents=agents_of(add, limits=Limits(steps=1), name="limited")) as server, using(server.url) as api:
        id = api.create()
        limited = api.run(id, asks(("add", {"a": 1, "b": 1})))
        problem = limited.json()
        assert (limited.status_code, problem["error"]["cause"]["code"]) == (422, "limit_reached")
        more = api.post(f"{id}/turns/{problem['turn']['id']}/resume", limits={"steps": 5})
        assert (more.status_code, more.json()["error"]["code"]) == (422, "bad_argument")
        assert "limits.steps" in more.json()["error"]["message"]
        assert api.outcomes(id) == ["failed"]


# Cancelling.


def test_a_turn_is_cancelled_and_everybody_who_waits_hears_it(api: Api, gate: Gate) -> None:
    id = api.create()
    waits = api.soon(api.run, id, holds("x"))
    gate.reached()
    turn = api.get(id)["open_turn"]
    with api.streamed("GET", f"{id}/turns/{turn}") as joined:
        joined.until("snapshot")
        cancelled = api.post(f"{id}/turns/{turn}/cancel")
        assert (cancelled.status_code, cancelled.json()["outcome"]) == (200, "cancelled")
        *_, (last, problem) = list(joined)
    assert (last, problem["error"]["code"]) == ("error", "turn_cancelled")
    heard = waits.result()
    assert (heard.status_code, heard.json()["error"]["code"]) == (409, "turn_cancelled")
    assert heard.json()["turn"] == cancelled.json()
    assert cancelled.json()["calls"][0]["status"] == "unknown"  # it was started, and nobody knows what it did
    assert api.get(f"{id}/events")["items"] == []
    again = api.post(f"{id}/turns/{turn}/cancel")
    assert (again.status_code, again.json()) == (200, cancelled.json())


def test_a_cancel_that_comes_too_late_says_committed(api: Api) -> None:
    id = api.create()
    turn = api.run(id).json()
    late = api.post(f"{id}/turns/{turn['id']}/cancel")
    assert (late.status_code, late.json()) == (200, turn)


# Limits of the server.


def test_a_turn_too_many_is_429_until_one_has_ended(gate: Gate) -> None:
    settings = ServerSettings(max_turns=2)
    with served(agents=agents_of(gate.tool), settings=settings) as server, using(server.url) as api:
        a, b, c = api.create(), api.create(), api.create()
        begun = [api.run(id, holds(id), prefer="respond-async").json()["id"] for id in (a, b)]
        gate.reached(2)
        for attempt in (api.run(c), api.post(f"{c}/ask", message="And?")):
            assert (attempt.status_code, attempt.json()["error"]["code"]) == (429, "too_many")
            assert attempt.headers["retry-after"] == "1"
        assert api.outcomes(c) == []
        assert api.get(a)["status"] == "running"  # reading is not limited
        gate.open()
        assert [api.turn(id, turn, wait=PATIENCE)["outcome"] for id, turn in zip((a, b), begun, strict=True)]
        assert api.run(c).status_code == 200
        left_nothing(server)


def test_a_burst_of_requests_never_runs_more_turns_than_allowed(gate: Gate) -> None:
    settings = ServerSettings(max_turns=3)
    with served(agents=agents_of(gate.tool), settings=settings) as server, using(server.url) as api:
        ids = [api.create() for _ in range(12)]
        answers = [api.soon(api.run, id, holds(id), prefer="respond-async") for id in ids]
        assert sorted(answer.result().status_code for answer in answers) == [202] * 3 + [429] * 9
        gate.reached(3)
        gate.open()
        for answer in answers:
            if (begun := answer.result().json()).get("conversation"):
                assert api.turn(begun["conversation"], begun["id"], wait=PATIENCE)["outcome"] == "committed"
        left_nothing(server)


def test_a_tenant_that_has_used_up_its_turns_leaves_room_for_others(gate: Gate) -> None:
    settings = ServerSettings(max_turns_per_tenant=1)
    with (
        served(agents=agents_of(gate.tool), settings=settings, keyring=two_tenants()) as server,
        using(server.url, "key-of-one") as me,
        using(server.url, "key-of-two") as they,
    ):
        a, b = me.create(), me.create()
        turn = me.run(a, holds("a"), prefer="respond-async").json()["id"]
        gate.reached()
        assert me.run(b).status_code == 429
        assert they.run(they.create()).status_code == 200
        gate.open()
        assert me.turn(a, turn, wait=PATIENCE)["outcome"] == "committed"
        assert me.run(b).status_code == 200


def test_with_keys_a_tenant_may_run_a_quarter_of_all_turns_at_once(gate: Gate) -> None:
    settings = ServerSettings(max_turns=9)
    with (
        served(agents=agents_of(gate.tool), settings=settings, keyring=two_tenants()) as server,
        using(server.url, "key-of-one") as me,
        using(server.url, "key-of-two") as they,
    ):
        ids = [me.create() for _ in range(3)]
        begun = [me.run(id, holds(id), prefer="respond-async").json()["id"] for id in ids[:2]]
        gate.reached(2)
        refused = me.run(ids[2])
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many")
        assert "2" in refused.json()["error"]["message"]
        assert they.run(they.create()).status_code == 200
        gate.open()
        for id, turn in zip(ids, begun, strict=False):
            assert me.turn(id, turn, wait=PATIENCE)["outcome"] == "committed"
        assert me.run(ids[2]).status_code == 200


# Side questions.


def test_a_side_question_is_answered_while_a_turn_runs_and_only_its_cost_is_kept(api: Api, gate: Gate) -> None:
    id = api.create()
    api.run(id, "Remember 42")
    turn = api.run(id, holds("x"), prefer="respond-async").json()["id"]
    gate.reached()
    answered = api.post(f"{id}/ask", message="What was it?")
    assert (answered.status_code, answered.json()["text"]) == (200, "You said: What was it?")
    with api.streamed("POST", f"{id}/ask", message="Again?") as stream:
        frames = list(stream)
    assert {kind for kind, _ in frames[:-1]} <= {"text", "answered"}
    assert (frames[-1][0], frames[-1][1]["text"]) == ("answer", "You said: Again?")
    gate.open()
    assert api.turn(id, turn, wait=PATIENCE)["outcome"] == "committed"
    assert not any("What was it" in text or "Again" in text for text in api.said(id))
    assert api.get(f"{id}/stats")["spent"]["calls"] == 5
    metrics = api.http.get("/metrics").text
    spent = api.get(f"{id}/stats")["spent"]
    assert f'forkpoint_tokens_total{{kind="output"}} {float(spent["output"])}' in metrics


# Without a message.


def halved(api: Api, **options: Any) -> tuple[str, dict[str, object]]:
    """A fork that ends after a tool's result, and the turn that the source had."""
    id = api.create()
    turn = api.run(id, asks(("add", {"a": 2, "b": 3}))).json()
    (result,) = [event["id"] for event in turn["events"] if event["kind"] == "tool_result"]
    made = api.post(f"{id}/fork", at=result, **options)
    assert made.status_code == 201, made.text
    return str(made.json()["id"]), turn


def test_a_turn_goes_on_without_a_message_as_json_as_a_stream_and_asynchronously(api: Api) -> None:
    fork, _ = halved(api)
    answered = api.post(f"{fork}/turns", go_on=True, key="k")
    said = answered.json()
    assert (answered.status_code, said["text"], said["input"], said["go_on"]) == (200, "Done: 5", [], True)
    assert api.post(f"{fork}/turns", go_on=True, key="k").json() == said
    assert api.post(f"{fork}/turns", message="Hello", key="k").json()["error"]["code"] == "key_reused"
    half, whole = api.get(f"{fork}/turns")["items"]
    assert (half["partial"], half["usage"]["calls"], whole["partial"]) == (True, 0, False)
    fork, _ = halved(api)
    with api.streamed("POST", f"{fork}/turns", go_on=True) as stream:
        frames = list(stream)
    assert (frames[0][0], frames[-1][0], frames[-1][1]["go_on"]) == ("turn_started", "turn", True)
    fork, _ = halved(api)
    begun = api.post(f"{fork}/turns", go_on=True, prefer="respond-async")
    assert begun.status_code in (200, 202)  # 200: it had committed already
    assert api.turn(fork, begun.json()["id"], wait=PATIENCE)["text"] == "Done: 5"


def test_where_nothing_can_go_on_it_is_said_why_and_nothing_else_goes_with_it(api: Api) -> None:
    id = api.create()
    empty = api.post(f"{id}/turns", go_on=True)
    assert (empty.status_code, empty.json()["error"]["code"]) == (422, "nothing_to_run")
    api.run(id)
    assert "ends in a finished answer" in api.post(f"{id}/turns", go_on=True).json()["error"]["message"]
    wrong: list[dict[str, Any]] = [
        {"message": "Hello"},
        {"results": [{"call_id": "c"}]},
        {"supersede": True},
        {"create": {}},
    ]
    for more in wrong:
        refused = api.post(f"{id}/turns", go_on=True, **more)
        assert refused.json()["error"]["param"] == next(iter(more)), refused.text
    assert api.post("nobody/turns", go_on=True).status_code == 404


def test_a_fork_takes_other_results_and_another_state(api: Api) -> None:
    id = api.create()
    turn = api.run(id, asks(("add", {"a": 2, "b": 3}))).json()
    (call,) = turn["calls"]
    other = {"call_id": call["id"], "result": "7"}
    made = api.post(f"{id}/fork", at=call["event"], results=[other], state={"seen": [1]})
    assert made.status_code == 201, made.text
    fork = made.json()["id"]
    assert api.post(f"{fork}/turns", go_on=True).json()["text"] == "Done: 7"
    assert api.get(f"{fork}/state")["state"] == {"seen": [1]}
    kinds = [event["kind"] for event in api.get(f"{fork}/events")["items"]]
    assert kinds.count("result_substituted") == 1
    for body, code in (
        ({"at": call["event"], "results": [other, other]}, "invalid"),
        ({"at": call["event"], "results": [{"call_id": "nobody"}]}, "bad_argument"),
        ({"before": call["event"], "results": [other]}, "bad_argument"),
        ({"at": "9-9", "results": [other]}, "bad_position"),
    ):
        assert api.post(f"{id}/fork", **body).json()["error"]["code"] == code


def test_another_tenant_can_neither_go_on_nor_substitute() -> None:
    with (
        served(agents=agents_of(add), keyring=two_tenants()) as server,
        using(server.url, "key-of-one") as api,
        using(server.url, "key-of-two") as them,
    ):
        fork, turn = halved(api)
        assert them.post(f"{fork}/turns", go_on=True).status_code == 404
        assert them.post(f"{turn['conversation']}/fork", state={"a": 1}).status_code == 404
