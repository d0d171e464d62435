"""How much a server takes: bodies, heads, messages, titles, tags and pages. What is larger is 413 or 422, and nothing
has changed."""

import json
import socket
from collections.abc import Callable, Iterator

import httpx2
import pytest
from tests.server.support.contract import checked
from tests.server.support.serving import Served, served

from forkpoint.server.http.protocol import LONGEST_HEAD
from forkpoint.server.settings import ServerSettings
from forkpoint.store.values import StoreLimits

PLACE = "/api/conversations"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(settings=ServerSettings(max_body=100_000, max_messages=3)) as running:
        with running.client() as client:
            client.post(PLACE, json={"id": "here"})
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[httpx2.Client]:
    with checked(server) as client:
        yield client


def refused(response: httpx2.Response, what: str, limit: int) -> None:
    assert (response.status_code, response.json()["error"]["code"]) == (413, "too_large"), response.text
    details = response.json()["error"]["details"]
    assert (details["what"], details["limit"]) == (what, limit)
    assert details["size"] > limit


def exactly(size: int) -> bytes:
    """A body of a conversation that has so many bytes."""
    frame = b'{"title": "a"}'
    return frame + b" " * (size - len(frame))


def test_a_body_of_exactly_the_limit_is_taken_and_one_more_byte_is_not(client: httpx2.Client) -> None:
    assert client.post(PLACE, content=exactly(100_000), headers=JSON).status_code == 201
    refused(client.post(PLACE, content=exactly(100_001), headers=JSON), "request", 100_000)


def test_a_body_in_chunks_is_refused_once_it_is_too_large(client: httpx2.Client) -> None:
    def chunks(count: int) -> Iterator[bytes]:
        yield b'{"title": "a"}'
        for _ in range(count):
            yield b" " * 10_000

    assert client.post(PLACE, content=chunks(9), headers=JSON).status_code == 201
    refused(client.post(PLACE, content=chunks(11), headers=JSON), "request", 100_000)


def test_a_length_that_is_too_large_is_refused_before_the_body_comes(server: Served) -> None:
    head = b"POST /api/conversations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(head + b"Content-Length: 999999999999\r\n\r\n{")
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_head_without_an_end_is_refused_and_the_connection_closed(server: Served) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 2) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        said = b""
        try:
            for _ in range(20):
                connection.sendall(b"a" * 10_000)
            while some := connection.recv(65536):
                said += some
        except ConnectionError:
            pass  # it was closed while we still spoke
    assert said == b"" or said.startswith(b"HTTP/1.1 413 ")


def head_of(size: int, end: bytes = b"Connection: close\r\n\r\n") -> bytes:
    """A head that has so many bytes."""
    start = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: "
    return start + b"a" * (size - len(start) - len(end) - 2) + b"\r\n" + end


SMALL = b"POST /api/conversations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKS = SMALL + b"Transfer-Encoding: chunked\r\n\r\n6\r\n{}\r\n\r\n\r\n0\r\nX-After: 1\r\n\r\n"
SPLITS: dict[str, Callable[[bytes], list[bytes]]] = {
    "at once": lambda head: [head],
    "in two": lambda head: [head[:40_000], head[40_000:]],
    "within its end": lambda head: [head[:-2], head[-2:]],
    "with its last byte alone": lambda head: [head[:-1], head[-1:]],
    "byte by byte at its end": lambda head: [head[:-5], *(head[-n:][:1] for n in range(5, 0, -1))],
    "behind a request": lambda head: [b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + head],
    "behind a body": lambda head: [SMALL + b"Content-Length: 8\r\n\r\n{}\r\n\r\n\r\n" + head],
    "behind chunks": lambda head: [CHUNKS + head],
    "behind half of the chunks": lambda head: [CHUNKS[:-2], CHUNKS[-2:] + head[:10_000], head[10_000:]],
}


def last_status(server: Served, pieces: list[bytes]) -> tuple[int, bytes]:
    """The status of the last answer to what is sent in these pieces, one network packet each, and its body."""
    said = b""
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for piece in pieces:
                connection.sendall(piece)
            while some := connection.recv(65536):
                said += some
        except ConnectionError:
            pass  # it was closed while we still spoke
    answers = said.split(b"HTTP/1.1 ")
    return int(answers[-1][:3]), answers[-1].partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_a_head_of_exactly_the_limit_is_taken_and_one_more_byte_is_not(
    server: Served, split: Callable[[bytes], list[bytes]]
) -> None:
    assert last_status(server, split(head_of(LONGEST_HEAD)))[0] == 200
    too_long = head_of(LONGEST_HEAD + 1)
    pieces = split(too_long)
    status, body = last_status(server, pieces)
    if status < 400 and b"".join(pieces) != too_long:
        return  # the request before it was still being answered, and then nothing but that answer is written
    error = json.loads(body)["error"]
    assert (status, error["code"]) == (413, "too_large")
    assert (error["details"]["what"], error["details"]["limit"]) == ("head of the request", LONGEST_HEAD)


def test_a_body_does_not_count_as_head(server: Served) -> None:
    whole = SMALL + b"Connection: close\r\nContent-Length: 90000\r\n\r\n" + exactly(90_000)
    assert last_status(server, [whole])[0] == 201


def test_a_body_in_chunks_of_exactly_the_limit_is_taken_and_one_more_byte_is_not(client: httpx2.Client) -> None:
    for size, status in ((100_000, 201), (100_001, 413)):
        body = exactly(size)
        for cut in (1, 50_000, size - 1):
            assert client.post(PLACE, content=iter([body[:cut], body[cut:]]), headers=JSON).status_code == status


def test_a_large_but_sensible_head_is_taken(client: httpx2.Client) -> None:
    assert client.get(PLACE, headers={"X-Long": "a" * 30_000}).status_code == 200


def test_a_turn_has_no_more_messages_than_the_server_takes(client: httpx2.Client) -> None:
    for path in ("turns", "ask", "request"):
        answered = client.post(f"{PLACE}/here/{path}", json={"messages": ["a", "b", "c", "d"]})
        refused(answered, "turn", 3)
        assert answered.json()["error"]["details"]["unit"] == "messages"
    assert client.get(f"{PLACE}/here").json()["events"] == 0
    assert client.post(f"{PLACE}/here/turns", json={"messages": ["a", "b", "c"]}).status_code == 200


def test_a_turn_needs_a_message_and_takes_it_in_one_way_only(client: httpx2.Client) -> None:
    for body, code in (({}, "nothing_to_run"), ({"messages": []}, "nothing_to_run"), ({"message": ""}, "not_whole")):
        answered = client.post(f"{PLACE}/here/turns", json=body)
        assert (answered.status_code, answered.json()["error"]["code"]) == (422, code)
    both = client.post(f"{PLACE}/here/turns", json={"message": "a", "messages": ["b"]})
    assert (both.status_code, both.json()["error"]["param"]) == (422, "messages")


@pytest.mark.parametrize("way", ["create", "describe", "fork", "first turn"])
def test_titles_and_tags_have_a_size(client: httpx2.Client, way: str) -> None:
    most = StoreLimits()
    for body in (
        {"title": "é" * (most.title // 2 + 1)},
        {"tags": {f"tag-{one}": "" for one in range(most.tags + 1)}},
        {"tags": {"kind": "a" * (most.tag + 1)}},
    ):
        before = client.get(f"{PLACE}/here").content
        match way:
            case "create":
                answered = client.post(PLACE, json=body)
            case "describe":
                answered = client.patch(f"{PLACE}/here", json=body)
            case "fork":
                answered = client.post(f"{PLACE}/here/fork", json=body)
            case _:
                answered = client.post(f"{PLACE}/new/turns", json={"message": "Hi", "create": body})
        assert (answered.status_code, answered.json()["error"]["code"]) == (413, "too_large"), answered.text
        assert client.get(f"{PLACE}/here").content == before
    assert client.get(f"{PLACE}/new").status_code == 404


@pytest.mark.parametrize("path", ["", "/here/turns", "/here/events"])
def test_a_page_has_1_to_1000_items(client: httpx2.Client, path: str) -> None:
    for limit, status in ((0, 422), (-1, 422), (1, 200), (1000, 200), (1001, 422), (10**30, 422)):
        assert client.get(f"{PLACE}{path}", params={"limit": limit}).status_code == status
