"""Messages: what a caller may pass as one, and how a turn's input is stored.
Tests: tests/conversation/test_messages.py."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.errors import NotWhole
from forkpoint.events import (
    AssistantMessage,
    File,
    Image,
    Imported,
    JsonText,
    NewEvent,
    Part,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
)
from forkpoint.history.wholeness import check_whole
from forkpoint.parameters import Words

Message: TypeAlias = Annotated[
    str | Part | Sequence[str | Part] | UserMessage, Words("a text, an Image, a File, a list of these, a UserMessage")
]
"""What a user says: a text, a picture, a file, or several of these in a list."""

Given: TypeAlias = UserMessage | ToolResult | AssistantMessage | SystemMessage | ToolCall | Reasoning | Imported
"""What a turn may be given: messages, results of calls that the client was handed, and history from elsewhere."""

MessageBody: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolCall | ToolResult | Reasoning
"""What a message of a list says: words, calls, the result of a call, or a thought that a provider wants back."""

ListFormat: TypeAlias = Literal["openai", "anthropic"]
"""Whose form a list of messages has: that of chat completions, or Anthropic's."""


class ImportedList(Struct, frozen=True):
    """A list of messages from elsewhere, as a new conversation begins with it."""

    format: ListFormat
    messages: JsonText  # the list as it was given
    events: tuple[NewEvent, ...]  # what it says

    def as_history(self) -> tuple[NewEvent, ...]:
        """The events, behind one that says where they came from."""
        return (NewEvent(Imported(f"{self.format} messages", len(self.events))), *self.events)


WITHOUT_INPUT: JsonText = "[]"
"""The input of a turn that goes on without one. A note has None."""

E = TypeVar("E", UserMessage, ToolResult)


def as_message(message: Message) -> UserMessage:
    """The event that a message becomes. Raises `NotWhole` if it is blank, or not a message."""
    return _checked(message if isinstance(message, UserMessage) else UserMessage(_parts("user_message", message)))


def as_result(call_id: str, result: Message | ToolResult) -> ToolResult:
    """What the client's own tool came to: a text, parts, or a `ToolResult` that says more. Raises `NotWhole`.

    It may be empty. Which tool it is of is known to the one who finds the call.
    """
    if isinstance(result, ToolResult):
        made = replace(result, call_id=call_id, tool=result.tool or "tool")
    else:
        parts = result.parts if isinstance(result, UserMessage) else _parts("tool_result", result)
        made = ToolResult(call_id, "tool", tuple(part for part in parts if part != Text("")))
    return replace(_checked(made), tool="")


def write_input(
    given: Sequence[Given], request: str | None = None, caller: str | None = None, echo: JsonText | None = None
) -> JsonText:
    """What a turn was given, as it is stored with it: with the digest of the request that gave it, if that matters, the
    turn of a parent that did, and what answers repeat of the request.

    Raises `NotWhole` for text that is not valid Unicode.
    """
    plain = request is None and caller is None and echo is None
    try:
        return msgspec.json.encode(tuple(given) if plain else _Asked(tuple(given), request, caller, echo)).decode()
    except UnicodeEncodeError as error:
        raise NotWhole(_kind(given), f"its text is not valid Unicode ({error.reason})") from None


def read_input(text: JsonText | None) -> tuple[Given, ...]:
    """What a turn was given. One that was begun without anything has nothing."""
    if text is None:
        return ()
    if text.startswith("{"):
        return msgspec.json.decode(text, type=_Asked).given
    return msgspec.json.decode(text, type=tuple[Given, ...])


def goes_on(text: JsonText | None) -> bool:
    """Whether a turn was begun to go on without input. A turn whose input was erased or has expired has None."""
    return text == WITHOUT_INPUT


def request_of(text: JsonText | None) -> str | None:
    """The digest of the request that a turn is of, if it was kept."""
    return msgspec.json.decode(text, type=_Asked).request if text is not None and text.startswith("{") else None


def caller_of(text: JsonText | None) -> str | None:
    """The parent's turn that a turn was begun for; None if it was not."""
    return msgspec.json.decode(text, type=_Asked).caller if text is not None and text.startswith("{") else None


def echo_of(text: JsonText | None) -> JsonText | None:
    """What answers repeat of the request that a turn is of, if that was kept."""
    return msgspec.json.decode(text, type=_Asked).echo if text is not None and text.startswith("{") else None


def said_in(given: Iterable[Given]) -> tuple[UserMessage, ...]:
    """The user's messages of all that a turn was given, but for those that came from elsewhere."""
    said: list[UserMessage] = []
    imported = 0
    for one in given:
        if isinstance(one, Imported):
            imported = one.count
        elif imported:
            imported -= 1
        elif isinstance(one, UserMessage):
            said.append(one)
    return tuple(said)


def split(given: Sequence[Given]) -> tuple[dict[str, ToolResult], list[Given]]:
    """What a turn was given: results for calls of the turn before it, by the call; and the rest, in order."""
    results: dict[str, ToolResult] = {}
    others: list[Given] = []
    called: set[str] = set()  # in history from elsewhere, which brings its own results
    for one in given:
        if isinstance(one, ToolResult) and one.call_id not in called:
            results[one.call_id] = one
        else:
            others.append(one)
        if isinstance(one, ToolCall):
            called.add(one.call_id)
    return results, others


class _Asked(Struct, frozen=True, omit_defaults=True):
    given: tuple[Given, ...]
    request: str | None = None
    caller: str | None = None
    echo: JsonText | None = None


def _parts(kind: str, given: object) -> tuple[Part, ...]:
    """What somebody passed as parts; their types are yet to be checked."""
    match given:
        case str():
            return (Text(given),)
        case Text() | Image() | File():
            return (given,)
        case list() | tuple():
            return tuple(Text(one) if isinstance(one, str) else one for one in given)
        case _:
            raise NotWhole(kind, f"it is of the class {type(given).__name__}, and no text or part")


def _checked(made: E) -> E:
    """The same, made of the types that it says, which Python does not check. Raises `NotWhole`."""
    try:
        again = msgspec.convert(msgspec.to_builtins(made), type(made))
    except (msgspec.ValidationError, TypeError) as error:
        why = f"its parts must be of the classes Text, Image or File ({error})"
        raise NotWhole(_kind([made]), why) from None
    check_whole(NewEvent(again))
    write_input([again])
    return again


def _kind(given: Sequence[Given]) -> str:
    return "tool_result" if given and isinstance(given[0], ToolResult) else "user_message"
