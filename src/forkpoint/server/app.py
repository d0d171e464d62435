"""The app: all parts of a server put together. Tests: tests/server/test_openapi.py."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from forkpoint.errors import BadRequest, ForkpointError, Invalid, NotFound
from forkpoint.llm.call import Models
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.api import (
    branches,
    budgets,
    conversations,
    copies,
    erasures,
    events,
    inspection,
    operations,
    standing_approvals,
    sub_agents,
    turns,
)
from forkpoint.server.collector import CollectionLoop
from forkpoint.server.http.breaker import Breaker
from forkpoint.server.http.call import JSON
from forkpoint.server.http.door import GONE, Door, refusal
from forkpoint.server.http.keys import Keyring
from forkpoint.server.http.metrics import Metrics
from forkpoint.server.http.openapi import document as openapi
from forkpoint.server.http.stored_keys import StoredKeys
from forkpoint.server.http.tenants import Tenants
from forkpoint.server.http.timed_store import timed
from forkpoint.server.live.feed import encode
from forkpoint.server.live.relay import Relay
from forkpoint.server.live.runs import Turns
from forkpoint.server.live.watch import Watching
from forkpoint.server.orphans import OrphanLoop
from forkpoint.server.services import Services
from forkpoint.server.settings import ServerSettings
from forkpoint.server.wires.chat import route
from forkpoint.server.wires.chat.service import ChatService
from forkpoint.server.wires.responses import conversation_route, response_route, socket
from forkpoint.server.wires.responses.service import ResponsesService
from forkpoint.server.witnesses import Witnesses
from forkpoint.store import Store
from forkpoint.version import __version__

FAMILIES = (
    conversations.calls,
    turns.calls,
    standing_approvals.calls,
    events.calls,
    branches.calls,
    budgets.calls,
    erasures.calls,
    sub_agents.calls,
    inspection.calls,
    copies.calls,
    route.calls,
    response_route.calls,
    conversation_route.calls,
    operations.calls,
)

# What web pages may send and read, besides the headers that name conversations. Browsers refuse a request for one
# header that is not listed, so here are all that OpenAI's own package for JavaScript has.
_ASKED = (
    *("Authorization", "Content-Type", "Idempotency-Key", "If-Match", "Last-Event-ID", "Prefer"),
    *("User-Agent", "X-Request-Id", "traceparent"),
    *("X-Conversation-Create", "X-Conversation-History", "X-Conversation-Side", "X-Fork-From"),
    *("OpenAI-Organization", "OpenAI-Project"),
    *("X-Stainless-Arch", "X-Stainless-Helper-Method", "X-Stainless-Lang", "X-Stainless-OS"),
    *("X-Stainless-Package-Version", "X-Stainless-Retry-Count", "X-Stainless-Runtime"),
    *("X-Stainless-Runtime-Version", "X-Stainless-Timeout"),
)
_SAID = (
    *("ETag", "Location", "Preference-Applied", "Retry-After", "X-Request-Id"),
    *("X-Conversation-Status", "X-Conversation-Branch", "X-Turn-Id", "X-Ignored-Fields", "X-Should-Retry"),
)


def create_app(
    store: Store,
    agents: Catalog,
    *,
    keyring: Keyring | None = None,
    settings: ServerSettings = ServerSettings(),
    models: Models | None = None,
) -> FastAPI:
    """A server on an open store, which it closes when it stops. ``app.state.services`` are its parts.

    Without a ``keyring`` everybody who reaches it is the default tenant: listen on loopback only.
    """
    if keyring is not None:  # one of several tenants cannot take everything
        settings = _shared_out(settings)
    metrics = Metrics()
    breaker = Breaker(settings.max_waiting, metrics.circuit)
    counted = timed(store, metrics.store, breaker.guarded)
    watching = Watching(settings, counted, metrics)
    turns_here = Turns(settings, watching, metrics)
    relay = Relay(counted, watching, turns_here.feed)
    tenants = Tenants(counted, models, settings.request_timeout, watching.knows, turns_here.beside)
    witnesses = Witnesses(settings, counted, metrics)
    services = Services(
        settings=settings,
        agents=agents,
        keyring=keyring,
        tenants=tenants,
        turns=turns_here,
        watching=watching,
        metrics=metrics,
        breaker=breaker,
        chat=ChatService(agents, tenants, settings),
        responses=ResponsesService(),
        collector=CollectionLoop(counted, settings.collect_every, metrics.collected),
        orphans=OrphanLoop(settings, counted, agents, tenants, turns_here, metrics),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for folder in settings.trust:
            await tenants.shared.trust(None, folder, True)
        looking = [
            asyncio.create_task(watching.poll()),
            asyncio.create_task(relay.run()),
            asyncio.create_task(services.chat.sweep()),
            asyncio.create_task(services.collector.run()),
            asyncio.create_task(services.orphans.run()),
            asyncio.create_task(tenants.end_turns()),
            asyncio.create_task(witnesses.watch()),
            asyncio.create_task(breaker.probe(store)),
        ]
        stored = [one for one in keyring.sources if isinstance(one, StoredKeys)] if keyring is not None else []
        looking += [asyncio.create_task(keys.watch(counted)) for keys in stored]
        try:
            yield
        finally:
            await stop(services, grace=0)
            for task in looking:
                task.cancel()
            await asyncio.gather(*looking, return_exceptions=True)
            await services.chat.stop()
            await witnesses.tell()
            await services.tenants.close()

    app = FastAPI(
        title="Forkpoint", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None
    )
    app.router.redirect_slashes = False
    app.state.services = services
    for family in FAMILIES:
        app.router.routes.extend(family.router.routes)  # as they are: including a router would build each anew
    app.add_exception_handler(HTTPException, _framework)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(ClientDisconnect, _gone)
    described: list[bytes] = []

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi_json() -> Response:
        """What all calls take and give."""
        if not described:
            described.append(encode(openapi.document(app, FAMILIES)))
        return Response(described[0], media_type=JSON)

    app.add_middleware(Door, services=lambda: services, sockets={socket.PATH: socket.serve})
    if settings.cors_origins:
        named = [header.name for header in settings.conversation_headers]
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=[*_ASKED, *named],
            expose_headers=[*_SAID, *named],
        )
    return app


def _shared_out(settings: ServerSettings) -> ServerSettings:
    """The settings with a share for each tenant: a quarter, unless the settings have one."""
    turns, streams = settings.max_turns_per_tenant, settings.max_streams_per_tenant
    return replace(
        settings,
        max_turns_per_tenant=max(settings.max_turns // 4, 1) if turns is None else turns,
        max_streams_per_tenant=max(settings.max_streams // 4, 1) if streams is None else streams,
    )


async def stop(services: Services, grace: float) -> None:
    """Begins nothing more, lets what runs finish within the grace time, and hands over what does not."""
    services.responses.stop()
    await services.turns.drain(grace)
    services.watching.close()
    await services.tenants.stop()
    await services.turns.ended()


async def _framework(request: Request, error: Exception) -> Response:
    """What the framework refuses by itself, in our own envelope."""
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path[:200]
    if error.status_code == 404:
        return _refused(request, NotFound.no_such_call(method, path))
    if error.status_code == 405:
        methods = {one for family in FAMILIES for one in family.methods(request.scope)} or {"GET"}  # /openapi.json
        return _refused(request, NotFound.method_not_allowed(method, path), {"Allow": ", ".join(sorted(methods))})
    return _refused(request, BadRequest("the server could not read it"))


async def _invalid(request: Request, error: Exception) -> Response:
    """Parameters of the wrong form. What stood there is not repeated."""
    assert isinstance(error, RequestValidationError)
    found: Any = error.errors()[0]
    where = ".".join(str(part) for part in found["loc"][1:]) or "request"
    return _refused(request, Invalid(where, found["msg"]))


async def _gone(request: Request, error: Exception) -> Response:
    """The client went before its request was whole, so nothing was begun. Only the log sees this."""
    return Response(status_code=GONE)


def _refused(request: Request, error: ForkpointError, headers: dict[str, str] | None = None) -> Response:
    status, body, said = refusal(error, request.scope["forkpoint.request_id"], request.scope["path"])
    return Response(body, status, said | (headers or {}))
