"""Two servers on one SQLite file: fenced, and each sees what the other commits."""

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.server.support.doing import Gate, logged, start, steps
from tests.server.support.serving import ServerProcess
from tests.server.support.turning import PATIENCE, Api, stopping, using


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def servers(folder: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    with start(folder) as one, start(folder, grace=3600) as two:
        yield one, two


@pytest.fixture
def one(servers: tuple[ServerProcess, ServerProcess]) -> Iterator[Api]:
    with using(servers[0].url) as api:
        yield api


@pytest.fixture
def two(servers: tuple[ServerProcess, ServerProcess]) -> Iterator[Api]:
    with using(servers[1].url) as api:
        yield api


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_what_one_commits_the_other_sees(one: Api, two: Api) -> None:
    id = one.create(id="shared")
    first = one.run(id, "From one")
    assert two.said("shared") == ["From one", "You said: From one"]
    second = two.run(id, "From two")
    assert one.said(id) == two.said(id) == ["From one", "You said: From one", "From two", "You said: From two"]
    assert one.turn(id, second.json()["id"]) == second.json()
    fork = two.post(f"{id}/fork", at=first.json()["id"]).json()["id"]
    assert one.said(fork) == ["From one", "You said: From one"]


def test_a_turn_in_one_makes_the_other_busy_and_both_can_cancel_it(one: Api, two: Api, folder: Path) -> None:
    gate, id = Gate(folder, "busy"), one.create()
    turn = one.run(id, steps(gate.step()), prefer="respond-async").json()["id"]
    with gate.reached():
        refused = two.run(id, "Me too")
        assert code(refused) == (409, "busy")
        said = refused.json()["error"]
        assert (said["details"]["host"], said["details"]["turn"]) == (socket.gethostname(), turn)
        assert f"process {said['details']['process']} on host {socket.gethostname()} since 20" in said["message"]
        assert code(two.post(f"{id}/turns/{turn}/discard")) == (409, "busy")
        assert code(two.post(f"{id}/turns/{turn}/resume")) == (409, "busy")
        assert one.turn(id, turn)["outcome"] == "running"
        cancelled = two.post(f"{id}/turns/{turn}/cancel")
        assert (cancelled.status_code, cancelled.json()["outcome"]) == (200, "cancelled")
        assert one.turn(id, turn) == cancelled.json() == two.post(f"{id}/turns/{turn}/cancel").json()
    assert two.run(id, "Now me").json()["text"] == "You said: Now me"
    assert one.said(id) == ["Now me", "You said: Now me"]


def test_a_server_that_does_not_run_the_turn_takes_a_message_for_it(one: Api, two: Api, folder: Path) -> None:
    gate, id = Gate(folder, "steered"), one.create()
    turn = one.run(id, steps(gate.step()), prefer="respond-async").json()["id"]
    with gate.reached():
        assert two.post(f"{id}/turns/{turn}/steer", message="Be brief.").status_code == 200
    ended = two.turn(id, turn, wait=PATIENCE)
    assert (ended["outcome"], [one["delivered"] for one in ended["steered"]]) == ("committed", [True])
    assert one.said(id)[1:] == ["Be brief.", "You said: Be brief."]


def test_a_turn_that_the_other_runs_can_be_waited_for_and_joined(one: Api, two: Api, folder: Path) -> None:
    gate, id = Gate(folder, "joined"), one.create()
    message = steps(gate.step())
    turn = one.run(id, message, key="joined", prefer="respond-async").json()["id"]
    waited = two.soon(two.turn, id, turn, wait=PATIENCE)
    repeated = two.soon(two.run, id, message, key="joined")
    promptly = two.run(id, message, key="joined", prefer="respond-async")
    assert (promptly.status_code, promptly.json()["id"]) == (202, turn)
    with two.streamed("GET", f"{id}/turns/{turn}") as stream, two.stream(id, message, key="joined") as again:
        with gate.reached() as held:
            held.go()
        assert [kind for kind, _ in list(stream)] == ["turn"]
        *_, (last, document) = list(again)
    assert (last, document["id"], document["outcome"]) == ("turn", turn, "committed")
    assert waited.result() == repeated.result().json() == document == one.turn(id, turn)
    assert logged(folder).count("at joined") == 1
    assert one.outcomes(id) == ["committed"]


def test_many_turns_through_both_are_never_interleaved_lost_or_doubled(one: Api, two: Api) -> None:
    id = one.create()
    apis = [one, two]

    def run(number: int) -> Any:
        """Runs a turn, again and again until nobody else is in the way."""
        for _ in range(2000):
            answer = apis[number % 2].run(id, f"message {number}", key=f"many-{number}")
            if answer.status_code != 409:
                return answer
            assert answer.json()["error"]["code"] == "busy"
        raise AssertionError("it was always busy")

    answers = [one.soon(run, number) for number in range(16)]
    turns = [answer.result().json() for answer in answers]
    assert {turn["outcome"] for turn in turns} == {"committed"}
    said = one.said(id)
    assert two.said(id) == said
    assert len(said) == 32
    for message, answer in zip(said[::2], said[1::2], strict=True):
        assert answer == f"You said: {message}"
    assert sorted(said[::2]) == sorted(f"message {number}" for number in range(16))
    assert len(one.outcomes(id)) == 16


def test_a_key_has_one_effect_through_both(one: Api, two: Api) -> None:
    headers = {"Idempotency-Key": "made-once"}
    made = [api.http.post("/api/conversations", json={"title": "Once"}, headers=headers) for api in (one, two)]
    assert made[0].json()["id"] == made[1].json()["id"]
    id = made[0].json()["id"]
    line = steps([["note", {"line": "through both"}]])
    both = [api.soon(api.run, id, line, key="both") for api in (one, two)]
    assert both[0].result().json() == both[1].result().json()
    assert len(one.outcomes(id)) == 1
    forks = [api.post(f"{id}/fork", key="fork-both").json()["id"] for api in (one, two)]
    assert forks[0] == forks[1]


def test_a_second_signal_stops_a_server_at_once_also_one_that_waits_for_the_others_turn(
    servers: tuple[ServerProcess, ServerProcess], one: Api, two: Api, folder: Path
) -> None:
    """The last one: the second server, which would wait for an hour, is gone after it."""
    gate, id, other = Gate(folder, "stop"), one.create(), one.create()
    message = steps(gate.step())
    turn = one.run(id, message, key="stop", prefer="respond-async").json()["id"]
    with gate.reached() as held, two.stream(id, message, key="stop") as joined, two.stream(other, steps("hang")) as own:
        waits = http.client.HTTPConnection(urlsplit(servers[1].url).netloc)
        waits.request("GET", f"/api/conversations/{id}/turns/{turn}?wait=60")
        joined.until("snapshot")
        own.until("text")
        servers[1].process.terminate()
        stopping(two)
        assert two.get(other)["status"] == "running"
        servers[1].process.terminate()
        *_, (last, problem) = list(own)
        assert (last, problem["error"]["code"]) == ("error", "turn_handed_over")
        *_, (last, problem) = list(joined)
        assert (last, problem["error"]["code"]) == ("error", "shutting_down")
        assert json.loads(waits.getresponse().read())["outcome"] == "running"
        waits.close()
        assert servers[1].process.wait(PATIENCE) == 0
        held.go()
    assert one.turn(id, turn, wait=PATIENCE)["outcome"] == "committed"
    assert one.outcomes(other) == ["interrupted"]
    assert one.get(other)["status"] == "interrupted"
