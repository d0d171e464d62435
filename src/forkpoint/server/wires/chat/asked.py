"""What a chat completion asks for: the body of a request, read once and checked whole."""

import hashlib
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.json import Decoder

from forkpoint.agent.output import OutputSchema
from forkpoint.errors import Invalid
from forkpoint.llm.options import Options
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.server.wires.chat.fields import Fields
from forkpoint.server.wires.chat.heard import Heard, read_messages
from forkpoint.server.wires.chat.wanted import BOOL, TEXT, read_options, read_output, read_tools, refuse_impossible

_LONGEST_NAME = 256  # of a model: it is said again in what is answered


class Asked(Struct, frozen=True, kw_only=True):
    """A request. ``ignored`` names the fields that nobody knows, in order and fit for a header."""

    model: str
    messages: tuple[Heard, ...]
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


def read_request(body: bytes, *, strict: bool, max_messages: int = 10_000) -> Asked:
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
    asked = Asked(
        model=model,
        messages=read_messages(fields, max_messages),
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
