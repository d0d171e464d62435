"""Children: the sub-agents beneath a conversation, as its path knows them, and how they are made and reached.
Tests: tests/conversation/test_sub_agents.py, test_team_faults.py, test_team_properties.py."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.agent.team.tools import Task
from forkpoint.backend.callbacks import Callback, Update
from forkpoint.backend.messages import caller_of
from forkpoint.backend.settings import Settings
from forkpoint.engine.resources import Resources
from forkpoint.engine.team.spawn import (
    SEEN,
    Child,
    Parent,
    as_in_the_shell_of,
    child_of,
    known_agent,
    opening,
    place_of,
    window,
)
from forkpoint.engine.turns.journal import Steps
from forkpoint.engine.turns.runner import TurnRunner
from forkpoint.errors import BadPosition, ForkpointError, NotFound, SpawnRefused
from forkpoint.events import Position, Usage
from forkpoint.history.roster import Known, roster
from forkpoint.ids import new_id
from forkpoint.llm.prompt.identity import own_identity
from forkpoint.paging import every
from forkpoint.store.values import (
    Announcement,
    Head,
    IdempotencyKey,
    Lineage,
    NewConversation,
    Onto,
    StoredConversation,
)

_KINDS = ("sub_agent_spawned", "sub_agent_finished")


class Children:
    """The sub-agents beneath conversations, as turns that run need them."""

    def __init__(self, resources: Resources, turns: TurnRunner) -> None:
        self._store = resources.store
        self._beside = resources.beside or _nobody
        self._turns = turns

    def told_of(self, conversation: str) -> Callback:
        """Who is told of the turns of a sub-agent."""
        return self._beside(conversation)

    async def roster_at(self, path: str, head: Head, under: str) -> dict[str, Known]:
        """The sub-agents that a path knows of: those beneath it, and not those that it was made beside."""
        if head.position is None:
            return {}
        events = await self._store.events(path, at=head.position, kinds=_KINDS)
        known = roster(event.body for event in events)
        return {path: one for path, one in known.items() if path.startswith(f"{under}/")}

    async def made_by(self, parent: str, turn: str, known: Mapping[str, Known]) -> dict[str, Known]:
        """The sub-agents that calls of a turn have made, and that nothing is recorded of yet."""
        there = {one.conversation for one in known.values()}
        found: dict[str, Known] = {}
        for child in await self._children_of(parent, turn):
            place = Settings.from_json(child.settings).sub_agent
            if child.id not in there and place is not None:
                found[place.path] = Known(child.id, place.path, place.nickname, place.role, place.task)
        return found

    async def made_before(self, parent: Parent, turn: str, once: str) -> tuple[StoredConversation, Agent] | None:
        """The sub-agent that a call of a turn has made before it was resumed. It needs no room among the others."""
        for child in await self._children_of(parent.id, turn):
            if child.lineage.call == once:
                return child, self.agent_of(parent, child)
        return None

    async def _children_of(self, parent: str, turn: str) -> list[StoredConversation]:
        """The sub-agents that calls of a turn have made, in the order in which they were."""
        found = [child async for child in self.children(parent) if child.lineage.turn == turn]
        return sorted(found, key=lambda child: child.id)

    def children(self, parent: str) -> AsyncIterator[StoredConversation]:
        return every(partial(self._store.conversations, parent=parent))

    async def make_child(
        self, parent: Parent, task: Task, team: Mapping[str, Known], steps: Steps, call: str, *, once: str
    ) -> tuple[StoredConversation, Agent]:
        """The sub-agent that a call of a running turn asks for: made now, or found, if it was before."""
        turn, id = steps.turn, new_id()
        path = turn.branch or turn.conversation
        child = child_of(parent, id, task, team)
        fork = child.place.fork
        events = as_in_the_shell_of(steps.state) if fork == "none" else opening(child, turn.id, call, steps.so_far)
        if isinstance(fork, int) and turn.base.position is not None:
            after = turn.state.kept_from - 1  # what is before that cannot be seen anyway
            events += window(await self._store.events(path, at=turn.base.position, after=after, kinds=SEEN), fork)
        record = await self._store.read(turn.conversation)
        if record.draft:  # whatever becomes of its first turn, the sub-agent stays, and hangs on it
            await self._store.admit(record.id)
        onto = None if fork == "none" else Onto(path, turn.base.position)
        lineage = Lineage("sub_agent", parent.id, turn=turn.id, call=once)
        made = await self._store.create(new_child(id, child, lineage, turn.family, onto), events)
        return made, child.agent if made.id == id else self.agent_of(parent, made)

    def agent_of(self, parent: Parent, child: StoredConversation) -> Agent:
        """Who a sub-agent is that was made earlier, with the functions of its parent's agent. Raises `CannotResume`."""
        settings = Settings.from_json(child.settings)
        known = known_agent(parent.agent, settings)
        return settings.bound(known) or known

    async def let_go(self, one: Known, parent: str) -> None:
        """Cancels what a sub-agent does, wherever it runs, and ends what waits or was interrupted, if it is ours."""
        try:
            record = await self._store.read(one.conversation)
        except NotFound:
            return
        if record.open_turn is None or not _is_of(record, parent):
            return
        with suppress(ForkpointError):
            if record.status == "awaiting_approval":
                await self._turns.discard(record.id, record.open_turn)
            else:
                await self._turns.cancel(record.id, record.open_turn)

    async def reached(
        self,
        lineage: Lineage,
        settings: Settings,
        one: Known,
        *,
        key: IdempotencyKey | None = None,
        announce: Callable[[NewConversation], Announcement] | None = None,
    ) -> StoredConversation:
        """The conversation to talk to from here when a sub-agent is meant: itself, or a fork of it.

        A sub-agent of another branch, or that another branch has moved on, is forked where this path knows it.
        ``lineage`` is that of the fork: its source is the parent, whose settings are given. ``announce`` says what the
        parent notes of the fork, in the same transaction.
        """
        parent = lineage.source
        assert parent is not None, "a sub-agent has a parent"
        there = await self._store.read(one.conversation)
        at, is_known = await self._where(there, one, parent)
        if _is_of(there, parent) and (is_known or not await self._was_moved(there, at, lineage.turn)):
            return there
        theirs = Settings.from_json(there.settings)
        place = theirs.sub_agent
        assert place is not None, "a sub-agent says whose it is"
        path, depth = place_of(settings)
        ours = replace(place, parent=parent, path=f"{path}/{one.nickname}", depth=depth + 1)
        # It works where its parent does, which may be a fork with a folder of its own.
        here = theirs.at(settings)
        id = new_id()
        new = NewConversation(
            id=id,
            settings=replace(here, sub_agent=ours).to_json(),
            cache=own_identity(id).to_json(),
            lineage=lineage,
            family=there.family,
        )
        announced = None if announce is None else announce(new)
        for branch in (there.id, *await self._asides_of(there)):  # somebody may have rewound it since
            with suppress(BadPosition, NotFound):
                return await self._store.create(replace(new, onto=Onto(branch, at)), key=key, announced=announced)
        raise SpawnRefused(f"what {one.nickname} said in this branch was deleted; spawn another one")

    async def _where(self, there: StoredConversation, one: Known, parent: str) -> tuple[Position | None, bool]:
        """Where this path knows a sub-agent to stand, and whether it stands just there."""
        if one.turn is None:
            at = await self._before(there, parent)
            return at, at == there.head.position
        turn = await self._store.turn(one.turn)
        at = turn.end if turn.outcome == "committed" else turn.base
        return at, at == there.head.position

    async def _before(self, there: StoredConversation, parent: str) -> Position | None:
        """The sub-agent's head when this branch was forked off, for sub-agents that were spawned outside of a turn.

        Messages that turns of another branch sent it since are not on this path.
        """
        whose = Settings.from_json(there.settings).sub_agent
        branch = await self._store.read(parent)
        while whose is not None and branch.lineage.source not in (None, whose.parent) and branch.id != whose.parent:
            try:
                branch = await self._store.read(branch.lineage.source or "")
            except NotFound:
                break
        is_its_own = whose is None or branch.id == whose.parent
        for turn in await self._turns.reader.own_turns(there, since=there.own_from):
            came_later = not is_its_own and turn.id > branch.id  # ids tell the time
            if turn.outcome == "committed" and (came_later or caller_of(turn.input) is not None):
                return turn.base
        return there.head.position

    async def _asides_of(self, there: StoredConversation) -> list[str]:
        """The branches that were set aside from a conversation."""
        family = every(partial(self._store.conversations, family=there.family))
        return [one.id async for one in family if one.lineage.kind == "aside" and one.lineage.source == there.id]

    async def _was_moved(self, there: StoredConversation, at: Position | None, turn: str | None) -> bool:
        """Whether another turn of a parent has moved a sub-agent on from there.

        What somebody told it himself is no reason to part, nor what this very turn did before it was resumed.
        """
        since = 0 if at is None else at.ordinal
        async for one in self._turns.reader.all(there.id, since=since):
            if one.outcome == "committed" and caller_of(one.input) not in (None, turn):
                return True
        return False

    async def roster_now(self, record: StoredConversation) -> dict[str, Known]:
        """The sub-agents that a conversation knows of, those of a turn that runs too."""
        under, _ = place_of(Settings.from_json(record.settings))
        known = await self.roster_at(record.id, record.head, under)
        if record.open_turn is None:
            return known
        return roster((step.body for step in await self._store.steps(record.open_turn)), known)

    async def used_beneath(self, conversation: str, turn: str) -> tuple[Usage, int]:
        """What sub-agents have used for a turn, at any depth, and how often they asked a model."""
        used, steps = Usage(), 0
        async for child in self.children(conversation):
            for own in await self._turns.reader.own_turns(child, since=child.own_from):
                if caller_of(own.input) == turn:
                    beneath, more = await self.used_beneath(child.id, own.id)
                    used, steps = used + own.usage + beneath, steps + own.usage.calls + more
        return used, steps


def new_child(id: str, child: Child, lineage: Lineage, family: str, onto: Onto | None) -> NewConversation:
    return NewConversation(
        id=id,
        settings=child.settings.to_json(),
        cache=child.identity.to_json(),
        lineage=lineage,
        family=family,
        onto=onto,
    )


def _is_of(record: StoredConversation, parent: str) -> bool:
    place = Settings.from_json(record.settings).sub_agent
    return place is not None and place.parent == parent


def _nobody(_: str) -> Callback:
    def told(_: Update) -> None:
        """Nobody follows sub-agents here."""

    return told
