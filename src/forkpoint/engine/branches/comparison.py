"""Comparison: where the paths of two conversations part, and what each has since.

What both share is not read, however long it is. Of what they do not share, as many turns are read as are asked for.
Tests: tests/conversation/test_diff.py.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial

import anyio.to_thread
from msgspec import Struct

from forkpoint.agent.transcript import shortened
from forkpoint.backend.diff import CallPair, Diff, DiffSide, DiffTurn, SettingDifference, StateDifference, TurnPair
from forkpoint.backend.results import Call, calls_of, words
from forkpoint.backend.settings import Settings
from forkpoint.engine.branches.branch_path import BranchPath, ancestor_of, are_unchanged, read_branch_path
from forkpoint.engine.branches.setting_words import setting_differences
from forkpoint.engine.conversation_cache import ConversationCache
from forkpoint.engine.views import info_of
from forkpoint.errors import NotFound
from forkpoint.events import (
    AssistantMessage,
    Brought,
    Condensation,
    Event,
    Gone,
    Imported,
    ModelCalled,
    Position,
    ResultSubstituted,
    SettingsChanged,
    SkillActivated,
    StateChange,
    SubAgentSpawned,
    ToolCall,
    ToolResult,
    TurnStopped,
    Usage,
    UserMessage,
)
from forkpoint.history.branches.diff import TextDiff, Work, aligned, text_diff
from forkpoint.history.paths import Path
from forkpoint.history.state import EMPTY, State
from forkpoint.paging import every
from forkpoint.store.protocol import Store
from forkpoint.store.values import StoredTurn

_AT_ONCE = 256  # events that are read at a time
_ERASED = "[erased]"
_LONGEST = 200  # characters that are told of the result of a call that both sides share


class _Since(Struct, frozen=True):
    """What a conversation has since an event: its first turns, and figures of all of them."""

    turns: tuple[DiffTurn, ...]
    side: DiffSide


class _Rest(Struct, frozen=True):
    """How many turns and notes are not shown, what they have used, and how long these turns took."""

    turns: int
    notes: int
    usage: Usage
    seconds: float


class BranchComparison:
    """Compares the conversations of a store."""

    def __init__(self, store: Store, records: ConversationCache) -> None:
        self._store = store
        self._records = records

    async def diff(self, id: str, other: str, limit: int) -> Diff:
        """How two conversations differ. ``other`` is an id or a name."""
        while True:
            a = await read_branch_path(self._store, id)
            b = await read_branch_path(self._store, (await self._records.find(other)).id)
            try:
                return await self._between(a, b, limit)
            except NotFound:  # an event that was there a moment ago: one of the two has been rewound, or deleted
                if await are_unchanged(self._store, a, b):
                    raise

    async def _between(self, a: BranchPath, b: BranchPath, limit: int) -> Diff:
        ancestor = ancestor_of(a, b)
        ours, theirs = await self._since(a, ancestor, limit), await self._since(b, ancestor, limit)
        before = EMPTY if ancestor is None else await self._store.state(a.record.id, at=ancestor)
        states = [
            await self._store.state(one.record.id, at=one.head) if one.head is not None else EMPTY for one in (a, b)
        ]
        compared = partial(
            _compared, ours.turns, theirs.turns, *(Settings.from_json(one.record.settings) for one in (a, b))
        )
        pairs, settings = await anyio.to_thread.run_sync(compared)
        return Diff(
            a=ours.side,
            b=theirs.side,
            ancestor=None if ancestor is None else str(ancestor),
            related=a.record.family == b.record.family,
            shared=0 if ancestor is None else ancestor.ordinal,
            pairs=pairs,
            state=_state_differences(before, *states),
            settings=settings,
        )

    async def _since(self, one: BranchPath, ancestor: Position | None, limit: int) -> _Since:
        record, after = one.record, 0 if ancestor is None else ancestor.ordinal
        groups = await self._groups(one, after, limit)
        records = [await self._store.turn(events[0].turn) for events in groups]
        begun = await self._begun_before(records[0], after) if records else Usage()
        turns = [_turn(events, turn, one.path, after, begun) for events, turn in zip(groups, records, strict=True)]
        rest = await self._rest(one, groups[-1][-1].id.ordinal if groups else after)
        info = info_of(record)
        side = DiffSide(
            id=record.id,
            name=record.name,
            title=record.title,
            kind=record.lineage.kind,
            model=info.model,
            agent=info.agent,
            head=info.head,
            events=len(one.path) - after,
            turns=sum(turn.kind == "turn" for turn in turns) + rest.turns,
            notes=sum(turn.kind == "note" for turn in turns) + rest.notes,
            left_out=rest.turns + rest.notes,
            usage=sum((turn.usage for turn in turns), rest.usage),
            seconds=sum(map(_seconds, turns)) + rest.seconds,
        )
        return _Since(tuple(turns), side)

    async def _rest(self, one: BranchPath, after: int) -> "_Rest":
        """How much more a path has after an ordinal."""
        turns = notes = 0
        usage, seconds = Usage(), 0.0
        if after < len(one.path):
            async for turn in every(partial(self._store.turns, one.record.id, since=after)):
                if turn.end is None or turn.end not in one.path:
                    continue  # a try, or it was committed meanwhile
                turns, notes = turns + (turn.kind == "turn"), notes + (turn.kind == "note")
                if not turn.partial:  # a part has no cost of its own
                    usage, seconds = usage + turn.usage, seconds + _seconds(turn)
        return _Rest(turns, notes, usage, seconds)

    async def _groups(self, one: BranchPath, after: int, limit: int) -> list[list[Event]]:
        """The events after an ordinal, grouped by turn or note, up to the given number of groups."""
        groups: list[list[Event]] = []
        while after < len(one.path):
            for event in await self._store.events(one.record.id, at=one.head, after=after, limit=_AT_ONCE):
                if not groups or groups[-1][-1].turn != event.turn:
                    if len(groups) == limit:
                        return groups
                    groups.append([])
                groups[-1].append(event)
                after = event.id.ordinal
        return groups

    async def _begun_before(self, turn: StoredTurn, after: int) -> Usage:
        """What a turn had used at an ordinal, if it began before that; else nothing."""
        if _began(turn) >= after:
            return Usage()
        _, events = await self._store.whole_turn(turn.id)
        first = [event.body for event in events if isinstance(event, Event) and event.id.ordinal <= after]
        return sum((body.usage for body in first if isinstance(body, ModelCalled)), Usage())


def _turn(events: Sequence[Event], record: StoredTurn, path: Path, after: int, begun: Usage) -> DiffTurn:
    """A turn or note by those of its events that stand after an ordinal. ``begun`` is what it had used before."""
    is_whole = record.end is not None and record.end in path
    begins_before = _began(record) < after
    usage = record.usage - begun if begins_before else record.usage
    called = {event.body.call_id for event in events if isinstance(event.body, ToolCall)}
    return DiffTurn(
        id=record.id,
        kind=record.kind,
        first=str(events[0].id),
        last=str(events[-1].id),
        input=_said(events, "user_message"),
        text=_said(events, "assistant_message"),
        calls=calls_of(events),
        did=tuple(dict.fromkeys(did for event in events if (did := _did(event, called)) is not None)),
        usage=usage if is_whole else Usage(),
        started=record.started,
        ended=record.ended if is_whole else None,
        partial=begins_before or not is_whole,
    )


def _began(turn: StoredTurn) -> int:
    """The ordinal before a turn; 0 if it is the first of its path."""
    return 0 if turn.base is None else turn.base.ordinal


def _seconds(turn: DiffTurn | StoredTurn) -> float:
    """How long a turn took; a note takes no time."""
    return 0.0 if turn.kind == "note" or turn.ended is None else (turn.ended - turn.started) / 1e6


def _said(events: Sequence[Event], kind: str) -> str:
    """All messages of a kind, in words."""
    said = []
    for event in events:
        if event.kind == kind:
            body = event.body
            said.append(words(body.parts) if isinstance(body, UserMessage | AssistantMessage) else _ERASED)
    return "\n\n".join(said)


def _did(event: Event, called: Collection[str]) -> str | None:
    """What an event did beside saying something, in words; None if it did nothing that is told.

    The results of the calls ``called`` are told with these calls. Other results answer calls that both sides share.
    """
    match event.body:
        case ResultSubstituted(call_id=id, tool=tool):
            return f"another result for {tool} {id}"
        case ToolResult(call_id=id) as result if id not in called:
            return f"result of {result.tool} {id}: {result.status}, {shortened(words(result.parts), _LONGEST)}"
        case StateChange(set=set, removed=removed):
            changes = [*(f"{key} = {value}" for key, value in set), *(f"no {key}" for key in removed)]
            return f"state: {', '.join(changes)}"
        case SettingsChanged(reason=reason):
            return f"settings changed{f': {reason}' if reason else ''}"
        case Condensation(kept_from=kept_from):
            return f"condensed all before event {kept_from:,}"
        case SkillActivated(name=name):
            return f"skill {name} activated"
        case SubAgentSpawned(nickname=nickname, conversation=conversation):
            return f"sub-agent {nickname or conversation} was asked"
        case TurnStopped(what=what, limit=limit):
            return f"stopped at the limit of {limit} {what}"
        case Imported(source=source, count=count):
            return f"{count:,} events imported from {source}"
        case Brought(what=what, conversation=conversation):
            return f"brought from {conversation}: {what}"
        case Gone():
            return f"{event.kind.replace('_', ' ')} erased"
        case _:
            return None


def _compared(
    a: Sequence[DiffTurn], b: Sequence[DiffTurn], ours: Settings, theirs: Settings
) -> tuple[tuple[TurnPair, ...], tuple[SettingDifference, ...]]:
    """The turns of two sides beside each other, and how their settings differ."""
    work = Work()
    keys = [[(turn.kind, turn.input, turn.did if turn.kind == "note" else ()) for turn in side] for side in (a, b)]
    places = aligned(keys[0], keys[1], lambda x, y: a[x].kind == b[y].kind, work)
    pairs = [_pair(None if x is None else a[x], None if y is None else b[y], work) for x, y in places]
    return tuple(pairs), setting_differences(ours, theirs, work)


def _pair(a: DiffTurn | None, b: DiffTurn | None, work: Work) -> TurnPair:
    if a is None or b is None:
        return TurnPair(a, b)
    keys = [[(call.tool, call.arguments) for call in turn.calls] for turn in (a, b)]
    fits: Callable[[int, int], bool] = lambda x, y: a.calls[x].tool == b.calls[y].tool  # noqa: E731
    places = aligned(keys[0], keys[1], fits, work)
    calls = tuple(_call_pair(a.calls, b.calls, x, y, work) for x, y in places)
    input, text = text_diff(a.input, b.input, work), text_diff(a.text, b.text, work)
    same = input.same and text.same and a.did == b.did and all(call.same for call in calls)
    return TurnPair(a, b, same, input, text, calls)


def _call_pair(a: Sequence[Call], b: Sequence[Call], x: int | None, y: int | None, work: Work) -> CallPair:
    if x is None or y is None:
        return CallPair(x, y)
    one, other = a[x], b[y]
    arguments = text_diff(one.arguments, other.arguments, work)
    result: TextDiff | None = None
    if one.result is not None and other.result is not None:
        result = text_diff(one.result, other.result, work)
    same = arguments.same and one.status == other.status and one.result == other.result
    return CallPair(x, y, same, arguments, result)


def _state_differences(before: State, a: State, b: State) -> tuple[StateDifference, ...]:
    values = [dict(state.values) for state in (before, a, b)]
    keys = sorted({key for side in values for key in side})
    found = [StateDifference(key, *(side.get(key) for side in values)) for key in keys]
    return tuple(one for one in found if not one.before == one.a == one.b)
