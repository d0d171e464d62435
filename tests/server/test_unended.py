"""A turn whose end the store did not take is ended by its server as soon as the store answers, unasked; and if somebody
was promised the turn, it goes on instead, since nothing but the store has failed."""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx2
import pytest
from tests.server.support.serving import Served, served
from tests.server.support.turning import PATIENCE, Api, Visits, using, waiting

from forkpoint.llm import LLM
from forkpoint.llm.scripts import Fault
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.http import tenants
from forkpoint.server.settings import ServerSettings
from forkpoint.store.sqlite import writer
from forkpoint.testing import ModelServer, Reply, Script


@pytest.mark.parametrize("is_accepted", [True, False])
def test_a_turn_that_the_store_could_not_end_goes_on_if_somebody_was_promised_it_and_else_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_accepted: bool
) -> None:
    with _serving(tmp_path, monkeypatch, Reply("Hello")) as (model, server, log, other), using(server.url) as api:
        id = api.create()
        with model.holding():
            asked = api.soon(api.run, id, "Hi", prefer="respond-async" if is_accepted else None)
            turn = _open_turn(api, id)
            if is_accepted:
                assert asked.result().status_code == 202
            other.execute("BEGIN IMMEDIATE")  # from here on nothing can be written
        log.until("what was asked for failed")
        assert api.turn(id, turn)["outcome"] == "running"
        if not is_accepted:  # nobody else goes on with it
            failed = asked.result().json()
            assert (failed["error"]["code"], failed["turn"]["outcome"]) == ("turn_failed", "failed")
        other.execute("ROLLBACK")
        ended = api.turn(id, turn, wait=PATIENCE - 5)
        assert ended["outcome"] == ("committed" if is_accepted else "failed")


@pytest.mark.parametrize(("cause", "ends"), [("store", "committed"), ("model", "failed"), ("cancel", "cancelled")])
def test_while_the_end_of_an_accepted_turn_is_not_written_everybody_hears_that_it_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str, ends: str
) -> None:
    fault = Fault("bad_request") if cause == "model" else None
    with (
        _serving(tmp_path, monkeypatch, Reply("Hello", fault=fault)) as (model, server, _, other),
        using(server.url) as api,
    ):
        id = api.create()
        with api.streamed("GET", f"{id}/events/stream") as watched:
            with model.holding():
                turn = api.run(id, "Hi", key="k", prefer="respond-async").json()["id"]
                joined = api.soon(api.run, id, "Hi", key="k")
                waiting(server, id, 1)
                other.execute("BEGIN IMMEDIATE")  # from here on nothing can be written
                if cause == "cancel":
                    _assert_unknown(api.post(f"{id}/turns/{turn}/cancel"))
            _assert_unknown(joined.result())
            _assert_unknown(api.post(f"{id}/turns/{turn}/settle"))
            other.execute("ROLLBACK")
            if cause == "store":  # the others hear of no turn that was committed
                assert watched.until("turn")[-1][1]["outcome"] == "committed"
            assert api.turn(id, turn, wait=PATIENCE - 5)["outcome"] == ends
            assert api.post(f"{id}/turns/{turn}/settle").json()["outcome"] == ends


def test_the_stream_of_a_background_response_whose_end_is_not_written_says_that_it_may_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _serving(tmp_path, monkeypatch, Reply("Hello")) as (model, server, _, other), using(server.url) as api:
        asked = {"model": api.http.get("/v1/models").json()["data"][0]["id"], "input": "Hi"}
        with model.holding():
            id = api.http.post("/v1/responses", json=asked | {"background": True}).json()["id"]
            other.execute("BEGIN IMMEDIATE")  # from here on nothing can be written
        told = api.http.get(f"/v1/responses/{id}", params={"stream": True}).text
        kind, said = told.rstrip().rsplit("\n\n", 1)[-1].split("\n")
        assert kind == "event: response.failed"
        failed = json.loads(said.removeprefix("data: "))["response"]["error"]
        assert "nobody knows yet" in failed["message"]
        other.execute("ROLLBACK")
        assert "response.completed" in api.http.get(f"/v1/responses/{id}", params={"stream": True}).text


def _assert_unknown(answer: httpx2.Response) -> None:
    said = answer.json()["error"]["code"], answer.status_code, answer.headers.get("retry-after")
    assert said == ("outcome_unknown", 503, "2"), answer.text


@contextmanager
def _serving(
    folder: Path, monkeypatch: pytest.MonkeyPatch, reply: Reply
) -> Iterator[tuple[ModelServer, Served, Visits, sqlite3.Connection]]:
    """A server that soon gives up on a store that is locked, its model, its log, and a connection that can lock it."""
    monkeypatch.setattr(writer, "PATIENCE", 0.2)  # seconds that it waits for the lock
    monkeypatch.setattr(tenants, "PAUSE", 0.05)
    monkeypatch.setenv("MODEL_KEY", "any")
    file, settings = folder / "server.db", ServerSettings(resume_orphans_every=0.05)
    with ModelServer(Script([reply])) as model, Visits() as log:
        agents = Catalog.of_model(LLM("openai/x", api="chat", base_url=model.url, api_key_env="MODEL_KEY"))
        with (
            served(f"sqlite:///{file}", agents, settings=settings) as server,
            closing(sqlite3.connect(file, isolation_level=None)) as other,
        ):
            yield model, server, log, other


def _open_turn(api: Api, id: str) -> str:
    until = time.monotonic() + PATIENCE
    while (turn := api.get(id)["open_turn"]) is None:
        assert time.monotonic() < until, "no turn begins"
        time.sleep(0.01)
    return str(turn)
