"""Pairing: in committed history every tool call has exactly one result, in order, and no result lacks its call.

Only calls that were handed to the client's tools may be open, and only at the head; the next turn first
answers each. All of this is decided from envelopes, so it holds for erased events too.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from forkpoint.errors import Unpaired
from forkpoint.events import Envelope

RESPONSE = frozenset({"assistant_message", "reasoning", "tool_call"})
"""The kinds of events that a model's response is made of."""

_MESSAGES = frozenset({"user_message", "system_message"}) | RESPONSE

SAID = _MESSAGES | {"tool_result"}
"""The kinds of events that are said by somebody: what a prompt is made of, and the order of which is checked."""


class OpenCalls(Struct, frozen=True, omit_defaults=True):
    """The calls that wait for a result: ours, and those that the client was handed."""

    ours: tuple[str, ...] = ()
    client: tuple[str, ...] = ()
    response: int | None = None  # which model response the calls stand in
    answering: bool = False  # some result of the same response is in already, so no further call may come

    def __bool__(self) -> bool:
        return bool(self.ours or self.client)

    def then(self, envelope: Envelope) -> "OpenCalls":
        """What is open after one more event. Raises `Unpaired` if that event may not come here."""
        match envelope.kind:
            case "tool_call":
                return self._asked(envelope)
            case "tool_result":
                return self._answered(envelope)
            case kind if self and kind in _MESSAGES and (self._over(envelope) or kind not in RESPONSE):
                waiting = (self.ours + self.client)[0]
                raise Unpaired(f"call {waiting!r} has no result before the next {kind}", waiting)
            case _:
                return self

    def arrived(self, envelope: Envelope) -> "OpenCalls":
        """The same for an event of a turn in progress, where results come in whatever order the tools end."""
        due = self.ours or self.client
        if envelope.kind == "tool_result" and envelope.call_id in due:
            ours = tuple(id for id in self.ours if id != envelope.call_id)
            client = self.client if self.ours else tuple(id for id in self.client if id != envelope.call_id)
            return replace(self, ours=ours, client=client, answering=True) if ours or client else NO_CALLS
        return self.then(envelope)

    def after(self, envelopes: Iterable[Envelope]) -> "OpenCalls":
        """What is open after these events. Raises `Unpaired` where one of them may not come."""
        calls = self
        for envelope in envelopes:
            calls = calls.then(envelope)
        return calls

    def at_a_commit(self) -> "OpenCalls":
        """The same calls, seen from the next turn. Raises `Unpaired` if one of ours is open."""
        if self.ours:
            raise Unpaired(f"call {self.ours[0]!r} has no result", self.ours[0])
        return replace(self, answering=True, response=None) if self.client else NO_CALLS

    def at_a_base(self) -> "OpenCalls":
        """The same calls, seen from the commit that follows on a path.

        Calls of ours are open there only in the middle of a turn, where a fork with other results begins: its first
        commit answers them.
        """
        return self if self.ours else self.at_a_commit()

    def _asked(self, envelope: Envelope) -> "OpenCalls":
        call_id = envelope.call_id or ""
        if not call_id:
            raise Unpaired("a call has no id", call_id)
        if self and self._over(envelope):
            waiting = (self.ours + self.client)[0]
            raise Unpaired(f"call {waiting!r} has no result before the next call {call_id!r}", waiting)
        if call_id in self.ours or call_id in self.client:
            raise Unpaired(f"call {call_id!r} stands twice in one response", call_id)
        if envelope.client:
            return OpenCalls(self.ours, (*self.client, call_id), envelope.response)
        return OpenCalls((*self.ours, call_id), self.client, envelope.response)

    def _over(self, envelope: Envelope) -> bool:
        """Whether the response that the calls stand in has ended before this event."""
        return self.answering or envelope.response != self.response

    def _answered(self, envelope: Envelope) -> "OpenCalls":
        call_id = envelope.call_id or ""
        due = self.ours or self.client  # ours run first; the client's come with a later turn
        if not due:
            raise Unpaired(f"the result for {call_id!r} answers no open call", call_id)
        if call_id != due[0]:
            raise Unpaired(f"the result for {call_id!r} came where that for {due[0]!r} was due", call_id)
        if self.ours:
            left = OpenCalls(self.ours[1:], self.client, answering=True)
        else:
            left = OpenCalls((), self.client[1:], answering=True)
        return left or NO_CALLS


NO_CALLS = OpenCalls()


def in_call_order(envelopes: Sequence[Envelope], open_before: OpenCalls = NO_CALLS) -> list[int]:
    """In which order a turn's events become history: as they arrived, but results in the order of their calls."""
    order = list(range(len(envelopes)))
    if not any(envelope.kind == "tool_result" for envelope in envelopes):
        return order
    calls = [*open_before.ours, *open_before.client]
    results: list[int] = []

    def settle() -> None:
        ranked = sorted(results, key=lambda n: calls.index(envelopes[n].call_id or ""))
        for place, n in zip(list(results), ranked, strict=True):
            order[place] = n
        results.clear()

    for n, envelope in enumerate(envelopes):
        if envelope.kind == "tool_result":
            results.append(n)
        elif envelope.kind == "tool_call":
            if results:
                settle()
                calls.clear()
            calls.append(envelope.call_id or "")
    settle()
    return order


def safe_cuts(envelopes: Sequence[Envelope], open_before: OpenCalls = NO_CALLS, *, is_whole: bool = True) -> list[int]:
    """After how many of a turn's events a path may end, from 0 (before the turn) to all of them.

    Unsafe are places inside a tool exchange, and inside one model response: a reasoning item without its
    follower would be refused by its provider for good. ``is_whole``: the turn was committed with these events as all
    that it has, so that its end is safe, open client calls included.
    """
    cuts = [] if open_before.ours else [0]
    calls = open_before
    following = _said_next(envelopes)
    said: int | None = None
    for count, envelope in enumerate(envelopes, start=1):
        calls = calls.then(envelope)
        if envelope.kind in SAID:
            said = envelope.response
        next = following[count - 1]
        if is_whole and count == len(envelopes):
            cuts.append(count)  # a commit stood here
        elif not calls and (said is None or said != (None if next is None else next.response)):
            cuts.append(count)
    return cuts


def open_cuts(envelopes: Sequence[Envelope], open_before: OpenCalls = NO_CALLS) -> dict[int, OpenCalls]:
    """After how many of a turn's events a model response is whole and none of its calls has a result, with the calls.

    A path may end there only if the commit that follows in the same transaction answers them: a fork with other
    results is made so.
    """
    cuts: dict[int, OpenCalls] = {}
    calls = open_before
    following = _said_next(envelopes)
    for count, envelope in enumerate(envelopes, start=1):
        calls = calls.then(envelope)
        next = following[count - 1]
        if calls and not calls.answering and (next is None or next.kind == "tool_result"):
            cuts[count] = calls
    return cuts


def _said_next(envelopes: Sequence[Envelope]) -> list[Envelope | None]:
    """What is said next after each of these events; None if nothing is."""
    following: list[Envelope | None] = []
    next: Envelope | None = None
    for envelope in reversed(envelopes):
        following.append(next)
        if envelope.kind in SAID:
            next = envelope
    return following[::-1]
