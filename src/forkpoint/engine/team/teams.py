"""Teams: the sub-agents of a store's conversations, made, found and let go of; in a turn and from outside.
Tests: tests/conversation/test_sub_agents.py, test_team_faults.py, test_team_properties.py."""

from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.agent.budget import TurnBudget
from forkpoint.agent.team.tools import Member
from forkpoint.backend.actor import actor
from forkpoint.backend.messages import caller_of
from forkpoint.backend.options import SpawnOptions
from forkpoint.backend.results import Info, Turn
from forkpoint.backend.settings import Settings
from forkpoint.engine.conversation_cache import check_idle
from forkpoint.engine.idempotency import reach_key, spawn_key
from forkpoint.engine.resources import Resources
from forkpoint.engine.team.active_team import RunningTeam, as_member
from forkpoint.engine.team.children import Children, new_child
from forkpoint.engine.team.spawn import NO_CALL, Parent, as_fork, as_in_the_shell_of, child_of
from forkpoint.engine.turns.journal import Steps
from forkpoint.engine.turns.reader import read_turn
from forkpoint.engine.turns.runner import TurnRunner
from forkpoint.engine.turns.transaction import Plan
from forkpoint.engine.views import identity_of, info_of, stored_tags
from forkpoint.errors import ForkpointError, NotFound, SpawnRefused, Stale
from forkpoint.events import NewEvent, SubAgentFinished, SubAgentSpawned
from forkpoint.history.roster import Known, find
from forkpoint.ids import new_id
from forkpoint.store.values import Announcement, IdempotencyKey, Lineage, NewConversation, StoredConversation


class Teams:
    """The sub-agents of a store's conversations, from outside of turns: makes, finds, reaches and closes them."""

    def __init__(self, resources: Resources, turns: TurnRunner) -> None:
        self._store = resources.store
        self._records = resources.records
        self._planner = resources.planner
        self._turns = turns
        self._beneath = Children(resources, turns)

    def team_for(self, plan: Plan, steps: Steps, budget: TurnBudget) -> RunningTeam | None:
        """The sub-agents of a turn that begins to run; None if its agent has none."""
        if plan.run.agent.sub_agents is None:
            return None
        return RunningTeam(self._beneath, self._turns, plan, steps, budget)

    async def spawn(
        self, parent: str, options: SpawnOptions, agent: Agent | None, *, key: str | None = None
    ) -> tuple[Info, Settings]:
        """Makes a sub-agent that no call of a model asks for."""
        once = spawn_key(key, parent, options)
        record = await self._records.find(parent)
        made = None if once is None else await self._made_before(once)
        if made is None and as_fork(options.task.fork) != "none":
            raise SpawnRefused(NO_CALL)
        await self._turns.unended.end(record.id)
        while made is None:
            record = await self._idle(record.id)
            with suppress(Stale):  # somebody else's came first: nicknames and how many there are are another matter now
                made = await self._spawned(record, options, agent, once)
        self._records.forget(record.id)
        return info_of(made), Settings.from_json(made.settings)

    async def members(self, id: str) -> tuple[Member, ...]:
        """The sub-agents that a conversation's path knows of."""
        record = await self._records.find(id)
        known = await self._beneath.roster_now(record)
        return tuple([as_member(one, await self._last_of(one)) for one in known.values()])

    async def turn(self, turn: str) -> Turn:
        """A turn of a sub-agent; also of the one that this one was forked from."""
        return await read_turn(self._store, turn)

    async def reach(self, id: str, agent: str, *, key: str | None = None) -> tuple[Info, Settings]:
        """The conversation to talk to when a sub-agent is meant. A sub-agent of another branch is forked first."""
        once = reach_key(key, id, agent)
        record = await self._records.find(id)
        while True:
            one = find((await self._beneath.roster_now(record)).values(), agent, record.name)
            if one.closed:
                raise SpawnRefused.agent_closed(one.nickname)
            settings = Settings.from_json(record.settings)
            with suppress(Stale):
                lineage = Lineage("sub_agent", record.id)
                announce = partial(_announced, record, in_place_of=one)
                reached = await self._beneath.reached(lineage, settings, one, key=once, announce=announce)
                break
            record = await self._store.read(record.id)
        self._records.forget(record.id)
        return info_of(reached), Settings.from_json(reached.settings)

    async def close(self, id: str, agent: str) -> Member:
        """Closes a sub-agent, and cancels what it does."""
        record = await self._records.find(id)
        one = find((await self._beneath.roster_now(record)).values(), agent, record.name)
        if not one.closed:
            await self._idle(record.id)
            await self._beneath.let_go(one, record.id)
            closed = SubAgentFinished(None, one.conversation, "closed", one.turn)
            await self._store.note(record.id, new_id(), [NewEvent(closed)], by=actor())
            self._records.forget(record.id)
        return as_member(replace(one, closed=True), await self._last_of(one))

    async def _spawned(
        self, record: StoredConversation, options: SpawnOptions, agent: Agent | None, once: IdempotencyKey | None
    ) -> StoredConversation:
        settings = Settings.from_json(record.settings)
        bound = agent or settings.bound()
        if bound is None:
            raise SpawnRefused("the conversation has no agent")
        bound = self._planner.agent_for(record.settings, bound)
        parent = Parent(record.id, bound, settings, identity_of(record))
        child = child_of(parent, options.id, options.task, await self._beneath.roster_now(record), given=options.agent)
        new = new_child(options.id, child, Lineage("sub_agent", record.id), record.family, None)
        new = replace(new, title=options.title, tags=stored_tags(options.tags), budget=options.budget)
        events = as_in_the_shell_of(await self._store.state(record.id))
        return await self._store.create(new, events, key=once, announced=_announced(record, new))

    async def _made_before(self, key: IdempotencyKey) -> StoredConversation | None:
        """The sub-agent that an earlier request with this key made; None if the key is free."""
        made = await self._store.made_with(key, "create")
        assert made is None or isinstance(made, StoredConversation)
        return made

    async def _idle(self, id: str) -> StoredConversation:
        """A conversation that something is to be noted in, and that is no draft. Raises `Busy`."""
        record = await self._store.read(id)
        await check_idle(self._store, record)
        return await self._store.admit(id) if record.draft else record

    async def _last_of(self, one: Known) -> Turn | None:
        """The newest turn of a sub-agent, whoever asked for it."""
        try:
            record = await self._store.read(one.conversation)
        except NotFound:
            return None
        if record.open_turn is not None:
            return await read_turn(self._store, record.open_turn)
        found = [
            turn.id for turn in await self._turns.reader.own_turns(record, since=record.head.ordinal)
        ]  # those that failed
        if (last := await self._turns.reader.last(record)) is not None and last.conversation == record.id:
            found.append(last.id)
        newest = max(found, default=one.turn)
        return None if newest is None else await read_turn(self._store, newest)

    async def discard_beneath(self, id: str, turn: str | None) -> None:
        """Discards what sub-agents had begun for a turn that is discarded, at any depth.

        The same for turns that have ended, if the process that ended them was killed before it could. A sub-agent's
        turn that waits for somebody's approval goes on waiting then.
        """
        async for child in self._beneath.children(id):
            if child.open_turn is None or child.status == "running":
                continue
            begun = await self._store.turn(child.open_turn)
            caller = caller_of(begun.input)
            if caller is None:
                continue
            if caller == turn or (child.status == "interrupted" and await self._has_ended(caller)):
                with suppress(ForkpointError):
                    await self._turns.discard(child.id, begun.id)

    async def _has_ended(self, turn: str) -> bool:
        try:
            return (await self._store.turn(turn)).outcome in ("committed", "failed", "cancelled")
        except NotFound:
            return True


def _announced(parent: StoredConversation, child: NewConversation, in_place_of: Known | None = None) -> Announcement:
    """What its parent records of a sub-agent that no call asked for, while the parent is where it was read.

    ``in_place_of`` is the sub-agent of another branch that the child is a fork of.
    """
    place = Settings.from_json(child.settings).sub_agent
    assert place is not None, "a sub-agent says whose it is"
    told = SubAgentSpawned(None, child.id, place.task, nickname=place.nickname, agent_role=place.role, path=place.path)
    if in_place_of is not None:
        told = replace(told, task=in_place_of.task, turn=in_place_of.turn, replaces=in_place_of.conversation)
    return Announcement(conversation=parent.id, events=(NewEvent(told),), if_revision=parent.revision, by=actor())
