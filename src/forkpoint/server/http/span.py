"""The span of a request. It continues the client's trace, and the spans of the request's turns are its children."""

import logging
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from forkpoint.engine import tracer_in_use
from forkpoint.server.http.metrics import METHODS

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

_log = logging.getLogger("forkpoint.server")


class RequestSpan:
    """The span of a request. Its methods never raise."""

    def __init__(self, method: str, span: "Span | None") -> None:
        self._method = method
        self._span = span

    def answered(self, route: str | None, status: int) -> None:
        """The request was answered. ``route`` is the template that it matched, None if it matched none."""
        if self._span is None or not self._span.is_recording():
            return
        from opentelemetry.trace import StatusCode

        if route is not None:
            self._span.update_name(f"{_spoken(self._method)} {route}")
            self._span.set_attribute("http.route", route)
        self._span.set_attribute("http.response.status_code", status)
        if status >= 500:  # what a client did wrong is no error of the server
            self._span.set_attribute("error.type", str(status))
            self._span.set_status(StatusCode.ERROR)


@contextmanager
def request_span(method: str, headers: Iterable[tuple[bytes, bytes]]) -> Generator[RequestSpan]:
    """The span of a request with these headers (as ASGI has them), current until the end of its answer.

    ``with request_span(method, scope["headers"]) as span: ...; span.answered(route, status)``. Costs next to nothing
    if nobody traces.
    """
    tracer = tracer_in_use()
    if tracer is None:
        yield RequestSpan(method, None)
        return
    from opentelemetry import context, trace

    known = method if method in METHODS else "_OTHER"
    span = tracer.start_span(_spoken(method), extract(headers), trace.SpanKind.SERVER, {"http.request.method": known})
    before = context.attach(trace.set_span_in_context(span))
    try:
        yield RequestSpan(method, span)
    except BaseException as error:
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(trace.StatusCode.ERROR)
        raise
    finally:
        span.end()
        context.detach(before)


def extract(headers: Iterable[tuple[bytes, bytes]]) -> "Context | None":
    """The context that a sender's headers name (``traceparent``), as the program's propagators read it."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry.propagate import extract

    carrier = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
    try:
        return extract(carrier)
    except Exception:
        _log.exception("the trace of a request could not be read")
        return None


def _spoken(method: str) -> str:
    return method if method in METHODS else "HTTP"
