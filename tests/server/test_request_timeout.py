"""A server's limit of seconds for a turn: whatever its agent says, it has failed by then."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.support.serving import Served, served
from tests.server.support.turning import Api, model, using

from forkpoint.agent import Agent, Limits
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.settings import ServerSettings
from forkpoint.testing import Fault, Heard, Reply

HANGS = Reply("never heard", piece=1, fault=Fault("hang", after=1))


def answer(heard: Heard) -> Reply:
    return HANGS if heard.text == "hang" else Reply("Fine.")


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    llm = model(answer, "request-timeout")
    agents = Catalog(
        {
            "patient": Agent(llm),
            "lavish": Agent(llm, limits=Limits(seconds=60)),
            "hasty": Agent(llm, limits=Limits(seconds=0.03)),
        }
    )
    with served(agents=agents, settings=ServerSettings(request_timeout=0.06)) as server:
        yield server


@pytest.fixture
def api(server: Served) -> Iterator[Api]:
    with using(server.url) as api:
        yield api


def too_late(answer: Any, seconds: str) -> str:
    """The turn that an answer says has failed for want of time."""
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["cause"]["code"]) == (422, "turn_failed", "limit_reached"), error
    assert f"limit of {seconds} seconds" in error["message"]
    return str(error["details"]["id"])


@pytest.mark.parametrize(("agent", "seconds"), [("patient", "0.06"), ("lavish", "0.06"), ("hasty", "0.03")])
def test_a_turn_that_takes_longer_has_failed_unless_its_agent_has_less_patience(
    api: Api, agent: str, seconds: str
) -> None:
    id = api.create(agent=agent)
    too_late(api.run(id, "hang"), seconds)
    assert api.get(id)["status"] == "idle"
    assert api.outcomes(id) == ["failed"]
    assert api.run(id, "again").json()["text"] == "Fine."


def test_a_retry_has_it_too(api: Api) -> None:
    id = api.create(agent="lavish")
    turn = too_late(api.run(id, "hang"), "0.06")
    too_late(api.post(f"{id}/turns/{turn}/retry"), "0.06")


@pytest.mark.parametrize(("limits", "seconds"), [({}, "0.06"), ({"seconds": 60}, "0.06"), ({"seconds": 0.02}, "0.02")])
def test_so_has_one_that_is_resumed_whatever_limits_it_is_given(api: Api, limits: Any, seconds: str) -> None:
    id = api.create(agent="patient")
    turn = too_late(api.run(id, "hang"), "0.06")
    too_late(api.post(f"{id}/turns/{turn}/resume", **({"limits": limits} if limits else {})), seconds)


def test_a_stream_says_so_at_its_end(api: Api) -> None:
    with api.stream(api.create(agent="patient"), "hang") as stream:
        kind, data = stream.until("error")[-1]
    assert (kind, data["error"]["cause"]["code"]) == ("error", "limit_reached")
