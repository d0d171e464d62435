"""What is told while a turn runs. All of it is provisional: only a committed turn is history."""

from typing import TypeAlias

from msgspec import Struct

from forkpoint.events import ModelCalled, ToolCall, ToolResult
from forkpoint.llm.answers import Piece


class Answered(Struct, frozen=True, tag="answered"):
    """A model has answered, or failed to; with what the call took."""

    called: ModelCalled


class CallStarted(Struct, frozen=True, tag="call_started"):
    """A tool runs."""

    call: ToolCall


class CallProgress(Struct, frozen=True, tag="call_progress"):
    """A tool says how far it is."""

    call_id: str
    tool: str
    text: str


class CallEnded(Struct, frozen=True, tag="call_ended"):
    """A call has its result."""

    result: ToolResult


class CallWaits(Struct, frozen=True, tag="call_waits"):
    """A call is not run before somebody approves it."""

    call: ToolCall
    reason: str


StepUpdate: TypeAlias = Piece | Answered | CallStarted | CallProgress | CallEnded | CallWaits
"""What a step of a turn tells: a piece of an answer, or how a call stands."""
