"""Reading turns: one by its id, those of a conversation, and those that were tried at its head and did not commit.
Tests: tests/conversation/test_turns.py."""

import math
from collections.abc import AsyncIterator, Iterable
from functools import partial

from msgspec.structs import replace

from forkpoint.backend.messages import goes_on, read_input
from forkpoint.backend.results import Turn, steered_in
from forkpoint.errors import NoSuchTurn, NotFound
from forkpoint.events import Event, Position
from forkpoint.paging import Page, every
from forkpoint.store.protocol import Store
from forkpoint.store.values import StoredConversation, StoredTurn

_NOTES = 64  # events of notes among which the last turn is looked for


class TurnReader:
    """Reads the turns of a store's conversations."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read(self, id: str, turn: str) -> Turn:
        """A turn of a conversation. A committed turn may also belong to a conversation that this one was forked off."""
        record = await self._store.turn(turn)
        if record.kind != "turn":
            raise NotFound("turn", turn)  # a note is not a turn
        if record.conversation != id and record.outcome != "committed":
            raise NoSuchTurn(id, "read", f"turn {turn} is another conversation's")
        if record.accepted and record.has_result:
            await self._store.settle(
                turn
            )  # whoever was promised it hears the outcome here first, so it must be certain
        part = await self._part(id, record)
        return await (read_turn(self._store, record.id) if part is None else self._read_part(id, part))

    async def own(self, id: str, turn: str, verb: str) -> StoredTurn:
        """The record of a turn that belongs to this very conversation."""
        record = await self._store.turn(turn)
        if record.kind != "turn":
            raise NotFound("turn", turn)  # a note is not a turn
        if record.conversation != id:
            raise NoSuchTurn(id, verb, f"turn {turn} is another conversation's")
        return record

    async def page(
        self, id: str, cursor: str | None, limit: int, *, newest_first: bool = False, committed: bool = False
    ) -> Page[Turn]:
        """The turns of a conversation, in order or the newest first."""
        page = await self._store.turns(
            id, cursor=cursor, limit=limit, newest_first=newest_first, committed=committed, notes=False
        )
        turns = [
            await (self._read_part(id, record) if record.partial else read_turn(self._store, record.id))
            for record in page.items
        ]
        promised = [turn for turn, record in zip(turns, page.items, strict=True) if record.accepted and _has_end(turn)]
        if promised:  # their outcomes must be certain, and whatever came before the last of them is as certain
            last = max(promised, key=lambda turn: turn.ended or math.inf)
            if await self._store.settle(last.id) != last.outcome:  # it was resumed, or a failover has taken it back
                return await self.page(id, cursor, limit, newest_first=newest_first, committed=committed)
        return Page(tuple(turns), page.next)

    async def tries(self, id: str) -> tuple[Turn, ...]:
        """The turns that stand at the head and are not history, and the open one, wherever it stands."""
        record = await self._store.read(id)
        found = await self._tries_at(id, record.head.position)
        if not found and (before := await self._before_a_summary(record)) is not None:
            found = await self._tries_at(id, before)
        if record.open_turn is not None and all(turn.id != record.open_turn for turn in found):
            found.append(await self._store.turn(record.open_turn))  # it stands elsewhere, and holds the conversation
        return tuple([await read_turn(self._store, turn.id) for turn in found])

    async def last(self, record: StoredConversation) -> StoredTurn | None:
        """The turn that was committed last, and is whole on the path. Notes may stand after it, though rarely many."""
        seen: set[str] = set()
        for event in reversed(await self._store.events(record.id, last=_NOTES)):
            if event.turn not in seen:
                turn = await self._store.turn(event.turn)
                if turn.kind == "turn" and turn.end == event.id:
                    return turn
            seen.add(event.turn)
        return None

    def all(self, conversation: str, *, since: int = 0) -> AsyncIterator[StoredTurn]:
        """The turns on a conversation's path from an ordinal on, and its notes."""
        return every(partial(self._store.turns, conversation, since=since))

    async def own_turns(self, record: StoredConversation, *, since: int = 0) -> list[StoredTurn]:
        """A conversation's own turns, in the order of its path, without those that it inherited."""
        turns = self.all(record.id, since=since)
        return [turn async for turn in turns if turn.kind == "turn" and turn.conversation == record.id]

    async def _tries_at(self, id: str, position: Position | None) -> list[StoredTurn]:
        """What was tried at a place of the path, and did not commit."""
        since = 0 if position is None else position.ordinal
        tries = [turn async for turn in self.all(id, since=since) if turn.kind == "turn" and turn.base == position]
        return [turn for turn in tries if turn.outcome != "committed"]

    async def _read_part(self, id: str, part: StoredTurn) -> Turn:
        """A turn of which the path has only a part: with the results that a fork has put there, if calls are open."""
        turn = await read_turn(self._store, part.id, part)
        assert part.end is not None
        events = [event for event in turn.events if isinstance(event, Event)]
        if not (waiting := _unanswered(events)):
            return turn
        following = await self._store.events(id, after=part.end.ordinal, limit=1)
        note = await self._store.turn(following[0].turn) if following else None
        if note is None or note.end is None:
            return turn
        size = note.end.ordinal - part.end.ordinal
        answers = await self._store.events(id, after=part.end.ordinal, limit=size)
        own = [event for event in answers if event.turn == note.id and event.envelope.call_id in waiting]
        return replace(turn, events=(*events, *own))

    async def _part(self, id: str, record: StoredTurn) -> StoredTurn | None:
        """The turn as a conversation has it if only a part of it is on the path; None if the path has all or none."""
        began = record.base.ordinal if record.base else 0
        if record.end is None:
            return None
        path = await self._store.path(id)
        first = path.at(began + 1)
        if record.end in path or first is None or first.segment != record.end.segment:
            return None
        if record.base is not None and record.base not in path:
            return None
        async for turn in self.all(id, since=began):
            if turn.id == record.id:
                return turn
            if turn.base is not None and turn.base.ordinal > began:
                break
        return None

    async def _before_a_summary(self, record: StoredConversation) -> Position | None:
        """Where a conversation stood before it was last condensed, if it has stood still since. A turn that was too
        long there is tried again after that."""
        last = await self._store.events(record.id, last=1)
        if not last or (note := await self._store.turn(last[-1].turn)).kind != "note":
            return None
        after = 0 if note.base is None else note.base.ordinal
        added = await self._store.events(record.id, after=after, kinds=("condensation",))
        return note.base if added else None


def _has_end(turn: Turn) -> bool:
    """Whether whoever was promised the turn hears its result."""
    return turn.outcome not in ("running", "interrupted")


def _unanswered(events: Iterable[Event]) -> set[str]:
    """The calls among events that have no result."""
    waiting: set[str] = set()
    for event in events:
        if event.kind == "tool_call":
            waiting.add(event.envelope.call_id or "")
        elif event.kind == "tool_result":
            waiting.discard(event.envelope.call_id or "")
    return waiting


async def read_turn(store: Store, id: str, part: StoredTurn | None = None) -> Turn:
    """A turn as the store has it, with its events or its steps. ``part`` is what a path has of it, if that is less."""
    record, events = await store.whole_turn(id, upto=None if part is None else part.end)
    record = record if part is None else part
    return Turn(
        id=record.id,
        conversation=record.conversation,
        outcome=record.outcome,
        given=read_input(record.input),
        events=events,
        usage=record.usage,
        error=record.error,
        retry_of=record.retry_of,
        started=record.started,
        ended=record.ended,
        by=record.by,
        steered=steered_in(record.steered, events),
        partial=record.partial,
        go_on=goes_on(record.input),
        accepted=record.accepted and record.ended is None,
    )
