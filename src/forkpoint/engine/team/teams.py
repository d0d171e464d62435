"""Teams: the sub-agents of a store's conversations, made, found and let go of; in a turn and from outside."""

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property

import msgspec
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.agent.budget import Budget
from forkpoint.agent.team.tools import Member, Task
from forkpoint.backend.callbacks import Callback, Update
from forkpoint.backend.messages import caller_of
from forkpoint.backend.protocol import SpawnOptions
from forkpoint.backend.results import Info, Turn
from forkpoint.backend.settings import Settings
from forkpoint.engine.record_cache import check_idle
from forkpoint.engine.team.running import RunningTeam, member_of
from forkpoint.engine.team.spawn import (
    NO_CALL,
    SEEN,
    Child,
    Parent,
    as_fork,
    as_in_the_shell_of,
    child_of,
    known_agent,
    opening,
    place_of,
    window,
)
from forkpoint.engine.turns.active_turns import RunsTurns
from forkpoint.engine.turns.journal import Steps
from forkpoint.engine.turns.transaction import Plan, read_turn
from forkpoint.engine.views import identity_of, info_of, stored_tags
from forkpoint.errors import (
    AgentClosed,
    BadPosition,
    ForkpointError,
    NoSuchAgent,
    NotFound,
    OutcomeUnknown,
    SpawnRefused,
    Stale,
)
from forkpoint.events import NewEvent, Position, SubAgentFinished, SubAgentSpawned, Usage
from forkpoint.history.roster import Known, find, roster
from forkpoint.ids import new_id
from forkpoint.llm.prompt.identity import own_identity
from forkpoint.store.protocol import Store
from forkpoint.store.records import (
    ConversationRecord,
    Head,
    IdempotencyKey,
    Lineage,
    NewConversation,
    Onto,
    TurnRecord,
)

_NOTES = 64  # events of notes among which the last turn is looked for

_KINDS = ("sub_agent_spawned", "sub_agent_finished")


class RunsTeams(RunsTurns):
    """Runs turns, and those of the sub-agents beneath them."""

    @property
    def store(self) -> Store:
        return self._store

    def _team_for(self, plan: Plan, steps: Steps, budget: Budget) -> RunningTeam | None:
        if plan.agent.sub_agents is None:
            return None
        return RunningTeam(self, plan, steps, budget, self._beside or _nobody)

    # From outside of a turn.

    async def spawn(
        self, parent: str, options: SpawnOptions, agent: Agent | None, *, key: str | None = None
    ) -> tuple[Info, Settings]:
        once = None if key is None else IdempotencyKey(key, _request_of(parent, options))
        record = await self._records.find(parent)
        made = None if once is None else await self._made_before(options.id, once)
        if made is not None:
            await self._note(record.id, made, _spawned_as(made))
        elif as_fork(options.fork) != "none":
            raise SpawnRefused(NO_CALL)
        await self.end_what_could_not_be_ended(record.id)
        while made is None:
            record = await self._idle(record.id)
            child = await self._spawned(record, options, agent, once)
            with suppress(Stale):  # somebody else's came first: nicknames and how many there are are another matter now
                await self._note(record.id, child, _spawned_as(child), if_revision=record.revision)
                made = child
        return info_of(made), Settings.from_json(made.settings)

    async def agents(self, id: str) -> tuple[Member, ...]:
        record = await self._records.find(id)
        known = await self._roster_now(record)
        return tuple([member_of(one, await self._last_of(one)) for one in known.values()])

    async def reach(self, id: str, agent: str, *, key: str | None = None) -> tuple[Info, Settings]:
        once = None if key is None else IdempotencyKey(key, hashlib.sha256(f"reach {id} {agent}".encode()).digest())
        record = await self._records.find(id)
        while True:
            one = self.member(await self._roster_now(record), agent, record.name)
            if one.closed:
                raise AgentClosed(one.nickname)
            settings = Settings.from_json(record.settings)
            reached = await self._reached(record.id, settings, one, turn=None, call=None, key=once)
            if reached.id == one.conversation:
                break
            told = replace(_spawned_as(reached), task=one.task, turn=one.turn, replaces=one.conversation)
            with suppress(Stale):
                await self._note(record.id, reached, told, if_revision=record.revision)
                break
            record = await self._store.read(record.id)
        return info_of(reached), Settings.from_json(reached.settings)

    async def close_agent(self, id: str, agent: str) -> Member:
        record = await self._records.find(id)
        one = self.member(await self._roster_now(record), agent, record.name)
        if not one.closed:
            await self._idle(record.id)
            await self.let_go(one, record.id)
            closed = SubAgentFinished(None, one.conversation, "closed", one.turn)
            await self._store.note(record.id, new_id(), [NewEvent(closed)])
            self._records.forget(record.id)
        return member_of(replace(one, closed=True), await self._last_of(one))

    # For turns that run.

    def member(self, known: Mapping[str, Known], name: str, conversation: str) -> Known:
        """The sub-agent that is meant by a nickname, a path or an id. Raises `NoSuchAgent`."""
        if (one := find(known, name)) is None:
            there = ", ".join(one.nickname for one in known.values() if not one.closed) or "none"
            raise NoSuchAgent(name[:200], conversation, there)
        return one

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

    async def made_before(self, parent: Parent, turn: str, once: str) -> tuple[ConversationRecord, Agent] | None:
        """The sub-agent that a call of a turn has made before it was resumed. It needs no room among the others."""
        for child in await self._children_of(parent.id, turn):
            if child.lineage.call == once:
                return child, self.agent_of(parent, child)
        return None

    async def _children_of(self, parent: str, turn: str) -> list[ConversationRecord]:
        """The sub-agents that calls of a turn have made, in the order in which they were."""
        found: list[ConversationRecord] = []
        cursor: str | None = None
        while True:
            page = await self._store.conversations(cursor=cursor, limit=1000, parent=parent)
            found += [child for child in page.items if child.lineage.turn == turn]
            cursor = page.next
            if cursor is None:
                return sorted(found, key=lambda child: child.id)

    async def make_child(
        self, parent: Parent, task: Task, team: Mapping[str, Known], steps: Steps, call: str, *, once: str
    ) -> tuple[ConversationRecord, Agent]:
        """The sub-agent that a call of a running turn asks for: made now, or found, if it was before."""
        turn, id = steps.turn, new_id()
        path = turn.branch or turn.conversation
        child = child_of(parent, id, task, team)
        fork = child.place.fork
        events = as_in_the_shell_of(steps.state) if fork == "none" else opening(child, turn.id, call, steps.so_far)
        if isinstance(fork, int) and turn.base.position is not None:
            events += window(await self._store.events(path, at=turn.base.position, kinds=SEEN), fork)
        record = await self._store.read(turn.conversation)
        if record.draft:  # whatever becomes of its first turn, the sub-agent stays, and hangs on it
            await self._store.admit(record.id)
        onto = None if fork == "none" else Onto(path, turn.base.position)
        lineage = Lineage("sub_agent", parent.id, turn=turn.id, call=once)
        made = await self._store.create(_new(id, child, lineage, turn.family, onto), events)
        return made, child.agent if made.id == id else self.agent_of(parent, made)

    def agent_of(self, parent: Parent, child: ConversationRecord) -> Agent:
        """Who a sub-agent is that was made earlier, with the functions of its parent's agent. Raises `CannotResume`."""
        settings = Settings.from_json(child.settings)
        known = known_agent(parent.agent, settings)
        return settings.bound(known) or known

    async def reached(self, parent: Parent, one: Known, *, turn: str, call: str) -> ConversationRecord:
        """The conversation to talk to from here when a sub-agent is meant: itself, or a fork of it.

        One that belongs to another branch, or that another branch has moved on, is forked where this path knows it.
        """
        return await self._reached(parent.id, parent.settings, one, turn=turn, call=call)

    async def let_go(self, one: Known, parent: str) -> None:
        """Stops what a sub-agent does, if it does it here, and ends what waits or was interrupted, if it is ours."""
        try:
            record = await self._store.read(one.conversation)
        except NotFound:
            return
        if record.open_turn is None or not _is_of(record, parent):
            return
        if record.id in self._running:
            with suppress(ForkpointError):
                await self.cancel(record.id)
        elif record.status != "running":
            with suppress(ForkpointError):
                await self.discard(record.id, record.open_turn)

    # What the disk did not let end.

    @cached_property
    def _left(self) -> dict[str, set[str]]:
        """Sub-agents whose turns the disk did not let end, by their parents."""
        return {}

    def leave(self, parent: str, children: Iterable[str]) -> None:
        """Keeps in mind which of these sub-agents have turns that the disk did not let end."""
        if left := {one for one in children if self._is_left(one)}:
            self._left.setdefault(parent, set()).update(left)

    def leave_unknown(self, child: str, unknown: OutcomeUnknown) -> None:
        """Keeps in mind a sub-agent's turn that began or ended, or not: only the disk knows."""
        if unknown.what == "turn":
            self._unknown[child] = unknown.id

    async def end_beneath(self, parent: str) -> None:
        """Ends what the disk did not let end beneath a conversation; what it does not take now either, next time."""
        for child in list(self._left.get(parent, ())):
            with suppress(ForkpointError):
                await self.end_what_could_not_be_ended(child)
            if not self._is_left(child):
                self._left.get(parent, set()).discard(child)
        if not self._left.get(parent):
            self._left.pop(parent, None)

    async def end_what_could_not_be_ended(self, id: str) -> None:
        await super().end_what_could_not_be_ended(id)
        await self.end_beneath(id)

    def _is_left(self, id: str) -> bool:
        return id in self._unended or id in self._unknown or id in self._left

    # Making and finding.

    async def _spawned(
        self, record: ConversationRecord, options: SpawnOptions, agent: Agent | None, once: IdempotencyKey | None
    ) -> ConversationRecord:
        settings = Settings.from_json(record.settings)
        bound = agent or settings.bound()
        if bound is None:
            raise SpawnRefused("the conversation has no agent")
        bound = self._planner.agent_for(record.settings, bound)
        task = Task(
            task=options.task,
            role=options.role,
            agent=options.agent_name,
            model=options.model,
            nickname=options.nickname,
            fork=options.fork,
        )
        parent = Parent(record.id, bound, settings, identity_of(record))
        child = child_of(parent, options.id, task, await self._roster_now(record), given=options.agent)
        new = _new(options.id, child, Lineage("sub_agent", record.id), record.family, None)
        new = replace(new, title=options.title, tags=stored_tags(options.tags))
        return await self._store.create(new, as_in_the_shell_of(await self._store.state(record.id)), key=once)

    async def _made_before(self, id: str, once: IdempotencyKey) -> ConversationRecord | None:
        """The sub-agent that an earlier request with this key made; None if the key is free."""
        made = await self._store.made_with(once, "create")
        assert made is None or isinstance(made, ConversationRecord)
        return made

    async def _idle(self, id: str) -> ConversationRecord:
        """A conversation that something is to be noted in, and that is no draft. Raises `Busy`."""
        record = await self._store.read(id)
        check_idle(record)
        return await self._store.admit(id) if record.draft else record

    async def _note(
        self, parent: str, child: ConversationRecord, told: SubAgentSpawned, *, if_revision: int | None = None
    ) -> None:
        """Records a sub-agent on its parent's path, under the sub-agent's own id: so that it is there once.

        Raises `Stale` if the parent has moved since it was decided. One that is not recorded is none.
        """
        try:
            await self._store.note(parent, child.id, [NewEvent(told)], if_revision=if_revision)
        except OutcomeUnknown:
            raise  # it may well be recorded
        except ForkpointError:
            with suppress(ForkpointError):
                await self._store.delete(child.id, if_revision=child.revision)
            raise
        finally:
            self._records.forget(parent)

    async def _reached(
        self,
        parent: str,
        settings: Settings,
        one: Known,
        *,
        turn: str | None,
        call: str | None,
        key: IdempotencyKey | None = None,
    ) -> ConversationRecord:
        there = await self._store.read(one.conversation)
        at, is_known = await self._where(there, one, parent)
        if _is_of(there, parent) and (is_known or not await self._was_moved(there, at, turn)):
            return there
        theirs = Settings.from_json(there.settings)
        place = theirs.sub_agent
        assert place is not None, "a sub-agent says whose it is"
        path, depth = place_of(settings)
        ours = replace(place, parent=parent, path=f"{path}/{one.nickname}", depth=depth + 1)
        # It works where its parent does, which may be a fork with a folder of its own.
        here = replace(theirs, workspace=settings.workspace, made=settings.made, placed=settings.placed)
        id = new_id()
        new = NewConversation(
            id=id,
            settings=replace(here, sub_agent=ours).to_json(),
            cache=own_identity(id).to_json(),
            lineage=Lineage("sub_agent", parent, turn=turn, call=call),
            family=there.family,
        )
        for branch in (there.id, *await self._asides_of(there)):  # somebody may have rewound it since
            with suppress(BadPosition, NotFound):
                return await self._store.create(replace(new, onto=Onto(branch, at)), key=key)
        raise SpawnRefused(f"what {one.nickname} said in this branch was deleted; spawn another one")

    async def _where(self, there: ConversationRecord, one: Known, parent: str) -> tuple[Position | None, bool]:
        """Where this path knows a sub-agent to stand, and whether it stands just there."""
        if one.turn is None:
            at = await self._before(there, parent)
            return at, at == there.head.position
        turn = await self._store.turn(one.turn)
        at = turn.end if turn.outcome == "committed" else turn.base
        return at, at == there.head.position

    async def _before(self, there: ConversationRecord, parent: str) -> Position | None:
        """Where a sub-agent that no call has set to work stood when this branch parted from the one that has it.

        What a turn has told it since is not on this path, which knows of none.
        """
        whose = Settings.from_json(there.settings).sub_agent
        branch = await self._store.read(parent)
        while whose is not None and branch.lineage.source not in (None, whose.parent) and branch.id != whose.parent:
            try:
                branch = await self._store.read(branch.lineage.source or "")
            except NotFound:
                break
        is_its_own = whose is None or branch.id == whose.parent
        for turn in await self._own_turns(there, since=there.own_from):
            came_later = not is_its_own and turn.id > branch.id  # ids tell the time
            if turn.outcome == "committed" and (came_later or caller_of(turn.input) is not None):
                return turn.base
        return there.head.position

    async def _asides_of(self, there: ConversationRecord) -> list[str]:
        """The branches that were set aside from a conversation."""
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = await self._store.conversations(cursor=cursor, limit=1000, family=there.family)
            found += [one.id for one in page.items if one.lineage.kind == "aside" and one.lineage.source == there.id]
            cursor = page.next
            if cursor is None:
                return found

    async def _was_moved(self, there: ConversationRecord, at: Position | None, turn: str | None) -> bool:
        """Whether another turn of a parent has moved a sub-agent on from there.

        What somebody told it himself is no reason to part, nor what this very turn did before it was resumed.
        """
        cursor: str | None = None
        since = 0 if at is None else at.ordinal
        while True:
            page = await self._store.turns(there.id, cursor=cursor, limit=1000, since=since)
            if any(one.outcome == "committed" and caller_of(one.input) not in (None, turn) for one in page.items):
                return True
            cursor = page.next
            if cursor is None:
                return False

    async def _roster_now(self, record: ConversationRecord) -> dict[str, Known]:
        """The sub-agents that a conversation knows of, those of a turn that runs too."""
        under, _ = place_of(Settings.from_json(record.settings))
        known = await self.roster_at(record.id, record.head, under)
        if record.open_turn is None:
            return known
        return roster((step.body for step in await self._store.steps(record.open_turn)), known)

    async def _last_of(self, one: Known) -> Turn | None:
        """The newest turn of a sub-agent, whoever asked for it."""
        try:
            record = await self._store.read(one.conversation)
        except NotFound:
            return None
        if record.open_turn is not None:
            return await read_turn(self._store, record.open_turn)
        found = [turn.id for turn in await self._own_turns(record, since=record.head.ordinal)]  # those that failed
        if (last := await self._last_turn(record)) is not None and last.conversation == record.id:
            found.append(last.id)
        newest = max(found, default=one.turn)
        return None if newest is None else await read_turn(self._store, newest)

    async def _last_turn(self, record: ConversationRecord) -> TurnRecord | None:
        """The turn that was committed last. Notes may stand after it, though rarely many."""
        seen: set[str] = set()
        for event in reversed(await self._store.events(record.id, last=_NOTES)):
            if event.turn not in seen and (turn := await self._store.turn(event.turn)).kind == "turn":
                return turn
            seen.add(event.turn)
        return None

    async def _own_turns(self, record: ConversationRecord, *, since: int = 0) -> list[TurnRecord]:
        """A conversation's own turns, in the order of its path; all that it inherited aside."""
        found: list[TurnRecord] = []
        cursor: str | None = None
        while True:
            page = await self._store.turns(record.id, cursor=cursor, limit=1000, since=since)
            found += [turn for turn in page.items if turn.kind == "turn" and turn.conversation == record.id]
            cursor = page.next
            if cursor is None:
                return found

    async def used_beneath(self, conversation: str, turn: str) -> tuple[Usage, int]:
        """What sub-agents have used for a turn, at any depth, and how often they asked a model."""
        used, steps = Usage(), 0
        cursor: str | None = None
        while True:
            page = await self._store.conversations(cursor=cursor, limit=1000, parent=conversation)
            for child in page.items:
                for own in await self._own_turns(child, since=child.own_from):
                    if caller_of(own.input) == turn:
                        beneath, more = await self.used_beneath(child.id, own.id)
                        used, steps = used + own.usage + beneath, steps + own.usage.calls + more
            cursor = page.next
            if cursor is None:
                return used, steps

    async def _discard_beneath(self, id: str, turn: str | None) -> None:
        """What sub-agents had begun for a turn that is discarded is discarded too, at any depth.

        So is what they had begun for turns that have ended, if whoever ended those was killed at it. What waits for
        somebody's approval then goes on waiting.
        """
        cursor: str | None = None
        while True:
            page = await self._store.conversations(cursor=cursor, limit=1000, parent=id)
            for child in page.items:
                if child.open_turn is None or child.status == "running":
                    continue
                begun = await self._store.turn(child.open_turn)
                caller = caller_of(begun.input)
                if caller is None:
                    continue
                if caller == turn or (child.status == "interrupted" and await self._has_ended(caller)):
                    with suppress(ForkpointError):
                        await self.discard(child.id, begun.id)
            cursor = page.next
            if cursor is None:
                return

    async def _has_ended(self, turn: str) -> bool:
        try:
            return (await self._store.turn(turn)).outcome in ("committed", "failed", "cancelled")
        except NotFound:
            return True


def _new(id: str, child: Child, lineage: Lineage, family: str, onto: Onto | None) -> NewConversation:
    return NewConversation(
        id=id,
        settings=child.settings.to_json(),
        cache=child.identity.to_json(),
        lineage=lineage,
        family=family,
        onto=onto,
    )


def _spawned_as(child: ConversationRecord) -> SubAgentSpawned:
    """What its parent records of a sub-agent that no call asked for."""
    place = Settings.from_json(child.settings).sub_agent
    assert place is not None, "a sub-agent says whose it is"
    return SubAgentSpawned(None, child.id, place.task, nickname=place.nickname, agent_role=place.role, path=place.path)


def _is_of(record: ConversationRecord, parent: str) -> bool:
    place = Settings.from_json(record.settings).sub_agent
    return place is not None and place.parent == parent


def _request_of(parent: str, options: SpawnOptions) -> bytes:
    """What tells one request from another that has the same key."""

    agent = None if options.agent is None else options.agent.to_json()
    asked = (parent, options.task, options.role, agent, options.agent_name, options.model, options.nickname)
    said = (*asked, options.fork, options.title, sorted(options.tags.items()))
    return hashlib.sha256(msgspec.json.encode(said)).digest()


def _nobody(_: str) -> Callback:
    def told(_: Update) -> None:
        """Nobody follows sub-agents here."""

    return told
