"""Operations: whether it lives, whether it is ready, and what it counts.
Tests: tests/server/test_errors.py, test_shutdown.py."""

from typing import Literal

from fastapi import Request, Response
from msgspec import Struct

from forkpoint.errors import NotFound, ShuttingDown
from forkpoint.server.http.address import is_loopback_address
from forkpoint.server.http.call import Calls, answer
from forkpoint.server.services import Services
from forkpoint.version import __version__

calls = Calls("operations")


class Health(Struct, frozen=True):
    """A process that lives."""

    status: Literal["ok"]
    version: str


class Ready(Struct, frozen=True):
    """A server that can serve."""

    status: Literal["ready"]


@calls("GET", "/health", role=None, gives=Health)
async def health() -> Response:
    """Says that the process lives."""
    return answer(Health("ok", __version__))


@calls("GET", "/ready", role=None, gives=Ready, raises="shutting_down store_unavailable store_away")
async def ready(request: Request) -> Response:
    """Says that it can serve: the store answers, in the format that it should have, and it is not stopping."""
    services: Services = request.app.state.services
    if services.turns.draining:
        raise ShuttingDown()
    services.breaker.check()
    await services.tenants.store.pulse()
    return answer(Ready("ready"))


@calls("GET", "/metrics", role=None, texts=("text/plain", "application/openmetrics-text"), raises="no_such_call")
async def metrics(request: Request) -> Response:
    """What it counts, for Prometheus."""
    services: Services = request.app.state.services
    allowed = services.settings.metrics
    is_near = request.client is None or is_loopback_address(request.client.host)
    if allowed == "off" or (allowed == "loopback" and not is_near):
        raise NotFound.no_such_call("GET", "/metrics")
    body, sort = services.metrics.render(",".join(request.headers.getlist("accept")))
    return Response(body, media_type=sort)
