"""`Agent`: a model, instructions, tools and limits. Frozen data: it holds nothing of any conversation."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from forkpoint.agent.approval import Approval, approval_of, why_asked
from forkpoint.agent.arguments import json_schema
from forkpoint.agent.condense.condenser import Condenser, Condenses, is_condenser
from forkpoint.agent.hooks.hook import Hook, hooks_of
from forkpoint.agent.mcp import McpServer, Offered, mcp_tools, names_for, offered_of, without_served
from forkpoint.agent.output import OutputSchema, as_output
from forkpoint.agent.secrets.secret import Secret, Secrets, secrets_of
from forkpoint.agent.secrets.withheld import withhold
from forkpoint.agent.skills.skill import Skill, skills_of
from forkpoint.agent.team.offer import SubAgents, check_free, sub_agents_of, with_team
from forkpoint.agent.tool import Tool, as_tool
from forkpoint.errors import BadAgent, BadTool
from forkpoint.events import JsonText, ToolCall
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.manifest import Manifest, ToolSchema, is_text, manifest_of
from forkpoint.parameters import Words, checked
from forkpoint.workspace.models.names import as_model

Unattended: TypeAlias = Literal["deny", "run"]
"""What becomes of a call that would wait for an approval where nobody can be asked."""


AtLimit: TypeAlias = Literal["fail", "stop"]
"""How a turn ends at a limit: as failed, to be resumed with a higher one, or committed as far as it has come."""


class Limits(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where a turn ends: model calls, tokens in and out, dollars, seconds, and how often the very same call (tool and
    arguments) may be asked for in a row. None is no limit. ``at_limit`` says how it ends there."""

    steps: int | None = 100
    tokens: int | None = None
    dollars: float | None = None
    seconds: float | None = None
    repeats: int | None = None  # whoever waits for something may well ask the same again and again
    at_limit: AtLimit = "fail"

    def __post_init__(self) -> None:
        if self.at_limit not in ("fail", "stop"):
            raise BadAgent(f"what it does at a limit is {self.at_limit!r}, and must be fail or stop")
        for name in NUMBERS:
            value = getattr(self, name)
            kinds = (int,) if name in {"steps", "tokens", "repeats"} else (int, float)
            if value is not None and type(value) not in kinds:
                raise BadAgent(f"its limit of {name} must be a number, and whole for steps, tokens and repeats")
            if value is not None and not 0 < value <= _LARGEST:
                raise BadAgent(f"its limit of {name} must be more than 0, and at most {_LARGEST:,}; None is no limit")


_LARGEST = 10**15  # of a limit

NUMBERS = ("steps", "tokens", "dollars", "seconds", "repeats")
"""The limits among the fields of `Limits`."""


def _refused(_: str, name: str, value: Any, why: str) -> BadAgent:
    """An argument that does not fit. Its value is not shown: it may be a secret."""
    return BadAgent(f"its {name} cannot be of the class {type(value).__name__}: {why}")


@dataclass(frozen=True, init=False)
class Agent:
    """Who answers. ``Agent("openai/gpt-5.6")`` is enough.

    - ``llm``: a model's name or an `LLM`. A name without a slash is one of ``[models.NAME]`` in the user's settings.
    - ``instructions``: what stands before every conversation.
    - ``tools``: functions, or what `tool` made of them.
    - ``output``: a type that the answer is to have: a dataclass, a msgspec Struct, a pydantic model, a TypedDict, an
      Enum, ``int``, ``list[Item]``, a union; or a JSON schema, as a dict or an `OutputSchema`.
    - ``limits``: where a turn ends.
    - ``approval``: ``never``, ``always``, ``risky``, or a function of the call and the tool; or a tuple of those, and
      then a call waits if any of them asks.
    - ``name``: how people call it.
    - ``client_tools``: tools that run where the client is: schemas alone. A model's call of one ends the turn, and the
      client answers it with the next. They are never approved here, for nothing runs here.
    - ``unattended``: what becomes of a call that the policy would ask about, where nobody can be asked: ``deny``, with
      the reason recorded and told to the model, or ``run``.
    - ``sub_agents``: whom it may give tasks to; True is itself alone. Its tools then have those for that.
    - ``mcp``: MCP servers whose tools it has. What they offer is asked for by a conversation's first turn, and kept.
    - ``hooks``: what runs before and after its tools, and at the start and the end of its turns.
    - ``skills``: what it is told when it comes to it, beside those of its user and of a trusted project.
    - ``condenser``: what its prompts forget when they grow too long: a `Condenser`, a `Window`, or what has their
      methods (`Condenses`).
    - ``secrets``: where values are that nobody may read, by name: a `Secret` each. Tools that name one are given it.
    """

    llm: LLM
    instructions: str
    tools: tuple[Tool, ...]
    output: Any
    limits: Limits
    approval: Approval
    name: str | None
    client_tools: tuple[ToolSchema, ...]
    unattended: Unattended
    sub_agents: SubAgents | None
    mcp: tuple[Offered, ...]
    hooks: tuple[Hook, ...]
    skills: tuple[Skill, ...]
    condenser: Condenses | None
    secrets: Secrets

    @checked(called="Agent()", refused=_refused, deep=False)
    def __init__(
        self,
        llm: str | LLM,
        *,
        instructions: str = "",
        tools: Iterable[Tool | Callable[..., Any]] = (),
        output: Any = None,
        limits: Limits = Limits(),
        approval: Approval = "never",
        name: str | None = None,
        client_tools: Iterable[ToolSchema] = (),
        unattended: Unattended = "deny",
        sub_agents: SubAgents | bool | None = None,
        mcp: Iterable[McpServer | Offered] = (),
        hooks: Iterable[Hook] = (),
        skills: Iterable[Skill] = (),
        condenser: Annotated[Condenses, Words("a Condenser, a Window, what has the methods of Condenses")]
        | None = None,
        secrets: Mapping[str, Secret] = Secrets(),
    ) -> None:
        kept = secrets_of(secrets)
        offered = offered_of(mcp)
        served = [
            tool
            for one in offered
            for tool in mcp_tools(one.server, one.tools or (), names_for(one, kept), one.project)
        ]
        own = without_served(map(as_tool, tools), offered)  # an agent made from another, with `replace`, has that one's
        team = sub_agents_of(sub_agents)
        schemas = tuple(sorted(map(_as_schema, client_tools), key=lambda tool: tool.name))
        _check_secrets(own, kept)
        if team is not None:
            check_free((schema.name for schema in schemas), "client tool")
        if unattended not in ("deny", "run"):
            raise BadAgent(f"what it does unattended is {unattended!r}, and must be deny or run")
        if condenser is not None and not is_condenser(condenser):
            raise BadAgent("its condenser must be a Condenser, a Window, or have the methods of Condenses")
        if not isinstance(limits, Limits):
            raise BadAgent("its limits must be of the class Limits")
        if not isinstance(instructions, str):
            raise BadAgent("its instructions must be a text")
        called: Any = name
        if called is not None and not (isinstance(called, str) and is_text(called)):
            raise BadAgent("its name must be a text, in valid Unicode")
        for field, value in (
            ("llm", as_model(llm)),
            ("instructions", instructions),
            ("tools", with_team([*own, *served], team)),
            ("output", as_output(output)),
            ("limits", limits),
            ("approval", approval_of(approval)),
            ("name", name),
            ("client_tools", schemas),
            ("unattended", "run" if unattended == "run" else "deny"),  # the very words: a default is not stored
            ("sub_agents", team),
            ("mcp", offered),
            ("hooks", hooks_of(hooks)),
            ("skills", skills_of(skills)),
            ("condenser", condenser.named() if isinstance(condenser, Condenser) else condenser),
            ("secrets", kept),
        ):
            object.__setattr__(self, field, value)
        _ = self.manifest  # says now what is wrong with its tools or its output
        withhold(_variables_of(self))

    @functools.cached_property
    def manifest(self) -> Manifest:
        """What its prompts have before the history."""
        return manifest_of(
            self.llm,
            instructions=self.instructions,
            tools=[*(tool.schema for tool in self.tools), *self.client_tools],
            output=output_schema(self.output),
        )

    def tool(self, name: str) -> Tool | None:
        """Its tool with this name, if it has one. Those of the client are not here to be run."""
        return next((tool for tool in self.tools if tool.name == name), None)

    def secrets_for(self, tool: Tool) -> tuple[str, ...]:
        """The names of the secrets that a call of this tool is given."""
        return self.secrets.for_commands if tool.secrets == "shell" else tool.secrets

    def is_client_tool(self, name: str) -> bool:
        """Whether a call of this tool is the client's to answer."""
        return any(tool.name == name for tool in self.client_tools)

    def replace(self, **changes: Any) -> "Agent":
        """The same agent with some fields changed: ``agent.replace(name="judge")``.

        What it was bound to is left behind. Raises `BadAgent` for a field that agents do not have, or a value that
        does not fit.
        """
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes.keys() - set(known):
            raise BadAgent(f"agents have no field {name!r}, only {', '.join(known)}")
        if "mcp" in changes:
            changes = {"tools": without_served(self.tools, self.mcp)} | changes
        return dataclasses.replace(self, **changes)

    def asks_before(self, call: ToolCall) -> str | None:
        """Why a call must be approved first; None if it need not be, as a call that the client runs never is."""
        if self.is_client_tool(call.tool):
            return None
        return why_asked(self.approval, call, self.tool(call.tool))

    def to_json(self) -> JsonText:
        """A document with everything but the functions, which stand there by their import paths. `bind` reads it.

        One that was bound to a document has that very document, wherever its functions were found.
        """
        from forkpoint.agent.stored.document import document_of

        bound: JsonText | None = self.__dict__.get("_document")
        return document_of(self) if bound is None else bound


def _check_secrets(tools: Iterable[Tool], secrets: Mapping[str, Secret]) -> None:
    for tool in tools:
        for name in () if tool.secrets == "shell" else tool.secrets:
            if name not in secrets:
                raise BadAgent(f"its tool {tool.name} needs the secret {name}, which is not among its secrets")


def _variables_of(agent: Agent) -> Iterator[str]:
    """The environment variables that hold its secrets and the keys of its models."""
    yield from (secret.env for secret in agent.secrets.values() if secret.env is not None)
    models = [agent.llm, *(agent.sub_agents.models if agent.sub_agents is not None else ())]
    if isinstance(agent.condenser, Condenser):
        models.append(agent.condenser.model(agent.llm))
    yield from (llm.key_variable for llm in models if llm.key_variable is not None)


def _as_schema(given: Any) -> ToolSchema:
    """A client's tool as it is stored: JSON in a document has no white space around it."""
    if not isinstance(given, ToolSchema):
        raise BadAgent("each of its client_tools must be of the class ToolSchema")
    return msgspec.structs.replace(given, parameters=given.parameters.strip(" \t\r\n"))


def output_schema(output: Any) -> JsonText | None:
    if output is None:
        return None
    if isinstance(output, OutputSchema):
        return output.schema
    try:
        return json_schema(output)
    except BadTool as error:
        raise BadAgent(f"its output type has no JSON schema ({error.why})") from error
    except (TypeError, ValueError) as error:
        raise BadAgent(f"its output type has no JSON schema ({error})") from error
