"""Between rows and records: the only place that knows how a record's fields are spelled in columns.
Tests: forkpoint.testing.conformance, tests/store/test_limits.py."""

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from forkpoint.events import Position, Usage
from forkpoint.history.pairing import NO_CALLS, OpenCalls
from forkpoint.history.state import EMPTY, State
from forkpoint.history.steers import read_steers
from forkpoint.ids import id_from_bytes, id_to_bytes
from forkpoint.store.tables.database import Row
from forkpoint.store.values import (
    GIVEN_UP,
    MOST_TAKEOVERS,
    Head,
    HeldBy,
    Lineage,
    Outcome,
    Status,
    StoredConversation,
    StoredTurn,
    Tags,
    TurnError,
)

ORDINALS = 0xFFFF_FFFF
"""How many ordinals a segment can number: a position is ``segment << 32 | ordinal``."""

Parameters: TypeAlias = dict[str, Any]


class Scope(Struct, frozen=True):
    """The inputs that all operations share: whose data, the time, this process, whether another lives, who acts."""

    tenant: str
    now: int
    holder: bytes
    alive: Callable[[bytes | None, int | None], bool]
    by: str | None = None  # who acts


def pack(position: Position | None) -> int | None:
    """A position as one integer, the key of its event."""
    return None if position is None else position.segment << 32 | position.ordinal


def unpack(key: int | None) -> Position | None:
    """The position of an event's key."""
    return None if key is None else Position(key >> 32, key & ORDINALS)


def blob(id: str | None) -> bytes | None:
    return None if id is None else id_to_bytes(id)


def text(raw: bytes | None) -> str | None:
    return None if raw is None else id_from_bytes(raw)


def dumps(value: Struct | dict[str, str]) -> str:
    return msgspec.json.encode(value).decode()


load_usage = msgspec.json.Decoder(Usage).decode
load_state = msgspec.json.Decoder(State).decode
_load_calls = msgspec.json.Decoder(OpenCalls).decode
_load_error = msgspec.json.Decoder(TurnError).decode
_load_tags = msgspec.json.Decoder(dict[str, str]).decode


def load_calls(value: str) -> OpenCalls:
    return NO_CALLS if value == "{}" else _load_calls(value)


def possible_revision(revision: int | None) -> int | None:
    """A revision as a parameter of SQL; -1, which no conversation has, if SQLite could not store it."""
    return revision if revision is None or 0 <= revision < 1 << 63 else -1


def head_columns(head: Head) -> Parameters:
    """A head as the parameters that all statements use for it."""
    return {
        "head": pack(head.position),
        "head_digest": head.digest,
        "head_turn": blob(head.turn),
        "head_totals": dumps(head.totals),
        "head_state_of": blob(head.state_of),
        "head_state": None if head.state is None else dumps(head.state),
        "head_open_calls": dumps(head.open_calls),
    }


def head_of(row: Row | Parameters) -> Head:
    """The head in a conversation's row."""
    state = row["head_state"]
    return Head(
        position=unpack(row["head"]),
        digest=row["head_digest"],
        turn=text(row["head_turn"]),
        totals=load_usage(row["head_totals"]),
        state_of=text(row["head_state_of"]),
        state=None if state is None else load_state(state),
        open_calls=load_calls(row["head_open_calls"]),
    )


def outcome_of(row: Row, scope: Scope) -> Outcome:
    """How a turn stands: as stored, but `interrupted` if it runs in a process that is gone."""
    outcome: Outcome = row["outcome"]
    if outcome == "running" and not scope.alive(row["holder"], row["holder_seen"]):
        return "interrupted"
    return outcome


def conversation_of(row: Row | Parameters, scope: Scope) -> StoredConversation:
    """A conversation from its row joined with its open turn."""
    status: Status = row["turn_outcome"] or "idle"
    if status == "running" and not scope.alive(row["turn_holder"], row["holder_seen"]):
        status = "interrupted"
    return StoredConversation(
        id=id_from_bytes(row["id"]),
        tenant=row["tenant"],
        name=row["name"],
        family=id_from_bytes(row["family"]),
        revision=row["revision"],
        head=head_of(row),
        settings=row["settings"],
        cache=row["cache"],
        lineage=lineage_of(row),
        own_from=row["own_from"],
        inherited=load_usage(row["inherited"]),
        carries_metrics=bool(row["carries_metrics"]),
        title=row["title"],
        tags=load_tags(row["tags"]),
        status=status,
        open_turn=text(row["open_turn"]),
        draft=bool(row["draft"]),
        created=row["created"],
        updated=row["updated"],
        used=row["used"],
    )


def lineage_of(row: Row | Parameters) -> Lineage:
    """Where a conversation came from, from its row."""
    return Lineage(
        kind=row["lineage_kind"],
        source=text(row["lineage_source"]),
        at=unpack(row["lineage_at"]),
        turn=text(row["lineage_turn"]),
        call=row["lineage_call"],
    )


def turn_of(row: Row, scope: Scope) -> StoredTurn:
    """A turn from its row joined with its holder."""
    error, outcome = None if row["error"] is None else _load_error(row["error"]), outcome_of(row, scope)
    if outcome == "interrupted" and row["takeovers"] > MOST_TAKEOVERS:
        error = GIVEN_UP
    return StoredTurn(
        id=id_from_bytes(row["id"]),
        conversation=id_from_bytes(row["conversation"]),
        kind=row["kind"],
        outcome=outcome,
        base=unpack(row["base"]),
        end=unpack(row["end"]),
        input=row["input"],
        usage=load_usage(row["usage"]),
        totals=load_usage(row["totals"]),
        open_calls=load_calls(row["open_calls"]),
        error=error,
        retry_of=text(row["retry_of"]),
        started=row["started"],
        ended=row["ended"],
        by=row["by"],
        held_by=held_by(row, row["started"]) if outcome == "running" else None,
        cancel_asked=row["cancel_asked"],
        steered=read_steers(row["steered"]),
        accepted=bool(row["accepted"]),
        takeovers=row["takeovers"],
    )


def held_by(row: Row, started: int) -> HeldBy:
    """The process that runs a turn, from a row that is joined with the turn's holder."""
    return HeldBy(row["holder_host"], row["holder_process"], max(started, row["holder_since"] or 0))


def load_tags(value: str) -> Tags:
    return tuple(_load_tags(value).items())


def state_or_empty(value: str | None) -> State:
    return EMPTY if value is None else load_state(value)
