"""Messages: content blocks with roles, and cache marks where the provider shall keep the prompt.

Neighbouring blocks of one role stand in one message; for the provider, and for its cache, only the blocks count.
Tests: tests/llm/test_rendering_wires.py.
"""

import base64
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from forkpoint.events import AssistantMessage, File, Image, Part, Reasoning, Text, ToolCall, ToolResult
from forkpoint.llm.model import LLM
from forkpoint.llm.options import Options
from forkpoint.llm.prompt.blocks import Blocks, PromptBlock
from forkpoint.llm.prompt.manifest import Manifest
from forkpoint.llm.wires.body import given, json, raw, texts_of, tool_name, with_extra
from forkpoint.llm.wires.wire import Lose, RequestDraft, Response, Sending
from forkpoint.llm.wires.wording import STARTS_HERE, instead_of, lost_part, spoken_parts, system_words, words_of

_PICTURES = {"image/jpeg", "image/png", "image/gif", "image/webp"}

ANSWER_LIMIT = 16_384  # tokens; the wire demands that a limit is given


class MessagesWire:
    """What Anthropic's Messages take."""

    def head(self, manifest: Manifest) -> list[RequestDraft]:
        drafts = [RequestDraft("tool", json(_tool(tool)), place="tools") for tool in manifest.tools]
        if manifest.instructions:
            drafts.append(RequestDraft("system", json({"type": "text", "text": manifest.instructions}), place="system"))
        return drafts

    def system(self, text: str, *, leading: bool) -> RequestDraft:
        if leading:
            return RequestDraft("system", json({"type": "text", "text": text}), place="system", stays=True)
        return RequestDraft("user", json({"type": "text", "text": system_words(text)}), stays=True)

    def user(self, parts: Sequence[Part], lose: Lose) -> list[RequestDraft]:
        return [RequestDraft("user", json(_part(part, lose))) for part in parts]

    def response(self, response: Response, manifest: Manifest, lose: Lose) -> list[RequestDraft]:
        drafts: list[RequestDraft] = []
        for body in response.said:
            match body:
                case Reasoning():
                    if not response.verbatim:
                        lose(f"reasoning of {body.provider or 'an unknown model'}")
                    elif manifest.reasoning_back and (thought := _thought(body)):
                        drafts.append(RequestDraft("assistant", thought, markable=False))
                case AssistantMessage():
                    if response.verbatim and body.item is not None:
                        drafts.append(RequestDraft("assistant", body.item.encode()))
                    else:
                        drafts += [
                            RequestDraft("assistant", json(_part(part, lose))) for part in spoken_parts(body, lose)
                        ]
                case ToolCall():
                    own = msgspec.json.decode(body.item, type=dict[str, msgspec.Raw]) if body.item else {}
                    call = {"type": "tool_use", "id": response.ids[body.call_id], "name": tool_name(body.tool)}
                    call |= {"input": _input(body.arguments)} | (own if response.verbatim else {})
                    drafts.append(RequestDraft("assistant", json(call)))
        return drafts

    def result(self, result: ToolResult, id: str, lose: Lose) -> tuple[list[RequestDraft], list[RequestDraft]]:
        content = [_part(part, lose) for part in words_of(result)]
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": id, "content": content}
        return [RequestDraft("user", json(block | ({"is_error": True} if result.error else {})))], []

    def lead(self, block: RequestDraft, before: PromptBlock | None) -> bytes:
        if before is None or before.place != "history":
            if block.role != "assistant":
                return b'{"role":"user","content":['
            # The first message must be a user's.
            stub = json({"type": "text", "text": STARTS_HERE})
            return b'{"role":"user","content":[' + stub + b']},{"role":"assistant","content":['
        return b"," if before.role == block.role else b']},{"role":"' + block.role.encode() + b'","content":['

    def body(self, sending: Sending) -> bytes:
        tools, system, messages = texts_of(sending.blocks)
        head_end = len(tools) + len(system)
        for index in marked(sending.blocks, (head_end, sending.fork_base, sending.asked, len(sending.blocks))):
            for texts in (tools, system):
                if index < len(texts):
                    texts[index] = _with_mark(texts[index], sending.llm)
                    break
                index -= len(texts)
            else:
                messages[2 * index + 1] = _with_mark(messages[2 * index + 1], sending.llm)
        head = b'{"model":' + json(sending.manifest.model)
        if tools:
            head += b',"tools":[' + b",".join(tools) + b"]"
        if system:
            head += b',"system":[' + b",".join(system) + b"]"
        end = b"]}]" if messages else b"]"
        tail = with_extra(self._fields(sending, bool(tools)), sending.llm)
        return b"".join((head, b',"messages":[', *messages, end, tail, b"}"))

    def _fields(self, sending: Sending, tools: bool) -> dict[str, Any]:
        llm, manifest, options = sending.llm, sending.manifest, sending.options
        limit = llm.max_tokens or ANSWER_LIMIT + (manifest.reasoning_tokens or 0)
        output = given(
            effort=manifest.reasoning_effort if manifest.reasoning_effort != "none" else None,
            format={"type": "json_schema", "schema": raw(manifest.output)} if manifest.output else None,
        )
        return given(
            max_tokens=limit,
            stream=True,
            temperature=llm.temperature,
            top_p=llm.top_p,
            top_k=llm.top_k,
            stop_sequences=llm.stop,
            thinking=_thinking(manifest),
            output_config=output or None,
            tool_choice=_choice(options) if tools else None,
        )


def marked(blocks: Blocks, ends: Iterable[int]) -> list[int]:
    """Which blocks carry a mark: the ends of the head, of the shared history, of the last request, of this one.

    A mark finds what was kept before if it is at most 20 blocks back. So the place where the last request ended gets
    one of its own: it is found however many blocks the last response and its results took.
    """
    places: set[int] = set()
    for end in ends:
        index = end - 1
        while index >= 0 and not blocks[index].markable:
            index -= 1
        if index >= 0:
            places.add(index)
    return sorted(places)


def _tool(tool: Any) -> dict[str, Any]:
    shape = {"name": tool.name, "description": tool.description, "input_schema": raw(tool.parameters)}
    return shape | ({"strict": True} if tool.strict else {})


def _part(part: Part, lose: Lose) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Image() if part.url or part.media_type in _PICTURES:
            return {"type": "image", "source": _source(part)}
        case File() if part.url or part.media_type == "application/pdf":
            return {"type": "document", "source": _source(part), "title": part.name}
        case File() if part.media_type.startswith("text/") and (text := _decoded(part.data)) is not None:
            source = {"type": "text", "media_type": "text/plain", "data": text}
            return {"type": "document", "source": source, "title": part.name}
        case _:
            lose(lost_part(part))
            return {"type": "text", "text": instead_of(part).text}


def _source(part: Image | File) -> dict[str, Any]:
    if part.url:
        return {"type": "url", "url": part.url}
    return {"type": "base64", "media_type": part.media_type, "data": part.data}


def _decoded(data: str | None) -> str | None:
    """The text of a text file; None for other files."""
    try:
        return base64.b64decode(data or "").decode().strip() or None
    except ValueError:
        return None


def _thought(body: Reasoning) -> bytes | None:
    if body.item is not None:
        return body.item.encode()
    if body.encrypted is not None:
        return json({"type": "redacted_thinking", "data": body.encrypted})
    if body.signature is None:
        return None  # it would be refused
    return json({"type": "thinking", "thinking": body.text or "", "signature": body.signature})


def _input(arguments: str) -> Any:
    """A call's arguments as the object that the wire wants: the exact text if it is one."""
    try:
        if isinstance(msgspec.json.decode(arguments), dict):
            return raw(arguments)
    except (msgspec.DecodeError, RecursionError):
        pass
    return {"INVALID_JSON": arguments} if arguments.strip() else {}


def _thinking(manifest: Manifest) -> dict[str, Any] | None:
    if manifest.reasoning_tokens is not None:
        return {"type": "enabled", "budget_tokens": manifest.reasoning_tokens}
    if manifest.reasoning_effort is None:
        return None
    return {"type": "disabled"} if manifest.reasoning_effort == "none" else {"type": "adaptive"}


def _choice(options: Options) -> dict[str, Any] | None:
    kinds = {"auto": "auto", "none": "none", "required": "any"}
    alone = {"disable_parallel_tool_use": True} if options.parallel_calls is False else {}
    if options.tool_choice in kinds:
        kind = kinds[options.tool_choice]
        return {"type": kind, **(alone if kind != "none" else {})} if kind != "auto" or alone else None
    return {"type": "tool", "name": options.tool_choice, **alone}


def _with_mark(text: bytes, llm: LLM) -> bytes:
    mark = {"type": "ephemeral"} | ({"ttl": llm.cache_ttl} if llm.cache_ttl else {})
    return text.rstrip()[:-1] + b',"cache_control":' + json(mark) + b"}"
