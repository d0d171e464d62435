"""Events: what is committed, page by page, and as a stream that goes on."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import Query, Response
from msgspec import Struct

from forkpoint.backend.messages import ListFormat
from forkpoint.backend.results import Info
from forkpoint.errors import Invalid, NotFound, TooLarge, Unauthorized
from forkpoint.events import Event, Position
from forkpoint.history.pairing import SAID
from forkpoint.server.api.public import public_event
from forkpoint.server.http.call import ApiCall, CallMade, Calls, Conversation, answer
from forkpoint.server.live.family import FamilyFollower, read_cursor
from forkpoint.server.live.follower import Follower, StreamReader, confirm
from forkpoint.server.live.stream import EventStream
from forkpoint.server.services import Services
from forkpoint.wire.documents import EventDocument, EventsDocument
from forkpoint.wire.message_lists import write_list

calls = Calls("events", under="/api/conversations/{id}")

MOST_BYTES = 8 * 1024 * 1024
"""About how much a page of events has at most, however few that are."""
MOST_EVENTS = 50_000
"""Events of a conversation whose messages are given at once. Whoever wants more reads its events, page by page."""
FEW = 32
"""So many are read at once, to see how large they are."""


@calls("GET", "/events", role="read", gives=EventsDocument, raises="not_found")
async def list_events(
    call: CallMade,
    id: Conversation,
    after: Annotated[str, Query(description="An event's id, or its ordinal.", examples=["1-4", "4"])] = "0",
    limit: Annotated[int, Query(ge=1, le=1000, description="How much of the path is read.")] = 100,
    kind: Annotated[list[str] | None, Query(description="Only events of these kinds.")] = None,
    at: Annotated[str | None, Query(description="The event to read up to: `head` of an earlier page.")] = None,
) -> Response:
    """Committed events in order."""
    store = call.services.tenants.store.within(call.tenant)
    info, _ = await call.found(id)
    end = _position("at", at) if at is not None else Position.parse(info.head) if info.head is not None else None
    start = _ordinal(after)
    if not _is_number(after) and start and _position("after", after) not in await store.path(info.id):
        raise NotFound("event", after)  # what follows it is not known here: the conversation was rewound
    if end is None or start >= end.ordinal:
        return answer(EventsDocument((), None, None if end is None else str(end)))
    items: list[EventDocument] = []
    shown: Sequence[Event] = ()  # the last that were read
    upto, step, size = min(start + limit, end.ordinal), FEW, 0
    while start < upto and size < MOST_BYTES:
        step = min(step, upto - start)
        events = await store.events(info.id, at=end, after=start, limit=step, kinds=tuple(kind or ()))
        shown = events or shown
        read = [public_event(event) for event in events]
        new = sum(len(document.body) for document in read)
        size += new
        items += read
        start += step
        # As many as will fit if they are like these, and never many: small ones say nothing of those that follow.
        step = max(1, min(FEW, (MOST_BYTES - size) * step // (new + 1)))
    await confirm(store, shown)
    return answer(EventsDocument(tuple(items), str(start) if start < end.ordinal else None, str(end)))


class MessagesDocument(Struct, frozen=True):
    """All that was said, as a list of messages that a provider's SDK takes."""

    format: ListFormat
    messages: list[dict[str, Any]]


@calls("GET", "/messages", role="read", gives=MessagesDocument, raises="not_found too_large")
async def list_messages(
    call: CallMade,
    id: Conversation,
    format: Annotated[ListFormat, Query(description="Whose form the messages have.")] = "openai",
) -> Response:
    """All that was said, as plain messages: for chat completions, or for Anthropic's SDK.

    The agent's instructions are not among them, nor is what no such list has a place for.
    """
    info, _ = await call.found(id)
    if info.events > MOST_EVENTS:
        raise TooLarge("conversation", info.events, MOST_EVENTS, "events")
    events = await call.backend.events(info.id, kinds=sorted(SAID))
    return answer(MessagesDocument(format, write_list(format, events)))


@calls(
    "GET",
    "/events/stream",
    role="read",
    streams="committed events, each once and in order, with what is told of turns that run",
    only_streams=True,
    cursor=True,
    raises="not_found too_many shutting_down",
)
async def follow_events(
    call: CallMade,
    id: Conversation,
    after: Annotated[
        str, Query(description="An event's id, its ordinal, or `head`; `Last-Event-ID` wins.", examples=["head"])
    ] = "0",
    provisional: Annotated[bool, Query(description="With what is told of turns that run.")] = True,
) -> Response:
    """Follow the conversation as it grows.

    Reconnecting with `Last-Event-ID` gives neither gap nor duplicate. After a rewind there is one `rewound` event.
    """
    info, _ = await call.found(id)
    store = call.services.watching.store(call.tenant)
    given = call.request.headers.get("last-event-id") or after
    cursor: Position | None
    if given == "head":
        cursor = None if info.head is None else Position.parse(info.head)
    elif (ordinal := _ordinal(given)) == 0:
        cursor = None
    elif _is_number(given):
        cursor = (await store.path(info.id)).at(ordinal) or Position(0, ordinal)  # of another history, now gone
    else:
        cursor = _position("after", given)
    reader, left = _reader(call, info, provisional)
    return EventStream(Follower(reader, store, info.id, cursor).frames(), left=left)


@calls(
    "GET",
    "/family/stream",
    role="read",
    streams="what all members of a family commit, each event once, with what is told of turns that run",
    only_streams=True,
    of_family=True,
    cursor=True,
    raises="not_found too_many shutting_down",
)
async def follow_family(
    call: CallMade,
    id: Conversation,
    after: Annotated[
        str, Query(description="An `id` of this stream, `0` or `head`; `Last-Event-ID` wins.", examples=["head"])
    ] = "0",
    agents: Annotated[bool, Query(description="Only the conversation and its sub-agents, at every depth.")] = False,
    provisional: Annotated[bool, Query(description="With what is told of turns that run.")] = True,
) -> Response:
    """Follow the conversation with all its forks, set-aside branches and sub-agents, also those yet to come.

    Every frame names its `conversation`, and a sub-agent's `path`. First comes `family`: who is there. An event that
    branches share comes once. Reconnecting with `Last-Event-ID` gives neither gap nor duplicate.
    """
    info, _ = await call.found(id)
    since = read_cursor("after", call.request.headers.get("last-event-id") or after)
    reader, left = _reader(call, info, provisional)
    follower = FamilyFollower(reader, call.services.watching, call.tenant, info, since, agents=agents)
    return EventStream(follower.frames(), left=left)


def _reader(call: ApiCall, info: Info, provisional: bool) -> tuple[StreamReader, Callable[[], None]]:
    """A reader of a conversation's stream, who is counted as one; and what to call when it leaves."""
    services, tenant = call.services, call.tenant
    mailbox = services.watching.watch(tenant, info.id, info.revision, provisional=provisional)
    reader = StreamReader(
        mailbox,
        services.settings.heartbeat,
        running=partial(services.turns.feed, tenant),
        allowed=partial(_is_allowed, services, tenant, call.request.headers.get("authorization")),
        closing=lambda: services.watching.closing,
        slow=services.metrics.gap,
    )
    return reader, partial(services.watching.leave, tenant, info.id, mailbox)


def _is_allowed(services: Services, tenant: str, authorization: str | None) -> bool:
    """Whether the key that a stream was opened with still counts."""
    if services.keyring is None:
        return True
    try:
        return services.keyring.check(authorization).tenant == tenant
    except Unauthorized:
        return False


def _is_number(given: str) -> bool:
    return given.isascii() and given.isdigit() and len(given) < 19


def _ordinal(given: str) -> int:
    return int(given) if _is_number(given) else _position("after", given).ordinal


def _position(param: str, given: str) -> Position:
    try:
        position = Position.parse(given)
    except ValueError:
        raise Invalid(param, "it is not the id of an event") from None
    if max(position.segment, position.ordinal) >= 2**63:
        raise Invalid(param, "it is not the id of an event")
    return position
