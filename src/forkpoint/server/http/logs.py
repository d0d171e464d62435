"""Logs: one line for each thing that happened, with whose request it was. For machines as JSON, for people as text.

Whatever a message holds, it is one line and shows no secret: control characters are escaped, and keys are masked.
"""

import json
import logging
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal, Self, TextIO, TypeAlias

from forkpoint.masking import masked

Format: TypeAlias = Literal["json", "text"]

_OURS = ("forkpoint", "uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")


def configure(level: str | int = "INFO", format: Format = "json", *, stream: TextIO | None = None) -> None:
    """Sends all logs of this process to standard error, in one format. Done again, it replaces what it did before.

    The level is that of the server's own loggers. Others log warnings and errors: what model SDKs say below that has
    prompts in it. Start uvicorn with ``log_config=None``, for its own would bring its own handlers back.
    """
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, _Handler):
            root.removeHandler(handler)
    handler = _Handler(stream)
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    for name in _OURS:
        logger = logging.getLogger(name)
        logger.setLevel(level.upper() if isinstance(level, str) else level)
        logger.propagate = True
        if name != "forkpoint":
            logger.handlers.clear()


class bind:  # noqa: N801 - it is called like a function, and only then used as a context
    """Puts names on all that is logged from here on, in this task and those that it starts.

    ``with bind(request_id=...):`` takes them off again at its end. Without ``with`` they stay until the task ends, or
    until an outer ``with`` does. What is None is left as it was.
    """

    def __init__(
        self,
        *,
        request_id: str | None = None,
        tenant: str | None = None,
        key: str | None = None,
        conversation: str | None = None,
        turn: str | None = None,
    ) -> None:
        given = {"request_id": request_id, "tenant": tenant, "key": key, "conversation": conversation, "turn": turn}
        said = {name: value for name, value in given.items() if value is not None}
        self._before: Token[Mapping[str, str]] = _bound.set({**_bound.get(), **said})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError):  # it is ended from another task, in whose context it never was
            _bound.reset(self._before)


def bound() -> Mapping[str, str]:
    """The names that stand on what is logged here."""
    return _bound.get()


class JsonLines(logging.Formatter):
    """A record as one JSON object in plain ASCII: whatever it holds, no reader sees two lines.

    ``extra={"fields": {...}}`` adds fields of its own, such as a status and how long a request took.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": masked(_message(record)),
            **{name: _plain(value) for name, value in _names(record).items()},
        }
        if record.exc_info and (kind := record.exc_info[0]) is not None:
            line["exception"] = kind.__name__
        if stack := _stack(self, record):
            line["stack"] = masked(stack)
        return json.dumps(line)


class TextLines(logging.Formatter):
    """A record as a line for people, and its stack, if it has one, indented below."""

    def format(self, record: logging.LogRecord) -> str:
        names = "".join(f" {name}={_visible(str(_plain(value)))}" for name, value in _names(record).items())
        line = f"{_time(record)} {record.levelname:<7} {record.name}: {_visible(masked(_message(record)))}{names}"
        stack = masked(_stack(self, record))
        return "\n    | ".join([line, *map(_visible, stack.split("\n"))]) if stack else line


class _Handler(logging.StreamHandler[TextIO]):
    """Standard error as it is at the moment, unless a stream was given."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream or sys.stderr)


_bound: ContextVar[Mapping[str, str]] = ContextVar("forkpoint log names", default=MappingProxyType({}))

_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\\\\]")


def _visible(text: str) -> str:
    """The same in one line, and nothing in it that a terminal would obey or not show."""
    return _UNSEEN.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # its arguments do not fit, and that must not lose it
        return str(record.msg)


def _names(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", None)
    return {**_span(), **_bound.get(), **(fields if isinstance(fields, Mapping) else {})}


def _span() -> dict[str, str]:
    """Which trace this belongs to, if anybody traces."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": format(context.trace_id, "032x"), "span_id": format(context.span_id, "016x")}


def _plain(value: object) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    return masked(str(value))


def _stack(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    told = []
    if record.exc_info and record.exc_info[0]:
        told.append(formatter.formatException(record.exc_info))
    elif record.exc_text:  # a filter that hides secrets has left the text alone
        told.append(record.exc_text)
    if record.stack_info:
        told.append(formatter.formatStack(record.stack_info))
    return "\n".join(told)
