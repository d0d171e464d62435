"""What is said in an answer, before it is put into the words of a wire. The same speech is the same on every wire."""

import base64
import hashlib
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.events import Usage
from forkpoint.llm.scripts import Fault, Reply, in_pieces
from forkpoint.testing.model_server.recording import Recorded
from forkpoint.testing.prompts import tokens_of

Ending: TypeAlias = Literal["stop", "tool_calls", "length", "filter", "refused"]

Stage: TypeAlias = Literal["opening", "frame", "piece", "ending"]
"""What an event of a stream is: before the answer, around a part of it, a piece of a part, or after the answer."""


class StreamEvent(Struct, frozen=True):
    """One event of a stream, as bytes."""

    data: bytes
    stage: Stage


class Part(Struct, frozen=True):
    """A thought, words, or a tool call, whose text is its arguments."""

    kind: Literal["thought", "words", "call"]
    text: str
    call_id: str = ""
    tool: str = ""
    whole: bool = True

    def pieces(self, size: int) -> list[str]:
        return in_pieces(self.text, size)

    @property
    def seal(self) -> str:
        """What a provider would sign or encrypt a thought with: opaque, and the same for the same thought."""
        return base64.b64encode(hashlib.sha256(b"sealed thought\0" + self.text.encode()).digest()).decode()


class Speech(Struct, frozen=True):
    """An answer to one request. Without an ending it never says that it has ended."""

    request: Recorded
    parts: tuple[Part, ...]
    ending: Ending | None
    usage: Usage
    piece: int

    @property
    def number(self) -> int:
        return self.request.number

    @property
    def pieces(self) -> int:
        return sum(len(part.pieces(self.piece)) for part in self.parts)

    def cut(self, pieces: int) -> "Speech":
        """The same, with so many pieces and no more."""
        kept: list[Part] = []
        for part in self.parts:
            if pieces <= 0:
                break
            text = "".join(part.pieces(self.piece)[:pieces])
            pieces -= len(part.pieces(self.piece))
            kept.append(replace(part, text=text, whole=text == part.text))
        return replace(self, parts=tuple(kept))


def speech_of(reply: Reply, request: Recorded, prompt: Usage) -> Speech:
    """The speech that a reply stands for. ``prompt`` is what the prompt used; a reply's own usage wins."""
    parts = [Part("thought", thought) for thought in reply.thoughts]
    if reply.text:
        parts.append(Part("words", reply.text))
    for place, call in enumerate(reply.calls):
        parts.append(Part("call", call.arguments, call.call_id or f"call_{request.number + 1}_{place + 1}", call.tool))
    spoken = Speech(request, tuple(parts), reply.finished, Usage(), max(reply.piece, 1))
    if reply.fault is not None:
        spoken = _changed_by(reply.fault, spoken)
    return replace(spoken, usage=reply.usage or prompt + _output(spoken.parts))


def _changed_by(fault: Fault, speech: Speech) -> Speech:
    """The speech as a fault leaves it. The other faults are in how it is sent."""
    match fault.kind:
        case "empty":
            return replace(speech, parts=(), ending="stop")
        case "refused":
            return replace(speech.cut(fault.after), ending="refused")
        case "unfinished":
            return replace(speech.cut(fault.after), ending=None)
        case "unfinished_call":
            return replace(speech, parts=_last_call_halved(speech.parts), ending="length")
        case _:
            return speech


def _last_call_halved(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    if not parts or parts[-1].kind != "call":
        return parts
    last = parts[-1]
    return (*parts[:-1], replace(last, text=last.text[: len(last.text) // 2], whole=False))


def _output(parts: tuple[Part, ...]) -> Usage:
    def tokens(*kinds: str) -> int:
        return sum(tokens_of(f"{part.tool}{part.text}".encode()) for part in parts if part.kind in kinds)

    return Usage(output=max(tokens("thought", "words", "call"), 1), reasoning=tokens("thought"))


def sse(document: Any, stage: Stage, *, event: str = "") -> StreamEvent:
    """A server-sent event, named or not."""
    name = f"event: {event}\n".encode() if event else b""
    return StreamEvent(name + b"data: " + msgspec.json.encode(document) + b"\n\n", stage)
