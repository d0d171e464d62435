"""A response in the background is read later, as often as wanted, and ends whether anybody reads it or not."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.server.chat.chatting import Disk, agents_at
from tests.server.responses.responding import (
    PATH,
    Place,
    check_events,
    events_of,
    function,
    kinds,
    parsed,
    problem,
    responding,
    text_of,
)
from tests.server.support.serving import served
from tests.server.support.turning import Gate, left_nothing, using

from forkpoint.server.live.feed import Feed
from forkpoint.server.settings import ServerSettings
from forkpoint.server.wires.responses.items.ids import response_id
from forkpoint.server.wires.responses.request import read_request
from forkpoint.server.wires.responses.service import ResponsesService
from forkpoint.server.wires.responses.stream import ResponseStream
from forkpoint.testing import Fault, ModelServer, Reply, Script, ScriptedCall
from forkpoint.updates import TextPiece, TurnStarted

BRIEF = ServerSettings(grace=0)
HOLD = Reply(calls=(ScriptedCall("hold", '{"line":"1"}', "w1"),))


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def place(gate: Gate) -> Iterator[Place]:
    with responding(HOLD, Reply("Done"), Reply("More"), tools=[gate.tool]) as place:
        yield place
        gate.open()
        left_nothing(place.server)


def deltas(events: list[dict[str, Any]]) -> list[str]:
    return [event["delta"] for event in events if event["type"] == "response.output_text.delta"]


def test_it_is_in_progress_until_it_is_completed(place: Place, gate: Gate) -> None:
    made = place.ask("One", background=True)
    assert (made["status"], made["background"], made["output"]) == ("in_progress", True, [])
    gate.reached()
    assert place.get(made["id"])["status"] == "in_progress"
    assert (
        place.api.http.get(f"/v1/responses/{made['id']}/input_items").json()["data"][0]["content"][0]["text"] == "One"
    )
    gate.open()
    events = events_of(place.api.http.get(f"/v1/responses/{made['id']}", params={"stream": "true"}))
    assert kinds(events)[-1] == "completed"
    found = place.get(made["id"])
    assert (found["status"], text_of(found)) == ("completed", "Done")
    assert events[-1]["response"] == found


def test_a_stream_that_was_dropped_is_taken_up_after_its_last_number(place: Place, gate: Gate) -> None:
    asked = {"model": "helper", "input": "One", "background": True, "stream": True}
    heard: list[str] = []
    with place.api.http.stream("POST", "/v1/responses", json=asked) as response:
        for line in response.iter_lines():
            heard.append(line)
            if line.startswith("event: response.in_progress"):
                break
    id = str(next(parsed(heard))["response"]["id"])
    gate.reached()
    gate.open()
    rest = events_of(place.api.http.get(f"/v1/responses/{id}", params={"stream": "true", "starting_after": 0}))
    assert rest[0]["sequence_number"] == 1
    assert (rest[-1]["type"], text_of(rest[-1]["response"])) == ("response.completed", "Done")


def test_a_reader_who_has_heard_more_than_there_is_gets_the_end(place: Place, gate: Gate) -> None:
    gate.open()
    made = place.ask("One")
    query = {"stream": "true", "starting_after": "50"}
    events = events_of(place.api.http.get(f"/v1/responses/{made['id']}", params=query))
    assert [(event["sequence_number"], event["type"]) for event in events] == [(51, "response.completed")]
    check_events(events)


@pytest.mark.parametrize("beyond", [0, 1, 50])
def test_a_reader_who_has_heard_everything_gets_the_end_again(place: Place, gate: Gate, beyond: int) -> None:
    gate.open()
    told = place.stream("One", background=True)
    after = told[-1]["sequence_number"] + beyond
    query = {"stream": "true", "starting_after": str(after)}
    (event,) = events_of(place.api.http.get(f"/v1/responses/{told[0]['response']['id']}", params=query))
    assert event == told[-1] | {"sequence_number": after + 1}


def test_a_retold_item_is_told_from_its_beginning_whatever_was_heard_before(place: Place, gate: Gate) -> None:
    place.script(Reply("Words", calls=(ScriptedCall("mine", '{"at":"sea"}', "a"),)))
    made = place.ask("One", tools=[function("mine")])
    for after in range(-1, 12):
        query = {"stream": "true", "starting_after": str(after)}
        events = events_of(place.api.http.get(f"/v1/responses/{made['id']}", params=query))
        assert (events[0]["sequence_number"], events[-1]["response"]) == (after + 1, made)
        begun: set[str] = set()
        for event in events[:-1]:
            if event["type"] == "response.output_item.added":
                begun.add(event["item"]["id"])
            elif "output_index" in event:
                assert (event.get("item_id") or event["item"]["id"]) in begun, f"after {after}: {event}"


def test_a_reader_may_name_any_number_as_the_last_that_it_has_heard(place: Place, gate: Gate) -> None:
    gate.open()
    made = place.ask("One")
    query = {"stream": "true", "starting_after": str(2**53)}
    (event,) = events_of(place.api.http.get(f"/v1/responses/{made['id']}", params=query))
    assert (event["sequence_number"], event["type"]) == (2**53 + 1, "response.completed")


def test_the_same_streamed_request_with_its_key_reads_the_same_stream(place: Place, gate: Gate) -> None:
    place.script(HOLD, Reply("Word by word", piece=5))
    asked = {"model": "helper", "input": "One", "stream": True, "background": True}
    with ThreadPoolExecutor() as threads:
        first = threads.submit(place.stream, "One", background=True, headers={"Idempotency-Key": "once"})
        gate.reached()
        with place.api.http.stream("POST", PATH, json=asked, headers={"Idempotency-Key": "once"}) as second:
            gate.open()
            heard = list(parsed(list(second.iter_lines())))
    told = first.result()
    assert heard == told == place.stream("One", background=True, headers={"Idempotency-Key": "once"})
    assert deltas(told) == ["Word ", "by wo", "rd"]
    query = {"stream": "true", "starting_after": "5"}
    rest = events_of(place.api.http.get(f"/v1/responses/{told[0]['response']['id']}", params=query))
    assert rest == told[6:]


def test_a_model_that_is_asked_again_after_a_cut_is_told_once(gate: Gate) -> None:
    cut = Reply("Hello there my friend", piece=5, fault=Fault("cut", 2))
    with responding(HOLD, cut, Reply("Hello there my friend", piece=5), tools=[gate.tool], attempts=2) as place:
        made = place.ask("One", background=True)
        gate.reached()
        gate.open()
        events = events_of(place.api.http.get(f"/v1/responses/{made['id']}", params={"stream": "true"}))
        assert events[-1]["type"] == "response.completed"
        assert "".join(deltas(events)) == text_of(events[-1]["response"]) == "Hello there my friend"
        left_nothing(place.server)


def test_a_cancelled_one_says_so_and_leaves_the_conversation_as_it_was(place: Place, gate: Gate) -> None:
    made = place.ask("One", background=True)
    gate.reached()
    gate.open()
    cancelled = place.api.http.post(f"/v1/responses/{made['id']}/cancel").json()
    assert cancelled["status"] in {"cancelled", "completed"}
    assert place.get(made["id"])["status"] == cancelled["status"]
    again = place.api.http.post(f"/v1/responses/{made['id']}/cancel").json()
    assert again["status"] == cancelled["status"]


def test_a_cancel_that_came_too_late_says_completed(place: Place, gate: Gate) -> None:
    gate.open()
    made = place.ask("One")
    late = place.api.http.post(f"/v1/responses/{made['id']}/cancel").json()
    assert (late["status"], text_of(late)) == ("completed", "Done")


def test_streams_that_have_ended_go_when_all_of_them_are_too_large() -> None:
    responses = ResponsesService(streamed=10_000)
    echo = read_request(b'{"model":"helper","input":"One","background":true}', strict=False).echo

    def begun(turn: str) -> Feed:
        stream, feed = ResponseStream(echo, holds=False, tells=True), Feed()
        responses.keep("default", turn, (stream, feed))
        stream.hear(TurnStarted(turn, "c", ()))
        stream.hear(TextPiece("x" * 6_000))
        return feed

    first, _, third = begun("1"), begun("2"), begun("3")
    assert [turn for _, turn in responses.streams] == ["1", "2", "3"], "they run"
    for ended in (third, first):
        ended.end(None, None)
    begun("4")
    assert [turn for _, turn in responses.streams] == ["2", "4"]


def test_nobody_goes_on_from_one_that_runs(place: Place, gate: Gate) -> None:
    made = place.ask("One", background=True)
    gate.reached()
    refused = place.post("Two", previous_response_id=made["id"])
    assert problem(refused)[1] == "previous_response_not_found"


def test_a_turn_that_waits_for_an_approval_says_so_and_can_be_cancelled(gate: Gate) -> None:
    with responding(HOLD, Reply("Next"), tools=[gate.tool], approval="always") as place:
        conversation = place.api.create(agent="helper")
        waiting = place.api.run(conversation, "One").json()
        assert waiting["outcome"] == "awaiting_approval"
        id = response_id(waiting["id"])
        assert place.get(id)["status"] == "in_progress"
        path = f"/v1/responses/{id}"
        last = events_of(place.api.http.get(path, params={"stream": "true"}))[-1]
        assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
        assert "wait for an approval" in last["response"]["error"]["message"]
        assert place.api.http.post(f"{path}/cancel").json()["status"] == place.get(id)["status"] == "cancelled"
        assert text_of(place.ask("Two", conversation=conversation)) == "Next"


def test_whoever_waits_for_a_response_of_another_stream_hears_that_it_is_alive(gate: Gate) -> None:
    settings = ServerSettings(heartbeat=0.05)
    with (
        responding(HOLD, Reply("Done"), tools=[gate.tool], settings=settings) as place,
        ThreadPoolExecutor() as threads,
    ):
        conversation = place.api.create(agent="helper")
        asked = threads.submit(place.ask, "One", conversation=conversation)
        gate.reached()
        turn = place.api.get(f"{conversation}/turns")["items"][-1]["id"]
        query = {"stream": "true"}
        with place.api.http.stream("GET", f"/v1/responses/{response_id(turn)}", params=query) as response:
            lines = response.iter_lines()
            assert next(lines) == ": keep-alive"
            gate.open()
            events = list(parsed(list(lines)))
        assert events[-1]["response"] == asked.result()


def test_a_response_that_another_server_goes_on_with_is_not_said_to_have_failed(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    half, whole = Reply("Half an answer", piece=4, fault=Fault("hang", 2)), Reply("A whole answer")
    with ModelServer(Script([half, whole])) as models:
        with served(store, agents_at(models), settings=BRIEF) as server, using(server.url) as api:
            asked = {"model": "helper", "input": "One", "stream": True, "background": True}
            with api.http.stream("POST", PATH, json=asked) as response:
                server.stop()
                last = list(parsed(list(response.iter_lines())))[-1]
        assert last["type"] == "response.failed"
        assert "nobody knows yet" in last["response"]["error"]["message"]
        with served(store, agents_at(models)) as server, using(server.url) as api:
            path = f"{PATH}/{last['response']['id']}"
            query = {"stream": "true", "starting_after": last["sequence_number"]}
            events = events_of(api.http.get(path, params=query))
        assert (events[0]["sequence_number"], events[-1]["type"]) == (last["sequence_number"] + 1, "response.completed")
        assert text_of(events[-1]["response"]) == "A whole answer"


def test_a_response_of_which_nobody_knew_the_end_is_told_again_when_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    disk = Disk(monkeypatch)
    store, replies = f"sqlite:///{tmp_path / 'store.db'}", [HOLD, Reply("Done"), Reply("Done again")]
    soon = ServerSettings(resume_orphans_every=0.05)
    with responding(*replies, tools=[gate.tool], store=store, settings=soon) as place:
        asked = {"model": "helper", "input": "One", "stream": True, "background": True}
        with place.api.http.stream("POST", PATH, json=asked) as response:
            gate.reached()
            with place.models.holding():
                gate.open()
                place.models.wait_for(2)
                disk.fails = "unknown"
            last = list(parsed(list(response.iter_lines())))[-1]
        assert "nobody knows yet" in last["response"]["error"]["message"]
        disk.mend()
        events = events_of(place.api.http.get(f"{PATH}/{last['response']['id']}", params={"stream": "true"}))
        assert (events[-1]["type"], text_of(events[-1]["response"])) == ("response.completed", "Done again")
