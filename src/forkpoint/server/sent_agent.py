"""An agent that a client sends: data only, for a model that the server offers.

A client says how a model is asked. Where the model is, whose key pays and what it costs is the server's to say.
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from msgspec import Struct

from forkpoint.agent.agent import Agent
from forkpoint.agent.binding import ClientTool, Document, Reference
from forkpoint.agent.output import OutputSchema
from forkpoint.errors import BadAgent, BadDocument, BadSetting, ForkpointError
from forkpoint.llm.model import LLM, Retries, Timeouts

SIZE = 256 * 1024
"""Bytes that an agent's document may have."""

ATTEMPTS = 10
"""How often a client may let a call be tried."""

CLIENT_TOOLS = 128
"""Tools of its own that a client's agent may have."""

SERVERS = (
    "base_url",
    "api_key_env",
    "headers",
    "provider",
    "session_headers",
    "extra",
    "cache_salt",
    "context_tokens",
)
"""Settings of a model that are the server's."""


class Offer(Struct, frozen=True):
    """What a server has to offer: its agents, which of them is the default, and patterns of further models."""

    agents: Mapping[str, Agent]
    default: str
    patterns: tuple[str, ...] = ()


class _SentTool(ClientTool, frozen=True, forbid_unknown_fields=True):
    """A client's tool in such a document."""


class _Sent(Document, frozen=True, forbid_unknown_fields=True):
    """A document in which everything must mean something."""

    client_tools: tuple[_SentTool, ...] = ()


def received(text: bytes | str, offer: Offer) -> Agent | str:
    """The agent of a JSON text, or the name of one if that is all it is. Raises `BadAgent`."""
    try:
        size = len(text.encode() if isinstance(text, str) else text)
    except UnicodeEncodeError:
        raise BadAgent("its document is not valid Unicode") from None
    if size > SIZE:
        raise BadAgent(f"its document has {size:,} bytes, and the limit is {SIZE:,}; make it shorter")
    sent = _read(text)
    if isinstance(sent, str):
        return sent
    if sent.tools:
        raise BadAgent(
            "it has tools, and Python tools run where they are defined; leave them out, name an agent that this "
            "server has, or send the schemas of tools that you run yourself as client_tools"
        )
    if isinstance(sent.approval, Reference):
        raise BadAgent("its approval policy is a function; use never, always or risky")
    if len(sent.client_tools) > CLIENT_TOOLS:
        raise BadAgent(f"it has {len(sent.client_tools):,} client_tools, and the limit is {CLIENT_TOOLS}")
    try:
        return Agent(
            _llm(sent, offer),
            instructions=sent.instructions,
            output=_output(sent.output),
            limits=sent.limits,
            approval=sent.approval,
            name=sent.name,
            client_tools=[tool.schema() for tool in sent.client_tools],
            unattended=sent.unattended,
        )
    except BadAgent:
        raise
    except BadDocument as error:
        raise BadAgent(f"its llm cannot be read ({error.why})") from None
    except BadSetting as error:
        raise BadAgent(f"{error.setting} of its model cannot be set like this: {error.why}") from None
    except ForkpointError as error:
        raise BadAgent(str(error)) from None


def _read(text: bytes | str) -> _Sent | str:
    try:
        return msgspec.json.decode(text, type=_Sent | str)
    except BadAgent:
        raise
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadAgent(
            f"its document cannot be read ({error}); send an agent's name, or an object with llm, and perhaps "
            "instructions, output, limits, approval, name, client_tools and unattended"
        ) from None


def _output(reference: Reference | None) -> OutputSchema | None:
    if reference is None:
        return None
    schema = bytes(reference.schema).decode()
    if reference.path is not None or not schema:
        raise BadAgent("its output type stands by an import path or by its name alone; send its JSON schema instead")
    return OutputSchema(reference.name, schema)


def _llm(sent: _Sent, offer: Offer) -> LLM:
    """The model as the client asks it, where the server has it."""
    fields = _fields(sent.llm)
    model = fields.get("model")
    if not isinstance(model, str):
        raise BadAgent("its llm names no model")
    wrong: list[str] = []
    for own in _candidates(model, sent.name, offer):
        servers = _servers(own)
        wrong = [name for name in fields if name in servers and fields[name] != servers[name]]
        if not wrong:
            break
    else:
        if wrong:
            raise BadAgent(f"its llm has {', '.join(wrong)}, and that is for this server to say; leave it out")
        offered = f"use one of {_offered(offer)}, or name an agent of this server"
        raise BadAgent(f"its model {model[:200]!r} is not offered here; {offered}")
    if fields.get("api") is None:
        fields["api"] = own.api
    made = LLM.from_json(msgspec.json.encode(fields | servers))
    timeouts = _capped(made.timeouts, own.timeouts.total) if "timeouts" in fields else own.timeouts
    retries = _fewer(made.retries, own.retries.longest) if "retries" in fields else own.retries
    given = {name: getattr(own, name) for name in servers}  # the very values: what is a default stays out of documents
    return msgspec.structs.replace(made, **given, timeouts=timeouts, retries=retries, api_key=own.api_key)


def _fields(raw: msgspec.Raw) -> dict[str, Any]:
    """What a client says of its model. A text is the model's name."""
    try:
        said = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        said = None
    if isinstance(said, str):
        return {"model": said}
    if not isinstance(said, dict):
        raise BadAgent("its llm must be a model's name, or an object with model")
    if unknown := sorted(said.keys() - set(LLM.__struct_fields__)):
        raise BadAgent(f"its llm has no setting {unknown[0][:100]!r}; leave it out")
    if "api_key" in said:
        raise BadAgent("its llm has a literal key, and a key is never sent; leave it out, for the server has its own")
    return said


def _candidates(model: str, name: str | None, offer: Offer) -> Iterator[LLM]:
    """The server's own ways to ask a model: that of the agent of this name first, then the default's, then others'."""
    first = [offer.agents[one] for one in (name, offer.default) if one in offer.agents and one is not None]
    for agent in (*first, *offer.agents.values()):
        if agent.llm.model == model:
            yield agent.llm
    if any(fnmatchcase(model, pattern) for pattern in offer.patterns) and not _is_path(model):
        yield LLM(model)


def _is_path(model: str) -> bool:
    """Whether a model's name leads to a file, which only the operator may choose."""
    kind, _, name = model.partition("/")
    return (kind == "local" and name != "smollm2") or (kind == "scripted" and ("/" in name or name.endswith(".json")))


def _offered(offer: Offer) -> str:
    models = dict.fromkeys([agent.llm.model for agent in offer.agents.values()] + list(offer.patterns))
    shown = [model for model in models if not _is_path(model)]
    return ", ".join(shown[:20]) or "those of its agents"


def _servers(own: LLM) -> dict[str, Any]:
    """What the server itself says of a model, as JSON has it. A price is the client's where the server has none."""
    names = SERVERS if own.price is None else (*SERVERS, "price")
    return {name: msgspec.json.decode(msgspec.json.encode(getattr(own, name))) for name in names}


def _capped(timeouts: Timeouts, longest: float) -> Timeouts:
    return Timeouts(**{name: min(value, longest) for name, value in msgspec.structs.asdict(timeouts).items()})


def _fewer(retries: Retries, longest: float) -> Retries:
    return Retries(min(retries.attempts, ATTEMPTS), min(retries.wait, longest), min(retries.longest, longest))
