"""What a chat completion asks for: the body of a request, as it is described and as it is read."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.json import Decoder

from forkpoint.agent.output import OutputSchema
from forkpoint.errors import BadAgent, BadRequest, BadSetting, BadTool, ForkpointError, Invalid, Unsupported
from forkpoint.events import JsonText
from forkpoint.llm.options import Options
from forkpoint.llm.prompt.manifest import PLAIN_NAME, ToolSchema
from forkpoint.server.wires.chat.messages import ClientMessage, SentMessage, read_messages

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


T = TypeVar("T")

_NO_TEXT = "its text is not valid Unicode"
_SHOWN = 20  # how many fields that nobody knows are named
_LONGEST = 64  # and how much of a name
_UNPRINTABLE = re.compile(r"[^A-Za-z0-9_.\-]")  # names go into a header, where a line break would be another header
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # half of a pair of surrogates, as JSON writes it
_SMALL = 256 * 1024  # bytes of a body in which it is looked for
_decode = Decoder(dict[str, Raw]).decode


class Fields:
    """A body's fields, by name. Null means absent."""

    def __init__(self, body: bytes) -> None:
        """Raises `BadRequest` for what is no JSON object, and `Invalid` for text that is not valid Unicode."""
        try:
            self._raw = _decode(body)
        except msgspec.ValidationError:
            raise BadRequest("its body is JSON, but not an object") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _not_json(body) from None

    def take(self, name: str, decode: Callable[[Raw], T]) -> T | None:
        """A field's value; None if it is absent. Raises `Invalid` if it is of another form."""
        raw = self.take_raw(name)
        if raw is None:
            return None
        try:
            return decode(raw)
        except msgspec.ValidationError as error:
            raise _invalid(name, str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Invalid(name, _NO_TEXT) from None
        except RecursionError:
            raise Invalid(name, "it is nested too deep") from None

    def take_raw(self, name: str) -> Raw | None:
        """A field's value as the exact text that was sent; None if it is absent."""
        raw = self.peek(name)
        self._raw.pop(name, None)
        return raw

    def peek(self, name: str) -> Raw | None:
        """The same, and it stays there to be taken."""
        raw = self._raw.get(name)
        return None if raw is None or is_null(raw) else raw

    @property
    def left(self) -> tuple[str, ...]:
        """The names of those that nobody took, in order, fit for a header. Not all of them, if they are very many."""
        names = [name for name, raw in self._raw.items() if not is_null(raw)]
        shown = [_UNPRINTABLE.sub("?", name[:_LONGEST]) or "?" for name in names[:_SHOWN]]
        return (*shown, "...") if len(names) > _SHOWN else tuple(shown)


def is_null(raw: Raw) -> bool:
    """Whether this is JSON's null."""
    return bytes(memoryview(raw)[:5]) == b"null"


def text_of(raw: Raw, place: str) -> JsonText:
    """The exact text of a value. Raises `Invalid`, with its place, if it is none."""
    try:
        return bytes(raw).decode()
    except UnicodeDecodeError:
        raise Invalid(place, _NO_TEXT) from None


def _invalid(name: str, said: str) -> Invalid:
    """What msgspec says of a field, without what stood there: it names the place and the form that was expected."""
    why, _, place = said.partition(" - at ")
    if why.startswith("Invalid"):
        why = "its value is not one of those that are possible"
    place = "" if place.startswith("`key`") else place  # of an object: msgspec says no more of it
    return Invalid(f"{name}{place.strip('`').removeprefix('$')}"[:200], why[:1].lower() + why[1:200])


def _not_json(body: bytes) -> ForkpointError:
    """Why a body cannot be read. Half a surrogate pair is JSON, and yet no text: then the place is told."""
    if len(body) <= _SMALL and _HALF.search(body):  # it takes a while to find the place
        try:
            place = next(_halves(json.loads(body), ""), None)
        except (ValueError, RecursionError):
            place = None
        if place is not None:
            return Invalid(place[:200] or "body", f"{_NO_TEXT}: it has half of a surrogate pair")
    return BadRequest("its body is not JSON in UTF-8")


def _halves(value: Any, place: str) -> Iterator[str]:
    """The places of texts that cannot be written."""
    match value:
        case str() if not is_unicode(value):
            yield place
        case list():
            for index, item in enumerate(value):
                yield from _halves(item, f"{place}[{index}]")
        case dict():
            for name, item in value.items():
                if not is_unicode(name):
                    yield place
                else:
                    yield from _halves(item, f"{place}.{name}" if place else name)
        case _:
            pass


def is_unicode(text: str) -> bool:
    """Whether a text can be written in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


MOST_TOOLS = 512
"""Tools that a client may bring along. Providers take fewer."""

_ANY_OBJECT = '{"type":"object"}'
_CHOICES = {"auto", "none", "required"}
_NULL = Raw(b"null")

BOOL = Decoder(bool).decode
TEXT = Decoder(str).decode
_ANY = Decoder(Any).decode
_INT = Decoder(int).decode
_FLOAT = Decoder(float).decode
_TEXTS = Decoder(list[str]).decode


_IMPOSSIBLE: tuple[tuple[str, Callable[[Raw], Any], tuple[Any, ...], str], ...] = (
    # A field, how it is read, which of its values change nothing, and why the others cannot be.
    ("n", _INT, (1,), "there is one answer to a request; send it several times for more"),
    ("logprobs", BOOL, (False,), "probabilities of tokens are not kept"),
    ("top_logprobs", _INT, (0,), "probabilities of tokens are not kept"),
    ("modalities", _TEXTS, ([], ["text"]), "answers are text"),
    ("audio", _ANY, (), "answers are text"),
    ("functions", _ANY, ([],), "they are deprecated; send them as tools"),
    ("function_call", _ANY, ("none", "auto"), "it is deprecated; use tool_choice"),
    ("prediction", _ANY, (), "what is expected cannot be told to the model"),
    ("web_search_options", _ANY, (), "nothing is searched but by an agent's own tools"),
    ("moderation", _ANY, (), "answers carry no scores"),
)


def refuse_impossible(fields: Fields) -> None:
    """Raises `Unsupported` for what would change the shape of the answer and cannot be done here."""
    for name, decode, same, why in _IMPOSSIBLE:
        value = fields.take(name, decode)
        if value is not None and value not in same:
            raise Unsupported(name, why)


class _Function(Struct):
    name: str | None = None
    description: str | None = None
    parameters: Raw = _NULL
    strict: bool | None = None


class _Tool(Struct):
    type: str | None = None
    function: _Function | None = None


_TOOLS = Decoder(list[_Tool]).decode


def read_tools(fields: Fields) -> tuple[ToolSchema, ...]:
    """The client's own tools, in its order."""
    tools: dict[str, ToolSchema] = {}
    given = fields.take("tools", _TOOLS) or ()
    if len(given) > MOST_TOOLS:
        raise Invalid("tools", f"there are {len(given):,}, and the limit is {MOST_TOOLS}")
    for index, sent in enumerate(given):
        place = f"tools[{index}]"
        if sent.type is None:
            raise Invalid(f"{place}.type", "it is missing")
        if sent.type != "function":
            named = f" {sent.type}" if PLAIN_NAME.fullmatch(sent.type) else ""
            raise Unsupported(f"{place}.type{named}", "only tools of the type function are known")
        tool = _tool(sent.function, f"{place}.function")
        if tool.name in tools:
            raise Invalid(f"{place}.function.name", "another tool has the same name")
        tools[tool.name] = tool
    return tuple(tools.values())


def _tool(sent: _Function | None, place: str) -> ToolSchema:
    if sent is None or not sent.name:
        raise Invalid(f"{place}.name", "it is missing")
    if not PLAIN_NAME.fullmatch(sent.name):
        raise Invalid(f"{place}.name", "it takes 1 to 64 of the characters A-Z a-z 0-9 _ -")
    schema = {} if is_null(sent.parameters) else {"parameters": text_of(sent.parameters, f"{place}.parameters")}
    try:
        return ToolSchema(sent.name, sent.description or "", strict=bool(sent.strict), **schema)
    except BadTool as error:
        raise Invalid(f"{place}.parameters", error.why) from None
    except RecursionError:
        raise Invalid(f"{place}.parameters", "it is nested too deep") from None


_VERBOSITY = Decoder(Literal["low", "medium", "high"]).decode
_STOP: Callable[[Raw], str | list[str]] = Decoder(str | list[str]).decode
_BIAS = Decoder(dict[str, float]).decode


def read_options(fields: Fields, tools: tuple[ToolSchema, ...]) -> Options:
    """How the model is to be asked."""
    most, newer = fields.take("max_tokens", _INT), fields.take("max_completion_tokens", _INT)
    stop = fields.take("stop", _STOP)
    tier = fields.take("service_tier", TEXT)
    try:
        return Options(
            tool_choice=_choice(fields, tools),
            parallel_calls=fields.take("parallel_tool_calls", BOOL),
            max_tokens=most if newer is None else newer,
            temperature=fields.take("temperature", _FLOAT),
            top_p=fields.take("top_p", _FLOAT),
            top_k=fields.take("top_k", _INT),
            seed=fields.take("seed", _INT),
            stop=tuple(text for text in ([stop] if isinstance(stop, str) else stop or ()) if text),
            presence_penalty=fields.take("presence_penalty", _FLOAT),
            frequency_penalty=fields.take("frequency_penalty", _FLOAT),
            logit_bias=_bias(fields),
            verbosity=fields.take("verbosity", _VERBOSITY),
            service_tier=tier if tier and tier not in {"auto", "default"} else None,
        )
    except BadSetting as error:
        names = {"max_tokens": "max_tokens" if newer is None else "max_completion_tokens"}
        raise Invalid(names.get(error.setting, error.setting), error.why) from None


def _bias(fields: Fields) -> JsonText | None:
    raw = fields.peek("logit_bias")
    return text_of(raw, "logit_bias") if fields.take("logit_bias", _BIAS) and raw is not None else None


class _Named(Struct):
    name: str | None = None


class _ToolChoice(Struct):
    type: str | None = None
    function: _Named | None = None


_CHOICE: Callable[[Raw], str | _ToolChoice] = Decoder(str | _ToolChoice).decode


def _choice(fields: Fields, tools: tuple[ToolSchema, ...]) -> str:
    """Which tool must be used. Without any there is nothing to choose: the agent's own are not the client's."""
    choice = fields.take("tool_choice", _CHOICE)
    if choice is None:
        return "auto"
    if isinstance(choice, str):
        if choice not in _CHOICES:
            raise Invalid("tool_choice", "it must be none, auto, required, or name a function")
        if choice == "required" and not tools:
            raise Invalid("tool_choice", "it is required, and there are no tools; send some")
        return choice if tools else "auto"
    if choice.type in {"allowed_tools", "custom"}:
        raise Unsupported(f"tool_choice.{choice.type}", "name one function, or send only the tools that are allowed")
    if choice.type not in {"function", None} or choice.function is None or not choice.function.name:
        raise Invalid("tool_choice", 'it must be of the form {"type": "function", "function": {"name": ...}}')
    name = choice.function.name
    if not any(tool.name == name for tool in tools):
        raise Invalid("tool_choice.function.name", "it is none of the tools that were sent")
    if name in _CHOICES:
        raise Unsupported("tool_choice.function.name", "a tool of this name cannot be demanded; give it another")
    return name


class _Schema(Struct):
    name: str | None = None
    schema: Raw = _NULL


class _Format(Struct):
    type: str | None = None
    json_schema: _Schema | None = None


_FORMAT = Decoder(_Format).decode


def read_output(fields: Fields) -> OutputSchema | None:
    """The form that the answer must have."""
    sent = fields.take("response_format", _FORMAT)
    if sent is None or sent.type == "text":
        return None
    if sent.type == "json_object":
        return OutputSchema("json_object", _ANY_OBJECT)
    if sent.type != "json_schema":
        raise Invalid("response_format.type", "it must be text, json_object or json_schema")
    place = "response_format.json_schema"
    if sent.json_schema is None or not sent.json_schema.name:
        raise Invalid(f"{place}.name", "it is missing")
    if not PLAIN_NAME.fullmatch(sent.json_schema.name):
        raise Invalid(f"{place}.name", "it takes 1 to 64 of the characters A-Z a-z 0-9 _ -")
    schema = sent.json_schema.schema
    text = _ANY_OBJECT if is_null(schema) else text_of(schema, f"{place}.schema")
    try:
        return OutputSchema(sent.json_schema.name, text)
    except BadAgent as error:
        raise Invalid(f"{place}.schema", error.why) from None


_LONGEST_NAME = 256  # of a model: it is said again in what is answered


class CompletionRequest(Struct, frozen=True, kw_only=True):
    """A request. ``ignored`` names the fields that nobody knows, in order and fit for a header."""

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
    """The request that a body is; with ``strict`` a field that nobody knows is refused.

    Raises `BadRequest` for what is no JSON, `Invalid` for what cannot be, `Unsupported` for what cannot be done here,
    and `TooLarge` for too many messages. None of them repeats what stood in the body, but for names of fields.
    """
    fields = Fields(body)
    model = _model(fields)
    refuse_impossible(fields)
    tools = read_tools(fields)
    stream = bool(fields.take("stream", BOOL))
    streaming = fields.take("stream_options", _STREAM_OPTIONS)
    user, safety_identifier = fields.take("user", TEXT), fields.take("safety_identifier", TEXT)
    asked = CompletionRequest(
        model=model,
        messages=read_messages(fields.take("messages", _MESSAGES), max_messages),
        stream=stream,
        include_usage=stream and streaming is not None and bool(streaming.include_usage),
        tools=tools,
        options=read_options(fields, tools),
        output=read_output(fields),
        reasoning_effort=fields.take("reasoning_effort", _EFFORT),
        user=user or safety_identifier or None,
        metadata=fields.take("metadata", _METADATA) or {},
        store=fields.take("store", BOOL),
        prompt_cache_key=fields.take("prompt_cache_key", TEXT) or None,
        ignored=fields.left,  # the last one here: what nobody has taken
    )
    if strict and asked.ignored:
        raise Invalid(
            ", ".join(asked.ignored), "nobody here knows this; leave it out, or run the server without --strict"
        )
    return asked


def digest_of(body: bytes) -> bytes:
    """What tells one body from another: two with the same digest ask for the same."""
    return hashlib.sha256(body).digest()


class _StreamOptions(Struct):
    include_usage: bool | None = None


_MESSAGES = Decoder(list[SentMessage]).decode
_STREAM_OPTIONS = Decoder(_StreamOptions).decode
_EFFORT = Decoder(Annotated[str, Meta(pattern="^[a-z]{1,32}$")]).decode
_KEY = Annotated[str, Meta(min_length=1, max_length=64)]
_METADATA = Decoder(Annotated[dict[_KEY, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]).decode


def _model(fields: Fields) -> str:
    model = fields.take("model", TEXT)
    if model is None or not model.strip():
        raise Invalid("model", "it is missing; GET /v1/models lists those that there are")
    if len(model) > _LONGEST_NAME:
        raise Invalid("model", f"no name has more than {_LONGEST_NAME} characters")
    return model
