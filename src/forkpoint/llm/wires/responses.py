"""Responses: one item for each thing that was said. The provider keeps nothing; the whole path is sent each time.
Tests: tests/llm/test_rendering_wires.py."""

from collections.abc import Sequence
from typing import Any

import msgspec

from forkpoint.events import AssistantMessage, File, Image, Part, Reasoning, Text, ToolCall, ToolResult
from forkpoint.llm.prompt.blocks import PromptBlock
from forkpoint.llm.prompt.manifest import Manifest
from forkpoint.llm.wires.body import data_url, given, is_closed, json, raw, texts_of, tool_name, with_extra
from forkpoint.llm.wires.wire import Lose, RequestDraft, Response, Sending
from forkpoint.llm.wires.wording import marked_words_of, spoken_parts, text_of


class ResponsesWire:
    """What OpenAI's Responses take."""

    def head(self, manifest: Manifest) -> list[RequestDraft]:
        drafts = [RequestDraft("tool", json(_tool(tool)), place="tools") for tool in manifest.tools]
        if manifest.instructions:
            drafts.append(RequestDraft("system", json(manifest.instructions), place="system"))
        return drafts

    def system(self, text: str, *, leading: bool) -> RequestDraft:
        return RequestDraft("system", json(_message("system", [Text(text)])), stays=True)

    def user(self, parts: Sequence[Part], lose: Lose) -> list[RequestDraft]:
        return [RequestDraft("user", json(_message("user", parts)))]

    def response(self, response: Response, manifest: Manifest, lose: Lose) -> list[RequestDraft]:
        thoughts = [body for body in response.said if isinstance(body, Reasoning)]
        # All or nothing: an item whose id refers to thoughts that are not there would be refused.
        verbatim = response.verbatim and all(manifest.reasoning_back and _is_whole(body) for body in thoughts)
        drafts: list[RequestDraft] = []
        for body in response.said:
            if verbatim and body.item is not None:
                drafts.append(RequestDraft("assistant", body.item.encode()))
                continue
            match body:
                case Reasoning():
                    if manifest.reasoning_back or body.provider != manifest.origin:
                        lose(f"reasoning of {body.provider or 'an unknown model'}")
                case AssistantMessage():
                    content = [{"type": "output_text", "text": part.text} for part in spoken_parts(body, lose)]
                    if content:
                        message = {"type": "message", "role": "assistant", "content": content}
                        drafts.append(RequestDraft("assistant", json(message)))
                case ToolCall():
                    id, name = response.ids[body.call_id], tool_name(body.tool)
                    call = {"type": "function_call", "call_id": id, "name": name, "arguments": body.arguments}
                    drafts.append(RequestDraft("assistant", json(call)))
        return drafts

    def result(self, result: ToolResult, id: str, lose: Lose) -> tuple[list[RequestDraft], list[RequestDraft]]:
        parts = marked_words_of(result)
        output: Any = text_of(parts)
        if any(not isinstance(part, Text) for part in parts):
            output = [_part(part) for part in parts]
        return [RequestDraft("tool", json({"type": "function_call_output", "call_id": id, "output": output}))], []

    def lead(self, block: RequestDraft, before: PromptBlock | None) -> bytes:
        return b"," if before is not None and before.place == "history" else b""

    def body(self, sending: Sending) -> bytes:
        tools, system, items = texts_of(sending.blocks)
        head = b'{"model":' + json(sending.manifest.model)
        if tools:
            head += b',"tools":[' + b",".join(tools) + b"]"
        if system:
            head += b',"instructions":' + system[0]
        tail = with_extra(self._fields(sending, bool(tools)), sending.llm)
        return b"".join((head, b',"input":[', *items, b"]", tail, b"}"))

    def _fields(self, sending: Sending, tools: bool) -> dict[str, Any]:
        llm, manifest, options = sending.llm, sending.manifest, sending.options
        effort = manifest.reasoning_effort
        return given(
            stream=True,
            store=False,
            include=["reasoning.encrypted_content"] if effort and effort != "none" else None,
            max_output_tokens=llm.max_tokens,
            temperature=llm.temperature,
            top_p=llm.top_p,
            reasoning={"effort": effort, "summary": "auto"} if effort else None,
            text=given(format=_answer_format(manifest), verbosity=options.verbosity) or None,
            service_tier=options.service_tier,
            tool_choice=_choice(options.tool_choice) if tools and options.tool_choice != "auto" else None,
            parallel_tool_calls=options.parallel_calls if tools else None,
            prompt_cache_key=sending.key,
            prompt_cache_options={"ttl": llm.cache_ttl} if llm.cache_ttl else None,
            cache_salt=sending.context.salt if llm.cache_salt else None,
        )


def _is_whole(body: Reasoning) -> bool:
    """Whether a thought can go back: the provider keeps nothing, so all of it must be in the item."""
    item = msgspec.json.decode(body.item or "null")
    if not isinstance(item, dict):
        return False
    return item.get("type") != "reasoning" or bool(item.get("encrypted_content") or item.get("content"))


def _tool(tool: Any) -> dict[str, Any]:
    shape = {"type": "function", "name": tool.name, "description": tool.description}
    return shape | {"parameters": raw(tool.parameters), "strict": tool.strict}


def _message(role: str, parts: Sequence[Part]) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [_part(part) for part in parts]}


def _part(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "input_text", "text": part.text}
        case Image():
            return {"type": "input_image", "image_url": data_url(part), "detail": "auto"}
        case File(url=str(url)) if url:
            return {"type": "input_file", "file_url": url}
        case File():
            return {"type": "input_file", "filename": part.name, "file_data": data_url(part)}


def _answer_format(manifest: Manifest) -> dict[str, Any] | None:
    if manifest.output is None:
        return None
    schema = {"type": "json_schema", "name": "answer", "schema": raw(manifest.output)}
    return schema | {"strict": is_closed(manifest.output)}


def _choice(choice: str) -> Any:
    return choice if choice in {"auto", "none", "required"} else {"type": "function", "name": choice}
