"""Responses over a WebSocket: the same events as in a stream, one response after another, on a connection that may end
at any moment."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_connection
from typing import Any
from urllib.parse import urlsplit

import pytest
from openai import OpenAI
from openai.resources.responses.responses import ResponsesConnection
from tests.server.responses.responding import LAST, PATH, Place, body, check_events, kinds, responding, result, text_of
from tests.server.support.turning import Gate, left_nothing
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from forkpoint.server.http.keys import Keyring, Keys, add_key, revoke_key
from forkpoint.server.settings import ServerSettings
from forkpoint.server.wires.responses import socket
from forkpoint.testing import Fault, Heard, Reply, Script, ScriptedCall
from forkpoint.testing.clock import ManualClock

PATIENCE = 60.0
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}


def echo(heard: Heard) -> Reply:
    if heard.text == "Look" and heard.body["messages"][-1]["role"] == "user":
        return Reply(calls=(ScriptedCall("look", "{}", "c1"),))
    return Reply(f"You said: {heard.text}")


@pytest.fixture(scope="module")
def shared() -> Iterator[Place]:
    with responding() as place:
        yield place
        left_nothing(place.server)


@pytest.fixture
def place(shared: Place) -> Place:
    shared.models.script = Script(echo)
    return shared


class Talk:
    """A connection, as tests speak on it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def send(self, input: Any = "Hello", **fields: Any) -> None:
        self.connection.send(json.dumps({"type": "response.create", **body(input, **fields)}))

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.connection.recv(timeout=PATIENCE))
        return found

    def events(self) -> list[dict[str, Any]]:
        """The events of one response, each checked as those of a stream are."""
        events = [self.read()]
        while events[-1]["type"] not in LAST:
            events.append(self.read())
        check_events(events)
        return events

    def ask(self, input: Any = "Hello", **fields: Any) -> dict[str, Any]:
        self.send(input, **fields)
        done: dict[str, Any] = self.events()[-1]["response"]
        return done

    def refused(self, input: Any = "Hello", **fields: Any) -> tuple[int, str, str | None]:
        self.send(input, **fields)
        return refusal(self.read())


def refusal(said: dict[str, Any]) -> tuple[int, str, str | None]:
    assert said["type"] == "error", said
    return said["status"], said["error"]["code"], said["error"]["param"]


@contextmanager
def talking(place: Place, *, path: str = PATH, **options: Any) -> Iterator[Talk]:
    with connect(place.server.url.replace("http", "ws", 1) + path, **options) as connection:
        yield Talk(connection)


def knock(place: Place, *, path: str = PATH, **options: Any) -> tuple[int, str]:
    """The status and the code with which a connection is refused."""
    with pytest.raises(InvalidStatus) as refused, talking(place, path=path, **options):
        pass
    answer = refused.value.response
    assert answer.body is not None
    return answer.status_code, json.loads(answer.body)["error"]["code"]


def names(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def test_a_frame_is_answered_with_the_events_of_a_stream(place: Place) -> None:
    with talking(place) as talk:
        talk.send("Hello", stream=True)
        events = talk.events()
    assert names(events) == names(place.stream("Hello"))
    assert text_of(events[-1]["response"]) == "You said: Hello"
    assert place.get(events[-1]["response"]["id"])["status"] == "completed"


def test_responses_follow_each_other_on_one_connection(place: Place) -> None:
    with talking(place) as talk:
        first = talk.ask("One")
        second = talk.ask("Two", previous_response_id=first["id"])
        branch = talk.ask("Three", previous_response_id=first["id"])
    assert place.said(second["id"]) == ["One", "You said: One", "Two", "You said: Two"]
    assert place.said(branch["id"]) == ["One", "You said: One", "Three", "You said: Three"]


def test_frames_that_come_while_a_response_runs_wait_for_it(place: Place) -> None:
    with talking(place) as talk:
        for text in ("One", "Two", "Three"):
            talk.send(text)
        assert [text_of(talk.events()[-1]["response"]) for _ in range(3)] == [
            f"You said: {text}" for text in ("One", "Two", "Three")
        ]


def test_more_frames_than_may_wait_are_refused(place: Place) -> None:
    with talking(place) as talk, place.models.holding():
        asked = len(place.models.requests)
        talk.send("First")
        place.models.wait_for(asked + 1, timeout=PATIENCE)
        for _ in range(socket.WAITING + 1):
            talk.send("More")
        while (said := talk.read())["type"] != "error":
            pass
        assert refusal(said)[:2] == (429, "too_many")


def test_what_is_not_stored_can_be_gone_on_from_on_its_connection_alone(place: Place) -> None:
    before = len(place.api.http.get("/api/conversations").json()["items"])
    with talking(place) as talk:
        called = talk.ask("Look", store=False, tools=[TOOL])
        done = talk.ask([result("c1", "snow")], store=False, tools=[TOOL], previous_response_id=called["id"])
        assert done["previous_response_id"] == called["id"]
        said = place.models.last.json["messages"]
        assert [one["role"] for one in said] == ["user", "assistant", "tool"]
        talk.ask("And?", store=False, previous_response_id=done["id"])
        said = [one["role"] for one in place.models.last.json["messages"]]
        assert said == ["user", "assistant", "tool", "assistant", "user"]
        again = talk.ask([result("c1", "rain")], store=False, tools=[TOOL], previous_response_id=called["id"])
        assert again["status"] == "completed", "the same place twice is fine here too"
    with talking(place) as other:
        lost = other.refused("And?", store=False, previous_response_id=done["id"])
        assert lost == (400, "previous_response_not_found", "previous_response_id")
        assert text_of(other.ask("Still there?")) == "You said: Still there?", "a refusal does not end a connection"
    assert len(place.api.http.get("/api/conversations").json()["items"]) == before + 1


def test_what_is_not_stored_may_go_on_from_what_is(place: Place) -> None:
    stored = place.ask("One")
    with talking(place) as talk:
        first = talk.ask("Two", store=False, previous_response_id=stored["id"])
        talk.ask("Three", store=False, previous_response_id=first["id"])
        said = [one["content"] for one in place.models.last.json["messages"]]
        assert said == ["One", "You said: One", "Two", "You said: Two", "Three"]
        kept = talk.ask("Four", previous_response_id=first["id"])
    assert place.said(kept["id"]) == ["One", "You said: One", "Two", "You said: Two", "Four", "You said: Four"]


@pytest.mark.parametrize("store", [True, False])
def test_a_warm_up_asks_no_model_and_can_be_gone_on_from(place: Place, store: bool) -> None:
    asked = len(place.models.requests)
    with talking(place) as talk:
        talk.send([{"role": "developer", "content": "Be brief."}], generate=False, store=store)
        events = talk.events()
        assert names(events) == ["response.created", "response.in_progress", "response.completed"]
        warm = events[-1]["response"]
        assert (warm["output"], warm["usage"]["total_tokens"]) == ([], 0)
        assert len(place.models.requests) == asked
        done = talk.ask("Hello", store=store, previous_response_id=warm["id"])
        assert (text_of(done), done["previous_response_id"]) == ("You said: Hello", warm["id"])
        assert [one["role"] for one in place.models.last.json["messages"]] == ["system", "user"]
        assert talk.refused("Hi", generate=False, model="nobody")[:2] == (404, "model_not_found")


def test_only_as_much_is_kept_as_was_promised(place: Place) -> None:
    with talking(place) as talk:
        ids = [talk.ask(str(n), store=False)["id"] for n in range(socket.KEPT + 1)]
        assert talk.refused("On", store=False, previous_response_id=ids[0])[1] == "previous_response_not_found"
        assert talk.ask("On", store=False, previous_response_id=ids[-1])["status"] == "completed"


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("no JSON", (400, "bad_request", None)),
        ("[]", (400, "bad_request", None)),
        ('{"type": "response.steer"}', (400, "unsupported", "type")),
        ('{"model": "helper", "input": "Hi"}', (400, "unsupported", "type")),
        ('{"type": "response.create", "background": true}', (400, "unsupported", "background")),
        ('{"type": "response.create", "generate": 1}', (400, "invalid", "generate")),
        ('{"type": 1e999}', (400, "invalid", "type")),
        (b'{"type": "\xff"}', (400, "invalid", "type")),
        (b"\xff\xfe", (400, "bad_request", None)),
        ('{"type": "response.create", "store": false, "input": 1e999}', (400, "invalid", "input")),
        (b'{"type": "response.create", "store": false, "input": ["\xff"]}', (400, "invalid", "input")),
        (b'{"type": "response.create", "store": "\xff", "input": "Hi"}', (400, "invalid", "store")),
        ('{"type": "response.create", "model": "helper", "input": 1}', (400, "invalid", "input")),
        ('{"type": "response.create", "model": "nobody", "input": "Hi"}', (404, "model_not_found", "model")),
    ],
)
def test_what_cannot_be_answered_is_refused_and_the_connection_stays(
    place: Place, frame: str | bytes, expected: tuple[int, str, str | None]
) -> None:
    with talking(place) as talk:
        talk.connection.send(frame)
        assert refusal(talk.read()) == expected
        assert talk.ask()["status"] == "completed"


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({"conversation": "nowhere"}, (404, "not_found", None)),
        ({"previous_response_id": "resp_1"}, (400, "previous_response_not_found", "previous_response_id")),
    ],
)
def test_a_warm_up_is_refused_where_its_request_would_be(
    place: Place, named: dict[str, str], expected: tuple[int, str, str | None]
) -> None:
    with talking(place) as talk:
        assert talk.refused(generate=False, **named) == expected
        assert talk.refused(**named) == expected


@pytest.mark.parametrize("fault", [Fault("cut", after=2), Fault("refused")], ids=["cut", "a refusal"])
def test_a_response_that_fails_ends_as_it_does_in_a_stream(place: Place, fault: Fault) -> None:
    place.models.script = Script([Reply("Half of the answer", piece=4, fault=fault)] * 20)
    plain = place.stream("Hello")
    with talking(place) as talk:
        talk.send("Hello")
        told = talk.events()
    assert told[-1]["type"] == "response.failed"
    assert kinds(told) == kinds(plain)
    assert told[-1]["response"]["error"] == plain[-1]["response"]["error"]


def test_a_response_that_fails_before_the_model_speaks_is_refused_as_a_stream_is(place: Place) -> None:
    place.models.script = Script([Reply(fault=Fault("status", status=500))] * 20)
    plain = place.post("Hello", stream=True)
    with talking(place) as talk:
        assert talk.refused("Hello")[:2] == (plain.status_code, plain.json()["error"]["code"])


def test_a_page_of_a_stranger_cannot_open_a_connection(place: Place) -> None:
    assert knock(place, origin="https://evil.example") == (403, "foreign_origin")
    port = urlsplit(place.server.url).port
    with create_connection(("127.0.0.1", port or 0)) as rebound, pytest.raises(InvalidStatus) as refused:
        connect(f"ws://evil.example:{port}{PATH}", sock=rebound)
    assert refused.value.response.status_code == 403, "a page can point its own name at this address"
    with talking(place, origin=place.server.url) as talk:
        assert talk.ask()["status"] == "completed"


def test_no_other_path_takes_connections(place: Place) -> None:
    assert knock(place, path="/v1/conversations") == (404, "no_such_call")
    assert knock(place, path="/health") == (404, "no_such_call")


def test_keys_and_their_roles_hold_on_a_connection(tmp_path: Path) -> None:
    tokens = {role: add_key(tmp_path / "keys", role, role=role).token for role in ("read", "use")}
    with responding(keyring=Keyring([Keys(tmp_path / "keys")])) as place:
        place.models.script = Script(echo)

        def bearing(token: str) -> dict[str, Any]:
            return {"additional_headers": {"Authorization": f"Bearer {token}"}}

        assert knock(place) == (401, "invalid_api_key")
        assert knock(place, **bearing("wrong")) == (401, "invalid_api_key")
        assert knock(place, **bearing(tokens["read"])) == (403, "forbidden")
        with talking(place, **bearing(tokens["use"])) as talk:
            assert talk.ask()["status"] == "completed"


def test_a_connection_whose_key_is_revoked_is_cut_off_and_not_left_waiting(tmp_path: Path) -> None:
    token, clock, gate = add_key(tmp_path / "keys", "app", role="use").token, ManualClock(), Gate()
    replies = (Reply(calls=(ScriptedCall("hold", '{"line":"1"}', "w1"),)), Reply("Done"))
    keyring = Keyring([Keys(tmp_path / "keys", clock=clock)])
    bearing = {"Authorization": f"Bearer {token}"}
    with (
        responding(*replies, tools=[gate.tool], keyring=keyring) as place,
        talking(place, additional_headers=bearing) as talk,
    ):
        talk.send("Hold")
        gate.reached()
        revoke_key(tmp_path / "keys", "app")
        clock.pass_by(1)
        gate.open()
        with pytest.raises(ConnectionClosed) as closed:
            talk.events()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1011


def test_no_more_connections_are_open_than_streams_may_be() -> None:
    with responding(settings=ServerSettings(max_streams=1)) as place, talking(place):
        assert knock(place) == (429, "too_many")


def test_a_frame_that_is_too_large_ends_the_connection() -> None:
    with responding(settings=ServerSettings(max_body=10_000)) as place, talking(place) as talk:
        talk.send("x" * 20_000)
        with pytest.raises(ConnectionClosed) as closed:
            talk.read()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


def test_a_connection_ends_after_its_time_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "LONGEST", 0.0)
    with responding() as place, talking(place) as talk:
        assert refusal(talk.read())[:2] == (400, "websocket_connection_limit_reached")
        with pytest.raises(ConnectionClosed):
            talk.read()


@pytest.mark.parametrize("store", [True, False])
def test_a_client_that_goes_stops_what_only_it_waits_for(store: bool) -> None:
    with responding(settings=ServerSettings(on_disconnect="cancel")) as place, place.models.holding():
        with talking(place) as talk:
            talk.send("Hello", store=store)
            place.models.wait_for(1, timeout=PATIENCE)
        left_nothing(place.server)  # though the model has not answered


def test_a_client_that_goes_leaves_a_stored_response_running() -> None:
    gate = Gate()
    replies = (Reply(calls=(ScriptedCall("hold", '{"line":"1"}', "w1"),)), Reply("Done"))
    with responding(*replies, tools=[gate.tool], settings=ServerSettings(on_disconnect="finish")) as place:
        with talking(place) as talk:
            talk.send("Hold")
            id = talk.read()["response"]["id"]
            gate.reached()
        gate.open()
        left_nothing(place.server)
        assert text_of(place.get(id)) == "Done"


def test_a_connection_is_counted_and_logged_as_its_requests_are(place: Place) -> None:
    with talking(place) as talk:
        talk.ask()
        told = place.api.http.get("/metrics").text
    assert 'route="/v1/responses",status="101"' in told.replace(" ", "")
    assert 'method="POST",route="/v1/responses",status="200"' in told.replace(" ", "")


def test_a_server_that_stops_ends_what_runs_and_then_closes() -> None:
    patient = ServerSettings(grace=10 * PATIENCE)
    with responding(Reply("Done"), settings=patient) as place, talking(place) as idle, talking(place) as busy:
        with place.models.holding():
            busy.send("Hello")
            place.models.wait_for(1, timeout=PATIENCE)
            stopping = place.api.soon(place.server.stop)
            assert closed_with(idle) == 1012, "nothing runs there"
        assert text_of(busy.events()[-1]["response"]) == "Done"
        assert closed_with(busy) == 1012
        stopping.result()


def closed_with(talk: Talk) -> int:
    """The code with which the server closes a connection on which it says nothing more."""
    with pytest.raises(ConnectionClosed) as closed:
        talk.read()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def test_frames_that_come_with_the_handshake_are_read(place: Place) -> None:
    port = urlsplit(place.server.url).port or 0
    key = base64.b64encode(b"0" * 16).decode()
    head = f"GET {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    head += f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    frame = Frame(Opcode.TEXT, json.dumps({"type": "response.steer"}).encode()).serialize(mask=True)
    with create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain:
        plain.sendall(head.encode() + frame)
        said = b""
        while b"unsupported" not in said:
            more = plain.recv(65536)
            assert more, said
            said += more


def test_the_openai_client_talks_on_a_connection(place: Place) -> None:
    client = OpenAI(base_url=f"{place.server.url}/v1", api_key="any")
    with client.responses.connect() as connection:
        connection.response.create(model="helper", input="One")
        done = _completed(connection)
        assert done.output_text == "You said: One"
        connection.response.create(model="helper", input="Two", store=False, previous_response_id=done.id)
        second = _completed(connection)
        connection.response.create(model="helper", input="Three", store=False, previous_response_id=second.id)
        assert _completed(connection).output_text == "You said: Three"
        said = [one["content"] for one in place.models.last.json["messages"]]
        assert said == ["One", "You said: One", "Two", "You said: Two", "Three"]


def _completed(connection: ResponsesConnection) -> Any:
    for event in connection:
        if event.type == "response.completed":
            return event.response
    raise AssertionError("the connection ended before the response")
