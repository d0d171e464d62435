"""The items of a conversation: those on its path, and those that a client adds.

A list is read turn by turn, from the end that its reader begins at, so that a page of a long conversation costs what it
shows. All items of one request are added as one note: all of them stand in the history, or none.
Tests: tests/server/responses/test_conversations.py.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.backend.messages import MessageBody, echo_of
from forkpoint.errors import Busy, Invalid, NotFound, Stale, TurnOpen
from forkpoint.events import AssistantMessage, Event, NewEvent, Reasoning, ToolCall, ToolResult
from forkpoint.server.http.call import ApiCall
from forkpoint.server.wires.responses.items.ids import turn_of_item
from forkpoint.server.wires.responses.items.input import InputItem, ItemReference, attributed, custom_results, is_custom
from forkpoint.server.wires.responses.items.output import ShownItem, items_of
from forkpoint.server.wires.responses.items.paging import ItemList, list_of
from forkpoint.server.wires.responses.request import Echo
from forkpoint.store import StoredConversation

MOST_ADDED = 20
"""Items that one request may add."""

_STEP = 64  # events that are read at first
_LONGEST_STEP = 1024


class TurnOnPath(Struct, frozen=True):
    """What a path has of a turn or a note, and the items in it."""

    events: tuple[Event, ...]
    items: list[ShownItem]


class ConversationItems:
    """The items on the path of a conversation."""

    def __init__(self, call: ApiCall, record: StoredConversation, include: Sequence[str] = ()) -> None:
        self._call = call
        self._record = record
        self._include = tuple(include)

    async def page(self, *, limit: int, order: str, after: str | None) -> ItemList:
        """A page of the items. Raises `Invalid` if the item to begin after is not among them."""
        there = None if after is None else await self._turn_with(after)
        if after is not None and there is None:
            raise Invalid("after", "there is no item with this id in the list")
        if order == "asc":
            turns = self._forwards(0 if there is None else there.events[0].id.ordinal - 1)
        else:
            turns = self.backwards(None if there is None else there.events[-1].id.ordinal)
        shown: list[ShownItem] = []
        is_past = after is None
        async with aclosing(turns):
            async for turn in turns:
                for item in turn.items if order == "asc" else reversed(turn.items):
                    if is_past:
                        shown.append(item)
                    is_past = is_past or item.id == after
                if len(shown) > limit:
                    break
        return list_of([item.document for item in shown], limit=limit)

    async def one(self, id: str) -> ShownItem:
        """An item by its id. Raises `NotFound`."""
        turn = await self._turn_with(id)
        if turn is None:
            raise NotFound("item", id[:200])
        return next(item for item in turn.items if item.id == id)

    async def backwards(self, upto: int | None = None) -> AsyncGenerator[TurnOnPath, None]:
        """The turns of the path, the newest first, from the one on that ends at an ordinal; None: at the head."""
        upto = self._record.head.ordinal if upto is None else upto
        step = _STEP
        while upto > 0:
            after = max(upto - step, 0)
            events = await self._events(after, upto)
            if not events:  # somebody has rewound it meanwhile
                return
            began = await self._began(events[0].turn) if after else 0
            if began < after:
                events = [*await self._events(began, after), *events]
            for turn in reversed(_turns(events)):
                yield await self._shown(turn)
            upto, step = min(began, after), min(step * 2, _LONGEST_STEP)

    async def _forwards(self, after: int) -> AsyncGenerator[TurnOnPath, None]:
        """The turns of the path, the oldest first, from the one on that begins after an ordinal."""
        head, step = self._record.head.ordinal, _STEP
        while after < head:
            upto = min(after + step, head)
            turns = _turns(await self._events(after, upto))
            if not turns:  # somebody has rewound it meanwhile
                return
            if upto < head:  # the last of these turns may go on behind
                turns.pop()
            for turn in turns:
                yield await self._shown(turn)
                after = turn[-1].id.ordinal
            step = step * 4 if not turns else min(step * 2, _LONGEST_STEP)

    async def _turn_with(self, id: str) -> TurnOnPath | None:
        """The turn on the path that has an item; None if there is no such item."""
        turn = turn_of_item(id)
        if turn is None:
            return None
        try:
            stored = await self._call.backend.placement.turn(turn)
        except NotFound:
            return None
        base = 0 if stored.base is None else stored.base.ordinal
        events = () if stored.end is None else await self._events(base, stored.end.ordinal)
        here = [event for event in events if event.turn == turn]
        found = await self._shown(here) if here else None
        return found if found is not None and any(item.id == id for item in found.items) else None

    async def _events(self, after: int, upto: int) -> list[Event]:
        return await self._call.backend.events(self._record.id, after=after, limit=upto - after)

    async def _began(self, turn: str) -> int:
        base = (await self._call.backend.placement.turn(turn)).base
        return 0 if base is None else base.ordinal

    async def _shown(self, events: Sequence[Event]) -> TurnOnPath:
        turn, echo = events[0].turn, Echo(model="")
        if any(isinstance(event.body, ToolCall | ToolResult) for event in events):
            echo = await self._echo(turn)
        if not echo.model and isinstance(events[0].body, ToolResult):  # a note: what came before knows the call
            echo = replace(echo, custom_results=await self._custom_calls_before(events[0]))
        echo = replace(echo, include=(*echo.include, *self._include))
        return TurnOnPath(tuple(events), items_of(turn, events, echo))

    async def _echo(self, turn: str) -> Echo:
        """What a turn's request said of its tools."""
        return Echo.from_json(echo_of((await self._call.backend.placement.turn(turn)).input))

    async def _custom_calls_before(self, first: Event) -> tuple[str, ...]:
        """Calls of custom tools that a client brought along, or that a model made, not long before an event."""
        upto = first.id.ordinal - 1
        custom: list[str] = []
        for events in _turns(await self._events(max(upto - _STEP, 0), upto)):
            calls = [event.body for event in events if isinstance(event.body, ToolCall) and event.body.client]
            named = (await self._echo(events[0].turn)).custom if calls else ()
            custom += [call.call_id for call in calls if call.tool in named or is_custom(call)]
        return tuple(custom)


def _turns(events: Sequence[Event]) -> list[list[Event]]:
    return [list(group) for _, group in groupby(events, key=lambda event: event.turn)]


async def add_items(call: ApiCall, record: StoredConversation, items: Sequence[InputItem]) -> list[ShownItem]:
    """Adds items to a conversation, and gives them as they stand there.

    Raises `Busy.conversation_locked`, and `Invalid` or `Unpaired` for items that cannot stand there. Then it adds none.
    """
    bodies = check_items(call, items, record.head.open_calls.client)
    if not bodies:
        return []
    try:
        events = [NewEvent(body) for body in bodies]
        noted = await call.backend.notes.add(record.id, events, if_revision=record.revision)
    except (Busy, Stale, TurnOpen):
        raise Busy.conversation_locked(record.name) from None
    added = await call.backend.events(record.id, after=noted.first.ordinal - 1, limit=len(bodies))
    return items_of(noted.turn, added, Echo(model="", custom_results=custom_results(items)))


def check_items(call: ApiCall, items: Sequence[InputItem], open_calls: Sequence[str] = ()) -> list[MessageBody]:
    """What is to be added for these items, where these calls are open. Raises `Invalid`."""
    agents = call.services.agents
    return list(_paired([_body(item, agents.named(agents.default)) for item in items], open_calls))


def _body(item: InputItem, agent: Agent) -> MessageBody:
    body = item.body
    if isinstance(body, ItemReference):
        raise Invalid.unsupported(f"{body.place}.type", "a reference adds nothing; send the item itself")
    return attributed(body, agent)


def _paired(bodies: Sequence[MessageBody], open_calls: Sequence[str]) -> Iterator[MessageBody]:
    """The bodies, and a result that says so for each call that nobody answers before something else is said.

    Raises `Invalid` for a result without a call.
    """
    open = dict.fromkeys(open_calls, "")
    is_over = bool(open)  # whether the response that made the calls has ended
    for place, body in enumerate(bodies):
        if isinstance(body, ToolResult):
            if body.call_id not in open:
                raise Invalid(f"items[{place}].call_id", "no call with this id is open")
            tool = open.pop(body.call_id)
            body = replace(body, tool=tool or body.tool or "tool")
            is_over = True
        elif open and (is_over or not _goes_on(bodies[place:], open)):
            for call, tool in open.items():
                yield ToolResult(call, tool or "tool", (), "not_answered")
            open.clear()
        if isinstance(body, ToolCall):
            is_over = is_over and bool(open)
            open[body.call_id] = body.tool
        yield body


def _goes_on(bodies: Sequence[MessageBody], open: dict[str, str]) -> bool:
    """Whether the response that made these calls goes on here: more calls, or words before the results."""
    match bodies[0]:
        case ToolCall():
            return True
        case Reasoning() | AssistantMessage():
            return any(isinstance(body, ToolResult) and body.call_id in open for body in bodies)
        case _:
            return False
