"""Servers on one store that are replaced one after the other while clients use them: no request fails, no turn is run
twice, and a server that stops hands over what it has not finished."""

import signal
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.server.support.doing import Gate, logged, start, steps
from tests.server.support.retrying import RetryingClient
from tests.server.support.serving import free_port
from tests.server.support.turning import PATIENCE, using

PACE = 0.1
"""How much of the time that a server or a backoff asks for these clients wait."""


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> str:
    """The address of a store, in each kind of database."""
    return "sqlite:///server.db" if request.param == "sqlite" else str(request.getfixturevalue("postgres"))


def test_rolling_three_servers_under_load_fails_no_request_and_doubles_no_turn(tmp_path: Path, store: str) -> None:
    over = threading.Event()

    def work(name: str, urls: Sequence[str]) -> tuple[str, list[str], list[str]]:
        """Turns one after the other in a conversation of its own, until the servers are all new."""
        done: list[str] = []
        with closing(RetryingClient(urls, pace=PACE)) as client:
            id = str(client.send("POST", "/api/conversations", key=f"make-{name}").json()["id"])
            while not over.is_set():
                key = f"{name}-{len(done)}"
                message = steps([["note", {"line": key}]])
                turn = client.send("POST", f"/api/conversations/{id}/turns", key=key, message=message)
                assert (turn.status_code, turn.json()["text"]) == (200, f"Done: noted {key}"), turn.text
                assert client.send("GET", f"/api/conversations/{id}").json()["revision"] == len(done) + 1
                done.append(key)
        return id, done, client.retries

    ports = [free_port() for _ in range(3)]
    with ExitStack() as running, ThreadPoolExecutor(5) as pool:
        nodes = [running.enter_context(start(tmp_path, "--store", store, "--port", str(port))) for port in ports]
        urls = [node.url for node in nodes]
        working = [pool.submit(work, f"w{n}", urls[n % 3 :] + urls[: n % 3]) for n in range(5)]
        try:
            for port, old in zip(ports, tuple(nodes), strict=True):
                old.process.send_signal(signal.SIGTERM)
                assert old.process.wait(PATIENCE) == 0, old.log.read_text()
                nodes.append(running.enter_context(start(tmp_path, "--store", store, "--port", str(port))))
        finally:
            over.set()
        found = [one.result() for one in working]
        with using(urls[0]) as api:
            for id, done, _ in found:
                turns = api.get(f"{id}/turns", limit=1000)["items"]
                assert [(turn["outcome"], turn["text"]) for turn in turns] == [
                    ("committed", f"Done: noted {key}") for key in done
                ]
        keys = [key for _, done, _ in found for key in done]
        assert sorted(logged(tmp_path)) == sorted(keys)  # each tool ran once
        assert any(retries for *_, retries in found), "nobody noticed anything: the servers were not under load"
        for node in nodes:
            assert "Traceback" not in node.log.read_text()


def test_what_a_stopping_server_has_not_finished_goes_on_elsewhere_with_the_same_request(
    tmp_path: Path, store: str
) -> None:
    gate, message = Gate(tmp_path), steps([["note", {"line": "once"}]], "hang")
    with (
        start(tmp_path, "--store", store, "--drain", "0") as one,
        start(tmp_path, "--store", store) as two,
        using(one.url) as api,
        using(two.url) as there,
    ):
        id, other = api.create(), api.create()
        held = api.run(other, steps(gate.step()), prefer="respond-async").json()["id"]
        with gate.reached(), api.stream(id, message, key="long") as stream:
            turn = stream.until("text")[-1][1]["turn"]
            one.process.send_signal(signal.SIGTERM)
            *_, (last, problem) = list(stream)
            assert (last, problem["error"]["code"]) == ("error", "turn_handed_over")
            assert problem["error"]["details"]["turn"] == turn
            (tmp_path / "awake").touch()
            again = there.run(id, message, key="long").json()  # at once: it waits until the first server has let go
            assert (again["id"], again["outcome"], again["text"]) == (turn, "committed", "Awake.")
            assert one.process.wait(PATIENCE) == 0
            promised = there.turn(other, held, wait=PATIENCE)  # it goes on by itself
            assert (promised["outcome"], promised["calls"][0]["status"]) == ("committed", "unknown")
    assert logged(tmp_path).count("once") == 1
    assert logged(tmp_path).count("at gate") == 1  # nobody knows whether it did its work, so it is not run again


def test_a_request_that_was_half_there_when_the_server_stopped_is_answered(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with start(tmp_path) as server, using(server.url) as api:
        api.run(api.create(), steps(gate.step()), prefer="respond-async")
        with gate.reached() as held, _connected(server.url) as late:
            late.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
            server.process.send_signal(signal.SIGTERM)
            held.go()
            server.until_logged("Waiting for connections to close")
            late.sendall(b"alhost\r\n\r\n")
            answer = late.makefile("rb").read()  # to its end: the server closes the connection
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer
        assert server.process.wait(PATIENCE) == 0


def _connected(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=PATIENCE)
