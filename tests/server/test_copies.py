"""Exports and imports over HTTP: streamed, for the caller's tenant, within the server's limits."""

import json
from collections.abc import Iterator

import httpx2
import pytest
from tests.server.support.contract import checked
from tests.server.support.serving import Served, served

from forkpoint.history.exports.check import check
from forkpoint.server.http.keys import ApiKey, Keyring, OneKey
from forkpoint.server.settings import ServerSettings

PLACE = "/api/conversations"
EXPORT = {"Content-Type": "application/x-ndjson"}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(settings=ServerSettings(max_body=2_000, max_import=50_000)) as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[httpx2.Client]:
    with checked(server) as client:
        yield client


@pytest.fixture
def place(client: httpx2.Client) -> str:
    """The address of a conversation of one turn."""
    id = client.post(PLACE).json()["id"]
    client.post(f"{PLACE}/{id}/turns", json={"message": "Hi"})
    return f"{PLACE}/{id}"


def refused(response: httpx2.Response, status: int, code: str) -> None:
    assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text


def test_a_conversation_is_a_file_that_can_be_imported_elsewhere(client: httpx2.Client, place: str) -> None:
    got = client.get(f"{place}/export")
    assert got.headers["content-type"] == "application/x-ndjson"
    assert "attachment" in got.headers["content-disposition"]
    assert not check(got.content.splitlines(keepends=True)).flaws
    assert len(got.content) > 2_000, "an export may be larger than other bodies"
    assert not client.post("/api/import", content=got.content, headers=EXPORT).json()["changed"]
    with served() as other, checked(other) as there:
        done = there.post("/api/import", content=got.content, headers=EXPORT).json()
        assert done["new"] == [place.rpartition("/")[2]]
        assert there.get(place).json()["events"] == client.get(place).json()["events"]
        assert there.post("/api/verify").json()["ok"]


def test_scopes_tags_and_formats_are_asked_for(client: httpx2.Client, place: str) -> None:
    client.post(f"{place}/fork", json={"id": "a-fork", "tags": {"team": "ci"}})

    def count(path: str) -> int:
        lines = [json.loads(line) for line in client.get(path).content.splitlines()]
        return sum(line["line"] == "conversation" for line in lines)

    assert (count(f"{place}/export"), count(f"{place}/export?scope=family")) == (1, 2)
    assert count("/api/export?tag=team%3Dci") == 1
    assert count("/api/export") >= 2
    assert client.get(f"{place}/export?format=md").text.startswith("# ")
    refused(client.get(f"{place}/export?format=docx"), 422, "bad_argument")
    refused(client.get(f"{place}/export?scope=all"), 422, "invalid")
    refused(client.get("/api/export?tag=nothing"), 422, "invalid")
    refused(client.get(f"{PLACE}/nobody/export"), 404, "not_found")


def test_what_is_no_export_is_refused(client: httpx2.Client, place: str) -> None:
    data = client.get(f"{place}/export").content
    refused(client.post("/api/import", content=data[:-5], headers=EXPORT), 422, "bad_export")
    refused(client.post("/api/import", content=data), 400, "bad_request")
    refused(
        client.post("/api/import", content=data, headers=EXPORT | {"Content-Encoding": "gzip"}), 415, "encoded_body"
    )
    refused(client.post("/api/import", content=b" " * 50_001, headers=EXPORT), 413, "too_large")


def test_tenants_export_their_own_and_only_an_operator_imports() -> None:
    keys = [OneKey("reads", ApiKey("r", "r", "one", role="read")), OneKey("runs", ApiKey("u", "u", "one", role="use"))]
    both = Keyring([*keys, OneKey("operates", ApiKey("o", "o", "one")), OneKey("two", ApiKey("t", "t", "two"))])
    with served(keyring=both) as running:

        def asked(key: str, method: str, path: str, **more: object) -> httpx2.Response:
            with running.client() as client:
                headers = {"Authorization": f"Bearer {key}", **more.pop("headers", {})}  # type: ignore[dict-item]
                return client.request(method, path, headers=headers, **more)  # type: ignore[arg-type]

        asked("runs", "POST", PLACE, json={"id": "mine"})
        refused(asked("runs", "GET", "/api/export"), 403, "forbidden")
        refused(asked("reads", "GET", f"{PLACE}/mine/export"), 403, "forbidden")
        assert asked("operates", "GET", "/api/export?format=md").text.startswith("# mine")
        data = asked("operates", "GET", "/api/export").content
        assert b'"name":"mine"' in data
        assert b'"by":"o"' in data, "the header says whose key it was"
        assert b'"name":"mine"' not in asked("two", "GET", "/api/export").content
        refused(asked("two", "GET", f"{PLACE}/mine/export"), 404, "not_found")
        refused(asked("runs", "POST", "/api/import", content=data, headers=EXPORT), 403, "forbidden")
        assert asked("operates", "POST", "/api/import", content=data, headers=EXPORT).json()["same"] == 1
        assert asked("two", "POST", "/api/import", content=data, headers=EXPORT).json()["changed"]
        assert asked("two", "POST", "/api/verify").json()["ok"]
