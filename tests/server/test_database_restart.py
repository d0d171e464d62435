"""Servers on a PostgreSQL that is restarted, crashes, or stops answering: they refuse, go on, and need no hand."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
from tests.postgres.server import Server, Stop
from tests.server.support.doing import Gate, logged, start, steps
from tests.server.support.retrying import RetryingClient
from tests.server.support.serving import served
from tests.server.support.turning import PATIENCE, using

from forkpoint.server.settings import ServerSettings


def until(http: httpx2.Client, status: int) -> httpx2.Response:
    """Waits until the server says that it is ready, or that it is not."""
    deadline = time.monotonic() + PATIENCE
    while (answer := http.get("/ready")).status_code != status:
        assert time.monotonic() < deadline, f"/ready never was {status}: {answer.text}"
        time.sleep(0.02)
    return answer


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_a_database_that_restarts_under_load_loses_nothing_and_doubles_nothing(
    make_server: Callable[..., Server], how: str
) -> None:
    database, over = make_server(), threading.Event()

    def work(name: str, urls: Sequence[str]) -> tuple[str, list[str]]:
        done: list[str] = []
        with closing(RetryingClient(urls, retries=6)) as client:
            id = str(client.send("POST", "/api/conversations", key=f"make-{name}").json()["id"])
            while not over.is_set():
                key = f"{name}-{len(done)}"
                turn = client.send("POST", f"/api/conversations/{id}/turns", key=key, message=key)
                assert turn.json()["outcome"] == "committed", turn.text
                done.append(key)
        return id, done

    with served(database.url()) as one, served(database.url()) as two, ThreadPoolExecutor(4) as pool:
        urls = [one.url, two.url]
        working = [pool.submit(work, f"w{n}", urls[n % 2 :] + urls[: n % 2]) for n in range(4)]
        try:
            for _ in range(2):
                database.restart(how)  # type: ignore[arg-type]
                for url in urls:
                    with httpx2.Client(base_url=url, timeout=PATIENCE) as http:
                        until(http, 200)
        finally:
            over.set()
        for one_working in working:
            id, done = one_working.result()
            with using(one.url) as api:
                turns = api.get(f"{id}/turns", limit=1000, committed=True)["items"]
                assert [turn["input"][0]["parts"][0]["text"] for turn in turns] == done


def test_while_the_database_is_away_every_request_is_503_at_once_and_then_all_is_well(
    make_server: Callable[..., Server],
) -> None:
    database = make_server()
    with served(database.url(), settings=ServerSettings(metrics="public")) as server, server.client() as http:
        id = http.post("/api/conversations", json={}).json()["id"]
        database.stop("immediate")
        refused = until(http, 503)
        assert int(refused.headers["retry-after"]) >= 1
        codes = {http.get(f"/api/conversations/{id}").json()["error"]["code"] for _ in range(20)}
        assert "store_away" in codes
        assert codes <= {"store_away", "store_unavailable"}
        assert http.get("/health").status_code == 200
        database.start()
        until(http, 200)
        assert http.post(f"/api/conversations/{id}/turns", json={"message": "Hello"}).status_code == 200


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_an_accepted_turn_goes_on_after_its_database_was_away(
    tmp_path: Path, make_server: Callable[..., Server], how: Stop
) -> None:
    database, gate = make_server(), Gate(tmp_path)
    message = steps([["note", {"line": "before"}]], gate.step(), [["note", {"line": "after"}]])
    with start(tmp_path, "--store", database.url()) as server, using(server.url) as api:
        id = api.create()
        turn = api.run(id, message, key="k", prefer="respond-async").json()["id"]
        with gate.reached() as waiting, api.stream(id, message, key="k") as joined:
            joined.until("snapshot")
            database.stop(how)
            waiting.go()  # its result cannot be written
            until(api.http, 503)
            server.until_logged("what was asked for failed")
            assert joined.until("turn", "error")[-1][1]["error"]["code"] == "outcome_unknown"
        database.start()
        until(api.http, 200)
        ended = api.turn(id, turn, wait=PATIENCE - 5)
        assert (ended["outcome"], ended["text"]) == ("committed", "Done: noted before | was told go | noted after")
        assert logged(tmp_path) == ["before", "at gate", "after"]
