"""What is asked of a server: where things stand there, and what it takes. Tests: tests/remote/test_backend.py."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Raw

from forkpoint.agent.agent import Agent, Limits
from forkpoint.agent.stored.document import portable_document
from forkpoint.backend.allowance import allows_models
from forkpoint.backend.messages import Given, said_in, split
from forkpoint.backend.options import Decision, Draft
from forkpoint.backend.results import Info
from forkpoint.backend.settings import Settings
from forkpoint.events import ToolResult
from forkpoint.paging import Page
from forkpoint.remote.connection import HEARTBEAT, ServerConnection, ServerRequest, quoted
from forkpoint.sse import Frame
from forkpoint.updates import Provisional
from forkpoint.wire.documents import PageDocument

D = TypeVar("D")
T = TypeVar("T")

PAGE = 1000
"""How many items a server gives at once."""

_UPDATES = {str(one.__struct_config__.tag): one for one in Provisional.__args__}
_STREAM = {"accept": "text/event-stream"}
_SILENCE = 2.5 * HEARTBEAT  # seconds after which a stream that says nothing is lost


def path_of(id: str) -> str:
    """Where a conversation stands on a server."""
    return f"/api/conversations/{quoted(id)}"


def asked(input: Sequence[Given]) -> dict[str, Any]:
    """Messages and results of the client's tools, as a server takes them."""
    results, _ = split(input)
    body: dict[str, Any] = {"messages": [message.parts for message in said_in(input)]}
    if results:
        body["results"] = results_of(results)
    return body


def results_of(results: Mapping[str, ToolResult]) -> list[dict[str, Any]]:
    """Results of calls, as a server takes them."""
    return [
        {"call_id": one.call_id, "result": one.parts, "status": "failed" if one.error else "done"}
        for one in results.values()
    ]


def created(draft: Draft | None) -> dict[str, Any]:
    """A conversation that is made with its first turn, as a server takes it."""
    return {} if draft is None else {"create": made_of(draft) | {"chosen": draft.chosen}}


def made_of(draft: Draft) -> dict[str, Any]:
    """What a new conversation is to be."""
    made: dict[str, Any] = {"tags": dict(draft.tags)}
    if draft.settings.agent_json is not None:
        made["agent"] = draft.settings.agent
    for name in ("name", "title", "budget", "family_budget"):
        if (value := getattr(draft, name)) is not None:
            made[name] = value
    if draft.history is not None:
        made |= {"messages": Raw(draft.history.messages.encode()), "format": draft.history.format}
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
    """What somebody says to calls that wait, with the content that was seen."""
    calls = [given({"id": call.id, "digest": call.digest, "arguments": call.arguments}) for call in decision.calls]
    body: dict[str, Any] = {"calls": calls, "by": decision.by, "reason": decision.reason, "always": decision.always}
    return {name: value for name, value in body.items() if value is not None}


def update_of(connection: ServerConnection, frame: Frame) -> Any:
    """The update of a frame of a stream, or None if this client does not know its kind."""
    kind = _UPDATES.get(frame.event)
    return None if kind is None else connection.understood(frame.data, kind)


def page_of(of: Callable[[D], T]) -> Callable[[PageDocument[D]], Page[T]]:
    """How a page of documents is read, by how one of them is read."""
    return lambda page: Page(tuple(map(of, page.items)), page.next)


def page_size(limit: int) -> str:
    """How many items are asked for at once: a server gives this many at most."""
    return str(min(max(limit, 1), PAGE))


def agent_of(agent: Agent | None, name: str | None) -> Raw | str | None:
    """Who answers in a fork or as a sub-agent, if it is another: data, or the name of an agent."""
    return name if agent is None else Settings.of(agent, None, remote=True).agent


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def with_settings(info: Info) -> tuple[Info, Settings]:
    """A conversation with what is known here of how it is run: the server knows its agent."""
    return info, Settings(workspace=info.workspace)
