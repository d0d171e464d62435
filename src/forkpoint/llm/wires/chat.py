"""Chat Completions: one message for each user's words, each response and each result.
Tests: tests/llm/test_rendering_wires.py."""

from collections.abc import Sequence
from typing import Any

import msgspec

from forkpoint.events import AssistantMessage, File, Image, JsonText, Part, Reasoning, Text, ToolCall, ToolResult
from forkpoint.llm.prompt.blocks import PromptBlock
from forkpoint.llm.prompt.manifest import Manifest
from forkpoint.llm.wires.body import data_url, given, is_closed, json, raw, texts_of, tool_name, with_extra
from forkpoint.llm.wires.wire import Lose, RequestDraft, Response, Sending
from forkpoint.llm.wires.wording import instead_of, lost_part, marked_words_of, spoken_parts, text_of

LOCAL_LIMIT = 1024  # tokens of an answer, if nobody says otherwise: a small model may never stop by itself


class ChatWire:
    """What OpenAI's chat completions take, and every server that is compatible with them."""

    def head(self, manifest: Manifest) -> list[RequestDraft]:
        drafts = [
            RequestDraft("tool", json({"type": "function", "function": _function(tool)}), place="tools")
            for tool in manifest.tools
        ]
        if manifest.instructions:
            drafts.append(RequestDraft("system", json({"role": "system", "content": manifest.instructions})))
        return drafts

    def system(self, text: str, *, leading: bool) -> RequestDraft:
        return RequestDraft("system", json({"role": "system", "content": text}), stays=True)

    def user(self, parts: Sequence[Part], lose: Lose) -> list[RequestDraft]:
        return [RequestDraft("user", json({"role": "user", "content": _content(_carried(parts, lose))}))]

    def response(self, response: Response, manifest: Manifest, lose: Lose) -> list[RequestDraft]:
        parts: list[Part] = []
        calls: list[dict[str, Any]] = []
        thoughts: dict[str, Any] = {}
        for body in response.said:
            match body:
                case Reasoning():
                    if not response.verbatim:
                        lose(f"reasoning of {body.provider or 'an unknown model'}")
                    elif manifest.reasoning_back:
                        thoughts |= _thoughts(body)
                case AssistantMessage():
                    parts += spoken_parts(body, lose)
                case ToolCall():
                    function = {"name": tool_name(body.tool), "arguments": body.arguments}
                    extra = _fields_of(body.item) if response.verbatim and body.item else {}
                    id = response.ids[body.call_id]
                    calls.append({"id": id, "type": "function", "function": function, **extra})
        if not parts and not calls:
            return []
        message = {"role": "assistant", "content": _content(parts) if parts else None, **thoughts}
        return [RequestDraft("assistant", json(message | ({"tool_calls": calls} if calls else {})))]

    def result(self, result: ToolResult, id: str, lose: Lose) -> tuple[list[RequestDraft], list[RequestDraft]]:
        parts = marked_words_of(result)
        shown = [part for part in parts if not isinstance(part, Text)]
        message = {"role": "tool", "tool_call_id": id, "content": text_of(parts) or "(see the next message)"}
        if not shown:
            return [RequestDraft("tool", json(message))], []
        # A tool's message holds only text, so pictures follow as a user's, behind the last result.
        intro = Text(f"What {result.tool} returned:")
        return [RequestDraft("tool", json(message))], self.user([intro, *shown], lose)

    def lead(self, block: RequestDraft, before: PromptBlock | None) -> bytes:
        return b"," if before is not None and before.place == "history" else b""

    def body(self, sending: Sending) -> bytes:
        tools, _, messages = texts_of(sending.blocks)
        head = b'{"model":' + json(sending.manifest.model)
        if tools:
            head += b',"tools":[' + b",".join(tools) + b"]"
        tail = with_extra(self._fields(sending, bool(tools)), sending.llm)
        return b"".join((head, b',"messages":[', *messages, b"]", tail, b"}"))

    def _fields(self, sending: Sending, tools: bool) -> dict[str, Any]:
        llm, manifest, options = sending.llm, sending.manifest, sending.options
        official = llm.kind == "openai" and (llm.base_url is None or llm.served_by.endswith("openai.com"))
        limit = llm.max_tokens or (LOCAL_LIMIT if llm.wire == "local" else None)
        return given(
            stream=True,
            stream_options={"include_usage": True},
            max_completion_tokens=limit if official else None,
            max_tokens=None if official else limit,
            temperature=llm.temperature,
            top_p=llm.top_p,
            top_k=llm.top_k,
            seed=llm.seed,
            stop=llm.stop,
            presence_penalty=llm.presence_penalty,
            frequency_penalty=llm.frequency_penalty,
            logit_bias=raw(options.logit_bias) if options.logit_bias is not None else None,
            verbosity=options.verbosity,
            service_tier=options.service_tier,
            reasoning_effort=manifest.reasoning_effort,
            response_format=_answer_format(manifest),
            tool_choice=_choice(options.tool_choice) if tools and options.tool_choice != "auto" else None,
            parallel_tool_calls=options.parallel_calls if tools else None,
            prompt_cache_key=sending.key,
            prompt_cache_options={"ttl": llm.cache_ttl} if llm.cache_ttl else None,
            cache_salt=sending.context.salt if llm.cache_salt else None,
        )


def _function(tool: Any) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": raw(tool.parameters)}
    return function | ({"strict": True} if tool.strict else {})


def _carried(parts: Sequence[Part], lose: Lose) -> list[Part]:
    """The parts, with words instead of what this wire has no place for: a file goes as data, not by its address."""
    carried: list[Part] = []
    for part in parts:
        if isinstance(part, File) and not part.data:
            lose(lost_part(part))
            carried.append(instead_of(part))
        else:
            carried.append(part)
    return carried


def _content(parts: Sequence[Part]) -> Any:
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return [_part(part) for part in parts]


def _part(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Image():
            return {"type": "image_url", "image_url": {"url": data_url(part)}}
        case File():
            data = f"data:{part.media_type};base64,{part.data}"
            return {"type": "file", "file": {"filename": part.name, "file_data": data}}


def _thoughts(body: Reasoning) -> dict[str, Any]:
    item = _fields_of(body.item) if body.item else {}
    if "in" in item:
        return {msgspec.json.decode(item["in"], type=str): body.text or ""}
    return item


def _fields_of(item: JsonText) -> dict[str, Any]:
    return dict(msgspec.json.decode(item, type=dict[str, msgspec.Raw]))


def _answer_format(manifest: Manifest) -> dict[str, Any] | None:
    if manifest.output is None:
        return None
    schema = {"name": "answer", "schema": raw(manifest.output), "strict": is_closed(manifest.output)}
    return {"type": "json_schema", "json_schema": schema}


def _choice(choice: str) -> Any:
    if choice in {"auto", "none", "required"}:
        return choice
    return {"type": "function", "function": {"name": choice}}
