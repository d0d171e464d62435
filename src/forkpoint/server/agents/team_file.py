"""The sub-agents of an agent in a file: roles, models, and other agents of the file by their names.
Tests: tests/server/test_team_agents.py."""

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

from forkpoint.agent.agent import Agent
from forkpoint.agent.team.offer import DEPTH, MOST, Role, SubAgents
from forkpoint.errors import BadSetting, ForkpointError
from forkpoint.llm.model import LLM
from forkpoint.workspace.models.names import model_from
from forkpoint.workspace.models.tables import MODEL, fields_of, typed

_TEAM: dict[str, Any] = {
    "roles": dict[str, dict[str, Any]],
    "agents": tuple[str, ...],
    "models": tuple[str | dict[str, Any], ...],
    "depth": int,
    "most": int,
}
_ROLE: dict[str, Any] = {"description": str, "instructions": str, "agent": str, "guardian": bool}


class TeamTable(Struct, frozen=True):
    """What a file says of the sub-agents of an agent, with other agents by their names."""

    roles: dict[str, dict[str, Any]]
    agents: tuple[str, ...]
    models: tuple[LLM, ...]
    depth: int
    most: int

    def names(self) -> tuple[str, ...]:
        """The other agents that it names, each once."""
        return tuple(dict.fromkeys([*self.agents, *(role["agent"] for role in self.roles.values() if "agent" in role)]))

    def sub_agents(self, made: Mapping[str, Agent | None]) -> SubAgents:
        """The sub-agents, with those of the agents that could be made. Raises `BadAgent`."""
        roles = {
            name: Role(**(role | {"agent": made.get(role["agent"])} if "agent" in role else role))
            for name, role in self.roles.items()
        }
        agents = {name: agent for name in self.agents if (agent := made.get(name)) is not None}
        return SubAgents(roles=roles, agents=agents, models=self.models, depth=self.depth, most=self.most)


def read_team(said: bool | dict[str, Any], agent: str, known: Collection[str], problems: list[str]) -> TeamTable | None:
    """What the table of an agent says of its sub-agents, as far as it can be used. What is wrong is complained about.

    True is all defaults, False is none.
    """
    if said is False:
        return None
    where = f"agents.{agent}.sub_agents"
    fields = typed({} if said is True else said, _TEAM, where, problems)
    roles = {
        name: typed(role, _ROLE, f"{where}.roles.{name}", problems) for name, role in fields.get("roles", {}).items()
    }
    for name, role in roles.items():
        if "agent" in role and not _is_other(role["agent"], agent, known, f"{where}.roles.{name}.agent", problems):
            del role["agent"]
    named: tuple[str, ...] = fields.get("agents", ())
    others = tuple(name for name in named if _is_other(name, agent, known, f"{where}.agents", problems))
    models = [_model(one, f"{where}.models", problems) for one in fields.get("models", ())]
    team = TeamTable(
        roles,
        others,
        tuple(model for model in models if model is not None),
        fields.get("depth", DEPTH),
        fields.get("most", MOST),
    )
    try:
        team.sub_agents({})  # what is wrong with it whoever the others are
    except ForkpointError as error:
        problems.append(f"{where}: {getattr(error, 'why', error)}")
        return None
    return team


def without_end(teams: Mapping[str, TeamTable | None]) -> list[str]:
    """A complaint about each ring of agents that have one another as sub-agents: such a one could never be made."""
    rings: dict[frozenset[str], tuple[str, ...]] = {}
    done: set[str] = set()

    def follow(name: str, way: tuple[str, ...]) -> None:
        if name in way:
            ring = way[way.index(name) :]
            rings.setdefault(frozenset(ring), ring)
        elif name not in done:
            team = teams[name]
            for other in team.names() if team is not None else ():
                follow(other, (*way, name))
            done.add(name)

    for name in teams:
        follow(name, ())
    return [
        f"agents.{ring[0]}.sub_agents: {', which has '.join([*ring, ring[0]])}, and so on without end; "
        "leave one of them out"
        for ring in rings.values()
    ]


def _is_other(name: str, agent: str, known: Collection[str], where: str, problems: list[str]) -> bool:
    if name == agent:
        problems.append(f"{where}: it names the agent itself, and that is meant where nothing is said; leave it out")
    elif name not in known:
        problems.append(f"{where}: there is no agent {name!r} in this file")
    return name != agent and name in known


def _model(said: str | dict[str, Any], where: str, problems: list[str]) -> LLM | None:
    before = len(problems)
    fields = typed({"model": said} if isinstance(said, str) else said, MODEL, where, problems)
    if len(problems) > before:
        return None
    if "model" not in fields:
        problems.append(f"{where}: one of them has no model")
        return None
    try:
        return model_from(fields_of(fields))
    except BadSetting as error:
        problems.append(f"{where}: {fields['model']}: {error.setting}: {error.why}")
    except ForkpointError as error:
        problems.append(f"{where}: {error}")
    return None
