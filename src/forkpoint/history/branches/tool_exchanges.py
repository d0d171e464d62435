"""Tool exchanges: a model's response with the calls in it, and what came of them on a path.

A fork may put another result in the place of one that a call had. It then shares history up to the whole response, and
`answers` makes what follows there: the other results, and copies of all that belongs to the calls beside them.
Tests: tests/history/branches/test_tool_exchanges.py.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from forkpoint.events import Event, Gone, NewEvent, Position, ResultSubstituted, StateChange, ToolResult
from forkpoint.history.pairing import RESPONSE

_OF_A_CALL = frozenset(
    {
        "tool_result",
        "result_substituted",
        "approval_asked",
        "approval_given",
        "approval_denied",
        "hook_run",
        "sub_agent_spawned",
        "sub_agent_finished",
        "state_change",
    }
)
"""The kinds of events that may belong to a call, beside the call itself."""

_ENDS = frozenset({"user_message", "system_message", "model_called", "turn_stopped"}) | RESPONSE
"""The kinds of events that follow an exchange: nothing of it comes after them."""


class ToolExchange(Struct, frozen=True):
    """A model's response that calls tools, and what follows until somebody speaks again."""

    response: Position  # its last event
    turn: str
    calls: tuple[Event, ...]
    rest: tuple[Event, ...]
    is_closed: bool  # whether what follows the exchange is known

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(call.envelope.call_id or "" for call in self.calls)

    @property
    def results(self) -> dict[str, Event]:
        """The results that the calls have, by call."""
        return {event.envelope.call_id or "": event for event in self.rest if event.kind == "tool_result"}

    def has(self, event: Position) -> bool:
        """Whether an event is one of the calls, or belongs to one of them."""
        return any(one.id == event for one in self.calls) or any(
            one.id == event and one.envelope.call_id in self.ids for one in self.rest
        )


class CannotSubstitute(Exception):
    """Other results cannot stand in an exchange, and why."""


def exchanges_in(events: Sequence[Event], *, is_all: bool) -> list[ToolExchange]:
    """The exchanges of a stretch of a path, in order. ``is_all``: the path has no event after these."""
    found: list[ToolExchange] = []
    calls: list[Event] = []
    rest: list[Event] = []
    last: Event | None = None  # of the response

    def close(*, is_closed: bool) -> None:
        if calls and last is not None:
            found.append(ToolExchange(last.id, last.turn, tuple(calls), tuple(rest), is_closed))
        calls.clear()
        rest.clear()

    answered = False
    for event in events:
        if event.kind in RESPONSE:
            if answered or not _is_same_response(last, event):
                close(is_closed=True)
            answered, last = False, event
            if event.kind == "tool_call":
                calls.append(event)
        elif event.kind in _ENDS:
            close(is_closed=True)
            last = None
        elif calls:
            rest.append(event)
            answered = answered or event.kind == "tool_result"
    close(is_closed=is_all)
    return found


def answers(
    exchange: ToolExchange, results: Mapping[str, ToolResult], digests: Mapping[str, str], origins: Mapping[str, str]
) -> list[NewEvent]:
    """The events that follow a response in a branch where some of its calls have other results.

    ``digests`` are the chain digests of the results that give way, by call. ``origins`` are the origins of events,
    by their ids. Raises `CannotSubstitute`.
    """
    made: list[NewEvent] = []
    for event in exchange.rest:
        call = _call_of(exchange, event, results)
        if call is None:
            continue
        if call not in results:
            made.append(_copy(event, origins[str(event.id)]))
        elif event.kind == "tool_result":
            tool = event.envelope.tool or "tool"
            made.append(NewEvent(ResultSubstituted(call, tool, origins[str(event.id)], digests[call])))
            made.append(NewEvent(replace(results[call], tool=tool)))
    return made


def _is_same_response(last: Event | None, event: Event) -> bool:
    if last is None:
        return False
    return (last.turn, last.envelope.response) == (event.turn, event.envelope.response)


def _call_of(exchange: ToolExchange, event: Event, results: Mapping[str, ToolResult]) -> str | None:
    """The call that an event belongs to; None if it belongs to none."""
    if event.kind not in _OF_A_CALL:
        return None
    if event.envelope.call_id is not None:
        return event.envelope.call_id if event.envelope.call_id in exchange.ids else None
    if event.kind != "state_change" or event.turn != exchange.turn:
        return None  # a note beside the exchange
    return _call_that_changed(exchange, event, results)


def _call_that_changed(exchange: ToolExchange, event: Event, results: Mapping[str, ToolResult]) -> str:
    """The call that made a change of the state which does not say so: an earlier program wrote it.

    Only a call that is done changes the state. If such calls are kept and others give way, nobody can tell.
    """
    done = [call for call, result in exchange.results.items() if _is_done(result)]
    of_it = {call in results for call in done}
    if len(of_it) == 1:
        return done[0]
    keys = ", ".join(repr(key) for key, _ in event.body.set) if isinstance(event.body, StateChange) else "a key"
    raise CannotSubstitute(
        f"event {event.id} changed {keys} in the state, and an earlier program did not note which call did; give "
        f"results for all of {', '.join(done) or 'the calls'}, and the state with state="
    )


def _is_done(event: Event) -> bool:
    return not isinstance(event.body, ToolResult) or not event.body.error


def _copy(event: Event, origin: str) -> NewEvent:
    body = event.body
    if isinstance(body, Gone):
        what = f"the {event.kind.replace('_', ' ')} of call {event.envelope.call_id}"
        raise CannotSubstitute(f"{what} was erased, so that it cannot be kept; give a result for that call too")
    return NewEvent(body, response=event.envelope.response, origin=origin, time=event.envelope.time)
