"""A turn whose end the store did not take is ended by its server as soon as the store answers, unasked; and if somebody
was promised the turn, it goes on instead, since nothing but the store has failed."""

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from tests.server.support.serving import served
from tests.server.support.turning import PATIENCE, Api, Visits, using

from forkpoint.llm import LLM
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.http import tenants
from forkpoint.server.settings import ServerSettings
from forkpoint.store.sqlite import writer
from forkpoint.testing import ModelServer, Reply, Script


@pytest.mark.parametrize("is_accepted", [True, False])
def test_a_turn_that_the_store_could_not_end_goes_on_if_somebody_was_promised_it_and_else_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_accepted: bool
) -> None:
    monkeypatch.setattr(writer, "PATIENCE", 0.2)  # seconds that it waits for the lock
    monkeypatch.setattr(tenants, "PAUSE", 0.05)
    monkeypatch.setenv("MODEL_KEY", "any")
    file = tmp_path / "server.db"
    settings = ServerSettings(resume_orphans_every=0.05)
    with ModelServer(Script([Reply("Hello")])) as model, Visits() as log:
        agents = Catalog.of_model(LLM("openai/x", api="chat", base_url=model.url, api_key_env="MODEL_KEY"))
        with served(f"sqlite:///{file}", agents, settings=settings) as server, using(server.url) as api:
            id = api.create()
            with closing(sqlite3.connect(file, isolation_level=None)) as other, ThreadPoolExecutor(1) as pool:
                with model.holding():
                    asked = pool.submit(api.run, id, "Hi", prefer="respond-async" if is_accepted else None)
                    turn = _open_turn(api, id)
                    if is_accepted:
                        assert asked.result().status_code == 202
                    other.execute("BEGIN IMMEDIATE")  # from here on nothing can be written
                log.until("what was asked for failed")
                assert api.turn(id, turn)["outcome"] == "running"
            ended = api.turn(id, turn, wait=PATIENCE - 5)
            assert ended["outcome"] == ("committed" if is_accepted else "failed")


def _open_turn(api: Api, id: str) -> str:
    until = time.monotonic() + PATIENCE
    while (turn := api.get(id)["open_turn"]) is None:
        assert time.monotonic() < until, "no turn begins"
        time.sleep(0.01)
    return str(turn)
