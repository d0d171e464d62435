"""Answers: the structs that the OpenAPI document shows, whole completions and chunks made of them, as bytes."""

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from forkpoint.events import (
    AssistantMessage,
    Event,
    HookRun,
    ModelCalled,
    Reasoning,
    StagedEvent,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    TurnStopped,
    Usage,
)
from forkpoint.history.fences import unfenced

ChatFinish: TypeAlias = Literal["stop", "tool_calls", "length", "content_filter"]
"""Why an answer ends, in OpenAI's words."""


class ChatFunctionCall(Struct, frozen=True):
    """A function to call, with its arguments as the text that the model wrote: mostly JSON, but nobody promises it."""

    name: str
    arguments: str


class ChatToolCall(Struct, frozen=True):
    """A call of one of the client's tools, for the client to run."""

    id: str
    type: Literal["function"]
    function: ChatFunctionCall


class ChatMessage(Struct, frozen=True):
    """What the assistant said, and which of the client's tools it calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ChatToolCall] | UnsetType = UNSET


class ChatChoice(Struct, frozen=True):
    """The one answer."""

    index: int
    message: ChatMessage
    logprobs: None
    finish_reason: ChatFinish


class ChatPromptDetails(Struct, frozen=True):
    """How much of the prompts was cached."""

    cached_tokens: int


class ChatCompletionDetails(Struct, frozen=True):
    """How much of the answers was thought only."""

    reasoning_tokens: int


class ChatUsage(Struct, frozen=True):
    """What all calls of models together took that the answer needed."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: ChatPromptDetails
    completion_tokens_details: ChatCompletionDetails


class ChatCompletion(Struct, frozen=True):
    """A whole answer. In a conversation it is on disk before it is sent; its id is `chatcmpl-` and the turn's."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage


class ChatFunctionPiece(Struct, frozen=True):
    """More of a function's arguments; its name comes first."""

    arguments: str
    name: str | UnsetType = UNSET


class ChatCallPiece(Struct, frozen=True):
    """A piece of a call. The first one of each index has the id."""

    index: int
    function: ChatFunctionPiece
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(Struct, frozen=True):
    """What is new."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    refusal: UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ChatCallPiece] | UnsetType = UNSET


class ChatChunkChoice(Struct, frozen=True):
    """A piece of the one answer. Only the last piece has a finish reason, and only once the turn is on disk."""

    index: int
    delta: ChatDelta
    logprobs: None
    finish_reason: ChatFinish | None


class ChatChunk(Struct, frozen=True):
    """A piece of an answer. With `stream_options.include_usage` the last one has the usage, and no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: ChatUsage | UnsetType | None = UNSET


# Models.


class ModelDocument(Struct, frozen=True):
    """A model that can be asked for: an agent of the server, or a model that one has. `NAME:side` is the same, for what
    is asked beside a conversation.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsDocument(Struct, frozen=True):
    """All of them."""

    object: Literal["list"]
    data: list[ModelDocument]


# Refusals.


class ChatError(Struct, frozen=True):
    """What went wrong. `turn` is the one that did not commit, if it was begun."""

    message: str
    type: Literal[
        "invalid_request_error", "authentication_error", "permission_error", "rate_limit_error", "server_error"
    ]
    param: str | None
    code: str
    request_id: str
    turn: str | UnsetType = UNSET


class ChatProblem(Struct, frozen=True):
    """The body of every answer under /v1 that is an error; in a stream, its last frame."""

    error: ChatError


DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
BETWEEN = "\n\n"
"""What stands between the words of two responses of one turn."""

_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
_plainly = msgspec.json.Encoder().encode


def _encode(value: object) -> bytes:
    """JSON without characters that some readers take for the end of a line."""
    made = _plainly(value)
    for line_end, escaped in _LINE_ENDS if b"\xe2\x80" in made or b"\xc2\x85" in made else ():
        made = made.replace(line_end, escaped)
    return made


class FinishedAnswer(Struct, frozen=True, kw_only=True):
    """A finished answer. ``id`` and ``model`` are as the client will read them; ``created`` is in seconds."""

    id: str
    model: str
    created: int
    text: str
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    finish: ChatFinish = "stop"
    usage: Usage = Usage()


def completion(said: FinishedAnswer, reasoning_field: bool) -> bytes:
    """A whole answer, as OpenAI's ``chat.completion``."""
    calls = [ChatToolCall(call.call_id, "function", ChatFunctionCall(call.tool, call.arguments)) for call in said.calls]
    message = ChatMessage(
        "assistant",
        None if calls and not said.text else said.text,
        None,
        said.reasoning if reasoning_field and said.reasoning else UNSET,
        calls or UNSET,
    )
    choice, usage = ChatChoice(0, message, None, said.finish), _usage(said.usage)
    return _encode(ChatCompletion(said.id, "chat.completion", said.created, said.model, [choice], usage))


class Chunks:
    """The chunks of one answer, each as a frame of a stream. What they have in common is encoded once."""

    def __init__(self, id: str, model: str, created: int, *, include_usage: bool, reasoning: bool) -> None:
        fields = {"id": id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._start = b"data: " + _encode(fields)[:-1]
        self._head = self._start + b',"choices":[{"index":0,"delta":'
        self._end = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._tail = b',"logprobs":null,"finish_reason":null}]' + self._end
        self._reasoning = reasoning

    def role(self) -> bytes:
        """The first one: who speaks."""
        return self._chunk(b'{"role":"assistant","content":"","refusal":null}')

    def text(self, delta: str) -> bytes:
        """More words."""
        return self._chunk(b'{"content":' + _encode(delta) + b"}")

    def reasoning(self, delta: str) -> bytes:
        """More thoughts; empty if the server does not show thoughts."""
        return self._chunk(b'{"reasoning_content":' + _encode(delta) + b"}") if self._reasoning else b""

    def call(self, index: int, id: str, name: str, arguments: str = "") -> bytes:
        """The first piece of a call."""
        function = {"name": name, "arguments": arguments}
        return self._chunk(
            _encode({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
        )

    def arguments(self, index: int, delta: str) -> bytes:
        """More of a call's arguments."""
        return self._chunk(_encode({"tool_calls": [{"index": index, "function": {"arguments": delta}}]}))

    def finish(self, reason: ChatFinish) -> bytes:
        """Why the answer ends. Only a committed answer has this."""
        return b"".join((self._head, b'{},"logprobs":null,"finish_reason":', _encode(reason), b"}]", self._end))

    def usage(self, usage: Usage) -> bytes:
        """What the answer took."""
        return b"".join((self._start, b',"choices":[],"usage":', _encode(_usage(usage)), b"}\n\n"))

    def _chunk(self, delta: bytes) -> bytes:
        return self._head + delta + self._tail


def error_frame(document: dict[str, Any]) -> bytes:
    """What went wrong after an answer has begun. It is the last frame."""
    return b"data: " + _encode(document) + b"\n\n"


def visible(events: Iterable[Event | StagedEvent], *, only_last: bool) -> tuple[str, str | None]:
    """The words and the thoughts that a client sees of a turn; with ``only_last`` only the last response's words,
    without a code fence around all of them.

    Only what a model said in this turn counts, and nothing that it had to say again.
    """
    texts: dict[int, str] = {}
    thoughts: dict[int, str] = {}
    last: int | None = None
    for event in events:
        match event.body:
            case SystemMessage() | HookRun(moment="turn_end", blocked=True) if last is not None:
                texts, thoughts = {}, {}
                continue
            case AssistantMessage(parts=parts):
                said, piece = texts, "".join(part.text for part in parts if isinstance(part, Text))
            case Reasoning(text=text):
                said, piece = thoughts, text or ""
            case ToolCall():
                said, piece = texts, ""
            case _:
                continue
        if (response := event.envelope.response) is not None:
            said[response] = said.get(response, "") + piece
            last = response
    text = unfenced(texts.get(last, "")) if only_last and last is not None else _joined(texts)
    return text, _joined(thoughts) or None


def handed(events: Iterable[Event | StagedEvent]) -> tuple[ToolCall, ...]:
    """The calls of the client's tools that have no result among these events."""
    open: dict[str, ToolCall] = {}
    for event in events:
        match event.body:
            case ToolCall(client=True) as call:
                open[call.call_id] = call
            case ToolResult(call_id=id):
                open.pop(id, None)
            case _:
                pass
    return tuple(open.values())


def finish_of(events: Iterable[Event | StagedEvent]) -> ChatFinish:
    """Why a turn's answer ends."""
    events = tuple(events)
    if handed(events):
        return "tool_calls"
    finishes = [event.body.finish for event in events if isinstance(event.body, ModelCalled)]
    stopped = any(isinstance(event.body, TurnStopped) for event in events)
    if finishes and finishes[-1] == "filter":
        return "content_filter"
    return "length" if stopped or (finishes and finishes[-1] == "length") else "stop"


def _joined(said: dict[int, str]) -> str:
    return BETWEEN.join(piece for piece in said.values() if piece)


def _usage(usage: Usage) -> ChatUsage:
    cached, reasoning = ChatPromptDetails(usage.cached), ChatCompletionDetails(usage.reasoning)
    return ChatUsage(usage.input, usage.output, usage.input + usage.output, cached, reasoning)
