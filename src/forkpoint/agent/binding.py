"""A stored agent: its JSON, and how its callables are found again.

The JSON is stored with each conversation. In it every callable stands as its import path and the digest of its schema.
`bind` finds them, in this process or another, or in an agent that is given; whatever is missing or has changed is
listed, all of it, before anything runs.
"""

import functools
import hashlib
import importlib
from typing import Any, Literal

import msgspec
from msgspec import Struct

from forkpoint.agent.agent import Agent, Limits, Unattended, output_schema
from forkpoint.agent.output import OutputSchema
from forkpoint.agent.tool import Tool, as_tool, path_of
from forkpoint.errors import BadAgent, CannotResume, ForkpointError
from forkpoint.events import JsonText
from forkpoint.llm.manifest import ToolSchema
from forkpoint.llm.model import LLM

_NOWHERE: Any = object()  # None may well stand at a path


class Reference(Struct, frozen=True, omit_defaults=True):
    """A callable or a type in a stored agent. Without a path it can only come from an agent that is given.

    An output that is an `OutputSchema` has its schema here, as the very text that it is, and needs no path.
    """

    name: str
    path: str | None = None
    digest: str = ""
    risky: bool = False
    repeatable: bool = False
    schema: msgspec.Raw = msgspec.Raw()


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


class Document(Struct, frozen=True, omit_defaults=True):
    """A stored agent."""

    llm: msgspec.Raw
    instructions: str = ""
    tools: tuple[Reference, ...] = ()
    output: Reference | None = None
    limits: Limits = Limits()
    approval: Literal["never", "always", "risky"] | Reference = "never"
    name: str | None = None
    client_tools: tuple[ClientTool, ...] = ()
    unattended: Unattended = "deny"


def bind(text: JsonText | bytes, given: Agent | None = None, *, same: bool = False) -> Agent:
    """The agent of a document, its callables taken from the agent given or imported.

    With ``same`` only those are taken from the agent given that are known to be the ones that are meant; for it may be
    of an earlier day, and what was made stricter since must stay so. Raises `CannotResume` with everything that is
    missing or has changed.
    """
    try:
        document = msgspec.json.decode(text, type=Document)
        llm = LLM.from_json(bytes(document.llm))
    except (msgspec.DecodeError, UnicodeError, RecursionError, ForkpointError) as error:
        raise CannotResume(f"its agent cannot be read ({error})") from None
    missing: list[str] = []
    tools = [_bound_tool(reference, given, missing, same) for reference in document.tools]
    output = _bound_output(document.output, given, missing)
    approval: Any = document.approval
    if isinstance(approval, Reference):
        approval = _bound_approval(approval, given, missing, same)
    if missing:
        raise CannotResume("; ".join(missing))
    try:
        bound = Agent(
            _with_key(llm, given),
            instructions=document.instructions,
            tools=[tool for tool in tools if tool is not None],
            output=output,
            limits=document.limits,
            approval=approval,
            name=document.name,
            client_tools=[tool.schema() for tool in document.client_tools],
            unattended=document.unattended,
        )
    except ForkpointError as error:
        raise CannotResume(f"its agent cannot be made again ({error})") from None
    object.__setattr__(bound, "_document", text if isinstance(text, str) else text.decode())
    return bound


def _with_key(llm: LLM, given: Agent | None) -> LLM:
    """The model with the literal key of the agent given, for a literal key is in no document.

    Only for the same model of the same server: the key of one company is not shown to another.
    """
    if given is None or given.llm.api_key is None or llm.api_key_env is not None:
        return llm
    if (given.llm.model, given.llm.base_url) != (llm.model, llm.base_url):
        return llm
    return msgspec.structs.replace(llm, api_key=given.llm.api_key)


def document_of(agent: Agent) -> JsonText:
    """The JSON of an agent."""
    approval: Any = agent.approval
    if callable(approval):
        approval = Reference(getattr(approval, "__name__", "approval"), path_of(approval))
    output = None
    if isinstance(agent.output, OutputSchema):
        output = _by_schema(agent.output)
    elif agent.output is not None:
        output = Reference(_name_of(agent.output), path_of(agent.output), _digest(agent.manifest.output or ""))
    return _written(agent, tuple(map(_reference, agent.tools)), output, approval)


def portable_document(agent: Agent) -> JsonText:
    """The JSON of an agent as data alone, for a server that has none of its code: the output stands by its schema.

    Raises `BadAgent` for what cannot go there: functions, and a literal key.
    """
    if agent.tools:
        names = ", ".join(tool.name for tool in agent.tools)
        raise BadAgent(
            f"it has Python tools ({names}), and those run where they are defined; leave them out, or name an agent "
            "that the server has"
        )
    approval: Any = agent.approval
    if callable(approval):
        raise BadAgent(
            "its approval policy is a function, and that runs where it is defined; use never, always or risky, or name "
            "an agent that the server has"
        )
    if agent.llm.api_key is not None:
        raise BadAgent("it has a literal key, and a key is never sent; leave it out, for the server has its own")
    output = None
    if agent.output is not None:
        output = _by_schema(OutputSchema(_name_of(agent.output)[:256], agent.manifest.output or ""))
    return _written(agent, (), output, approval)


def _written(agent: Agent, tools: tuple[Reference, ...], output: Reference | None, approval: Any) -> JsonText:
    document = Document(
        llm=msgspec.Raw(agent.llm.to_json().encode()),
        instructions=agent.instructions,
        tools=tools,
        output=output,
        limits=agent.limits,
        approval=approval,
        name=agent.name,
        client_tools=tuple(map(_client_tool, agent.client_tools)),
        unattended=agent.unattended,
    )
    return msgspec.json.encode(document).decode()


def _by_schema(output: OutputSchema) -> Reference:
    return Reference(output.name, digest=_digest(output.schema), schema=msgspec.Raw(output.schema.encode()))


def _name_of(output: Any) -> str:
    if isinstance(output, OutputSchema):
        return output.name
    return str(getattr(output, "__name__", output))


def _client_tool(tool: ToolSchema) -> ClientTool:
    return ClientTool(tool.name, tool.description, msgspec.Raw(tool.parameters.encode()), tool.strict)


def _reference(tool: Tool) -> Reference:
    return Reference(tool.name, tool.path, tool.digest, tool.risky, tool.repeatable)


def _bound_tool(reference: Reference, given: Agent | None, missing: list[str], same: bool) -> Tool | None:
    found = given.tool(reference.name) if given is not None else None
    if found is not None and same and _reference(found) != reference:
        found = None
    if found is None:
        value = _imported(reference, f"tool {reference.name}", missing)
        if value is _NOWHERE:
            return None
        try:
            found = as_tool(value)
        except ForkpointError as error:
            missing.append(f"tool {reference.name}: {error}")
            return None
    if found.name != reference.name:
        missing.append(f"tool {reference.name}: at {reference.path} is a tool {found.name} now")
        return None
    if found.digest != reference.digest:
        missing.append(f"tool {reference.name}: its arguments have changed")
        return None
    for what in ("risky", "repeatable"):
        if getattr(found, what) != getattr(reference, what):
            stored = "" if getattr(reference, what) else "not "
            missing.append(f"tool {reference.name}: it was {stored}{what}, and that has changed")
            return None
    return found


def _bound_output(reference: Reference | None, given: Agent | None, missing: list[str]) -> Any:
    if reference is None:
        return None
    found = given.output if given is not None and given.output is not None else None
    if schema := bytes(reference.schema).decode():
        return _bound_schema(reference, schema, found, missing)
    if found is None:
        found = _imported(reference, f"output {reference.name}", missing)
    if found is _NOWHERE:
        return None
    try:
        schema = output_schema(found) or ""
    except ForkpointError as error:
        missing.append(f"output {reference.name}: {error}")
        return None
    if _digest(schema) != reference.digest:
        missing.append(f"output {reference.name}: its fields have changed")
    return found


def _bound_schema(reference: Reference, schema: JsonText, given: Any, missing: list[str]) -> Any:
    """The type of the agent given if its schema is this very one, or else the schema itself."""
    digest = _digest(schema)
    if reference.digest and reference.digest != digest:
        missing.append(f"output {reference.name}: its schema is not the one that was stored")
        return None
    if given is not None and _digest(output_schema(given) or "") == digest:
        return given
    try:
        return OutputSchema(reference.name, schema)
    except ForkpointError as error:
        missing.append(f"output {reference.name}: {error}")
        return None


def _bound_approval(reference: Reference, given: Agent | None, missing: list[str], same: bool) -> Any:
    if given is not None and callable(given.approval):
        path = path_of(given.approval)
        if not same or (path is not None and path == reference.path):
            return given.approval
    found = _imported(reference, f"approval policy {reference.name}", missing)
    if found is not _NOWHERE and not callable(found):
        missing.append(f"approval policy {reference.name}: at {reference.path} is no function now")
    return found


def _imported(reference: Reference, what: str, missing: list[str]) -> Any:
    """What stands at a path; `_NOWHERE`, and a word on why, if nothing does."""
    if reference.path is None:
        missing.append(f"{what}: it has no import path")
        return _NOWHERE
    module, _, names = reference.path.partition(":")
    try:
        return functools.reduce(getattr, names.split("."), importlib.import_module(module))
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        missing.append(f"{what}: {reference.path} cannot be imported ({type(error).__name__}: {error})")
        return _NOWHERE


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
