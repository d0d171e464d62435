"""`SubAgents`: whom an agent may give tasks to, and how far that goes. Frozen data, as agents are.
Tests: tests/agent/test_sub_agents.py."""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from forkpoint.agent.team.tools import NAMES, is_team_tool, team_tools
from forkpoint.agent.tool import Tool
from forkpoint.errors import BadAgent
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.manifest import is_text
from forkpoint.workspace.models.names import as_model

if TYPE_CHECKING:
    from forkpoint.agent.agent import Agent

DEPTH, MOST = 2, 16
"""How deep sub-agents go, and how many of one conversation may be open at once, unless something else is said."""

DEEPEST, MOST_EVER = 32, 1024
"""What `depth` and `most` may be: more is an error in somebody's arithmetic."""

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(frozen=True)
class Role:
    """What a sub-agent can be asked to be.

    - ``description``: what it is good for, told to the model that may spawn it.
    - ``instructions``: told to the sub-agent.
    - ``agent``: who it is. None is the agent that spawns it.
    - ``guardian``: it reviews. It has a cache key of its own, and asks before every call.
    """

    description: str = ""
    instructions: str = ""
    agent: "Agent | None" = None
    guardian: bool = False

    def __post_init__(self) -> None:
        for name in ("description", "instructions"):
            text = getattr(self, name)
            if not (isinstance(text, str) and is_text(text)):
                raise BadAgent(f"the {name} of a role must be a text, in valid Unicode")
        if self.agent is not None:
            _check_agent("the agent of a role", self.agent)
        if not isinstance(self.guardian, bool):
            raise BadAgent("whether a role is a guardian must be True or False")


@dataclass(frozen=True, init=False, repr=False)
class SubAgents:
    """Whom an agent may spawn. ``SubAgents()`` is itself alone, with other tasks.

    - ``roles``: what a sub-agent can be asked to be, by name.
    - ``agents``: other agents that it may be, by name.
    - ``models``: other models that it may have: names, or `LLM`. They are chosen by ``LLM.model``.
    - ``depth``: how many generations there may be below the conversation that a person began.
    - ``most``: how many sub-agents of one conversation may be open at once.
    """

    roles: Mapping[str, Role]
    agents: "Mapping[str, Agent]"
    models: tuple[LLM, ...]
    depth: int
    most: int

    def __init__(
        self,
        *,
        roles: Mapping[str, Role] | None = None,
        agents: "Mapping[str, Agent] | None" = None,
        models: Iterable[str | LLM] = (),
        depth: int = DEPTH,
        most: int = MOST,
    ) -> None:
        for field, value in (
            ("roles", _named("role", roles)),
            ("agents", _named("agent", agents)),
            ("models", _models(models)),
            ("depth", _number("depth", depth, DEEPEST)),
            ("most", _number("most", most, MOST_EVER)),
        ):
            object.__setattr__(self, field, value)
        for name, role in self.roles.items():
            if not isinstance(role, Role):
                raise BadAgent(f"its role {name} must be of the class Role")
        for name, agent in self.agents.items():
            _check_agent(f"its agent {name}", agent)

    def nested(self) -> "Iterator[tuple[str, Agent]]":
        """Each other agent that a sub-agent may be, with a word on where it stands."""
        for name, role in self.roles.items():
            if role.agent is not None:
                yield f"role {name}", role.agent
        for name, agent in self.agents.items():
            yield f"agent {name}", agent

    def model(self, name: str) -> LLM | None:
        """The further model of this name, if there is one."""
        return next((llm for llm in self.models if llm.model == name), None)

    def __hash__(self) -> int:
        return hash((tuple(self.roles.items()), tuple(self.agents.items()), self.models, self.depth, self.most))

    def __repr__(self) -> str:
        said = [f"{name}={dict(part)!r}" for name, part in (("roles", self.roles), ("agents", self.agents)) if part]
        said += [f"models={self.models!r}"] if self.models else []
        said += [f"depth={self.depth}"] if self.depth != DEPTH else []
        said += [f"most={self.most}"] if self.most != MOST else []
        return f"SubAgents({', '.join(said)})"

    def __reduce__(self) -> Any:  # what it has is a view of a dict, which cannot be copied
        return _again, (dict(self.roles), dict(self.agents), self.models, self.depth, self.most)


def everyone(agent: "Agent") -> "Iterator[tuple[str, Agent]]":
    """All that the sub-agents of an agent may be, and theirs, each with a word on where it stands; not itself."""
    for place, nested in agent.sub_agents.nested() if agent.sub_agents is not None else ():
        yield place, nested
        for further, one in everyone(nested):
            yield f"{place}: {further}", one


def sub_agents_of(given: Any) -> SubAgents | None:
    """What an agent was given as its sub-agents: True is all defaults, False none. Raises `BadAgent`."""
    if given is None or given is False:
        return None
    if given is True:
        return SubAgents()
    if not isinstance(given, SubAgents):
        raise BadAgent("its sub_agents must be of the class SubAgents, or True")
    return given


def with_team(tools: Iterable[Tool], sub_agents: SubAgents | None) -> tuple[Tool, ...]:
    """An agent's own tools, and those that its sub-agents need, in the order of their names. Raises `BadAgent`.

    Team tools that were there are left out first, for they belong to the sub-agents of another agent.
    """
    own = [tool for tool in tools if not is_team_tool(tool)]
    if sub_agents is not None:
        check_free((tool.name for tool in own), "tool")
        own += _team_of(sub_agents)
    return tuple(sorted(own, key=lambda tool: tool.name))


def check_free(names: Iterable[str], what: str) -> None:
    """Raises `BadAgent` if one of the names is that of a team tool."""
    if taken := sorted(set(names) & NAMES):
        raise BadAgent(f"its {what} {taken[0]} has the name of a tool that agents with sub_agents have; rename it")


def _team_of(sub_agents: SubAgents) -> tuple[Tool, ...]:
    """Its team tools: the very same for equal ones, so that equal agents are equal."""
    try:
        hash(sub_agents)
    except TypeError:  # an agent in it has something, as the form of its answers, that has no hash
        return team_tools(sub_agents)
    return _kept_team_of(sub_agents)


_kept_team_of = functools.lru_cache(maxsize=256)(team_tools)


def _again(*fields: Any) -> SubAgents:
    return SubAgents(**dict(zip(("roles", "agents", "models", "depth", "most"), fields, strict=True)))


def _named(what: str, given: Any) -> Mapping[str, Any]:
    if given is None:
        return MappingProxyType({})
    if not isinstance(given, Mapping):
        raise BadAgent(f"its {what}s must be a mapping of names")
    for name in given:
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            shown = name[:200] if isinstance(name, str) else name
            raise BadAgent(f"the name of its {what} {shown!r} must be 1 to 128 letters, digits and . _ : -")
    return MappingProxyType(dict(sorted(given.items())))


def _models(given: Any) -> tuple[LLM, ...]:
    if isinstance(given, str | LLM):
        given = (given,)
    made = tuple(map(as_model, given))
    names = [llm.model for llm in made]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadAgent(f"two models of its sub_agents are {twice}, and are chosen by that name")
    return made


def _number(name: str, value: Any, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise BadAgent(f"the {name} of its sub_agents must be a whole number from 1 to {most:,}")
    return value


def _check_agent(what: str, given: Any) -> None:
    from forkpoint.agent.agent import Agent

    if not isinstance(given, Agent):
        raise BadAgent(f"{what} must be of the class Agent")
