"""What a chat completion asks for. One description makes the OpenAPI document and decodes the bodies.

Each field is decoded as the description has it. A complaint names the place in OpenAI's way (`messages[2].content`)
and never repeats the value that stood there. Values that change nothing always pass. What would change the form of
the answer and cannot be done is refused by name. Tests: tests/server/chat/test_request.py.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.json import Decoder

from forkpoint.agent.output import OutputSchema
from forkpoint.errors import BadAgent, BadSetting, BadTool, ForkpointError, Invalid
from forkpoint.llm.catalog import BOUNDS
from forkpoint.llm.options import Options
from forkpoint.llm.prompt.manifest import PLAIN_NAME, ToolSchema
from forkpoint.server.api.bad_json import NO_TEXT, TOO_DEEP
from forkpoint.server.wires.body import (
    LONGEST_MODEL_NAME,
    MISSING,
    check_model,
    complaint,
    fields_of,
    is_null,
    shown_names,
    text_of,
)
from forkpoint.wire.chat_messages import ClientMessage, NonEmpty, Sent, SentMessage, read_messages

MOST_TOOLS = 512
"""Tools that a client may bring along. Providers take fewer."""

ToolName: TypeAlias = Annotated[str, Meta(extra_json_schema={"pattern": "^[A-Za-z0-9_-]{1,64}$"})]
Schema: TypeAlias = Annotated[  # the exact text that was sent
    Raw, Meta(extra_json_schema={"anyOf": [{"type": "object"}, {"type": "null"}], "default": None})
]


def _null() -> Raw:
    return Raw(b"null")


def _bounded(option: str) -> Meta:
    """The bounds of a number, for the document. `Options` holds them, in words of its own."""
    least, most = BOUNDS[option]
    return Meta(extra_json_schema={"minimum": least, "maximum": most})


class ChatStreamOptions(Sent, frozen=True):
    """What a stream tells besides the answer."""

    include_usage: bool | None = None


class ChatFunction(Sent, frozen=True):
    """A function of the client's: what it is called, and a JSON schema of what it takes."""

    name: ToolName
    description: str | None = None
    parameters: Schema = msgspec.field(default_factory=_null)
    strict: bool | None = None


class ChatTool(Sent, frozen=True):
    """A tool of the client's. A call of it is handed to the client, which sends the result with its next request."""

    type: Literal["function"]
    function: ChatFunction


class ChatFunctionChosen(Sent, frozen=True):
    """The name of a tool that was sent."""

    name: NonEmpty


class ChatToolChoice(Sent, frozen=True):
    """The one tool that must be used first."""

    function: ChatFunctionChosen
    type: Literal["function"] | None = None


class ChatTextFormat(Sent, frozen=True, tag_field="type", tag="text"):
    """Any text."""


class ChatObjectFormat(Sent, frozen=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class ChatSchema(Sent, frozen=True):
    """A form, as a JSON schema that refers to nothing outside itself."""

    name: ToolName
    schema: Schema = msgspec.field(default_factory=_null)


class ChatSchemaFormat(Sent, frozen=True, tag_field="type", tag="json_schema"):
    """JSON of this form."""

    json_schema: ChatSchema


class ChatRequest(Sent, frozen=True):
    """As OpenAI's chat completions take it. Null means absent. A field that the server does not know has no effect and
    is named in `X-Ignored-Fields`, or refused by a server that is `strict`. What would change the form of the
    answer and cannot be done here (`n`, `logprobs`, `audio`) is refused by name.
    """

    model: Annotated[
        str,
        Meta(
            extra_json_schema={"minLength": 1, "maxLength": LONGEST_MODEL_NAME, "pattern": r"\S"},
            description="One that /v1/models lists.",
        ),
    ]
    messages: Annotated[
        list[SentMessage],
        Meta(
            extra_json_schema={"minItems": 1, "maxItems": 10_000},
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
    max_completion_tokens: Annotated[int, _bounded("max_tokens")] | None = None
    max_tokens: (
        Annotated[int, _bounded("max_tokens"), Meta(description="The older name: `max_completion_tokens` wins.")] | None
    ) = None
    temperature: Annotated[float, _bounded("temperature")] | None = None
    top_p: Annotated[float, _bounded("top_p")] | None = None
    top_k: Annotated[int, _bounded("top_k")] | None = None
    seed: Annotated[int, _bounded("seed")] | None = None
    stop: str | list[str] | None = None
    presence_penalty: Annotated[float, _bounded("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, _bounded("frequency_penalty")] | None = None
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


_IMPOSSIBLE = {  # why a field cannot have any other value than those described
    "n": "there is one answer to a request; send it several times for more",
    "logprobs": "probabilities of tokens are not kept",
    "top_logprobs": "probabilities of tokens are not kept",
    "modalities": "answers are text",
    "audio": "answers are text",
    "functions": "they are deprecated; send them as tools",
    "function_call": "it is deprecated; use tool_choice",
    "prediction": "what is expected cannot be told to the model",
    "web_search_options": "nothing is searched but by an agent's own tools",
    "moderation": "answers carry no scores",
}


class CompletionRequest(Struct, frozen=True, kw_only=True):
    """A request that was read. ``ignored`` names the fields that nobody knows, in order and fit for a header."""

    model: str
    messages: tuple[ClientMessage, ...]
    stream: bool = False
    include_usage: bool = False
    tools: tuple[ToolSchema, ...] = ()
    options: Options = Options()
    output: OutputSchema | None = None
    reasoning_effort: str | None = None
    user: str | None = None
    metadata: dict[str, str] = {}
    store: bool | None = None
    prompt_cache_key: str | None = None
    ignored: tuple[str, ...] = ()


def read_request(body: bytes, *, strict: bool, max_messages: int = 10_000) -> CompletionRequest:
    """The request in a body. With ``strict`` a field that nobody knows is refused.

    Raises `BadRequest` if the body is not a JSON object, `Invalid` for an invalid value and for what cannot
    be done here, and `TooLarge` for too many messages. None of them repeats what stood in the body, except the
    names of fields.
    """
    fields = {name: value for name, value in fields_of(body).items() if not is_null(value)}
    sent = _decoded(fields)
    ignored = shown_names([name for name in fields if name not in _DECODERS])
    tools = _tools(sent)
    request = CompletionRequest(
        model=sent.model,
        messages=read_messages(sent.messages, max_messages),
        stream=bool(sent.stream),
        include_usage=bool(sent.stream and sent.stream_options and sent.stream_options.include_usage),
        tools=tools,
        options=_options(sent, tools, fields),
        output=_output(sent),
        reasoning_effort=sent.reasoning_effort,
        user=sent.user or sent.safety_identifier or None,
        metadata=sent.metadata or {},
        store=sent.store,
        prompt_cache_key=sent.prompt_cache_key or None,
        ignored=ignored,
    )
    if strict and ignored:
        raise Invalid(
            ", ".join(ignored), "nobody here knows this; leave it out, or set strict = false in the server's file"
        )
    return request


def _tools(sent: ChatRequest) -> tuple[ToolSchema, ...]:
    """The client's own tools, in its order."""
    tools: dict[str, ToolSchema] = {}
    _check_count(len(sent.tools or ()))
    for index, tool in enumerate(sent.tools or ()):
        function, place = tool.function, f"tools[{index}].function"
        _check_name(function.name, place)
        text = text_of(function.parameters, f"{place}.parameters")
        try:
            made = ToolSchema(
                function.name,
                function.description or "",
                strict=bool(function.strict),
                **({} if text is None else {"parameters": text}),
            )
        except BadTool as error:
            raise Invalid(f"{place}.parameters", error.why) from None
        except RecursionError:
            raise Invalid(f"{place}.parameters", TOO_DEEP) from None
        if made.name in tools:
            raise Invalid(f"{place}.name", "another tool has the same name")
        tools[made.name] = made
    return tuple(tools.values())


def _options(sent: ChatRequest, tools: tuple[ToolSchema, ...], fields: dict[str, Raw]) -> Options:
    """How the model is to be asked."""
    newer = sent.max_completion_tokens
    stop = [sent.stop] if isinstance(sent.stop, str) else sent.stop or ()
    try:
        return Options(
            tool_choice=_choice(sent.tool_choice, tools),
            parallel_calls=sent.parallel_tool_calls,
            max_tokens=sent.max_tokens if newer is None else newer,
            temperature=sent.temperature,
            top_p=sent.top_p,
            top_k=sent.top_k,
            seed=sent.seed,
            stop=tuple(text for text in stop if text),
            presence_penalty=sent.presence_penalty,
            frequency_penalty=sent.frequency_penalty,
            logit_bias=text_of(fields["logit_bias"], "logit_bias") if sent.logit_bias else None,
            verbosity=sent.verbosity,
            service_tier=sent.service_tier if sent.service_tier not in {"", "auto", "default"} else None,
        )
    except BadSetting as error:
        names = {"max_tokens": "max_tokens" if newer is None else "max_completion_tokens"}
        raise Invalid(names.get(error.setting, error.setting), error.why) from None


def _choice(choice: str | ChatToolChoice | None, tools: tuple[ToolSchema, ...]) -> str:
    """The tool that must be used. Without tools there is nothing to choose: the agent's own are not the client's."""
    if choice is None:
        return "auto"
    if isinstance(choice, str):
        if choice == "required" and not tools:
            raise Invalid("tool_choice", "it is required, and there are no tools; send some")
        return choice if tools else "auto"
    name = choice.function.name
    if not any(tool.name == name for tool in tools):
        raise Invalid("tool_choice.function.name", "it is none of the tools that were sent")
    if name in {"auto", "none", "required"}:
        raise Invalid.unsupported(
            "tool_choice.function.name", "a tool of this name cannot be demanded; give it another"
        )
    return name


def _output(sent: ChatRequest) -> OutputSchema | None:
    """The form that the answer must have."""
    match sent.response_format:
        case None | ChatTextFormat():
            return None
        case ChatObjectFormat():
            return OutputSchema("json_object", _ANY_OBJECT)
        case ChatSchemaFormat(json_schema=form):
            place = "response_format.json_schema"
            _check_name(form.name, place)
            try:
                return OutputSchema(form.name, text_of(form.schema, f"{place}.schema") or _ANY_OBJECT)
            except BadAgent as error:
                raise Invalid(f"{place}.schema", error.why) from None


_ANY_OBJECT = '{"type":"object"}'


def _check_name(name: str, place: str) -> None:
    if not PLAIN_NAME.fullmatch(name):
        why = "it takes 1 to 64 of the characters A-Z a-z 0-9 _ -" if name else MISSING
        raise Invalid(f"{place}.name", why)


def _check_count(tools: int) -> None:
    if tools > MOST_TOOLS:
        raise Invalid("tools", f"there are {tools:,}, and the limit is {MOST_TOOLS}")


# From bytes to fields.

_DECODERS: dict[str, Callable[[Raw], Any]] = {
    field.name: Decoder(field.type).decode for field in msgspec.structs.fields(ChatRequest)
}
_count = Decoder(list[Raw]).decode


def _decoded(fields: dict[str, Raw]) -> ChatRequest:
    values: dict[str, Any] = {"model": "", "messages": ()}
    for name, decode in _DECODERS.items():
        if (raw := fields.get(name)) is not None:
            try:
                values[name] = decode(raw)
            except msgspec.ValidationError as error:
                if name == "tools" and bytes(memoryview(raw)[:1]) == b"[":
                    _check_count(len(_count(raw)))
                raise _refused(name, str(error)) from None
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise Invalid(name, NO_TEXT) from None
            except RecursionError:
                raise Invalid(name, TOO_DEEP) from None
        if name == "model":
            check_model(values["model"])
    if values.get("logprobs"):
        raise Invalid.unsupported("logprobs", _IMPOSSIBLE["logprobs"])
    return ChatRequest(**values)


_TYPED = {"n", "top_logprobs", "logprobs", "modalities"}  # impossible ones that can also be of a wrong type


def _refused(name: str, said: str) -> ForkpointError:
    why, place, value = complaint(name, said)
    if name in _IMPOSSIBLE and not (name in _TYPED and ", got `" in why):
        return Invalid.unsupported(name, _IMPOSSIBLE[name])
    return _in_our_words(place, value, why)


def _in_our_words(place: str, value: str | None, why: str) -> ForkpointError:
    """An error for one place of the body, with a better sentence where there is one."""
    match re.sub(r"\[\d+\]", "[]", place), value:
        case "messages[].role", "function":
            return Invalid.unsupported(place, "the role function is deprecated; send the result with the role tool")
        case "messages[].role", _ if why != MISSING:
            why = "it must be system, developer, user, assistant or tool"
        case "messages[].content[].type", "input_audio":
            return Invalid.unsupported(place.removesuffix("type") + value, "sound cannot be heard here")
        case "messages[].content[].type", "video_url":
            return Invalid.unsupported(place.removesuffix("type") + value, "films cannot be seen here")
        case "messages[].content[].type", "text" | "refusal" | "image_url" | "file":
            why = f"a message with this role takes no part of the type {value}"
        case "messages[].content[].type", _ if why != MISSING:
            why = "only text, image_url and file are known"
        case "messages[].content[].image_url", _ if why == MISSING:
            place += ".url"
        case "messages[].content[].file.file_id", _:
            return Invalid.unsupported(place, "no files are kept here; send the file itself as file_data")
        case "messages[].function_call", _:
            return Invalid.unsupported(place, "it is deprecated; send the call in tool_calls")
        case "messages[].audio", _:
            return Invalid.unsupported(place, "sound is not kept here; send its words as content")
        case "messages[].tool_call_id", _ if why == MISSING:
            why += "; name the call that this is the result of"
        case "messages[].tool_calls[].type", str():
            return Invalid.unsupported(place.removesuffix(".type"), "only calls of functions are known")
        case "tools[].type", str():
            named = f" {value}" if PLAIN_NAME.fullmatch(value) else ""
            return Invalid.unsupported(place + named, "only tools of the type function are known")
        case "tools[].function" | "messages[].tool_calls[].function" | "response_format.json_schema", _:
            place += ".name" if why == MISSING else ""
        case "tool_choice", str():
            why = "it must be none, auto, required, or name a function"
        case "tool_choice.type", "allowed_tools" | "custom":
            return Invalid.unsupported(
                f"tool_choice.{value}", "name one function, or send only the tools that are allowed"
            )
        case "tool_choice.type" | "tool_choice.function" | "tool_choice.function.name", _ if value or why == MISSING:
            place, why = "tool_choice", 'it must be of the form {"type": "function", "function": {"name": ...}}'
        case "response_format.type", _:
            why = "it must be text, json_object or json_schema"
        case _:
            pass
    return Invalid(place, why[:1].lower() + why[1:200])
