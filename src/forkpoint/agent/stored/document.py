"""A stored agent: its JSON, and the agent that comes back from it.

The JSON is stored with each conversation. In it every callable stands as its import path and the digest of its schema
(`finding`), and each agent that a sub-agent may be as a document of its own. `bind` finds all of it, in this process or
another, or in an agent that is given; whatever is missing or has changed is listed, all of it, before anything runs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from forkpoint.agent.agent import Agent, Limits, Unattended
from forkpoint.agent.approval import policies
from forkpoint.agent.condense.condenser import Condenser, Condenses, Window
from forkpoint.agent.hooks.hook import StoredHook
from forkpoint.agent.mcp import Offered, without_served
from forkpoint.agent.output import OutputSchema
from forkpoint.agent.secrets.secret import Secret
from forkpoint.agent.skills.skill import Skill
from forkpoint.agent.stored.functions import (
    Reference,
    StoredCondenser,
    condenser_reference,
    find_condenser,
    find_hooks,
    find_output,
    find_policies,
    find_tool,
    name_of,
    output_reference,
    policy_reference,
    reference_of,
    schema_reference,
)
from forkpoint.agent.team.offer import DEPTH, MOST, Role, SubAgents
from forkpoint.agent.team.tools import is_team_tool
from forkpoint.agent.tool import Tool
from forkpoint.errors import BadAgent, CannotResume, ForkpointError, Item
from forkpoint.events import JsonText
from forkpoint.llm.model import LLM, as_llm
from forkpoint.llm.prompt.manifest import ToolSchema

StoredPolicy: TypeAlias = Literal["never", "always", "risky"] | Reference
"""A policy in a stored agent: its word, or a function by its path."""

Lender: TypeAlias = Callable[[JsonText], Agent | None]
"""Who lends functions and literal keys to the agent of a document, if anybody does."""


NOTHING = msgspec.Raw()  # the very one: a default is left out by its identity


class ClientTool(Struct, frozen=True, omit_defaults=True):
    """A tool of the client in a stored agent. ``parameters`` is the schema as the very text that it is."""

    name: str
    description: str = ""
    parameters: msgspec.Raw = msgspec.Raw()
    strict: bool = False

    def schema(self) -> ToolSchema:
        """What a model is told of it. Raises `BadTool`."""
        parameters = bytes(self.parameters).decode()
        schema = ToolSchema(self.name, self.description, strict=self.strict)
        return msgspec.structs.replace(schema, parameters=parameters) if parameters else schema


class StoredRole(Struct, frozen=True, omit_defaults=True):
    """A role in a stored agent. Its agent is a document too."""

    description: str = ""
    instructions: str = ""
    agent: msgspec.Raw = NOTHING
    guardian: bool = False


class StoredSubAgents(Struct, frozen=True, omit_defaults=True):
    """The sub-agents of a stored agent."""

    roles: Mapping[str, StoredRole] = {}
    agents: dict[str, msgspec.Raw] = {}
    models: tuple[msgspec.Raw, ...] = ()
    depth: int = DEPTH
    most: int = MOST


class Document(Struct, frozen=True, omit_defaults=True):
    """A stored agent. The tools that come with its sub-agents are not among its tools."""

    llm: msgspec.Raw
    instructions: str = ""
    tools: tuple[Reference, ...] = ()
    output: Reference | None = None
    limits: Limits = Limits()
    approval: StoredPolicy | tuple[StoredPolicy, ...] = "never"
    name: str | None = None
    client_tools: tuple[ClientTool, ...] = ()
    unattended: Unattended = "deny"
    sub_agents: StoredSubAgents | None = None
    mcp: tuple[Offered, ...] = ()  # each server, and what it has offered
    hooks: tuple[StoredHook, ...] = ()
    skills: tuple[Skill, ...] = ()
    condenser: Condenser | Window | StoredCondenser | None = None
    secrets: dict[str, Secret] = {}  # where they are, never what they are


def bind(
    text: JsonText | bytes,
    given: Agent | None = None,
    *,
    same: bool = False,
    lender: Lender = lambda text: None,
    without: Callable[[Item], bool] = lambda item: False,
) -> Agent:
    """The agent of a document, its callables taken from the agent given or imported.

    With ``same`` only those are taken from the agent given that are known to be the ones that are meant; for it may be
    of an earlier day, and what was made stricter since must stay so. The agents that its sub-agents may be are bound
    in the same way, to those of the same names in the agent given, or to what the ``lender`` has for their documents.
    Raises `CannotResume` with everything that is missing or has
    changed, but for what ``without`` says yes to: such a tool or output type is left out, and such a policy asks
    before every call.
    """
    lacking = _Lacking(without)
    bound = _bound(text, given, lender, lacking, same=same)
    if lacking.missing or bound is None:
        raise CannotResume.of(lacking.missing)
    return bound


def document_of(agent: Agent) -> JsonText:
    """The JSON of an agent."""
    output = None
    if agent.output is not None:
        output = output_reference(agent.output, agent.manifest.output or "")
    tools = tuple(reference_of(tool) for tool in _own_tools(agent))
    row = tuple(policy_reference(policy) if callable(policy) else policy for policy in policies(agent.approval))
    return _written(agent, tools, output, row, Agent.to_json)


def portable_document(agent: Agent) -> JsonText:
    """The JSON of an agent as data alone, for a server that has none of its code: the output stands by its schema.

    Raises `BadAgent` for what cannot go there: functions, and a literal key. It is the same with the agents that its
    sub-agents may be.
    """
    if agent.mcp:
        raise BadAgent(
            f"it has MCP servers ({', '.join(one.server.name for one in agent.mcp)}), and those are started where it "
            "runs; leave them out, or name an agent that the server has"
        )
    if names := ", ".join(tool.name for tool in _own_tools(agent)):
        raise BadAgent(
            f"it has Python tools ({names}), and those run where they are defined; leave them out, or name an agent "
            "that the server has"
        )
    row = policies(agent.approval)
    if any(map(callable, row)):
        raise BadAgent(
            "its approval policy is a function, and that runs where it is defined; use never, always or risky, or name "
            "an agent that the server has"
        )
    if agent.secrets:  # and whoever sends one would read files and run commands there
        raise BadAgent(
            f"it has secrets ({', '.join(agent.secrets)}), and those are had where it runs; leave them out, or name an "
            "agent that the server has"
        )
    if agent.hooks:
        raise BadAgent(
            "it has hooks, and those run where they are defined; leave them out, or name an agent of the server"
        )
    if agent.condenser is not None and not isinstance(agent.condenser, Condenser | Window):
        raise BadAgent(
            "its condenser is a Python object, and that runs where it is defined; use a Condenser or a Window, or name "
            "an agent that the server has"
        )
    if any(llm.api_key is not None for llm in _models(agent)):
        raise BadAgent("it has a literal key, and a key is never sent; leave it out, for the server has its own")
    for place, nested in agent.sub_agents.nested() if agent.sub_agents is not None else ():
        try:
            portable_document(nested)
        except BadAgent as error:
            raise BadAgent(f"{place}: {error.why}") from None
    output = None
    if agent.output is not None:
        output = schema_reference(OutputSchema(name_of(agent.output)[:256], agent.manifest.output or ""))
    return _written(agent, (), output, row, portable_document)


def _own_tools(agent: Agent) -> list[Tool]:
    """Those that stand in a document by themselves, and not with its sub-agents or its MCP servers."""
    return [tool for tool in without_served(agent.tools, agent.mcp) if not is_team_tool(tool)]


def _written(
    agent: Agent,
    tools: tuple[Reference, ...],
    output: Reference | None,
    row: tuple[Any, ...],
    nested: Callable[[Agent], JsonText],
) -> JsonText:
    document = Document(
        llm=_raw(agent.llm.to_json()),
        instructions=agent.instructions,
        tools=tools,
        output=output,
        limits=agent.limits,
        approval=row if len(row) > 1 else row[0] if row else "never",
        name=agent.name,
        client_tools=tuple(
            ClientTool(tool.name, tool.description, _raw(tool.parameters), tool.strict) for tool in agent.client_tools
        ),
        unattended=agent.unattended,
        sub_agents=_stored(agent.sub_agents, nested) if agent.sub_agents is not None else None,
        mcp=agent.mcp,
        hooks=tuple(hook.stored() for hook in agent.hooks),
        skills=agent.skills,
        condenser=_stored_condenser(agent.condenser),
        secrets=dict(agent.secrets),
    )
    return msgspec.json.encode(document).decode()


def _stored(team: SubAgents, nested: Callable[[Agent], JsonText]) -> StoredSubAgents:
    roles = {
        name: StoredRole(
            role.description,
            role.instructions,
            _raw(nested(role.agent)) if role.agent is not None else NOTHING,
            role.guardian,
        )
        for name, role in team.roles.items()
    }
    agents = {name: _raw(nested(agent)) for name, agent in team.agents.items()}
    return StoredSubAgents(roles, agents, tuple(_raw(llm.to_json()) for llm in team.models), team.depth, team.most)


def _raw(text: JsonText) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


class _Lacking:
    """What is not here as it was: what keeps an agent from coming back, and whether anything is left out of it."""

    def __init__(self, without: Callable[[Item], bool]) -> None:
        self.without = without
        self.missing: list[Item] = []
        self.left_out = False

    def add(self, found: Iterable[Item]) -> None:
        for item in found:
            if self.without(item):
                self.left_out = True
            else:
                self.missing.append(item)


def _bound(
    text: JsonText | bytes, given: Agent | None, lender: Lender, lacking: _Lacking, *, same: bool
) -> Agent | None:
    """The agent of a document. What it lacks is noted, and if that is anything there may be no agent."""
    try:
        document = msgspec.json.decode(text, type=Document)
        llm = LLM.from_json(bytes(document.llm))
    except (msgspec.DecodeError, UnicodeError, RecursionError, ForkpointError) as error:
        lacking.add([Item("agent", "", f"cannot be read ({error})")])
        return None
    missing: list[Item] = []
    tools = [find_tool(reference, given, missing, same=same) for reference in document.tools]
    output = find_output(document.output, given, missing)
    stored = document.approval if isinstance(document.approval, tuple) else (document.approval,)
    row = find_policies(stored, given, missing, same=same)
    hooks = find_hooks(document.hooks, given, missing)
    condenser = find_condenser(document.condenser, given, missing, same=same)
    if len(hooks) < len(document.hooks):
        row = (*row, "always")  # if anybody goes on without a hook, nothing runs unasked
    lacking.add(missing)
    team = _bound_team(document.sub_agents, given, lender, lacking, same=same)
    if lacking.missing:
        return None
    try:
        bound = Agent(
            _with_key(llm, _models(given)),
            instructions=document.instructions,
            tools=[tool for tool in tools if tool is not None],
            output=output,
            limits=document.limits,
            approval=row,
            name=document.name,
            client_tools=[tool.schema() for tool in document.client_tools],
            unattended=document.unattended,
            sub_agents=SubAgents(**team) if team is not None else None,
            mcp=document.mcp,
            hooks=hooks,
            skills=document.skills,
            condenser=_with_its_key(condenser, given),
            secrets=document.secrets,
        )
    except ForkpointError as error:
        lacking.add([Item("agent", "", f"cannot be made again ({error})")])
        return None
    # With something left out it is another agent, which goes on where the document's has stood.
    known_as = "_instead_of" if lacking.left_out else "_document"
    object.__setattr__(bound, known_as, text if isinstance(text, str) else text.decode())
    return bound


def _bound_team(
    stored: StoredSubAgents | None, given: Agent | None, lender: Lender, lacking: _Lacking, *, same: bool
) -> dict[str, Any] | None:
    """What its sub-agents are made of. An agent that lacks something is not among them."""
    if stored is None:
        return None
    team = given.sub_agents if given is not None and given.sub_agents is not None else SubAgents()

    def nested(name: str, text: msgspec.Raw, own: Agent | None) -> Agent | None:
        document = bytes(text).decode()
        within = _Lacking(lacking.without)
        bound = _bound(document, own or lender(document), lender, within, same=same)
        lacking.add(Item("agent", name, str(one).removeprefix("its agent ")) for one in within.missing)
        lacking.left_out |= within.left_out
        return bound

    def model(text: msgspec.Raw) -> LLM:
        llm = LLM.from_json(bytes(text))
        lends = lender(msgspec.json.encode(Document(text)).decode())
        return _with_key(llm, (*_models(given), *_models(lends)))

    roles: dict[str, Role] = {}
    agents: dict[str, Agent] = {}
    models: list[LLM] = []
    try:
        for name, role in stored.roles.items():
            agent = None
            if bytes(role.agent):
                agent = nested(name, role.agent, team.roles[name].agent if name in team.roles else None)
                if agent is None:
                    continue
            roles[name] = Role(role.description, role.instructions, agent, role.guardian)
        for name, text in stored.agents.items():
            agent = nested(name, text, team.agents.get(name))
            if agent is not None:
                agents[name] = agent
        models = [model(text) for text in stored.models]
    except ForkpointError as error:
        lacking.add([Item("agent", "", f"cannot be made again ({error})")])
    return {"roles": roles, "agents": agents, "models": models, "depth": stored.depth, "most": stored.most}


def _models(agent: Agent | None) -> Iterator[LLM]:
    """The models that an agent itself names: its own, then those of its sub-agents."""
    if agent is not None:
        yield agent.llm
        if isinstance(agent.condenser, Condenser) and agent.condenser.llm is not None:
            yield agent.condenser.model(agent.llm)
        yield from agent.sub_agents.models if agent.sub_agents is not None else ()


def _stored_condenser(condenser: Condenses | None) -> Condenser | Window | StoredCondenser | None:
    """The condenser as it is stored: a literal key is in no document."""
    if condenser is not None and not isinstance(condenser, Condenser | Window):
        return condenser_reference(condenser)
    if not isinstance(condenser, Condenser) or not isinstance(condenser.llm, LLM):
        return condenser
    return msgspec.structs.replace(condenser, llm=LLM.from_json(condenser.llm.to_json()))


def _with_its_key(condenser: Condenses | None, given: Agent | None) -> Condenses | None:
    if not isinstance(condenser, Condenser) or condenser.llm is None:
        return condenser
    return msgspec.structs.replace(condenser, llm=_with_key(as_llm(condenser.llm), _models(given)))


def _with_key(llm: LLM, lent: Iterable[LLM]) -> LLM:
    """The model with a literal key that is lent to it, for a literal key is in no document.

    Only for the same model of the same server: the key of one company is not shown to another.
    """
    if llm.api_key_env is not None:
        return llm
    keeper = next((one for one in lent if (one.model, one.base_url) == (llm.model, llm.base_url)), None)
    return llm if keeper is None else llm.replace(api_key=keeper.api_key)
