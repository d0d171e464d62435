"""Reading a path for a run: what its prompt shows, the newest event of a kind, and its events from the end on.

However long a path is, none of this reads more than it needs. Only the prompt of a path without a condensation shows
all of it. Tests: tests/engine/turns/test_path.py.
"""

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing

from forkpoint.events import Event, Gone, Opaque, Position
from forkpoint.history.branches.ending import Ending, ending_of, last_exchanges
from forkpoint.history.branches.places import places_of
from forkpoint.history.shown import ShownPath, beginning, is_in_force, newest_condensation
from forkpoint.llm.prompt.manifest import Manifest
from forkpoint.llm.prompt.rendering import Rendering, render, render_shown
from forkpoint.store.protocol import Store

_FEW = 64  # events that are read at first, where it is not known how many are needed
_MANY = 4096  # and at most at once


async def rendered(store: Store, conversation: str, at: Position | None, manifest: Manifest) -> Rendering:
    """The prompt of a conversation's path up to a position; None: of an empty path."""
    if at is None:
        return render(manifest)
    shown = await read_shown(store, conversation, at)
    short = None if shown is None else render_shown(manifest, shown)
    return render(manifest, await store.events(conversation, at=at)) if short is None else short


async def read_shown(store: Store, conversation: str, at: Position) -> ShownPath | None:
    """What prompts show of a path; None if that is not less than all of it, or cannot be told."""
    landmarks = await store.landmarks(conversation, ("condensation", "system_message"), at=at)
    condensation = newest_condensation(landmarks)
    if condensation is None or condensation.kept_from is None:
        return None
    condensed_at = condensation.position.ordinal
    rest = await _from_a_beginning(store, conversation, at, min(condensation.kept_from, condensed_at))
    start = rest[0].id.ordinal
    if start == 1:
        return ShownPath(rest)
    if not is_in_force(condensation, rest):
        return None
    instructions: list[Event] = []
    opening: list[Event] = []
    system = [one.position.ordinal for one in landmarks if one.kind == "system_message"]
    if system and system[0] < condensed_at:
        opening = await _opening(store, conversation, at, start - 1)
    if system and system[0] < start:
        instructions = await store.events(conversation, at=at, limit=start - 1, kinds=("system_message",))
    return ShownPath(rest, condensed_at, instructions, opening)


async def newest(store: Store, conversation: str, kind: str, at: Position | None) -> Event | None:
    """The newest event of a kind of `LANDMARKS` on a path that can be read; None if the path has none."""
    landmarks = [] if at is None else await store.landmarks(conversation, (kind,), at=at)
    for one in reversed(landmarks):
        event = (await store.events(conversation, at=at, after=one.position.ordinal - 1, limit=1))[0]
        if not isinstance(event.body, Gone | Opaque):
            return event
    return None


async def backwards(
    store: Store, conversation: str, at: Position | None, *, before: int | None = None
) -> AsyncGenerator[Event]:
    """The events of a path, or those before an ordinal, the newest first. At first few are read at once, then more."""
    end, size = 0 if at is None else at.ordinal, _FEW
    end = end if before is None else min(end, before - 1)
    while end > 0:
        begin = max(end - size, 0)
        for event in reversed(await store.events(conversation, at=at, after=begin, limit=end - begin)):
            yield event
        end, size = begin, min(2 * size, _MANY)


async def read_ending(store: Store, conversation: str, at: Position | None) -> Ending:
    """How a path ends, read from its tail."""
    size = _FEW
    while at is not None:
        is_all = size >= at.ordinal
        tail = await store.events(conversation, at=at, last=size)
        if (found := ending_of(tail, is_all=is_all)) is not None:
            return found
        assert not is_all, "then it can be told"
        size *= 4
    return "empty"


async def read_last_exchanges(store: Store, conversation: str, at: Position | None) -> list[Event]:
    """The events of a path since its last user message; all of them if it has none."""
    size = _FEW
    while at is not None:
        tail = await store.events(conversation, at=at, last=size)
        if (found := last_exchanges(tail)) is not None:
            return list(found)
        if size >= at.ordinal:
            return tail
        size *= 4
    return []


async def read_places(store: Store, events: Sequence[Event]) -> dict[str, str]:
    """The place of each event of a stretch of a path in its turn, by its id: what a copy of it has as its origin."""
    base = (await store.turn(events[0].turn)).base if events else None
    return places_of(events, 0 if base is None else base.ordinal)


async def calls_among(store: Store, conversation: str, at: Position | None, wanted: Collection[str]) -> list[Event]:
    """The tool calls of a path from the oldest on of those with the wanted ids; all of them if one is not there."""
    found: list[Event] = []
    missing = set(wanted)
    events = backwards(store, conversation, at)
    async with aclosing(events):
        while missing and (event := await anext(events, None)) is not None:
            if event.kind == "tool_call":
                found.append(event)
                missing.discard(event.envelope.call_id or "")
    return found[::-1]


async def _from_a_beginning(store: Store, conversation: str, at: Position, wanted: int) -> list[Event]:
    """The events of a path from the last place on, at or before an ordinal, where a prompt can begin."""
    size = _FEW
    begin = max(wanted - size, 0)
    events = await store.events(conversation, at=at, after=begin)
    while begin > 0 and (place := beginning(events, wanted)) is None:
        size = min(2 * size, _MANY)
        earlier = max(begin - size, 0)
        events = await store.events(conversation, at=at, after=earlier, limit=begin - earlier) + events
        begin = earlier
    return events if begin == 0 else events[place:]


async def _opening(store: Store, conversation: str, at: Position, most: int) -> list[Event]:
    """How a path begins, up to its first user message, or so many events if that comes later."""
    opening: list[Event] = []
    while len(opening) < most:
        size = min(max(_FEW, len(opening)), most - len(opening))
        for event in await store.events(conversation, at=at, after=len(opening), limit=size):
            opening.append(event)
            if event.kind == "user_message":
                return opening
    return opening
