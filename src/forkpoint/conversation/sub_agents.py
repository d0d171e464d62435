"""What a conversation does with its sub-agents: gives them tasks, talks to them, waits for them, closes them.

A sub-agent is a conversation like any other. It is reached from its parent by its nickname, its path
(``/root/explorer``) or its id; which ones there are, the parent's path says.
"""

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import anyio

from forkpoint.agent.agent import Agent
from forkpoint.backend.callbacks import Callback, Visualizer
from forkpoint.backend.messages import Message, as_message
from forkpoint.backend.names import with_title
from forkpoint.backend.protocol import Backend, SpawnOptions
from forkpoint.backend.results import Info, Member, Turn
from forkpoint.backend.settings import Settings
from forkpoint.conversation.place import Place
from forkpoint.engine.team.spawn import known_agent
from forkpoint.errors import BadAgent, CannotResume, NoSuchAgent, NoSuchTurn
from forkpoint.ids import new_id
from forkpoint.polling import pauses


class HasMembers:
    """The part of `AsyncConversation` that is about its sub-agents."""

    _id: str
    _agent: Agent | None
    _place: Place
    _visualizer: Visualizer | None

    if TYPE_CHECKING:

        async def _here(self, *, keep_draft: bool = False) -> Backend: ...

        async def _keep_trust(self, backend: Backend) -> None: ...

        @classmethod
        def _made(
            cls,
            info: Info,
            settings: Settings,
            agent: Agent | None,
            place: Place,
            callbacks: Iterable[Callback],
            visualizer: Visualizer | None,
        ) -> Self: ...

        def send_message(self, message: Message) -> None: ...

        async def run(self, message: Message | None = None, *, key: str | None = None) -> Turn: ...

        async def close(self) -> None: ...

    async def spawn_agent(
        self,
        task: str,
        *,
        role: str | None = None,
        agent: Agent | str | None = None,
        model: str | None = None,
        nickname: str | None = None,
        fork: str | int = "none",
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        callbacks: Iterable[Callback] = (),
        key: str | None = None,
    ) -> Self:
        """A sub-agent of this conversation, whose task is its pending message: ``await child.run()`` begins it.

        - ``role``: one of those that this conversation's agent has for its sub-agents.
        - ``agent``: who it is: any agent, or the name of one that this conversation's agent offers. Default: the role's
          agent, or else the same.
        - ``model``: another model that this conversation's agent offers.
        - ``nickname``: how it is called among its siblings.
        - ``fork``: only ``none`` here: a sub-agent that begins with its parent's history is made by a call in a turn.
        - ``callbacks``: functions that are told of everything while its turns run.

        It is recorded with a note, so this conversation must have no open turn. Its rights are never more than this
        one's: the approvals of both hold, and the workspace is the same. ``key`` makes it happen once: the same key
        with the same arguments gives the same sub-agent. Raises `SpawnRefused` with the reason.
        """
        if agent is not None and not isinstance(agent, Agent | str):
            raise BadAgent(f"it is of the class {type(agent).__name__}, and must be an Agent or a name")
        pending = as_message(task)  # what is wrong with it is said before anything is made
        title, others = with_title(title, tags)
        backend = await self._here()
        await self._keep_trust(backend)
        options = SpawnOptions(
            id=new_id(),
            task=task,
            role=role,
            agent=None if isinstance(agent, str) else agent,
            agent_name=agent if isinstance(agent, str) else None,
            model=model,
            nickname=nickname,
            fork=fork,
            title=title,
            tags=others,
        )
        info, settings = await backend.spawn(self._id, options, self._agent, key=key)
        child = self._member(info, settings, agent, callbacks)
        child.send_message(pending)
        return child

    async def send_to_agent(
        self, agent: str, message: Message, *, callbacks: Iterable[Callback] = (), key: str | None = None
    ) -> Turn:
        """Runs a turn of a sub-agent with this message. It commits, waits for an approval, or raises, as `run` does.

        A sub-agent that belongs to another branch of this conversation is forked first: there it stays as it is.
        ``key`` makes it happen once. Raises `NoSuchAgent` or `AgentClosed`.
        """
        child = await self._reached(agent, callbacks, key=key)
        try:
            return await child.run(message, key=key)
        finally:
            await child.close()

    async def wait_agent(
        self,
        agent: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the same in `Conversation`
    ) -> Turn | None:
        """The newest turn of a sub-agent, once nothing runs there: it may have failed, or wait for an approval.

        None if that takes longer than ``timeout`` seconds, or if nothing was ever run there. Raises `NoSuchAgent`.
        """
        backend = await self._here()
        await self._keep_trust(backend)
        member = member_of(await backend.agents(self._id), agent, self._id)
        if await _runs(backend, member):  # however short the time, somebody has looked
            with anyio.move_on_after(timeout) as waiting:
                await _at_rest(backend, member)
            if waiting.cancelled_caught:
                return None
            member = member_of(await backend.agents(self._id), agent, self._id)
        if member.turn is not None:
            with suppress(NoSuchTurn):  # of the sub-agent that this one was forked from
                return await backend.turn(member.conversation, member.turn)
        return None

    async def list_agents(self) -> tuple[Member, ...]:
        """Its sub-agents and how they stand, in the order in which they came: those that its history knows of."""
        return await (await self._here()).agents(self._id)

    async def close_agent(self, agent: str) -> Member:
        """Closes a sub-agent: what runs there is cancelled, and no more is said to it from here.

        It can still be read and forked. It is recorded with a note, so this conversation must have no open turn.
        Raises `NoSuchAgent`.
        """
        return await (await self._here()).close_agent(self._id, agent)

    async def _reached(self, agent: str, callbacks: Iterable[Callback] = (), *, key: str | None = None) -> Self:
        """The sub-agent to talk to from here, as a conversation."""
        backend = await self._here()
        info, settings = await backend.reach(self._id, agent, key=part_of_key(key, "reach"))
        return self._member(info, settings, None, callbacks)

    def _member(self, info: Info, settings: Settings, agent: Agent | str | None, callbacks: Iterable[Callback]) -> Self:
        """A sub-agent as a conversation of its own. ``agent`` is whom somebody has just spawned."""
        given = agent if isinstance(agent, Agent) else None
        if self._place.is_remote:  # who answers is the server's affair
            bound = given or _offered(self._agent, info.role, agent)
        else:
            bound = _bound(settings, given, self._agent)
        visualizer = self._visualizer.for_fork() if self._visualizer is not None else None
        return self._made(info, settings, bound, self._place.also(), callbacks, visualizer)


def member_of(members: Iterable[Member], agent: str, conversation: str) -> Member:
    """The sub-agent that is meant by a nickname, a path or an id. Raises `NoSuchAgent`."""
    members = tuple(members)
    found = [one for one in members if agent in (one.nickname, one.path, one.conversation)]
    if not found:
        known = ", ".join(one.nickname for one in members) or "none"
        raise NoSuchAgent(agent, conversation, known)
    return next((one for one in found if one.status != "closed"), found[-1])  # a nickname may be given again


def part_of_key(key: str | None, what: str) -> str | None:
    """A key for a part of what is to happen once under a key: one key is one effect, and this is another."""
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
    """Who answers in a sub-agent, its functions found again; None if they are not at hand."""
    known = None if parent is None else known_agent(parent, settings)
    at_hand = [one for one in (given, known, parent) if one is not None]
    for candidate in at_hand or (None,):
        with suppress(CannotResume):
            return settings.bound(candidate)
    return None


def _offered(parent: Agent | None, role: str | None, agent: object) -> Agent | None:
    """Whom an agent offers by a name or for a role, or else itself."""
    offered = parent.sub_agents if parent is not None else None
    if offered is None:
        return parent
    if isinstance(agent, str):
        return offered.agents.get(agent)
    return (offered.roles[role].agent if role is not None and role in offered.roles else None) or parent
