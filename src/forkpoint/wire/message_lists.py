"""Lists of messages from elsewhere: what they say as history, and history as such a list.

Two formats are known: ``openai``, that of chat completions, and ``anthropic``. A list becomes history as a whole, or
`BadMessages` says which message cannot, and why. Tests: tests/wire/test_message_lists.py.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from forkpoint.backend.messages import ImportedList, ListFormat, MessageBody
from forkpoint.errors import BadArgument, BadMessages, Invalid, TooLarge
from forkpoint.events import AssistantMessage, Event, NewEvent, Reasoning, ToolCall, ToolResult
from forkpoint.llm.prompt.message_list import anthropic_messages, chat_messages
from forkpoint.wire import anthropic_messages as anthropic
from forkpoint.wire import chat_messages as chat

MOST = 10_000
"""Messages that one list may have."""

FORMATS: tuple[ListFormat, ...] = get_args(ListFormat)
ORIGIN = "openai/chat"
"""Whose ids the calls of a list of chat completions have."""

_WRITERS: dict[ListFormat, Callable[[Iterable[Event]], list[dict[str, Any]]]] = {
    "openai": chat_messages,
    "anthropic": anthropic_messages,
}
_ANTHROPIC = {"tool_use", "tool_result", "image", "document", "thinking", "redacted_thinking"}
_OPENAI = {"image_url", "file", "refusal", "input_audio"}
_INDEX = re.compile(r"messages\[(\d+)\]")
_AT = re.compile(r" - at `\$(.*?)`$")


def read_list(messages: Any, format: str | None = None) -> ImportedList:
    """A list of messages as history. Without ``format`` it is told by what stands in the list.

    Raises `BadMessages`, `TooLarge`, and `BadArgument` for what is no list, or a format that is not known.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        why = f"it is of the class {type(messages).__name__}, and must be a list of messages"
        raise BadArgument("from_messages()", "messages", why)
    if not messages:
        raise BadArgument("from_messages()", "messages", "there are none")
    if len(messages) > MOST:
        raise TooLarge("list", len(messages), MOST, "messages")
    plain = [_plain(message, index) for index, message in enumerate(messages)]
    known = _told(plain) if format is None else check_format("from_messages()", format)
    try:
        said = list(_read_chat(plain) if known == "openai" else _read_anthropic(plain))
    except Invalid as error:
        place = _INDEX.match(error.param)
        raise BadMessages(error.param, error.why, int(place[1]) if place else 0) from None
    return ImportedList(known, msgspec.json.encode(plain).decode(), tuple(_paired(said)))


def write_list(format: str, path: Iterable[Event]) -> list[dict[str, Any]]:
    """All that was said on a path, as a list of messages. Raises `BadArgument` for a format that is not known."""
    return _WRITERS[check_format("messages()", format)](path)


def check_format(call: str, format: str) -> ListFormat:
    """The same format. Raises `BadArgument` if it is not known."""
    for known in FORMATS:
        if format == known:
            return known
    raise BadArgument(call, f"format={format!r}", f"the formats are {' and '.join(FORMATS)}")


def _plain(message: Any, index: int) -> dict[str, Any]:
    """A message as a dict of plain values. An SDK's own objects are written out."""
    try:
        plain = msgspec.to_builtins(message, enc_hook=_written_out)
        msgspec.json.encode(plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadMessages(f"messages[{index}]", f"it has no JSON form ({error})", index) from None
    if not isinstance(plain, dict):
        raise BadMessages(f"messages[{index}]", "it is no object with a role and content", index)
    return plain


def _written_out(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return dump(mode="json", exclude_none=True)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _told(messages: Sequence[dict[str, Any]]) -> ListFormat:
    """The format of a list. One that has only texts is the same in both."""
    found: dict[ListFormat, int] = {}
    for index, message in enumerate(messages):
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        kinds = {str(part.get("type")) for part in parts if isinstance(part, dict)}
        if kinds & _ANTHROPIC:
            found.setdefault("anthropic", index)
        if kinds & _OPENAI or message.get("role") in {"system", "developer", "tool"} or message.get("tool_calls"):
            found.setdefault("openai", index)
    if len(found) > 1:
        first, second = sorted(found, key=lambda one: found[one])
        why = f"it is in the format {second}, and messages[{found[first]}] is in the format {first}"
        raise BadMessages(f"messages[{found[second]}]", why, found[second])
    return next(iter(found), "openai")


def _read_chat(messages: Sequence[dict[str, Any]]) -> Iterator[tuple[int, MessageBody | Reasoning]]:
    tools: dict[str, str] = {}
    for index, message in enumerate(messages):
        read = chat.read_message(_converted(message, chat.SentMessage, index), index, tools)
        if not read.bodies:
            raise Invalid(f"messages[{index}]", "it is blank")
        for body in read.bodies:
            match body:
                case AssistantMessage():
                    yield index, replace(body, provider=ORIGIN)
                case ToolCall():
                    yield index, replace(body, provider=ORIGIN, client=False)
                case _:
                    yield index, body


def _read_anthropic(messages: Sequence[dict[str, Any]]) -> Iterator[tuple[int, MessageBody | Reasoning]]:
    tools: dict[str, str] = {}
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        bodies = anthropic.read_message(_converted(message, anthropic.AnthropicMessage, index), place, tools)
        if not bodies:
            raise Invalid(place, "it is blank")
        tools.update((body.call_id, body.tool) for body in bodies if isinstance(body, ToolCall))
        yield from ((index, body) for body in bodies)


def _converted(message: dict[str, Any], kind: Any, index: int) -> Any:
    try:
        return msgspec.convert(message, kind)
    except msgspec.ValidationError as error:
        said = str(error)
        at = _AT.search(said)
        raise Invalid(f"messages[{index}]{at[1] if at else ''}", _AT.sub("", said)) from None


def _paired(said: Sequence[tuple[int, MessageBody | Reasoning]]) -> Iterator[NewEvent]:
    """The events of a list, with results in the order of their calls. Raises `BadMessages` if a call has no result."""
    open: dict[str, ToolResult | None] = {}
    asked = 0  # the message that has the open calls
    for index, body in said:
        if isinstance(body, ToolResult):
            if body.call_id not in open or open[body.call_id] is not None:
                why = f"it has a result for call {body.call_id[:200]!r}, and no such call is open there"
                raise BadMessages(f"messages[{index}]", why, index)
            open[body.call_id] = body
            if None not in open.values():
                yield from (NewEvent(result) for result in open.values() if result is not None)
                open.clear()
            continue
        if open and index != asked:
            _refuse_open(open, asked)
        if isinstance(body, ToolCall):
            open[body.call_id], asked = None, index
        response = index + 1 if isinstance(body, AssistantMessage | Reasoning | ToolCall) else None
        yield NewEvent(body, response=response)
    if open:
        _refuse_open(open, asked)


def _refuse_open(open: dict[str, ToolResult | None], asked: int) -> None:
    call = next(id for id, result in open.items() if result is None)
    why = f"its call {call[:200]!r} has no result in the messages right after it"
    raise BadMessages(f"messages[{asked}]", why, asked)
