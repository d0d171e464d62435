"""What calls can be refused with, for the OpenAPI document: every status, with an example for each reason.

An example is an error of its own class, made with a sample for each of its fields, as the server itself sends it. So
its status, code, headers and words are the true ones. Tests: tests/server/test_openapi.py.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from forkpoint.errors import KINDS, ForkpointError, Item, fields_of
from forkpoint.server.http.call import JSON, Description
from forkpoint.server.http.door import refusal
from forkpoint.server.http.keys import ROLES
from forkpoint.server.http.openapi.examples import ID, TURN, failed
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


def example(code: str, **given: Any) -> ForkpointError:
    """An error with this code. ``given`` are fields that are to have other values than the samples."""
    if code == "turn_failed":
        return failed(example("model_error"))
    kind = KINDS[code]
    given = _SAMPLES_OF.get(code, {}) | given
    fields = fields_of(kind).values()
    return kind(**{one.name: _SAMPLES[one.name] for one in fields if one.default is one.empty} | given)


def _errors(about: Description, takes_parameters: bool) -> Iterator[Exception]:
    """What a call can end in. What is the same for all calls need not be named by each."""
    codes = [*about.raises.split(), "too_large", "bad_request"]
    if about.role is not None:
        codes += ["unauthorized", "foreign_origin", "store_unavailable", "store_away"]
        codes += [] if about.role == ROLES[0] else ["forbidden"]
    if about.takes is not None:
        codes += ["too_slow", "encoded_body"]
    if about.takes is not None or takes_parameters:
        codes.append("invalid")
    yield Exception()  # what nobody foresaw
    yield from map(example, codes)
    if "turn_failed" in codes:  # it has the status of its cause, and for OpenAI's clients also the code
        yield failed(example("limit_reached", what="seconds"))
        yield from (failed(example(code)) for code in _CAUSES.split())
        yield from (failed(example(code, status=status)) for code, status in _UPSTREAM)


_CAUSES = (
    "limit_reached hook_blocked model_context_too_long model_refused model_rate_limit model_quota model_overloaded "
    "model_authentication model_bad_request model_unknown model_wrong_address model_connection model_malformed "
    "model_empty model_timeout bad_output mcp_failed disk_full budget_exceeded budget_unpriced"
)
"""Why turns fail: a cause for each status that there is, and each code that OpenAI's clients read."""

_UPSTREAM = (
    ("model_context_too_long", 413),
    ("model_bad_request", 422),
    ("model_quota", 429),
    ("model_overloaded", 503),
    ("model_overloaded", 504),
)
"""Causes that have another status if the model's provider answered with it."""

_SAMPLES: dict[str, Any] = {
    "actual": 4,
    "agent": "explorer",
    "argument": "remove=['open_tickets']",
    "branch": "other-fix",
    "call": "call_1",
    "command": "forkpoint trust /srv/shop",
    "conversation": ID,
    "cursor": "yesterday",
    "digest": "sha256:" + "5c" * 32,
    "detail": "the provider's own words stand here",
    "encoding": "gzip",
    "expected": 3,
    "folder": "/srv/shop/api",
    "holds": "01a8f6e0-6c32-7e5a-8b23-4dbf807c6e9d (case 17/2026)",
    "id": TURN,
    "index": 3,
    "key": "order-77",
    "kind": "user_message",
    "known": "reader, tester",
    "limit": 1000,
    "method": "GET",
    "missing": "tool read_log",
    "model": "openai/gpt-5.6",
    "moment": "start",
    "name": "build-1234",
    "needed": "operate",
    "nearest": ("1-2", "1-4"),
    "origin": "https://elsewhere.example",
    "outcome": "awaiting_approval",
    "param": "limit",
    "path": "/srv/shop",
    "place": "messages[3]",
    "position": "1-3",
    "project": "/srv/shop",
    "reserved": "0.2",
    "role": "use",
    "seconds": 60.0,
    "server": "search",
    "setting": "instructions",
    "size": 40_000_000,
    "spent": "4.9",
    "tries": 3,
    "turn": TURN,
    "variable": "OPENAI_API_KEY",
    "verb": "approve",
    "what": "conversation",
    "line": 12,
    "whose": f"family {ID}",
    "why": "the reason stands here",
}
"""A value for each field that an error can have, by its name."""
_SAMPLES_OF: dict[str, dict[str, Any]] = {
    "bad_argument": {"call": "update_state()"},
    "bad_messages": {"place": "messages[3].content[0]", "why": "it is blank", "index": 3},
    "bad_model": {"model": "gpt"},
    "bad_name": {
        "what": "name",
        "name": "build 1234",
        "why": "it takes 1 to 128 of the characters A-Z a-z 0-9 . _ : -",
    },
    "bad_tool": {"name": "search"},
    "bring_refused": {"why": "it has nothing since the two part"},
    "budget_exceeded": {"what": "dollars", "limit": "5", "needed": "0.31"},
    "budget_unpriced": {"limit": "5"},
    "cannot_resume": {"items": (Item("tool", "read_log", "it is not on the server as it was"),)},
    "forbidden": {"key": "ci"},
    "limit_reached": {"what": "steps", "limit": "100"},
    "model_not_found": {"model": "gpt"},
    "model_overloaded": {"retry_after": 5},
    "model_rate_limit": {"retry_after": 20},
    "no_such_call": {"path": "/metrics"},
    "not_found": {"id": "build-1234"},
    "not_resumable": {"outcome": "committed"},
    "outcome_unknown": {"what": "turn"},
    "too_large": {"what": "request", "limit": 33_554_432},
    "too_many": {"what": "turns"},
    "too_slow": {"what": "body"},
    "trust_changed": {"what": "tools/guard.sh changed"},
    "guards_lost": {"why": "its folder /srv/shop/api belongs to /srv/shop/api now"},
    "turn_cancelled": {"why": "somebody cancelled it."},
    "unsupported": {"param": "n"},
    "workspace_not_made": {"kind": "worktree"},
}
"""Values that fit better for the errors with this code."""
