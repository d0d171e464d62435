"""`Members`: what a conversation does with its sub-agents: spawns, reaches, awaits, lists and closes them.

A sub-agent is a conversation like any other. Its parent reaches it by its nickname, its path (``/root/explorer``) or
its id. The parent's history says which sub-agents there are.
Tests: tests/conversation/test_members.py, tests/conversation/test_sub_agents.py.
"""

import hashlib
from contextlib import suppress

import anyio

from forkpoint.agent.agent import Agent
from forkpoint.backend.options import SpawnOptions
from forkpoint.backend.protocol import Backend
from forkpoint.backend.results import Info, Member, Turn
from forkpoint.backend.settings import Settings
from forkpoint.conversation.handle import Handle
from forkpoint.engine.team.spawn import known_agent
from forkpoint.errors import CannotResume, NoSuchTurn
from forkpoint.history.roster import find
from forkpoint.polling import pauses


class Members:
    """The sub-agents of one conversation. `spawn` and `reach` give a handle of a sub-agent."""

    def __init__(self, handle: Handle) -> None:
        self._parent = handle

    async def spawn(self, options: SpawnOptions, *, key: str | None) -> Handle:
        """Makes a sub-agent. Its task is not begun."""
        backend = await self._parent.ready()
        info, settings = await backend.team.spawn(self._parent.id, options, self._parent.agent, key=key)
        return self._child(info, settings, options.agent or options.task.agent)

    async def reach(self, agent: str, *, key: str | None) -> Handle:
        """The sub-agent to talk to from here. A sub-agent of another branch is forked first."""
        backend = await self._parent.backend()
        info, settings = await backend.team.reach(self._parent.id, agent, key=part_of_key(key, "reach"))
        return self._child(info, settings, None)

    async def newest_turn(self, agent: str, within: float | None) -> Turn | None:
        """The newest turn of a sub-agent, once nothing runs there. None after ``within`` seconds, or without a turn."""
        backend = await self._parent.ready()
        member = await self._member(backend, agent)
        if await _runs(backend, member):  # one look at least, however short the time is
            with anyio.move_on_after(within) as waiting:
                await _at_rest(backend, member)
            if waiting.cancelled_caught:
                return None
            member = await self._member(backend, agent)
        if member.turn is not None:
            with suppress(NoSuchTurn):  # the turn is of the sub-agent that this one was forked from
                return await backend.turns.read(member.conversation, member.turn)
        return None

    async def all(self) -> tuple[Member, ...]:
        """All sub-agents, in the order in which they were spawned."""
        return await (await self._parent.backend()).team.members(self._parent.id)

    async def end(self, agent: str) -> Member:
        """Closes a sub-agent."""
        return await (await self._parent.backend()).team.close(self._parent.id, agent)

    async def _member(self, backend: Backend, agent: str) -> Member:
        return find(await backend.team.members(self._parent.id), agent, self._parent.id)

    def _child(self, info: Info, settings: Settings, agent: Agent | str | None) -> Handle:
        """A handle of a sub-agent. ``agent`` is whom the caller has just spawned, if anybody."""
        given, parent = agent if isinstance(agent, Agent) else None, self._parent.agent
        if self._parent.place.is_remote:  # the server knows who answers
            bound = given or _offered(parent, info.role, agent)
        else:
            bound = _bound(settings, given, parent)
        return self._parent.beside(info, settings, bound)


def part_of_key(key: str | None, what: str) -> str | None:
    """An idempotency key for one part of a request with a key: each part is an effect of its own."""
    return None if key is None else f"{what}-{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()}"


async def _runs(backend: Backend, member: Member) -> bool:
    return (await backend.find(member.conversation))[0].status == "running"


async def _at_rest(backend: Backend, member: Member) -> None:
    """Waits until nothing runs in a sub-agent, whichever process runs it."""
    for wait in pauses(0.01, 0.25):
        if not await _runs(backend, member):
            return
        await anyio.sleep(wait)


def _bound(settings: Settings, given: Agent | None, parent: Agent | None) -> Agent | None:
    """The agent of a sub-agent with its functions; None if they are not at hand."""
    known = None if parent is None else known_agent(parent, settings)
    at_hand = [one for one in (given, known, parent) if one is not None]
    for candidate in at_hand or (None,):
        with suppress(CannotResume):
            return settings.bound(candidate)
    return None


def _offered(parent: Agent | None, role: str | None, agent: object) -> Agent | None:
    """The agent that a parent offers by this name or for this role; else the parent's own."""
    offered = parent.sub_agents if parent is not None else None
    if offered is None:
        return parent
    if isinstance(agent, str):
        return offered.agents.get(agent)
    return (offered.roles[role].agent if role is not None and role in offered.roles else None) or parent
