"""The team of a turn: its sub-agents, at work while it runs.

Each sub-agent's turn is a task inside of its parent's turn, and a transaction of its own. The parent's turn ends only
when nothing runs beneath it any more: what still works then is cancelled, unless the parent only waits for somebody.

Which sub-agents there are is read off the parent's path (`history.roster`), so a turn that was resumed by another
process, a fork, and a conversation that was rewound each find theirs. A sub-agent is made once for a call, and a
message given once: asked again by a resumed turn, the same sub-agent goes on with the same turn.
Tests: tests/conversation/test_sub_agents.py.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import anyio
import anyio.abc
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.agent.budget import TurnBudget
from forkpoint.agent.loop import Waiting, stand
from forkpoint.agent.team.tools import Caller, Member, MemberStatus, Task
from forkpoint.backend.callbacks import Callback, Update
from forkpoint.backend.messages import as_message, caller_of, write_input
from forkpoint.backend.options import Continuation, How, NewTurn
from forkpoint.backend.results import Turn
from forkpoint.backend.settings import Settings
from forkpoint.engine.team.children import Children
from forkpoint.engine.team.spawn import Parent
from forkpoint.engine.turns.journal import Steps
from forkpoint.engine.turns.reader import read_turn
from forkpoint.engine.turns.runner import TurnRunner
from forkpoint.engine.turns.transaction import Plan
from forkpoint.errors import (
    BadArgument,
    ForkpointError,
    KeyReused,
    NotFound,
    OutcomeUnknown,
    SpawnRefused,
    TurnCancelled,
    TurnFailed,
    TurnOpen,
)
from forkpoint.events import NewEvent, SubAgentFinished, SubAgentSpawned, ToolCall
from forkpoint.history.roster import Known, find, in_order, roster
from forkpoint.polling import pauses
from forkpoint.store.values import Lineage
from forkpoint.updates import TurnJoined, TurnStarted

_log = logging.getLogger("forkpoint")

T = TypeVar("T")

_PRIVATE = frozenset({"mcp_failed", "no_secret"})  # they tell of programs and places that no model needs to know

_IN_THE_WAY = {
    "busy": "it is at work for somebody else",
    "turn_open": "somebody has to decide first on what it wants to do",
}
"""What is in the way of a message, in words that do not depend on ids: a retry tells its model the same."""

POLL = 0.05, 1.0  # seconds between two looks at a sub-agent that another process runs, at first and at most


class _Working:
    """A sub-agent that was set to work in this turn, by this process."""

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self.ended = anyio.Event()
        self.scope = anyio.CancelScope()
        self.turn: str | None = None
        self.result: Turn | None = None
        self.error: str | None = None


class RunningTeam:
    """The sub-agents of one turn that runs here."""

    def __init__(self, children: Children, turns: TurnRunner, plan: Plan, steps: Steps, budget: TurnBudget) -> None:
        turn = steps.turn
        self._children = children
        self._turns = turns
        self._store = turns.store
        self._plan = plan
        self._steps = steps
        self._budget = budget
        self._turn = turn.id
        self._conversation = turn.conversation
        self._path = turn.branch or turn.conversation
        self._is_resumed = turn.staged > 0
        self._is_over = False
        self._known: dict[str, Known] | None = None
        self._working: dict[str, _Working] = {}  # by the path of the sub-agent
        self._order = anyio.Lock()  # sub-agents are made one after the other: each knows the nicknames of all before
        self._making = 0
        self._made = anyio.Condition()
        self._group: anyio.abc.TaskGroup

    async def during(self, work: Callable[[], Awaitable[T]]) -> T:
        """Does the turn's work, with the team at hand. When it returns or raises, nothing runs beneath it any more."""
        ended: list[T] = []
        failed: list[Exception] = []
        if self._is_resumed:
            self._budget.used_before(*await self._children.used_beneath(self._conversation, self._turn))
        try:
            async with anyio.create_task_group() as self._group:
                try:
                    ended.append(await work())
                except Exception as error:
                    failed.append(error)
                if ended and self._goes_on(ended[0]):  # later, and shall find their answers then
                    for one in list(self._working.values()):
                        await one.ended.wait()
                else:
                    self._group.cancel_scope.cancel()
        finally:
            self._is_over = True
            self._turns.unended.leave(self._conversation, self._at_work)
        await self._turns.unended.end_beneath(self._conversation)
        if failed:
            raise failed[0]
        await self._end()
        return ended[0]

    def _goes_on(self, ended: object) -> bool:
        """Whether the turn only waits for somebody: for an approval, or for the client's result of a call."""
        return isinstance(ended, Waiting) or bool(stand(self._steps.so_far).handed)

    # What tools ask for.

    async def spawn(self, caller: Caller, task: Task) -> Member:
        async with self._being_asked():
            async with self._order:
                team = await self._team()
                parent = await self._parent()
                once = self._once(caller)
                before = await self._children.made_before(parent, self._turn, once) if self._is_resumed else None
                made, agent = before or await self._children.make_child(
                    parent, task, team, self._steps, caller.call_id, once=once
                )
                place = Settings.from_json(made.settings).sub_agent
                assert place is not None
                one = Known(made.id, place.path, place.nickname, place.role, place.task)
                team.setdefault(place.path, one)
            return await self._set_to_work(caller, one, agent, task.task, is_new=True)

    async def send(self, caller: Caller, agent: str, message: str) -> Member:
        async with self._being_asked():
            async with self._order:
                team = await self._team()
                one = await self._meant(agent)
                if one.closed:
                    raise SpawnRefused.agent_closed(one.nickname)
                if (working := self._working.get(one.path)) is not None and not working.ended.is_set():
                    raise SpawnRefused(f"{one.nickname} is still at work; wait for it, or close it")
                parent = await self._parent()
                lineage = Lineage("sub_agent", parent.id, turn=self._turn, call=self._once(caller))
                reached = await self._children.reached(lineage, parent.settings, one)
                theirs = self._children.agent_of(parent, reached)
                replaces = one.conversation if reached.id != one.conversation else None
                one = team[one.path] = replace(one, conversation=reached.id)
            return await self._set_to_work(caller, one, theirs, message, replaces=replaces)

    @asynccontextmanager
    async def _being_asked(self) -> AsyncIterator[None]:
        """Something is set to work: who waits in the same response waits for that first."""
        if self._is_over:
            raise SpawnRefused("the turn has ended")
        self._making += 1
        try:
            yield
        finally:
            self._making -= 1
            with anyio.CancelScope(shield=True):
                async with self._made:
                    self._made.notify_all()

    async def wait(
        self, caller: Caller, agents: Sequence[str], *, seconds: float | None, first: bool
    ) -> tuple[Member, ...]:
        if seconds is not None and not seconds >= 0:
            raise BadArgument("wait_agent", f"seconds={seconds!r}", "it must be 0 or more")
        async with self._made:
            while self._making:  # what the same response asked for before this call
                await self._made.wait()
        team = await self._team()
        if agents:
            meant = [await self._meant(name) for name in agents]
        else:
            meant = [one for one in team.values() if not one.closed and one.heard != one.turn] or [
                one for one in team.values() if not one.closed
            ]
        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as group:

                async def until(one: Known) -> None:
                    await self._ended(one)
                    caller.tell(f"{one.nickname} has ended")
                    if first:
                        group.cancel_scope.cancel()

                for one in meant:
                    group.start_soon(until, one)
        return tuple([await self._heard(caller, await self._team(), one.path) for one in meant])

    async def members(self) -> tuple[Member, ...]:
        return tuple([await self._member(one) for one in (await self._team()).values()])

    async def close(self, caller: Caller, agent: str) -> Member:
        one = await self._meant(agent)
        if (working := self._working.get(one.path)) is not None:
            working.scope.cancel()
            await working.ended.wait()
            one = (await self._team())[one.path]
        if not one.closed:
            await self._children.let_go(one, self._conversation)
        last = await self._member(one)
        if not one.closed:
            self._record(caller, SubAgentFinished(caller.call_id, one.conversation, "closed", one.turn))
        return replace(last, status="closed")

    # Setting to work, and hearing how it went.

    async def _set_to_work(
        self,
        caller: Caller,
        one: Known,
        agent: Agent,
        message: str,
        *,
        is_new: bool = False,
        replaces: str | None = None,
    ) -> Member:
        """Starts a sub-agent's turn, or finds the one that this call started before. Returns when it has begun."""
        given = (as_message(message),)
        working = self._working[one.path] = _Working()
        how = self._how

        async def act(tell: Callback) -> Turn:
            was_begun = False

            def listen(update: Update) -> None:
                nonlocal was_begun
                was_begun = was_begun or isinstance(update, TurnJoined)
                tell(update)

            async def give(*, supersede: bool = False) -> Turn:
                key = f"agent:{caller.key}"
                new = NewTurn(given=given, key=key, supersede=supersede, how=how)
                return await self._turns.run(one.conversation, agent, new, listen)

            try:
                try:
                    return await give()
                except KeyReused:  # it was given before, past a turn that stood in its way
                    return await give(supersede=True)
            except TurnFailed as ended:
                if not (was_begun and self._is_resumed):
                    raise
                # It was stopped when this turn ended, or met what this one met. Nobody was told: it goes on too.
                return await self._turns.resume(one.conversation, ended.id, agent, Continuation(how=how), tell)
            except TurnOpen as stands:
                if stands.outcome != "interrupted":
                    raise  # somebody has to decide on what it wants to do
                begun = await self._store.turn(stands.turn)
                if begun.input == write_input(given, caller=how.caller):  # this very turn, whose process died
                    return await self._turns.resume(one.conversation, begun.id, agent, Continuation(how=how), tell)
                return await give(supersede=True)

        self._group.start_soon(self._work, one, working, act)
        await working.begun.wait()
        if working.turn is None and not is_new and replaces is None:  # nobody has heard the message
            del self._working[one.path]
            raise SpawnRefused(f"{one.nickname} takes no message now ({working.error})")
        spawned = SubAgentSpawned(
            caller.call_id,
            one.conversation,
            message,
            nickname=one.nickname,
            agent_role=one.role,
            path=one.path,
            turn=working.turn,
            replaces=replaces,
        )
        self._record(caller, spawned)
        caller.tell(f"{one.nickname} is at work")
        if working.turn is None:  # it could not even begin
            return await self._member((await self._team())[one.path])
        return _member(one, "running", None)  # however fast it is: what a model is told does not depend on that

    async def _work(self, one: Known, working: _Working, act: Callable[[Callback], Awaitable[Turn]]) -> None:
        """A sub-agent's turn, to its end: whatever becomes of it is something to be told, and nobody else's failure."""
        told = self._children.told_of(one.conversation)

        def tell(update: Update) -> None:
            if isinstance(update, TurnStarted | TurnJoined):
                working.turn = update.id
                working.begun.set()
            told(update)

        try:
            with working.scope:
                working.result = await act(tell)
        except TurnFailed as failed:
            working.result = _as_ended(failed)
            working.error = None if working.result is not None else "It failed, and nothing is known of it."
        except OutcomeUnknown as unknown:
            working.error = unknown.message()
            self._turns.unended.add_unknown_child(one.conversation, unknown)
            with suppress(ForkpointError):  # the disk may say by now how it ended, or whether it began
                await self._turns.unended.end(one.conversation)
                working.result = await read_turn(self._store, unknown.id)
        except ForkpointError as error:
            working.error = _IN_THE_WAY.get(error.code) or error.message()
        except Exception as error:
            _log.exception("a sub-agent's turn failed")
            working.error = f"Something went wrong inside of it ({type(error).__name__})."
        finally:
            working.begun.set()
            working.ended.set()

    async def _ended(self, one: Known) -> None:
        """Waits until nothing of a sub-agent runs."""
        if (working := self._working.get(one.path)) is not None:
            await working.ended.wait()
            return
        for wait in pauses(*POLL):
            turn = await self._newest(one)
            if turn is not None and await self._is_left(one, turn):
                await self._go_on(one, turn.id)
                return
            if turn is None or turn.outcome != "running":
                return
            await anyio.sleep(wait)

    async def _go_on(self, one: Known, turn: str) -> None:
        """A turn that this one had started, and that was stopped or died with it, goes on."""
        if (working := self._working.get(one.path)) is not None:  # somebody else who waits was faster
            await working.ended.wait()
            return
        working = self._working[one.path] = _Working()

        async def act(tell: Callback) -> Turn:
            record = await self._store.read(one.conversation)
            agent = self._children.agent_of(await self._parent(), record)
            return await self._turns.resume(one.conversation, turn, agent, Continuation(how=self._how), tell)

        self._group.start_soon(self._work, one, working, act)
        await working.ended.wait()

    async def _heard(self, caller: Caller, team: dict[str, Known], path: str) -> Member:
        """How a sub-agent stands; the first time that its turn's end is heard, that is recorded."""
        one = team[path]
        member = await self._member(one)
        if member.status not in ("running", "closed") and one.turn is not None and one.heard != one.turn:
            turn = await self._newest(one)
            if turn is not None:
                heard = SubAgentFinished(caller.call_id, one.conversation, turn.outcome, turn.id, turn.usage)
                self._record(caller, heard)
        return member

    async def _member(self, one: Known) -> Member:
        working = self._working.get(one.path)
        if working is not None and not working.ended.is_set():
            return _member(one, "running", None)
        turn = await self._newest(one)
        error = working.error if working is not None else None
        if working is not None and turn is not None and turn.outcome == "running":  # only the disk knows how it ended
            return _member(one, "interrupted", turn, error or "It is not known yet how it ended.")
        return as_member(one, turn, error)

    async def _newest(self, one: Known) -> Turn | None:
        """The turn that a sub-agent was set to work in last, as it stands."""
        working = self._working.get(one.path)
        if working is not None and working.result is not None:
            return working.result  # the disk may not have taken its end
        id = working.turn if working is not None and working.turn is not None else one.turn
        try:
            await self._store.read(one.conversation)  # what is deleted is not told, though it may be there yet
            return None if id is None else await read_turn(self._store, id)
        except NotFound:  # deleted, with all that was in it
            return None

    async def _end(self) -> None:
        """What is told of those that were stopped because the turn has its answer, or that nobody waited for."""
        for path, working in self._working.items():
            one = (self._known or {})[path]
            if working.turn is not None and one.turn != working.turn:  # who asked for it did not see it begin
                spawned = SubAgentSpawned(None, one.conversation, one.task, one.nickname, one.role, path, working.turn)
                self._steps.add([NewEvent(spawned)])
            if working.turn is not None and one.heard != working.turn:
                turn = await self._newest(one)  # its commit may have been faster than whoever stopped it
                outcome = "cancelled" if turn is None or turn.outcome == "running" else turn.outcome
                spent = None if turn is None else turn.usage
                ended = SubAgentFinished(None, one.conversation, outcome, working.turn, spent)
                self._steps.add([NewEvent(ended)])

    # What is known.

    @property
    def _at_work(self) -> list[str]:
        """The sub-agents that may have been set to work here."""
        return [one.conversation for one in (self._known or {}).values()]

    @property
    def _how(self) -> How:
        return self._plan.how.beneath(self._turn, self._plan.run.agent, self._budget)

    async def _team(self) -> dict[str, Known]:
        if self._known is None:
            under = (await self._parent()).path
            known = await self._children.roster_at(self._path, self._steps.turn.base, under)
            known = roster((step.body for step in self._steps.so_far), known)
            if self._is_resumed:  # some may have been made without anybody hearing of it
                known = in_order(known | await self._children.made_by(self._conversation, self._turn, known))
            if self._known is None:
                self._known = known
        return self._known

    async def _meant(self, name: str) -> Known:
        return find((await self._team()).values(), name, (await self._parent()).path)

    def _record(self, caller: Caller, event: SubAgentSpawned | SubAgentFinished) -> None:
        caller.record(event)
        if self._known is None:
            self._known = {}
        self._known.update(roster([event], self._known))  # in place: others hold it while they wait for the store

    async def _parent(self) -> Parent:
        record = await self._store.read(self._conversation)
        settings = Settings.from_json(self._plan.settings or record.settings)
        return Parent(
            self._conversation, self._plan.stored or self._plan.run.agent, settings, self._plan.run.context.identity
        )

    async def _is_left(self, one: Known, turn: Turn) -> bool:
        """Whether this turn had started it before it was resumed, and nobody has heard how it ended."""
        if turn.outcome not in ("interrupted", "cancelled", "failed") or one.heard == turn.id:
            return False
        return caller_of((await self._store.turn(turn.id)).input) == self._turn

    def _once(self, caller: Caller) -> str:
        """What names a call within its turn for good: some models use an id again in a later answer."""
        answers = [
            step.envelope.response
            for step in self._steps.so_far
            if isinstance(step.body, ToolCall) and step.body.call_id == caller.call_id
        ]
        call = caller.call_id if caller.part is None else f"{caller.call_id}/{caller.part}"
        return call if len(answers) < 2 else f"{call}#{answers[-1]}"


def as_member(one: Known, turn: Turn | None, error: str | None = None) -> Member:
    """A sub-agent for a caller, by the turn that it was set to work in last."""
    if one.closed:
        return _member(one, "closed", turn)
    if turn is None and one.turn is not None and error is None:
        return _member(one, "failed", None, "It was deleted.")
    if turn is None:
        return _member(one, "failed" if error else "idle", None, error)
    match turn.outcome:
        case "committed":
            stopped = None if turn.stopped is None else f"It reached its limit of {turn.stopped}, and has no answer."
            return _member(one, "idle", turn, stopped)
        case "failed":
            return _member(one, "failed", turn, error or _why(turn))
        case "cancelled":
            return _member(one, "cancelled", turn, "It was stopped before it had an answer.")
        case "awaiting_approval":
            waits = ", ".join(call.tool for call in turn.waiting)
            return _member(one, "awaiting_approval", turn, f"Somebody has to approve what it wants to do ({waits}).")
        case "interrupted":
            return _member(one, "interrupted", turn, "Its process died. A message lets it begin anew.")
        case "running":
            return _member(one, "running", turn)


def _as_ended(failed: TurnFailed) -> Turn | None:
    """The turn that did not commit. If the disk did not take its end, it says so all the same."""
    turn = failed.turn if isinstance(failed.turn, Turn) else None
    if turn is None or turn.outcome != "running":
        return turn
    return replace(turn, outcome="cancelled" if isinstance(failed, TurnCancelled) else "failed")


def _why(turn: Turn) -> str:
    """Why a turn failed, as far as it may be told elsewhere: of what nobody foresaw only what it was."""
    if turn.error is None:
        return "It does not say why."
    if turn.error.code == "error":
        return f"Something went wrong inside of it ({turn.error.message.partition(':')[0]})."
    if turn.error.code in _PRIVATE:
        return f"What it needs cannot be had here ({turn.error.code}); its own turn says more."
    return turn.error.message


def _member(one: Known, status: MemberStatus, turn: Turn | None, error: str | None = None) -> Member:
    answer = turn.text if turn is not None and turn.outcome == "committed" else None
    if turn is not None and turn.stopped is not None:
        answer = answer or None  # it has said nothing, and not that there is nothing to say
    return Member(
        conversation=one.conversation,
        path=one.path,
        nickname=one.nickname,
        role=one.role,
        depth=one.path.count("/") - 1,
        task=one.task,
        status=status,
        answer=answer,
        error=error,
        turn=one.turn if turn is None else turn.id,
    )
