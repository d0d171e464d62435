"""Whatever goes wrong is told in one envelope with a request id, and nothing leaves that is the server's own affair."""

import asyncio
import json
import logging
import re
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.support.contract import checked
from tests.server.support.serving import Served, served

from forkpoint.agent import Agent, tool
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.http.logs import bound
from forkpoint.testing import Fault, Heard, Reply, Script, ScriptedCall

PLACE = "/api/conversations"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        with running.client() as client:
            client.post(PLACE, json={"id": "here"})
            client.post(f"{PLACE}/here/turns", json={"message": "Hi"})
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[httpx2.Client]:
    with checked(server) as client:
        yield client


def problem(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """The error of an answer that must be the envelope, and of this sort."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/json"), response.text
    body = response.json()
    assert set(body) <= {"error", "turn"}
    error: dict[str, Any] = body["error"]
    assert set(error) <= {"code", "message", "param", "request_id", "details", "cause"}
    assert error["code"] == code, error
    assert error["request_id"] == response.headers["x-request-id"]
    assert error["message"]
    return error


# What the framework, or the wire, refuses.


@pytest.mark.parametrize(
    "path",
    ["/", "/nothing", "/api", f"{PLACE}/", f"{PLACE}//here", f"{PLACE}/here/", f"{PLACE}/a%2Fb", "/docs", "/redoc"],
)
def test_a_path_that_no_call_has_is_404_in_the_envelope(client: httpx2.Client, path: str) -> None:
    problem(client.get(path), 404, "no_such_call")


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        (PLACE, "GET, POST"),
        (f"{PLACE}/here", "DELETE, GET, PATCH"),
        (f"{PLACE}/here/turns", "GET, POST"),
        (f"{PLACE}/here/state", "GET, PATCH"),
        (f"{PLACE}/here/agent", "PUT"),
        ("/openapi.json", "GET"),
    ],
)
def test_a_method_that_a_path_does_not_take_is_405_with_all_that_it_takes(
    client: httpx2.Client, path: str, allow: str
) -> None:
    for method in ("OPTIONS", "TRACE", "LOCK"):
        answered = client.request(method, path)
        problem(answered, 405, "method_not_allowed")
        assert answered.headers["allow"] == allow
    answered = client.head(path)
    assert (answered.status_code, answered.content, answered.headers["allow"]) == (405, b"", allow)


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_load_balancers_may_ask_without_wanting_a_body(client: httpx2.Client, path: str) -> None:
    answered = client.head(path)
    assert (answered.status_code, answered.content) == (200, b"")


def raw(server: Served, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """What comes back for bytes: status, headers and body."""
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(request)
        said = b""
        while some := connection.recv(65536):
            said += some
    head, _, body = said.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split()[1]), headers, body


HEAD = b"Host: localhost\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        b"nonsense\r\n\r\n",
        b"BREW /health HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"GET /api/conversations/\xff HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"POST /api/conversations HTTP/1.1\r\n" + HEAD + b"Content-Length: many\r\n\r\n{}",
        b"POST /api/conversations HTTP/1.1\r\n"
        + HEAD
        + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["no request", "no method", "no ASCII", "no length", "two lengths"],
)
def test_what_is_no_http_is_400_in_the_envelope(server: Served, request_: bytes) -> None:
    status, headers, body = raw(server, request_)
    assert (status, headers["content-type"]) == (400, "application/json")
    error = json.loads(body)["error"]
    assert (error["code"], error["request_id"]) == ("bad_request", headers["x-request-id"])


# What the body, the query and the headers cannot be.

DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"NaN",
        b"{'id': 1}",
        b'{"title": "\xff"}',
        b'{"title": "\xed\xa0\x80"}',
        b'{"title": "\\ud800"}',
        b'{"tags": {"\\udfff": ""}}',
        b'\xef\xbb\xbf{"title": "a"}',
        '{"title": "a"}'.encode("utf-16"),
        b'{"tags": ' + b'{"a":' * 100_000,
    ],
)
def test_a_body_that_is_not_json_in_utf8_is_400(client: httpx2.Client, body: bytes) -> None:
    answered = client.post(PLACE, content=body, headers={"Content-Type": "application/json"})
    assert answered.status_code in {400, 422}
    problem(answered, answered.status_code, "bad_request" if answered.status_code == 400 else "invalid")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", b"[]", "body"),
        ("", b"null", "body"),
        ("", b'{"secret": 1}', "body"),
        ("", b'{"title": 123454321}', "title"),
        ("", b'{"id": "not a secret"}', "id"),
        ("", b'{"tags": {"kind": 123454321}}', "tags[...]"),
        ("", b'{"agent": ' + DEEP + b"}", "agent"),
        ("/here/turns", b'{"message": 123454321}', "message"),
        ("/here/turns", b'{"message": [{"type": "secret"}]}', "message[0].type"),
        ("/here/turns", b'{"message": [{"type": "text", "text": "a"}, 123454321]}', "message[1]"),
        ("/here/turns", b'{"message": "a", "create": {"secret": true}}', "create"),
        ("/here/fork", b'{"cache": "secret"}', "cache"),
        ("/here/verify", b'{"head_digest": "secret"}', "head_digest"),
        ("/here/turns/x/deny", b'{"calls": [{"id": "a", "digest": "secret"}]}', None),
        ("/here/turns/x/resume", b'{"limits": {"secret": 1}}', "limits"),
    ],
)
def test_a_body_of_another_form_is_422_and_what_stood_there_is_not_repeated(
    client: httpx2.Client, path: str, body: bytes, param: str | None
) -> None:
    answered = client.post(PLACE + path, content=body, headers={"Content-Type": "application/json"})
    error = problem(answered, 422, "invalid")
    assert param is None or error["param"] == error["details"]["param"] == param
    assert "not a secret" not in answered.text
    assert "123454321" not in answered.text
    assert len(answered.text) < 1000


@pytest.mark.parametrize("body", [b'{"set": {"k": 1e400}}', b'{"set": {"k": ' + b"[" * 900 + b"]" * 900 + b"}}"])
def test_a_number_or_a_depth_that_nothing_can_hold_is_422(client: httpx2.Client, body: bytes) -> None:
    answered = client.patch(f"{PLACE}/here/state", content=body, headers={"Content-Type": "application/json"})
    assert answered.status_code == 422, answered.text


def test_nul_and_large_numbers_come_back_as_they_were_sent(client: httpx2.Client) -> None:
    state = {"\0": "a\0b", "large": 10**60, "small": -1.5e-300}
    answered = client.patch(f"{PLACE}/here/state", json={"set": state})
    assert answered.json()["state"] == state
    said = client.post(f"{PLACE}/here/turns", json={"message": "a\0b"}).json()
    assert said["input"][0]["parts"][0]["text"] == "a\0b"


@pytest.mark.parametrize("made", [{"title": "a\0b"}, {"tags": {"\0": "a"}}, {"tags": {"a": "\0"}}, {"tags": {"": "a"}}])
def test_a_title_or_tag_that_cannot_be_shown_is_refused(client: httpx2.Client, made: dict[str, Any]) -> None:
    problem(client.post(PLACE, json=made), 422, "bad_name")
    problem(client.patch(f"{PLACE}/here", json=made), 422, "bad_name")


@pytest.mark.parametrize("sort", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "json"])
def test_a_body_of_another_type_is_400(client: httpx2.Client, sort: str) -> None:
    answered = client.post(PLACE, content=b"{}", headers={"Content-Type": sort})
    assert "application/json" in problem(answered, 400, "bad_request")["message"]


@pytest.mark.parametrize("sort", ["application/json", "Application/JSON; charset=utf-8"])
def test_json_is_json_however_its_type_is_written(client: httpx2.Client, sort: str) -> None:
    assert client.post(PLACE, content=b"{}", headers={"Content-Type": sort}).status_code == 201


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?limit=0", "limit"),
        ("?limit=1001", "limit"),
        ("?limit=secret", "limit"),
        ("?limit=99999999999999999999999999", "limit"),
        ("?status=secret", "status"),
        ("?tag=secret", "tag.0"),
        ("?tag==secret", "tag.0"),
        ("?cursor=" + "secret" * 100, "cursor"),
        ("/here/turns?events=secret", "events"),
        ("/here/turns?limit=-1", "limit"),
        ("/here/turns/x?wait=61", "wait"),
        ("/here/turns/x?wait=nan", "wait"),
        ("/here/turns/x?wait=-1", "wait"),
        ("/here/events?after=secret", "after"),
        ("/here/events?after=%C2%B2", "after"),
        ("/here/events?after=" + "9" * 5000, "after"),
        ("/here/events?at=1-9223372036854775808", "at"),
        ("/here/events/stream?after=" + "9" * 5000, "after"),
        ("/" + "secret" * 50, "id"),
        ("/here/turns/" + "secret" * 20, "turn"),
    ],
)
def test_a_parameter_of_another_form_is_422_and_is_not_repeated(client: httpx2.Client, query: str, param: str) -> None:
    answered = client.get(PLACE + query)
    assert problem(answered, 422, "invalid")["param"] == param
    assert "secret" not in answered.text


@pytest.mark.parametrize("path", ["/%00", "/%ff", "/%zz", "/%2e%2e", "/here/turns/%00", "/%F0%9F%A6%8A"])
def test_a_name_that_nothing_can_have_is_404(client: httpx2.Client, path: str) -> None:
    problem(client.get(PLACE + path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "header", "value"),
    [
        ("POST", "Idempotency-Key", "s" * 256),
        ("POST", "Idempotency-Key", ""),
        ("POST", "Idempotency-Key", "two words"),
        ("DELETE", "If-Match", "secret"),
        ("DELETE", "If-Match", 'W/"1"'),
        ("DELETE", "If-Match", '"' + "9" * 30 + '"'),
    ],
)
def test_a_header_of_another_form_is_400(client: httpx2.Client, method: str, header: str, value: str) -> None:
    path = PLACE if method == "POST" else f"{PLACE}/here"
    answered = client.request(method, path, headers={header: value})
    assert header in problem(answered, 400, "bad_request")["message"]
    assert "secret" not in answered.text


# Request ids.


@pytest.mark.parametrize("path", ["/health", PLACE, "/nothing", f"{PLACE}/nobody"])
def test_a_request_id_of_the_client_is_kept_everywhere(client: httpx2.Client, path: str) -> None:
    mine = "Build-77:step_2.retry"
    answered = client.get(path, headers={"X-Request-Id": mine})
    assert answered.headers["x-request-id"] == mine
    if answered.status_code >= 400:
        assert answered.json()["error"]["request_id"] == mine


@pytest.mark.parametrize("given", ["", "two words", "x" * 129, "caf\xe9", "a;b", '"a"', "<script>"])
def test_a_request_id_that_is_not_fit_for_a_log_is_replaced(client: httpx2.Client, given: str) -> None:
    answered = client.get("/nothing", headers={b"X-Request-Id": given.encode("latin-1")})
    made = answered.headers["x-request-id"]
    assert made != given
    assert re.fullmatch(r"[0-9a-f-]{36}", made)
    assert answered.json()["error"]["request_id"] == made


def test_the_log_has_one_line_for_a_request_with_its_id_its_route_and_no_secret(server: Served) -> None:
    mine: list[str] = []
    written = threading.Event()  # after the answer, in the server's thread

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if bound().get("request_id") == "of-the-log":
                mine.append(record.getMessage())
                written.set()

    log, kept = logging.getLogger("forkpoint.server"), Kept()
    level = log.level
    log.addHandler(kept)
    log.setLevel(logging.INFO)
    try:
        with server.client() as client:
            headers = {"X-Request-Id": "of-the-log", "Authorization": "Bearer sk-secret12345678"}
            client.get(f"{PLACE}/nobody", params={"cursor": "secret"}, headers=headers)
        assert written.wait(30)
    finally:
        log.removeHandler(kept)
        log.setLevel(level)
    assert mine == ["GET /api/conversations/{id} 404"]


# Nothing leaves that is the server's own affair.

SECRETS = ("hunter2", "sk-live-0123456789", "/srv/secret", "Traceback", 'File "', "site-packages", "forkpoint/")


def everything(client: httpx2.Client, id: str, failed: httpx2.Response) -> str:
    """All that a client can find out about a turn that failed."""
    said = [failed.text]
    turns = client.get(f"{PLACE}/{id}/turns", params={"events": True})
    said.append(turns.text)
    for turn in turns.json()["items"]:
        said.append(client.get(f"{PLACE}/{id}/turns/{turn['id']}").text)
        headers = {"Accept": "text/event-stream"}
        said.append(client.get(f"{PLACE}/{id}/turns/{turn['id']}", headers=headers).text)
    said.append(client.get(f"{PLACE}/{id}").text)
    return "\n".join(said)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault("authentication", message="Incorrect API key provided: sk-live-0123456789"), "model_authentication"),
        (Fault("bad_request", message="POST https://me:hunter2@models.example/v1 failed"), "model_bad_request"),
        (Fault("quota", message="Authorization: Bearer sk-live-0123456789"), "model_quota"),
    ],
    ids=["key", "address", "header"],
)
@pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
def test_what_a_model_says_of_keys_and_passwords_stays_here(fault: Fault, code: str, streamed: bool) -> None:
    name = f"leaks-{code}-{streamed}"
    Script([Reply(fault=fault)], repeat=True).register(name)
    agents = Catalog({"a": Agent(f"scripted/{name}")})
    with served(agents=agents) as server, checked(server) as client:
        client.post(PLACE, json={"id": "c"})
        accept = "text/event-stream" if streamed else "application/json"
        failed = client.post(f"{PLACE}/c/turns", json={"message": "Hi"}, headers={"Accept": accept})
        if not streamed:
            body = failed.json()
            assert (body["error"]["code"], body["error"]["cause"]["code"]) == ("turn_failed", code)
            assert body["turn"]["outcome"] == "failed"
        said = everything(client, "c", failed)
    assert code in said
    assert "***" in said, "the rest of its words is worth reading"
    for secret in SECRETS:
        assert secret not in said


def test_what_a_model_raises_unforeseen_is_told_without_its_words() -> None:
    def breaks(_: Heard) -> Reply:
        raise RuntimeError("/srv/secret/module.py with hunter2")

    Script(breaks).register("breaks")
    with served(agents=Catalog({"a": Agent("scripted/breaks")})) as server, checked(server) as client:
        client.post(PLACE, json={"id": "c"})
        failed = client.post(f"{PLACE}/c/turns", json={"message": "Hi"})
        assert failed.status_code == 500, failed.text
        said = everything(client, "c", failed)
    for secret in SECRETS:
        assert secret not in said


def test_a_tool_that_raises_gives_the_model_its_words_and_nobody_a_stack_trace() -> None:
    @tool
    def look() -> str:
        raise ValueError("the disk is full")

    Script([Reply(calls=(ScriptedCall("look"),)), Reply("It is full.")]).register("raising-tool")
    agents = Catalog({"a": Agent("scripted/raising-tool", tools=[look])})
    with served(agents=agents) as server, checked(server) as client:
        client.post(PLACE, json={"id": "c"})
        done = client.post(f"{PLACE}/c/turns", json={"message": "Look"})
        assert done.status_code == 200, done.text
        assert done.json()["calls"][0]["status"] == "failed"
        said = everything(client, "c", done)
    assert "the disk is full" in said
    for secret in SECRETS:
        assert secret not in said


def test_a_store_that_was_closed_is_503_and_does_not_say_where_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "srv" / "secret"
    folder.mkdir(parents=True)
    with served(f"sqlite:///{folder}/store.db") as server, checked(server) as client:
        client.post(PLACE, json={"id": "c"})
        asyncio.run_coroutine_threadsafe(server.services.tenants.store.close(), server.loop).result(10)
        said = []
        for method, path, body in (
            ("GET", PLACE, None),
            ("POST", PLACE, {}),
            ("GET", f"{PLACE}/c/events", None),
            ("POST", f"{PLACE}/c/turns", {"message": "Hi"}),
            ("GET", "/ready", None),
        ):
            answered = client.request(method, path, json=body)
            problem(answered, 503, "store_closed")
            said.append(answered.text)
        assert client.get("/health").status_code == 200
    assert str(folder) not in "".join(said)
    assert "store.db" not in "".join(said)


def test_a_store_that_is_broken_inside_says_neither_where_it_is_nor_how(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with served(f"sqlite:///{path}") as server, checked(server) as client:
        client.post(PLACE, json={"id": "c"})
        other = sqlite3.connect(path, isolation_level=None)
        try:
            other.execute("ALTER TABLE conversation RENAME TO gone")
            answered = client.post(PLACE, json={})
        finally:
            other.close()
    assert answered.status_code >= 500
    assert str(tmp_path) not in answered.text
    assert "no such table" not in answered.text
    assert "gone" not in answered.text


def test_an_agent_whose_module_is_gone_is_told_without_the_module(tmp_path: Path) -> None:
    document = Agent("scripted/echo", name="gone").to_json()
    broken = json.loads(document) | {"tools": [{"path": "secret_module_of_ours:wipe", "name": "wipe"}]}
    store = f"sqlite:///{tmp_path}/store.db"
    with served(store) as server, checked(server) as client:
        client.post(PLACE, json={"id": "c"})
    with closing(sqlite3.connect(tmp_path / "store.db")) as db, db:
        db.execute("UPDATE conversation SET settings = ?", (json.dumps({"agent": broken}),))
    with served(store) as server, checked(server) as client:
        answered = client.post(f"{PLACE}/c/turns", json={"message": "Hi"})
        assert answered.status_code == 409, answered.text
        assert "secret_module" not in answered.text


def test_what_a_client_sends_as_an_agent_is_refused_without_repeating_its_secrets(client: httpx2.Client) -> None:
    for llm in (
        {"model": "scripted/echo", "api_key": "sk-live-0123456789"},
        {"model": "scripted/echo", "base_url": "https://me:hunter2@elsewhere.example"},
        {"model": "scripted/echo", "headers": {"X-Secret": "hunter2"}},
    ):
        answered = client.post(PLACE, json={"agent": {"llm": llm}})
        assert answered.status_code == 422, answered.text
        for secret in SECRETS:
            assert secret not in answered.text


# What is hidden is in the log.


class Logged(logging.Handler):
    """What the server logs, with the words of exceptions."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[tuple[str, str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        why = str(record.exc_info[1]) if record.exc_info else ""
        self.lines.append((record.levelname, f"{record.getMessage()} {why}", getattr(record, "fields", {})))


@pytest.fixture
def log() -> Iterator[Logged]:
    logger, heard = logging.getLogger("forkpoint.server"), Logged()
    before = logger.level
    logger.addHandler(heard)
    logger.setLevel(logging.INFO)
    yield heard
    logger.removeHandler(heard)
    logger.setLevel(before)


def breaks(_: Heard) -> Reply:
    raise RuntimeError("DETAIL of a bug")


@pytest.mark.parametrize("prefer", ["", "respond-async"])
def test_the_words_of_a_bug_in_a_turn_are_in_the_log_and_nowhere_else(log: Logged, prefer: str) -> None:
    agents = Catalog({"broken": Agent(Script(breaks).register(f"broken-{prefer}"))})
    with served(agents=agents) as server, server.client() as client:
        client.post(PLACE, json={"id": "x"})
        answered = client.post(f"{PLACE}/x/turns", json={"message": "Hi"}, headers={"Prefer": prefer})
        found = client.get(f"{PLACE}/x/turns", params={"events": True})
        while found.json()["items"][0]["outcome"] == "running":
            found = client.get(f"{PLACE}/x/turns", params={"events": True})
    assert "DETAIL" not in answered.text + found.text
    assert [line for line in log.lines if line[0] == "ERROR" and "DETAIL of a bug" in line[1]], log.lines
    (end,) = [fields for level, said, fields in log.lines if said.startswith("turn failed")]
    assert end["turn"] == found.json()["items"][0]["id"]
    assert end["code"] == found.json()["items"][0]["error"]["code"]


def test_what_a_client_did_wrong_is_no_error_in_the_log(log: Logged) -> None:
    with served() as server, server.client() as client:
        problem(client.get(f"{PLACE}/nobody"), 404, "not_found")
    assert {level for level, _, _ in log.lines} == {"INFO"}


def test_a_note_is_no_turn(client: httpx2.Client) -> None:
    """It could be read as one otherwise, with settings that are the server's."""
    client.post(PLACE, json={"id": "noted"})
    client.put(f"{PLACE}/noted/agent", json={"agent": {"llm": "scripted/echo", "instructions": "Be short."}})
    (note,) = {event["turn"] for event in client.get(f"{PLACE}/noted/events").json()["items"]}
    problem(client.get(f"{PLACE}/noted/turns/{note}"), 404, "not_found")
    for verb in ("cancel", "settle", "discard", "retry", "resume", "approve", "deny"):
        seen = {"calls": [{"id": "c", "digest": f"sha256:{'0' * 64}"}]} if verb == "approve" else {}
        problem(client.post(f"{PLACE}/noted/turns/{note}/{verb}", json=seen), 404, "not_found")


def test_a_message_speaks_of_a_conversation_by_its_name_and_the_details_have_its_id(client: httpx2.Client) -> None:
    made = client.post("/api/conversations", json={"id": "build-1234"}).json()
    place = "/api/conversations/build-1234/turns"
    stale = problem(client.post(place, json={"message": "hi"}, headers={"If-Match": '"77"'}), 412, "stale")
    assert stale["message"].startswith("Conversation build-1234 is at revision ")
    assert stale["details"]["conversation"] == made["id"]
    streamed = client.post(
        place, json={"message": "hi"}, headers={"If-Match": '"77"', "Accept": "text/event-stream"}
    ).text
    assert "Conversation build-1234 is at revision " in streamed
