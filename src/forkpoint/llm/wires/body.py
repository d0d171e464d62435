"""Writing the body of a request: JSON in the order that it is given, and names that every provider takes.
Tests: tests/llm/test_rendering_wires.py."""

import re
from typing import Any

import msgspec

from forkpoint.events import File, Image, JsonText
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.blocks import Blocks
from forkpoint.llm.prompt.manifest import PLAIN_NAME


def json(value: Any) -> bytes:
    """A JSON value as bytes, its fields in the order they are given."""
    return msgspec.json.encode(value)


def raw(text: JsonText) -> msgspec.Raw:
    """JSON that goes in as the exact text that it is."""
    return msgspec.Raw(text.encode())


def data_url(part: Image | File) -> str:
    """A picture or document as a URL: the one it has, or one that contains its data."""
    return part.url or f"data:{part.media_type};base64,{part.data}"


def is_plain(id: str) -> bool:
    """Whether every provider takes a call's id as it is."""
    return PLAIN_NAME.fullmatch(id) is not None


def tool_name(tool: str) -> str:
    """A tool's name as every provider takes it. A model may have made it up."""
    return tool if PLAIN_NAME.fullmatch(tool) else re.sub(r"[^A-Za-z0-9_-]", "_", tool)[:64] or "_"


def texts_of(blocks: Blocks) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The texts of a prompt's tools, of its system part, and of its history with what joins it."""
    tools: list[bytes] = []
    system: list[bytes] = []
    history: list[bytes] = []
    for block in blocks:
        if block.place == "history":
            history.append(block.lead)
            history.append(block.text)
        elif block.place == "tools":
            tools.append(block.text)
        else:
            system.append(block.text)
    return tools, system, history


def with_extra(fields: dict[str, Any], llm: LLM) -> bytes:
    """The fields behind the prompt, with the LLM's extra ones, as the inside of a JSON object that goes on."""
    if llm.extra is not None:
        fields = fields | {name: msgspec.Raw(value) for name, value in _raw_fields(llm.extra).items()}
    return b"," + json(fields)[1:-1] if fields else b""


def given(**fields: Any) -> dict[str, Any]:
    """Those fields that are set."""
    return {name: value for name, value in fields.items() if value is not None and value != ()}


def is_closed(schema: JsonText) -> bool:
    """Whether a schema allows nothing that it does not name, and demands all that it names: as strict modes want it."""
    return _is_closed(msgspec.json.decode(schema))


def _is_closed(schema: Any) -> bool:
    if isinstance(schema, list):
        return all(map(_is_closed, schema))
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties")
    if schema.get("type") == "object" or isinstance(properties, dict):
        required = schema.get("required") or []
        if schema.get("additionalProperties") is not False or set(properties or ()) != set(required):
            return False
    return all(_is_closed(value) for name, value in schema.items() if name not in {"enum", "const", "default"})


def _raw_fields(text: JsonText) -> dict[str, bytes]:
    return {name: bytes(value) for name, value in msgspec.json.decode(text, type=dict[str, msgspec.Raw]).items()}
