"""Sub-agents, as the tools of a turn see them.

Five tools let a model give work to others: `team_tools`. They are thin: what they do is done by the turn's `Team`,
which the conversation layer implements. A tool written in Python has the same through its context::

    @tool
    async def explore(ctx: ToolContext, question: str) -> str:
        await ctx.agents.spawn(f"Answer: {question}", role="explorer", fork="all")
        (explorer,) = await ctx.agents.wait()
        return explorer.answer or explorer.error or ""

A sub-agent's turn runs while the turn that asked for it runs. When that one ends, whichever way, what still runs
beneath it is cancelled first. Tests: tests/agent/test_sub_agents.py.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from forkpoint.agent.calls import limited
from forkpoint.agent.context import ToolContext
from forkpoint.agent.tool import OUTPUT_LIMIT, Tool, tool
from forkpoint.errors import SpawnRefused
from forkpoint.events import AnyBody, Text

if TYPE_CHECKING:
    from forkpoint.agent.team.offer import SubAgents

MemberStatus: TypeAlias = Literal[
    "idle", "running", "awaiting_approval", "interrupted", "failed", "cancelled", "closed"
]
"""How a sub-agent stands: what its newest turn came to, `idle` if that is committed; `closed` by its parent."""


class Member(Struct, frozen=True):
    """A sub-agent of a conversation, and how it stands. ``answer`` is what it said last, ``error`` why it did not."""

    conversation: str
    path: str
    nickname: str
    role: str | None
    depth: int
    task: str
    status: MemberStatus
    answer: str | None = None
    error: str | None = None
    turn: str | None = None  # the newest that its parent knows of

    @property
    def closed(self) -> bool:
        """Whether it takes no more messages."""
        return self.status == "closed"


class Task(Struct, frozen=True, kw_only=True):
    """What a new sub-agent is to do, and who it is to be.

    ``agent`` and ``model`` are names of what the spawning agent's `SubAgents` offers. ``fork`` is how much of the
    history it begins with: ``none``, ``all``, or the last so many turns.
    """

    task: str
    role: str | None = None
    agent: str | None = None
    model: str | None = None
    nickname: str | None = None
    fork: str | int = "none"


class Caller(Struct, frozen=True):
    """The call that something is asked in: its id, its key in the whole world, and where its events go.

    ``part`` tells apart what one call asks for several times.
    """

    call_id: str
    key: str
    record: Callable[[AnyBody], None]
    tell: Callable[[str], None]
    part: str | None = None


class Team(Protocol):
    """The sub-agents of one running turn."""

    async def spawn(self, caller: Caller, task: Task) -> Member:
        """Makes a sub-agent and sets it to work; it runs on. The same call always gives the same one."""
        ...

    async def send(self, caller: Caller, agent: str, message: str) -> Member:
        """Gives a sub-agent another message; it runs on. One of another branch is forked first."""
        ...

    async def wait(
        self, caller: Caller, agents: Sequence[str], *, seconds: float | None, first: bool
    ) -> tuple[Member, ...]:
        """How these sub-agents stand once nothing of theirs runs, or the time is up; all that were set to work, if
        none is named. With ``first`` one that has ended is enough."""
        ...

    async def members(self) -> tuple[Member, ...]:
        """All of them."""
        ...

    async def close(self, caller: Caller, agent: str) -> Member:
        """Stops a sub-agent and lets go of it: it can be read, and no longer be given messages from here."""
        ...


class Agents:
    """The sub-agents of the turn that a tool runs in. What they are told and say is recorded with the tool's result.

    A tool may spawn several in one call if each has a ``nickname``: by that a resumed turn finds them again.
    """

    def __init__(
        self,
        team: Team | None,
        caller: Caller,
        is_ended: Callable[[], bool] = lambda: False,
        mask: Callable[[str], str] = lambda text: text,
    ) -> None:
        self._team = team
        self._mask = mask  # what they are told is stored with them
        self._is_ended = is_ended
        self._caller = caller
        self._spawned: set[str | None] = set()
        self._sent: Counter[str] = Counter()

    async def spawn(
        self,
        task: str,
        *,
        role: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        nickname: str | None = None,
        fork: str | int = "none",
    ) -> Member:
        """Makes a sub-agent and sets it to work. Raises `SpawnRefused` with the reason if there can be none."""
        if nickname in self._spawned:
            raise SpawnRefused("this call has made one like it already; give each a nickname of its own")
        asked = Task(task=self._mask(task), role=role, agent=agent, model=model, nickname=nickname, fork=fork)
        made = await self._here.spawn(self._part(nickname), asked)
        self._spawned.add(nickname)
        return made

    async def send(self, agent: str, message: str) -> Member:
        """Gives a sub-agent (its nickname, path or id) another message."""
        self._sent[agent] += 1
        return await self._here.send(self._part(f"{agent}:{self._sent[agent]}"), agent, self._mask(message))

    async def wait(self, *agents: str, seconds: float | None = None, first: bool = False) -> tuple[Member, ...]:
        """Waits for these, or for all, and says how they stand."""
        return await self._here.wait(self._caller, agents, seconds=seconds, first=first)

    async def list(self) -> tuple[Member, ...]:
        """All of them, and how they stand."""
        return await self._here.members()

    async def close(self, agent: str) -> Member:
        """Stops a sub-agent and lets go of it."""
        return await self._here.close(self._caller, agent)

    async def asked_by_the_model(self, asked: Task) -> Member:
        """The one sub-agent that the call itself asks for."""
        return await self._here.spawn(self._caller, asked)

    async def told_by_the_model(self, agent: str, message: str) -> Member:
        """The one message that the call itself is."""
        return await self._here.send(self._caller, agent, message)

    def _part(self, name: str | None) -> Caller:
        """One of the things that this call asks for: each has a name by which a resumed turn finds it again."""
        if name is None:
            return self._caller
        return msgspec.structs.replace(self._caller, key=f"{self._caller.key}/{name}", part=name)

    @property
    def _here(self) -> Team:
        if self._is_ended():
            raise SpawnRefused("the call has ended, and with it what it may ask for")
        if self._team is None:
            raise SpawnRefused("its agent has no sub_agents, or it answers without a conversation")
        return self._team


class _Told(Struct, frozen=True, omit_defaults=True):
    """A member as a model is told of it: nothing that would be another with each try, such as an id."""

    agent: str
    status: str
    role: str | None = None
    task: str | None = None
    answer: str | None = None
    error: str | None = None


def told(member: Member, *, task: bool = False, of: int = 1) -> _Told:
    """A member for a model. `done` is the word for a sub-agent that has answered.

    ``of`` is how many are told of in one result: a long answer of one must not push out the others.
    """
    status = "done" if member.status == "idle" and member.answer is not None else member.status
    answer = None if member.answer is None else _cut(member.answer, _TOLD // of)
    asked = _cut(member.task, _TOLD // of // 4) if task else None
    return _Told(member.nickname, status, member.role, asked, answer, member.error)


_TOLD = OUTPUT_LIMIT * 3 // 4  # characters of answers in one result: in JSON they take more


def _cut(text: str, limit: int) -> str:
    return "".join(part.text for part in limited((Text(text),), limit) if isinstance(part, Text))


@tool(repeatable=True)
async def spawn_agent(
    ctx: ToolContext,
    task: str,
    role: str | None = None,
    agent: str | None = None,
    model: str | None = None,
    nickname: str | None = None,
    fork: str | int = "none",
) -> _Told:
    """Gives a task to a new sub-agent, which works on it while you go on.

    Use wait_agent to get its answer. Sub-agents that still work when you give your final answer are stopped.

    Args:
        task: what it is to do, with everything it has to know
        role: one of the roles below
        agent: one of the agents below, instead of one like you
        model: one of the models below
        nickname: what to call it by
        fork: how much of this conversation it knows: none, all, or a number of turns
    """
    asked = Task(task=task, role=role, agent=agent, model=model, nickname=nickname, fork=fork)
    return told(await ctx.agents.asked_by_the_model(asked))


@tool(repeatable=True)
async def send_to_agent(ctx: ToolContext, agent: str, message: str) -> _Told:
    """Gives a sub-agent that has ended its work another message, which it works on while you go on.

    Args:
        agent: its nickname
        message: what to tell it
    """
    return told(await ctx.agents.told_by_the_model(agent, message))


@tool(repeatable=True)
async def wait_agent(
    ctx: ToolContext, agents: list[str] | None = None, seconds: float | None = None, first: bool = False
) -> list[_Told]:
    """Waits for sub-agents, and gives their answers.

    Args:
        agents: their nicknames; all that work, if none is named
        seconds: how long to wait at most; those that still work go on
        first: do not wait for all, one that has ended is enough
    """
    found = await ctx.agents.wait(*(agents or ()), seconds=seconds, first=first)
    return [told(one, of=len(found)) for one in found]


@tool(repeatable=True)
async def list_agents(ctx: ToolContext) -> list[_Told]:
    """Lists your sub-agents, and how they stand."""
    found = await ctx.agents.list()
    return [told(one, task=True, of=len(found)) for one in found]


@tool(repeatable=True)
async def close_agent(ctx: ToolContext, agent: str) -> _Told:
    """Stops a sub-agent that is not needed any more, and makes room for another.

    Args:
        agent: its nickname
    """
    return told(await ctx.agents.close(agent))


TEAM_TOOLS = (close_agent, list_agents, send_to_agent, spawn_agent, wait_agent)
NAMES = frozenset(one.name for one in TEAM_TOOLS)
"""What the five are called."""


def team_tools(offered: "SubAgents") -> tuple[Tool, ...]:
    """The five tools of an agent that may have sub-agents, with what it offers them."""
    said = "\n\n".join((spawn_agent.description, *_offers(offered)))
    spawns = dataclasses.replace(spawn_agent, schema=msgspec.structs.replace(spawn_agent.schema, description=said))
    return tuple(spawns if one is spawn_agent else one for one in TEAM_TOOLS)


def is_team_tool(one: Tool) -> bool:
    """Whether this is one of the five, whatever it offers."""
    return any(one.function is ours.function for ours in TEAM_TOOLS)


def _offers(offered: "SubAgents") -> list[str]:
    """What there is to choose from, in words, sorted: a prompt begins with it."""
    roles = [f"- {name}: {role.description}".rstrip(": ") for name, role in sorted(offered.roles.items())]
    lists = [
        ("Roles", roles),
        ("Agents", [f"- {name}" for name in sorted(offered.agents)]),
        ("Models", [f"- {llm.model}" for llm in sorted(offered.models, key=lambda llm: llm.model)]),
    ]
    return [f"{title}:\n" + "\n".join(lines) for title, lines in lists if lines]
