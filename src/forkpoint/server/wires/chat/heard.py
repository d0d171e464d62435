"""What a client's list of messages says: each message as the bodies of the events that it would be."""

from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.json import Decoder

from forkpoint.errors import Invalid, TooLarge, Unsupported
from forkpoint.events import AssistantMessage, Part, SystemMessage, Text, ToolCall, ToolResult, UserMessage
from forkpoint.server.wires.chat.fields import Fields
from forkpoint.server.wires.chat.parts import SentPart, part_of

MOST_CALLS = 512
"""Calls that one message may have."""

Said: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolCall | ToolResult


class Heard(Struct, frozen=True):
    """One message of the list. Without bodies it says nothing that could be used: it is blank."""

    role: Literal["system", "user", "assistant", "tool"]
    bodies: tuple[Said, ...]
    text: str  # its words: parts of one message in lines of their own, but those of an assistant as one text
    index: int  # where it stands in the list


def read_messages(fields: Fields, most: int) -> tuple[Heard, ...]:
    """The messages of a request, in order. Raises `Invalid`, `Unsupported` or `TooLarge`."""
    sent = fields.take("messages", _MESSAGES)
    if not sent:
        raise Invalid("messages", "there are none; send at least one")
    if len(sent) > most:
        raise TooLarge("request", len(sent), most, "messages")
    tools: dict[str, str] = {}  # which tool each call is of, as far as the list has come
    return tuple([_heard(message, index, tools) for index, message in enumerate(sent)])


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _Call(Struct, gc=False):
    id: str | None = None
    type: str | None = None
    function: _Function | None = None


class _Message(Struct, gc=False):
    role: str | None = None
    content: str | list[SentPart] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    function_call: Any = None
    audio: Any = None


_MESSAGES = Decoder(list[_Message]).decode


def _heard(message: _Message, index: int, tools: dict[str, str]) -> Heard:
    match message.role:
        case "user":
            parts, text = _said(message.content, index, "user")
            return Heard("user", (UserMessage(parts),) if parts else (), text, index)
        case "assistant":
            return _assistant(message, index, tools)
        case "tool":
            return _tool(message, index, tools)
        case "system" | "developer":
            parts, text = _said(message.content, index, "system")
            return Heard("system", (SystemMessage(parts),) if parts else (), text, index)
        case "function":
            why = "the role function is deprecated; send the result with the role tool"
            raise Unsupported(f"messages[{index}].role", why)
        case None:
            raise Invalid(f"messages[{index}].role", "it is missing")
        case _:
            why = "it must be system, developer, user, assistant or tool"
            raise Invalid(f"messages[{index}].role", why)


def _assistant(message: _Message, index: int, tools: dict[str, str]) -> Heard:
    if message.function_call is not None:
        raise Unsupported(f"messages[{index}].function_call", "it is deprecated; send the call in tool_calls")
    if message.audio is not None:
        raise Unsupported(f"messages[{index}].audio", "sound is not kept here; send its words as content")
    parts, text = _said(message.content, index, "assistant")
    if message.refusal and message.refusal.strip():
        parts, text = (*parts, Text(message.refusal)), text + message.refusal
    if not message.tool_calls:
        return Heard("assistant", (AssistantMessage(parts),) if parts else (), text, index)
    calls = _calls(message.tool_calls, f"messages[{index}].tool_calls")
    tools.update((call.call_id, call.tool) for call in calls)
    return Heard("assistant", (AssistantMessage(parts), *calls) if parts else tuple(calls), text, index)


def _calls(sent: list[_Call], place: str) -> list[ToolCall]:
    if len(sent) > MOST_CALLS:
        raise Invalid(place, f"there are {len(sent):,} calls, and the limit is {MOST_CALLS}")
    calls: list[ToolCall] = []
    seen: set[str] = set()
    for number, call in enumerate(sent):
        if call.type is not None and call.type != "function":
            raise Unsupported(f"{place}[{number}]", "only calls of functions are known")
        if not call.id:
            raise Invalid(f"{place}[{number}].id", "it is missing")
        if call.id in seen:
            raise Invalid(f"{place}[{number}].id", "another call of the same message has it")
        if call.function is None or not call.function.name:
            raise Invalid(f"{place}[{number}].function.name", "it is missing")
        seen.add(call.id)
        arguments = "{}" if call.function.arguments is None else call.function.arguments
        calls.append(ToolCall(call.id, call.function.name, arguments, client=True))
    return calls


def _tool(message: _Message, index: int, tools: dict[str, str]) -> Heard:
    id = message.tool_call_id
    if not id:
        raise Invalid(f"messages[{index}].tool_call_id", "it is missing; name the call that this is the result of")
    content = message.content
    if isinstance(content, str):
        parts: tuple[Part, ...] = (Text(content),) if content else ()
        return Heard("tool", (ToolResult(id, tools.get(id, ""), parts),), content, index)
    parts, text = _said(content, index, "tool")
    return Heard("tool", (ToolResult(id, tools.get(id, ""), parts),), text, index)


def _said(content: str | list[SentPart] | None, index: int, role: str) -> tuple[tuple[Part, ...], str]:
    """The parts that are worth storing, and the words. A blank text is no part: a provider would refuse it."""
    if isinstance(content, str):
        return ((Text(content),) if content.strip() else ()), content
    if content is None:
        return (), ""
    parts = [part_of(part, role, f"messages[{index}].content[{number}]") for number, part in enumerate(content)]
    words = [part.text for part in parts if isinstance(part, Text)]
    kept = tuple(part for part in parts if not isinstance(part, Text) or part.text.strip())
    return kept, ("" if role == "assistant" else "\n").join(words)
