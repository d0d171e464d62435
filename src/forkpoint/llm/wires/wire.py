"""The protocol that each wire implements. Tests: tests/llm/test_rendering_wires.py."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from forkpoint.events import AssistantMessage, Part, Reasoning, ToolCall, ToolResult
from forkpoint.llm.model import LLM
from forkpoint.llm.options import Options
from forkpoint.llm.prompt.blocks import Blocks, Place, PromptBlock
from forkpoint.llm.prompt.identity import CallContext
from forkpoint.llm.prompt.manifest import Manifest

Lose: TypeAlias = Callable[[str], None]
"""Told what could not be carried over to this wire."""


class RequestDraft(Struct, frozen=True, gc=False):
    """A block to be: its role and its text."""

    role: str
    text: bytes
    markable: bool = True
    place: Place = "history"
    stays: bool = False


class Sending(Struct, frozen=True):
    """A prompt and how it is to be sent. Places are numbers of blocks from its start, 0 if there is no such place.

    The LLM has what the call's options say over it, and the options only what the wire has a place for.
    """

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

    def head(self, manifest: Manifest) -> list[RequestDraft]:
        """What stands before the history."""
        ...

    def system(self, text: str, *, leading: bool) -> RequestDraft:
        """A system message; leading if nothing but such came before it."""
        ...

    def user(self, parts: Sequence[Part], lose: Lose) -> list[RequestDraft]:
        """What a user says."""
        ...

    def response(self, response: "Response", manifest: Manifest, lose: Lose) -> list[RequestDraft]:
        """What one response of a model said."""
        ...

    def result(self, result: ToolResult, id: str, lose: Lose) -> tuple[list[RequestDraft], list[RequestDraft]]:
        """What a tool returned for the call with this id, and what must be said once no call is open any more."""
        ...

    def lead(self, block: RequestDraft, before: PromptBlock | None) -> bytes:
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
