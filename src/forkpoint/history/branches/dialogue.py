"""The dialogue of a path: what was asked and answered, exchange by exchange, as it can be copied to another path.

An exchange begins with what a user said after an answer, and ends with the next answer; calls, their results and what a
user said meanwhile are part of it. **Only a whole exchange is copied**: it begins with a user's message, ends with an
answer, and nothing of it is erased. So whoever has it has pairs of calls and results, and a model can go on from it.

A copy is what was said, and no more: no thoughts, no items of a provider, which would refuse them without the thoughts,
no state and no model calls. Tests: tests/history/branches/test_dialogue.py.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from forkpoint.events import (
    AssistantMessage,
    Event,
    Gone,
    NewEvent,
    Opaque,
    ToolCall,
    ToolResult,
    TurnStopped,
    UserMessage,
)

COPIED = frozenset({"user_message", "assistant_message", "tool_call", "tool_result", "turn_stopped"})
"""The kinds of events that an exchange is made of."""

Saying: TypeAlias = UserMessage | AssistantMessage | ToolCall | ToolResult | TurnStopped
Name: TypeAlias = str | tuple[int, Saying]
"""What tells an event and its copies from others: its place, as an origin says it; or when it was said, and what."""


class DialogueExchange(Struct, frozen=True):
    """What was asked and answered, as the events of a path."""

    events: tuple[Event, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it can be copied."""
        is_readable = not any(isinstance(event.body, Gone | Opaque) for event in self.events)
        begins, ends = self.events[0].kind, self.events[-1].kind
        return is_readable and begins == "user_message" and ends == "assistant_message"

    def stands_in(self, here: AbstractSet[Name], places: Mapping[str, str]) -> bool:
        """Whether a path has it already, as itself or as a copy: all of it, or one of its calls. A call stands on a
        path once. ``here`` are the names of the path's events, ``places`` those of its own events by their ids."""
        known = [(event.kind, not here.isdisjoint(names_of(event, places))) for event in self.events]
        return all(is_known for _, is_known in known) or any(
            is_known for kind, is_known in known if kind == "tool_call"
        )


def dialogue(events: Iterable[Event]) -> Iterator[DialogueExchange]:
    """The exchanges of a stretch of a path, in order. The first and the last may not be whole."""
    current: list[Event] = []
    for event in events:
        if event.kind not in COPIED:
            continue
        if event.kind == "user_message" and current and current[-1].kind == "assistant_message":
            yield DialogueExchange(tuple(current))
            current = []
        current.append(event)
    if current:
        yield DialogueExchange(tuple(current))


def names_of(event: Event, places: Mapping[str, str]) -> Iterator[Name]:
    """What an event and its copies have in common. Copies of copies have the same time and say the same."""
    yield places[str(event.id)]
    if event.envelope.origin is not None:
        yield event.envelope.origin
    if (said := said_by(event)) is not None:
        yield event.envelope.time, said


def said_by(event: Event) -> Saying | None:
    """What an event says, as a copy says it; None if the event is not one that is copied, or cannot be read."""
    match event.body:
        case AssistantMessage() as body:
            return replace(body, provider=None, item=None)
        case ToolCall() as body:
            return replace(body, provider=None, item=None, client=False)  # it is answered, and not by a client here
        case UserMessage() | ToolResult() | TurnStopped() as body:
            return body
        case _:
            return None


def copies(chosen: Sequence[DialogueExchange], origins: Mapping[str, str]) -> list[NewEvent]:
    """Copies of whole exchanges as the events of one commit. ``origins`` are the origins of events, by their ids.

    Responses are counted anew, since those of several turns now stand in one commit.
    """
    made: list[NewEvent] = []
    responses: dict[tuple[str, int | None], int] = {}
    for event in (event for exchange in chosen for event in exchange.events):
        said = said_by(event)
        assert said is not None, "an exchange with something else is not whole"
        response: int | None = None
        if event.envelope.role == "assistant":
            response = responses.setdefault((event.turn, event.envelope.response), len(responses) + 1)
        made.append(NewEvent(said, response=response, origin=origins[str(event.id)], time=event.envelope.time))
    return made
