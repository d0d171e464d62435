"""A server waits for nobody without end: not for a request that does not come, nor for a reader that reads nothing."""

import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from tests.server.support.serving import Served, served
from tests.server.support.turning import PATIENCE, using

from forkpoint.server.http import door, protocol
from forkpoint.server.live import stream as server_stream

START = b"POST /api/conversations HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(protocol, "SLOWEST_HEAD", 0.3)
    monkeypatch.setattr(door, "SLOWEST_BODY", 0.3)
    with served() as running:
        yield running


def said(server: Served, *pieces: bytes) -> tuple[int, dict[str, object]]:
    """What is answered to one who says this and then nothing: a status and an error."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        for piece in pieces:
            connection.sendall(piece)
        answered = b""
        while some := connection.recv(65536):
            answered += some
    head, _, body = answered.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("pieces", [(), (b"POST /api",), (START,)], ids=["nothing", "half a line", "half a head"])
def test_a_head_that_does_not_come_is_408(server: Served, pieces: tuple[bytes, ...]) -> None:
    status, error = said(server, *pieces)
    assert (status, error["code"]) == (408, "too_slow")
    assert error["details"] == {"what": "head", "seconds": 0.3}


def test_a_body_that_does_not_come_is_408_and_nothing_is_made(server: Served) -> None:
    status, error = said(server, START + b'Connection: close\r\nContent-Length: 100\r\n\r\n{"id":')
    assert (status, error["code"]) == (408, "too_slow")
    with server.client() as client:
        assert client.get("/api/conversations").json()["items"] == []


def test_one_who_is_answered_late_was_not_too_slow(server: Served) -> None:
    """The clock is for what the client sends: a connection may then be silent for as long as it likes."""
    with server.client() as client:
        client.post("/api/conversations", json={"id": "a"})
        with client.stream("GET", "/api/conversations/a/events/stream") as stream:
            lines = stream.iter_lines()
            assert next(lines) == "retry: 1000"
            said(server)  # 0.3 s have passed
            assert client.post("/api/conversations/a/turns", json={"message": "Hello"}).status_code == 200
            assert any(line.startswith("id: ") for line in lines)


def test_what_follows_a_body_is_not_kept(server: Served) -> None:
    """Trailers mean nothing here, and could be without end."""
    trailers = b"".join(f"x-{n}: {'y' * 1000}\r\n".encode() for n in range(200))
    chunked = START + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\n{}\r\n0\r\n" + trailers + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(chunked)
        assert connection.recv(65536).startswith(b"HTTP/1.1 201")


def test_a_reader_that_takes_nothing_is_given_up_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_stream, "STALLED", 0.3)
    with served() as server, using(server.url) as api:
        conversation = api.create()
        for n in range(4):
            large = {"set": {f"key {n}": "x" * 2_000_000}}
            assert api.http.patch(f"/api/conversations/{conversation}/state", json=large).status_code == 200
        path = f"/api/conversations/{conversation}/events/stream"
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(PATIENCE)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            until(lambda: bool(server.services.watching.mailboxes("default", conversation)))
            until(lambda: not server.services.watching.mailboxes("default", conversation))
        events = api.http.get(f"/api/conversations/{conversation}/events").json()
        assert events["head"] is not None
        with api.http.stream("GET", f"{path}?after={events['head']}") as stream:
            assert next(stream.iter_lines()) == "retry: 1000"
