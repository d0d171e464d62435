"""The span of a request: it continues its sender's trace, and the turns that it begins are in it."""

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from forkpoint.server.http.span import extract, request_span

PARENT = (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


def one(spans: InMemorySpanExporter) -> tuple[ReadableSpan, dict[str, Any]]:
    (span,) = spans.get_finished_spans()
    return span, dict(span.attributes or {})


def test_a_request_is_a_server_span_named_by_its_route(spans: InMemorySpanExporter) -> None:
    with request_span("POST", []) as span:
        assert trace.get_current_span().is_recording()
        span.answered("/api/conversations/{id}/turns", 200)
    made, attributes = one(spans)
    assert made.name == "POST /api/conversations/{id}/turns"
    assert made.kind is SpanKind.SERVER
    assert made.parent is None
    assert made.status.status_code is StatusCode.UNSET
    assert attributes == {
        "http.request.method": "POST",
        "http.route": "/api/conversations/{id}/turns",
        "http.response.status_code": 200,
    }
    assert not trace.get_current_span().get_span_context().is_valid


def test_it_continues_the_trace_of_its_sender(spans: InMemorySpanExporter) -> None:
    with request_span("GET", [(b"host", b"x"), PARENT]) as span:
        span.answered("/health", 200)
    made, _ = one(spans)
    assert made.context is not None
    assert format(made.context.trace_id, "032x") == "0af7651916cd43dd8448eb211c80319c"
    assert made.parent is not None
    assert format(made.parent.span_id, "016x") == "b7ad6b7169203331"


@pytest.mark.parametrize("header", [b"", b"nonsense", b"00-0-0-0", b"\xff\xfe" * 500])
def test_a_header_that_makes_no_sense_begins_a_trace(spans: InMemorySpanExporter, header: bytes) -> None:
    with request_span("GET", [(b"traceparent", header)]) as span:
        span.answered("/health", 200)
    assert one(spans)[0].parent is None


def test_names_stay_bounded_whatever_is_sent(spans: InMemorySpanExporter) -> None:
    with request_span("BREW", []) as span:
        span.answered(None, 404)
    made, attributes = one(spans)
    assert made.name == "HTTP"
    assert attributes == {"http.request.method": "_OTHER", "http.response.status_code": 404}
    assert made.status.status_code is StatusCode.UNSET, "a client's mistake is no error of the server"


def test_what_the_server_did_wrong_is_an_error(spans: InMemorySpanExporter) -> None:
    with request_span("GET", []) as span:
        span.answered("/ready", 503)
    made, attributes = one(spans)
    assert made.status.status_code is StatusCode.ERROR
    assert attributes["error.type"] == "503"


def break_off() -> None:
    with request_span("GET", []):
        raise RuntimeError("a secret detail")


def test_a_request_that_breaks_off_ends_its_span_and_shows_no_more_than_the_kind(spans: InMemorySpanExporter) -> None:
    with pytest.raises(RuntimeError):
        break_off()
    made, attributes = one(spans)
    assert made.status.status_code is StatusCode.ERROR
    assert attributes["error.type"] == "RuntimeError"
    assert "a secret detail" not in made.to_json()


def test_without_a_provider_it_costs_nothing_and_does_nothing() -> None:
    with request_span("GET", [PARENT]) as span:
        span.answered("/health", 200)
    assert extract([PARENT]) is not None
