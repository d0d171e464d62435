"""What was heard of a turn that runs elsewhere, so that nothing is told twice and nothing is missing.

A server that is asked again tells how the turn stands, as one list of all updates with their deltas joined. What was
told here is kept in the same form. The difference of the two is what is still to be told.
Tests: tests/remote/test_backend.py.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from forkpoint.backend.callbacks import Callback, Update
from forkpoint.backend.catch_up import CatchUp
from forkpoint.backend.results import Turn
from forkpoint.events import (
    ApprovalGiven,
    AssistantMessage,
    Event,
    ModelCalled,
    Reasoning,
    StagedEvent,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
)
from forkpoint.updates import (
    Answered,
    CallEnded,
    CallPiece,
    CallProgress,
    CallStarted,
    ReasoningPiece,
    Restarted,
    Steered,
    TextPiece,
    TurnJoined,
    TurnStarted,
)

LOST = "connection_lost"
"""Why an answer is void whose beginning was heard, and which turns out to be another."""


class TurnLog:
    """A turn as far as it was told, to somebody who is to be told everything once."""

    def __init__(self, tell: Callback, *, resumed: Turn | None = None) -> None:
        self.turn: str | None = None  # once it is known
        self.conversation: str | None = None
        self.joined = False  # it is a turn that somebody began before
        self.lost = False  # something may have been missed
        self._tell = tell
        self._resumed = resumed  # the turn as it stood before it went on
        self._told = CatchUp()

    def hear(self, update: Update) -> None:
        """Tells an update. One who joined a turn is not told what happens in it, as in a store of one's own."""
        if isinstance(update, TurnStarted | TurnJoined):
            if self.turn == update.id:
                return  # it was told before the connection was lost
            self.turn, self.conversation = update.id, update.conversation
            self.joined = isinstance(update, TurnJoined)
        elif self.joined:
            return
        if not isinstance(update, CallProgress):  # which is of the moment
            self._told.add(update)
        self._tell(update)

    def catch_up(self, told: Iterable[Update]) -> None:
        """Tells what is missing of all that was told of the turn elsewhere."""
        now, log = _in_short(told), self._log
        done = _complete(log)
        if now[:done] == log[:done]:
            missing = _difference(log[done:], now[done:])
        else:  # somebody else has gone on with it, and tells from there
            void = [Restarted(LOST)] if log[done:] else []
            missing = [*void, *(update for update in now if update not in log[:done])]
        for update in missing:
            self.hear(update)

    def end(self, turn: Turn) -> None:
        """Tells what is missing of a turn that has ended, and then the turn."""
        if self.joined:
            return
        if self.lost:
            self.hear(TurnStarted(turn.id, turn.conversation, turn.input, self._resumed is not None))
            events = turn.events[0 if self._resumed is None else len(self._resumed.events) :]
            for update in self._missing(events, {one.id: one.by for one in turn.steered}):
                self.hear(update)
        self._tell(turn)

    @property
    def _log(self) -> list[Update]:
        return self._told.updates

    def _missing(self, events: Sequence[Event | StagedEvent], by: Mapping[str, str | None]) -> Iterator[Update]:
        """``by`` is who sent each message that came while the turn ran."""
        log = self._log
        done = _complete(log)
        known = log[:done]
        begun = [piece for piece in log[done:] if isinstance(piece, TextPiece | ReasoningPiece) and piece.text]
        for updates in _steps(events, by):
            *before, last = updates
            if last in known:
                continue
            if isinstance(last, Answered):
                yield from _difference(begun, before)
                begun = []
            else:
                yield from (update for update in before if update not in known)
            yield last


def _in_short(updates: Iterable[Update]) -> list[Update]:
    """The same with pieces joined, without what is void, and without progress, which is of the moment."""
    told = CatchUp()
    for update in updates:
        if not isinstance(update, CallProgress):
            told.add(update)
    return told.updates


def _complete(log: Sequence[Update]) -> int:
    """How much of a log is certain: all but the pieces of an answer that is not complete."""
    place = len(log)
    while place and isinstance(log[place - 1], TextPiece | ReasoningPiece | CallPiece):
        place -= 1
    return place


def _difference(begun: Sequence[Update], now: Sequence[Update]) -> list[Update]:
    """The rest of an answer whose beginning was told; all of it, after a word on that, if it is another."""
    if len(begun) > len(now):
        return [Restarted(LOST), *now]
    rest: list[Update] = []
    for told, whole in zip(begun, now, strict=False):
        more = _rest(told, whole)
        if more is None:
            return [Restarted(LOST), *now]
        rest += more
    return [*rest, *now[len(begun) :]]


def _rest(told: Update, whole: Update) -> list[Update] | None:
    """What is missing of a piece whose beginning was told; None if that is no beginning of it."""
    match told, whole:
        case (TextPiece(text=begun), TextPiece(text=text)) if text.startswith(begun):
            more = text.removeprefix(begun)
            return [TextPiece(more)] if more else []
        case (ReasoningPiece(text=begun), ReasoningPiece(text=text)) if text.startswith(begun):
            more = text.removeprefix(begun)
            if whole.index != told.index:
                return None
            return [replace(whole, text=more)] if more else []
        case (CallPiece(arguments=begun), CallPiece(arguments=text)) if text.startswith(begun):
            more = text.removeprefix(begun)
            if replace(whole, arguments=begun) != told:
                return None
            return [replace(whole, arguments=more)] if more else []
        case _:
            return None


def _steps(events: Iterable[Event | StagedEvent], by: Mapping[str, str | None]) -> Iterator[list[Update]]:
    """What would have been told of a turn's events, step by step: an answer, a call that ended, or a message."""
    calls: dict[str, ToolCall] = {}
    called: ModelCalled | None = None
    said: list[Update] = []
    thoughts = 0  # of this answer, those without a text too
    for event in events:
        body = event.body
        match body:
            case Reasoning(text=text):
                if text:
                    said.append(ReasoningPiece(text, thoughts))
                thoughts += 1
            case AssistantMessage(parts=parts):
                said.append(TextPiece("".join(part.text for part in parts if isinstance(part, Text))))
            case ToolCall():
                calls[body.call_id] = body
            case ApprovalGiven(call_id=id) if id in calls:
                calls[id] = body.as_approved(calls[id])
            case ModelCalled():  # it stands before what was said
                if called is not None:
                    yield [*said, Answered(called)]
                called, said, thoughts = body, [], 0
            case ToolResult():
                if called is not None:
                    yield [*said, Answered(called)]
                called, said = None, []
                call = calls.get(body.call_id)
                started = [CallStarted(call)] if call is not None and body.status in {"done", "failed"} else []
                yield [*started, CallEnded(body)]
            case UserMessage() if (steer := event.envelope.steer) is not None:
                if called is not None:
                    yield [*said, Answered(called)]
                called, said = None, []
                yield [Steered(steer, body, by.get(steer))]
            case _:
                pass
    if called is not None:
        yield [*said, Answered(called)]
