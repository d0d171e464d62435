"""A header that means something here is taken once: of two, nobody knows which one the client meant."""

import socket
from collections.abc import Iterator

import httpx2
import pytest
from tests.server.support.contract import checked
from tests.server.support.serving import Served, served

from forkpoint.errors import BadRequest
from forkpoint.server.http.headers import SINGLE, SingleHeaders
from forkpoint.server.settings import ConversationHeader, ServerSettings

PLACE = "/api/conversations"
NAMES = [
    *(name for name in SINGLE.values() if name not in {"Host", "Content-Length", "Transfer-Encoding"}),
    *("X-Conversation-Id", "X-Conversation-Create", "X-Conversation-History", "X-Chat-Id"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    named = (ConversationHeader("X-Conversation-Id"), ConversationHeader("X-Chat-Id"))
    with served(settings=ServerSettings(conversation_headers=named)) as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[httpx2.Client]:
    with checked(server) as client:
        yield client


def twice(name: str, values: tuple[str, str]) -> list[tuple[str, str]]:
    return [(name, values[0]), (name.lower(), values[1])]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("values", [("one", "two"), ("one", "one")], ids=["two values", "the same value"])
def test_a_header_that_comes_twice_is_refused_by_name(
    client: httpx2.Client, name: str, values: tuple[str, str]
) -> None:
    for path in (PLACE, "/v1/chat/completions"):
        answer = client.post(path, content=b"{}", headers=twice(name, values))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "bad_request")
        assert f"the header {name} more than once" in error["message"]
    assert client.get(PLACE).json()["items"] == []


@pytest.mark.parametrize("stream_first", [True, False])
def test_accept_may_come_in_several_lines_and_all_of_them_count(client: httpx2.Client, stream_first: bool) -> None:
    client.post(PLACE, json={"id": f"accept-{stream_first}"})
    types = ["application/json", "text/event-stream"]
    accept = [("Accept", one) for one in (reversed(types) if stream_first else types)]
    answer = client.post(f"{PLACE}/accept-{stream_first}/turns", json={"message": "Hello"}, headers=accept)
    assert answer.headers["content-type"] == "text/event-stream"


@pytest.mark.parametrize("name", ["Content-Length", "Host", "Transfer-Encoding"])
def test_a_header_of_the_connection_that_comes_twice_is_refused_by_name(server: Served, name: str) -> None:
    value = {"Content-Length": "2", "Host": "127.0.0.1", "Transfer-Encoding": "chunked"}[name]
    body = "2\r\n{}\r\n0\r\n\r\n" if name == "Transfer-Encoding" else "{}"
    others = "" if name == "Host" else "Host: 127.0.0.1\r\n"
    length = "" if name != "Host" else "Content-Length: 2\r\n"
    head = f"POST {PLACE} HTTP/1.1\r\n{others}{length}Content-Type: application/json\r\nConnection: close\r\n"
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(f"{head}{name}: {value}\r\n{name}: {value}\r\n\r\n{body}".encode())
        said = b""
        while some := connection.recv(65536):
            said += some
    assert said.startswith(b"HTTP/1.1 400 ")
    assert name.encode() in said.partition(b"\r\n\r\n")[2]


def test_a_header_that_is_a_list_may_come_in_several_lines(client: httpx2.Client) -> None:
    lines = [("Accept", "application/json"), ("Accept", "*/*"), ("Forwarded", "for=a"), ("Forwarded", "for=b")]
    assert client.get(PLACE, headers=[*lines, ("Cookie", "a=1"), ("Cookie", "b=2")]).status_code == 200


def test_a_request_id_that_comes_twice_is_not_taken(client: httpx2.Client) -> None:
    answer = client.get(PLACE, headers=twice("X-Request-Id", ("one", "two")))
    assert answer.status_code == 200
    assert answer.headers["x-request-id"] not in {"one", "two", "one,two"}


def test_a_header_that_names_nothing_here_may_come_twice() -> None:
    SingleHeaders().check([(b"x-chat-id", b"one"), (b"x-chat-id", b"two")])
    with pytest.raises(BadRequest, match="X-Chat-Id more than once"):
        SingleHeaders(["X-Chat-Id"]).check([(b"x-chat-id", b"one"), (b"accept", b"*/*"), (b"x-chat-id", b"one")])
