"""OpenAI's Responses: typed, numbered events, and items that are added, filled and done."""

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

from forkpoint.events import Usage
from forkpoint.llm.scripts import Fault
from forkpoint.testing.model_server.openai_errors import openai_error, openai_problem, openai_refused
from forkpoint.testing.model_server.speech import Ending, Part, Speech, Stage, StreamEvent, sse
from forkpoint.testing.model_server.wire import Refusal

_INCOMPLETE: dict[Ending | None, str] = {
    "length": "max_output_tokens",
    "filter": "content_filter",
    "refused": "content_filter",
}

# What a response can say that it failed of. What else goes wrong in a stream comes as a bare `error`.
_FAILS_WITH = {"server_error", "rate_limit_exceeded", "context_length_exceeded", "insufficient_quota"}

_REPEATED: dict[str, Any] = {  # fields of the request that stand in its response too
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
}


class Responses:
    name = "responses"
    path = "/v1/responses"
    required: tuple[str, ...] = ("model", "input")
    piece_event = "response.output_text.delta"
    refuses_prompts = False

    def problem(self, fault: Fault) -> Refusal:
        return openai_problem(fault, prompt="input")

    def refused(self, message: str, *, code: str | None = None, param: str | None = None) -> Refusal:
        return openai_refused(message, code=code, param=param)

    def error(self, problem: Refusal, request_id: str) -> dict[str, Any]:
        return openai_error(problem)

    def whole(self, speech: Speech) -> dict[str, Any]:
        return _response(speech, _status(speech), output=_output(speech))

    def stream(self, speech: Speech) -> Iterator[StreamEvent]:
        numbers = count()

        def event(kind: str, stage: Stage = "frame", **fields: Any) -> StreamEvent:
            return sse({"type": kind, "sequence_number": next(numbers), **fields}, stage, event=kind)

        begun = _response(speech, "in_progress", output=[])
        yield event("response.created", "opening", response=begun)
        yield event("response.in_progress", "opening", response=begun)
        for place, part in enumerate(speech.parts):
            item = _item(speech, place)
            at = {"item_id": item["id"], "output_index": place}
            yield event("response.output_item.added", output_index=place, item=_empty(item))
            match part.kind:
                case "thought":
                    at["summary_index"] = 0
                    none = {"type": "summary_text", "text": ""}
                    yield event("response.reasoning_summary_part.added", **at, part=none)
                    for piece in part.pieces(speech.piece):
                        yield event("response.reasoning_summary_text.delta", "piece", **at, delta=piece)
                    yield event("response.reasoning_summary_text.done", **at, text=part.text)
                    yield event("response.reasoning_summary_part.done", **at, part=item["summary"][0])
                case "words":
                    at["content_index"] = 0
                    yield event("response.content_part.added", **at, part=_text(""))
                    for piece in part.pieces(speech.piece):
                        yield event("response.output_text.delta", "piece", **at, delta=piece, logprobs=[])
                    yield event("response.output_text.done", **at, text=part.text, logprobs=[])
                    yield event("response.content_part.done", **at, part=_text(part.text))
                case "call":
                    for piece in part.pieces(speech.piece):
                        yield event("response.function_call_arguments.delta", "piece", **at, delta=piece)
                    yield event("response.function_call_arguments.done", **at, arguments=part.text)
            yield event("response.output_item.done", output_index=place, item=item)
        kind = "response.incomplete" if _status(speech) == "incomplete" else "response.completed"
        yield event(kind, "ending", response=self.whole(speech))

    def broken(self, problem: Refusal, speech: Speech, sent: int) -> StreamEvent:
        said = {"code": problem.code, "message": problem.message, "param": problem.param}
        if problem.code not in _FAILS_WITH:
            return sse({"type": "error", "sequence_number": sent, **said}, "ending", event="error")
        failed = _response(speech, "failed", output=[], error={**said, "type": problem.type})
        event = {"type": "response.failed", "sequence_number": sent, "response": failed}
        return sse(event, "ending", event="response.failed")


def _status(speech: Speech) -> str:
    if speech.ending is None:
        return "in_progress"
    return "incomplete" if speech.ending in _INCOMPLETE else "completed"


def _response(
    speech: Speech, status: str, *, output: list[dict[str, Any]], error: dict[str, Any] | None = None
) -> dict[str, Any]:
    ended = status in {"completed", "incomplete"}
    return {
        "id": f"resp_{speech.number}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "background": False,
        "error": error,
        "incomplete_details": {"reason": _INCOMPLETE[speech.ending]} if status == "incomplete" else None,
        "model": speech.request.model,
        "output": output,
        "service_tier": "default",
        "usage": _usage(speech.usage) if ended else None,
        "user": None,
        **{name: speech.request.json.get(name, default) for name, default in _REPEATED.items()},
    }


def _output(speech: Speech) -> list[dict[str, Any]]:
    return [_item(speech, place) for place in range(len(speech.parts))]


def _item(speech: Speech, place: int) -> dict[str, Any]:
    """An output item as it is when it is done."""
    part = speech.parts[place]
    last = place == len(speech.parts) - 1
    whole = part.whole and not (last and speech.ending in _INCOMPLETE and part.kind == "words")
    status = "completed" if whole else "incomplete"
    suffix = f"{speech.number}_{place}"
    match part.kind:
        case "thought":
            summary = [{"type": "summary_text", "text": part.text}]
            return {"id": f"rs_{suffix}", "type": "reasoning", "summary": summary, "encrypted_content": part.seal}
        case "words":
            content = [_text(part.text)]
            return {"id": f"msg_{suffix}", "type": "message", "status": status, "role": "assistant", "content": content}
        case "call":
            return {"id": f"fc_{suffix}", "type": "function_call", "status": status, **_call(part)}


def _call(part: Part) -> dict[str, Any]:
    return {"call_id": part.call_id, "name": part.tool, "arguments": part.text}


def _empty(item: dict[str, Any]) -> dict[str, Any]:
    """The item as it is when it is added."""
    empty = {"summary": [], "content": [], "arguments": "", "status": "in_progress", "encrypted_content": ""}
    return {name: empty.get(name, value) for name, value in item.items()}


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.written},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }
