"""A client's list of messages: each message as the bodies of events, and what of the list is new."""

import binascii
import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from forkpoint.backend.messages import Given
from forkpoint.errors import CallNotOpen, Invalid, NoNewMessage, TooLarge, Unsupported
from forkpoint.events import (
    AssistantMessage,
    File,
    Image,
    Imported,
    Part,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
)


class SentImage(Struct, gc=False):
    url: str | None = None


class SentFile(Struct, gc=False):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class SentPart(Struct, gc=False):
    """A part as it was sent: which of its fields means anything, its type says."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    image_url: SentImage | str | None = None
    file: SentFile | None = None


_UNHEARD = {"input_audio": "sound cannot be heard here", "video_url": "films cannot be seen here"}
_MEDIA = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,127}")
_PICTURES = {
    "avif": "image/avif",
    "bmp": "image/bmp",
    "gif": "image/gif",
    "heic": "image/heic",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "png": "image/png",
    "svg": "image/svg+xml",
    "tif": "image/tiff",
    "tiff": "image/tiff",
    "webp": "image/webp",
}
_DOCUMENTS = {  # ours, and not the machine's: what a request means must not depend on where it is read
    "csv": "text/csv",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "htm": "text/html",
    "html": "text/html",
    "json": "application/json",
    "md": "text/markdown",
    "pdf": "application/pdf",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "txt": "text/plain",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "xml": "application/xml",
}


def part_of(sent: SentPart, role: str, place: str) -> Part:
    """The part that was sent. Raises `Invalid` or `Unsupported` with its place."""
    match sent.type:
        case "text":
            if sent.text is None:
                raise Invalid(f"{place}.text", "it is missing")
            return Text(sent.text)
        case "refusal" if role == "assistant":
            if sent.refusal is None:
                raise Invalid(f"{place}.refusal", "it is missing")
            return Text(sent.refusal)
        case "image_url" if role == "user":
            return _image(sent.image_url, f"{place}.image_url")
        case "file" if role == "user":
            return _file(sent.file, f"{place}.file")
        case "input_audio" | "video_url":
            raise Unsupported(f"{place}.{sent.type}", _UNHEARD[sent.type])
        case "image_url" | "file" | "refusal":
            raise Invalid(f"{place}.type", f"a message with this role takes no part of the type {sent.type}")
        case None:
            raise Invalid(f"{place}.type", "it is missing")
        case _:
            raise Invalid(f"{place}.type", "only text, image_url and file are known")


def _image(sent: SentImage | str | None, place: str) -> Image:
    url = sent.url if isinstance(sent, SentImage) else sent
    if not url:
        raise Invalid(f"{place}.url", "it is missing")
    if url[:5].lower() == "data:":
        media, data = _inline(url, f"{place}.url")
        if media is None or not media.startswith("image/"):
            raise Invalid(f"{place}.url", "its data is not said to be a picture; begin it with data:image/png;base64,")
        return Image(media, data=data)
    path = _path(url)
    if path is None:
        raise Invalid(f"{place}.url", "it must be a data: URL in base64, or begin with http:// or https://")
    return Image(_PICTURES.get(_ending(path), "image/*"), url=url)


def _file(sent: SentFile | None, place: str) -> File:
    if sent is None:
        raise Invalid(place, "it is missing")
    if sent.file_id is not None:
        raise Unsupported(f"{place}.file_id", "no files are kept here; send the file itself as file_data")
    if not sent.file_data:
        raise Invalid(f"{place}.file_data", "it is missing")
    name = sent.filename if sent.filename and sent.filename.strip() else "file"
    if sent.file_data[:5].lower() == "data:":
        media, data = _inline(sent.file_data, f"{place}.file_data")
    else:  # as OpenAI's own description has it: base64 and nothing else
        media, data = None, _checked(sent.file_data, f"{place}.file_data")
    return File(name, media or (_DOCUMENTS | _PICTURES).get(_ending(name), "application/octet-stream"), data=data)


def _inline(url: str, place: str) -> tuple[str | None, str]:
    """The type that a data: URL names, if it does, and its data, in base64."""
    head, comma, data = url[5:].partition(",")
    media, *rest = (word.strip().lower() for word in head.split(";"))
    if not comma or "base64" not in rest:
        raise Invalid(place, "a data: URL must be in base64, as in data:image/png;base64,...")
    if media and not _MEDIA.fullmatch(media):
        raise Invalid(place, "its media type is none")
    return media or None, _checked(data, place)


def _checked(data: str, place: str) -> str:
    """The same data, which is base64. Raises `Invalid` if it is not, or if there is none."""
    try:
        if not binascii.a2b_base64(data, strict_mode=True):
            raise Invalid(place, "it has no data")
    except ValueError:  # of characters that are not ASCII, too
        raise Invalid(place, "its data is not base64") from None
    return data


def _path(url: str) -> str | None:
    """The path of an address on the web; None if it is not one."""
    try:
        parts = urlsplit(url)
        return parts.path if parts.scheme in {"http", "https"} and parts.hostname else None
    except ValueError:  # brackets that are none
        return None


def _ending(name: str) -> str:
    return name.rpartition(".")[2].lower()


MOST_CALLS = 512
"""Calls that one message may have."""

MessageBody: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolCall | ToolResult


class ClientMessage(Struct, frozen=True):
    """One message of the list. Without bodies it says nothing that could be used: it is blank."""

    role: Literal["system", "user", "assistant", "tool"]
    bodies: tuple[MessageBody, ...]
    text: str  # its words: parts of one message in lines of their own, but those of an assistant as one text
    index: int  # where it stands in the list


def read_messages(sent: "list[SentMessage] | None", most: int) -> tuple[ClientMessage, ...]:
    """The messages of a request, in order. Raises `Invalid`, `Unsupported` or `TooLarge`."""
    if not sent:
        raise Invalid("messages", "there are none; send at least one")
    if len(sent) > most:
        raise TooLarge("request", len(sent), most, "messages")
    tools: dict[str, str] = {}  # which tool each call is of, as far as the list has come
    return tuple([_heard(message, index, tools) for index, message in enumerate(sent)])


class _CalledFunction(Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _Call(Struct, gc=False):
    id: str | None = None
    type: str | None = None
    function: _CalledFunction | None = None


class SentMessage(Struct, gc=False):
    role: str | None = None
    content: str | list[SentPart] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    function_call: Any = None
    audio: Any = None


def _heard(message: SentMessage, index: int, tools: dict[str, str]) -> ClientMessage:
    match message.role:
        case "user":
            parts, text = _said(message.content, index, "user")
            return ClientMessage("user", (UserMessage(parts),) if parts else (), text, index)
        case "assistant":
            return _assistant(message, index, tools)
        case "tool":
            return _tool(message, index, tools)
        case "system" | "developer":
            parts, text = _said(message.content, index, "system")
            return ClientMessage("system", (SystemMessage(parts),) if parts else (), text, index)
        case "function":
            why = "the role function is deprecated; send the result with the role tool"
            raise Unsupported(f"messages[{index}].role", why)
        case None:
            raise Invalid(f"messages[{index}].role", "it is missing")
        case _:
            why = "it must be system, developer, user, assistant or tool"
            raise Invalid(f"messages[{index}].role", why)


def _assistant(message: SentMessage, index: int, tools: dict[str, str]) -> ClientMessage:
    if message.function_call is not None:
        raise Unsupported(f"messages[{index}].function_call", "it is deprecated; send the call in tool_calls")
    if message.audio is not None:
        raise Unsupported(f"messages[{index}].audio", "sound is not kept here; send its words as content")
    parts, text = _said(message.content, index, "assistant")
    if message.refusal and message.refusal.strip():
        parts, text = (*parts, Text(message.refusal)), text + message.refusal
    if not message.tool_calls:
        return ClientMessage("assistant", (AssistantMessage(parts),) if parts else (), text, index)
    calls = _calls(message.tool_calls, f"messages[{index}].tool_calls")
    tools.update((call.call_id, call.tool) for call in calls)
    return ClientMessage("assistant", (AssistantMessage(parts), *calls) if parts else tuple(calls), text, index)


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


def _tool(message: SentMessage, index: int, tools: dict[str, str]) -> ClientMessage:
    id = message.tool_call_id
    if not id:
        raise Invalid(f"messages[{index}].tool_call_id", "it is missing; name the call that this is the result of")
    content = message.content
    if isinstance(content, str):
        parts: tuple[Part, ...] = (Text(content),) if content else ()
        return ClientMessage("tool", (ToolResult(id, tools.get(id, ""), parts),), content, index)
    parts, text = _said(content, index, "tool")
    return ClientMessage("tool", (ToolResult(id, tools.get(id, ""), parts),), text, index)


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


SOURCE = "chat completions"
"""How history is marked that a client brought along."""


class Listed(Struct, frozen=True):
    """A list, taken apart: the instructions, what was before, and what is new."""

    system: str  # of all system and developer messages, wherever they stand
    before: tuple[MessageBody, ...]
    results: tuple[ToolResult, ...]  # of calls that were handed to the client
    message: UserMessage | None


def read_list(messages: Sequence[ClientMessage]) -> Listed:
    """The list with its new part set apart. Raises `NoNewMessage`: nothing older is ever used instead; or `Invalid`."""
    system = "\n\n".join(message.text for message in messages if message.role == "system" and message.bodies)
    others = [message for message in messages if message.role != "system"]
    if not others:
        raise NoNewMessage("there are only system messages")
    last, message = others[-1], None
    if last.role == "user":
        if not last.bodies:
            raise NoNewMessage("the last message is blank")
        message = next(body for body in last.bodies if isinstance(body, UserMessage))
        others.pop()
    elif last.role == "assistant":
        raise NoNewMessage("the last message is the assistant's own")
    results: list[ToolResult] = []
    while others and others[-1].role == "tool":
        results[:0] = [body for body in others.pop().bodies if isinstance(body, ToolResult)]
    if len({one.call_id for one in results}) < len(results):
        raise Invalid("messages", "a call has two results")
    before = tuple([body for one in others for body in one.bodies])
    return Listed(system, before, tuple(results), message)


def outline_of(before: Sequence[MessageBody]) -> int | None:
    """A number for a list that is nothing but texts, the same for the same list; None for any other.

    A list of thousands is told from another in no time, as long as this process lives.
    """
    texts: list[str] = []
    for body in before:
        if not isinstance(body, UserMessage | AssistantMessage) or len(body.parts) != 1:
            return None
        (part,) = body.parts
        if not isinstance(part, Text):
            return None
        texts += ("user" if isinstance(body, UserMessage) else "assistant", part.text)
    return hash(tuple(texts))


def as_asked(messages: Sequence[ClientMessage]) -> tuple[Given, ...]:
    """A list as it is, for an answer without a conversation. Raises `NoNewMessage` for one that says nothing.

    Some clients ask for a title with a system message alone: then it is the question.
    """
    given = paired([body for message in messages for body in message.bodies])
    if not given:
        raise NoNewMessage("all messages are blank")
    if all(isinstance(body, SystemMessage) for body in given):
        last = given.pop()
        assert isinstance(last, SystemMessage)
        given.append(UserMessage(last.parts))
    return tuple(given)


def imported(before: Sequence[MessageBody], results: Sequence[ToolResult] = ()) -> list[Given]:
    """History that a client brings along, as events that say so; with new results, of calls that it ends with.

    Raises `CallNotOpen` for results whose calls are not there.
    """
    given = paired([*before, *results])
    taken = {id(one) for one in given}
    if strangers := [one for one in results if id(one) not in taken]:
        raise CallNotOpen(strangers[0].call_id[:200], "(new)", "the list does not end with such a call")
    if not given:
        return []
    left_out = len(before) + len(results) - sum(not _is_missing(body) for body in given)
    source = f"{SOURCE} ({left_out} results without their calls left out)" if left_out else SOURCE
    return [Imported(source, len(given)), *given]


def paired(bodies: Sequence[MessageBody]) -> list[Given]:
    """The same with a result for each call: one that the list has none for was not answered.

    A result whose call was trimmed away is left out, for no model would take it.
    """
    given: list[Given] = []
    open: dict[str, ToolCall] = {}
    for body in bodies:
        if isinstance(body, ToolResult):
            if open.pop(body.call_id, None) is None:
                continue
        elif open and not (isinstance(body, ToolCall) and isinstance(given[-1], ToolCall)):
            given += _missing(open)
        if isinstance(body, ToolCall):
            open[body.call_id] = body
        given.append(body)
    return given + _missing(open)


def _missing(open: dict[str, ToolCall]) -> list[ToolResult]:
    made = [ToolResult(call.call_id, call.tool, (), "not_answered") for call in open.values()]
    open.clear()
    return made


def _is_missing(body: Given) -> bool:
    return isinstance(body, ToolResult) and body.status == "not_answered"
