"""What tenants see of events: all of it, but for where the server's models are and how it speaks to them."""

from typing import Any

import msgspec
from msgspec.structs import replace

from forkpoint.conversation.documents import EventDocument, event_document
from forkpoint.events import Event, JsonText, SettingsChanged, StagedEvent
from forkpoint.server.sent_agent import SERVERS
from forkpoint.server.sse import frame


def public_event(event: Event | StagedEvent) -> EventDocument:
    """An event for the outside. One that changes settings holds the agent as it is stored, with the server's part."""
    body = event.body
    if isinstance(body, SettingsChanged) and (settings := _without_servers(body.settings)) is not None:
        return event_document(replace(event, body=replace(body, settings=settings)))
    return event_document(event)


def event_frame(event: Event) -> bytes:
    """An event in a stream. Its id is its position: a reader that reconnects says how far it has come."""
    return frame("event", msgspec.json.encode(public_event(event)), id=str(event.id))


def _without_servers(settings: JsonText) -> JsonText | None:
    """Settings without what is the server's alone; None if nothing of that is in there, so that no byte changes."""
    read: Any = msgspec.json.decode(settings)
    agent = read.get("agent") if isinstance(read, dict) else None
    llm = agent.get("llm") if isinstance(agent, dict) else None
    if not isinstance(llm, dict) or llm.keys().isdisjoint(SERVERS):
        return None
    read["agent"]["llm"] = {name: value for name, value in llm.items() if name not in SERVERS}
    return msgspec.json.encode(read).decode()
