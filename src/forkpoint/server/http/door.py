"""The door: what every request goes through, whatever it asks for.

It gives the request an id, finds out who sends it, refuses what is too large, has a header twice, or comes from a web
page that may not call, turns every error into the one envelope (under /v1 into OpenAI's), and writes one line to the
log. It is plain ASGI: a stream that waits for hours costs it nothing. WebSockets come in by the
same rules. Tests: tests/server/test_errors.py, test_cors.py, tests/server/responses/test_socket.py.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forkpoint.backend.actor import acting_as
from forkpoint.errors import (
    ForkpointError,
    NotFound,
    ShuttingDown,
    StoreUnavailable,
    TooLarge,
    TooSlow,
    TurnFailed,
    Unauthorized,
)
from forkpoint.ids import new_id
from forkpoint.server.api.public import problem_of
from forkpoint.server.http.address import is_loopback_name
from forkpoint.server.http.headers import SingleHeaders
from forkpoint.server.http.keys import ApiKey
from forkpoint.server.http.logs import bind
from forkpoint.server.http.span import request_span
from forkpoint.server.http.statuses import retry_after, status_of
from forkpoint.server.live.feed import encode
from forkpoint.server.live.runs import Turns
from forkpoint.server.live.stream import PARKED
from forkpoint.server.services import Services
from forkpoint.server.wires import errors as wire_errors
from forkpoint.store import DEFAULT_TENANT
from forkpoint.wire.problems import INTERNAL, hides

_log = logging.getLogger("forkpoint.server")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_WIRES = "/v1"  # what OpenAI's clients call
IMPORT = "/api/import"
"""The one call whose body is a file."""
_OPEN = {"/health", "/ready", "/metrics", "/openapi.json"}  # for everybody
SLOWEST_BODY = 60.0
"""Seconds between two pieces of a request's body."""
GONE = 499  # the client went before there was an answer; only the log sees it
_QUIET = {"/health", "/ready", "/metrics"}  # asked every few seconds, and no news


class Door:
    """The outermost part of the app, but for CORS."""

    def __init__(
        self, app: ASGIApp, services: Callable[[], Services], sockets: Mapping[str, ASGIApp] | None = None
    ) -> None:
        self._app = app
        self._services = services
        self._sockets = sockets or {}  # what serves WebSockets, by path
        self._single = SingleHeaders(header.name for header in services().settings.conversation_headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._open(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        id = scope["forkpoint.request_id"] = _request_id(headers)
        with bind(request_id=id), request_span(scope["method"], scope["headers"]) as span:
            visit = _Visit(id, scope["path"], send, self._services().turns)
            started = time.perf_counter()
            try:
                await self._enter(scope, headers, receive, visit)
            finally:
                route = getattr(scope.get("route"), "path", None)
                seconds = time.perf_counter() - started
                span.answered(route, visit.status)
                self._services().metrics.request(scope["method"], route, visit.status, seconds)
                level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
                _log.log(
                    level,
                    "%s %s %d",
                    scope["method"],
                    route or "(no such call)",
                    visit.status,
                    extra={"fields": {"seconds": round(seconds, 6), **_who(scope)}},
                )

    async def _open(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a WebSocket in, or answers as any request is refused. What is asked on it comes in as requests.

        Browsers open one from any page without asking, so that it must be refused before it is open.
        """

        async def told(message: Message) -> None:
            if message["type"] == "websocket.accept":
                visit.status = 101
                self._services().metrics.request("GET", scope["path"], 101, time.perf_counter() - started)
            is_refusal = message["type"].startswith("http.response.")
            await send({**message, "type": f"websocket.{message['type']}"} if is_refusal else message)

        started = time.perf_counter()
        headers, services = Headers(scope=scope), self._services()
        id = scope["forkpoint.request_id"] = _request_id(headers)
        visit = _Visit(id, scope["path"], told, services.turns)
        with bind(request_id=id):
            try:
                await receive()
                self._single.check(scope["headers"])
                key = scope["forkpoint.key"] = _caller(services, scope["path"], headers)
                if key is not None:
                    key.check_role("use")
                scope["forkpoint.tenant"] = tenant = key.tenant if key is not None else DEFAULT_TENANT
                if (serve := self._sockets.get(scope["path"])) is None:
                    raise NotFound.no_such_call("GET", scope["path"][:200])
                if services.turns.draining:
                    raise ShuttingDown()
                with bind(tenant=tenant, key=None if key is None else key.name):
                    await serve(scope, receive, told)
            except OSError:  # the client has gone
                pass
            except Exception as error:
                if _is_news(error):
                    _log.exception("a WebSocket failed")
                await visit.refuse(error)
            finally:
                seconds = time.perf_counter() - started
                route = scope["path"] if scope["path"] in self._sockets else None
                if visit.status != 101:
                    services.metrics.request("GET", route, visit.status, seconds)
                fields = {"seconds": round(seconds, 6), **_who(scope)}
                _log.info("WebSocket %s %d", route or "(no such call)", visit.status, extra={"fields": fields})

    async def _enter(self, scope: Scope, headers: Headers, receive: Receive, visit: "_Visit") -> None:
        try:
            services = self._services()
            self._single.check(scope["headers"])
            authorization = headers.get("authorization")
            key = _caller(services, scope["path"], headers)
            scope["forkpoint.key"] = key
            scope["forkpoint.tenant"] = tenant = key.tenant if key is not None else DEFAULT_TENANT
            acting = nullcontext() if key is None else acting_as(key.name)
            with bind(tenant=tenant, key=None if key is None else key.name), acting:
                settings = services.settings
                most = settings.max_import if scope["path"] == IMPORT else settings.max_body
                limited = _limited(receive, headers, most)
                # A copy: what the framework puts there goes when it is done.
                inner: Scope = {**scope, PARKED: [], "forkpoint.names": visit.names}
                if scope["method"] == "HEAD" and scope["path"] in _QUIET:  # as load balancers ask; no body is sent
                    inner["method"] = "GET"
                try:
                    await self._app(inner, limited, visit.send)
                finally:
                    scope["route"] = inner.get("route")
                streams = inner[PARKED]
                inner.clear()
                for stream in streams:
                    await stream.follow(limited, visit.send, partial(_is_known, services, key, authorization))
        except ClientDisconnect:  # while its body was read: nobody is there to be told anything
            visit.status = visit.status or GONE
        except Exception as error:
            if _is_news(error):
                _log.exception("a request failed")
            await visit.refuse(error)


class _Visit:
    """One request on its way through."""

    def __init__(self, id: str, path: str, send: Send, turns: Turns) -> None:
        self._turns = turns
        self.id = id
        self.names: dict[str, str] = {}  # of the conversations that the call has found, by id
        self._path = path
        self.status = 0
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.id
            if self._turns.draining:  # the client's next request goes elsewhere, and finds no connection cut
                headers["connection"] = "close"
        await self._send(message)

    async def refuse(self, error: BaseException) -> None:
        """Says what went wrong, if nothing was said yet. An answer that has begun is cut off instead."""
        if self.status:
            raise error
        if isinstance(error, ForkpointError):
            error.use_names(self.names)
        status, body, headers = refusal(error, self.id, self._path)
        headers["Content-Length"] = str(len(body))
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})
        await self.send({"type": "http.response.body", "body": body})


def _request_id(headers: Headers) -> str:
    """The id that a client gives its request, or a new one."""
    given = ",".join(headers.getlist("x-request-id"))  # two of them are no id
    return given if _REQUEST_ID.fullmatch(given) else new_id()


def refusal(error: BaseException, request_id: str, path: str = "") -> tuple[int, bytes, dict[str, str]]:
    """The answer to a request that an error ended: status, body and headers.

    Here it is decided, for all of them, in which envelope: those who call /v1 read OpenAI's.
    """
    if path == _WIRES or path.startswith(f"{_WIRES}/"):
        return wire_errors.refusal(error, request_id)
    status = status_of(error)
    headers = {"Content-Type": "application/json"}
    if (wait := retry_after(error)) is not None and status in {429, 503}:
        headers["Retry-After"] = str(wait)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    problem = problem_of(error, request_id=request_id)
    if problem.error.code == INTERNAL:
        status = 500
    return status, encode(problem), headers


def _is_news(error: Exception) -> bool:
    """Whether the log is to have the words of an error that clients do not get.

    The reason of a turn was logged when the turn ended, and that the store is away when its circuit opened.
    """
    return hides(error) and not isinstance(error, TurnFailed) and not StoreUnavailable.store_away.made(error)


def _caller(services: Services, path: str, headers: Headers) -> ApiKey | None:
    """Who is calling. Raises `Unauthorized`, also for a web page where nothing but the address keeps strangers out."""
    if path in _OPEN:
        return None
    if services.keyring is not None:
        return services.keyring.check(headers.get("authorization"))
    _check_origin(services, headers)
    return None


def _is_known(services: Services, key: ApiKey | None, authorization: str | None) -> bool:
    """Whether the key that a call came with still opens the same tenant. Keys of every role may read its streams."""
    if key is None or services.keyring is None:
        return True
    try:
        return services.keyring.check(authorization).tenant == key.tenant
    except Unauthorized:
        return False


def _who(scope: Scope) -> dict[str, str | None]:
    """Whose request it was, for the log."""
    key: ApiKey | None = scope.get("forkpoint.key")
    return {"tenant": scope.get("forkpoint.tenant")} | ({} if key is None else {"key": key.name})


def _check_origin(services: Services, headers: Headers) -> None:
    """Without keys, a web page of a stranger must not reach this server through the user's own browser.

    Browsers say where a page is from; and by which name they call, which a page's owner can point at loopback.
    """
    origin, host = headers.get("origin"), headers.get("host", "").lower()
    allowed, name = services.settings.cors_origins, _name_in(host)
    if not is_loopback_name(name) and name not in services.settings.hosts:
        raise Unauthorized.foreign_origin(host)
    own = {f"http://{host}", f"https://{host}"}
    if origin is not None and "*" not in allowed and origin not in allowed and origin.lower() not in own:
        raise Unauthorized.foreign_origin(origin)


def _name_in(host: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _limited(receive: Receive, headers: Headers, most: int) -> Receive:
    """The request's body, refused once it is too large."""
    said = headers.get("content-length", "")
    if said.isdigit() and int(said) > most:
        raise TooLarge("request", int(said), most)
    read, more = 0, True

    async def limited() -> Message:
        nonlocal read, more
        try:
            async with asyncio.timeout(SLOWEST_BODY if more else None):
                message = await receive()
        except TimeoutError:
            raise TooSlow("body", SLOWEST_BODY) from None
        if message["type"] == "http.request":
            more = message.get("more_body", False)
            read += len(message.get("body", b""))
            if read > most:
                raise TooLarge("request", read, most)
        return message

    return limited
