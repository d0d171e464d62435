"""Input items: what a client sends, as the bodies of events.

Calls, messages and thoughts of the assistant keep the exact text of their item, so that a provider of Responses
gets them back untouched. Ids that this server gave to items are no provider's, and are left out there.
Tests: tests/server/responses/test_input.py.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.backend.messages import MessageBody
from forkpoint.errors import Invalid, TooLarge
from forkpoint.events import (
    AssistantMessage,
    JsonText,
    Part,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
)
from forkpoint.server.wires.body import MISSING, object_of, value_of
from forkpoint.server.wires.responses.items.ids import turn_of_item
from forkpoint.wire.chat_messages import read_file, read_file_at, read_image

MOST_ITEMS = 10_000
"""Items that one request may have."""


class ItemReference(Struct, frozen=True):
    """An item that the client names by its id instead of sending it."""

    id: str
    place: str


class InputItem(Struct, frozen=True):
    """An item that was read: what it says, and the id that the client knows it by, if it has one of this server."""

    body: MessageBody | ItemReference
    id: str | None = None
    is_custom_result: bool = False  # the result of a custom tool


def read_input(input: str | Sequence[Raw], place: str = "input") -> tuple[InputItem, ...]:
    """The items of a request, in order; a text is one message of the user. Blank messages are left out.

    Raises `Invalid`, or `TooLarge` if there are too many items.
    """
    if isinstance(input, str):
        return (InputItem(UserMessage((Text(input),))),) if input.strip() else ()
    if len(input) > MOST_ITEMS:
        raise TooLarge("request", len(input), MOST_ITEMS, "items")
    items: list[InputItem] = []
    tools: dict[str, str] = {}  # which tool each call is of, as far as the list has come
    for number, raw in enumerate(input):
        item = _read_item(raw, f"{place}[{number}]", tools)
        if item is not None:
            items.append(item)
    return tuple(items)


def custom_results(items: Iterable[InputItem]) -> tuple[str, ...]:
    """The calls whose results a client sent as those of custom tools."""
    bodies = [item.body for item in items if item.is_custom_result]
    return tuple(body.call_id for body in bodies if isinstance(body, ToolResult))


def attributed(body: MessageBody, agent: Agent) -> MessageBody:
    """What an item says, for this agent: items go back untouched if its model speaks Responses."""
    if not isinstance(body, AssistantMessage | ToolCall | Reasoning) or body.provider is not None:
        return body
    if isinstance(body, ToolCall) and is_custom(body):
        return body  # its model knows the tool as a function, and is sent that
    is_its = agent.llm.wire == "responses" and body.item is not None
    return replace(body, provider=agent.manifest.origin) if is_its else replace(body, item=None)


def is_custom(call: ToolCall) -> bool:
    """Whether a client brought a call along as that of a custom tool."""
    if call.item is None or call.provider is not None:
        return False
    return bool(msgspec.json.decode(call.item, type=_Kind).type == "custom_tool_call")


class _Kind(Struct):
    type: Any = None


def _read_item(raw: Raw, place: str, tools: dict[str, str]) -> InputItem | None:
    fields = object_of(raw, place)
    item: dict[str, Any] = value_of(raw, place)
    kind = item.get("type") or ("message" if "role" in item else None)
    id = item.get("id") if isinstance(item.get("id"), str) and turn_of_item(item["id"]) else None
    match kind:
        case "message":
            body = _message(item, fields, place)
        case "function_call":
            call_id, name = _text(item, "call_id", place), _text(item, "name", place)
            arguments = item.get("arguments") if isinstance(item.get("arguments"), str) else "{}"
            tools[call_id] = name
            body = ToolCall(call_id, name, arguments or "{}", client=True, item=_verbatim(fields))
        case "custom_tool_call":
            call_id, name = _text(item, "call_id", place), _text(item, "name", place)
            tools[call_id] = name
            wrapped = msgspec.json.encode({"input": _text(item, "input", place, blank=True)}).decode()
            body = ToolCall(call_id, name, wrapped, client=True, item=_verbatim(fields))
        case "function_call_output" | "custom_tool_call_output":
            call_id = _text(item, "call_id", place)
            body = ToolResult(call_id, tools.get(call_id, ""), _result(item.get("output"), f"{place}.output"))
        case "reasoning":
            body = Reasoning(_thoughts(item, place) or None, item=_verbatim(fields))
        case "item_reference":
            return InputItem(ItemReference(_text(item, "id", place), place))
        case None:
            raise Invalid(f"{place}.type", MISSING)
        case _:
            shown = kind[:64] if isinstance(kind, str) and kind.replace("_", "").isalnum() else "this type"
            raise Invalid.unsupported(f"{place}.type", f"items of the type {shown} are not known")
    return None if body is None else InputItem(body, id, kind == "custom_tool_call_output")


def _message(item: dict[str, Any], fields: dict[str, Raw], place: str) -> MessageBody | None:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise Invalid(f"{place}.role", MISSING if role is None else "it must be user, assistant, system or developer")
    parts = _parts(item.get("content"), f"{place}.content", files=role == "user")
    if not parts:
        return None  # a provider would refuse a blank message
    match role:
        case "user":
            return UserMessage(parts)
        case "assistant":
            return AssistantMessage(parts, item=_verbatim(fields))
        case _:
            return SystemMessage(parts)


def _parts(content: Any, place: str, *, files: bool) -> tuple[Part, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (Text(content),) if content.strip() else ()
    if not isinstance(content, list):
        raise Invalid(place, "it must be a text or a list of parts")
    parts = [_part(part, f"{place}[{number}]", files) for number, part in enumerate(content)]
    return tuple(part for part in parts if not isinstance(part, Text) or part.text.strip())


def _part(part: Any, place: str, files: bool) -> Part:
    if not isinstance(part, dict):
        raise Invalid(place, "it is not an object")
    match part.get("type"):
        case "input_text" | "output_text" | "text" | "summary_text":
            return Text(_text(part, "text", place, blank=True))
        case "refusal":
            return Text(_text(part, "refusal", place, blank=True))
        case "input_image" | "input_file" if part.get("file_id") is not None:
            raise Invalid.unsupported(f"{place}.file_id", "no files are kept here; send the file itself")
        case "input_image" if files:
            return read_image(_text(part, "image_url", place), f"{place}.image_url")
        case "input_file" if files:
            name = part.get("filename") if isinstance(part.get("filename"), str) else None
            if part.get("file_url") is not None:
                return read_file_at(_text(part, "file_url", place), name, f"{place}.file_url")
            return read_file(_text(part, "file_data", place), name, f"{place}.file_data")
        case "input_image" | "input_file":
            raise Invalid(f"{place}.type", "only a message of the user takes pictures and files")
        case None:
            raise Invalid(f"{place}.type", MISSING)
        case _:
            raise Invalid.unsupported(f"{place}.type", "only texts, pictures and files are known")


def _result(output: Any, place: str) -> tuple[Part, ...]:
    """What a client's tool came to: a text, which may be blank, or parts."""
    if isinstance(output, str):
        return (Text(output),) if output else ()
    return _parts(output, place, files=True)


def _thoughts(item: dict[str, Any], place: str) -> str:
    parts: list[Any] = []
    for name in ("summary", "content"):
        some = item.get(name)
        if not isinstance(some, list | None):
            raise Invalid(f"{place}.{name}", "it must be a list of parts")
        parts += some or ()
    return "\n\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _text(item: dict[str, Any], name: str, place: str, *, blank: bool = False) -> str:
    value = item.get(name)
    if value is None or (value == "" and not blank):
        raise Invalid(f"{place}.{name}", MISSING)
    if not isinstance(value, str):
        raise Invalid(f"{place}.{name}", "it must be a text")
    return value


def _verbatim(fields: dict[str, Raw]) -> JsonText:
    """The item as it came, but for an id that this server gave it. No value in it is written anew."""
    kept = dict(fields)
    if (id := fields.get("id")) is not None:
        given = msgspec.json.decode(id)
        if not isinstance(given, str) or turn_of_item(given) is not None:
            del kept["id"]
    return msgspec.json.encode(kept).decode()
