"""The OpenAPI document: every call, what it takes, what it gives, and every status that it can end in.

Schemas come from the very structs that are decoded and encoded, and errors from the classes that are raised, so the
document cannot say anything else than the server does. Tests: tests/server/test_openapi.py.
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from forkpoint import updates
from forkpoint.events import AnyBody
from forkpoint.server.api import operations
from forkpoint.server.http.call import JSON, Calls, Description
from forkpoint.server.http.openapi.examples import EXAMPLES
from forkpoint.server.http.refusals import REQUEST_ID, Refusals, said
from forkpoint.server.live.stream import TYPE
from forkpoint.server.wires.chat.answer import ChatProblem
from forkpoint.version import __version__
from forkpoint.wire.documents import EventDocument, SideAnswerDocument, TurnDocument
from forkpoint.wire.problems import Problem

_ABOUT = """Conversations for AI agents: every turn is a transaction, every committed point is a fork point.

Errors have one envelope, with a stable `code`; under `/v1` they have OpenAI's. Every answer has an `X-Request-Id`.
Lists are paged by a cursor. The `ETag` of a conversation is its revision and a digest of the rest. One
`Idempotency-Key` is one effect, also after a restart. A server that listens on loopback alone may have no keys; then
none is asked for.

A key has a role: `read`, `use` or `operate`, each with the rights of those before it. `x-role` of a call is the role
that it needs; a key that may not do it gets 403 `forbidden`."""

_PIECES = (updates.TextPiece, updates.ReasoningPiece, updates.CallPiece, updates.Restarted)
_CALLS = (updates.CallStarted, updates.CallProgress, updates.CallEnded, updates.CallWaits)
_UPDATES = (updates.TurnStarted, *_PIECES, updates.Answered, *_CALLS, updates.Steered)
_REF = "#/components/schemas/{name}"
_KEY = ("Idempotency-Key", "One key, one effect: the same key and body give the same result.", "^[!-~]{1,255}$")
_IF_MATCH = (
    "If-Match",
    "An ETag, a revision in quotes, or *: refused with 412 if the conversation is at another revision.",
    r'^(\*|"-?[0-9]{1,18}(-[0-9a-f]{16})?")$',
)


def document(app: FastAPI, families: Iterable[Calls]) -> dict[str, Any]:
    """The document of an app."""
    described = {name: found for family in (*families, operations.calls) for name, found in family.described.items()}
    made = get_openapi(
        title="Forkpoint", version=__version__, description=_ABOUT, routes=app.routes, openapi_version="3.1.0"
    )
    refusals = Refusals()
    for calls in made["paths"].values():
        for operation in calls.values():
            _describe(operation, described[operation["operationId"]], refusals)
    made["components"] = {
        "schemas": _schemas(described.values()),
        "examples": dict(sorted(refusals.examples.items())),
        "securitySchemes": {
            "key": {"type": "http", "scheme": "bearer", "description": "A key of `forkpoint keys add`."}
        },
    }
    made["security"] = [{"key": []}]
    return made


# What a call takes.


def _describe(operation: dict[str, Any], about: Description, refusals: Refusals) -> None:
    summary, _, more = operation.pop("description").partition("\n\n")
    operation["summary"] = summary.removesuffix(".")
    if more:
        operation["description"] = more
    if about.role is None:
        operation["security"] = []
    if about.takes is not None:
        content: dict[str, Any] = {"schema": _ref(about.takes), "example": EXAMPLES[_name(about.takes)]}
        operation["requestBody"] = {"required": not about.optional, "content": {JSON: content}}
    if about.uploads is not None:
        operation["requestBody"] = {"required": True, "content": {about.uploads: {"schema": {"type": "string"}}}}
    parameters = [_parameter(one) for one in operation.pop("parameters", ())]
    operation["responses"] = _answers(about) | refusals.of(about, takes_parameters=bool(parameters))
    parameters += [_header(*one) for one, has in ((_KEY, about.once), (_IF_MATCH, about.if_match)) if has]
    parameters += [_header(*one) for one in about.asks]
    if about.cursor:
        parameters.append(_header("Last-Event-ID", "The id of the last event that was read."))
    if about.asynchronous:
        said = "`respond-async`: answered with 202 as soon as the turn has begun."
        parameters.append(_header("Prefer", said))
    if parameters:
        operation["parameters"] = parameters


def _parameter(made: dict[str, Any]) -> dict[str, Any]:
    """A parameter as people write it: without a title, and without null, which no address can hold."""
    schema = {name: value for name, value in made["schema"].items() if name != "title"}
    others = [one for one in schema.pop("anyOf", ()) if one != {"type": "null"}]
    return made | {"schema": {**(others[0] if others else {}), **schema}}


def _header(name: str, description: str, pattern: str | None = None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"} | ({"pattern": pattern} if pattern else {})
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


# What it gives.


def _answers(about: Description) -> dict[str, Any]:
    headers = said(REQUEST_ID) | said(*(one[:2] for one in about.says), required=False)
    if about.tags:
        headers |= said(("ETag", 'Its revision, and a digest of all that is shown: `"REVISION-DIGEST"`.'))
    located = headers | said(("Location", "Where it is."))
    content: dict[str, Any] = {}
    if about.gives is not None:
        content[JSON] = {"schema": _ref(about.gives), "example": EXAMPLES[_name(about.gives)]}
    if about.streams is not None:
        content[TYPE] = _stream(about)
    for sort in about.texts:
        content[sort] = {"schema": {"type": "string"}}
    answer: dict[str, Any] = {"description": "It worked.", "headers": located if about.locates else headers}
    if content:
        answer["content"] = content
    answers = {str(about.status): answer}
    if about.also_gives is not None:
        said_too = {"schema": _ref(about.also_gives), "example": EXAMPLES[_name(about.also_gives)]}
        answers["200"] = {"description": "It worked, and left something to say.", "headers": headers}
        answers["200"]["content"] = {JSON: said_too}
    if about.asynchronous:
        applied = located | said(("Preference-Applied", "`respond-async`."))
        begun = {"description": "It has begun, and goes on.", "headers": applied, "content": {JSON: content[JSON]}}
        answers["202"] = begun
    return answers


def _stream(about: Description) -> dict[str, Any]:
    """A stream, and which events can be in it. What has no schema here is told of in the guide to streams."""
    if about.chunks is not None:
        said = f"Each of the server-sent events: {about.streams}."
        return {"schema": (_named_event if about.named_chunks else _event)(about.chunks, said)}
    told: tuple[type, ...] = _PIECES if about.gives is SideAnswerDocument else _UPDATES
    events: dict[str, Any] = {str(one.__struct_config__.tag): _ref(one) for one in told}  # type: ignore[attr-defined]
    if about.only_streams:
        events |= {"event": _ref(EventDocument), "turn": _ref(TurnDocument), "rewound": {}, "deleted": {}}
        events |= {"snapshot": {}, "gap": {}, "closing": {}}
        if about.of_family:
            events |= {"family": {}, "conversation": {}}
    elif about.gives is SideAnswerDocument:
        events |= {"gap": {}, "answer": _ref(SideAnswerDocument), "error": _ref(Problem)}
    else:
        events |= {"snapshot": {}, "gap": {}, "turn": _ref(TurnDocument), "error": _ref(Problem)}
    schema = {"type": "string", "description": f"Server-sent events: {about.streams}."}
    return {"schema": schema, "x-events": events}


def _event(chunk: type, said: str) -> dict[str, Any]:
    """One event of a stream whose events have no names: what its data is."""
    told = {"anyOf": [_ref(chunk), _ref(ChatProblem)]}
    data = [{"const": "[DONE]"}, {"type": "string", "contentMediaType": JSON, "contentSchema": told}]
    return {"type": "object", "description": said, "required": ["data"], "properties": {"data": {"anyOf": data}}}


def _named_event(chunk: type, said: str) -> dict[str, Any]:
    """One event of a stream whose events have the names that stand in their data."""
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": _ref(chunk)}
    properties = {"event": {"type": "string"}, "data": data}
    return {"type": "object", "description": said, "required": ["event", "data"], "properties": properties}


# Schemas.


def _schemas(described: Iterable[Description]) -> dict[str, Any]:
    types: list[Any] = [Problem, ChatProblem, EventDocument, AnyBody, *_UPDATES]
    named = (sort for about in described for sort in (about.takes, about.gives, about.also_gives, about.chunks))
    types += [sort for sort in named if sort is not None]
    _, schemas = msgspec.json.schema_components(dict.fromkeys(types), ref_template=_REF)
    bodies = msgspec.json.schema_components([AnyBody], ref_template=_REF)[0][0]
    schemas["EventDocument"]["properties"]["body"] = {
        "description": "What happened, by its kind; null if it was erased. Further kinds may come.",
        "anyOf": [*bodies["anyOf"], {"type": "object"}, {"type": "null"}],
    }
    return {_clean(name): schema for name, schema in _cleaned(schemas).items()}


def _cleaned(value: Any) -> Any:
    """Schemas with names that may stand in a document, and with descriptions in one line."""
    if isinstance(value, dict):
        return {key: _cleaned_at(key, one) for key, one in value.items()}
    return [_cleaned(one) for one in value] if isinstance(value, list) else value


def _cleaned_at(key: str, value: Any) -> Any:
    if key == "$ref":
        return f"#/components/schemas/{_clean(value.rpartition('/')[2])}"
    return " ".join(value.split()) if key == "description" and isinstance(value, str) else _cleaned(value)


def _clean(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_")


def _ref(sort: Any) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{_clean(_name(sort))}"}


def _name(sort: Any) -> str:
    """As msgspec names it."""
    arguments = getattr(sort, "__args__", ())
    plain = getattr(sort, "__origin__", sort).__name__
    return f"{plain}_{'_'.join(one.__name__ for one in arguments)}" if arguments else str(plain)
