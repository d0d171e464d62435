"""Two servers on one PostgreSQL database: readers of one see what a turn says on the other while it runs, and a request
that is sent to both is one request."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
from tests.postgres.server import Server
from tests.server.support.doing import Gate, start, steps
from tests.server.support.turning import PATIENCE, using


def test_a_stream_of_one_node_shows_a_turn_that_runs_on_the_other(tmp_path: Path, postgres: str) -> None:
    gate = Gate(tmp_path)
    servers = [start(tmp_path, "--store", postgres) for _ in range(2)]
    with servers[0] as one, servers[1] as two, using(one.url) as api:
        id = api.create()
        with (
            httpx2.Client(timeout=PATIENCE) as client,
            client.stream("GET", f"{two.url}/api/conversations/{id}/events/stream", params={"after": "head"}) as stream,
        ):
            lines = stream.iter_lines()
            assert stream.status_code == 200
            turn = api.run(id, steps(gate.step()), prefer="respond-async").json()["id"]
            with gate.reached() as waiting:
                said = (json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:"))
                assert next(each for each in said if each.get("turn") == turn)  # a snapshot of it may come before
                waiting.go()
            assert next(line for line in lines if line.startswith("id:"))  # then what it has committed


def test_a_repeated_request_hears_202_only_once_a_standby_has_the_promise(
    tmp_path: Path, make_server: Callable[..., Server]
) -> None:
    database, gate = make_server(), Gate(tmp_path)
    servers = [start(tmp_path, "--store", database.url()) for _ in range(2)]
    with servers[0] as one, servers[1] as two, using(one.url) as api, using(two.url) as there:
        id, message = api.create(), steps(gate.step())
        first = api.run(id, message, key="promised", prefer="respond-async")
        with gate.reached() as waiting, ThreadPoolExecutor(1) as pool:
            database.configure(synchronous_standby_names="absent")
            again = pool.submit(there.run, id, message, key="promised", prefer="respond-async")
            database.wait_for_sessions("SyncRep")
            assert not again.done()
            database.configure(synchronous_standby_names="")
            assert (again.result().status_code, again.result().json()["id"]) == (202, first.json()["id"])
            waiting.go()


def test_an_outcome_and_events_are_shown_only_once_a_standby_has_them(
    tmp_path: Path, make_server: Callable[..., Server]
) -> None:
    """A commit whose wait for a standby was cancelled can be read, and a failover could still take it back."""
    database = make_server()
    with start(tmp_path, "--store", database.url()) as server, using(server.url) as api, httpx2.Client() as client:
        id = api.create()
        turn = api.run(id, steps(), prefer="respond-async").json()["id"]
        place = f"{server.url}/api/conversations/{id}"

        def outcome() -> str:
            answer: str = client.get(f"{place}/turns/{turn}", timeout=PATIENCE).json()["outcome"]
            return answer

        def listed() -> str:
            (found,) = client.get(f"{place}/turns", timeout=PATIENCE).json()["items"]
            return str(found["outcome"])

        def page() -> str:
            return f"{len(client.get(f'{place}/events', timeout=PATIENCE).json()['items'])} events"

        def first_event() -> str:
            with client.stream("GET", f"{place}/events/stream", params={"after": "0"}, timeout=PATIENCE) as stream:
                return next(line for line in stream.iter_lines() if line.startswith("id:"))

        while outcome() == "running":
            pass
        events = page()
        for ask, answer in ((outcome, "committed"), (listed, "committed"), (page, events), (first_event, "id:")):
            database.configure(synchronous_standby_names="absent")
            with ThreadPoolExecutor(1) as pool:
                asking = pool.submit(ask)
                database.wait_for_sessions("SyncRep")
                assert not asking.done()
                database.configure(synchronous_standby_names="")
                assert asking.result().startswith(answer)
