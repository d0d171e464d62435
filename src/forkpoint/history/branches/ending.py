"""The ending of a path: whether a model has something to say there without a new message.

A path ends in a **finished answer** if the model spoke last, called no tool, and nobody objected. Everywhere else it is
the model's turn: after a user's message, after a tool's result, after a turn that stopped at a limit. Such a place is
the head after a fork or a rewind into the middle of a turn.

It is decided from the tail of the path, by what was said last. Notes, condensations and records of model calls say
nothing. Erased events count as what their envelopes say. Tests: tests/history/branches/test_ending.py.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from forkpoint.events import Event, HookRun
from forkpoint.history.pairing import RESPONSE, SAID

Ending: TypeAlias = Literal["empty", "handed", "answered", "unfinished"]
"""How a path ends: nothing was said; a call waits for its client; in a finished answer; or the model is to speak."""


def ending_of(tail: Sequence[Event], *, is_all: bool) -> Ending | None:
    """How a path ends, by its last events; None if these are too few to tell.

    ``is_all``: the path has no other events.
    """
    for n in range(len(tail) - 1, -1, -1):
        event = tail[n]
        match event.kind:
            case "turn_stopped":
                return "unfinished"
            case "hook_run" if _objects(event):
                return "unfinished"
            case "user_message" | "tool_result":
                return "unfinished"
            case "tool_call":
                return "handed"  # a path ends in a call only if that is the client's to answer
            case "assistant_message":
                return "answered"
            case "reasoning":
                return _after_a_thought(tail, n, is_all=is_all)
            case "system_message":
                return _after_an_instruction(tail, n, is_all=is_all)
            case _:
                pass
    return "empty" if is_all else None


def last_exchanges(tail: Sequence[Event]) -> Sequence[Event] | None:
    """The events since the last user message, without that message: what the model did, and what came of it.

    None if the message is not among these events.
    """
    for n in range(len(tail) - 1, -1, -1):
        if tail[n].kind == "user_message":
            return tail[n + 1 :]
    return None


def _objects(event: Event) -> bool:
    """Whether a hook did not accept the answer before it."""
    return isinstance(event.body, HookRun) and event.body.moment == "turn_end" and event.body.blocked


def _after_a_thought(tail: Sequence[Event], n: int, *, is_all: bool) -> Ending | None:
    """A response that ends in a thought is an answer if it has said something before that."""
    this = tail[n]
    for event in reversed(tail[:n]):
        if event.kind in SAID:
            same = (event.turn, event.envelope.response) == (this.turn, this.envelope.response)
            if event.kind not in RESPONSE or not same:
                return "unfinished"
            if event.kind == "assistant_message":
                return "answered"
            if event.kind == "tool_call":
                return "handed"
    return "unfinished" if is_all else None


def _after_an_instruction(tail: Sequence[Event], n: int, *, is_all: bool) -> Ending | None:
    """A system message asks a model to speak again, unless nobody has said anything yet."""
    if any(event.kind in SAID and event.kind != "system_message" for event in tail[:n]):
        return "unfinished"
    return "empty" if is_all else None
