"""Asking models: what to ask, how it is written, who answers, and what it cost.

The way of a call, and where to read about each step:

- `model`: `LLM`, which model and how to ask it. Frozen data that holds nothing of a conversation.
- `prompt/`, `wires/`: from a manifest and a path to the exact bytes of a request, with the cache key it shows.
- `call`: `Models.call`, from a rendering to an outcome; retries, time limits, usage. `attempt`: one try of it.
- `providers/`, `streams/`, `failures`: how each wire is asked, answers and fails.

Nothing here knows of stores. The SDKs, the price list and llama.cpp are loaded when they are first used.
"""

from forkpoint.llm.answers import Answer, Complete, Failed, Outcome
from forkpoint.llm.call import Models
from forkpoint.llm.model import LLM, Price, Retries, Timeouts
from forkpoint.llm.options import Options
from forkpoint.llm.prompt.identity import CacheIdentity, CallContext, fork_identity, own_identity, under_manifest
from forkpoint.llm.prompt.inspection import Inspection, inspect_request
from forkpoint.llm.prompt.manifest import Manifest, ToolSchema, manifest_of
from forkpoint.llm.prompt.misses import CacheReport, CallCache, MissReason
from forkpoint.llm.prompt.rendering import Rendering, render
from forkpoint.llm.request import Provider, Request
from forkpoint.updates import CallPiece, Piece, ReasoningPiece, Restarted, TextPiece

__all__ = [
    "LLM",
    "Answer",
    "CacheIdentity",
    "CacheReport",
    "CallCache",
    "CallContext",
    "CallPiece",
    "Complete",
    "Failed",
    "Inspection",
    "Manifest",
    "MissReason",
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
    "fork_identity",
    "inspect_request",
    "manifest_of",
    "own_identity",
    "render",
    "under_manifest",
]
