"""Spawning: what a new sub-agent is made of. Who it is, what it may do, what it knows, and which cache key it shows.

One that is forked in the middle of its parent's turn begins with exactly what the model has before it at that moment:
the committed path, shared, and a copy of the turn's steps up to and including the whole response that asked for it.
There every open call is answered, in the sub-agent's own branch. So its prompt starts with its parent's blocks, nothing
in it dangles if the parent's turn comes to nothing, and the provider's cache is good for both.
Tests: tests/conversation/test_sub_agents.py.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.agent.context import SHELL
from forkpoint.agent.hooks.hook import hooks_of
from forkpoint.agent.skills.skill import LARGEST
from forkpoint.agent.team.offer import Role, SubAgents
from forkpoint.agent.team.tools import Task
from forkpoint.backend.settings import Settings, SubAgentOf
from forkpoint.engine.trust import with_project
from forkpoint.errors import SpawnRefused
from forkpoint.events import (
    Condensation,
    Event,
    Gone,
    ModelCalled,
    NewEvent,
    SkillActivated,
    StagedEvent,
    StateChange,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from forkpoint.history.roster import ROOT, Known, free_nickname
from forkpoint.history.state import State
from forkpoint.llm.prompt.identity import CacheIdentity, fork_identity, own_identity
from forkpoint.llm.prompt.manifest import is_text

SEEN = ("user_message", "condensation", "skill_activated")
"""The kinds of events by which `window` knows what can be seen of a path."""

ELSEWHERE = "here you are a sub-agent. Whoever asked for it goes on without you."

NO_CALL = "it shall begin with its parent's history, and no call asked for it; use fork() for a branch"

_NICKNAME = re.compile(r"(?=.*[A-Za-z0-9])[A-Za-z0-9._-]{1,64}")

_LONGEST_ROLE = 128


class Parent(Struct, frozen=True):
    """Who spawns: a conversation, its agent, and what it shows providers."""

    id: str
    agent: Agent
    settings: Settings
    identity: CacheIdentity

    @property
    def path(self) -> str:
        return place_of(self.settings)[0]

    @property
    def depth(self) -> int:
        return place_of(self.settings)[1]

    @property
    def offered(self) -> SubAgents:
        return self.agent.sub_agents or SubAgents()


class Child(Struct, frozen=True):
    """A sub-agent that is to be made."""

    agent: Agent
    settings: Settings
    identity: CacheIdentity

    @property
    def place(self) -> SubAgentOf:
        assert self.settings.sub_agent is not None
        return self.settings.sub_agent


def place_of(settings: Settings) -> tuple[str, int]:
    """The path and the depth of a conversation. Whatever a fork of a sub-agent is, it is no deeper than that."""
    of = settings.sub_agent
    return (ROOT, 0) if of is None else (of.path, of.depth)


def child_of(parent: Parent, id: str, task: Task, team: Mapping[str, Known], *, given: Agent | None = None) -> Child:
    """The sub-agent that a parent gets for a task. Raises `SpawnRefused`.

    ``given`` is an agent that whoever asks has brought. ``team`` are those that the parent has.
    """
    offered = parent.offered
    of = parent.settings.sub_agent
    deepest = offered.depth if of is None else min(of.deepest, offered.depth)
    if parent.depth >= deepest:
        raise SpawnRefused(f"sub-agents go {deepest} deep at most, and this is one of depth {parent.depth}")
    if sum(not one.closed for one in team.values()) >= offered.most:
        raise SpawnRefused(f"it has {offered.most} sub-agents, which is the most; close one that is not needed")
    said: Any = task.task  # Python does not check
    if not isinstance(said, str) or not said.strip():
        raise SpawnRefused("its task is blank; say what it is to do")
    if not is_text(task.task):
        raise SpawnRefused("its task is not valid Unicode")
    fork = as_fork(task.fork)
    role = _role(offered, task.role)
    agent = _answerer(parent.agent, offered, role, task, given, is_fresh=fork == "none")
    nickname = free_nickname(team, _nickname(task))
    place = SubAgentOf(
        parent=parent.id,
        path=f"{parent.path}/{nickname}",
        nickname=nickname,
        depth=parent.depth + 1,
        role=task.role,
        task=task.task,
        fork=fork,
        deepest=deepest,
        guardian=role.guardian,
        agent=task.agent,
        instructions=role.instructions if fork != "none" else "",
    )
    system = parent.settings.system if agent is parent.agent else None
    project = parent.settings.project
    agent = agent if agent is parent.agent else with_project(agent, project)
    settings = Settings.of(agent, None).at(parent.settings)  # it works in its parent's folder
    settings = replace(settings, system=system, project=project, sub_agent=place)
    return Child(agent, settings, _identity(parent, id, agent, inherits=fork != "none" and not role.guardian))


def as_fork(fork: str | int) -> str | int:
    """How much of the history is meant: ``none``, ``all`` or a number of turns. Raises `SpawnRefused`."""
    if isinstance(fork, str) and re.fullmatch(r"\s*[0-9]{1,9}\s*", fork):
        fork = int(fork)
    if fork in ("none", "all") or (type(fork) is int and fork > 0):
        return fork
    raise SpawnRefused(f"fork is {str(fork)[:80]!r}, and must be none, all or a number of turns")


def known_agent(parent: Agent, settings: Settings) -> Agent:
    """Whose functions a sub-agent that was made earlier has, for all that its parent's agent knows."""
    of, offered = settings.sub_agent, parent.sub_agents
    if of is None or offered is None:
        return parent
    named = offered.agents.get(of.agent) if of.agent is not None else None
    role = offered.roles.get(of.role) if of.role is not None else None
    found = named or (role.agent if role is not None else None) or parent
    said = msgspec.json.decode(settings.agent_json or "{}", type=_StoredModel)
    if (llm := offered.model(said.llm.model)) is not None:
        found = found.replace(llm=llm)  # the key that it was given, if it is in no document
    if found is parent:
        return found
    return found.replace(approval=(parent.approval, found.approval), hooks=hooks_of((*parent.hooks, *found.hooks)))


class _StoredLLM(Struct, frozen=True):
    model: str = ""


class _StoredModel(Struct, frozen=True):
    """As much of a stored agent as tells which model it has."""

    llm: _StoredLLM = _StoredLLM()


def opening(child: Child, turn: str, call: str, steps: Sequence[StagedEvent]) -> list[NewEvent]:
    """What a forked sub-agent's own part begins with: its copy of the turn's steps, and a result for each open call.

    Raises `SpawnRefused` if no call of the turn's newest response is the one that asks.
    """
    response = next(
        (
            step.envelope.response
            for step in reversed(steps)
            if isinstance(step.body, ToolCall) and step.body.call_id == call
        ),
        None,
    )
    if response is None:
        raise SpawnRefused(NO_CALL)
    last = max(n for n, step in enumerate(steps) if step.envelope.response == response)
    copied = [_copy(step, f"{turn}/{n}") for n, step in enumerate(steps[: last + 1]) if not isinstance(step.body, Gone)]
    calls = [
        step.body
        for step in steps[: last + 1]
        if isinstance(step.body, ToolCall) and step.envelope.response == response
    ]
    return [*copied, *(NewEvent(_answer(child, one, is_its_own=one.call_id == call)) for one in calls)]


def as_in_the_shell_of(state: State) -> list[NewEvent]:
    """What a sub-agent begins with that does not know its parent's history: the folder and variables of its shell."""
    return [NewEvent(StateChange(((SHELL, kept),))) for kept in [state.get(SHELL)] if kept is not None]


def window(path: Sequence[Event], turns: int) -> list[NewEvent]:
    """The events that show no more than the last so many turns of a path, given those of it of the kinds `SEEN`.

    There are none if no more of it can be seen anyway. The turn that runs is shown in any case. Skills that were
    activated in what is hidden are said again, as on a path that is condensed: nothing would activate them once more.
    """
    cuts = [event.body.kept_from for event in path if isinstance(event.body, Condensation | Gone)]
    shown_from = max((cut for cut in cuts if cut is not None), default=0)
    said_in = {event.turn for event in path if event.kind == "user_message" and event.id.ordinal >= shown_from}
    last: dict[str, int] = {}
    for event in path:
        if event.turn in said_in and event.id.ordinal >= shown_from:
            last.setdefault(event.turn, event.id.ordinal)  # a turn begins with the skills that its message calls for
    if len(last) <= turns:
        return []
    kept_from = sorted(last.values())[-turns]
    hidden = len(last) - turns
    said = f"{hidden} earlier turn{'s' if hidden > 1 else ''} of this conversation cannot be seen from here."
    return [NewEvent(Condensation(said, kept_from)), *map(NewEvent, _skills_hidden(path, shown_from, kept_from))]


def _skills_hidden(path: Sequence[Event], shown_from: int, kept_from: int) -> list[SkillActivated]:
    """The skills that can be seen no more, the newest of each name, as many as have room."""
    found: list[SkillActivated] = []
    names: set[str] = set()
    room = LARGEST
    for event in reversed(path):
        body = event.body
        if not isinstance(body, SkillActivated) or body.name in names or event.id.ordinal < shown_from:
            continue
        names.add(body.name)
        if event.id.ordinal < kept_from and (size := len(body.content.encode())) <= room:
            found.append(body)
            room -= size
    return found[::-1]


def _copy(step: StagedEvent, origin: str) -> NewEvent:
    """A step of the parent's turn in the sub-agent's branch: what was used for it is the parent's."""
    body = step.body
    match body:
        case ModelCalled():
            body = replace(body, usage=Usage())
        case ToolCall(client=True):
            body = replace(body, client=False)  # it is answered here, and not by a client
        case _:
            pass
    assert not isinstance(body, Gone), "nothing of a running turn is erased"
    return NewEvent(body, response=step.envelope.response, origin=origin, time=step.envelope.time or None)


def _answer(child: Child, call: ToolCall, *, is_its_own: bool) -> ToolResult:
    if not is_its_own:
        return ToolResult(call.call_id, call.tool, (Text(ELSEWHERE),), "not_run")
    place, role = child.place, _instructions(child)
    who = f"You are the sub-agent {place.nickname} now" + (f", in the role of {place.role}" if place.role else "")
    said = (
        f"{who}. Up to here your history is that of the agent that asked for you; it goes on without you, and gets "
        f"your final answer. {role}Your task follows."
    )
    return ToolResult(call.call_id, call.tool, (Text(said),))


def _instructions(child: Child) -> str:
    said = child.settings.sub_agent.instructions if child.settings.sub_agent else ""
    return f"{said.strip()} " if said.strip() else ""


def _role(offered: SubAgents, name: str | None) -> Role:
    """The role of this name. Where none are defined, a role is a word that the sub-agent is known by."""
    if name is not None and not (is_text(name) and 0 < len(name) <= _LONGEST_ROLE):
        raise SpawnRefused(f"its role must be a text of 1 to {_LONGEST_ROLE} characters")
    if name is None or not offered.roles:
        return Role()
    if name not in offered.roles:
        raise SpawnRefused(f"there is no role {name!r}; the roles are {', '.join(sorted(offered.roles))}")
    return offered.roles[name]


def _answerer(
    parent: Agent, offered: SubAgents, role: Role, task: Task, given: Agent | None, *, is_fresh: bool
) -> Agent:
    """Who does the task. It has no right that its parent does not have."""
    agent = given or role.agent or parent
    if task.agent is not None and given is None:
        if task.agent not in offered.agents:
            known = ", ".join(sorted(offered.agents)) or "none"
            raise SpawnRefused(f"there is no agent {task.agent!r}; the agents are: {known}")
        agent = offered.agents[task.agent]
    changes: dict[str, object] = {}
    if task.model is not None and task.model != agent.llm.model:
        llm = offered.model(task.model)
        if llm is None:
            known = ", ".join(sorted({agent.llm.model, *(one.model for one in offered.models)}))
            raise SpawnRefused(f"it may not have the model {task.model!r}; the models are: {known}")
        changes["llm"] = llm
    if is_fresh and role.instructions:
        changes["instructions"] = "\n\n".join(part for part in (agent.instructions, role.instructions) if part)
    if role.guardian:
        changes["approval"], changes["unattended"] = "always", "deny"
    if agent is not parent:
        changes["hooks"] = hooks_of((*parent.hooks, *agent.hooks))
    if agent is not parent and not role.guardian:
        changes["approval"] = (parent.approval, agent.approval)
        changes["unattended"] = "deny" if "deny" in (parent.unattended, agent.unattended) else "run"
    return agent.replace(**changes) if changes else agent


def _nickname(task: Task) -> str:
    if task.nickname is not None and not _NICKNAME.fullmatch(task.nickname):
        raise SpawnRefused(f"{task.nickname[:80]!r} is no nickname: letters, digits, '.', '_' and '-', 64 at most")
    named = re.sub(r"[^A-Za-z0-9._-]+", "-", task.role or task.agent or "")[:64].strip("-")
    return task.nickname or (named if _NICKNAME.fullmatch(named) else "agent")


def _identity(parent: Parent, id: str, agent: Agent, *, inherits: bool) -> CacheIdentity:
    if not inherits:
        return own_identity(id)
    manifest = parent.agent.manifest.hash
    return fork_identity(
        parent.identity, parent.id, id, "inherit", manifest=agent.manifest.hash, source_manifest=manifest
    )
