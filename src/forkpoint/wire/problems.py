"""Errors as JSON, and back: what a server says went wrong is raised at its client as what it is.

One envelope for everything: a stable code, a sentence, and the fields that the error was made with, so that the class
with that code can be made again. What is nobody's business outside of the server (paths, secrets, the text of
unforeseen exceptions) is left out here, once, for all calls. Tests: tests/wire/test_documents.py.
"""

import inspect
from copy import copy
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from forkpoint.backend.results import Turn
from forkpoint.errors import (
    KINDS,
    CannotResume,
    ErrorKind,
    ForkpointError,
    Item,
    McpFailed,
    NoSecret,
    ServerError,
    StoreError,
    Surface,
    TurnFailed,
    class_of,
    fields_of,
)
from forkpoint.masking import masked
from forkpoint.store.values import GIVEN_UP, TurnError
from forkpoint.wire.documents import TurnDocument, turn_document, turn_of

INTERNAL = "internal"
"""The code of what nobody foresaw."""

_UNSAID = (
    "Something went wrong in the server, and its log says what. Try again; if that does not help, give the request id."
)
_PRIVATE = (StoreError, CannotResume, McpFailed, NoSecret)  # they tell of the server's own files and programs
_STORES = {"path": "(the server's)", "detail": "its log says more", "kind": "its log says which"}  # of a StoreError


class ErrorDocument(Struct, frozen=True, omit_defaults=True):
    """What went wrong. ``details`` are the error's own fields; ``cause`` is why a turn failed."""

    code: str
    message: str
    param: str | None
    request_id: str | None
    details: dict[str, Any] = {}
    cause: "ErrorDocument | None" = None


class Problem(Struct, frozen=True):
    """The body of every answer that is an error. With a turn that did not commit comes the turn."""

    error: ErrorDocument
    turn: TurnDocument | UnsetType = UNSET


def problem_of(
    error: BaseException, *, request_id: str | None = None, param: str | None = None, surface: Surface = "HTTP"
) -> Problem:
    """The answer to a request that an error ended, with advice for whoever reads it there."""
    param = param or getattr(error, "param", None)
    document = _document(error, request_id, None if param is None else _safe(param), surface)
    if isinstance(error, TurnFailed) and isinstance(error.turn, Turn):
        return Problem(document, public_turn(error.turn, events=True))
    return Problem(document)


def public_turn(turn: Turn, *, events: bool = False) -> TurnDocument:
    """A turn for the outside: without the words of an error that is the server's own affair."""
    document = turn_document(turn, events=events)
    if document.error is None:
        return document
    code, said = document.error.code, document.error.message
    return replace(document, error=TurnError(code, _UNSAID if _is_private(code) else _safe(said)))


def error_of(problem: Problem) -> ForkpointError:
    """The error that a server told of. One that this version does not know is a `ServerError`."""
    error = _error(problem.error)
    if isinstance(error, TurnFailed) and not isinstance(problem.turn, UnsetType):
        error.turn = turn_of(problem.turn)
    return error


def is_foreseen(error: BaseException) -> bool:
    """Whether an error is one that callers can meet, and no fault of the server."""
    return isinstance(error, ForkpointError) and type(error) is not ForkpointError


def hides(error: BaseException) -> bool:
    """Whether the words of an error stay in the server, so that its log must have them."""
    if isinstance(error, TurnFailed):
        return _is_private(_code_of(error))
    return not is_foreseen(error) or isinstance(error, _PRIVATE)


def _document(error: BaseException, request_id: str | None, param: str | None, surface: Surface) -> ErrorDocument:
    if not isinstance(error, ForkpointError) or not is_foreseen(error):
        return ErrorDocument(INTERNAL, _UNSAID, param, request_id)
    said, cause = _fields(error), None
    if isinstance(error, StoreError):
        said |= {name: instead for name, instead in _STORES.items() if name in said}
    if isinstance(error, McpFailed):
        said["why"] = "cannot be used; the log of the server here says why"
    if isinstance(error, NoSecret):
        said |= {"reference": "where the server has it", "why": "its log says why"}
    if isinstance(error, CannotResume):
        listed = tuple(_public_item(item) for item in error.items)
        said["missing"] = "; ".join(map(str, listed)) or "its functions are not on the server as they were"
        said["items"] = listed
    if isinstance(error, TurnFailed):
        cause = None if error.cause is None else _document(error.cause, request_id, None, surface)
        if _is_private(_code_of(error)):
            said["why"] = _UNSAID
    public = copy(error)
    vars(public).update(said)
    if isinstance(public, TurnFailed) and isinstance(error, TurnFailed):
        public.cause = None  # its own words are not public
        if cause is not None and error.in_words_of_its_cause and said["why"] != _UNSAID:
            public.why = cause.message
    return ErrorDocument(error.code, public.message(surface), param, request_id, said, cause)


def _public_item(item: Item) -> Item:
    """What is missing, for the outside. Why a function is, tells of modules and their files; and where a model is, is
    the server's to know."""
    match item.kind:
        case "workspace":
            why = item.why
        case "model":
            why = "the agent given has another, or elsewhere"
        case _:
            why = "it is not on the server as it was" if item.name else "is not on the server as it was"
    return Item(item.kind, _safe(item.name), why)


def _fields(error: ForkpointError) -> dict[str, Any]:
    """What an error was made with, as far as it can be sent: not a turn and not a cause, which stand beside it."""
    plain = {name: value for name, value in error.fields.items() if isinstance(value, str | int | float | bool | None)}
    listed = {name: value for name, value in error.fields.items() if _is_texts(value)}
    return {name: _safe(value) if isinstance(value, str) else value for name, value in plain.items()} | {
        name: tuple(map(_safe, value)) for name, value in listed.items()
    }


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


def _safe(text: str) -> str:
    """A text that may leave: without what looks like a key or a password, and in valid Unicode."""
    return masked(text).encode(errors="backslashreplace").decode()


def _code_of(failed: TurnFailed) -> str:
    """Of what a turn failed."""
    if failed.cause is not None:
        return failed.cause.code if isinstance(failed.cause, ForkpointError) else INTERNAL
    kept = failed.turn.error if isinstance(failed.turn, Turn) else None
    return kept.code if kept is not None else failed.code


def _error(document: ErrorDocument) -> ForkpointError:
    kind, details = KINDS.get(document.code), document.details
    if kind is None or not _fits(kind, details):
        return ServerError(document.code, document.message, document.request_id or "unknown")
    if kind is CannotResume:
        try:
            details = details | {"items": msgspec.convert(details.get("items", ()), tuple[Item, ...])}
        except msgspec.ValidationError:  # another version has other kinds
            details = {"missing": details["missing"]}
    error = kind(**{name: tuple(value) if _is_texts(value) else value for name, value in details.items()})
    if isinstance(error, TurnFailed) and document.cause is not None:
        error.cause = error.__cause__ = _error(document.cause)
    return error


def _fits(kind: ErrorKind, details: dict[str, Any]) -> bool:
    """Whether these are the fields of a kind, each of its type. Another version may have others."""
    fields = fields_of(kind)
    needed = {name for name, field in fields.items() if field.default is inspect.Parameter.empty}
    typed = {name: field.annotation for name, field in fields.items() if isinstance(field.annotation, type)}
    return (
        bool(fields)
        and needed <= set(details) <= set(fields)
        and all(isinstance(value, typed.get(name, object)) for name, value in details.items())
    )


def _is_private(code: str) -> bool:
    """Whether an error is one that nobody foresaw, or tells of the server's own files."""
    if code == GIVEN_UP.code:  # no error is raised for that: the turn says it of itself
        return False
    kind = KINDS.get(code, ForkpointError)
    return kind is ForkpointError or issubclass(class_of(kind), _PRIVATE)


decode_problem = msgspec.json.Decoder(Problem).decode
