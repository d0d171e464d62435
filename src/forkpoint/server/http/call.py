"""One call of the HTTP API: its request, its caller and its answer. And how calls are described.

Each function that answers a call has a description: what the call takes, what it gives, and every error that it can
end in. `openapi` makes the document from the descriptions. Tests: tests/server/test_errors.py.
"""

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.routing import APIRoute
from msgspec import Struct
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from forkpoint.agent.agent import Agent
from forkpoint.backend.allowance import NOTHING, allows, as_allowed, missing_workspace, reopened
from forkpoint.backend.results import Info
from forkpoint.backend.settings import Settings
from forkpoint.engine import Engine
from forkpoint.errors import BadRequest, CannotResume, NoAgent, NotFound, Stale
from forkpoint.server.api.bodies import B, GoesOn, read_body
from forkpoint.server.http.keys import ApiKey, Role
from forkpoint.server.live.feed import encode
from forkpoint.server.live.stream import TYPE
from forkpoint.server.services import Services

JSON = "application/json"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_VERSION = re.compile(r'"((-?[0-9]{1,18})(-[0-9a-f]{16})?)"')


class Description(Struct, frozen=True, kw_only=True):
    """What there is to know about a call."""

    role: Role | None  # the role that a key needs for it; None: the call needs no key
    takes: type | None = None  # its body
    optional: bool = True  # whether the body may be left out
    uploads: str | None = None  # the type of its body, if that is a file
    gives: type | None = None  # None: nothing
    status: int = 200
    also_gives: type | None = None  # with 200 in some cases, where the status mostly is another
    raises: str = ""  # the codes of the errors that it can end in
    streams: str | None = None  # what its event stream is, if it has one
    only_streams: bool = False
    of_family: bool = False  # whether its stream has several conversations
    asynchronous: bool = False  # whether it may be answered before it is done
    once: bool = False  # whether it takes an Idempotency-Key
    if_match: bool = False
    cursor: bool = False  # whether it takes Last-Event-ID
    locates: bool = False  # whether its answer has a Location
    tags: bool = False  # whether its answer has an ETag
    texts: tuple[str, ...] = ()  # the types of its answer, if that is plain text
    openai: bool = False  # whether it refuses in OpenAI's envelope
    chunks: type | None = None  # the type of the frames of its stream, if they are not updates of a turn
    named_chunks: bool = False  # whether these frames have event names; without names a stream ends with `[DONE]`
    asks: tuple[tuple[str, str, str | None], ...] = ()  # further headers that it takes: name, meaning, pattern
    says: tuple[tuple[str, str, bool], ...] = ()  # headers that its answer may have: name, meaning, also in a refusal


class Answers(Protocol):
    """A function that answers a call."""

    __name__: str

    def __call__(self, *args: Any, **kwargs: Any) -> Awaitable[Response]: ...


F = TypeVar("F", bound=Answers)


class Calls:
    """A family of calls."""

    def __init__(self, family: str, under: str = "") -> None:
        self._under = under  # what the paths of its calls begin with
        self.router = APIRouter(tags=[family])
        self.described: dict[str, Description] = {}  # by the name of the function

    def __call__(self, method: str, path: str, **description: Any) -> Callable[[F], F]:
        """Makes a function answer a call, and keeps the description. The function's docstring is the call's."""

        def add(function: F) -> F:
            described = self.described[function.__name__] = Description(**description)
            self.router.add_api_route(
                self._under + path,
                function,
                methods=[method],
                operation_id=function.__name__,
                status_code=described.status,
                response_class=Response,
                response_model=None,
                openapi_extra=None if described.role is None else {"x-role": described.role},
            )
            route = self.router.routes[-1]
            if described.role is not None and isinstance(route, APIRoute):
                route.app = _guarded(route.app, described.role, takes_match=described.if_match)
            return function

        return add

    def methods(self, scope: Scope) -> set[str]:
        """The methods of its calls at the path of a request."""
        here = [route for route in self.router.routes if isinstance(route, APIRoute)]
        return {method for route in here if route.matches(scope)[0] != Match.NONE for method in route.methods or ()}


def _guarded(app: ASGIApp, role: Role, *, takes_match: bool) -> ASGIApp:
    """A call that only keys with this role reach. Nothing of the request was read before it is refused.

    A condition that the call cannot keep is refused too: whoever sends If-Match must not think that it held.

    Without a key there is nobody but the owner of the server, who may do everything: the door has seen to that.
    """

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        key: ApiKey | None = scope["forkpoint.key"]
        if key is not None:
            key.check_role(role)
        if not takes_match and any(name == b"if-match" and value.strip() != b"*" for name, value in scope["headers"]):
            raise BadRequest("this call takes no If-Match, and would not keep it; leave the header out")
        await app(scope, receive, send)

    return guarded


class ApiCall:
    """A request, with what all calls need to know of it."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.services: Services = request.app.state.services
        self.tenant: str = request.scope["forkpoint.tenant"]
        self.id: str = request.scope["forkpoint.request_id"]
        self.names: dict[str, str] = request.scope["forkpoint.names"]  # of conversations, for messages

    def check_role(self, needed: Role) -> None:
        """Raises `Forbidden` unless the caller's key has this role: for a part of a call that needs more than the call
        itself."""
        key: ApiKey | None = self.request.scope["forkpoint.key"]
        if key is not None:
            key.check_role(needed)

    def by(self, said: str | None) -> str | None:
        """Who decides something: what the client says, and never instead of its key. ``ann (key ci)``, or ``ci``."""
        key: ApiKey | None = self.request.scope["forkpoint.key"]
        if key is None:
            return said
        return f"{said} (key {key.name})" if said else key.name

    @property
    def backend(self) -> Engine:
        """The engine of the caller's tenant."""
        return self.services.tenants.backend(self.tenant)

    async def raw_body(self) -> bytes:
        """The body of the request as it came. Raises `BadRequest` if it is compressed."""
        encoding = self.request.headers.get("content-encoding", "").strip().lower()
        if encoding not in {"", "identity"}:
            raise BadRequest.encoded_body(encoding[:100])
        return await self.request.body()

    async def body(self, type: type[B]) -> B:
        """The body of the request. Raises `BadRequest` or `Invalid`."""
        body = await self.raw_body()
        sort = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if body and sort != JSON:  # a web page of anybody can send other types here without being asked
            raise BadRequest(f"its Content-Type must be {JSON}")
        return read_body(type, body)

    @property
    def key(self) -> str | None:
        """The idempotency key."""
        given = self.request.headers.get("idempotency-key")
        if given is not None and not _KEY.fullmatch(given):
            raise BadRequest("its Idempotency-Key must have 1 to 255 printable characters")
        return given

    @property
    def if_revision(self) -> int | None:
        """The revision that the conversation must be at. Title, tags and status may be others than its ETag says."""
        found = self._if_match
        return None if found is None else int(found[2])

    def check_version(self, info: Info) -> Info | None:
        """The conversation, if the request wants it to be as it was read. Raises `Stale` if it is otherwise."""
        if (found := self._if_match) is None:
            return None
        expected: int | str = found[1] if found[3] else int(found[2])  # a revision alone says nothing of the rest
        if expected != (actual := info.version if found[3] else info.revision):
            raise Stale(info.id, expected, actual)
        return info

    @property
    def _if_match(self) -> re.Match[str] | None:
        given = self.request.headers.get("if-match", "*").strip()
        if given == "*":
            return None
        if (found := _VERSION.fullmatch(given)) is None:
            raise BadRequest('its If-Match must be the ETag of an earlier answer, a revision such as "3", or *')
        return found

    @property
    def wants_stream(self) -> bool:
        return TYPE in ",".join(self.request.headers.getlist("accept"))  # it may come in several lines

    @property
    def wants_async(self) -> bool:
        return "respond-async" in self.request.headers.get("prefer", "")

    async def found(self, id: str) -> tuple[Info, Settings]:
        """The conversation with this id or name, and its settings. Raises `NotFound`."""
        info, settings = await self.backend.find(id)
        if id != info.id and await self.backend.placement.is_abandoned(info.id):
            raise NotFound("conversation", id)
        self.names[info.id] = info.name
        return info, settings

    def agent_of(self, info: Info, settings: Settings, allow: frozenset[str] = NOTHING) -> Agent:
        """The agent of a conversation. Raises `NoAgent` or `CannotResume`."""
        if settings.agent_json is None:
            raise NoAgent(info.id, "it was made without an agent")
        try:
            return self.services.agents.bound(settings.agent_json)
        except CannotResume:
            if not allow:
                raise
        return self.services.agents.bound_without(settings.agent_json, partial(allows, allow))

    def going_on(self, info: Info, settings: Settings, body: GoesOn) -> tuple[Agent, frozenset[str]]:
        """The agent that answers in a conversation from here on, and what may be missing of it.

        Raises as `agent_of`; the error lists everything that is missing.
        """
        allow = as_allowed(body.allow, "a request")
        model = None if body.agent is None else self.agent_given(body.agent).llm
        if model is None and not missing_workspace(settings):
            return self.agent_of(info, settings, allow), allow
        if (agent := reopened(settings, self.services.agents.bound_without, allow, model=model).agent) is None:
            raise NoAgent(info.id, "it was made without an agent")
        return agent, allow

    def agent_given(self, given: str | dict[str, Any] | None) -> Agent:
        """The agent that a body names or sends; the server's default if it says nothing."""
        agents = self.services.agents
        return agents.named(agents.default) if given is None else agents.received(encode(given))


async def call_of(request: Request) -> ApiCall:
    return ApiCall(request)


CallMade: TypeAlias = Annotated[ApiCall, Depends(call_of)]
Conversation: TypeAlias = Annotated[
    str, Path(description="A conversation's id or name.", examples=["build-1234"], max_length=256)
]
Turn: TypeAlias = Annotated[str, Path(description="A turn's id.", max_length=64)]


def answer(document: object, status: int = 200, **headers: str) -> Response:
    """A document as the answer to a call."""
    said = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(encode(document), status, said, media_type=JSON)


def etag(info: Info) -> str:
    """What an answer says of the conversation that it shows: its revision, and a digest of the rest."""
    return f'"{info.version}"'
