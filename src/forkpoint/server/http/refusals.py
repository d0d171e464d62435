"""What calls can be refused with, for the OpenAPI document: every status, with an example for each reason.

The examples are what the server itself makes of the errors, so their statuses, codes and headers are the true ones.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from forkpoint.errors import (
    BadRequest,
    ErrorKind,
    Invalid,
    StoreUnavailable,
    TooLarge,
    TooSlow,
    TurnFailed,
    Unauthorized,
)
from forkpoint.server.http.call import JSON, Description
from forkpoint.server.http.door import refusal
from forkpoint.server.http.examples import ERRORS, FAILED, ID
from forkpoint.server.wires.chat.answer import ChatProblem
from forkpoint.wire.problems import Problem

REQUEST_ID = ("X-Request-Id", "Names this request in the log.")

_HEADERS: dict[str, Any] = {
    "WWW-Authenticate": {"description": "`Bearer`.", "required": True, "schema": {"type": "string"}},
    "Retry-After": {
        "description": "Seconds after which it is worth trying again, if that is known.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "x-should-retry": {
        "description": "Whether a machine should send the same request again, by itself: `true` only for what passes, "
        "and if no tool of the server's would run twice.",
        "required": True,
        "schema": {"type": "string", "enum": ["true", "false"]},
    },
}


class Refusals:
    """The refusals of all calls. ``examples`` holds one for each code and status that was described."""

    def __init__(self) -> None:
        self.examples: dict[str, Any] = {}

    def of(self, about: Description, *, takes_parameters: bool) -> dict[str, Any]:
        """Every status that a call can be refused with."""
        path, prefix = ("/v1", "openai_") if about.openai else ("", "")
        envelope = ChatProblem if about.openai else Problem
        refusals: dict[int, Any] = {}
        for error in _errors(about, takes_parameters):
            status, body, headers = refusal(error, ID, path)
            example = msgspec.json.decode(body)
            code = example["error"]["code"]
            name = f"{prefix}{code}_{status}"
            self.examples.setdefault(name, {"value": example})
            content = {"schema": {"$ref": f"#/components/schemas/{envelope.__name__}"}, "examples": {}}
            described = refusals.setdefault(status, {"headers": said(REQUEST_ID), "content": {JSON: content}})
            described["headers"] |= {header: _HEADERS[header] for header in headers if header in _HEADERS}
            described["content"][JSON]["examples"][code] = {"$ref": f"#/components/examples/{name}"}
        for one in refusals.values():
            one["headers"] |= said(*((name, why) for name, why, refused in about.says if refused), required=False)
        return {
            str(status): {"description": ", ".join(f"`{code}`" for code in one["content"][JSON]["examples"])} | one
            for status, one in sorted(refusals.items())
        }


def said(*headers: tuple[str, str], required: bool = True) -> dict[str, Any]:
    """Headers that an answer has, always or at times."""
    always = {"required": True} if required else {}
    return {name: {"description": about, **always, "schema": {"type": "string"}} for name, about in headers}


def _errors(about: Description, takes_parameters: bool) -> Iterator[Exception]:
    """What a call can end in. What is the same for all calls need not be named by each."""
    errors: list[ErrorKind] = [*about.raises, TooLarge]
    if not about.open:
        errors += [Unauthorized, Unauthorized.foreign_origin, StoreUnavailable]
    if about.takes is not None or about.once or about.if_match:
        errors.append(BadRequest)
    if about.takes is not None:
        errors.append(TooSlow)
    if about.takes is not None or takes_parameters:
        errors.append(Invalid)
    yield Exception()  # what nobody foresaw
    yield from (ERRORS[kind.code] for kind in errors)
    if TurnFailed in errors:
        yield from FAILED
