"""The loop: a model is asked, its tools are run, until it has an answer, something waits, or a limit is reached.

What has happened so far is in the journal and nowhere else, so the loop can begin anywhere: at the start of a turn, or
where a turn stood when its process died. **The promise kept here: a response is in the journal before the first of its
tools starts, and each result when it ends.** So a call that has a result is never run again; one without a result, met
on resuming, may have been started, and is run again only if its tool says that this does no harm.

Calls of the client's tools are not run here. When those of ours in the same response have their results, the turn is
done, with the client's calls open; the next turn answers them.
"""

import logging
import math
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias, assert_never

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.agent.arguments import decode_as
from forkpoint.agent.calls import run_call
from forkpoint.agent.context import EndsTurn, ToolContext
from forkpoint.agent.hooks.point import HookPoint
from forkpoint.agent.run import Run
from forkpoint.agent.secrets.masking import MaskedStream, Masking
from forkpoint.agent.secrets.secret import Resolved, masking_of, resolve
from forkpoint.agent.secrets.withheld import masking_of_withheld
from forkpoint.agent.skills.skill import touched_paths, triggered
from forkpoint.agent.tool import Tool
from forkpoint.errors import (
    BadOutput,
    BadSetting,
    BudgetExceeded,
    HookBlocked,
    LimitReached,
    MissingKey,
    NoSecret,
    TrustChanged,
)
from forkpoint.events import (
    AnyBody,
    ApprovalAsked,
    ApprovalDenied,
    ApprovalGiven,
    AssistantMessage,
    Event,
    HookRun,
    ModelCalled,
    NewEvent,
    ResultSubstituted,
    SkillActivated,
    StagedEvent,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    TurnStopped,
    Usage,
    UserMessage,
)
from forkpoint.history.state import State
from forkpoint.history.steers import Steer
from forkpoint.llm.answers import Complete, Failed, Said, cut_of
from forkpoint.llm.call import Models
from forkpoint.llm.model import LLM
from forkpoint.llm.options import Options
from forkpoint.updates import Answered, CallEnded, CallProgress, CallStarted, CallWaits, Steered, StepUpdate

CORRECTIONS = 2
"""How often a model is told that its answer does not have the form that was asked for."""

OBJECTIONS = 3
"""How often in a turn a hook may object to the model's answer, and the model goes on."""

MAY_HAVE_RUN = "It may have had its effect, in whole or in part. Find out how things stand before you do it again."

STATE_CHANGED = (
    "This call has run, and whatever it did outside stays done. But another call that ran at the same time has changed "
    "{key!r} in the state, which this one had read; so what this one set in the state was not kept. It said:"
)

NOBODY = "nobody can be asked here, and the agent's policy wants an approval ({why})"
"""Why a call is denied in an unattended turn."""

WITHHELD = "This call was not run: the secret {name} cannot be had (no_secret), and the log says why."

CHANGED = "This call was not run: what the project runs is not what was approved, and the turn ended there."

NO_CLIENT = "the tool is the client's, and a sub-agent has none."

APPROVED_CHANGED = (
    "Whoever approved this call changed its arguments first. What you asked for was not run; the call {ran} with these "
    "arguments instead: {arguments}"
)
"""What a model is told before the result of a call that was approved with other arguments."""

AT_LIMIT = "the turn reached its limit of {limit} {what}."
"""Why a call is not run that was asked for when a turn ended at a limit."""

STEERED = "This call was not run: the user has sent a message first."
"""Why a call is not handed to the client."""

BY_BUDGET = "{what}, by the budget of {whose}"
"""What there is a limit of, if a budget says so."""

REPEATED = "identical calls in a row"
"""What there is a limit of, if the very same call is asked for again and again."""

Tell: TypeAlias = Callable[[StepUpdate], None]

_log = logging.getLogger("forkpoint")


class Journal(Protocol):
    """Where a turn's steps go, and what stands there."""

    @property
    def so_far(self) -> Sequence[StagedEvent]:
        """All steps of the turn, in the order they arrived."""
        ...

    @property
    def state(self) -> State:
        """The agent's state after them."""
        ...

    @property
    def spent(self) -> Usage:
        """What the turn has used, earlier tries of it included."""
        ...

    @property
    def arrived(self) -> Sequence[Steer]:
        """The messages that were steered to the turn and are no steps of it yet, as far as the disk last told."""
        ...

    def add(self, events: Sequence[NewEvent], usage: Usage = Usage()) -> None:
        """Appends steps; they need not be on disk before `flush`."""
        ...

    async def flush(self) -> None:
        """Puts all steps on disk. Raises if the turn is somebody else's by now: then nothing may be started."""
        ...


class Done(Struct, frozen=True):
    """The model has answered, in the form that was asked for, or only calls of the client's tools are open.

    It is in the journal, though not yet on disk. ``stopped``: the turn has reached this limit instead, and ends there.
    """

    stopped: LimitReached | None = None


class Waiting(Struct, frozen=True):
    """Calls wait for somebody's approval."""

    calls: tuple[ToolCall, ...]


class Loop:
    """One turn's steps, from wherever its journal stands.

    A call without a result may have been started before, by a process that is gone, unless the run says that it is
    ``fresh``.
    """

    def __init__(
        self, run: Run, models: Models, journal: Journal, tell: Tell | None = None, *, since: float | None = None
    ) -> None:
        """``since`` is when the turn began to run, by anyio's clock, if that was before: its limit of time counts."""
        self._run = run
        self._since = anyio.current_time() if since is None else since
        self._refused: set[str] = set()  # steers that a hook has blocked
        self._agent = run.agent
        self._models = models
        self._journal = journal
        self._responses = 0  # how many the turn has
        self._limits = run.limits
        self._budget = run.budget or run.new_budget()
        self._skills = tuple(skill for skill in run.skills if skill.files)
        self._masking = Masking()  # of all that is known to be a secret by now
        self._hooks = HookPoint(run, journal, mask=lambda text: self._masking.text(text))
        self._tell = tell or (lambda _: None)
        self._fresh = set(run.fresh)
        self._prompt = run.base
        self._shown = 0  # how many steps the prompt has
        self._thread = threading.get_ident()
        self._token = anyio.lowlevel.current_token()

    async def run(self, after: Done | None = None) -> Done | Waiting:
        """Goes on until the model is done or something waits. Raises the typed reason if neither can be.

        At a limit it raises `LimitReached` or `BudgetExceeded`, or stops and is done, as the limits say. ``after`` is
        how an earlier loop of the turn was done, if a message came before the commit: a turn that has stopped asks no
        model any more.
        """
        if after is not None and after.stopped is not None:
            await self._deliver()
            return after
        try:
            return await self._in_time()
        except LimitReached as reached:
            if self._limits.at_limit == "fail":
                raise
            return await self._stop(reached)
        except BudgetExceeded as exceeded:
            if (
                self._limits.at_limit == "fail" or exceeded.code == "budget_unpriced"
            ):  # which is no limit that is reached
                raise
            return await self._stop(LimitReached(BY_BUDGET.format(**exceeded.fields), exceeded.limit))

    async def _in_time(self) -> Done | Waiting:
        seconds, clock = self._limits.seconds, self._run.clock
        with anyio.CancelScope(deadline=math.inf if seconds is None else self._since + seconds) as scope:
            if clock is None:
                return await self._until_done()
            return await clock.during(self._until_done, scope)
        if clock is not None and clock.exceeded is not None:
            raise clock.exceeded
        raise LimitReached("seconds", f"{seconds:g}")

    async def _stop(self, reached: LimitReached) -> Done:
        """Ends the turn without an answer: each call that has no result gets one, and it is recorded why.

        What was steered to it becomes history unanswered, for the next turn's model to read.
        """
        await self._journal.flush()  # what was cut off by the clock may be on disk, or not
        why = AT_LIMIT.format(what=reached.what, limit=reached.limit)
        standing = stand(self._journal.so_far)
        results = []
        for call in (*standing.open, *standing.handed):
            if call.client or call.call_id in self._fresh or call.call_id in standing.waiting:
                results.append(ToolResult(call.call_id, call.tool, (Text(why),), "not_run"))
            else:
                results.append(ToolResult(call.call_id, call.tool, (Text(MAY_HAVE_RUN),), "unknown"))
        results = [self._masked(standing.for_model(result)) for result in results]
        self._journal.add([*map(NewEvent, results), NewEvent(TurnStopped(reached.what, reached.limit))])
        for result in results:
            self._tell(CallEnded(result))
        await self._deliver()
        return Done(reached)

    async def _until_done(self) -> Done | Waiting:
        asked = sum(isinstance(step.body, ModelCalled) for step in self._journal.so_far)
        self._budget.used_before(self._journal.spent, asked)
        self._masking |= await masking_of(self._agent.secrets)
        self._masking |= masking_of_withheld(_keys(self._agent.llm))
        if (why := await self._hooks.begin()) is not None:
            raise HookBlocked("start", why)
        await self._catch_up()
        while True:
            standing = stand(self._journal.so_far)
            self._responses = standing.responses
            if standing.open:
                if waiting := await self._answer(standing):
                    return Waiting(waiting)
            elif self._has_message() and not (standing.handed and self._run.terms.final):
                await self._deliver(standing.handed)
            elif standing.handed:
                return Done()
            elif standing.answer is not None:
                if self._finished(standing.answer, standing.corrections) and await self._may_end(standing):
                    return Done()
            else:
                await self._ask(standing)

    async def _ask(self, standing: "TurnStand") -> None:
        """One call of the model; what it said is in the journal, on disk if tools are to follow."""
        self._budget.take()
        await self._activate()
        steps = self._journal.so_far
        self._prompt = self._prompt.then(steps[self._shown :])
        self._shown = len(steps)
        is_final, is_judged = self._run.terms.final, self._hooks.has("turn_end")
        outcome = await self._models.call(
            self._agent.llm,
            self._prompt,
            self._run.context,
            self._options_now(standing),
            heard=None if is_final and is_judged else self._tell,
            final=is_final and not is_judged,
            retried=self._run.terms.retried,
            record=self._record,
            admit=self._run.admit,
        )
        match outcome:
            case Failed(error=error):
                raise error
            case Complete(answer=answer):
                await self._heard(answer.said, standing.responses + 1)
            case _ as never:
                assert_never(never)

    def _has_message(self) -> bool:
        """Whether a message was steered to the turn that can be delivered."""
        return any(one.id not in self._refused for one in self._journal.arrived)

    async def _deliver(self, handed: Sequence[ToolCall] = ()) -> None:
        """Makes steps of the messages that were steered to the turn, in the order in which they came.

        Calls that were ``handed`` to the client are taken back first: nobody has run them yet. A message that a hook
        blocks is not delivered, and the turn goes on without it.
        """
        accepted: list[tuple[Steer, UserMessage]] = []
        for one in self._journal.arrived:
            if one.message is None or one.id in self._refused:
                continue
            if await self._hooks.steered(one.id, one.message) is None:
                accepted.append((one, one.message))
            else:
                self._refused.add(one.id)
        taken = [ToolResult(call.call_id, call.tool, (Text(STEERED),), "not_run") for call in handed if accepted]
        self._journal.add([NewEvent(result) for result in taken])
        for one, message in accepted:
            self._journal.add([*await self._called_for(message), NewEvent(message, steer=one.id)])
        await self._journal.flush()
        for result in taken:
            self._tell(CallEnded(result))
        for one, message in accepted:
            self._tell(Steered(one.id, message, one.by))

    async def _called_for(self, message: UserMessage) -> list[NewEvent]:
        """The skills that a message calls for, as the events that stand before it."""
        already = set(self._run.told)
        already |= {step.body.name for step in self._journal.so_far if isinstance(step.body, SkillActivated)}
        if all(skill.name in already for skill in self._run.skills):
            return []
        text = "\n".join(part.text for part in message.parts if isinstance(part, Text))
        found = await anyio.to_thread.run_sync(
            lambda: triggered(self._run.skills, text, (), already, workspace=self._run.workspace)
        )
        return [NewEvent(skill.activated()) for skill in found]

    async def _activate(self) -> None:
        """Activates the skills that tools of this turn have called for, once their results are in."""
        if not self._skills:
            return
        steps = (*self._run.inherited, *self._journal.so_far)
        done = {step.body.call_id for step in steps if isinstance(step.body, ToolResult) and not step.body.error}
        calls = [call for call in as_run(steps) if call.call_id in done]
        already = set(self._run.told) | {step.body.name for step in steps if isinstance(step.body, SkillActivated)}
        if not calls or all(skill.name in already for skill in self._skills):
            return
        found = await anyio.to_thread.run_sync(
            lambda: triggered(self._skills, "", touched_paths(calls), already, workspace=self._run.workspace)
        )
        self._journal.add([NewEvent(skill.activated()) for skill in found])

    def _record(self, called: ModelCalled) -> None:
        """The call's record, whichever way it ended: what it cost is counted."""
        self._journal.add([NewEvent(called)], called.usage)
        self._budget.used(called.usage)
        self._tell(Answered(called))

    async def _heard(self, said: Sequence[Said], number: int) -> None:
        """Puts a response into the journal, with what is asked about its calls: none may be there unasked."""
        bodies = [self._handed(body) if isinstance(body, ToolCall) else body for body in said]
        ours = [body for body in bodies if isinstance(body, ToolCall) and not body.client]
        if (most := self._limits.repeats) is not None and self._in_a_row(bodies) > most:
            await self._not_again(bodies, number, LimitReached(REPEATED, f"{most:,}"))
        asked, denied = await self._asked_for(ours)
        for call in () if self._run.terms.client else [call for call in ours if self._agent.is_client_tool(call.tool)]:
            denied.append(ToolResult(call.call_id, call.tool, (Text(NO_CLIENT),), "not_run"))
            asked.append(NewEvent(denied[-1]))
        self._journal.add([*(NewEvent(body, response=number) for body in bodies), *asked])
        if ours:  # nothing is started for the client's calls
            self._fresh = {call.call_id for call in ours}
            # `_answer` flushes before tools start, but hooks run before that: this flush is for them.
            # tests/conversation/test_hooks.py kills a process in a hook to hold it.
            await self._journal.flush()
        for result in denied:
            self._tell(CallEnded(result))

    def _in_a_row(self, said: Sequence[Said]) -> int:
        """How often the same call is asked for in a row, at most, with those of this response as the last ones."""
        new = [body for body in said if isinstance(body, ToolCall)]
        before = [step.body for step in self._journal.so_far if isinstance(step.body, ToolCall)]
        most = count = 0
        last: tuple[str, bytes] | None = None
        for n, call in enumerate((*before, *new)):
            this = (call.tool, _canonical(call.arguments))
            count, last = count + 1 if this == last else 1, this
            most = max(most, count) if n >= len(before) else 0
        return most

    async def _not_again(self, said: Sequence[Said], number: int, reached: LimitReached) -> None:
        """Puts a response into the journal none of whose calls is run. Raises why: the model hears of it if it goes on.

        Each has a result at once. One that was left open would be one that may have been started, to whoever resumes.
        """
        why = (Text(AT_LIMIT.format(what=reached.what, limit=reached.limit)),)
        calls = [body for body in said if isinstance(body, ToolCall)]
        results = [ToolResult(call.call_id, call.tool, why, "not_run") for call in sorted(calls, key=_is_client)]
        self._journal.add([*(NewEvent(body, response=number) for body in said), *map(NewEvent, results)])
        await self._journal.flush()
        for result in results:
            self._tell(CallEnded(result))
        raise reached

    def _handed(self, call: ToolCall) -> ToolCall:
        is_handed = self._run.terms.client and self._agent.is_client_tool(call.tool)
        return replace(call, client=True) if is_handed else call

    def _options_now(self, standing: "TurnStand") -> Options:
        options = self._run.terms.options
        holds = standing.answered == 0 or options.tool_choice in {"auto", "none"}
        return options if holds else replace(options, tool_choice="auto")

    async def _asked_for(self, calls: Sequence[ToolCall]) -> tuple[list[NewEvent], list[ToolResult]]:
        """What is asked about these calls before they may run, and what is answered at once: a standing approval
        allows a call, or nobody is there to be asked. And the results of the calls that are denied so."""
        events: list[NewEvent] = []
        denied: list[ToolResult] = []
        for call in calls:
            why = self._why_ask(call)
            if why is None or not (self._run.terms.attended or self._agent.unattended == "deny"):
                continue
            events.append(NewEvent(ApprovalAsked(call.call_id, call.tool, why)))
            if (given := await self._standing_approval(call)) is not None:
                events.append(NewEvent(given))
            elif not self._run.terms.attended:
                reason = NOBODY.format(why=why)
                told = (Text(f"This call was not run: {reason}"),)
                denied.append(ToolResult(call.call_id, call.tool, told, "denied"))
                events.append(NewEvent(ApprovalDenied(call.call_id, call.tool, reason=reason)))
                events.append(NewEvent(denied[-1]))
        return events, denied

    def _why_ask(self, call: ToolCall) -> str | None:
        try:
            return self._agent.asks_before(call)
        except Exception as error:  # a policy that cannot decide has not said yes
            return f"the approval policy failed ({type(error).__name__}: {error})"

    async def _standing_approval(self, call: ToolCall) -> ApprovalGiven | None:
        """The approval of a call that a standing approval allows now; None if somebody is to be asked."""
        if self._run.standing is None:
            return None
        found = await self._run.standing.find(call, self._agent.tool(call.tool))
        if found is None:
            return None
        return ApprovalGiven(call.call_id, call.tool, found.by, standing=found.id, allows=found.allows)

    async def _allowed_since(self, standing: "TurnStand") -> bool:
        """Whether calls that wait are allowed by a standing approval that was given after they were asked about."""
        waiting = [call for call in standing.open if call.call_id in standing.waiting]
        given = [given for call in waiting if (given := await self._standing_approval(call)) is not None]
        self._journal.add([NewEvent(one) for one in given])
        self._fresh |= {one.call_id for one in given}  # what waits was not started
        return bool(given)

    async def _answer(self, standing: "TurnStand") -> tuple[ToolCall, ...]:
        """Runs our open calls, at once; gives those that wait for an approval instead."""
        if await self._allowed_since(standing):
            standing = stand(self._journal.so_far)
        runnable = [call for call in standing.open if call.call_id not in standing.waiting]
        repeated = [call for call in runnable if call.call_id not in self._fresh and not self._may_repeat(call)]
        if await self._blocked([call for call in standing.open if call not in repeated], standing):
            return ()  # these have their results, and how the turn stands is looked at anew
        for call in repeated:
            unknown = ToolResult(call.call_id, call.tool, (Text(MAY_HAVE_RUN),), "unknown")
            self._journal.add([NewEvent(self._masked(standing.for_model(unknown)))])
        if runnable:
            await self._journal.flush()  # an approval too is on disk before what it allows can have happened
        await self._each(
            [call for call in runnable if call not in repeated], lambda call: self._run_call(call, standing)
        )
        waiting = tuple(call for call in standing.open if call.call_id in standing.waiting)
        for call in waiting:
            self._tell(CallWaits(call, standing.waiting[call.call_id]))
        return waiting

    async def _blocked(self, calls: Sequence[ToolCall], standing: "TurnStand") -> bool:
        """Runs the hooks of calls that are to be run or approved; whether any was blocked. Those have their results."""
        denied: list[ToolResult] = []

        async def ask(call: ToolCall) -> None:
            try:
                why = await self._hooks.at("before_tool", call)
            except TrustChanged:
                await self._not_run(call)
                raise
            if why is None:
                return
            told = (Text(f"This call was not run: {why}"),)
            denied.append(self._masked(standing.for_model(ToolResult(call.call_id, call.tool, told, "denied"))))
            self._journal.add([NewEvent(ApprovalDenied(call.call_id, call.tool, reason=why)), NewEvent(denied[-1])])
            await self._journal.flush()
            self._tell(CallEnded(denied[-1]))

        await self._each([call for call in calls if self._agent.tool(call.tool) is not None], ask)
        return bool(denied)

    async def _catch_up(self) -> None:
        """Runs the hooks of calls that ended just when the turn's process did, or just before this turn goes on.

        A result that somebody has put in the place of another is of no call that has run.
        """
        calls: dict[str, ToolCall] = {}
        ended: list[tuple[ToolCall, ToolResult]] = []
        for step in (*self._run.inherited, *self._journal.so_far):
            match step.body:
                case ModelCalled():
                    ended.clear()  # the model has heard of all before
                case ToolCall() as call:
                    calls[call.call_id] = call
                case ResultSubstituted(call_id=id):
                    calls.pop(id, None)
                case ApprovalGiven(call_id=id) as given if id in calls:
                    calls[id] = given.as_approved(calls[id])
                case ToolResult(call_id=id, status="done" | "failed") as result if id in calls:
                    ended.append((calls[id], result))
                case _:
                    pass
        for call, result in ended:
            await self._ran(call, result)

    async def _ran(self, call: ToolCall, result: ToolResult) -> None:
        if self._agent.tool(call.tool) is not None:
            await self._hooks.at("after_tool", call, result=result)  # the model hears of it by its record

    async def _may_end(self, standing: "TurnStand") -> bool:
        """Whether no hook objects to the answer. Otherwise the model hears of it by the hook's record, and goes on."""
        why = await self._hooks.at("turn_end", answer=standing.answer)
        if why is not None and standing.objections >= OBJECTIONS:
            raise HookBlocked("end", why)
        return why is None

    def _may_repeat(self, call: ToolCall) -> bool:
        tool = self._agent.tool(call.tool)
        return call.call_id in self._run.rerun or tool is None or tool.repeatable

    async def _each(self, calls: Sequence[ToolCall], do: Callable[[ToolCall], Awaitable[None]]) -> None:
        """Does something for all calls at once."""
        errors: list[BaseException] = []

        async def run(call: ToolCall) -> None:
            try:
                await do(call)
            except Exception as error:  # the journal's: the turn cannot go on
                errors.append(error)
                group.cancel_scope.cancel()

        if len(calls) == 1:
            await do(calls[0])
            return
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(run, call)
        if errors:
            raise errors[0]

    async def _run_call(self, call: ToolCall, standing: "TurnStand") -> None:
        self._fresh.discard(call.call_id)
        self._tell(CallStarted(call))
        tool = self._agent.tool(call.tool)
        try:
            secrets = await self._secrets_for(tool)
        except NoSecret as error:  # it was not started, and the model may find another way
            _log.warning("%s", error)  # where it is to be had is for whoever runs this alone
            why = Text(WITHHELD.format(name=error.name))
            await self._ended(call, ToolResult(call.call_id, call.tool, (why,), "failed"))
            return
        context = ToolContext(
            call.call_id,
            key=f"{self._run.turn}/{self._responses}/{call.call_id}",
            workspace=self._run.workspace,
            state=self._journal.state,
            team=self._run.team,
            secrets=secrets,
            masking=self._masking,
        )
        context.pinned = self._run.pinned
        masked = self._masking.stream()
        context.tell = lambda text: self._progress(call, text, context, masked)
        before = self._journal.state
        try:
            result = await run_call(tool, call, context)
        except EndsTurn as ends:
            context.end()
            await self._not_run(call)
            raise ends.error from None
        context.end()
        if rest := masked.end():
            self._tell(CallProgress(call.call_id, call.tool, rest))
        change = context.state.change if not result.error else None
        if change is not None and (key := context.state.outdated(before, self._journal.state)) is not None:
            told = (Text(STATE_CHANGED.format(key=key)), *result.parts)
            change, result = None, ToolResult(call.call_id, call.tool, told, "failed", result.duration)
        changed = [] if change is None else [replace(self._masking.change(change), call_id=call.call_id)]
        result = self._masked(standing.for_model(result))  # a call beside it may have brought another secret
        await self._ended(call, result, [*changed, *context.events])

    def _masked(self, result: ToolResult) -> ToolResult:
        return replace(result, parts=self._masking.parts(result.parts))

    async def _not_run(self, call: ToolCall) -> None:
        """Notes that a call was not started because the turn ends: whoever resumes it need not wonder."""
        result = ToolResult(call.call_id, call.tool, (Text(CHANGED),), "not_run")
        self._journal.add([NewEvent(result)])
        await self._journal.flush()
        self._tell(CallEnded(result))

    async def _ended(self, call: ToolCall, result: ToolResult, before: Sequence[AnyBody] = ()) -> None:
        self._journal.add([NewEvent(body) for body in (*before, result)])
        await self._journal.flush()
        self._tell(CallEnded(result))
        await self._ran(call, result)

    async def _secrets_for(self, tool: Tool | None) -> Resolved:
        """The values that a call of this tool is given. They are masked in whatever comes later in the turn."""
        names = () if tool is None else self._agent.secrets_for(tool)
        found = await resolve(names, self._agent.secrets)
        self._masking |= found.masking
        return found

    def _progress(self, call: ToolCall, text: str, context: ToolContext, masked: MaskedStream) -> None:
        def tell() -> None:
            if not context.is_ended and ((shown := masked.feed(text)) or not text):
                self._tell(CallProgress(call.call_id, call.tool, shown))

        if threading.get_ident() == self._thread:
            tell()
        else:
            with suppress(anyio.RunFinishedError):  # a thread that was left behind, and so was its turn
                anyio.from_thread.run_sync(tell, token=self._token)

    def _finished(self, text: str, corrections: int) -> bool:
        """Whether the answer has the form that was asked for; otherwise the model is told, and asked again."""
        if self._agent.output is None:
            return True
        try:
            decode_as(self._agent.output, text)
        except ValueError as error:
            if (cut := self._cut()) is not None:  # the next one would be cut in the same way
                raise BadOutput(corrections + 1, f"it was {cut} ({error})") from error
            if corrections >= CORRECTIONS:
                raise BadOutput(corrections + 1, str(error)) from error
            told = f"Your answer does not have the form that was asked for: {error}. Answer again, in that form alone."
            self._journal.add([NewEvent(SystemMessage((Text(told),)))])
            return False
        return True

    def _cut(self) -> str | None:
        """How the model's last answer was cut, in words; None if it was not."""
        called = (step.body for step in reversed(self._journal.so_far) if isinstance(step.body, ModelCalled))
        return next((cut_of(one) for one in called), None)


def _is_client(call: ToolCall) -> bool:
    return call.client


def _canonical(arguments: str) -> bytes:
    """Arguments such that the same ones are the same, however they were written."""
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments), order="deterministic")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return arguments.encode(errors="surrogatepass")


class TurnStand(Struct, frozen=True):
    """How a turn stands after its steps."""

    open: tuple[ToolCall, ...]  # calls of ours without a result, with the arguments that they run with
    waiting: dict[str, str]  # which of them wait for an approval, and why
    answer: str | None  # what the model said last, if it asked for no tool and nobody objected
    asked: int  # how often a model was asked
    responses: int  # the number of its newest answer
    corrections: int  # how often its answer had the wrong form
    handed: tuple[ToolCall, ...] = ()  # calls without a result that are the client's to answer
    answered: int = 0  # how often a model that was asked has answered
    objections: int = 0  # how often a hook has objected to its answer
    changed: dict[str, str] = {}  # the arguments of open calls that were approved with others than the model's

    def for_model(self, result: ToolResult) -> ToolResult:
        """The result of an open call for the model: first what was run instead, if somebody changed the call."""
        if (arguments := self.changed.get(result.call_id)) is None or result.status == "not_run":
            return result
        ran = {"unknown": "may have run", "denied": "would have run"}.get(result.status, "was run")
        return replace(result, parts=(Text(APPROVED_CHANGED.format(ran=ran, arguments=arguments)), *result.parts))


def as_run(steps: Iterable[StagedEvent | Event]) -> list[ToolCall]:
    """The calls of a turn, with the arguments that they run with."""
    calls: list[ToolCall] = []
    place: dict[str, int] = {}
    for step in steps:
        match step.body:
            case ToolCall() as call:
                place[call.call_id] = len(calls)
                calls.append(call)
            case ApprovalGiven(call_id=id) as given if id in place:
                calls[place[id]] = given.as_approved(calls[place[id]])
            case _:
                pass
    return calls


def stand(steps: Iterable[StagedEvent | Event]) -> TurnStand:
    """How a turn with these steps stands."""
    open: dict[str, ToolCall] = {}
    waiting: dict[str, str] = {}
    changed: dict[str, str] = {}
    answer: str | None = None
    asked = responses = corrections = answered = objections = 0
    for step in steps:
        response = step.envelope.response
        match step.body:
            case ToolCall() as call:
                open[call.call_id] = call
                changed.pop(call.call_id, None)
                answer = None
            case ToolResult(call_id=id):
                open.pop(id, None)
            case ApprovalAsked(call_id=id, reason=reason):
                waiting[id] = reason or "it is to be approved"
            case ApprovalGiven(call_id=id) as given:
                waiting.pop(id, None)
                if given.arguments is not None and id in open:
                    open[id], changed[id] = given.as_approved(open[id]), given.arguments
            case ApprovalDenied(call_id=id):
                waiting.pop(id, None)
            case AssistantMessage(parts=parts) if not open:
                before = answer if response == responses else None  # one response may say several things
                answer = (before or "") + "".join(part.text for part in parts if isinstance(part, Text))
            case SystemMessage() if answer is not None:
                answer = None
                corrections += 1
            case HookRun(moment="turn_end", blocked=True):
                answer = None
                objections += 1
            case UserMessage():
                answer = None
            case ModelCalled(error=error):
                if not asked:
                    answer, corrections = None, 0  # what stands before was given to the turn, and not said in it
                asked += 1
                answered += error is None
            case _:
                pass
        responses = max(responses, response or 0)
    waiting = {id: why for id, why in waiting.items() if id in open}
    ours = tuple(call for call in open.values() if not call.client)
    handed = tuple(call for call in open.values() if call.client)
    return TurnStand(ours, waiting, answer, asked, responses, corrections, handed, answered, objections, changed)


def _keys(llm: LLM) -> frozenset[str]:
    """The model's key, which no tool is given; nothing if it is not at hand."""
    try:
        key = llm.key()
    except (MissingKey, BadSetting):  # said when the model is asked
        return frozenset()
    return frozenset() if key is None else frozenset({key.reveal()})
