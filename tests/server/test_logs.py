"""Logs: whose request it was, in one line, without secrets."""

import io
import json
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from _pytest.logging import LogCaptureHandler
from opentelemetry.sdk.trace import TracerProvider

from forkpoint.masking import HiddenInLogs, masked
from forkpoint.server.http.logs import Format, JsonLines, bind, bound, configure

pytestmark = pytest.mark.anyio

LOGGERS = ("", "forkpoint", "uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi", "openai")


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    """What is logged; afterwards logging is as it was."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger, logger.level, logger.propagate, logger.handlers[:]) for logger in loggers]
    captured = [handler for handler in logging.getLogger().handlers if isinstance(handler, LogCaptureHandler)]
    for handler in captured:  # its own copy could not be sent from one of pytest's processes to another
        handler.setLevel(logging.CRITICAL + 1)
    yield io.StringIO()
    for handler in captured:
        handler.setLevel(logging.NOTSET)
    for logger, level, propagate, handlers in before:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers


def lines(output: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.getvalue().splitlines()]


log = logging.getLogger("forkpoint.server")


def test_a_line_says_when_where_and_what(output: io.StringIO) -> None:
    configure("info", stream=output)
    log.info("%s began", "it", extra={"fields": {"status": 200, "seconds": 0.5, "route": "/x"}})
    log.debug("too fine")
    (line,) = lines(output)
    then = datetime.fromisoformat(line.pop("time"))
    assert then.tzinfo == UTC
    assert datetime.now(UTC) - then < timedelta(minutes=1)
    assert line == {
        "level": "info",
        "logger": "forkpoint.server",
        "message": "it began",
        "status": 200,
        "seconds": 0.5,
        "route": "/x",
    }


async def test_names_stand_on_what_is_logged_in_this_task_and_those_that_it_starts(output: io.StringIO) -> None:
    configure(stream=output)

    async def request(id: str, tenant: str) -> None:
        with bind(request_id=id):
            bind(tenant=tenant)  # known later, and for the rest of the request
            await anyio.lowlevel.checkpoint()
            async with anyio.create_task_group() as inner:
                inner.start_soon(turn, id)
            log.info("answered %s", id)
        assert bound() == {}

    async def turn(id: str) -> None:
        with bind(conversation="c", turn=f"turn of {id}"):
            await anyio.lowlevel.checkpoint()
            log.info("ran %s", id)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(request, "1", "red")
        tasks.start_soon(request, "2", "blue")
    named = {line["message"]: {k: v for k, v in line.items() if k in BOUND} for line in lines(output)}
    assert named == {
        "ran 1": {"request_id": "1", "tenant": "red", "conversation": "c", "turn": "turn of 1"},
        "ran 2": {"request_id": "2", "tenant": "blue", "conversation": "c", "turn": "turn of 2"},
        "answered 1": {"request_id": "1", "tenant": "red"},
        "answered 2": {"request_id": "2", "tenant": "blue"},
    }


BOUND = ("request_id", "tenant", "conversation", "turn")


@pytest.mark.parametrize("format", ["json", "text"])
def test_an_exception_is_logged_with_its_kind_and_its_stack(output: io.StringIO, format: Format) -> None:
    configure(format=format, stream=output)
    try:
        raise ValueError("no such thing")
    except ValueError:
        log.exception("it broke")
    if format == "json":
        (line,) = lines(output)
        assert line["exception"] == "ValueError"
        assert "test_logs.py" in line["stack"]
        assert line["stack"].endswith("ValueError: no such thing")
    else:
        first, *stack = output.getvalue().splitlines()
        assert first.endswith("ERROR   forkpoint.server: it broke")
        assert all(line.startswith("    | ") for line in stack)
        assert stack[-1] == "    | ValueError: no such thing"


@pytest.mark.parametrize("format", ["json", "text"])
def test_a_stack_in_which_a_secret_was_hidden_is_logged_too(output: io.StringIO, format: Format) -> None:
    configure(format=format, stream=output)
    hidden = HiddenInLogs(lambda text: text.replace("thing", "***"))
    log.addFilter(hidden)
    try:
        raise ValueError("no such thing")
    except ValueError:
        log.exception("it broke")
    finally:
        log.removeFilter(hidden)
    said = lines(output)[0]["stack"] if format == "json" else output.getvalue()
    assert "test_logs.py" in said
    assert said.strip().endswith("ValueError: no such ***")


FORGED = 'x\n{"level": "info", "message": "forged"}\r\n\x1b[2J\u2028y\u202ez\x85\x00\ud800'


@pytest.mark.parametrize("format", ["json", "text"])
def test_nothing_that_a_client_sends_can_forge_a_line(output: io.StringIO, format: Format) -> None:
    configure(format=format, stream=output)
    with bind(request_id=FORGED, tenant=FORGED):
        log.info("said %s", FORGED, extra={"fields": {"path": FORGED}})
    written = output.getvalue()
    assert written.endswith("\n")
    assert len(written.splitlines()) == 1
    assert written[:-1].isprintable()
    written.encode()
    if format == "json":
        (line,) = lines(output)
        assert line["message"] == f"said {FORGED}"
        assert line["request_id"] == line["tenant"] == line["path"] == FORGED


def test_an_exceptions_text_cannot_forge_a_line_either(output: io.StringIO) -> None:
    configure(format="text", stream=output)
    try:
        raise ValueError("x\n2026-01-01T00:00:00Z INFO forkpoint: forged \x1b[31m")
    except ValueError:
        log.exception("it broke")
    _, *rest = output.getvalue().splitlines()
    assert all(line.startswith("    | ") and line.isprintable() for line in rest)
    assert any("forged" in line for line in rest)


KEY = "fp_0123456789_abcdefABCDEF-xyz"
PROVIDERS = "sk-ant-api03-AbCdEf_0123456789"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"Authorization: Bearer {KEY}", "Authorization: ***"),
        ("authorization: Basic dXNlcjpwYXNzd29yZA==", "authorization: ***"),
        ("{'Authorization': 'Bearer abc.def.ghi', 'x': 1}", "{'Authorization': '***', 'x': 1}"),
        ("[(b'authorization', b'Bearer abc'), (b'host', b'h')]", "[(b'authorization', b'***'), (b'host', b'h')]"),
        ("x-api-key: short", "x-api-key: ***"),
        ("api_key=topsecret, model=m", "api_key=***, model=m"),
        ("Cookie: session=abcdef; other=ghijkl", "Cookie: ***"),
        (f"key {KEY}.", "key fp_***."),
        (
            f"the provider said: Incorrect API key provided: {PROVIDERS}",
            "the provider said: Incorrect API key provided: sk-***",
        ),
        ("sent with bearer abcdefgh12345678", "sent with bearer ***"),
        ("postgresql://me:hunter2@host/db", "postgresql://me:***@host/db"),
        ("used AKIAIOSFODNN7EXAMPLE here", "used AKIA*** here"),
        ("with xoxe-0123456789ab and ghu_0123456789ab", "with xoxe-*** and ghu_***"),
        (
            "key: -----BEGIN EC PRIVATE KEY-----\nMHcCAQ-EE\n-----END EC PRIVATE KEY----- or so",
            "key: -----BEGIN EC PRIVATE KEY-----***-----END EC PRIVATE KEY----- or so",
        ),
        ("cut: -----BEGIN PRIVATE KEY-----\nMHcCAQ", "cut: -----BEGIN PRIVATE KEY-----***"),
        ("AKIANO and Asiatic words", None),
        ("GET /api/conversations?limit=5 in task-management-system", None),
        ("https://host:8008/api and risk-assessment-table", None),
    ],
)
def test_what_looks_like_a_secret_is_masked_and_the_rest_stays(text: str, shown: str | None) -> None:
    assert masked(text) == (text if shown is None else shown)


@pytest.mark.parametrize("format", ["json", "text"])
def test_no_part_of_a_line_shows_a_key(output: io.StringIO, format: Format) -> None:
    configure(format=format, stream=output)
    with bind(request_id=KEY):
        try:
            raise ValueError(f"bad key {PROVIDERS}")
        except ValueError:
            log.exception("%s", KEY, extra={"fields": {"header": KEY}})
    assert "abcdefABCDEF" not in output.getvalue()
    assert "AbCdEf" not in output.getvalue()
    assert output.getvalue().count("fp_***") == 3


def test_masking_a_long_message_takes_no_time_to_speak_of() -> None:
    for text in (
        "authorization:" + " " * 200_000,
        "authorization" * 20_000,
        "://" * 100_000,
        "bearer " * 50_000,
        "-----BEGIN PRIVATE KEY-----" * 9000,
    ):
        started = datetime.now(UTC)
        masked(text)
        assert datetime.now(UTC) - started < timedelta(seconds=5)


def test_uvicorns_logs_go_the_same_way(output: io.StringIO) -> None:
    other = io.StringIO()
    for name in ("uvicorn", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.addHandler(logging.StreamHandler(other))
        logger.propagate = False
    configure(stream=output)
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7, extra={"color_message": "\x1b[1mx"})
    logging.getLogger("uvicorn.access").info('%s - "%s %s HTTP/%s" %d', "1.2.3.4:5", "GET", "/x", "1.1", 200)
    assert [line["message"] for line in lines(output)] == [
        "Started server process [7]",
        '1.2.3.4:5 - "GET /x HTTP/1.1" 200',
    ]
    assert other.getvalue() == ""


def test_others_are_heard_from_warnings_on_since_model_sdks_log_prompts(output: io.StringIO) -> None:
    configure("debug", stream=output)
    logging.getLogger("openai").debug("Request options: the prompt")
    logging.getLogger("openai").warning("trying again")
    log.debug("ours")
    assert [line["message"] for line in lines(output)] == ["trying again", "ours"]


def test_configured_again_each_thing_is_still_said_once(output: io.StringIO) -> None:
    configure(stream=io.StringIO())
    configure(format="text", stream=output)
    log.warning("once")
    assert re.fullmatch(r"\S+Z WARNING forkpoint.server: once\n", output.getvalue())


def test_a_message_whose_arguments_do_not_fit_is_not_lost() -> None:
    record = logging.LogRecord("forkpoint", logging.INFO, "file", 1, "%d items", ("many",), None)
    assert json.loads(JsonLines().format(record))["message"] == "%d items"


def test_a_line_names_the_trace_that_it_belongs_to(output: io.StringIO) -> None:
    configure(stream=output)
    with TracerProvider(shutdown_on_exit=False).get_tracer("test").start_as_current_span("request") as span:
        log.info("inside")
    log.info("outside")
    inside, outside = lines(output)
    assert inside["trace_id"] == format(span.get_span_context().trace_id, "032x")
    assert inside["span_id"] == format(span.get_span_context().span_id, "016x")
    assert "trace_id" not in outside
