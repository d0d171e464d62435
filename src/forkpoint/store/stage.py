"""The stage: where events stand between a caller, who wants to commit them, and the commit.

Everything that can be wrong with an event is found here, before anything is written: wholeness, pairing, size, Unicode.
The commit only has to put the events in order and to chain them.
Tests: tests/store/test_limits.py, forkpoint.testing.conformance.turns.
"""

from collections.abc import Sequence

from msgspec import Struct

from forkpoint.errors import TooLarge
from forkpoint.events import Envelope, Event, NewEvent, Position, encode_body, encode_envelope, seal
from forkpoint.history.digests import Link, forge
from forkpoint.history.pairing import OpenCalls, in_call_order
from forkpoint.history.state import State
from forkpoint.history.wholeness import check_whole
from forkpoint.store.values import OpenTurn, StoreLimits


class Sealed(Struct, frozen=True):
    """An event as it will be stored, before it has its place in history."""

    envelope: Envelope
    text: str  # the envelope as it is stored
    payload: str


class Staged(Struct, frozen=True):
    """Events that may be stored, and what is true after them."""

    events: tuple[Sealed, ...]
    calls: OpenCalls
    state: State
    size: int  # bytes of payload and envelope


def stage(turn: OpenTurn, events: Sequence[NewEvent], *, now: int, limits: StoreLimits) -> Staged:
    """The events, ready to be stored after those of the turn. Raises `NotWhole`, `Unpaired` or `TooLarge`."""
    calls, state = turn.calls, turn.state
    sealed = []
    size = 0
    for event in events:
        check_whole(event)
        envelope = seal(event, now)
        calls = calls.arrived(envelope)
        text, payload = encode_envelope(envelope), encode_body(event.body)
        bytes = len(payload.encode())
        if bytes > limits.payload:
            raise TooLarge("payload", bytes, limits.payload)
        state = state.then(event.body)
        size += bytes + len(text)
        sealed.append(Sealed(envelope, text, payload))
    if size > limits.commit:
        raise TooLarge("commit", size, limits.commit)
    return Staged(tuple(sealed), calls, state, size)


def placed(turn: OpenTurn, events: Sequence[NewEvent], staged: Staged, first: Position) -> tuple[Event, ...]:
    """A turn's events with their positions, after the commit that gave them these."""
    order = in_call_order([event.envelope for event in staged.events], turn.base.open_calls)
    return tuple(
        Event(Position(first.segment, first.ordinal + place), turn.id, staged.events[n].envelope, events[n].body)
        for place, n in enumerate(order)
    )


def chain(events: Sequence[Sealed], *, digest: bytes, turn: bytes, calls: OpenCalls) -> list[Link]:
    """The events of a turn as history: results in the order of their calls, each event chained to the one before."""
    links = []
    for n in in_call_order([event.envelope for event in events], calls):
        link = forge(digest, turn, events[n].text, events[n].payload)
        digest = link.chain_digest
        links.append(link)
    return links
