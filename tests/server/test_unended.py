"""A turn whose end the store did not take is ended by its server as soon as the store answers, unasked."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.server.support.serving import served
from tests.server.support.turning import PATIENCE, Visits

from forkpoint.llm import LLM
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.http import tenants
from forkpoint.store.sqlite import writer
from forkpoint.testing import ModelServer, Reply, Script


def test_an_accepted_turn_that_the_store_could_not_end_does_not_run_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PATIENCE", 0.2)  # seconds that it waits for the lock
    monkeypatch.setattr(tenants, "PAUSE", 0.05)
    monkeypatch.setenv("MODEL_KEY", "any")
    file = tmp_path / "server.db"
    with ModelServer(Script([Reply("Hello")])) as model, Visits() as log:
        agents = Catalog.of_model(LLM("openai/x", api="chat", base_url=model.url, api_key_env="MODEL_KEY"))
        with served(f"sqlite:///{file}", agents) as server, server.client() as http:
            made = http.post("/api/conversations", json={}).json()["id"]
            path = f"/api/conversations/{made}/turns"
            with closing(sqlite3.connect(file, isolation_level=None)) as other:
                with model.holding():
                    turn = http.post(path, json={"message": "Hi"}, headers={"Prefer": "respond-async"}).json()["id"]
                    other.execute("BEGIN IMMEDIATE")  # from here on nothing can be written
                log.until("what was asked for failed")
                assert http.get(f"{path}/{turn}").json()["outcome"] == "running"
            until = time.monotonic() + PATIENCE
            while (outcome := http.get(f"{path}/{turn}").json()["outcome"]) == "running":
                assert time.monotonic() < until, "nobody ends it"
                time.sleep(0.01)
            assert outcome == "failed"
