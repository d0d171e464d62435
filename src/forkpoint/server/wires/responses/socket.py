"""Responses over a WebSocket: a connection on which a client asks for one response after another.

Each frame `response.create` is sent through the whole app as `POST /v1/responses` with `stream: true`, with the headers
of the connection. So keys, roles, limits, logs and all errors are those of that call. Its events come back as frames.

What is not stored can be gone on from on the connection that made it: the connection keeps what was said, and puts it
before the next input. Tests: tests/server/responses/test_socket.py.
"""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Raw, Struct
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forkpoint.clock import system_clock as now
from forkpoint.errors import BadRequest, ForkpointError, Invalid, TooMany
from forkpoint.ids import new_id
from forkpoint.lru import Lru
from forkpoint.server.http.call import JSON, ApiCall
from forkpoint.server.live.stream import TYPE, EventStream
from forkpoint.server.services import Services
from forkpoint.server.wires.body import fields_of, value_of
from forkpoint.server.wires.errors import refusal
from forkpoint.server.wires.responses.document import InputTokens, OutputTokens, ResponseUsage, begun_response
from forkpoint.server.wires.responses.stream import ResponseStream
from forkpoint.server.wires.responses.turn import ResponseTurn

PATH = "/v1/responses"
LONGEST = 3600.0
"""Seconds that a connection lasts."""
WAITING = 8
"""Frames that may wait while a response runs."""
KEPT = 16
"""Responses that are not stored, and that a connection keeps to go on from."""

_WARM_UP = "forkpoint.warm_up"  # the key in a request's scope: no model is to be asked
_RESTARTS, _CUT_OFF = 1012, 1011  # codes with which a connection closes
_OWN = {  # headers that are about the connection, or about one request
    *(b"connection", b"upgrade", b"content-length", b"content-type", b"content-encoding", b"transfer-encoding"),
    *(b"x-request-id", b"idempotency-key", b"x-stainless-retry-count", b"accept", b"expect"),
}
_LAST = {b"response.completed", b"response.incomplete", b"response.failed"}
_LIFECYCLE = {b"response.created", b"response.in_progress", *_LAST}
_encode = msgspec.json.encode


async def serve(scope: Scope, receive: Receive, send: Send) -> None:
    """Serves a connection that the door has let in, until one of both sides closes it. Raises `TooMany`."""
    services: Services = scope["app"].state.services
    connection = ResponseSocket(scope, send, services)
    with services.responses.opened(connection, services.settings), services.metrics.stream():
        await send({"type": "websocket.accept", "headers": [(b"x-request-id", scope["forkpoint.request_id"].encode())]})
        await connection.run(receive)


def is_warm_up(call: ApiCall) -> bool:
    """Whether a connection has sent this request, and wants no answer of a model."""
    return bool(call.request.scope.get(_WARM_UP))


async def warm_up(call: ApiCall, body: bytes) -> EventStream:
    """The events of a response without output, for a request that is right. Raises what is wrong with it."""
    turn = ResponseTurn(call, body)
    await turn.check_place()
    echo = turn.echo
    id, started = new_id(), now()
    done = msgspec.structs.replace(
        begun_response(id, started, echo),
        status="completed",
        completed_at=started // 1_000_000,
        usage=ResponseUsage(0, InputTokens(0, 0), 0, OutputTokens(0), 0),
    )
    stream = ResponseStream(echo, holds=True, tells=True)
    stream.tell_again(id, done, -1)
    return EventStream(stream.events.read(None, None))


class _Chain(Struct, frozen=True):
    """What stands before a response's input: a stored response, if there is one, and items that are not stored."""

    after: Raw | None = None
    items: tuple[Raw, ...] = ()

    @property
    def size(self) -> int:
        return sum(len(memoryview(item)) for item in self.items)


class _Create(Struct, frozen=True):
    """A frame that asks for a response, as the call gets it."""

    body: bytes
    previous: Raw | None  # what the client goes on from, if only this connection knows it
    chain: _Chain | None  # with its input; None if the response is stored
    is_warm_up: bool


class ResponseSocket:
    """A connection. It answers one frame after the other, and reads while it answers: the client may go meanwhile."""

    def __init__(self, scope: Scope, send: Send, services: Services) -> None:
        self.tenant: str = scope["forkpoint.tenant"]
        self._scope = scope
        self._send = send
        self._app: ASGIApp = scope["app"]
        self._most = services.settings.max_body
        self._frames: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._gone = asyncio.Event()
        self._code: int | None = None  # with which the connection is to be closed; None: it stays open
        self._until = asyncio.get_running_loop().time() + LONGEST
        self._kept: Lru[str, _Chain] = Lru(KEPT, self._most, keeps_newest=True)

    def stop(self) -> None:
        """The server stops: the connection closes, after the response that runs."""
        self._code = _RESTARTS
        self._news.set()

    async def run(self, receive: Receive) -> None:
        """Answers frames until the client has gone, the time is over, or the server stops."""
        reading = asyncio.create_task(self._read(receive))
        try:
            while (frame := await self._next()) is not None:
                await self._answer(frame)
            if not self._gone.is_set():
                await self._send({"type": "websocket.close", "code": self._code or 1000})
        finally:
            reading.cancel()

    async def _read(self, receive: Receive) -> None:
        try:
            with suppress(OSError):  # the client has gone while it was told something
                await self._take(receive)
        finally:
            self._gone.set()
            self._news.set()

    async def _take(self, receive: Receive) -> None:
        """Takes frames until the client has gone."""
        while (message := await receive())["type"] != "websocket.disconnect":
            text: str | None = message.get("text")
            frame = (message.get("bytes") or b"") if text is None else text.encode()
            if len(self._frames) >= WAITING or sum(map(len, self._frames)) > self._most:
                await self._refuse(TooMany("responses that wait on one connection", WAITING))
                continue
            self._frames.append(frame)
            self._news.set()

    async def _next(self) -> bytes | None:
        """The next frame; None if there will be none."""
        while not self._gone.is_set() and self._code is None:
            if asyncio.get_running_loop().time() >= self._until:
                await self._refuse(BadRequest.websocket_connection_limit_reached(round(LONGEST / 60)))
                return None
            if self._frames:
                return self._frames.popleft()
            self._news.clear()
            try:
                async with asyncio.timeout_at(self._until):
                    await self._news.wait()
            except TimeoutError:
                continue
        return None

    async def _answer(self, frame: bytes) -> None:
        try:
            create = self._read_create(frame)
        except ForkpointError as error:
            await self._refuse(error)
            return
        exchange = _Exchange(self, create)
        await self._app(self._request(create), exchange.receive, exchange.send)
        if not exchange.is_told:  # its key is not known any more, or the client takes nothing
            self._code = _CUT_OFF
        if exchange.made is not None and create.chain is not None:
            id, output = exchange.made
            chain = _Chain(create.chain.after, (*create.chain.items, *output))
            self._kept.put(id, chain, chain.size)

    def _read_create(self, frame: bytes) -> _Create:
        """A frame as a call. Raises `BadRequest` or `Invalid`."""
        fields = fields_of(frame)
        kind = _value(fields, "type")
        if kind != "response.create":
            raise Invalid.unsupported(
                "type", f"frames of the type {str(kind)[:64]!r} are not known; send response.create"
            )
        del fields["type"]
        if _value(fields, "background"):
            raise Invalid.unsupported("background", "a response on a WebSocket is told while it runs; use POST for it")
        generate = _value(fields, "generate")
        fields.pop("generate", None)
        if generate is not None and not isinstance(generate, bool):
            raise Invalid("generate", "it must be true or false")
        previous = fields.get("previous_response_id")
        named = _value(fields, "previous_response_id")
        known = self._kept.get(named) if isinstance(named, str) else None
        items = _items(fields) if known is not None or generate is False or _is_unkept(fields) else ()
        chain = _Chain(previous, items) if known is None else _Chain(known.after, (*known.items, *items))
        if known is not None:
            fields["input"] = Raw(_encode(chain.items))
            fields.pop("previous_response_id")
            if known.after is not None:
                fields["previous_response_id"] = known.after
        fields["stream"] = Raw(b"true")
        keeps = generate is False or _is_unkept(fields)
        return _Create(
            _encode(fields), None if known is None else previous, chain if keeps else None, generate is False
        )

    def _request(self, create: _Create) -> Scope:
        headers = [
            (name, value)
            for name, value in self._scope["headers"]
            if name not in _OWN and not name.startswith(b"sec-websocket-")
        ]
        headers += [(b"content-type", JSON.encode()), (b"content-length", str(len(create.body)).encode())]
        kept = ("asgi", "http_version", "server", "client", "root_path", "path", "raw_path", "query_string", "state")
        scheme = "https" if self._scope["scheme"] == "wss" else "http"
        return {name: self._scope[name] for name in kept if name in self._scope} | {
            "type": "http",
            "method": "POST",
            "scheme": scheme,
            "headers": headers,
            _WARM_UP: create.is_warm_up,
        }

    async def _refuse(self, error: ForkpointError) -> None:
        status, body, _ = refusal(error, self._scope["forkpoint.request_id"])
        await self.say_refusal(status, body)

    async def say_refusal(self, status: int, body: bytes) -> None:
        """Tells why there is no response. The body is that of an answer with this status."""
        await self.say(_encode({"type": "error", "status": status, **msgspec.json.decode(body, type=dict[str, Raw])}))

    async def say(self, document: bytes) -> None:
        """Sends a frame. A client that has gone hears nothing more."""
        if not self._gone.is_set():
            await self._send({"type": "websocket.send", "text": document.decode()})

    async def until_gone(self) -> None:
        await self._gone.wait()


class _Exchange:
    """One call, as the app sees it: it reads a request, and what it answers becomes frames."""

    def __init__(self, socket: ResponseSocket, create: _Create) -> None:
        self._socket = socket
        self._create = create
        self._is_read = False
        self._status = 0
        self._is_stream = False
        self._rest = b""
        self.is_told = False  # whether the client knows how it ended
        self.made: tuple[str, tuple[Raw, ...]] | None = None  # the response that can be gone on from, and its output

    async def receive(self) -> Message:
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self._create.body, "more_body": False}
        await self._socket.until_gone()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._is_stream = any(
                name == b"content-type" and value.startswith(TYPE.encode()) for name, value in message["headers"]
            )
            return
        self._rest += message.get("body", b"")
        if self._is_stream:
            *frames, self._rest = self._rest.split(b"\n\n")
            for frame in frames:
                await self._tell(frame)
        elif not message.get("more_body", False) and self._rest:
            await self._socket.say_refusal(self._status, self._rest)
            self.is_told = True

    async def _tell(self, frame: bytes) -> None:
        """Sends the event that a frame of a stream is. A comment is none."""
        head, _, data = frame.partition(b"\ndata: ")
        if not data:
            return
        kind = head.removeprefix(b"event: ")
        if kind in _LIFECYCLE:
            event = msgspec.json.decode(data, type=dict[str, Raw])
            response = msgspec.json.decode(event["response"], type=dict[str, Raw])
            if _value(response, "status") in {"completed", "incomplete"}:
                output = msgspec.json.decode(response["output"], type=tuple[Raw, ...])
                self.made = str(_value(response, "id")), output
            if self._create.previous is not None:
                response["previous_response_id"] = self._create.previous
                data = _encode(event | {"response": response})
        await self._socket.say(data)
        self.is_told = self.is_told or kind in _LAST


def _value(fields: dict[str, Raw], name: str) -> Any:
    """The value of a field, or None if it is absent. Raises `Invalid`."""
    raw = fields.get(name)
    return None if raw is None else value_of(raw, name)


def _is_unkept(fields: dict[str, Raw]) -> bool:
    return _value(fields, "store") is False


def _items(fields: dict[str, Raw]) -> tuple[Raw, ...]:
    """The items of an input. What is neither a text nor a list is for the call to refuse."""
    found = _value(fields, "input")
    if isinstance(found, str):
        return (Raw(_encode({"type": "message", "role": "user", "content": found})),)
    return msgspec.json.decode(fields["input"], type=tuple[Raw, ...]) if isinstance(found, list) else ()
