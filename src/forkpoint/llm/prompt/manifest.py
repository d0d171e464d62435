"""The manifest: what a prompt has before its history.

Model, wire, instructions, the schemas of the tools sorted by name, reasoning settings, the form of the answer, and
the version of the renderer. It has a hash. Two calls with one hash and one path have the same prompt, block for block;
a call with another hash shares no cache with them, so a change is always recorded, with its reason.
"""

import hashlib
import re
from collections.abc import Iterable
from itertools import pairwise

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from forkpoint.errors import BadSetting, BadTool
from forkpoint.events import JsonText, ManifestChanged
from forkpoint.history.wholeness import read_json
from forkpoint.llm.catalog import Wire
from forkpoint.llm.documents import read_document
from forkpoint.llm.model import LLM

RENDERER = 1
"""The renderer that new manifests use. Its bytes never change; a better one gets the next number."""

PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every provider takes as the name of a tool, or as the id of a call."""


_NO_PARAMETERS = '{"type":"object","properties":{}}'


class ToolSchema(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A tool as a model sees it. ``parameters`` is a JSON schema, sent as the exact text that it is."""

    name: str
    description: str = ""
    parameters: JsonText = _NO_PARAMETERS
    strict: bool = False

    def __post_init__(self) -> None:
        if not PLAIN_NAME.fullmatch(self.name):
            raise BadTool(self.name, "a provider would refuse its name")
        if not _is_object(self.parameters):
            raise BadTool(self.name, "its schema is not a JSON object")
        if not is_text(self.description):
            raise BadTool(self.name, "its description is not valid Unicode")
        if self.parameters == _NO_PARAMETERS:  # the very object: only that is left out, and equal ones have one hash
            force_setattr(self, "parameters", _NO_PARAMETERS)


class Manifest(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What stands before the history in a prompt. Make one with `manifest_of`."""

    model: str
    wire: Wire
    provider: str
    instructions: str = ""
    tools: tuple[ToolSchema, ...] = ()
    reasoning_effort: str | None = None
    reasoning_tokens: int | None = None
    reasoning_back: bool = True
    output: JsonText | None = None
    renderer: int = RENDERER

    @property
    def origin(self) -> str:
        """How items that this model makes are marked: only to the same origin do they go back verbatim."""
        return f"{self.provider}/{self.wire}"

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> JsonText:
        fields = msgspec.to_builtins(self)
        return msgspec.json.encode(fields | {"renderer": self.renderer}).decode()  # the version is always said

    @classmethod
    def from_json(cls, text: JsonText | bytes) -> "Manifest":
        try:
            return read_document(cls, text, of="a conversation", what="The manifest")
        except BadSetting:
            _check_version(text)
            raise


def manifest_of(
    llm: LLM,
    *,
    instructions: str = "",
    tools: Iterable[ToolSchema] = (),
    output: JsonText | None = None,
    renderer: int = RENDERER,
) -> Manifest:
    """The manifest of a model with instructions and tools. Raises `BadTool` if two tools have one name."""
    ordered = sorted(tools, key=lambda tool: tool.name)
    for one, other in pairwise(ordered):
        if one.name == other.name:
            raise BadTool(one.name, "two tools have this name")
    if not is_text(instructions):
        raise BadSetting(llm.model, "instructions", "they are not valid Unicode")
    if output is not None and not _is_object(output):
        raise BadSetting(llm.model, "output", "its schema is not a JSON object")
    return Manifest(
        model=llm.name,
        wire=llm.wire,
        provider=llm.served_by,
        instructions=instructions,
        tools=tuple(ordered),
        reasoning_effort=llm.reasoning_effort,
        reasoning_tokens=llm.reasoning_tokens,
        reasoning_back=llm.reasoning_back,
        output=output,
        renderer=renderer,
    )


def differences(old: Manifest, new: Manifest) -> tuple[str, ...]:
    """What changed from one manifest to another, in words for a reason."""
    said = [
        f"{name} {getattr(old, name)} to {getattr(new, name)}"
        for name in ("model", "wire", "provider", "reasoning_effort", "reasoning_tokens", "reasoning_back", "renderer")
        if getattr(old, name) != getattr(new, name)
    ]
    if old.instructions != new.instructions:
        said.append("instructions")
    before, after = ({tool.name: tool for tool in one.tools} for one in (old, new))
    said += [f"tool {name} added" for name in after if name not in before]
    said += [f"tool {name} removed" for name in before if name not in after]
    said += [f"tool {name} changed" for name in after if name in before and before[name] != after[name]]
    if old.output != new.output:
        said.append("form of the answer")
    return tuple(said)


def manifest_note(old: Manifest | None, new: Manifest, lost: Iterable[str] = ()) -> ManifestChanged:
    """The event that records a change: what changed, and what of the history could not be carried over."""
    reason = "changed: " + "; ".join(differences(old, new)) if old is not None else "the first"
    if carried := sorted(set(lost)):
        reason += ". Not carried over: " + "; ".join(carried)
    return ManifestChanged(new.hash, new.to_json(), reason)


class _Version(Struct, frozen=True):
    renderer: int = 0


def _check_version(text: JsonText | bytes) -> None:
    """Raises `BadSetting` if a manifest cannot be read because it is of a newer version."""
    try:
        version = msgspec.json.decode(text, type=_Version).renderer
    except (msgspec.DecodeError, UnicodeError):
        return
    if version > RENDERER:
        raise BadSetting.unknown_renderer(version, RENDERER)


def _is_object(text: JsonText) -> bool:
    try:
        return isinstance(read_json(text), dict)
    except ValueError:
        return False


def is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
