"""Wholeness: no empty or cut-off content is ever committed.

An empty text block, a thinking block whose text and signature are gone, a call without a name: stored once,
each would make a provider refuse the conversation for good. So they are refused here, before the commit,
instead of being repaired on every read.
"""

from typing import Any

import msgspec

from forkpoint.errors import NotWhole
from forkpoint.events import (
    AssistantMessage,
    Brought,
    Condensation,
    File,
    Image,
    ManifestChanged,
    NewEvent,
    Opaque,
    Part,
    Reasoning,
    SettingsChanged,
    StateChange,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
    decode_body,
    kind_of,
)
from forkpoint.system.media import is_base64

DEPTH = 500
"""How deep JSON may be nested. From Python 3.12 on the interpreter itself allows more than older ones can read."""


def check_whole(event: NewEvent) -> None:
    """Raises `NotWhole` for an event that must not become history."""
    body = event.body
    match body:
        case UserMessage(parts=parts) | AssistantMessage(parts=parts) | SystemMessage(parts=parts):
            _refuse(not parts, body, "it has no parts")
            for part in parts:
                _refuse(isinstance(part, Text) and not part.text.strip(), body, "it has a blank text part")
                _check_source(part, body)
            if isinstance(body, AssistantMessage):
                _check_json(body.item, body, "its provider item")
        case ToolResult(parts=parts):
            _refuse(not body.call_id, body, "it has no call id")
            for part in parts:
                _refuse(isinstance(part, Text) and not part.text, body, "it has an empty text part")
                _check_source(part, body)
        case ToolCall():
            _refuse(not body.call_id, body, "it has no call id")
            _refuse(not body.tool, body, "it has no tool name")
            _check_json(body.item, body, "its provider item")
        case Reasoning():
            thought = body.text or body.signature or body.encrypted or body.item
            _refuse(not thought, body, "it has no text, no signature, no encrypted content and no provider item")
            _check_json(body.item, body, "its provider item")
        case SettingsChanged():
            _check_json(body.settings, body, "its document")
        case ManifestChanged():
            _check_json(body.manifest, body, "its document")
        case StateChange():
            _refuse(not (body.set or body.removed), body, "it changes nothing")
            for key, value in body.set:
                _check_json(value, body, f"the value of {key!r}")
        case Condensation():
            _refuse(not body.summary.strip(), body, "its summary is blank")
            _refuse(body.kept_from < 1, body, "it keeps history from before the first event")
        case Brought():
            _refuse(body.count < 1, body, "nothing follows it")
            _refuse(len(body.origins) != len(body.digests), body, "not each of its origins has a digest")
        case Opaque():
            _refuse(not body.kind, body, "it has no kind")
            _check_json(body.payload, body, "its payload")
            try:
                again = decode_body(body.payload)
            except msgspec.DecodeError:
                again = None
            _refuse(again != body, body, "its payload is not an object of its kind, or of a kind that is known")
        case _:
            pass


def _check_source(part: Part, body: UserMessage | AssistantMessage | SystemMessage | ToolResult) -> None:
    if isinstance(part, Image | File):
        _refuse(not (part.data or part.url), body, "a part has neither data nor a url")
        _refuse(part.data is not None and not is_base64(part.data), body, "the data of a part is not base64")


def _check_json(text: str | None, body: object, what: str) -> None:
    try:
        if text is not None:
            read_json(text)
    except ValueError as error:
        raise NotWhole(kind_of(body), f"{what} {error}") from None  # type: ignore[arg-type]


def _refuse(wrong: bool, body: object, why: str) -> None:
    if wrong:
        raise NotWhole(kind_of(body), why)  # type: ignore[arg-type]


def is_json(text: str) -> bool:
    """Whether a text is one JSON value that every supported Python can read."""
    try:
        read_json(text)
    except ValueError:
        return False
    return True


def read_json(text: str) -> Any:
    """The JSON value that a text is. Raises ``ValueError`` if the text is not JSON, or nested deeper than `DEPTH`."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError("is not JSON") from error
    if text.count("[") + text.count("{") > DEPTH and _is_deep(value):
        raise ValueError(f"is nested more than {DEPTH} deep")
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEPTH):
        inner = (item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list))
        level = [item for items in inner for item in items]
        if not level:
            return False
    return any(isinstance(item, dict | list) for item in level)
