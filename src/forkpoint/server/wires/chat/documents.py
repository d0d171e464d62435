"""How answers look, for the document that describes them: completions and their chunks, models, refusals."""

from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

Finish: TypeAlias = Literal["stop", "tool_calls", "length"]


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
    finish_reason: Finish


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
    finish_reason: Finish | None


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
    """A model that can be asked for: an agent of the server, or a model that one has. `NAME:side` is the same, always
    without a conversation.
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
