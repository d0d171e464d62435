"""A client that goes, at each stage of a turn: nothing half-done is committed, nothing done is lost, nothing leaks."""

import fcntl
import http.client
import json
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.server.support.serving import Served, served
from tests.server.support.turning import (
    PATIENCE,
    Api,
    Gate,
    SlowEnd,
    Visits,
    agents_of,
    asked_for,
    holds,
    left_nothing,
    model,
    using,
    waiting,
)

from forkpoint.agent import Agent
from forkpoint.llm import LLM, Retries
from forkpoint.server.agents.catalog import Catalog
from forkpoint.testing import Fault, Heard, ModelServer, Reply, Script

RUN = "POST /api/conversations/{id}/turns"


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def server(gate: Gate) -> Iterator[Served]:
    with served(agents=agents_of(gate.tool)) as server:
        yield server
        gate.open()


@pytest.fixture
def api(server: Served) -> Iterator[Api]:
    with using(server.url) as api:
        yield api


@pytest.fixture
def visits() -> Iterator[Visits]:
    with Visits() as visits:
        yield visits


class Leaver:
    """A client that sends a request and goes before it is answered."""

    def __init__(self, api: Api, path: str, key: str | None = None, **body: Any) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(str(api.http.base_url)).netloc)
        headers = {"Content-Type": "application/json"} | ({} if key is None else {"Idempotency-Key": key})
        self._connection.request("POST", f"/api/conversations/{path}", json.dumps(body), headers)

    def leave(self) -> None:
        self._connection.close()


def started(server: Served) -> None:
    """Waits until something was asked for there."""
    deadline = time.monotonic() + PATIENCE
    while server.services.turns.is_idle:
        assert time.monotonic() < deadline, "nothing was asked for"
        time.sleep(0.002)


def _last(api: Api, method: str, path: str, **options: Any) -> dict[str, Any]:
    """The turn as a stream tells it at its end."""
    with api.streamed(method, path, **options) as stream:
        *_, (_, turn) = stream.until("turn", "error")
    return turn


@contextmanager
def taking_nothing(file: Path) -> Iterator[None]:
    """Within the block the disk takes nothing."""
    with open(f"{file}-write", "r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def writing(file: Path) -> None:
    """Waits until the server is about to write."""
    deadline = time.monotonic() + PATIENCE
    with open(f"{file}-write", "r+b") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert time.monotonic() < deadline, "nothing is written"
            time.sleep(0.002)


# By default the turn goes on.


def test_a_turn_goes_on_when_its_client_goes_while_it_waits_for_json(
    server: Served, api: Api, gate: Gate, visits: Visits
) -> None:
    id = api.create()
    client = Leaver(api, f"{id}/turns", message=holds("x"))
    gate.reached()
    client.leave()
    visits.until(f"{RUN} 499")
    turn = api.get(id)["open_turn"]
    assert api.turn(id, turn)["outcome"] == "running"
    gate.open()
    assert api.turn(id, turn, wait=PATIENCE)["text"] == "Done: held x"
    assert api.outcomes(id) == ["committed"]
    left_nothing(server)


def test_a_turn_goes_on_when_its_client_goes_during_the_stream_and_can_be_joined(
    server: Served, api: Api, gate: Gate, visits: Visits
) -> None:
    id = api.create()
    with api.stream(id, holds("x")) as stream:
        *_, (_, started) = stream.until("call_started")
    visits.until(f"{RUN} 200")
    with api.streamed("GET", f"{id}/turns/{started['turn']}") as joined:
        ((_, snapshot),) = joined.until("snapshot")
        assert [update["type"] for update in snapshot["updates"]][-1] == "call_started"
        gate.open()
        *_, (_, turn) = joined.until("turn")
    assert (turn["text"], api.outcomes(id)) == ("Done: held x", ["committed"])
    assert gate.runs == ["x"]
    left_nothing(server)


@pytest.mark.parametrize(("stop", "outcome"), [(False, "committed"), (True, "cancelled")])
def test_a_client_that_goes_while_its_turn_begins_is_one_that_goes_after_it(
    tmp_path: Path, gate: Gate, visits: Visits, stop: bool, outcome: str
) -> None:
    file = tmp_path / "s.db"
    with served(f"sqlite:///{file}", agents_of(gate.tool)) as server, using(server.url) as api:
        id = api.create()
        with taking_nothing(file):
            client = Leaver(api, f"{id}/turns", message=holds("x"), cancel_on_disconnect=stop)
            started(server)
            client.leave()
        visits.until(f"{RUN} 499")
        if not stop:
            gate.reached()
        gate.open()
        left_nothing(server)
        assert api.outcomes(id) == [outcome]
        assert api.get(id)["status"] == "idle"


@pytest.mark.parametrize("stop", [False, True])
def test_half_a_request_begins_nothing(server: Served, api: Api, visits: Visits, stop: bool) -> None:
    id = api.create()
    body = json.dumps({"message": "Hello", "cancel_on_disconnect": stop})
    head = f"POST /api/conversations/{id}/turns HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as half:
        half.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body[:-5]}".encode())
    visits.until(f"{RUN} 499")
    left_nothing(server)
    assert api.outcomes(id) == []
    assert not visits.errors


# With cancel_on_disconnect it is cancelled.


def test_a_turn_that_is_to_stop_with_its_client_is_cancelled_while_it_waits_for_json(
    server: Served, api: Api, gate: Gate, visits: Visits
) -> None:
    id = api.create()
    client = Leaver(api, f"{id}/turns", message=holds("x"), cancel_on_disconnect=True)
    gate.reached()
    client.leave()
    visits.until(f"{RUN} 499")
    left_nothing(server)
    assert api.outcomes(id) == ["cancelled"]
    assert api.get(f"{id}/events")["items"] == []
    assert api.get(id)["status"] == "idle"
    again = api.run(id, "Still there?")
    assert again.json()["text"] == "You said: Still there?"


def test_a_turn_that_is_to_stop_with_its_client_is_cancelled_during_the_stream(
    server: Served, api: Api, gate: Gate, visits: Visits
) -> None:
    id = api.create()
    with api.stream(id, holds("x"), cancel_on_disconnect=True) as stream:
        *_, (_, started) = stream.until("call_started")
    visits.until(f"{RUN} 200")
    left_nothing(server)
    turn = api.turn(id, started["turn"])
    assert (turn["outcome"], turn["calls"][0]["status"]) == ("cancelled", "unknown")


def test_the_same_key_again_while_its_turn_is_being_stopped_runs_anew() -> None:
    slow = SlowEnd()
    with served(agents=agents_of(slow.tool)) as server, using(server.url) as api:
        id = api.create()
        asked = {"message": holds("x"), "cancel_on_disconnect": True}
        client = Leaver(api, f"{id}/turns", "k", **asked)
        slow.reached()
        client.leave()
        slow.stopping()
        again = api.soon(api.post, f"{id}/turns", key="k", **asked)
        asked_for(server, 2)
        slow.end()
        assert (again.result().status_code, again.result().json()["text"]) == (200, "Done: held x")
        assert (api.outcomes(id), slow.runs) == (["cancelled", "committed"], 2)


def test_one_who_joined_and_goes_cancels_nothing(server: Served, api: Api, gate: Gate, visits: Visits) -> None:
    id = api.create()
    turn = api.run(id, holds("x"), key="k", prefer="respond-async").json()["id"]
    gate.reached()
    with api.stream(id, holds("x"), key="k", cancel_on_disconnect=True) as joined:
        joined.until("snapshot")
    visits.until(f"{RUN} 200")
    assert api.turn(id, turn)["outcome"] == "running"
    gate.open()
    assert api.turn(id, turn, wait=PATIENCE)["outcome"] == "committed"
    left_nothing(server)


@pytest.mark.parametrize("how", ["the same key", "the same key as a stream", "its stream", "its end"])
def test_a_turn_that_is_to_stop_with_its_client_goes_on_while_others_wait_for_it(
    server: Served, api: Api, gate: Gate, visits: Visits, how: str
) -> None:
    id = api.create()
    asked = {"message": holds("x"), "cancel_on_disconnect": True}
    client = Leaver(api, f"{id}/turns", "k", **asked)
    gate.reached()
    turn = api.get(id)["open_turn"]
    match how:
        case "the same key":
            other = api.soon(api.post, f"{id}/turns", key="k", **asked)
        case "the same key as a stream":
            other = api.soon(_last, api, "POST", f"{id}/turns", key="k", **asked)
        case "its stream":
            other = api.soon(_last, api, "GET", f"{id}/turns/{turn}")
        case _:
            other = api.soon(api.turn, id, turn, wait=PATIENCE)
    waiting(server, id, 2)
    client.leave()
    visits.until(f"{RUN} 499")
    gate.open()
    heard = other.result()
    document = heard.json() if how == "the same key" else heard
    assert (document["id"], document["outcome"]) == (turn, "committed")
    assert (api.outcomes(id), gate.runs) == (["committed"], ["x"])
    left_nothing(server)


def test_the_last_of_those_who_wait_stops_a_turn_that_is_to_stop_with_its_client(
    server: Served, api: Api, gate: Gate, visits: Visits
) -> None:
    id = api.create()
    first = Leaver(api, f"{id}/turns", "k", message=holds("x"), cancel_on_disconnect=True)
    gate.reached()
    with api.streamed("GET", f"{id}/turns/{api.get(id)['open_turn']}") as last:
        last.until("snapshot")
        first.leave()
        visits.until(f"{RUN} 499")
        assert api.get(id)["status"] == "running"
    left_nothing(server)
    assert api.outcomes(id) == ["cancelled"]


def test_a_turn_that_was_answered_at_once_is_not_stopped_by_those_who_look_at_it(
    server: Served, api: Api, gate: Gate, visits: Visits
) -> None:
    id = api.create()
    turn = api.run(id, holds("x"), prefer="respond-async", cancel_on_disconnect=True).json()["id"]
    gate.reached()
    with api.streamed("GET", f"{id}/turns/{turn}") as looks:
        looks.until("snapshot")
    visits.until("GET /api/conversations/{id}/turns/{turn} 200")
    gate.open()
    assert api.turn(id, turn, wait=PATIENCE)["outcome"] == "committed"
    left_nothing(server)


def test_a_commit_that_has_begun_is_finished_though_the_turn_was_to_stop_with_its_client(
    tmp_path: Path, visits: Visits
) -> None:
    answers = threading.Event()

    def answer(heard: Heard) -> Reply:
        assert answers.wait(PATIENCE)
        return Reply("Done")

    with ModelServer(Script(answer)) as models:
        agents = Catalog({"helper": Agent(LLM("openai/test", base_url=models.url, retries=Retries(attempts=1)))})
        file = tmp_path / "s.db"
        with served(f"sqlite:///{file}", agents) as server, using(server.url) as api:
            id = api.create()
            with api.stream(id, "Hello", cancel_on_disconnect=True) as stream:
                models.wait_for(1)
                with closing(sqlite3.connect(file)) as other:
                    with taking_nothing(file):
                        answers.set()
                        stream.until("answered")
                        other.execute("BEGIN IMMEDIATE")  # now the writer may begin, and cannot end
                    writing(file)
                    stream.response.close()
                    visits.until(f"{RUN} 200")
            left_nothing(server)
            assert api.outcomes(id) == ["committed"]
            assert api.said(id) == ["Hello", "Done"]


# Side questions, which nobody could fetch.


@pytest.mark.parametrize("streams", [False, True])
def test_a_side_question_stops_with_its_client(visits: Visits, streams: bool) -> None:
    hangs = Agent(model([Reply("I think", fault=Fault("hang", after=1))], "thinks"))
    with served(agents=Catalog({"thinker": hangs})) as server, using(server.url) as api:
        id = api.create()
        if streams:
            with api.streamed("POST", f"{id}/ask", message="Why?") as stream:
                stream.until("text")
            visits.until("POST /api/conversations/{id}/ask 200")
        else:
            client = Leaver(api, f"{id}/ask", message="Why?")
            started(server)
            client.leave()
            visits.until("POST /api/conversations/{id}/ask 499")
        left_nothing(server)
