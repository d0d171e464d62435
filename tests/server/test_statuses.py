"""What a model's provider says of a request keeps its status, through the native API and through chat completions."""

from collections.abc import Iterator

import httpx2
import pytest
from tests.server.chat.chatting import agents_at, post
from tests.server.support.serving import served

from forkpoint.backend.results import Turn
from forkpoint.errors import TurnFailed
from forkpoint.events import Usage
from forkpoint.llm import Timeouts
from forkpoint.server.http.statuses import retry_after, status_of
from forkpoint.store.values import TurnError
from forkpoint.testing import Fault, ModelServer, Reply, Script

UPSTREAM = [
    # what the provider says, then: status, code in the native API, code in chat completions, Retry-After
    (Fault("bad_request"), 400, "model_bad_request", "model_bad_request", None),
    (Fault("context_too_long"), 400, "model_context_too_long", "context_length_exceeded", None),
    (Fault("status", status=400, message="Invalid image data."), 400, "model_bad_request", "model_bad_request", None),
    (Fault("refused"), 400, "model_refused", "content_filter", None),
    (Fault("authentication"), 502, "model_authentication", "model_authentication", None),
    (Fault("status", status=403), 502, "model_authentication", "model_authentication", None),
    (Fault("status", status=402), 502, "model_quota", "model_quota", None),
    (
        Fault("status", status=404, message="The model `x` does not exist."),
        404,
        "model_unknown",
        "model_not_found",
        None,
    ),
    (Fault("status", status=404, message="Not Found"), 502, "model_wrong_address", "model_wrong_address", None),
    (Fault("status", status=413), 413, "model_context_too_long", "context_length_exceeded", None),
    (Fault("status", status=422), 422, "model_bad_request", "model_bad_request", None),
    (Fault("quota"), 429, "model_quota", "model_quota", None),
    (Fault("rate_limit", retry_after=6.2), 429, "model_rate_limit", "model_rate_limit", "7"),
    (Fault("status", status=500), 502, "model_overloaded", "model_overloaded", None),
    (Fault("status", status=502), 502, "model_overloaded", "model_overloaded", None),
    (Fault("overloaded", retry_after=3), 503, "model_overloaded", "model_overloaded", "3"),
    (Fault("status", status=529), 503, "model_overloaded", "model_overloaded", None),
    (Fault("status", status=504), 504, "model_overloaded", "model_overloaded", None),
    (Fault("status", status=408), 504, "model_timeout", "model_timeout", None),
    (Fault("cut"), 502, "model_connection", "model_connection", None),
]


@pytest.fixture(scope="module")
def models() -> Iterator[ModelServer]:
    with ModelServer(Script([])) as running:
        yield running


@pytest.fixture(scope="module")
def client(models: ModelServer) -> Iterator[httpx2.Client]:
    with served(agents=agents_at(models)) as server, server.client() as client:
        yield client


@pytest.mark.parametrize(("fault", "status", "native", "chat", "wait"), UPSTREAM)
def test_an_upstream_status_keeps_its_meaning(
    client: httpx2.Client, models: ModelServer, fault: Fault, status: int, native: str, chat: str, wait: str | None
) -> None:
    models.script = Script([Reply(fault=fault)], repeat=True)
    made = client.post("/api/conversations", json={}).json()["id"]
    told = client.post(f"/api/conversations/{made}/turns", json={"message": "Hi"})
    assert (told.status_code, told.json()["error"]["cause"]["code"]) == (status, native)
    assert told.headers.get("retry-after") == wait
    said = post(client, "Hi")
    assert (said.status_code, said.json()["error"]["code"]) == (status, chat)
    assert said.headers.get("retry-after") == wait
    passes = native in {"model_rate_limit", "model_overloaded", "model_timeout", "model_connection"}
    assert said.headers["x-should-retry"] == str(passes).lower()
    assert status != 401, "the client's own key is good"


def test_a_server_that_nobody_listens_at_is_502() -> None:
    with ModelServer(Script([])) as gone:
        url = gone.url
    with served(agents=agents_at(url)) as server, server.client() as client:
        said = post(client, "Hi")
    assert (said.status_code, said.json()["error"]["code"]) == (502, "model_connection")


def test_a_provider_that_never_answers_is_504(models: ModelServer) -> None:
    models.script = Script([Reply(fault=Fault("hang"))])
    agents = agents_at(models, llm={"timeouts": Timeouts(first=0.05)})
    with served(agents=agents) as server, server.client() as client:
        said = post(client, "Hi")
    assert (said.status_code, said.json()["error"]["code"]) == (504, "model_timeout")


@pytest.mark.parametrize(("code", "status", "wait"), [("store_unavailable", 503, 2), ("model_refused", 422, None)])
def test_a_turn_that_failed_in_another_process_has_the_status_and_the_wait_of_its_reason(
    code: str, status: int, wait: int | None
) -> None:
    failed = TurnFailed("t1", "why", turn=Turn("t1", "c1", "failed", (), (), Usage(), error=TurnError(code, "why")))
    assert (status_of(failed), retry_after(failed)) == (status, wait)
