"""The connection to a server: requests that are sent, sent again where that is safe, and answers that are understood.

A connection may break at any point, so every call says whether it may be sent twice. What was never received may
always be sent again. A server that asks to come back later is asked later. All of that ends: after `PATIENCE` seconds
without a sign of life, `ServerUnreachable` is raised.
Tests: tests/remote/test_backend.py, tests/conversation/test_strange_servers.py.
"""

import hashlib
import os
import random
import re
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, TypeAlias, TypeVar, overload
from urllib.parse import quote, urlsplit
from urllib.request import getproxies

import anyio
import httpx2
import msgspec
from msgspec import Struct

from forkpoint.errors import (
    BadKeys,
    ForkpointError,
    NotFound,
    NotWhole,
    ServerUnreachable,
    ShuttingDown,
    StoreUnavailable,
    TooMany,
)
from forkpoint.llm.key import Key
from forkpoint.polling import pauses
from forkpoint.remote.addresses import KEY, server_url
from forkpoint.sse import Frame, frames
from forkpoint.store.checks import check_size
from forkpoint.store.values import StoreLimits
from forkpoint.wire.problems import Problem, decode_problem, error_of

PATIENCE = 30.0
"""Seconds that a server which was reached before may be out of reach."""
AT_FIRST = 1.0
"""The same for one that never was: its address is more likely wrong."""
HEARTBEAT = 15.0
"""Seconds after which a server says in a stream that it is still there."""

EXPORT = "application/x-ndjson"
"""The type of an export that can be imported."""

_CONNECT, _READ = 10.0, 60.0
_PAUSES = 0.1, 5.0  # seconds between two tries, at first and at most
_KEPT = 3.0  # seconds that an idle connection is kept: less than servers do, so that none is closed as it is used
_KEY = re.compile(r"[\x21-\x7e]{1,255}")  # an idempotency key that a header can hold
_LEFT = 1.0  # seconds that a stream has to end once all was said
_AWAY = {StoreUnavailable.code, StoreUnavailable.store_away.code}  # the server's store, and it comes back by itself
_PASSING = {502, 503, 504}  # what stands before the server says that it is away

D = TypeVar("D")
T = TypeVar("T")
Query: TypeAlias = Sequence[tuple[str, str]]


class ServerRequest(Struct, frozen=True, kw_only=True):
    """What is asked of a server."""

    method: str
    path: str  # below the server's address, quoted
    query: Query = ()
    body: Any = None  # as JSON
    upload: AsyncIterator[bytes] | None = None  # a body that is sent piece by piece, once, instead of one as JSON
    accepts: Collection[str] = ("application/json", "text/event-stream")  # the types of an answer that is understood
    key: str | None = None  # that makes it happen once
    revision: int | str | None = None  # that the conversation must be at; or `Info.version`, which says more
    headers: Mapping[str, str] = {}
    read: float | None = _READ  # seconds between two signs of life


class Delivery:
    """How far a request got. ``received``: the server may have it, however little came back."""

    received = False
    repeated = False  # it was sent again although the server may have had it


class Lost(Exception):
    """The connection broke, or the server asks to come again. ``error`` is raised if patience ends.

    ``refused``: the server said that it has begun nothing.
    """

    def __init__(self, error: ForkpointError, *, after: float | None = None, refused: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.after = after
        self.refused = refused


class ServerConnection:
    """A server, by its address. Opens what it needs when it is first asked for something."""

    def __init__(self, url: str, *, patience: float | None = None) -> None:
        self.url = server_url(url)
        self._patience = PATIENCE if patience is None else patience
        self._at_first = min(AT_FIRST, self._patience)
        self._reached = False
        key = api_key(self.url)
        headers = {"user-agent": "forkpoint", "accept": "application/json"}
        self._client = httpx2.AsyncClient(
            headers=headers if key is None else headers | {"authorization": f"Bearer {key}"},
            timeout=httpx2.Timeout(_READ, connect=_CONNECT, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=_KEPT),
            follow_redirects=False,  # the key is for this address, and for no other
            verify=self.url.startswith("https:") or bool(getproxies()),  # slow to set up where nobody shows anything
        )

    async def close(self) -> None:
        await self._client.aclose()

    def patience(self) -> "Patience":
        """How long one thing is tried."""
        return Patience(lambda: self._patience if self._reached else self._at_first)

    async def call(self, request: ServerRequest, sending: Delivery | None = None, *, twice: bool = True) -> bytes:
        """The body of the answer. Without ``twice`` it is not sent again once the server may have it."""
        patience = self.patience()
        sending = sending or Delivery()
        while True:
            try:
                async with self.opened(request, sending) as response:
                    return bytes(await response.aread())
            except Lost as lost:
                if sending.received and not twice:
                    raise lost.error from lost.__cause__
                sending.repeated |= sending.received
                await patience.again(lost)

    @overload
    async def read(self, request: ServerRequest, type: type[D], *, twice: bool = True) -> D: ...

    @overload
    async def read(self, request: ServerRequest, type: type[D], of: Callable[[D], T], *, twice: bool = True) -> T: ...

    async def read(self, request: ServerRequest, type: Any, of: Any = None, *, twice: bool = True) -> Any:
        """The answer as what it is to be: a document, or what that is a document of."""
        return self.understood(await self.call(request, twice=twice), type, of)

    @overload
    def understood(self, body: bytes | str, type: type[D], of: None = None) -> D: ...

    @overload
    def understood(self, body: bytes | str, type: type[D], of: Callable[[D], T]) -> T: ...

    def understood(self, body: bytes | str, type: Any, of: Any = None) -> Any:
        """The same of what came. Raises `ServerUnreachable` for what no server says that we understand."""
        try:
            document = msgspec.json.decode(body, type=type)
            return document if of is None else of(document)
        except (ValueError, TypeError, RecursionError, ForkpointError) as error:
            raise self._stranger(f"it sent what this version does not understand: {error}") from None

    def told(self, problem: str) -> ForkpointError:
        """The error that a frame tells of."""
        return self.understood(problem, Problem, error_of)

    @asynccontextmanager
    async def opened(self, request: ServerRequest, sending: Delivery) -> AsyncIterator[httpx2.Response]:
        """The answer, as it comes in. Raises `Lost`, or the very error that the server told of."""

        has_body = request.body is not None or request.upload is not None
        sent = "send_request_body.started" if has_body else "send_request_headers.started"

        async def trace(event: str, _: Mapping[str, Any]) -> None:
            if event.endswith(sent):  # without its body nothing is done
                sending.received = True

        made = self._client.build_request(
            request.method,
            self.url + request.path,
            params=list(request.query) or None,
            content=request.upload if request.body is None else _written(request.body),
            headers=_headers(request),
            timeout=httpx2.Timeout(request.read, connect=_CONNECT, write=_READ, pool=None),
            extensions={"trace": trace},
        )
        before, sending.received = sending.received, False
        try:
            response = await self._client.send(made, stream=True)
            try:
                self._reached = True
                await self._check(response, request.accepts)
                yield response
            finally:
                await response.aclose()
        except httpx2.TransportError as error:
            raise self._broken(error) from error
        except Lost as lost:
            if lost.refused:
                sending.received = False
            raise
        finally:
            sending.received |= before

    async def hear(self, response: httpx2.Response, each: Callable[[Frame], T | None]) -> T:
        """The first thing that ``each`` makes of a frame. Raises `Lost` if the stream ends before that.

        Then it is read to its end, if that is near: so the connection can be used again.
        """
        found: T | None = None
        async with aclosing(frames(response.aiter_bytes())) as stream:
            async for frame in stream:
                if (found := each(frame)) is not None:
                    break
            with anyio.move_on_after(_LEFT), suppress(httpx2.TransportError):
                async for _ in stream:
                    pass
        if found is None:
            raise Lost(ServerUnreachable(self.url, "it ended a stream before its end"))
        return found

    async def _check(self, response: httpx2.Response, accepts: Collection[str]) -> None:
        """Raises what an answer that is no good says."""
        status, kind = response.status_code, response.headers.get("content-type", "nothing").partition(";")[0]
        if status < 300 and (status == 204 or kind in accepts):
            return
        if 300 <= status < 400:
            where = urlsplit(response.headers.get("location", ""))
            raise self._stranger(f"it sends us on to {where.scheme}://{where.hostname}; use that address")
        body = await response.aread() if kind == "application/json" else b""
        try:
            error = error_of(decode_problem(body))
        except (ValueError, TypeError):
            error = self._stranger(f"HTTP {status} with {kind}, and not from a Forkpoint server")
            if status in _PASSING:
                raise Lost(error, after=_seconds(response.headers.get("retry-after"))) from None
        if isinstance(error, TooMany | ShuttingDown):
            after = _seconds(response.headers.get("retry-after"), error.retry_after)
            raise Lost(error, after=after, refused=not ShuttingDown.turn_handed_over.made(error))
        if isinstance(error, StoreUnavailable) and error.code in _AWAY:
            raise Lost(error, after=_seconds(response.headers.get("retry-after")))
        raise error

    def _broken(self, error: Exception) -> Lost | ForkpointError:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLError):  # it will not get better
                return ServerUnreachable(self.url, f"its certificate or its TLS is no good: {cause}")
            cause = cause.__cause__ or cause.__context__
        if isinstance(error, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError):
            return ServerUnreachable(self.url, str(error))
        return Lost(ServerUnreachable(self.url, f"{type(error).__name__}: {error}".rstrip(": ")))

    def _stranger(self, why: str) -> ServerUnreachable:
        return ServerUnreachable(self.url, f"what answers there is no server that we understand: {why}")


class Patience:
    """How long one thing is tried: pauses that grow, with some chance in them, until the time is up."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds  # as they are when the first try was lost
        self._until: float | None = None
        self._pauses = pauses(*_PAUSES)

    def heard(self) -> None:
        """There was a sign of life: patience is new."""
        self._until, self._pauses = None, pauses(*_PAUSES)

    async def again(self, lost: Lost) -> None:
        """Waits before the next try. Raises what was lost if the time is up."""
        now = anyio.current_time()
        if self._until is None:
            self._until = now + self._seconds()
        pause = next(self._pauses) * random.uniform(0.5, 1.0)  # noqa: S311
        if lost.after is not None:
            pause = lost.after
        if now + pause > self._until:
            raise lost.error from lost.__cause__
        await anyio.sleep(pause)


def api_key(url: str) -> str | None:
    """The key for a server, from the environment; None if there is none. Raises `BadKeys`, which never shows it."""
    given = os.environ.get(KEY)
    if given is None:
        return None
    key = given.strip()
    if not key:
        raise BadKeys.bad_api_key(KEY, url, "it is set, but blank")
    if not Key(key).is_sendable:
        raise BadKeys.bad_api_key(KEY, url, "it has characters that no key has")
    return key


def quoted(part: str, what: str = "conversation") -> str:
    """An id or a name as a part of a path. Raises `NotFound` for an empty one, which would be another path."""
    if not part:
        raise NotFound(what, part)
    return quote(part, safe="").replace(".", "%2E") if set(part) <= {"."} else quote(part, safe="")


def _written(body: Any) -> bytes:
    """A body as JSON. Raises `NotWhole` for text that cannot be written, as a store does."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        raise NotWhole("request", "a text in it is not valid Unicode") from None


def _sendable(key: str) -> str:
    """An idempotency key as a header can hold it: one that it cannot hold stands there by its hash.

    Raises `TooLarge` or `NotWhole`, as a store does.
    """
    check_size("idempotency key", key, StoreLimits().title)
    return key if _KEY.fullmatch(key) else f"sha256-{hashlib.sha256(key.encode()).hexdigest()}"


def _headers(request: ServerRequest) -> dict[str, str]:
    headers = dict(request.headers)
    if request.body is not None:
        headers["content-type"] = "application/json"
    elif request.upload is not None:
        headers["content-type"] = EXPORT
    if request.key is not None:
        headers["idempotency-key"] = _sendable(request.key)
    if request.revision is not None:
        headers["if-match"] = f'"{request.revision}"'
    return headers


def _seconds(text: str | None, otherwise: float | None = None) -> float | None:
    try:
        return otherwise if text is None else max(float(text), 0.0)
    except ValueError:  # a date; the next try is soon enough
        return otherwise
