"""What a server answers to a call, as parts that a model can be shown.

A part that a provider would refuse is in the way of every prompt after it. So pictures and documents are taken only if
they are what they say; of everything else there is a line of text. Tests: tests/agent/mcp/test_tools.py.
"""

import base64
import binascii
from typing import Any

import msgspec

from forkpoint.agent.mcp.failures import McpToolError
from forkpoint.agent.mcp.servers import Start
from forkpoint.events import File, Image, Part, Text
from forkpoint.system.media import PDF, media_type

PICTURE = 5_000_000
"""Characters of base64 that a picture or a document may have."""

_SHOWN = {"image/png", "image/jpeg", "image/gif", "image/webp", PDF}


def parts_of_result(result: Any, start: Start) -> tuple[Part, ...]:
    """The parts of the SDK's result. Raises `McpToolError` if the tool says that it has failed.

    What is said in words comes first; structured content is shown only if there is nothing else, since a server says
    the same in words.
    """
    parts = [part for block in result.content for part in _parts(block)]
    if not parts and result.structured_content is not None:
        parts = [Text(msgspec.json.encode(result.structured_content).decode())]
    shown = start.masking.parts(parts)
    if result.is_error:
        said = "\n".join(part.text for part in shown if isinstance(part, Text))
        raise McpToolError(said or "The tool has failed, and does not say why.")
    return shown


def _parts(block: Any) -> list[Part]:
    match block.type:
        case "text":
            return [Text(block.text)] if block.text else []
        case "image":
            return [_picture(block.data, block.mime_type)]
        case "audio":
            return [_left_out("sound", block.mime_type, block.data, "it cannot be shown")]
        case "resource":
            return _resource(block.resource)
        case "resource_link":
            said = f": {block.description}" if block.description else ""
            return [Text(f"[resource {block.uri} ({block.title or block.name}){said}]")]
        case _:
            return [Text(f"[content of the kind {block.type!r}, which cannot be shown]")]


def _resource(resource: Any) -> list[Part]:
    if (text := getattr(resource, "text", None)) is not None:
        return [Text(f"[resource {resource.uri}]\n{text}")]
    kind = _kind(resource.mime_type)
    if kind.startswith("image/"):
        return [Text(f"[resource {resource.uri}]"), _picture(resource.blob, kind)]
    wrong = _wrong(resource.blob, kind)
    if wrong is not None:
        return [_left_out(f"resource {resource.uri}", kind, resource.blob, wrong)]
    name = str(resource.uri).rstrip("/").rpartition("/")[2] or "document"
    return [File(name, kind, resource.blob)]


def _picture(data: str, given: str | None) -> Part:
    kind = _kind(given)
    wrong = _wrong(data, kind)
    return Image(kind, data) if wrong is None else _left_out("picture", kind, data, wrong)


def _wrong(data: str, kind: str) -> str | None:
    """Why data cannot be shown as what it is said to be; None if it can."""
    if kind not in _SHOWN:
        return "this kind cannot be shown"
    if len(data) > PICTURE:
        return "it is too large"
    try:
        decoded = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return "it is not valid base64"
    return None if media_type(decoded) == kind else "it is not what it says"


def _left_out(what: str, kind: str | None, data: str, why: str) -> Text:
    return Text(f"[{what}, {kind or 'of no known type'}, about {len(data) * 3 // 4:,} bytes: left out, {why}]")


def _kind(given: str | None) -> str:
    kind = (given or "").partition(";")[0].strip().lower()
    return "image/jpeg" if kind == "image/jpg" else kind
