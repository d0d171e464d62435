"""An agent that a client sends: data only, for a model that the server offers.

A client says how a model is asked. Where the model is, whose key pays and what it costs is the server's to say.
Tests: tests/server/test_agents.py.
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from msgspec import Struct

from forkpoint.agent.agent import Agent
from forkpoint.agent.condense.condenser import Condenser
from forkpoint.agent.output import OutputSchema
from forkpoint.agent.stored.document import ClientTool, Document, StoredRole, StoredSubAgents
from forkpoint.agent.stored.functions import Reference, StoredCondenser
from forkpoint.agent.team.offer import Role, SubAgents
from forkpoint.errors import BadAgent, BadSetting, ForkpointError
from forkpoint.llm.model import LLM, Retries, Timeouts

SIZE = 256 * 1024
"""Bytes that an agent's document may have."""

ATTEMPTS = 10
"""How often a client may let a call be tried."""

CLIENT_TOOLS = 128
"""Tools of its own that a client's agent may have."""

SKILLS, SKILL_TRIGGERS = 64, 1000
"""Skills that a client's agent may have, and words and patterns that call for them, of all together."""

TEAM = 64
"""Roles, agents and models that a client's agent may have for its sub-agents, with those of the agents in it."""

TEAM_DEPTH, TEAM_MOST = 8, 64
"""How deep the sub-agents of a client's agent may go, and how many of a conversation may be open at once."""

SERVERS = ("base_url", "api_key_env", "headers", "provider", "session_headers", "extra", "cache_salt", "context_tokens")
"""Settings of a model that are the server's."""


class ServerOffer(Struct, frozen=True):
    """What a server has to offer: its agents, which of them is the default, and patterns of further models."""

    agents: Mapping[str, Agent]
    default: str
    patterns: tuple[str, ...] = ()


class _SentTool(ClientTool, frozen=True, forbid_unknown_fields=True):
    """A client's tool in such a document."""


class _SentRole(StoredRole, frozen=True, forbid_unknown_fields=True):
    """A role in such a document."""


class _SentTeam(StoredSubAgents, frozen=True, forbid_unknown_fields=True):
    """The sub-agents of such a document."""

    roles: Mapping[str, _SentRole] = {}


class _SentDocument(Document, frozen=True, forbid_unknown_fields=True):
    """A document in which everything must mean something."""

    client_tools: tuple[_SentTool, ...] = ()
    sub_agents: _SentTeam | None = None


def received(text: bytes | str, offer: ServerOffer) -> Agent | str:
    """The agent in a JSON text, or its name if the text is only a name. Raises `BadAgent`."""
    try:
        size = len(text.encode() if isinstance(text, str) else text)
    except UnicodeEncodeError:
        raise BadAgent("its document is not valid Unicode") from None
    if size > SIZE:
        raise BadAgent(f"its document has {size:,} bytes, and the limit is {SIZE:,}; make it shorter")
    return _received(text, offer, [TEAM])


def _received(text: bytes | str, offer: ServerOffer, left: list[int]) -> Agent | str:
    """The agent in a text, which may be part of another agent. Counts down how many sub-agents are ``left``."""
    sent = _read(text)
    if isinstance(sent, str):
        return sent
    if sent.tools:
        raise BadAgent(
            "it has tools, and Python tools run where they are defined; leave them out, name an agent that this "
            "server has, or send the schemas of tools that you run yourself as client_tools"
        )
    for found, what in (  # with these a client would run commands, read files and reach addresses from here
        (sent.hooks, "hooks, and those run where they are defined"),
        (sent.secrets, "secrets, and those are had where it runs"),
        (sent.mcp, "MCP servers, and those are started where it runs"),
    ):
        if found:
            raise BadAgent(f"it has {what}; leave them out, or name an agent of the server")
    if isinstance(sent.condenser, StoredCondenser):  # whoever sends one would import what they name
        raise BadAgent(
            "its condenser is a Python object, and that runs where it is defined; use a Condenser or a Window, or name "
            "an agent that this server has"
        )
    if isinstance(sent.condenser, Condenser) and sent.condenser.llm is not None:  # it would be asked with our keys
        raise BadAgent("its condenser names a model; leave that out, and the agent's own is asked")
    row = sent.approval if isinstance(sent.approval, tuple) else (sent.approval,)
    if any(isinstance(policy, Reference) for policy in row):
        raise BadAgent("its approval policy is a function; use never, always or risky")
    if len(sent.client_tools) > CLIENT_TOOLS:
        raise BadAgent(f"it has {len(sent.client_tools):,} client_tools, and the limit is {CLIENT_TOOLS}")
    if len(sent.skills) > SKILLS:
        raise BadAgent(f"it has {len(sent.skills):,} skills, and the limit is {SKILLS}")
    if (triggers := sum(len(one.triggers) + len(one.files) for one in sent.skills)) > SKILL_TRIGGERS:
        raise BadAgent(f"its skills have {triggers:,} words and patterns, and the limit is {SKILL_TRIGGERS:,}")
    try:
        return Agent(
            _llm(sent.llm, sent.name, offer),
            instructions=sent.instructions,
            output=_output(sent.output),
            limits=sent.limits,
            approval=tuple(policy for policy in row if not isinstance(policy, Reference)),
            name=sent.name,
            client_tools=[tool.schema() for tool in sent.client_tools],
            unattended=sent.unattended,
            sub_agents=_team(sent.sub_agents, offer, left) if sent.sub_agents is not None else None,
            skills=sent.skills,
            condenser=sent.condenser,
        )
    except BadAgent:
        raise
    except BadSetting as error:
        if BadSetting.bad_document.made(error):
            raise BadAgent(f"its llm cannot be read ({error.why})") from None
        raise BadAgent(f"{error.setting} of its model cannot be set like this: {error.why}") from None
    except ForkpointError as error:
        raise BadAgent(str(error)) from None


def _team(sent: _SentTeam, offer: ServerOffer, left: list[int]) -> SubAgents:
    """Its sub-agents: the same holds for the agents and models in it as for itself."""
    left[0] -= len(sent.roles) + len(sent.agents) + len(sent.models)
    if left[0] < 0:
        raise BadAgent(f"it has more than {TEAM} roles, agents and models for its sub-agents, and that is the limit")
    for name, value, most in (("depth", sent.depth, TEAM_DEPTH), ("most", sent.most, TEAM_MOST)):
        if value > most:
            raise BadAgent(f"the {name} of its sub_agents is {value:,}, and the limit is {most}")
    roles = {
        name: Role(
            role.description,
            role.instructions,
            _nested(f"role {name}", role.agent, offer, left) if bytes(role.agent) else None,
            role.guardian,
        )
        for name, role in sent.roles.items()
    }
    agents = {name: _nested(f"agent {name}", text, offer, left) for name, text in sent.agents.items()}
    models = [_llm(text, None, offer) for text in sent.models]
    return SubAgents(roles=roles, agents=agents, models=models, depth=sent.depth, most=sent.most)


def _nested(place: str, text: msgspec.Raw, offer: ServerOffer, left: list[int]) -> Agent:
    """An agent in a client's agent: data of the client's, or one of the server's by its name."""
    try:
        found = _received(bytes(text), offer, left)
    except BadAgent as error:
        raise BadAgent(f"{place[:200]}: {error.why}") from None
    if isinstance(found, Agent):
        return found
    if found not in offer.agents:
        raise BadAgent(f"{place[:200]}: there is no agent {found[:200]!r} on this server")
    return offer.agents[found]


def _read(text: bytes | str) -> _SentDocument | str:
    try:
        return msgspec.json.decode(text, type=_SentDocument | str)
    except BadAgent:
        raise
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadAgent(
            f"its document cannot be read ({error}); send an agent's name, or an object with llm, and perhaps "
            "instructions, output, limits, approval, name, client_tools, unattended, sub_agents, skills and condenser"
        ) from None


def _output(reference: Reference | None) -> OutputSchema | None:
    if reference is None:
        return None
    schema = bytes(reference.schema).decode()
    if reference.path is not None or not schema:
        raise BadAgent("its output type stands by an import path or by its name alone; send its JSON schema instead")
    return OutputSchema(reference.name, schema)


def _llm(sent: msgspec.Raw, name: str | None, offer: ServerOffer) -> LLM:
    """The model as the client asks it, where the server has it: that of its agent of this name, if it fits."""
    fields = _fields(sent)
    model = fields.get("model")
    if not isinstance(model, str):
        raise BadAgent("its llm names no model")
    wrong: list[str] = []
    for own in _candidates(model, name, offer):
        servers = _servers(own)
        wrong = [field for field in fields if field in servers and fields[field] != servers[field]]
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
    given = {
        field: getattr(own, field) for field in servers
    }  # the very values: what is a default stays out of documents
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


def _candidates(model: str, name: str | None, offer: ServerOffer) -> Iterator[LLM]:
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


def _offered(offer: ServerOffer) -> str:
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
