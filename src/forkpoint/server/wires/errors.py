"""Errors in OpenAI's envelope, and whether a machine should try again.

`wire.problems` decides for all calls what a client may read of an error; this module writes it as OpenAI's clients
expect it. They retry by themselves, some statuses more eagerly than is good, so each refusal says whether they should:
only if the error passes by itself, and never if a retry would repeat what tools have done.
Tests: tests/server/chat/test_errors.py.
"""

from typing import Any

import msgspec
from msgspec import UnsetType

from forkpoint.backend.results import Turn, calls_of
from forkpoint.errors import (
    KINDS,
    BadTool,
    Busy,
    ContextTooLong,
    CopyRefused,
    ForkpointError,
    LimitReached,
    ModelError,
    NotFound,
    RequestRefused,
    ShuttingDown,
    StoreDamaged,
    StoreError,
    StoreUnusable,
    TooMany,
    TooSlow,
    TurnCancelled,
    TurnFailed,
    class_of,
)
from forkpoint.events import ToolCall
from forkpoint.server.http.statuses import is_upstream, retry_after, status_of
from forkpoint.store import TurnError
from forkpoint.wire.problems import INTERNAL, ErrorDocument, problem_of

_CODES = {  # what these clients know by other names
    "busy": "conversation_busy",
    "error": INTERNAL,  # as a turn keeps what nobody foresaw
    "model_context_too_long": "context_length_exceeded",
    "model_refused": "content_filter",
    "model_unknown": "model_not_found",
    "unauthorized": "invalid_api_key",
}
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_PARAMS = {
    BadTool.code: "tools",
    Busy.conversation_locked.code: "conversation",
    NotFound.model_not_found.code: "model",
    NotFound.previous_response_not_found.code: "previous_response_id",
    RequestRefused.model_unknown.code: "model",
    ContextTooLong.code: "messages",
}
_PASSING = (TooMany, TooSlow, ShuttingDown, StoreError)
_LASTING = (StoreUnusable, StoreDamaged, CopyRefused)  # until somebody sees to the store
_AS_IT_WAS = "The conversation is as it was."
_NO_TOOLS = "It had run no tools."
_RAN = {"done", "failed", "unknown"}


def refusal(error: BaseException, request_id: str) -> tuple[int, bytes, dict[str, str]]:
    """The answer to a request that an error ended: status, body and headers."""
    status = _status(error)
    headers = {"Content-Type": "application/json", "x-should-retry": "true" if should_retry(error) else "false"}
    if (wait := retry_after(error)) is not None:
        headers["Retry-After"] = str(wait)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return status, msgspec.json.encode(document(error, request_id)), headers


def document(error: BaseException, request_id: str) -> dict[str, Any]:
    """An error as a client reads it: the body of a refusal, or the last frame of a stream."""
    problem = problem_of(error, request_id=request_id, surface="Chat")
    said, status = problem.error, _status(error)
    code, message, turn = said.code, said.message, None
    if isinstance(error, TurnFailed):
        kept = None if isinstance(problem.turn, UnsetType) else problem.turn.error
        code, message = _reason(said, kept)
        turn = said.details["id"]
    about = said if said.cause is None else said.cause
    told = {
        "message": message,
        "type": _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error"),
        "param": said.param or _PARAMS.get(about.code) or about.details.get("field"),
        "code": _CODES.get(code, code),
        "request_id": request_id,
    }
    return {"error": told if turn is None else told | {"turn": turn}}


def should_retry(error: BaseException) -> bool:
    """Whether a machine should send the same request again, by itself."""
    if isinstance(error, TurnFailed) and (isinstance(error, TurnCancelled) or _ran_tools(error.turn)):
        return False
    cause = _cause(error)
    if isinstance(cause, TurnFailed):  # it was read from the store, which keeps only the code of the reason
        kept = cause.turn.error if isinstance(cause.turn, Turn) else None
        return kept is not None and _passes(class_of(KINDS.get(kept.code, ForkpointError)))
    if isinstance(cause, LimitReached):
        return _is_timeout(cause)
    return _passes(type(cause)) and not getattr(cause, "lasting", False)


def _cause(error: BaseException) -> BaseException:
    """The reason why a turn failed, if that is known; for any other error, the error itself."""
    return error.cause if isinstance(error, TurnFailed) and error.cause is not None else error


def _status(error: BaseException) -> int:
    """The status that all calls have for an error, unless OpenAI's clients know it by another status."""
    cause = _cause(error)
    if isinstance(cause, LimitReached) and _is_timeout(cause):
        return 504
    status = status_of(error)
    return 400 if status == 422 and not is_upstream(error) else status


def _is_timeout(reached: LimitReached) -> bool:
    return reached.what == "seconds"


def _reason(said: ErrorDocument, kept: TurnError | None) -> tuple[str, str]:
    """The code and the words for a turn that did not commit: those of its reason, and how things stand now."""
    if said.code == TurnCancelled.code:
        code, why = said.code, f"The turn was cancelled: {said.details['why']}"
    elif said.cause is not None:
        code, why = said.cause.code, said.cause.message
    elif kept is not None:
        code, why = kept.code, kept.message
    else:
        code, why = said.code, said.details["why"]
    tools = said.details["tools"]
    return code, f"{why} {_AS_IT_WAS}" if tools == _NO_TOOLS else f"{why} {_AS_IT_WAS} {tools}"


def _ran_tools(turn: Any) -> bool:
    """Whether a turn has run tools of ours, or may have. Nobody here knows whether they can be repeated."""
    if not isinstance(turn, Turn):
        return False
    ours = (event for event in turn.events if not (isinstance(event.body, ToolCall) and event.body.client))
    return any(call.status in _RAN for call in calls_of(ours))


def _passes(made: type[BaseException]) -> bool:
    """Whether an error of this class may well be gone a little later."""
    if issubclass(made, ModelError):
        return made.passing
    return issubclass(made, _PASSING) and not issubclass(made, _LASTING)
