"""The items of a conversation: those on its path, and those that a client adds.

Items are added as notes, one for each group: a run of calls is one group, with the thoughts before it; each message and
each result is a group of its own. So each item at the end can be removed without the others.
Tests: tests/server/responses/test_conversations.py.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.backend.messages import MessageBody, echo_of
from forkpoint.errors import Busy, Invalid, Stale, TurnOpen
from forkpoint.events import AssistantMessage, Event, NewEvent, Reasoning, ToolCall, ToolResult
from forkpoint.server.http.call import ApiCall
from forkpoint.server.wires.responses.input import InputItem, ItemReference
from forkpoint.server.wires.responses.output import ShownItem, items_of
from forkpoint.server.wires.responses.request import Echo
from forkpoint.store import StoredConversation

MOST_ADDED = 20
"""Items that one request may add."""


async def items_on_path(call: ApiCall, record: StoredConversation, include: Sequence[str] = ()) -> list[ShownItem]:
    """All items on the path of a conversation, in order."""
    items: list[ShownItem] = []
    events = await call.backend.events(record.id)
    for turn, group in groupby(events, key=lambda event: event.turn):
        said = list(group)
        echo = await _echo(call, turn, said)
        items += items_of(turn, said, replace(echo, include=(*echo.include, *include)))
    return items


async def _echo(call: ApiCall, turn: str, events: Sequence[Event]) -> Echo:
    """What a turn's request said of its tools; nothing if no tools of a client are in it."""
    if not any(isinstance(event.body, ToolCall | ToolResult) for event in events):
        return Echo(model="")
    return Echo.from_json(echo_of((await call.backend.placement.turn(turn)).input))


async def add_items(call: ApiCall, record: StoredConversation, items: Sequence[InputItem]) -> list[ShownItem]:
    """Adds items to a conversation, and gives them as they stand there. Raises `Busy.conversation_locked`."""
    agents = call.services.agents
    bodies = list(_bodies(items, agents.named(agents.default)))
    groups = list(_groups(bodies, record.head.open_calls.client))
    shown: list[ShownItem] = []
    revision = record.revision
    for group in groups:
        try:
            noted = await call.backend.notes.add(record.id, [NewEvent(body) for body in group], if_revision=revision)
        except (Busy, Stale, TurnOpen):
            raise Busy.conversation_locked(record.name) from None
        revision = noted.revision
        events = await call.backend.events(record.id, after=noted.first.ordinal - 1)
        shown += items_of(noted.turn, events, Echo(model=""))
    return shown


def _bodies(items: Sequence[InputItem], agent: Agent) -> Iterator[MessageBody]:
    for item in items:
        body = item.body
        if isinstance(body, ItemReference):
            raise Invalid.unsupported(f"{body.place}.type", "a reference adds nothing; send the item itself")
        if isinstance(body, AssistantMessage | ToolCall | Reasoning):
            is_its = agent.llm.wire == "responses"
            body = replace(body, provider=agent.manifest.origin) if is_its else replace(body, item=None)
        yield body


def _groups(bodies: Sequence[MessageBody], open_calls: Sequence[str]) -> Iterator[list[MessageBody]]:
    """The bodies in groups that can stand alone. Calls that nobody answered get a result that says so.

    Raises `Invalid` for a result without a call.
    """
    open = dict.fromkeys(open_calls, "")
    group: list[MessageBody] = []
    for place, body in enumerate(bodies):
        before = group[-1] if group else None
        joins = isinstance(body, ToolCall | Reasoning | AssistantMessage) and isinstance(before, Reasoning)
        joins = joins or (isinstance(body, ToolCall) and isinstance(before, ToolCall))
        if group and not joins:
            yield group
            group = []
        if isinstance(body, ToolResult):
            if body.call_id not in open:
                raise Invalid(f"items[{place}].call_id", "no call with this id is open")
            tool = open.pop(body.call_id)
            body = replace(body, tool=tool or body.tool or "tool")
        elif open and not joins:
            group += [ToolResult(call, tool or "tool", (), "not_answered") for call, tool in open.items()]
            open.clear()
        if isinstance(body, ToolCall):
            open[body.call_id] = body.tool
        group.append(body)
    if group:
        yield group
