"""A turn: staged aside, then committed whole, or not at all.

This is the transaction that everything else stands on::

    begin      the conversation is taken: another turn hears `Busy`
    steps      the model's answers and the tools' results go to the turn's journal, outside history
    commit     all of it becomes history and the head moves, once, on disk
    or else    `fail`, `cancel` or `wait`: the head has not moved

Whatever happens between begin and commit ends in exactly one of these, or the process dies, and the turn is
`interrupted`: open, with its journal, for somebody to resume or discard. "Done" is said after the commit. "Failed" is
said when it is certain that nothing was committed; what the store cannot tell is raised as `OutcomeUnknown`, never
guessed.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, assert_never

import anyio
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.agent.budget import Budget
from forkpoint.agent.hooks.point import Hooking
from forkpoint.agent.loop import Done, Loop, Waiting
from forkpoint.agent.skills.skill import Skill
from forkpoint.agent.team.tools import Team
from forkpoint.backend.callbacks import Callback
from forkpoint.backend.messages import Given, read_input, said_in
from forkpoint.backend.protocol import How
from forkpoint.backend.results import Turn, calls_of
from forkpoint.engine.turns.journal import Steps
from forkpoint.engine.turns.prompts import Prompts
from forkpoint.errors import (
    Busy,
    CommitFailed,
    ForkpointError,
    OutcomeUnknown,
    TurnCancelled,
    TurnFailed,
    TurnLost,
    TurnOpen,
)
from forkpoint.events import Event, JsonText, NewEvent, StagedEvent
from forkpoint.llm.call import Models
from forkpoint.llm.prompt.identity import CallContext
from forkpoint.llm.prompt.rendering import Rendering
from forkpoint.shield import finished
from forkpoint.store.protocol import Store
from forkpoint.store.records import Committed, NewFork, OpenTurn, Outcome, TurnError
from forkpoint.updates import TurnStarted


class RunsBeneath(Team, Protocol):
    """A turn's sub-agents, at work while it runs."""

    async def during(self, work: Callable[[], Awaitable[Done | Waiting]]) -> Done | Waiting:
        """Does the turn's own work. When that has ended, nothing runs beneath it any more."""
        ...


class Plan(Struct, frozen=True):
    """What a turn needs to go on: who answers, with what, and what was decided since it last stood still."""

    agent: Agent
    context: CallContext
    base: Rendering  # the prompt of the path that the turn stands on
    events: Sequence[NewEvent] = ()  # what is added before anything runs: the input, or somebody's decisions
    cache: JsonText | None = None  # another cache identity, if the one that the conversation has is dropped
    settings: JsonText | None = None  # others, if it commits
    aside: NewFork | None = None  # the branch that keeps what stands at the head, if the turn stands elsewhere
    workspace: Path | None = None
    how: How = How()
    fresh: Collection[str] = ()  # calls that nobody can have started yet
    rerun: Collection[str] = ()  # calls to be run again though they may have been started
    sub_agent: str | None = None  # where it stands in its team, if it was spawned
    skills: tuple[Skill, ...] = ()  # those that tools may call for
    told: Collection[str] = ()  # names of those that prompts show already
    stored: Agent | None = None  # the agent as the settings have it, if it is stricter here than there


class Transaction:
    """One turn that this process holds, from wherever its journal stands to its end."""

    def __init__(
        self,
        store: Store,
        models: Models,
        prompts: Prompts,
        turn: OpenTurn,
        given: tuple[Given, ...] = (),
        retry_of: str | None = None,
        team: Callable[[Plan, Steps, Budget], RunsBeneath | None] | None = None,
    ) -> None:
        self._team = team
        self._store = store
        self._models = models
        self._prompts = prompts
        self._id = turn.id
        self._given = given
        self._retry_of = retry_of
        self._conversation = turn.conversation
        self._steps = Steps(store, turn)
        self._ending = False  # its end is on the way to the disk
        self.committed: Committed | None = None
        self.answered_by: Agent | None = None  # who was asked, once that is known
        self.cache: JsonText | None = None  # the cache identity that the commit brought, if another
        self.settings: JsonText | None = None  # and the settings
        self._unended: tuple[TurnError | None] | None = None  # an end that the disk did not take
        self._mending = anyio.Lock()

    async def run(
        self,
        plan: Callable[[Sequence[StagedEvent]], Awaitable[Plan]],
        tell: Callback,
        started: TurnStarted,
    ) -> Turn:
        """The turn, committed or waiting. Raises `TurnFailed` or `TurnCancelled`, and then nothing has moved.

        ``plan`` is asked for when the turn is held, with the steps that are there already; whatever it raises ends
        the turn as well.
        """
        base: Rendering | None = None
        try:
            tell(started)
            if self._steps.turn.staged:
                self._steps = Steps(self._store, self._steps.turn, await self._store.steps(self._id))
            planned = await plan(self._steps.so_far)
            base, self.cache, self.settings = planned.base, planned.cache, planned.settings
            self.answered_by = planned.agent
            ended = await self._loop(planned, tell)
            match ended:
                case Done():
                    pending, usage = self._steps.pending, self._steps.unrecorded
                    self._ending = True
                    self.committed = await self._store.commit(
                        self._steps.turn,
                        pending,
                        usage=usage,
                        cache=planned.cache,
                        settings=planned.settings,
                        aside=planned.aside,
                    )
                case Waiting():
                    await self._steps.flush()
                    self._ending = True
                    await self._store.wait(self._steps.turn)
                case _ as never:
                    assert_never(never)
        except TurnLost:
            raise  # it is another process's now, and so is its end
        except Exception as error:
            if self._ending and isinstance(error, OutcomeUnknown):
                raise  # only the disk knows, and will say when it is asked to settle it
            await self._fail(error)
        except BaseException:
            await self._cancel()
            raise
        turn = self._as_committed
        if turn is None:
            outcome: Outcome = "committed" if self.committed else "awaiting_approval"
            turn = await finished(lambda: self._read(outcome))  # it is on disk: whoever cancels now is too late
        events = [event for event in turn.events if isinstance(event, Event)]
        if self.committed is not None and base is not None and events:
            before = self._steps.turn.base.digest
            self._prompts.grown(self.committed.head.digest, base, events, base_digest=before)
        return turn

    @property
    def kept_from(self) -> int:
        """The first ordinal that its prompts show."""
        return self._steps.state.kept_from

    @property
    def _as_committed(self) -> Turn | None:
        """The turn as it is in history now, if that can be said without reading it."""
        committed = self.committed
        if committed is None or committed.events is None:
            return None
        return Turn(
            id=self._id,
            conversation=self._conversation,
            outcome="committed",
            given=self._given,
            events=committed.events,
            usage=self._steps.spent,
            retry_of=self._retry_of,
            started=self._steps.turn.started,
            ended=committed.ended,
        )

    async def _loop(self, plan: Plan, tell: Callback) -> Done | Waiting:
        self._steps.add(plan.events)
        how = plan.how
        limits = plan.agent.limits if how.limits is None else how.limits
        budget = Budget(limits, how.budget)
        team = None if self._team is None else self._team(plan, self._steps, budget)
        loop = Loop(
            plan.agent,
            self._models,
            plan.context,
            self._steps,
            plan.base,
            turn=self._id,
            limits=limits,
            workspace=plan.workspace,
            tell=tell,
            fresh=plan.fresh,
            rerun=plan.rerun,
            options=how.options,
            attended=how.attended,
            final=how.final,
            budget=budget,
            team=team,
            client=how.client,
            skills=plan.skills,
            told=plan.told,
            hooks=Hooking(
                plan.agent.hooks,
                self._steps,
                turn=self._id,
                conversation=self._conversation,
                workspace=plan.workspace,
                agent=plan.agent.name,
                sub_agent=plan.sub_agent,
                messages=said_in(self._given),
            ),
        )
        return await (loop.run() if team is None else team.during(loop.run))

    async def _fail(self, cause: Exception) -> None:
        """Ends the turn as failed. Raises `TurnFailed`; returns if the turn was committed after all."""
        code = cause.code if isinstance(cause, ForkpointError) else "error"
        why = str(cause) if isinstance(cause, ForkpointError) else f"{type(cause).__name__}: {cause}"
        turn = await finished(lambda: self._failed(cause, TurnError(code, why)))
        if turn.outcome == "committed":
            return
        raise TurnFailed(self._id, why, tools_of(turn), turn, cause) from cause

    async def _failed(self, cause: Exception, error: TurnError) -> Turn:
        if not isinstance(cause, CommitFailed):  # then the store has ended it already
            await self._end(error)
        return await self._read("failed", error)

    @property
    def is_ended(self) -> bool:
        """Whether its end is written. One that the disk did not take still holds its conversation."""
        return self._unended is None

    async def end(self) -> None:
        """Writes the end that the disk did not take, with all that is known of the turn, if it takes it now."""
        async with self._mending:
            if self._unended is not None:
                error = self._unended[0]
                with suppress(TurnLost):
                    await finished(lambda: self._end(error))

    async def cancelled(self) -> Turn:
        """The turn after its cancellation. If its commit was faster, it says so."""
        turn = await self._read("cancelled")
        return replace(turn, outcome="cancelled") if turn.outcome == "running" else turn

    async def _cancel(self) -> None:
        with suppress(TurnLost):
            await finished(lambda: self._end(None))

    async def _end(self, error: TurnError | None) -> None:
        """Writes down what is known of the turn, and that it has ended."""
        with suppress(Exception):
            await self._steps.flush()
        try:
            await self._steps.make_sure()  # what is on disk already must not be counted again
            turn, usage = self._steps.turn, self._steps.unrecorded
            if error is None:
                await self._store.cancel(turn, usage=usage)
            else:
                await self._store.fail(turn, error, usage=usage)
        except TurnLost as lost:
            self._unended = None
            if lost.outcome != "committed":
                raise
        except Exception:  # whatever a store may raise: the end is not forgotten
            self._unended = (error,)
        else:
            self._unended = None

    async def _read(self, outcome: Outcome, error: TurnError | None = None) -> Turn:
        """The turn as it stands; from memory if the store cannot be read, for its outcome is certain."""
        try:
            return await read_turn(self._store, self._id)
        except Exception:  # whatever it is, it does not change what is certain
            steps, spent = tuple(self._steps.so_far), self._steps.spent
            return Turn(self._id, self._conversation, outcome, (), steps, spent, error)


async def read_turn(store: Store, id: str) -> Turn:
    """A turn as the store has it, with its events or its steps."""
    record, events = await store.whole_turn(id)
    return Turn(
        id=record.id,
        conversation=record.conversation,
        outcome=record.outcome,
        given=read_input(record.input),
        events=events,
        usage=record.usage,
        error=record.error,
        retry_of=record.retry_of,
        started=record.started,
        ended=record.ended,
    )


def raise_for(turn: Turn) -> Turn:
    """The turn, if it is committed or waits. Raises what it ended with otherwise."""
    match turn.outcome:
        case "committed" | "awaiting_approval":
            return turn
        case "cancelled":
            raise TurnCancelled(turn.id, "it was stopped before its commit.", tools_of(turn), turn)
        case "failed":
            why = turn.error.message if turn.error else "it does not say why."
            raise TurnFailed(turn.id, why, tools_of(turn), turn)
        case "interrupted":
            raise TurnOpen(turn.conversation, turn.id, turn.outcome)
        case "running":
            raise Busy(turn.conversation, turn.id)
        case _ as never:
            assert_never(never)


def tools_of(turn: Turn) -> str:
    """What a turn's tools did, in a sentence: rolling back a conversation does not undo that."""
    by_status: dict[str, list[str]] = {}
    for call in calls_of(turn.events):
        by_status.setdefault(call.status, []).append(call.tool)
    if not by_status:
        return "It had run no tools."
    told = "; ".join(f"{status}: {', '.join(tools)}" for status, tools in by_status.items())
    did = "did, or may have done," if "unknown" in by_status else "did"
    return f"What its tools {did} stays done ({told})."
