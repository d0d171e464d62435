"""A turn: staged aside, then committed whole, or not at all.

This is the transaction that everything else stands on::

    begin      the conversation is taken: another turn hears `Busy`
    steps      the model's answers and the tools' results go to the turn's journal, outside history
    commit     all of it becomes history and the head moves, once, on disk
    or else    `fail`, `cancel` or `wait`: the head has not moved

Whatever happens between begin and commit ends in exactly one of these, or the process dies or hands the turn over, and
the turn is `interrupted`: open, with its journal, for somebody to resume or discard. "Done" is said after the commit.
"Failed" is said when it is certain that nothing was committed, and that nobody goes on with the turn by itself. What
the store cannot tell is raised as `OutcomeUnknown`, never guessed.
Tests: tests/conversation/test_turns.py, tests/server/test_unended.py.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, assert_never

import anyio
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.agent.budget import TurnBudget
from forkpoint.agent.loop import Done, Loop, Waiting
from forkpoint.agent.run import Run
from forkpoint.agent.team.tools import Team
from forkpoint.backend.callbacks import Callback
from forkpoint.backend.messages import Given, goes_on
from forkpoint.backend.options import How
from forkpoint.backend.results import Turn, steered_in, tools_of
from forkpoint.engine.budgets.admission import TurnAdmission
from forkpoint.engine.budgets.clock import clock_of
from forkpoint.engine.turns.journal import Steps
from forkpoint.engine.turns.reader import read_turn
from forkpoint.errors import (
    CommitFailed,
    ForkpointError,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    TurnFailed,
    TurnLost,
    TurnSteered,
)
from forkpoint.events import Event, JsonText, NewEvent, StagedEvent
from forkpoint.history.steers import read_steers
from forkpoint.llm.prompt.rendering import Rendering
from forkpoint.masking import masked
from forkpoint.store.values import Committed, NewFork, OpenTurn, Outcome, TurnError
from forkpoint.threads.shield import finished
from forkpoint.updates import TurnStarted

if TYPE_CHECKING:
    from forkpoint.engine.resources import Resources


STORE_FAILED = StoreUnavailable, OutcomeUnknown, CommitFailed
"""Errors that say that the store failed, and not the turn. If somebody was promised the turn, it goes on from its
journal when the store is there again."""


class RunsBeneath(Team, Protocol):
    """A turn's sub-agents, at work while it runs."""

    async def during(self, work: Callable[[], Awaitable[Done | Waiting]]) -> Done | Waiting:
        """Does the turn's own work. When that has ended, nothing runs beneath it any more."""
        ...


class Plan(Struct, frozen=True):
    """What a turn needs to go on: its run, and what its commit brings.

    - ``events`` are added before anything runs: the input, or somebody's decisions.
    - ``cache`` is another cache identity, if the conversation drops the one that it has. ``settings`` are others.
    - ``aside`` is the branch that keeps what stands at the head, if the turn stands elsewhere.
    - ``how`` is also the terms of the run. ``stored`` is the agent as the settings have it, if it is stricter here.
    """

    run: Run
    how: How
    events: Sequence[NewEvent] = ()
    cache: JsonText | None = None
    settings: JsonText | None = None
    aside: NewFork | None = None
    stored: Agent | None = None


class _Unended(Struct, frozen=True):
    """An end that the disk did not take."""

    error: TurnError | None  # None: the turn was cancelled
    unless_accepted: bool  # whether an accepted turn is left open instead
    why: Exception  # why the disk did not take it


class Transaction:
    """One turn that this process holds, from wherever its journal stands to its end."""

    def __init__(
        self,
        resources: "Resources",
        turn: OpenTurn,
        given: tuple[Given, ...],
        retry_of: str | None,
        team: Callable[[Plan, Steps, TurnBudget], RunsBeneath | None],
    ) -> None:
        self._team = team
        self._store = resources.store
        self._models = resources.models
        self._prompts = resources.prompts
        self._id = turn.id
        self._given = given
        self._retry_of = retry_of
        self._conversation = turn.conversation
        self._steps = Steps(resources.store, turn)
        self._ending = False  # its end is on the way to the disk
        self.is_handed_over = False  # if it is cancelled now, no end is written: another process shall go on with it
        self.committed: Committed | None = None
        self.answered_by: Agent | None = None  # who was asked, once that is known
        self.cache: JsonText | None = None  # the cache identity that the commit brought, if another
        self.settings: JsonText | None = None  # and the settings
        self._outcome: Outcome | None = None  # once the store has said how the turn stands without this process
        self._unended: _Unended | None = None
        self._mending = anyio.Lock()
        self.lost: TurnLost | None = None  # it was to be cancelled, and was another process's already

    async def run(
        self, plan: Callable[[Sequence[StagedEvent]], Awaitable[Plan]], tell: Callback, started: TurnStarted
    ) -> Turn:
        """The turn, committed or waiting. Raises `TurnFailed` or `TurnCancelled`, and then nothing has moved; or
        `OutcomeUnknown`, if the store does not say how the turn ends.

        ``plan`` is asked for when the turn is held, with the steps that are there already; whatever it raises ends
        the turn as well.
        """
        base: Rendering | None = None
        turn: Turn | None = None
        try:
            if not started.resumed:
                tell(started)
            if self._steps.turn.staged:
                self._steps = Steps(self._store, self._steps.turn, await self._store.steps(self._id))
            planned = await plan(self._steps.so_far)
            base, self.cache, self.settings = planned.run.base, planned.cache, planned.settings
            self.answered_by = planned.run.agent
            self._steps.add(planned.events)
            if started.resumed:
                if planned.events:  # decisions: they are on disk before anybody hears that the turn goes on
                    await self._steps.flush()
                tell(started)
            since = anyio.current_time()
            planned = replace(planned, run=replace(planned.run, clock=clock_of(self._store, self._steps)))
            ended = await self._loop(planned, tell, since)
            while isinstance(ended, Done) and not await self._commit(planned):
                ended = await self._loop(planned, tell, since, after=ended)
            match ended:
                case Done():
                    pass
                case Waiting():
                    await self._steps.flush()
                    self._ending = True
                    self._outcome = (await self._store.wait(self._steps.turn)).outcome
                case _ as never:
                    assert_never(never)
        except TurnLost:
            raise  # it is another process's now, and so is its end
        except Exception as error:
            if self._ending and isinstance(error, OutcomeUnknown):
                raise  # only the disk knows, and will say when it is asked to settle it
            turn = await self._fail(error)
        except BaseException:
            await self._cancel()
            raise
        turn = turn or self._as_committed
        if turn is None:
            turn = await finished(self._read)  # it is on disk: whoever cancels now is too late
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
            by=self._steps.turn.by,
            steered=steered_in(read_steers(self._steps.turn.steered), committed.events),
            go_on=goes_on(self._steps.turn.input),
        )

    async def _commit(self, plan: Plan) -> bool:
        """Commits the turn. False if a message was steered to it meanwhile: nothing was committed, and it goes on."""
        pending, usage = self._steps.pending, self._steps.unrecorded
        self._ending = True
        try:
            self.committed = await self._store.commit(
                self._steps.turn, pending, usage=usage, cache=plan.cache, settings=plan.settings, aside=plan.aside
            )
        except TurnSteered:
            self._ending = False
            await self._steps.catch_up()
            return False
        self._outcome = "committed"
        return True

    async def _loop(self, plan: Plan, tell: Callback, since: float, after: Done | None = None) -> Done | Waiting:
        budget = plan.run.new_budget()
        team = self._team(plan, self._steps, budget)
        run = replace(plan.run, budget=budget, team=team, admit=TurnAdmission(self._store, self._steps))
        loop = Loop(run, self._models, self._steps, tell, since=since)
        return await (loop.run(after) if team is None else team.during(lambda: loop.run(after)))

    async def _fail(self, cause: Exception) -> Turn:
        """Ends the turn as failed, and raises `TurnFailed`. Returns the turn if it was committed after all.

        Raises `StoreUnavailable` if the turn goes on elsewhere, and `OutcomeUnknown` if nobody can tell yet.
        """
        code = cause.code if isinstance(cause, ForkpointError) else "error"
        why = masked(cause.message() if isinstance(cause, ForkpointError) else f"{type(cause).__name__}: {cause}")
        turn = await finished(lambda: self._failed(cause, TurnError(code, why)))
        if turn.outcome == "committed":
            return turn
        if turn.outcome == "interrupted" and isinstance(cause, STORE_FAILED):  # it goes on, so it has not failed
            raise StoreUnavailable(cause.path, cause.detail) from cause
        raise TurnFailed(self._id, why, tools_of(turn), turn, cause) from cause

    async def _failed(self, cause: Exception, error: TurnError) -> Turn:
        if not isinstance(cause, CommitFailed):  # then the store has ended it already, or left it open
            await self._end(error, unless_accepted=isinstance(cause, STORE_FAILED))
        return await self._read(error) if self._unended is None else await self._as_it_will_end("failed", error)

    @property
    def is_ended(self) -> bool:
        """Whether its end is written. One that the disk did not take still holds its conversation."""
        return self._unended is None

    @property
    def turn(self) -> str:
        """The turn's id."""
        return self._id

    def check_ended(self) -> None:
        """Raises `OutcomeUnknown` if its end is not written."""
        if self._unended is not None:
            raise self._unknown(self._unended.why)

    async def end(self) -> None:
        """Writes the end that the disk did not take, with all that is known of the turn, if it takes it now."""
        async with self._mending:
            if (left := self._unended) is not None:
                with suppress(TurnLost):
                    await finished(lambda: self._end(left.error, unless_accepted=left.unless_accepted))

    async def cancelled(self) -> Turn:
        """The turn after its cancellation. If its commit was faster, it says so. Raises `TurnLost` if the turn was
        another process's already, and `OutcomeUnknown` if somebody else may go on with it. A turn that was handed over
        is `interrupted` as soon as this process is gone."""
        if self.lost is not None:
            raise self.lost
        if self._unended is not None:
            return await self._as_it_will_end("cancelled")
        turn = await self._read()
        return replace(turn, outcome="interrupted") if turn.outcome == "running" and self.is_handed_over else turn

    async def _cancel(self) -> None:
        if self.is_handed_over:
            self._outcome = "interrupted"
            with suppress(Exception):  # then the turn goes on from an earlier step, as after a crash
                await finished(self._steps.flush)
            return
        try:
            await finished(lambda: self._end(None))
        except TurnLost as lost:
            self.lost = lost

    async def _end(self, error: TurnError | None, *, unless_accepted: bool = False) -> None:
        """Writes down what is known of the turn, and that it has ended; or, with ``unless_accepted``, that another
        process shall go on with it, if somebody was promised it."""
        with suppress(Exception):
            await self._steps.flush()
        try:
            await self._steps.make_sure()  # what is on disk already must not be counted again
            turn, usage = self._steps.turn, self._steps.unrecorded
            if error is None:
                ended = await self._store.cancel(turn, usage=usage)
            else:
                ended = await self._store.fail(turn, error, usage=usage, unless_accepted=unless_accepted)
        except TurnLost as lost:
            self._unended = None
            if lost.outcome != "committed" or not self._ending:
                raise
            self._outcome = "committed"  # our own commit was faster
        except Exception as why:  # whatever a store may raise: the end is not forgotten
            self._unended = _Unended(error, unless_accepted, why)
        else:
            self._unended, self._outcome = None, ended.outcome

    async def _read(self, error: TurnError | None = None) -> Turn:
        """The turn as it stands. If the store cannot be read it is made from memory, if its outcome is certain."""
        try:
            return await read_turn(self._store, self._id)
        except Exception as unread:  # whatever it is, it does not change what is certain
            if self._outcome is None:
                raise self._unknown(unread) from unread
            steps, spent = tuple(self._steps.so_far), self._steps.spent
            return Turn(self._id, self._conversation, self._outcome, (), steps, spent, error)

    async def _as_it_will_end(self, outcome: Outcome, error: TurnError | None = None) -> Turn:
        """The turn with the end that the disk did not take. Raises `OutcomeUnknown` if it may end in another way.

        That is so if somebody was promised it, or nobody can tell: then another process goes on with the turn if only
        the store has failed, and also if this process dies before the end is written. A turn that nobody was promised
        ends as is told now, even if somebody is promised it later.
        """
        assert self._unended is not None
        try:
            turn = await read_turn(self._store, self._id)
        except Exception as unread:
            raise self._unknown(unread) from self._unended.why
        if turn.accepted or turn.outcome != "running":
            raise self._unknown(self._unended.why) from self._unended.why
        self._unended = replace(self._unended, unless_accepted=False)
        return replace(turn, outcome=outcome, error=error)

    def _unknown(self, why: Exception) -> OutcomeUnknown:
        path, detail = (
            (why.path, getattr(why, "detail", why.fact())) if isinstance(why, StoreError) else ("?", str(why))
        )
        return OutcomeUnknown(path, "turn", self._id, f"its end could not be written: {masked(detail)}")
