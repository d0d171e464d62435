"""What is asked of a server: where things stand there, and what it takes."""

from collections.abc import Collection, Sequence
from typing import Any

from msgspec import Raw

from forkpoint.agent.agent import Agent, Limits
from forkpoint.agent.stored.document import portable_document
from forkpoint.backend.messages import Given, said_in, split
from forkpoint.backend.protocol import Decision, Draft
from forkpoint.engine.turns.missing import allows_models
from forkpoint.remote.connection import HEARTBEAT, ServerRequest, quoted

_STREAM = {"accept": "text/event-stream"}
_SILENCE = 2.5 * HEARTBEAT  # seconds after which a stream that says nothing is lost


def path_of(id: str) -> str:
    """Where a conversation stands on a server."""
    return f"/api/conversations/{quoted(id)}"


def asked(given: Sequence[Given]) -> dict[str, Any]:
    """Messages and results of the client's tools, as a server takes them."""
    results, _ = split(given)
    body: dict[str, Any] = {"messages": [message.parts for message in said_in(given)]}
    if results:
        body["results"] = [
            {"call_id": one.call_id, "result": one.parts, "status": "failed" if one.error else "done"}
            for one in results.values()
        ]
    return body


def created(draft: Draft | None) -> dict[str, Any]:
    """A conversation that is made with its first turn, as a server takes it."""
    return {} if draft is None else {"create": made_of(draft) | {"chosen": draft.chosen}}


def made_of(draft: Draft) -> dict[str, Any]:
    """What a new conversation is to be."""
    made: dict[str, Any] = {"tags": dict(draft.tags)}
    if draft.settings.agent_json is not None:
        made["agent"] = draft.settings.agent
    for name in ("name", "title"):
        if (value := getattr(draft, name)) is not None:
            made[name] = value
    if draft.settings.workspace is not None:
        made["workspace"] = draft.settings.workspace
    if draft.trust is not None:
        made["trust"] = draft.trust
    return made


def without(allow: Collection[str], agent: Agent | None) -> dict[str, Any]:
    """What may be missing there; and who the caller goes on with, if that may be another model."""
    if not allow:
        return {}
    named: dict[str, Any] = {"allow": sorted(allow)}
    if agent is not None and allows_models(allow):
        named["agent"] = Raw(portable_document(agent).encode())
    return named


def streamed(path: str, body: Any, *, key: str | None = None, revision: int | None = None) -> ServerRequest:
    """Something that is told as it happens."""
    return ServerRequest(
        method="POST", path=path, body=body, key=key, revision=revision, headers=_STREAM, read=_SILENCE
    )


def joining(path: str) -> ServerRequest:
    """A turn that runs already, told from here on."""
    return ServerRequest(method="GET", path=path, headers=_STREAM, read=_SILENCE)


def resumption(rerun: Collection[str], limits: Limits | None) -> dict[str, Any]:
    """How a turn is to go on."""
    body: dict[str, Any] = {"rerun": list(rerun)} if rerun else {}
    return body if limits is None else body | {"limits": limits}


def decided(decision: Decision) -> dict[str, Any]:
    """What somebody says to calls that wait, as they were seen."""
    calls = [
        {"id": call.id, "tool": call.tool, "arguments": call.arguments, "response": call.response}
        for call in decision.calls
    ]
    body: dict[str, Any] = {"calls": calls, "by": decision.by, "reason": decision.reason}
    return {name: value for name, value in body.items() if value is not None}
