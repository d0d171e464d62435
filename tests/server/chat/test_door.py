"""Under /v1 whatever is refused, by whichever part of the server, is told as OpenAI's clients read it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI, Request

from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.app import create_app
from forkpoint.server.http.keys import Keyring, Keys, add_key
from forkpoint.server.settings import ServerSettings
from forkpoint.store.address import open_store

pytestmark = pytest.mark.anyio


async def made(keyring: Keyring | None = None) -> FastAPI:
    """A server with calls under /v1 that fail, or tell what the door has found out."""
    agents = Catalog.of_model("scripted/echo")
    app = create_app(await open_store("memory:"), agents, keyring=keyring, settings=ServerSettings(max_body=2048))

    @app.get("/v1/tests/broken")
    async def broken() -> None:
        raise RuntimeError("/srv/secret/module.py")

    @app.get("/v1/tests/number")
    async def number(limit: int) -> int:
        return limit

    @app.get("/v1/tests/caller")
    async def caller(request: Request) -> list[Any]:
        key = request.scope["forkpoint.key"]
        return [request.scope["forkpoint.tenant"], key.name, key.history]

    return app


def client_of(app: FastAPI, **headers: str) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=app)
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    app = await made()
    async with app.router.lifespan_context(app), client_of(app) as client:
        yield client


def problem(response: httpx2.Response, status: int, type: str, code: str) -> dict[str, Any]:
    """The error of an answer that must be OpenAI's envelope, and of this sort."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/json"), response.text
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code", "request_id"}
    assert (error["type"], error["code"]) == (type, code)
    assert error["request_id"] == response.headers["x-request-id"]
    assert error["message"]
    assert response.headers["x-should-retry"] in {"true", "false"}
    return error


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/nothing", "/v1/embeddings", "/v1/chat/completions/"])
async def test_a_path_that_no_call_has(client: httpx2.AsyncClient, path: str) -> None:
    answered = await client.post(path, json={})
    assert path in problem(answered, 404, "invalid_request_error", "no_such_call")["message"]
    assert answered.headers["x-should-retry"] == "false"


async def test_a_method_that_a_path_does_not_take_with_those_that_it_takes(client: httpx2.AsyncClient) -> None:
    answered = await client.request("DELETE", "/v1/models")
    problem(answered, 405, "invalid_request_error", "method_not_allowed")
    assert answered.headers["allow"] == "GET"
    answered = await client.get("/v1/chat/completions")
    problem(answered, 405, "invalid_request_error", "method_not_allowed")
    assert answered.headers["allow"] == "POST"


async def test_a_parameter_of_another_form_is_400_and_named(client: httpx2.AsyncClient) -> None:
    answered = await client.get("/v1/tests/number", params={"limit": "secret"})
    assert problem(answered, 400, "invalid_request_error", "invalid")["param"] == "limit"
    assert "secret" not in answered.text


async def test_a_body_that_is_too_large(client: httpx2.AsyncClient) -> None:
    answered = await client.post("/v1/chat/completions", content=b" " * 4096)
    problem(answered, 413, "invalid_request_error", "too_large")


async def test_what_nobody_foresaw(client: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    answered = await client.get("/v1/tests/broken")
    problem(answered, 500, "server_error", "internal")
    assert "secret" not in answered.text
    assert "/srv/secret/module.py" in caplog.text, "the log has it"


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Host": "evil.example"}])
async def test_a_page_of_a_stranger(client: httpx2.AsyncClient, headers: dict[str, str]) -> None:
    answered = await client.get("/v1/models", headers=headers)
    problem(answered, 403, "permission_error", "foreign_origin")


async def test_a_request_id_of_the_client_is_kept(client: httpx2.AsyncClient) -> None:
    answered = await client.get("/v1/nothing", headers={"X-Request-Id": "mine-1"})
    assert problem(answered, 404, "invalid_request_error", "no_such_call")["request_id"] == "mine-1"


@pytest.mark.parametrize("path", ["/v1x", "/v2/models", "/api/v1/", "/nothing"])
async def test_elsewhere_it_is_the_one_envelope(client: httpx2.AsyncClient, path: str) -> None:
    answered = await client.get(path)
    assert answered.status_code == 404
    assert "type" not in answered.json()["error"]
    assert "x-should-retry" not in answered.headers


async def test_the_same_keys_open_it_and_the_call_sees_what_the_key_says(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    webui, ann = add_key(file, "webui", "acme", history="full"), add_key(file, "ann")
    app = await made(Keyring([Keys(file)]))
    async with app.router.lifespan_context(app), client_of(app) as client:
        for headers in ({}, {"Authorization": f"Bearer {ann.token}x"}, {"Authorization": f"Basic {ann.token}"}):
            answered = await client.get("/v1/models", headers=headers)
            problem(answered, 401, "authentication_error", "invalid_api_key")
            assert (answered.headers["www-authenticate"], answered.headers["x-should-retry"]) == ("Bearer", "false")
            assert ann.token[12:] not in answered.text
        for made_key, seen in ((webui, ["acme", "webui", "full"]), (ann, ["default", "ann", None])):
            headers = {"Authorization": f"Bearer {made_key.token}"}
            assert (await client.get("/v1/tests/caller", headers=headers)).json() == seen


async def test_logs_and_metrics_name_the_route_and_not_what_was_asked(
    client: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "forkpoint.server")
    await client.get("/v1/tests/number", params={"limit": "1"})
    await client.get("/v1/secret")
    assert [record.getMessage() for record in caplog.records if record.name == "forkpoint.server"] == [
        "GET /v1/tests/number 200",
        "GET (no such call) 404",
    ]
    metrics = (await client.get("/metrics")).text
    assert 'route="/v1/tests/number",status="200"' in metrics
    assert "secret" not in metrics
