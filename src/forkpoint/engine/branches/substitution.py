"""Substitution: a fork in which calls have other results, or which begins with another state.

The fork shares history up to the whole model response that has the calls. Its first note, in the same transaction,
answers all of them: with the other results where some are given, and with copies of what they had elsewhere.
Tests: tests/conversation/test_substitute.py, test_substitute_faults.py.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from forkpoint.backend.options import ForkOptions
from forkpoint.engine.turns.path import calls_among, read_places
from forkpoint.errors import BadArgument, BadPosition, NotFound
from forkpoint.events import Event, JsonText, NewEvent, Position, StateChange, ToolResult
from forkpoint.history.branches.tool_exchanges import CannotSubstitute, ToolExchange, answers, exchanges_in
from forkpoint.store.protocol import Store
from forkpoint.store.values import StoredConversation

_MORE = 64  # events that are read beyond a turn to find what came of its calls


class Beginning(Struct, frozen=True):
    """Where a fork begins, and the events of its first note."""

    at: str | Position | None
    before: str | Position | None
    events: tuple[NewEvent, ...] = ()


class Substitution:
    """Finds out what forks of a store's conversations begin with."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def beginning(self, source: StoredConversation, options: ForkOptions) -> Beginning:
        """How a fork begins. Raises `BadArgument` for results that cannot stand there, and `BadPosition`."""
        state = _change(options.state)
        if not options.results:
            return Beginning(options.at, options.before, state)
        if options.before is not None or options.at is None:
            raise _refused("`at` must say which call, result or turn they are of")
        exchange = await self._exchange(source, options.at, options.results)
        _check(exchange, options.results)
        found = exchange.results
        digests = {call: await self._digest(source, found[call]) for call in options.results}
        origins = await read_places(self._store, exchange.rest)
        try:
            made = answers(exchange, options.results, digests, origins)
        except CannotSubstitute as why:
            raise _refused(str(why)) from None
        return Beginning(exchange.response, None, (*made, *state))

    async def _digest(self, source: StoredConversation, event: Event) -> str:
        (digest,) = await self._store.digests(source.id, at=event.id, after=event.id.ordinal - 1)
        return digest.hex()

    async def _exchange(
        self, source: StoredConversation, at: str | Position, results: Mapping[str, ToolResult]
    ) -> ToolExchange:
        """The exchange that a call, its result or their turn names."""
        if isinstance(at, str):
            return _chosen(at, await self._of_turn(source, at), results)
        call = await self._call(source, at)
        record = await self._store.turn(call.turn)
        found = await self._read(source, record.base, call.id.ordinal)
        return next(exchange for exchange in found if exchange.has(call.id))

    async def _call(self, source: StoredConversation, at: Position) -> Event:
        """The call that an event of the path is, or is the result of."""
        try:
            (event,) = await self._store.events(source.id, at=at, last=1)
        except NotFound:
            raise BadPosition(str(at), "it is not on this conversation's path", use="an event that is") from None
        if event.kind not in ("tool_call", "tool_result") or event.envelope.call_id is None:
            raise _refused(f"event {at} is neither a call nor the result of one")
        return (await calls_among(self._store, source.id, at, [event.envelope.call_id]))[0]

    async def _of_turn(self, source: StoredConversation, turn: str) -> list[ToolExchange]:
        """The exchanges of a turn on the path. Raises `BadPosition` if it is not there."""
        try:
            record = await self._store.turn(turn)
        except NotFound:
            raise BadPosition(turn[:200], "it is neither a turn's id nor an event's", use="an event's id") from None
        began = record.base.ordinal if record.base else 0
        first = await self._store.events(source.id, after=began, limit=1)
        if record.end is None or not first or first[0].turn != turn:
            raise BadPosition(turn, "that turn is not on this conversation's path", use="a turn that is")
        found = await self._read(source, record.base, record.end.ordinal)
        return [exchange for exchange in found if exchange.turn == turn]

    async def _read(self, source: StoredConversation, base: Position | None, last: int) -> list[ToolExchange]:
        """The exchanges of the path whose calls stand up to an ordinal, with all that came of these calls."""
        after = base.ordinal if base else 0
        size = last - after + _MORE
        while True:
            events = await self._store.events(source.id, after=after, limit=size)
            is_all = len(events) < size
            found = exchanges_in(events, is_all=is_all)
            found = [exchange for exchange in found if exchange.calls[0].id.ordinal <= last]
            if is_all or all(exchange.is_closed for exchange in found):
                return found
            size *= 4


def _chosen(turn: str, found: Sequence[ToolExchange], results: Mapping[str, ToolResult]) -> ToolExchange:
    """The one exchange of a turn that has all calls which get other results. Raises `BadArgument`."""
    having = {call: [exchange for exchange in found if call in exchange.ids] for call in results}
    for call, exchanges in having.items():
        if not exchanges:
            there = ", ".join(id for exchange in found for id in exchange.ids) or "none"
            raise _refused(f"call {call[:200]!r} is not in turn {turn}; these calls are: {there}")
        if len(exchanges) > 1:
            raise _refused(
                f"turn {turn} has {len(exchanges)} calls with the id {call!r}; name the event of one with at="
            )
    first, *others = {id(exchange): exchange for (exchange,) in having.values()}.values()
    if others:
        why = "the calls are of several responses, and with another result the later ones might not have been made"
        raise _refused(f"{why}; give the results for one response")
    return first


def _check(exchange: ToolExchange, results: Mapping[str, ToolResult]) -> None:
    """Raises `BadArgument` for results of calls that are not there, or wait for their client."""
    there = ", ".join(exchange.ids)
    for call in results:
        if call not in exchange.ids:
            raise _refused(f"call {call[:200]!r} is not in that response; these calls are: {there}")
    for call in exchange.ids:
        if call not in exchange.results:
            raise _refused(f"call {call!r} waits for its client; give its result with run(results=...)")


def _change(state: Mapping[str, JsonText]) -> tuple[NewEvent, ...]:
    return (NewEvent(StateChange(tuple(sorted(state.items())))),) if state else ()


def _refused(why: str) -> BadArgument:
    return BadArgument("fork()", "results", why)
