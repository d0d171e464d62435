"""Messages in the form of chat completions: how they look on the wire, and what they say as events.

The structs are the description in the OpenAPI document and what a body is decoded into. Where our own sentence says
more than msgspec's, the document has the rule as ``extra_json_schema``, and the code below holds to it.
Tests: tests/server/chat/test_request.py, test_bounds.py.
"""

import binascii
import re
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from forkpoint.backend.messages import MessageBody
from forkpoint.errors import Invalid, TooLarge
from forkpoint.events import AssistantMessage, File, Image, Part, SystemMessage, Text, ToolCall, ToolResult, UserMessage

MOST_CALLS = 512
"""Calls that one message may have."""

NonEmpty: TypeAlias = Annotated[str, Meta(min_length=1)]
Address: TypeAlias = Annotated[
    str,
    Meta(
        extra_json_schema={"pattern": "^(https?://[^/?#]|data:image/[^,]*;base64,.)"},
        description="On the web, or a data: URL in base64.",
    ),
]
Base64: TypeAlias = Annotated[
    str,
    Meta(
        extra_json_schema={
            "pattern": "^(data:[^,]*;base64,)?([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}(==|[A-Za-z0-9+/](=|[A-Za-z0-9+/])))$"
        },
        description="In base64, alone or as a data: URL.",
    ),
]


class Sent(Struct, frozen=True, omit_defaults=True, gc=False):
    """Part of a request's body. Null means absent, and the server passes over fields that it does not know."""


class ChatTextPart(Sent, frozen=True, tag_field="type", tag="text"):
    """A text."""

    text: str


class ChatPlainPart(Sent, frozen=True):
    """A text, where no other part may stand."""

    type: Literal["text"]
    text: str


class ChatRefusalPart(Sent, frozen=True, tag_field="type", tag="refusal"):
    """What the assistant said instead of an answer."""

    refusal: str


class ChatImageUrl(Sent, frozen=True):
    """Where a picture is, or the picture itself."""

    url: Address


class ChatImagePart(Sent, frozen=True, tag_field="type", tag="image_url"):
    """A picture."""

    image_url: ChatImageUrl | Address


class ChatFile(Sent, frozen=True):
    """A file itself. The server keeps no files, so no file has an id."""

    file_data: Base64
    filename: str | None = None
    file_id: None = None


class ChatFilePart(Sent, frozen=True, tag_field="type", tag="file"):
    """A file."""

    file: ChatFile


class ChatSystemMessage(Sent, frozen=True, tag_field="role", tag="system"):
    """The client's instructions, which follow the agent's own. In a conversation those of its first request stay."""

    content: str | list[ChatPlainPart] | None = None


class ChatDeveloperMessage(Sent, frozen=True, tag_field="role", tag="developer"):
    """The same under a newer name."""

    content: str | list[ChatPlainPart] | None = None


class ChatUserMessage(Sent, frozen=True, tag_field="role", tag="user"):
    """What the user says. In a conversation the last message is this, or the result of a call that is open."""

    content: str | list[ChatTextPart | ChatImagePart | ChatFilePart] | None = None


class ChatFunctionSaid(Sent, frozen=True):
    """A function that was called, with its arguments as the text that the model wrote."""

    name: NonEmpty
    arguments: str | None = None


class ChatCallSaid(Sent, frozen=True):
    """A call that the assistant made of one of the client's tools."""

    id: NonEmpty
    function: ChatFunctionSaid
    type: Literal["function"] | None = None


class ChatAssistantMessage(Sent, frozen=True, tag_field="role", tag="assistant"):
    """What the assistant said before."""

    content: str | list[ChatTextPart | ChatRefusalPart] | None = None
    refusal: str | None = None
    tool_calls: list[ChatCallSaid] | None = None
    function_call: None = None
    audio: None = None


class ChatToolMessage(Sent, frozen=True, tag_field="role", tag="tool"):
    """What a call of one of the client's tools came to."""

    tool_call_id: NonEmpty
    content: str | list[ChatPlainPart] | None = None


SentMessage: TypeAlias = (
    ChatSystemMessage | ChatDeveloperMessage | ChatUserMessage | ChatAssistantMessage | ChatToolMessage
)
SentPart: TypeAlias = ChatTextPart | ChatPlainPart | ChatRefusalPart | ChatImagePart | ChatFilePart


# What the messages say.


class ClientMessage(Struct, frozen=True):
    """One message of the list. Without bodies it says nothing that could be used: it is blank."""

    role: Literal["system", "user", "assistant", "tool"]
    bodies: tuple[MessageBody, ...]
    text: str  # its words: parts of one message in lines of their own, but those of an assistant as one text
    index: int  # where it stands in the list


def read_messages(sent: Sequence[SentMessage], most: int) -> tuple[ClientMessage, ...]:
    """The messages of a request, in order. Raises `Invalid`, or `TooLarge` if there are more than ``most``."""
    if not sent:
        raise Invalid("messages", "there are none; send at least one")
    if len(sent) > most:
        raise TooLarge("request", len(sent), most, "messages")
    tools: dict[str, str] = {}  # which tool each call is of, as far as the list has come
    return tuple([read_message(message, index, tools) for index, message in enumerate(sent)])


def read_message(message: SentMessage, index: int, tools: dict[str, str]) -> ClientMessage:
    """What one message says. ``tools`` has the tool of each call before it, and gets those of this one."""
    parts, text = _content(message.content, index, "" if isinstance(message, ChatAssistantMessage) else "\n")
    match message:
        case ChatUserMessage():
            return ClientMessage("user", (UserMessage(parts),) if parts else (), text, index)
        case ChatAssistantMessage(refusal=refusal, tool_calls=sent):
            if refusal and refusal.strip():
                parts, text = (*parts, Text(refusal)), text + refusal
            spoken = (AssistantMessage(parts),) if parts else ()
            if not sent:
                return ClientMessage("assistant", spoken, text, index)
            calls = _calls(sent, f"messages[{index}].tool_calls")
            tools.update((call.call_id, call.tool) for call in calls)
            return ClientMessage("assistant", (*spoken, *calls), text, index)
        case ChatToolMessage(tool_call_id=id, content=content):
            if isinstance(content, str) and content:
                parts = (Text(content),)  # a result may be blank
            return ClientMessage("tool", (ToolResult(id, tools.get(id, ""), parts),), text, index)
        case ChatSystemMessage() | ChatDeveloperMessage():
            return ClientMessage("system", (SystemMessage(parts),) if parts else (), text, index)


def _calls(sent: Sequence[ChatCallSaid], place: str) -> list[ToolCall]:
    if len(sent) > MOST_CALLS:
        raise Invalid(place, f"there are {len(sent):,} calls, and the limit is {MOST_CALLS}")
    calls: dict[str, ToolCall] = {}
    for number, call in enumerate(sent):
        if call.id in calls:
            raise Invalid(f"{place}[{number}].id", "another call of the same message has it")
        arguments = "{}" if call.function.arguments is None else call.function.arguments
        calls[call.id] = ToolCall(call.id, call.function.name, arguments, client=True)
    return list(calls.values())


def _content(content: str | Sequence[SentPart] | None, index: int, between: str) -> tuple[tuple[Part, ...], str]:
    """The parts that are worth storing, and the words. A blank text is no part: a provider would refuse it."""
    if isinstance(content, str):
        return ((Text(content),) if content.strip() else ()), content
    parts = [_part(part, f"messages[{index}].content[{number}]") for number, part in enumerate(content or ())]
    words = [part.text for part in parts if isinstance(part, Text)]
    return tuple(part for part in parts if not isinstance(part, Text) or part.text.strip()), between.join(words)


def _part(sent: SentPart, place: str) -> Part:
    match sent:
        case ChatTextPart(text=text) | ChatPlainPart(text=text) | ChatRefusalPart(refusal=text):
            return Text(text)
        case ChatImagePart(image_url=image):
            return read_image(image if isinstance(image, str) else image.url, f"{place}.image_url.url")
        case ChatFilePart(file=file):
            return read_file(file.file_data, file.filename, f"{place}.file.file_data")


_MEDIA = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,127}")
_PICTURES = {name: f"image/{name}" for name in ("avif", "bmp", "gif", "heic", "jpeg", "png", "tiff", "webp")} | {
    "jpg": "image/jpeg",
    "svg": "image/svg+xml",
    "tif": "image/tiff",
}
_OFFICE = "application/vnd.openxmlformats-officedocument"
_TYPES = _PICTURES | {  # ours, and not the machine's: what a request means must not depend on where it is read
    "csv": "text/csv",
    "docx": f"{_OFFICE}.wordprocessingml.document",
    "htm": "text/html",
    "html": "text/html",
    "json": "application/json",
    "md": "text/markdown",
    "pdf": "application/pdf",
    "pptx": f"{_OFFICE}.presentationml.presentation",
    "txt": "text/plain",
    "xlsx": f"{_OFFICE}.spreadsheetml.sheet",
    "xml": "application/xml",
}


_UNKNOWN = "application/octet-stream"


def read_image(url: str, place: str) -> Image:
    """A picture by its address, on the web or as a data: URL. Raises `Invalid`."""
    if not url:
        raise Invalid(place, "it is missing")
    if url[:5].lower() == "data:":
        media, data = _inline(url, place)
        if media is None or not media.startswith("image/"):
            raise Invalid(place, "its data is not said to be a picture; begin it with data:image/png;base64,")
        return Image(media, data=data)
    path = _path(url)
    if path is None:
        raise Invalid(place, "it must be a data: URL in base64, or begin with http:// or https://")
    return Image(_PICTURES.get(_ending(path), "image/*"), url=url)


def read_file(data: str, filename: str | None, place: str) -> File:
    """A file of this data, in base64 alone or as a data: URL. Raises `Invalid`."""
    if not data:
        raise Invalid(place, "it is missing")
    name = _name(filename)
    if data[:5].lower() == "data:":
        media, data = _inline(data, place)
    else:  # as OpenAI's own description has it: base64 and nothing else
        media, data = None, _checked(data, place)
    return File(name, media or _TYPES.get(_ending(name), _UNKNOWN), data=data)


def read_file_at(url: str, filename: str | None, place: str) -> File:
    """A file by its address on the web. Raises `Invalid`."""
    if _path(url) is None:
        raise Invalid(place, "it must begin with http:// or https://")
    return File(_name(filename), _UNKNOWN, url=url)


def _name(filename: str | None) -> str:
    return filename if filename and filename.strip() else "file"


def _inline(url: str, place: str) -> tuple[str | None, str]:
    """The media type in a data: URL, or None, and the data, in base64."""
    head, comma, data = url[5:].partition(",")
    media, *rest = (word.strip().lower() for word in head.split(";"))
    if not comma or "base64" not in rest:
        raise Invalid(place, "a data: URL must be in base64, as in data:image/png;base64,...")
    if media and not _MEDIA.fullmatch(media):
        raise Invalid(place, "its media type is none")
    return media or None, _checked(data, place)


def _checked(data: str, place: str) -> str:
    """The same data. Raises `Invalid` if it is not base64, or empty."""
    try:
        if not binascii.a2b_base64(data, strict_mode=True):
            raise Invalid(place, "it has no data")
    except ValueError:  # of characters that are not ASCII, too
        raise Invalid(place, "its data is not base64") from None
    return data


def _path(url: str) -> str | None:
    """The path of an address on the web, or None for any other text."""
    try:
        parts = urlsplit(url)
        return parts.path if parts.scheme in {"http", "https"} and parts.hostname else None
    except ValueError:  # unpaired brackets
        return None


def _ending(name: str) -> str:
    return name.rpartition(".")[2].lower()
