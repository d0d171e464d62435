"""What a stream says while a turn runs: every update but the last one, which is the `Turn`.

All updates are provisional: only a committed turn is history. They are written in the order in which a turn meets
them. `forkpoint.backend.callbacks` has `Update`, which is any of these or the turn. Tests: tests/test_updates.py.
"""

from typing import TypeAlias

from msgspec import Struct

from forkpoint.events import ModelCalled, ToolCall, ToolResult, UserMessage


class TurnStarted(Struct, frozen=True, tag="turn_started"):
    """A turn has begun, or goes on (``resumed``)."""

    id: str
    conversation: str
    input: tuple[UserMessage, ...]
    resumed: bool = False


class TurnJoined(Struct, frozen=True, tag="turn_joined"):
    """The idempotency key names a turn that was begun before. ``run`` waits for that turn and begins none.

    No other update follows but the `Turn`, which ``run`` returns.
    """

    id: str
    conversation: str


# Pieces of a model's answer, as they arrive.


class TextPiece(Struct, frozen=True, tag="text"):
    """Some of the text of the answer."""

    text: str


class ReasoningPiece(Struct, frozen=True, tag="reasoning", omit_defaults=True):
    """Some of what the model thinks before it answers. ``index`` says which thought of this answer it belongs to."""

    text: str  # empty for a thought of which the provider shows no word
    index: int = 0


class CallPiece(Struct, frozen=True, tag="call"):
    """Some of a tool call's arguments. The first piece of a call has its id and the tool's name."""

    index: int
    call_id: str
    tool: str
    arguments: str


class Restarted(Struct, frozen=True, tag="restarted"):
    """The model is asked again: all pieces since the last `Answered` are void."""

    error: str  # the code of the error that ended the last attempt


# Steps: a model has answered, and its calls are run.


class Answered(Struct, frozen=True, tag="answered"):
    """A model has answered, or failed to. ``called`` says what the call took."""

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
    """A call is not run until somebody approves it."""

    call: ToolCall
    reason: str


class Steered(Struct, frozen=True, tag="steered"):
    """A message that was sent to the turn while it ran stands after its results now: the model is given it next."""

    id: str  # of the steer
    message: UserMessage
    by: str | None = None  # who sent it


Piece: TypeAlias = TextPiece | ReasoningPiece | CallPiece | Restarted
"""A piece of a model's answer."""

StepUpdate: TypeAlias = Piece | Answered | CallStarted | CallProgress | CallEnded | CallWaits | Steered
"""What a step of a turn says: a piece of an answer, how a call stands, or a message that came meanwhile."""

Provisional: TypeAlias = TurnStarted | TurnJoined | StepUpdate
"""What a turn says while it runs."""
