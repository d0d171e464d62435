"""What programs get of branches: how two differ, and what one brought from another, as JSON that can be read back.
Tests: tests/wire/test_branches.py."""

from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict

from forkpoint.backend.bring import BringReport
from forkpoint.backend.diff import CallPair, Diff, DiffSide, DiffTurn, SettingDifference, StateDifference, TurnPair
from forkpoint.backend.results import Call
from forkpoint.events import BroughtAs, Event, Position
from forkpoint.history.branches.diff import TextDiff
from forkpoint.store.values import LineageKind
from forkpoint.wire.documents import (
    CallDocument,
    EventDocument,
    UsageDocument,
    call_document,
    event_document,
    event_of,
    usage_document,
    usage_of,
)


class DiffSideDocument(Struct, frozen=True):
    """One of two conversations that are compared, and what it has since their common ancestor."""

    id: str
    name: str
    title: str | None
    kind: LineageKind
    model: str | None
    agent: str | None
    head: str | None
    events: int
    turns: int
    notes: int
    left_out: int  # turns and notes that `pairs` does not have
    usage: UsageDocument
    seconds: float


class DiffTurnDocument(Struct, frozen=True):
    """A committed turn or a note of one side, as far as it stands after the common ancestor."""

    id: str
    kind: Literal["turn", "note"]
    first: str
    last: str
    input: str
    text: str
    calls: tuple[CallDocument, ...]
    did: tuple[str, ...]
    usage: UsageDocument
    started: int
    ended: int | None
    partial: bool


class TurnPairDocument(Struct, frozen=True):
    """Two turns, or two notes, that stand beside each other; null: there is only the other one."""

    a: DiffTurnDocument | None
    b: DiffTurnDocument | None
    same: bool
    input: TextDiff | None
    text: TextDiff | None
    calls: tuple[CallPair, ...]


class DiffDocument(Struct, frozen=True):
    """How two conversations differ: where their paths part, and what each has since. A null ancestor: they share
    nothing. `related`: they are of the same family."""

    a: DiffSideDocument
    b: DiffSideDocument
    ancestor: str | None
    related: bool
    shared: int
    same: bool
    pairs: tuple[TurnPairDocument, ...]
    state: tuple[StateDifference, ...]
    settings: tuple[SettingDifference, ...]


class BroughtDocument(Struct, frozen=True):
    """What was brought from a branch: the note, its events, and what a summary cost."""

    id: str
    conversation: str
    source: str
    what: BroughtAs
    text: str
    left_out: int
    usage: UsageDocument
    events: tuple[EventDocument, ...]


# From values to documents.


def diff_document(diff: Diff) -> DiffDocument:
    pairs = tuple(
        TurnPairDocument(**asdict(pair) | {"a": _turn_document(pair.a), "b": _turn_document(pair.b)})
        for pair in diff.pairs
    )
    sides: dict[str, Any] = {"a": _side_document(diff.a), "b": _side_document(diff.b)}
    return DiffDocument(**asdict(diff) | sides | {"pairs": pairs, "same": diff.same})


def brought_document(done: BringReport) -> BroughtDocument:
    events = tuple(map(event_document, done.events))
    return BroughtDocument(**asdict(done) | {"usage": usage_document(done.usage), "events": events, "text": done.text})


def _side_document(side: DiffSide) -> DiffSideDocument:
    return DiffSideDocument(**asdict(side) | {"usage": usage_document(side.usage)})


def _turn_document(turn: DiffTurn | None) -> DiffTurnDocument | None:
    if turn is None:
        return None
    calls = tuple(map(call_document, turn.calls))
    return DiffTurnDocument(**asdict(turn) | {"usage": usage_document(turn.usage), "calls": calls})


# And back.


def diff_of(document: DiffDocument) -> Diff:
    pairs = tuple(TurnPair(**asdict(pair) | {"a": _turn_of(pair.a), "b": _turn_of(pair.b)}) for pair in document.pairs)
    fields = {name: getattr(document, name) for name in Diff.__struct_fields__}
    return Diff(**fields | {"a": _side_of(document.a), "b": _side_of(document.b), "pairs": pairs})


def brought_of(document: BroughtDocument) -> BringReport:
    events = tuple(event for event in map(event_of, document.events) if isinstance(event, Event))
    fields = {name: getattr(document, name) for name in BringReport.__struct_fields__}
    return BringReport(**fields | {"usage": usage_of(document.usage), "events": events})


def _side_of(document: DiffSideDocument) -> DiffSide:
    return DiffSide(**asdict(document) | {"usage": usage_of(document.usage)})


def _turn_of(document: DiffTurnDocument | None) -> DiffTurn | None:
    if document is None:
        return None
    calls = tuple(map(_call_of, document.calls))
    return DiffTurn(**asdict(document) | {"usage": usage_of(document.usage), "calls": calls})


def _call_of(document: CallDocument) -> Call:
    fields = {name: getattr(document, name) for name in Call.__struct_fields__}
    return Call(**fields | {"event": None if document.event is None else Position.parse(document.event)})
