"""What a request for a response asks for. One description makes the OpenAPI document and decodes the bodies.

A field that the server does not know has no effect and is named in `X-Ignored-Fields`. What would change the form of
the answer and cannot be done is refused by name. Tests: tests/server/responses/test_request.py.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.json import Decoder

from forkpoint.agent.output import OutputSchema
from forkpoint.errors import BadAgent, BadSetting, BadTool, Invalid
from forkpoint.events import JsonText
from forkpoint.llm.catalog import BOUNDS
from forkpoint.llm.options import Options
from forkpoint.llm.prompt.manifest import PLAIN_NAME, ToolSchema
from forkpoint.server.api.bad_json import TOO_DEEP
from forkpoint.server.wires.body import (
    LONGEST_MODEL_NAME,
    MISSING,
    check_model,
    decoded,
    fields_of,
    is_null,
    object_of,
    shown_names,
    text_of,
    value_of,
)
from forkpoint.server.wires.responses.items.input import InputItem, custom_results, read_input
from forkpoint.wire.chat_messages import Sent

MOST_TOOLS = 512
"""Tools that a client may bring along. Providers take fewer."""

ENCRYPTED = "reasoning.encrypted_content"
SERVER_CALLS = "server_tool_calls"
"""What a client may have included in the output: encrypted thoughts, and the calls of the agent's own tools."""

Metadata: TypeAlias = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
_ANY_OBJECT = '{"type":"object"}'
_CUSTOM = '{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}'


def _bounded(option: str) -> Meta:
    """The bounds of a number, for the document. `Options` holds them, in words of its own."""
    least, most = BOUNDS[option]
    return Meta(extra_json_schema={"minimum": least, "maximum": most})


def _null() -> Raw:
    return Raw(b"null")


class ResponseConversation(Sent, frozen=True):
    """A conversation, by its id."""

    id: str


class ResponseReasoning(Sent, frozen=True):
    """How much the model thinks, and whether it sums up its thoughts."""

    effort: Annotated[str, Meta(pattern="^[a-z]{1,32}$")] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseText(Sent, frozen=True):
    """The form of the answer's text."""

    format: Annotated[
        Raw,
        Meta(
            extra_json_schema={"type": "object"},
            description="`{type: text}`, `{type: json_object}`, or `{type: json_schema, name, schema}`.",
        ),
    ] = msgspec.field(default_factory=_null)
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponseStreamOptions(Sent, frozen=True):
    """Taken, and without effect: no event is obfuscated."""

    include_obfuscation: bool | None = None


Item: TypeAlias = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]


class ResponseRequest(Sent, frozen=True):
    """As OpenAI's Responses take it. Null means absent. A field that the server does not know has no effect and is
    named in `X-Ignored-Fields`, or refused by a server that is `strict`.
    """

    model: Annotated[
        str,
        Meta(
            extra_json_schema={"minLength": 1, "maxLength": LONGEST_MODEL_NAME, "pattern": r"\S"},
            description="One that /v1/models lists.",
        ),
    ]
    input: Annotated[
        str | list[Item],
        Meta(description="What is new: a text, or items (messages, calls, results of calls, thoughts, references)."),
    ]
    instructions: (
        Annotated[str, Meta(description="They follow the agent's own, and hold for this response.")] | None
    ) = None
    previous_response_id: (
        Annotated[str, Meta(description="A stored response: the new one is forked there, and waits for nobody.")] | None
    ) = None
    conversation: (
        Annotated[
            str | ResponseConversation,
            Meta(description="A conversation that this is a turn of: `conv_...`, or its name."),
        ]
        | None
    ) = None
    store: Annotated[bool, Meta(description="False: nothing is kept but the cost.")] | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    background: (
        Annotated[bool, Meta(description="The answer comes at once, and the response is read later.")] | None
    ) = None
    tools: (
        Annotated[
            list[Item],
            Meta(
                description="Functions and custom tools of the client's. Tools of other types are left out, and "
                "`X-Ignored-Fields` names them."
            ),
        ]
        | None
    ) = None
    tool_choice: Annotated[
        Raw,
        Meta(
            extra_json_schema={"anyOf": [{"enum": ["none", "auto", "required", None]}, {"type": "object"}]},
            description="`none`, `auto`, `required`, or a tool by its `type` and `name`.",
        ),
    ] = msgspec.field(default_factory=_null)
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[int, _bounded("max_tokens")] | None = None
    temperature: Annotated[float, _bounded("temperature")] | None = None
    top_p: Annotated[float, _bounded("top_p")] | None = None
    presence_penalty: Annotated[float, _bounded("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, _bounded("frequency_penalty")] | None = None
    reasoning: ResponseReasoning | None = None
    text: ResponseText | None = None
    metadata: Metadata | None = None
    include: (
        Annotated[
            list[str],
            Meta(
                description=f"`{ENCRYPTED}`: encrypted thoughts, to send back. `{SERVER_CALLS}`: calls of the agent's "
                "own tools, with their results."
            ),
        ]
        | None
    ) = None
    truncation: Literal["auto", "disabled"] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt: None = None
    moderation: None = None
    context_management: None = None


_IMPOSSIBLE = {  # why a field cannot have any other value than null
    "prompt": "no templates are kept here; send input and instructions",
    "moderation": "answers carry no scores",
    "context_management": "an agent's own condenser does that",
}


class Echo(Struct, frozen=True, omit_defaults=True):
    """What a response repeats of its request. It is kept with the turn."""

    model: str
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | None = None  # the id of the conversation that it is a turn of, if the request named one
    tools: Raw = Raw(b"[]")
    custom: tuple[str, ...] = ()  # the names of the custom tools among them
    custom_results: tuple[str, ...] = ()  # the calls whose results came as those of custom tools
    tool_choice: Raw = Raw(b'"auto"')
    parallel_tool_calls: bool = True
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    reasoning: ResponseReasoning | None = None
    format: Raw = Raw(b'{"type":"text"}')
    verbosity: str | None = None
    metadata: dict[str, str] = {}
    include: tuple[str, ...] = ()
    truncation: str = "disabled"
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    store: bool = True
    background: bool = False
    left_out: tuple[str, ...] = ()  # tools of the request that nobody runs here

    def to_json(self) -> JsonText:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: JsonText | None) -> "Echo":
        """What was kept. A turn of another API has nothing, and neither has one whose input was erased."""
        return cls(model="") if text is None else msgspec.json.decode(text, type=cls)

    @property
    def has_form(self) -> bool:
        """Whether the answer must be JSON."""
        return bytes(self.format) != b'{"type":"text"}'


class AskedResponse(Struct, frozen=True, kw_only=True):
    """A request that was read. ``ignored`` names the fields that have no effect, in order and fit for a header."""

    model: str
    items: tuple[InputItem, ...]
    echo: Echo
    stream: bool = False
    tools: tuple[ToolSchema, ...] = ()
    options: Options = Options()
    output: OutputSchema | None = None
    ignored: tuple[str, ...] = ()


def read_request(body: bytes, *, strict: bool) -> AskedResponse:
    """The request in a body. With ``strict`` a field that nobody knows is refused.

    Raises `BadRequest` if the body is not a JSON object, and `Invalid` for an invalid value and for what cannot be done
    here. None of them repeats what stood in the body, except the names of fields and types.
    """
    fields = {name: value for name, value in fields_of(body).items() if not is_null(value)}
    sent = _decoded(fields)
    unknown = shown_names([name for name in fields if name not in _DECODERS])
    if strict and unknown:
        raise Invalid.unsupported(unknown[0], "this server is strict, and does not know it")
    tools = _read_tools(sent.tools or ())
    form, format = _output(sent.text)
    options, choice = _options(sent, tools)
    _check_together(sent)
    items = read_input(sent.input)
    store = sent.store is not False
    conversation = sent.conversation.id if isinstance(sent.conversation, ResponseConversation) else sent.conversation
    echo = Echo(
        model=sent.model,
        instructions=sent.instructions,
        previous_response_id=sent.previous_response_id,
        conversation=conversation,
        tools=Raw(msgspec.json.encode(tools.shown)),
        custom=tools.custom,
        custom_results=custom_results(items),
        tool_choice=choice,
        parallel_tool_calls=sent.parallel_tool_calls is not False,
        max_output_tokens=sent.max_output_tokens,
        temperature=sent.temperature,
        top_p=sent.top_p,
        presence_penalty=sent.presence_penalty,
        frequency_penalty=sent.frequency_penalty,
        reasoning=sent.reasoning,
        format=format,
        verbosity=None if sent.text is None else sent.text.verbosity,
        metadata=sent.metadata or {},
        include=tuple(name for name in sent.include or () if name in {ENCRYPTED, SERVER_CALLS}),
        truncation=sent.truncation or "disabled",
        service_tier=sent.service_tier,
        safety_identifier=sent.safety_identifier,
        prompt_cache_key=sent.prompt_cache_key,
        store=store,
        background=bool(sent.background),
        left_out=tools.left_out,
    )
    return AskedResponse(
        model=sent.model,
        items=items,
        echo=echo,
        stream=bool(sent.stream),
        tools=tools.schemas,
        options=options,
        output=form,
        ignored=(*unknown, *_without_effect(sent), *(f"tools.{name}" for name in tools.left_out)),
    )


def _check_together(sent: ResponseRequest) -> None:
    """Raises `Invalid` for fields that cannot stand together."""
    if sent.previous_response_id is not None and sent.conversation is not None:
        raise Invalid("previous_response_id", "it cannot stand beside conversation; send one of the two")
    if sent.store is False and sent.background:
        raise Invalid("background", "a response that is not stored cannot be read later; leave store out")
    if sent.store is False and sent.conversation is not None:
        raise Invalid("store", "a turn of a conversation is always stored; leave store or conversation out")


def _without_effect(sent: ResponseRequest) -> list[str]:
    """Known fields whose value has no effect here."""
    included = shown_names([f"include.{one}" for one in sent.include or () if one not in {ENCRYPTED, SERVER_CALLS}])
    return [*(["truncation"] if sent.truncation == "auto" else []), *included]


class _Tools(Struct, frozen=True):
    schemas: tuple[ToolSchema, ...]
    shown: list[dict[str, Any]]
    custom: tuple[str, ...]
    left_out: tuple[str, ...]


def _read_tools(sent: list[Raw] | tuple[()]) -> _Tools:
    """The client's tools: functions, and custom tools as functions of one text. The others are left out."""
    if len(sent) > MOST_TOOLS:
        raise Invalid("tools", f"there are {len(sent):,}, and the limit is {MOST_TOOLS}")
    schemas: dict[str, ToolSchema] = {}
    shown: list[dict[str, Any]] = []
    custom: list[str] = []
    left_out: list[str] = []
    for index, raw in enumerate(sent):
        place = f"tools[{index}]"
        fields = object_of(raw, place)
        tool: dict[str, Any] = value_of(raw, place)
        kind = tool.get("type")
        if kind not in ("function", "custom"):
            if not isinstance(kind, str):
                raise Invalid(f"{place}.type", MISSING)
            left_out += shown_names([kind])
            continue
        made = _schema(tool, fields, place)
        if made.name in schemas:
            raise Invalid(f"{place}.name", "another tool has the same name")
        schemas[made.name] = made
        if kind == "custom":
            custom.append(made.name)
            shown.append(tool)
            continue
        described = tool.get("description")
        parameters = tool.get("parameters")
        fixed = {"type": "function", "name": made.name, "description": described, "parameters": parameters}
        shown.append(fixed | {"strict": made.strict})
    return _Tools(tuple(schemas.values()), shown, tuple(custom), tuple(left_out))


def _schema(tool: dict[str, Any], fields: dict[str, Raw], place: str) -> ToolSchema:
    name, described = tool.get("name"), tool.get("description")
    if not isinstance(name, str) or not PLAIN_NAME.fullmatch(name):
        raise Invalid(f"{place}.name", "it takes 1 to 64 of the characters A-Z a-z 0-9 _ -" if name else MISSING)
    if described is not None and not isinstance(described, str):
        raise Invalid(f"{place}.description", "it must be a text")
    parameters: str | None = _CUSTOM
    if tool["type"] == "function":
        parameters = text_of(fields.get("parameters", _null()), f"{place}.parameters")
    strict = tool.get("strict") is True and tool["type"] == "function"
    try:
        if parameters is None:
            return ToolSchema(name, described or "", strict=strict)
        return ToolSchema(name, described or "", parameters, strict)
    except BadTool as error:
        raise Invalid(f"{place}.parameters", error.why) from None
    except RecursionError:
        raise Invalid(f"{place}.parameters", TOO_DEEP) from None


def _options(sent: ResponseRequest, tools: _Tools) -> tuple[Options, Raw]:
    """How the model is to be asked, and the choice of a tool as the response repeats it."""
    choice, shown = _choice(sent.tool_choice, tools)
    try:
        options = Options(
            tool_choice=choice,
            parallel_calls=sent.parallel_tool_calls,
            max_tokens=sent.max_output_tokens,
            temperature=sent.temperature,
            top_p=sent.top_p,
            presence_penalty=sent.presence_penalty,
            frequency_penalty=sent.frequency_penalty,
            verbosity=None if sent.text is None else sent.text.verbosity,
            service_tier=sent.service_tier if sent.service_tier not in {"", "auto", "default"} else None,
        )
    except BadSetting as error:
        names = {"max_tokens": "max_output_tokens"}
        raise Invalid(names.get(error.setting, error.setting), error.why) from None
    return options, shown


def _choice(raw: Raw, tools: _Tools) -> tuple[str, Raw]:
    if is_null(raw):
        return "auto", Raw(b'"auto"')
    choice = value_of(raw, "tool_choice")
    if isinstance(choice, str):
        if choice not in {"none", "auto", "required"}:
            raise Invalid("tool_choice", "it must be none, auto, required, or name a tool")
        if choice == "required" and not tools.schemas:
            raise Invalid("tool_choice", "it is required, and there are no tools that can be called here; send some")
        return choice if tools.schemas else "auto", raw
    kind, name = (choice.get("type"), choice.get("name")) if isinstance(choice, dict) else (None, None)
    if kind not in ("function", "custom"):
        shown = shown_names([kind])[0] if isinstance(kind, str) else "tool_choice"
        raise Invalid.unsupported(f"tool_choice.{shown}", "only functions and custom tools can be demanded here")
    if not any(tool.name == name for tool in tools.schemas):
        raise Invalid("tool_choice.name", "it is none of the tools that were sent")
    if name in {"auto", "none", "required"}:
        raise Invalid.unsupported("tool_choice.name", "a tool of this name cannot be demanded; give it another")
    return str(name), raw


def _output(text: ResponseText | None) -> tuple[OutputSchema | None, Raw]:
    """The form that the answer must have, and the format as the response repeats it."""
    plain = Raw(b'{"type":"text"}')
    if text is None or is_null(text.format):
        return None, plain
    place = "text.format"
    fields = object_of(text.format, place)
    format: dict[str, Any] = value_of(text.format, place)
    match format.get("type"):
        case "text":
            return None, plain
        case "json_object":
            return OutputSchema("json_object", _ANY_OBJECT), Raw(b'{"type":"json_object"}')
        case "json_schema":
            name = format.get("name")
            if not isinstance(name, str) or not PLAIN_NAME.fullmatch(name):
                raise Invalid(f"{place}.name", "it takes 1 to 64 of the characters A-Z a-z 0-9 _ -")
            schema = text_of(fields.get("schema", _null()), f"{place}.schema") or _ANY_OBJECT
            try:
                form = OutputSchema(name, schema)
            except BadAgent as error:
                raise Invalid(f"{place}.schema", error.why) from None
            shown = {"type": "json_schema", "name": name, "description": format.get("description")}
            strict = format.get("strict") is True
            return form, Raw(msgspec.json.encode(shown | {"schema": Raw(schema.encode()), "strict": strict}))
        case _:
            raise Invalid(f"{place}.type", "it must be text, json_object or json_schema")


# From bytes to fields.

_DECODERS: dict[str, Callable[[Raw], Any]] = {
    field.name: Decoder(field.type).decode for field in msgspec.structs.fields(ResponseRequest)
}


def _decoded(fields: dict[str, Raw]) -> ResponseRequest:
    values: dict[str, Any] = {"model": "", "input": ""}
    for name, decode in _DECODERS.items():
        if (raw := fields.get(name)) is not None:
            if name in _IMPOSSIBLE:
                raise Invalid.unsupported(name, _IMPOSSIBLE[name])
            values[name] = decoded(decode, raw, name)
        if name == "model":
            check_model(values["model"])
    return ResponseRequest(**values)
