"""Asking models: what to ask, how it is written, who answers, and what it cost.

The way of a call, and where to read about each step:

- `model`: `LLM`, which model and how to ask it. Frozen data that holds nothing of a conversation.
- `manifest`: what a prompt has before its history, and its hash.
- `rendering`, `blocks`, `wires`: from a manifest and a path to the exact bytes of a request.
- `identity`: the cache key that a conversation shows a provider, and why.
- `calling`: `Models.call`, from a rendering to an outcome; retries, timeouts, usage.
- `providers`, `streams`, `failures`: each wire's way of being asked, of answering and of failing.
- `inspecting`: what was or would be sent, where its cached part ends, and why.

Nothing here knows of stores. The SDKs, the price list and llama.cpp are loaded when they are first used.
"""

from forkpoint.llm.answers import (
    Answer,
    CallPiece,
    Complete,
    Failed,
    Outcome,
    Piece,
    ReasoningPiece,
    Restarted,
    TextPiece,
)
from forkpoint.llm.calling import Models
from forkpoint.llm.identity import CacheIdentity, CachePolicy, CallContext, fork_identity, own_identity, under_manifest
from forkpoint.llm.inspecting import Inspection, inspect_request
from forkpoint.llm.manifest import Manifest, ToolSchema, manifest_note, manifest_of
from forkpoint.llm.model import LLM, Price, Retries, Timeouts, as_llm
from forkpoint.llm.options import Options
from forkpoint.llm.rendering import Rendering, render
from forkpoint.llm.request import Provider, Request

__all__ = [
    "LLM",
    "Answer",
    "CacheIdentity",
    "CachePolicy",
    "CallContext",
    "CallPiece",
    "Complete",
    "Failed",
    "Inspection",
    "Manifest",
    "Models",
    "Options",
    "Outcome",
    "Piece",
    "Price",
    "Provider",
    "ReasoningPiece",
    "Rendering",
    "Request",
    "Restarted",
    "Retries",
    "TextPiece",
    "Timeouts",
    "ToolSchema",
    "as_llm",
    "fork_identity",
    "inspect_request",
    "manifest_note",
    "manifest_of",
    "own_identity",
    "render",
    "under_manifest",
]
