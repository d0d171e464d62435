"""What the wires have in common: the protocol that each implements, and the words that all of them use."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from forkpoint.events import AssistantMessage, File, Image, JsonText, Part, Reasoning, Text, ToolCall, ToolResult
from forkpoint.llm.blocks import Block, Blocks, Place
from forkpoint.llm.identity import CallContext
from forkpoint.llm.manifest import Manifest
from forkpoint.llm.model import LLM
from forkpoint.llm.options import Options

Lose: TypeAlias = Callable[[str], None]
"""Told what could not be carried over to this wire."""


class Draft(Struct, frozen=True, gc=False):
    """A block to be: its role and its text."""

    role: str
    text: bytes
    markable: bool = True
    place: Place = "history"
    stays: bool = False


class Sending(Struct, frozen=True):
    """A prompt and how it is to be sent. Places are numbers of blocks from its start, 0 if there is no such place."""

    llm: LLM
    manifest: Manifest
    blocks: Blocks
    fork_base: int  # what was there before the branch was made
    asked: int  # what the last request had
    context: CallContext
    options: Options
    key: str | None


class Wire(Protocol):
    """One way of writing prompts."""

    def head(self, manifest: Manifest) -> list[Draft]:
        """What stands before the history."""
        ...

    def system(self, text: str, *, leading: bool) -> Draft:
        """A system message; leading if nothing but such came before it."""
        ...

    def user(self, parts: Sequence[Part], lose: Lose) -> list[Draft]:
        """What a user says."""
        ...

    def response(self, response: "Response", manifest: Manifest, lose: Lose) -> list[Draft]:
        """What one response of a model said."""
        ...

    def result(self, result: ToolResult, id: str, lose: Lose) -> tuple[list[Draft], list[Draft]]:
        """What a tool returned for the call with this id, and what must be said once no call is open any more."""
        ...

    def lead(self, block: Draft, before: Block | None) -> bytes:
        """What joins a block to the one before it."""
        ...

    def body(self, sending: Sending) -> bytes:
        """The body of the request."""
        ...


class Response(Struct, frozen=True):
    """What one response of a model said, its last thought followed by something.

    ``verbatim`` if all of it came from the manifest's origin and is still there. ``ids`` has the id of each call as
    it is sent.
    """

    said: tuple[Reasoning | AssistantMessage | ToolCall, ...]
    verbatim: bool
    ids: Mapping[str, str]


ERASED = "[erased]"
UNREADABLE = "[written by a newer version, and not readable by this one]"
STARTS_HERE = "(The conversation starts here.)"

_WITHOUT_WORDS = {
    "done": "(no output)",
    "failed": "The tool failed and did not say why.",
    "unknown": "The call was started, and it is not known whether it finished. It was not run again.",
    "denied": "The user did not allow this call, and it was not run.",
    "not_run": "This call was not run in this branch of the conversation.",
    "not_answered": "No result was given: the user sent a new message instead.",
}


def json(value: Any) -> bytes:
    """A JSON value as bytes, its fields in the order they are given."""
    return msgspec.json.encode(value)


def raw(text: JsonText) -> msgspec.Raw:
    """JSON that goes in as the exact text that it is."""
    return msgspec.Raw(text.encode())


_NOT_DONE = {
    "failed": "Error:",
    "unknown": "It is not known whether this call finished. What there is of it:",
    "denied": "The user did not allow this call:",
    "not_run": "This call was not run in this branch of the conversation:",
    "not_answered": "No result was given:",
}


def words_of(result: ToolResult) -> tuple[Part, ...]:
    """What a result says: its parts, blank ones aside, or a sentence for its status if it has none."""
    parts = tuple(part for part in result.parts if not isinstance(part, Text) or part.text.strip())
    return parts or (Text(_WITHOUT_WORDS[result.status]),)


def marked_words_of(result: ToolResult) -> tuple[Part, ...]:
    """The same for a wire that has no flag for errors: nothing that is not done looks as if it were."""
    parts = words_of(result)
    if result.status == "done" or parts == (Text(_WITHOUT_WORDS[result.status]),):
        return parts
    first, *rest = parts
    if isinstance(first, Text):
        return (Text(f"{_NOT_DONE[result.status]} {first.text}"), *rest)
    return (Text(_NOT_DONE[result.status]), *parts)


def spoken_parts(body: AssistantMessage, lose: Lose) -> list[Text]:
    """What a model said in words. Whatever else it made has no place in the history that it is shown."""
    words = [part for part in body.parts if isinstance(part, Text)]
    if len(words) < len(body.parts):
        lose("a picture or file made by a model")
    return words


def text_of(parts: Sequence[Part]) -> str:
    """The words among these parts."""
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def instead_of(part: Image | File) -> Text:
    """What is shown of a picture or document that a wire cannot carry."""
    what = f"{part.name}, {part.media_type}" if isinstance(part, File) else part.media_type
    where = f", at {part.url}" if part.url else ""
    return Text(f"[{'file' if isinstance(part, File) else 'picture'}: {what}{where}]")


def lost_part(part: Image | File) -> str:
    """How the loss of such a part is named."""
    return f"a {'file' if isinstance(part, File) else 'picture'} of type {part.media_type}"


def data_url(part: Image | File) -> str:
    """A picture or document as a URL: the one it has, or one that contains its data."""
    return part.url or f"data:{part.media_type};base64,{part.data}"


def summary_words(summary: str) -> str:
    """How a condensed stretch of history is shown."""
    return f"Summary of the conversation until here:\n\n{summary}"


def skill_words(name: str, content: str) -> str:
    """How an activated skill is shown."""
    return f'<skill name="{name}">\n{content}\n</skill>'


def system_words(text: str) -> str:
    """How a system message is shown where the wire has no place for one."""
    return f"<system>\n{text}\n</system>"


_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_plain(id: str) -> bool:
    """Whether every provider takes a call's id as it is."""
    return _NAME.fullmatch(id) is not None


def tool_name(tool: str) -> str:
    """A tool's name as every provider takes it. A model may have made it up."""
    return tool if _NAME.fullmatch(tool) else re.sub(r"[^A-Za-z0-9_-]", "_", tool)[:64] or "_"


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
