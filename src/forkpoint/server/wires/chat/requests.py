"""How requests look, for the document that describes them. What reads them is `asked`, which takes the same."""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
ToolName: TypeAlias = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
Address: TypeAlias = Annotated[
    str,
    Meta(pattern="^(https?://[^/?#]|data:image/[^,]*;base64,.)", description="On the web, or a data: URL in base64."),
]


class _Sent(Struct, frozen=True, omit_defaults=True):
    """What a client sends: null means absent, and what nobody knows is passed over."""


# Messages.


class ChatTextPart(_Sent, frozen=True, tag_field="type", tag="text"):
    """A text."""

    text: str


class ChatRefusalPart(_Sent, frozen=True, tag_field="type", tag="refusal"):
    """What the assistant said instead of an answer."""

    refusal: str


class ChatImageUrl(_Sent, frozen=True):
    """Where a picture is, or the picture itself."""

    url: Address


class ChatImagePart(_Sent, frozen=True, tag_field="type", tag="image_url"):
    """A picture."""

    image_url: ChatImageUrl | Address


class ChatFile(_Sent, frozen=True):
    """A file itself: none are kept here, so none has an id."""

    file_data: Annotated[
        str,
        Meta(
            pattern="^(data:[^,]*;base64,)?([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}(==|[A-Za-z0-9+/](=|[A-Za-z0-9+/])))$",
            description="In base64, alone or as a data: URL.",
        ),
    ]
    filename: str | None = None
    file_id: None = None


class ChatFilePart(_Sent, frozen=True, tag_field="type", tag="file"):
    """A file."""

    file: ChatFile


class ChatSystemMessage(_Sent, frozen=True, tag_field="role", tag="system"):
    """The client's instructions, which follow the agent's own. In a conversation those of its first request stay."""

    content: str | list[ChatTextPart] | None = None


class ChatDeveloperMessage(_Sent, frozen=True, tag_field="role", tag="developer"):
    """The same under a newer name."""

    content: str | list[ChatTextPart] | None = None


class ChatUserMessage(_Sent, frozen=True, tag_field="role", tag="user"):
    """What the user says. In a conversation the last message is this, or the result of a call that is open."""

    content: str | list[ChatTextPart | ChatImagePart | ChatFilePart] | None = None


class ChatFunctionSaid(_Sent, frozen=True):
    """A function that was called, with its arguments as the text that the model wrote."""

    name: Text
    arguments: str | None = None


class ChatCallSaid(_Sent, frozen=True):
    """A call that the assistant made of one of the client's tools."""

    id: Text
    function: ChatFunctionSaid
    type: Literal["function"] | None = None


class ChatAssistantMessage(_Sent, frozen=True, tag_field="role", tag="assistant"):
    """What the assistant said before."""

    content: str | list[ChatTextPart | ChatRefusalPart] | None = None
    refusal: str | None = None
    tool_calls: list[ChatCallSaid] | None = None
    function_call: None = None
    audio: None = None


class ChatToolMessage(_Sent, frozen=True, tag_field="role", tag="tool"):
    """What a call of one of the client's tools came to."""

    tool_call_id: Text
    content: str | list[ChatTextPart] | None = None


# What else a request has.


class ChatStreamOptions(_Sent, frozen=True):
    """What a stream tells besides the answer."""

    include_usage: bool | None = None


class ChatFunction(_Sent, frozen=True):
    """A function of the client's: what it is called, and a JSON schema of what it takes."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatTool(_Sent, frozen=True, tag_field="type", tag="function"):
    """A tool of the client's. A call of it is handed to the client, which sends the result with its next request."""

    function: ChatFunction


class ChatFunctionChosen(_Sent, frozen=True):
    """The name of a tool that was sent."""

    name: Text


class ChatToolChoice(_Sent, frozen=True):
    """The one tool that must be used first."""

    function: ChatFunctionChosen
    type: Literal["function"] | None = None


class ChatTextFormat(_Sent, frozen=True, tag_field="type", tag="text"):
    """Any text."""


class ChatObjectFormat(_Sent, frozen=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class ChatSchema(_Sent, frozen=True):
    """A form, as a JSON schema that refers to nothing outside itself."""

    name: ToolName
    schema: dict[str, Any] | None = None


class ChatSchemaFormat(_Sent, frozen=True, tag_field="type", tag="json_schema"):
    """JSON of this form."""

    json_schema: ChatSchema


class ChatRequest(_Sent, frozen=True):
    """As OpenAI's chat completions take it. Null means absent. A field that nobody here knows has no effect and is
    named in `X-Ignored-Fields`, or refused by a server that runs with `--strict`. What would change the form of the
    answer and cannot be done here (`n`, `logprobs`, `audio`) is refused by name.
    """

    model: Annotated[str, Meta(min_length=1, max_length=256, pattern=r"\S", description="One that /v1/models lists.")]
    messages: Annotated[
        list[ChatSystemMessage | ChatDeveloperMessage | ChatUserMessage | ChatAssistantMessage | ChatToolMessage],
        Meta(
            min_length=1,
            max_length=10_000,
            description="In a conversation only the end is new, unless `X-Conversation-History` is `full`.",
        ),
    ]
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    tools: list[ChatTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ChatTextFormat | ChatObjectFormat | ChatSchemaFormat | None = None
    reasoning_effort: Annotated[str, Meta(pattern="^[a-z]{1,32}$")] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tokens: Annotated[int, Meta(description="The older name: `max_completion_tokens` wins.")] | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    service_tier: str | None = None
    user: Annotated[str, Meta(description="A tag `user` of a conversation that the request makes.")] | None = None
    safety_identifier: str | None = None
    metadata: (
        Annotated[
            dict[Annotated[str, Meta(min_length=1, max_length=64)], Annotated[str, Meta(max_length=512)]],
            Meta(max_length=16, description="Tags of a conversation that the request makes; `title` is its title."),
        ]
        | None
    ) = None
    store: Annotated[bool, Meta(description="No effect: what has a conversation is kept, and nothing else.")] | None = (
        None
    )
    prompt_cache_key: (
        Annotated[str, Meta(description="Without a conversation: requests with the same one share a cache.")] | None
    ) = None
    n: Literal[1] | None = None
    logprobs: Annotated[bool, Meta(extra_json_schema={"const": False})] | None = None
    top_logprobs: Literal[0] | None = None
    modalities: Annotated[list[Literal["text"]], Meta(max_length=1)] | None = None
    audio: None = None
    functions: Annotated[list[Any], Meta(max_length=0)] | None = None
    function_call: Literal["none", "auto"] | None = None
    prediction: None = None
    web_search_options: None = None
    moderation: None = None
