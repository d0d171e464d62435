"""What a client wants besides an answer to its messages: tools, a way to be answered, a form.

Values that change nothing always pass. What would change the shape of the answer and cannot be done is refused by name.
"""

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Raw, Struct
from msgspec.json import Decoder

from forkpoint.agent.output import OutputSchema
from forkpoint.errors import BadAgent, BadSetting, BadTool, Invalid, Unsupported
from forkpoint.events import JsonText
from forkpoint.llm.options import Options
from forkpoint.llm.prompt.manifest import PLAIN_NAME, ToolSchema
from forkpoint.server.wires.chat.fields import Fields, is_null, text_of

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
