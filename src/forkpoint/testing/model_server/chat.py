"""OpenAI's Chat Completions, with thoughts as `reasoning_content`, where compatible servers put them."""

import time
from collections.abc import Iterator
from typing import Any

from forkpoint.events import Usage
from forkpoint.llm.scripts import Fault
from forkpoint.testing.model_server.openai_errors import openai_error, openai_problem, openai_refused
from forkpoint.testing.model_server.speech import Ending, Part, Speech, StreamEvent, sse
from forkpoint.testing.model_server.wire import Refusal

_FINISH: dict[Ending, str] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    "filter": "content_filter",
    "refused": "content_filter",
}


class SpokenChat:
    name = "chat"
    path = "/v1/chat/completions"
    required: tuple[str, ...] = ("model", "messages")
    piece_event = ""
    refuses_prompts = True

    def problem(self, fault: Fault) -> Refusal:
        return openai_problem(fault, prompt="messages")

    def refused(self, message: str, *, code: str | None = None, param: str | None = None) -> Refusal:
        return openai_refused(message, code=code, param=param)

    def error(self, problem: Refusal, request_id: str) -> dict[str, Any]:
        return openai_error(problem)

    def whole(self, speech: Speech) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, "annotations": []}
        for part in speech.parts:
            match part.kind:
                case "thought":
                    message["reasoning_content"] = part.text
                case "words":
                    message["content"] = part.text
                case "call":
                    message.setdefault("tool_calls", []).append(_call(part))
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(speech)}
        return {**_head(speech, "chat.completion"), "choices": [choice], "usage": _usage(speech.usage)}

    def stream(self, speech: Speech) -> Iterator[StreamEvent]:
        options = speech.request.json.get("stream_options")
        counted = isinstance(options, dict) and options.get("include_usage") is True
        head = _head(speech, "chat.completion.chunk")
        usage = {"usage": None} if counted else {}

        def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return {**head, "choices": [choice], **usage}

        yield sse(chunk({"role": "assistant", "content": "", "refusal": None}), "opening")
        place = -1
        for part in speech.parts:
            if part.kind == "call":
                place += 1
                begun = {"index": place, **_call(part), "function": {"name": part.tool, "arguments": ""}}
                yield sse(chunk({"tool_calls": [begun]}), "frame")
            for piece in part.pieces(speech.piece):
                yield sse(chunk(_delta(part, piece, place)), "piece")
        yield sse(chunk({}, _finish(speech)), "ending")
        if counted:
            yield sse({**head, "choices": [], "usage": _usage(speech.usage)}, "ending")
        yield StreamEvent(b"data: [DONE]\n\n", "ending")

    def broken(self, problem: Refusal, speech: Speech, sent: int) -> StreamEvent:
        return sse(openai_error(problem), "ending")


def _head(speech: Speech, object: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{speech.number}",
        "object": object,
        "created": int(time.time()),
        "model": speech.request.model,
        "service_tier": "default",
        "system_fingerprint": "fp_scripted",
    }


def _delta(part: Part, piece: str, place: int) -> dict[str, Any]:
    match part.kind:
        case "thought":
            return {"reasoning_content": piece}
        case "words":
            return {"content": piece}
        case "call":
            return {"tool_calls": [{"index": place, "function": {"arguments": piece}}]}


def _call(part: Part) -> dict[str, Any]:
    return {"id": part.call_id, "type": "function", "function": {"name": part.tool, "arguments": part.text}}


def _finish(speech: Speech) -> str | None:
    return None if speech.ending is None else _FINISH[speech.ending]


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.written},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
