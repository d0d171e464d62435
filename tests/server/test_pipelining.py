"""Requests that come before the one before is answered. A refusal is never taken for the answer to another request."""

import json
import socket
from collections.abc import Iterator

import pytest
from tests.server.support.serving import Served, served
from tests.server.support.turning import PATIENCE, Api, Gate, Visits, agents_of, holds, using

from forkpoint.server.http import protocol
from forkpoint.server.http.protocol import LONGEST_HEAD

HOST = b"Host: 127.0.0.1\r\n"
CHUNKS = b"Transfer-Encoding: chunked\r\n\r\nno length\r\n"
BEHIND = {  # what cannot be read as a request, and what the log says of it
    "a head that is too long": (b"GET / HTTP/1.1\r\nX-Long: " + b"a" * LONGEST_HEAD, "The head of the request has"),
    "no HTTP": (b"This is no HTTP.\r\n\r\n", "The request makes no sense"),
    "half a head": (b"GET /hea", "The head of the request did not come"),
    "a broken body": (b"POST /api/conversations HTTP/1.1\r\n" + HOST + CHUNKS, "The request makes no sense"),
}


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def server(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(protocol, "SLOWEST_HEAD", 0.3)
    with served(agents=agents_of(gate.tool)) as server:
        yield server
        gate.open()


@pytest.fixture
def api(server: Served) -> Iterator[Api]:
    with using(server.url) as api:
        yield api


@pytest.fixture(params=list(BEHIND.values()), ids=list(BEHIND))
def unreadable(request: pytest.FixtureRequest) -> tuple[bytes, str]:
    found: tuple[bytes, str] = request.param
    return found


def asking(id: str, accept: str = "application/json") -> bytes:
    """A request for a turn that waits at the gate."""
    body = json.dumps({"message": holds("x")}).encode()
    head = f"POST /api/conversations/{id}/turns HTTP/1.1\r\nAccept: {accept}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + HOST + b"Content-Type: application/json\r\n\r\n" + body


def all_of(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    said = b""
    while some := connection.recv(65536):
        said += some
    return said


def test_a_turn_that_runs_is_answered_and_what_cannot_be_read_behind_it_is_not(
    server: Served, api: Api, gate: Gate, unreadable: tuple[bytes, str]
) -> None:
    """The client would take a refusal for the answer to its turn, which commits."""
    id, (behind, said) = api.create(), unreadable
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection, Visits() as visits:
        connection.sendall(asking(id))
        gate.reached()
        connection.sendall(behind)
        visits.until_begins(said)
        gate.open()
        head, _, body = all_of(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert json.loads(body)["text"] == "Done: held x"
    assert api.outcomes(id) == ["committed"]


def test_nothing_is_written_into_a_stream_by_what_cannot_be_read_behind_it(
    server: Served, api: Api, gate: Gate, unreadable: tuple[bytes, str]
) -> None:
    id, (behind, said) = api.create(), unreadable
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection, Visits() as visits:
        connection.sendall(asking(id, "text/event-stream"))
        gate.reached()
        connection.sendall(behind)
        visits.until_begins(said)
        gate.open()
        stream = all_of(connection)
    assert stream.count(b"HTTP/1.1 ") == 1
    assert b"event: turn\n" in stream
    assert stream.endswith(b"\r\n0\r\n\r\n"), "the stream came to its end"


def test_all_requests_that_came_whole_are_answered_in_order(
    server: Served, api: Api, gate: Gate, unreadable: tuple[bytes, str]
) -> None:
    id, (behind, said) = api.create(), unreadable
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection, Visits() as visits:
        connection.sendall(asking(id) + b"GET /nothing-here HTTP/1.1\r\n" + HOST + b"\r\n")
        gate.reached()
        connection.sendall(behind)
        visits.until_begins(said)
        gate.open()
        answers = all_of(connection).split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"200", b"404"]


def test_what_cannot_be_read_is_refused_when_nothing_is_under_way(
    server: Served, unreadable: tuple[bytes, str]
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(unreadable[0])
        head, _, body = all_of(connection).partition(b"\r\n\r\n")
    assert head.split()[1] in {b"400", b"408", b"413"}
    assert json.loads(body)["error"]["code"] in {"bad_request", "too_slow", "too_large"}
