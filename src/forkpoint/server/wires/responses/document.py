"""The response object, with all fields that Open Responses demands, whatever the turn came to.
Tests: tests/server/responses/test_stream.py, test_background.py."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from forkpoint.backend.results import Turn
from forkpoint.errors import RequestRefused
from forkpoint.events import ModelCalled, TurnStopped, Usage
from forkpoint.server.wires.responses.items.ids import conversation_id, response_id
from forkpoint.server.wires.responses.items.output import output_of, refusal_message
from forkpoint.server.wires.responses.request import Echo

ResponseStatus: TypeAlias = Literal["completed", "failed", "in_progress", "cancelled", "incomplete"]


class ResponseIncomplete(Struct, frozen=True):
    """Why an answer was cut."""

    reason: Literal["max_output_tokens", "content_filter"]


class ResponseError(Struct, frozen=True):
    """Why a response failed."""

    code: str
    message: str


class InputTokens(Struct, frozen=True):
    """How much of the prompts was cached, and how much was written to a cache."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokens(Struct, frozen=True):
    """How much of the answers was thought only."""

    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True):
    """What all calls of models together took that the response needed."""

    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


class ResponseConversationId(Struct, frozen=True):
    """The conversation that a response is a turn of."""

    id: str


class ResponseReasoningShown(Struct, frozen=True):
    """How much the model was to think."""

    effort: str | None
    summary: str | None


class ResponseDocument(Struct, frozen=True, kw_only=True):
    """A response. It is on disk before it is `completed` or `incomplete`; its id is `resp_` and the turn's id."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None
    status: ResponseStatus
    incomplete_details: ResponseIncomplete | None
    model: str
    previous_response_id: str | None
    instructions: str | None
    output: list[dict[str, Any]]
    error: ResponseError | None
    tools: Raw
    tool_choice: Raw
    truncation: str
    parallel_tool_calls: bool
    text: dict[str, Any]
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int = 0
    temperature: float
    reasoning: ResponseReasoningShown | None
    usage: ResponseUsage | None
    max_output_tokens: int | None
    max_tool_calls: None = None
    store: bool
    background: bool
    service_tier: str
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None
    conversation: ResponseConversationId | UnsetType | None = UNSET


def response_of(turn: Turn, echo: Echo, *, will_go_on: bool = False) -> ResponseDocument:
    """The response that a turn is. ``will_go_on``: its process is gone, and another will take it up by itself."""
    status, cut = _standing(turn, will_go_on)
    error = None
    if status == "failed":
        error = ResponseError("server_error", "The response was interrupted: the server that ran it is gone.")
        if turn.error is not None:
            error = ResponseError(_code(turn.error.code), turn.error.message)
    output: list[dict[str, Any]] = []
    if status in {"completed", "incomplete"}:
        output = output_of(turn.id, turn.events, echo)
    elif turn.error is not None and turn.error.code == RequestRefused.model_refused.code:
        output = [refusal_message(turn.id, turn.error.message)]
    return _document(
        turn.id,
        turn.started,
        echo,
        status=status,
        cut=cut,
        error=error,
        ended=turn.ended if status == "completed" else None,
        output=output,
        usage=None if status == "in_progress" else turn.usage,
    )


def begun_response(turn: str, started: int, echo: Echo) -> ResponseDocument:
    """The response of a turn that has just begun."""
    return _document(turn, started, echo, status="in_progress")


def failed_response(
    turn: str,
    started: int,
    echo: Echo,
    error: ResponseError,
    *,
    status: ResponseStatus = "failed",
    output: Sequence[dict[str, Any]] = (),
) -> ResponseDocument:
    """The response of a turn that did not commit. Its output is what the model said instead of an answer, if it did."""
    return _document(turn, started, echo, status=status, error=error, output=output)


def _document(
    turn: str,
    started: int,
    echo: Echo,
    *,
    status: ResponseStatus,
    cut: ResponseIncomplete | None = None,
    error: ResponseError | None = None,
    ended: int | None = None,
    output: Sequence[dict[str, Any]] = (),
    usage: Usage | None = None,
) -> ResponseDocument:
    asked = echo.reasoning
    text: dict[str, Any] = {"format": echo.format}
    if echo.verbosity is not None:
        text["verbosity"] = echo.verbosity
    return ResponseDocument(
        id=response_id(turn),
        created_at=started // 1_000_000,
        completed_at=None if ended is None else ended // 1_000_000,
        status=status,
        incomplete_details=cut,
        model=echo.model,
        previous_response_id=echo.previous_response_id,
        instructions=echo.instructions,
        output=list(output),
        error=error,
        tools=echo.tools,
        tool_choice=echo.tool_choice,
        truncation=echo.truncation,
        parallel_tool_calls=echo.parallel_tool_calls,
        text=text,
        top_p=1.0 if echo.top_p is None else echo.top_p,
        presence_penalty=echo.presence_penalty or 0.0,
        frequency_penalty=echo.frequency_penalty or 0.0,
        temperature=1.0 if echo.temperature is None else echo.temperature,
        reasoning=None if asked is None else ResponseReasoningShown(asked.effort, asked.summary),
        usage=None if usage is None else _usage(usage),
        max_output_tokens=echo.max_output_tokens,
        store=echo.store,
        background=echo.background,
        service_tier=echo.service_tier or "default",
        metadata=echo.metadata,
        safety_identifier=echo.safety_identifier,
        prompt_cache_key=echo.prompt_cache_key,
        conversation=None if echo.conversation is None else ResponseConversationId(conversation_id(echo.conversation)),
    )


def _standing(turn: Turn, will_go_on: bool) -> tuple[ResponseStatus, ResponseIncomplete | None]:
    match turn.outcome:
        case "committed":
            cut = _cut(turn)
            return ("completed", None) if cut is None else ("incomplete", cut)
        case "running" | "awaiting_approval":
            return "in_progress", None
        case "interrupted":  # a client that polls must not wait for ever
            return ("in_progress" if will_go_on else "failed"), None
        case "failed":
            return "failed", None
        case "cancelled":
            return "cancelled", None


def _cut(turn: Turn) -> ResponseIncomplete | None:
    """How a committed answer was cut; None if it was not."""
    if any(isinstance(event.body, TurnStopped) for event in turn.events):
        return ResponseIncomplete("max_output_tokens")
    finishes = [event.body.finish for event in turn.events if isinstance(event.body, ModelCalled)]
    match finishes[-1] if finishes else None:
        case "length":
            return ResponseIncomplete("max_output_tokens")
        case "filter":
            return ResponseIncomplete("content_filter")
        case _:
            return None


def _code(code: str) -> str:
    """An error's code in the words that clients of this API know."""
    return _CODES.get(code, "server_error")


def _usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        usage.input,
        InputTokens(usage.cached, usage.written),
        usage.output,
        OutputTokens(usage.reasoning),
        usage.input + usage.output,
    )


_CODES = {
    "model_context_too_long": "context_length_exceeded",
    "model_rate_limit": "rate_limit_exceeded",
    "model_refused": "invalid_prompt",
}
encode = msgspec.json.Encoder().encode
