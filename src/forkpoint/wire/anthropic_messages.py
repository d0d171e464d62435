"""Messages in Anthropic's form: how they look, and what they say as events.

A message has blocks. A user's message may begin with the results of calls; an assistant's has thoughts, texts and calls
in the order in which the model made them. Tests: tests/wire/test_message_lists.py.
"""

import base64
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from forkpoint.errors import Invalid
from forkpoint.events import AssistantMessage, File, Image, Part, Reasoning, Text, ToolCall, ToolResult, UserMessage
from forkpoint.system.media import is_base64

ORIGIN = "anthropic/messages"
"""Whose thoughts and ids these are: they go back as they are to Anthropic, and to nobody else."""

HistoryBody: TypeAlias = UserMessage | AssistantMessage | Reasoning | ToolCall | ToolResult


class Base64Source(Struct, frozen=True, tag_field="type", tag="base64"):
    media_type: str
    data: str


class UrlSource(Struct, frozen=True, tag_field="type", tag="url"):
    url: str


class TextSource(Struct, frozen=True, tag_field="type", tag="text"):
    data: str
    media_type: Literal["text/plain"] = "text/plain"


class TextBlock(Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class ImageBlock(Struct, frozen=True, tag_field="type", tag="image"):
    source: Base64Source | UrlSource


class DocumentBlock(Struct, frozen=True, tag_field="type", tag="document"):
    source: Base64Source | UrlSource | TextSource
    title: str | None = None


class ResultBlock(Struct, frozen=True, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock] | None = None
    is_error: bool | None = None


class ThinkingBlock(Struct, frozen=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class RedactedBlock(Struct, frozen=True, tag_field="type", tag="redacted_thinking"):
    data: str


class CallBlock(Struct, frozen=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class AnthropicUserMessage(Struct, frozen=True, tag_field="role", tag="user"):
    content: str | list[TextBlock | ImageBlock | DocumentBlock | ResultBlock]


class AnthropicAssistantMessage(Struct, frozen=True, tag_field="role", tag="assistant"):
    content: str | list[TextBlock | ThinkingBlock | RedactedBlock | CallBlock]


AnthropicMessage: TypeAlias = AnthropicUserMessage | AnthropicAssistantMessage


def read_message(message: AnthropicMessage, place: str, tools: dict[str, str]) -> list[HistoryBody]:
    """What one message says, in order. ``tools`` has the tool of each call before it. Raises `Invalid`."""
    content = [TextBlock(message.content)] if isinstance(message.content, str) else message.content
    if isinstance(message, AnthropicUserMessage):
        return _said_by_user(content, place, tools)
    return _said_by_assistant(content, place)


def _said_by_user(content: Sequence[Any], place: str, tools: dict[str, str]) -> list[HistoryBody]:
    said: list[HistoryBody] = []
    parts: list[Part] = []
    for number, block in enumerate(content):
        where = f"{place}.content[{number}]"
        if not isinstance(block, ResultBlock):
            parts.append(_part(block, where))
        elif parts:
            raise Invalid(where, "results of calls stand before everything else in a message")
        else:
            said.append(_result(block, where, tools))
    return [*said, UserMessage(tuple(parts))] if parts else said


def _said_by_assistant(content: Sequence[Any], place: str) -> list[HistoryBody]:
    said: list[HistoryBody] = []
    for number, block in enumerate(content):
        where = f"{place}.content[{number}]"
        match block:
            case TextBlock():
                part = _part(block, where)
                if said and isinstance(last := said[-1], AssistantMessage):
                    said[-1] = AssistantMessage((*last.parts, part), ORIGIN)
                else:
                    said.append(AssistantMessage((part,), ORIGIN))
            case ThinkingBlock():
                said.append(Reasoning(block.thinking or None, block.signature, provider=ORIGIN))
            case RedactedBlock():
                said.append(Reasoning(encrypted=block.data, provider=ORIGIN))
            case CallBlock():
                if any(isinstance(one, ToolCall) and one.call_id == block.id for one in said):
                    raise Invalid(f"{where}.id", "another call of the same message has it")
                arguments = msgspec.json.encode(block.input).decode()
                said.append(ToolCall(block.id, block.name, arguments, provider=ORIGIN))
    if said and isinstance(said[-1], Reasoning):
        raise Invalid(place, "it ends with a thought, and a thought needs what it led to")
    return said


def _result(block: ResultBlock, where: str, tools: dict[str, str]) -> ToolResult:
    content = [TextBlock(block.content)] if isinstance(block.content, str) else block.content or []
    read = (_part(one, f"{where}.content[{n}]", may_be_blank=True) for n, one in enumerate(content))
    parts = tuple(part for part in read if part != Text(""))
    status: Literal["done", "failed"] = "failed" if block.is_error else "done"
    return ToolResult(
        block.tool_use_id, tools.get(block.tool_use_id, ""), tuple(part for part in parts if part != Text("")), status
    )


def _part(block: Any, where: str, *, may_be_blank: bool = False) -> Part:
    match block:
        case TextBlock(text=text):
            if not may_be_blank and not text.strip():
                raise Invalid(f"{where}.text", "it is blank")
            return Text(text)
        case ImageBlock(source=UrlSource(url=url)):
            return Image("image/*", url=_address(url, where))
        case ImageBlock(source=Base64Source(media_type=kind, data=data)):
            return Image(kind, data=_data(data, where))
        case DocumentBlock(source=UrlSource(url=url), title=title):
            return File(title or "document", "application/pdf", url=_address(url, where))
        case DocumentBlock(source=TextSource(data=data), title=title):
            return File(title or "document", "text/plain", data=base64.b64encode(data.encode()).decode())
        case DocumentBlock(source=Base64Source(media_type=kind, data=data), title=title):
            return File(title or "document", kind, data=_data(data, where))
        case _:
            raise Invalid(where, "it is of a kind that has no place here")


def _data(data: str, where: str) -> str:
    if not data or not is_base64(data):
        raise Invalid(f"{where}.source.data", "its data is not base64")
    return data


def _address(url: str, where: str) -> str:
    if not url.startswith(("https://", "http://")):
        raise Invalid(f"{where}.source.url", "it must begin with https:// or http://")
    return url
