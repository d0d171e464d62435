"""Web pages: none of a stranger reaches a server without keys, and those that may call get what browsers ask for."""

from collections.abc import Iterator

import httpx2
import pytest
from tests.server.support.contract import checked
from tests.server.support.serving import Served, served

from forkpoint.server.http.keys import ApiKey, Keyring, OneKey
from forkpoint.server.settings import ConversationHeader, ServerSettings

PLACE = "/api/conversations"
APP = "https://app.example"
TOKEN = "token-" * 6
ASKED = {"Origin": APP, "Access-Control-Request-Method": "POST"}


@pytest.fixture(scope="module")
def bare() -> Iterator[Served]:
    """Without keys, and without CORS."""
    with served() as running:
        yield running


@pytest.fixture(scope="module")
def listed() -> Iterator[Served]:
    """With keys, for the pages of one origin."""
    keyring = Keyring([OneKey(TOKEN, ApiKey("a", "a", "acme"))])
    with served(keyring=keyring, settings=ServerSettings(cors_origins=(APP,))) as running:
        yield running


@pytest.fixture(scope="module")
def everybody() -> Iterator[Served]:
    with served(settings=ServerSettings(cors_origins=("*",))) as running:
        yield running


def said(response: httpx2.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("access-control")}


# Without keys.


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "http://localhost.evil.example", "null", "http://127.0.0.1:1", "http://[::1", "x"],
)
@pytest.mark.parametrize(("method", "path"), [("GET", PLACE), ("POST", PLACE), ("GET", f"{PLACE}/x/events/stream")])
def test_a_page_of_a_stranger_is_403(bare: Served, origin: str, method: str, path: str) -> None:
    with checked(bare) as client:
        answered = client.request(method, path, headers={"Origin": origin})
        assert (answered.status_code, answered.json()["error"]["code"]) == (403, "foreign_origin")
        assert said(answered) == {}


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8008",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "0",
        "[::2]",
        "[",
        "10.0.0.1",
    ],
)
def test_a_name_that_a_stranger_points_at_loopback_is_403(bare: Served, host: str) -> None:
    with checked(bare) as client:
        answered = client.get(PLACE, headers={"Host": host})
        assert (answered.status_code, answered.json()["error"]["code"]) == (403, "foreign_origin")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8008", "127.0.0.1", "127.1.2.3:99", "[::1]", "[::1]:8008"])
def test_names_of_loopback_are_taken_with_pages_of_their_own(bare: Served, host: str) -> None:
    with checked(bare) as client:
        assert client.get(PLACE, headers={"Host": host}).status_code == 200
        assert client.get(PLACE, headers={"Host": host, "Origin": f"http://{host}"}).status_code == 200


def test_another_name_is_taken_if_the_operator_says_so() -> None:
    with served(settings=ServerSettings(hosts=("forkpoint.test",))) as server, checked(server) as client:
        assert client.get(PLACE, headers={"Host": "forkpoint.test"}).status_code == 200
        assert client.get(PLACE, headers={"Host": "other.test"}).status_code == 403


def test_what_a_page_can_send_without_being_asked_is_refused(bare: Served) -> None:
    with checked(bare) as client:
        before = client.get(PLACE).json()["items"]
        for sort in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            answered = client.post(PLACE, content=b'{"title": "mine now"}', headers={"Content-Type": sort})
            assert answered.status_code == 400
        assert client.get(PLACE).json()["items"] == before


def test_what_operators_ask_is_answered_under_any_name(bare: Served) -> None:
    with checked(bare) as client:
        assert client.get("/health", headers={"Host": "probe.internal"}).status_code == 200


def test_with_keys_neither_name_nor_origin_matters_for_a_key_is_what_no_page_has(listed: Served) -> None:
    with checked(listed, TOKEN) as client:
        assert client.get(PLACE, headers={"Host": "forkpoint.example"}).status_code == 200
        answered = client.get(PLACE, headers={"Origin": "https://elsewhere.example"})
        assert answered.status_code == 200
        assert "access-control-allow-origin" not in said(answered), "the browser keeps it from the page"


# CORS.


def test_without_cors_no_answer_has_its_headers(bare: Served) -> None:
    with checked(bare) as client:
        for path in (PLACE, "/nothing", "/health", "/openapi.json"):
            for headers in ({}, {"Origin": bare.url}):
                answered = client.get(path, headers=headers)
                assert said(answered) == {}
        asked = client.options(PLACE, headers={**ASKED, "Origin": bare.url})
        assert (asked.status_code, said(asked)) == (405, {})


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_a_browser_that_asks_first_is_told_what_a_page_may_send(listed: Served, method: str) -> None:
    wanted = "authorization, content-type, idempotency-key, if-match, last-event-id, prefer, x-request-id"
    headers = {"Origin": APP, "Access-Control-Request-Method": method, "Access-Control-Request-Headers": wanted}
    with listed.client() as client:  # without a key: browsers send none when they ask
        answered = client.options(f"{PLACE}/x", headers=headers)
    assert answered.status_code in {200, 204}, answered.text
    assert answered.headers["access-control-allow-origin"] == APP
    assert method in answered.headers["access-control-allow-methods"]
    allowed = {name.strip().lower() for name in answered.headers["access-control-allow-headers"].split(",")}
    assert set(wanted.split(", ")) <= allowed
    assert "Origin" in answered.headers["vary"]
    assert "access-control-allow-credentials" not in answered.headers


SDK = (  # what OpenAI's package for JavaScript sends from a browser, and what a page may set with it
    "authorization,content-type,user-agent,openai-organization,openai-project,idempotency-key,x-stainless-arch,"
    "x-stainless-helper-method,x-stainless-lang,x-stainless-os,x-stainless-package-version,x-stainless-retry-count,"
    "x-stainless-runtime,x-stainless-runtime-version,x-stainless-timeout,x-conversation-create,x-conversation-history,"
    "x-fork-from"
)


def test_a_page_may_use_openais_package_and_every_header_of_chat_completions(listed: Served) -> None:
    headers = {**ASKED, "Access-Control-Request-Headers": f"{SDK},x-conversation-id"}
    with listed.client() as client:
        answered = client.options("/v1/chat/completions", headers=headers)
    assert answered.status_code == 200, answered.text


def test_the_headers_that_name_conversations_are_those_of_the_settings() -> None:
    named = (ConversationHeader("X-OpenWebUI-Chat-Id", "full"), ConversationHeader("X-Chat"))
    settings = ServerSettings(cors_origins=(APP,), conversation_headers=named)
    with served(settings=settings) as server, server.client() as client:
        for wanted, status in (("x-openwebui-chat-id, x-chat", 200), ("x-conversation-id", 400)):
            headers = {**ASKED, "Access-Control-Request-Headers": wanted}
            assert client.options("/v1/chat/completions", headers=headers).status_code == status
        answered = client.get(PLACE, headers={"Origin": APP})
    exposed = answered.headers["access-control-expose-headers"].split(", ")
    assert {"X-OpenWebUI-Chat-Id", "X-Chat"} <= set(exposed)
    assert "X-Conversation-Id" not in exposed


def test_a_browser_that_asks_for_another_origin_is_not_told_that_it_may(listed: Served) -> None:
    with listed.client() as client:
        answered = client.options(PLACE, headers={**ASKED, "Origin": "https://evil.example"})
    assert answered.status_code >= 400
    assert "access-control-allow-origin" not in answered.headers


def test_a_page_that_may_call_can_read_every_answer_errors_and_streams_too(listed: Served) -> None:
    origin = {"Origin": APP}
    with checked(listed, TOKEN) as client, checked(listed) as stranger:
        made = client.post(PLACE, json={"id": "c"}, headers=origin)
        answers = {
            201: made,
            200: client.get(PLACE, headers=origin),
            404: client.get(f"{PLACE}/nobody", headers=origin),
            405: client.delete(PLACE, headers=origin),
            422: client.get(PLACE, params={"limit": 0}, headers=origin),
            401: stranger.get(PLACE, headers=origin),
        }
        stream = {"Accept": "text/event-stream", **origin}
        ran = client.post(f"{PLACE}/c/turns", json={"message": "Hi"}, headers=stream)
        assert ran.headers["content-type"].startswith("text/event-stream")
        with client.stream("GET", f"{PLACE}/c/events/stream", headers=origin) as following:
            assert following.status_code == 200
            answers |= {1: ran, 2: following}
    for status, answered in answers.items():
        assert status < 100 or answered.status_code == status
        assert answered.headers["access-control-allow-origin"] == APP
        assert "Origin" in answered.headers["vary"]
        exposed = {name.strip() for name in answered.headers["access-control-expose-headers"].split(",")}
        placed = {"X-Conversation-Id", "X-Conversation-Status", "X-Conversation-Branch", "X-Turn-Id"}
        chat = placed | {"X-Ignored-Fields", "X-Should-Retry"}
        assert exposed == {"ETag", "Location", "Preference-Applied", "Retry-After", "X-Request-Id"} | chat
        assert "access-control-allow-credentials" not in answered.headers


def test_a_page_can_read_that_something_went_wrong_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(settings=ServerSettings(cors_origins=(APP,))) as server, checked(server) as client:

        def broken(_: str) -> None:
            raise RuntimeError("of no concern to anybody outside")

        monkeypatch.setattr(server.services.tenants, "backend", broken)
        answered = client.get(PLACE, headers={"Origin": APP})
    assert answered.status_code == 500
    assert answered.headers["access-control-allow-origin"] == APP
    assert answered.json()["error"]["code"] == "internal"
    assert "no concern" not in answered.text


def test_a_star_is_every_page_without_its_cookies(everybody: Served) -> None:
    with checked(everybody) as client:
        answered = client.get(PLACE, headers={"Origin": "https://anybody.example", "Cookie": "a=b"})
        assert answered.status_code == 200
        assert "access-control-allow-credentials" not in answered.headers
        assert answered.headers["access-control-allow-origin"] == "*"
    with everybody.client() as browser:
        asked = browser.options(PLACE, headers={**ASKED, "Origin": "https://anybody.example"})
        assert asked.status_code in {200, 204}
