"""Anthropic's Messages: blocks that are started, filled and stopped, and signed thoughts."""

from collections.abc import Iterator
from typing import Any

import msgspec

from forkpoint.events import Usage
from forkpoint.llm.scripts import Fault
from forkpoint.testing.model_server.speech import Ending, Part, Speech, Stage, StreamEvent, sse
from forkpoint.testing.model_server.wire import Refusal

_STOP: dict[Ending, str] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "filter": "refusal",
    "refused": "refusal",
}

_INVALID = "invalid_request_error"

_TYPES = {  # of errors, by status
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}

_PROBLEMS = {
    "authentication": (401, "invalid x-api-key"),
    "quota": (402, "Your credit balance is too low to access the Anthropic API."),
    "rate_limit": (429, "This request would exceed your organization's rate limit."),
    "context_too_long": (400, "prompt is too long: 200001 tokens > 200000 maximum"),
    "bad_request": (400, "messages: the request is not valid"),
    "overloaded": (529, "Overloaded"),
    "refuses_cache_key": (400, "prompt_cache_key: Extra inputs are not permitted"),
}


class Messages:
    name = "messages"
    path = "/v1/messages"
    required: tuple[str, ...] = ("model", "messages", "max_tokens")
    piece_event = "content_block_delta"
    refuses_prompts = False

    def problem(self, fault: Fault) -> Refusal:
        status, message = _PROBLEMS.get(fault.kind, (500, "Internal server error"))
        status = fault.status or status
        kind = _TYPES.get(status) or ("api_error" if status >= 500 else _INVALID)
        return Refusal(status, kind, fault.message or message)

    def refused(self, message: str, *, code: str | None = None, param: str | None = None) -> Refusal:
        return Refusal(400, _INVALID, f"{param}: {message}" if param else message)

    def error(self, problem: Refusal, request_id: str) -> dict[str, Any]:
        error = {"type": problem.type, "message": problem.message}
        return {"type": "error", "error": error, "request_id": request_id}

    def whole(self, speech: Speech) -> dict[str, Any]:
        return {
            **_message(speech),
            "content": [_block(part) for part in speech.parts],
            **_stop(speech),
            "usage": _usage(speech) | _output(speech.usage),
        }

    def stream(self, speech: Speech) -> Iterator[StreamEvent]:
        def event(kind: str, stage: Stage = "frame", **fields: Any) -> StreamEvent:
            return sse({"type": kind, **fields}, stage, event=kind)

        begun = {**_message(speech), "content": [], "stop_reason": None, "stop_sequence": None, "stop_details": None}
        yield event("message_start", "opening", message={**begun, "usage": _usage(speech) | {"output_tokens": 1}})
        yield event("ping", "opening")
        for place, part in enumerate(speech.parts):
            yield event("content_block_start", index=place, content_block=_block(part, empty=True))
            for piece in part.pieces(speech.piece):
                yield event("content_block_delta", "piece", index=place, delta=_delta(part, piece))
            if part.kind == "thought":
                signed = {"type": "signature_delta", "signature": part.seal}
                yield event("content_block_delta", index=place, delta=signed)
            yield event("content_block_stop", index=place)
        yield event("message_delta", "ending", delta=_stop(speech), usage=_input(speech.usage) | _output(speech.usage))
        yield event("message_stop", "ending")

    def broken(self, problem: Refusal, speech: Speech, sent: int) -> StreamEvent:
        return sse(self.error(problem, f"req_{speech.number}"), "ending", event="error")


def _message(speech: Speech) -> dict[str, Any]:
    return {"id": f"msg_{speech.number}", "type": "message", "role": "assistant", "model": speech.request.model}


def _stop(speech: Speech) -> dict[str, Any]:
    refusal = (
        {"type": "refusal", "category": None, "explanation": None} if speech.ending in {"filter", "refused"} else None
    )
    reason = None if speech.ending is None else _STOP[speech.ending]
    return {"stop_reason": reason, "stop_sequence": None, "stop_details": refusal}


def _block(part: Part, *, empty: bool = False) -> dict[str, Any]:
    text = "" if empty else part.text
    match part.kind:
        case "thought":
            return {"type": "thinking", "thinking": text, "signature": "" if empty else part.seal}
        case "words":
            return {"type": "text", "text": text, "citations": None}
        case "call":
            return {"type": "tool_use", "id": part.call_id, "name": part.tool, "input": _object(text)}


def _delta(part: Part, piece: str) -> dict[str, Any]:
    match part.kind:
        case "thought":
            return {"type": "thinking_delta", "thinking": piece}
        case "words":
            return {"type": "text_delta", "text": piece}
        case "call":
            return {"type": "input_json_delta", "partial_json": piece}


def _object(arguments: str) -> dict[str, Any]:
    """Arguments as the object that this wire has for them. What is no object cannot be said here."""
    try:
        value = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _usage(speech: Speech) -> dict[str, Any]:
    """What is known of usage when a message begins."""
    written = speech.usage.written
    long = "1h" in speech.request.prompt.ttls[-1:]
    creation = {
        "ephemeral_5m_input_tokens": 0 if long else written,
        "ephemeral_1h_input_tokens": written if long else 0,
    }
    return {**_input(speech.usage), "cache_creation": creation, "service_tier": "standard"}


def _input(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input - usage.cached - usage.written,  # on this wire those two are no input
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": usage.written,
    }


def _output(usage: Usage) -> dict[str, Any]:
    return {"output_tokens": usage.output, "output_tokens_details": {"thinking_tokens": usage.reasoning}}
