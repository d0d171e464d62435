"""OpenAI's errors, which its two wires share."""

from typing import Any

from forkpoint.llm.scripts import Fault
from forkpoint.testing.model_server.wire import Refusal

_INVALID = "invalid_request_error"


def openai_problem(fault: Fault, *, prompt: str) -> Refusal:
    """What OpenAI says for a fault. ``prompt`` is the field that holds the prompt."""
    problem = _PROBLEMS.get(fault.kind) or _by_status(fault.status or 500)
    return Refusal(
        status=fault.status or problem.status,
        type=problem.type,
        message=fault.message or problem.message,
        code=problem.code,
        param=prompt if fault.kind == "context_too_long" else problem.param,
    )


def openai_refused(message: str, *, code: str | None = None, param: str | None = None) -> Refusal:
    """What OpenAI says of a bad request."""
    return Refusal(400, _INVALID, message, code, param)


def openai_error(problem: Refusal) -> dict[str, Any]:
    """OpenAI's envelope."""
    fields = {"message": problem.message, "type": problem.type, "param": problem.param, "code": problem.code}
    return {"error": fields}


def _by_status(status: int) -> Refusal:
    if status >= 500:
        return Refusal(status, "server_error", "The server had an error while processing your request.", "server_error")
    return Refusal(status, _INVALID, f"The request failed with status {status}.")


_PROBLEMS = {
    "authentication": Refusal(401, _INVALID, "Incorrect API key provided.", "invalid_api_key"),
    "quota": Refusal(
        429,
        "insufficient_quota",
        "You exceeded your current quota, please check your plan and billing details.",
        "insufficient_quota",
    ),
    "rate_limit": Refusal(429, "requests", "Rate limit reached for requests.", "rate_limit_exceeded"),
    "context_too_long": Refusal(
        400,
        _INVALID,
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "context_length_exceeded",
    ),
    # What OpenAI says of a prompt that it refuses before it answers. Azure says content_filter there.
    "refused": Refusal(
        400,
        _INVALID,
        "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
        "invalid_prompt",
    ),
    "bad_request": openai_refused("The request is not valid.", code="invalid_value"),
    "overloaded": Refusal(
        503, "service_unavailable_error", "Our servers are currently overloaded.", "server_is_overloaded"
    ),
    "refuses_cache_key": openai_refused(
        "Unknown parameter: 'prompt_cache_key'.", code="unknown_parameter", param="prompt_cache_key"
    ),
}
