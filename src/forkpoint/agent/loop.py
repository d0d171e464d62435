"""The loop: a model is asked, its tools are run, until it has an answer, something waits, or a limit is reached.

What has happened so far is in the journal and nowhere else, so the loop can begin anywhere: at the start of a turn, or
where a turn stood when its process died. **The promise kept here: a response is in the journal before the first of its
tools starts, and each result when it ends.** So a call that has a result is never run again; one without a result, met
on resuming, may have been started, and is run again only if its tool says that this does no harm.

Calls of the client's tools are not run here. When those of ours in the same response have their results, the turn is
done, with the client's calls open; the next turn answers them.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeAlias, assert_never

import anyio
import anyio.from_thread
import anyio.lowlevel
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.agent.agent import Agent, Limits
from forkpoint.agent.arguments import decode_as
from forkpoint.agent.budget import Budget
from forkpoint.agent.context import ToolContext
from forkpoint.agent.running import run_call
from forkpoint.agent.team import Team
from forkpoint.agent.updates import Answered, CallEnded, CallProgress, CallStarted, CallWaits, StepUpdate
from forkpoint.errors import BadOutput
from forkpoint.events import (
    ApprovalAsked,
    ApprovalDenied,
    ApprovalGiven,
    AssistantMessage,
    Event,
    ModelCalled,
    NewEvent,
    StagedEvent,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)
from forkpoint.history.state import State
from forkpoint.llm.answers import Complete, Failed, Said
from forkpoint.llm.calling import Models
from forkpoint.llm.identity import CallContext
from forkpoint.llm.options import Options
from forkpoint.llm.rendering import Rendering

CORRECTIONS = 2
"""How often a model is told that its answer does not have the form that was asked for."""

MAY_HAVE_RUN = "It may have had its effect, in whole or in part. Find out how things stand before you do it again."

STATE_CHANGED = (
    "This call has run, and whatever it did outside stays done. But another call that ran at the same time has changed "
    "{key!r} in the state, which this one had read; so what this one set in the state was not kept. It said:"
)

NOBODY = "nobody can be asked here, and the agent's policy wants an approval ({why})"
"""Why a call is denied in an unattended turn."""

NO_CLIENT = "the tool is the client's, and a sub-agent has none."

Tell: TypeAlias = Callable[[StepUpdate], None]


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

    def add(self, events: Sequence[NewEvent], usage: Usage = Usage()) -> None:
        """Appends steps; they need not be on disk before `flush`."""
        ...

    async def flush(self) -> None:
        """Puts all steps on disk. Raises if the turn is somebody else's by now: then nothing may be started."""
        ...


class Done(Struct, frozen=True):
    """The model has answered, in the form that was asked for, or only calls of the client's tools are open.

    It is in the journal, though not yet on disk.
    """


class Waiting(Struct, frozen=True):
    """Calls wait for somebody's approval."""

    calls: tuple[ToolCall, ...]


class Loop:
    """One turn's steps, from wherever its journal stands.

    A call without a result may have been started before, by a process that is gone, unless it is ``fresh``; ``rerun``
    names those that are to be run again all the same.

    ``options`` holds for each call of the model, but a tool that must be used only for the first of the turn: else it
    would never end. Unless it is ``attended``, no call comes to wait for an approval: it is denied, or run if the
    agent says so. Say ``final`` if what is told of an answer cannot be taken back (`Models.call`).

    ``budget`` is what is left of the turn's limits, if others have a share in it. ``team`` has its sub-agents. Without
    a ``client``, as in a sub-agent, nobody could answer a call of the client's tools: it is not run.
    """

    def __init__(
        self,
        agent: Agent,
        models: Models,
        context: CallContext,
        journal: Journal,
        base: Rendering,
        *,
        turn: str = "",
        limits: Limits | None = None,
        workspace: Path | None = None,
        tell: Tell | None = None,
        fresh: Collection[str] = (),
        rerun: Collection[str] = (),
        options: Options = Options(),
        attended: bool = True,
        final: bool = False,
        budget: Budget | None = None,
        team: Team | None = None,
        client: bool = True,
    ) -> None:
        self._agent = agent
        self._models = models
        self._context = context
        self._journal = journal
        self._turn = turn
        self._responses = 0  # how many the turn has
        self._budget = budget or Budget(agent.limits if limits is None else limits)
        self._team = team
        self._client = client
        self._workspace = workspace
        self._tell = tell or (lambda _: None)
        self._fresh = set(fresh)  # calls that nobody can have started yet
        self._rerun = frozenset(rerun)
        self._options = options
        self._attended = attended
        self._final = final
        self._prompt = base
        self._shown = 0  # how many steps the prompt has
        self._thread = threading.get_ident()
        self._token = anyio.lowlevel.current_token()

    async def run(self) -> Done | Waiting:
        """Goes on until the model is done or something waits. Raises the typed reason if neither can be."""
        asked = sum(isinstance(step.body, ModelCalled) for step in self._journal.so_far)
        self._budget.used_before(self._journal.spent, asked)
        while True:
            standing = stand(self._journal.so_far)
            self._responses = standing.responses
            if standing.open:
                if waiting := await self._answer(standing):
                    return Waiting(waiting)
            elif standing.handed:
                return Done()
            elif standing.answer is not None:
                if (done := self._finished(standing.answer, standing.corrections)) is not None:
                    return done
            else:
                await self._ask(standing)

    async def _ask(self, standing: "Standing") -> None:
        """One call of the model; what it said is in the journal, on disk if tools are to follow."""
        self._budget.take()
        steps = self._journal.so_far
        self._prompt = self._prompt.then(steps[self._shown :])
        self._shown = len(steps)
        outcome = await self._models.call(
            self._agent.llm,
            self._prompt,
            self._context,
            self._options_now(standing),
            heard=self._tell,
            final=self._final,
            record=self._record,
        )
        match outcome:
            case Failed(error=error):
                raise error
            case Complete(answer=answer):
                await self._heard(answer.said, standing.responses + 1)
            case _ as never:
                assert_never(never)

    def _record(self, called: ModelCalled) -> None:
        """The call's record, whichever way it ended: what it cost is counted."""
        self._journal.add([NewEvent(called)], called.usage)
        self._budget.used(called.usage)
        self._tell(Answered(called))

    async def _heard(self, said: Sequence[Said], number: int) -> None:
        """Puts a response into the journal, with what is asked about its calls: none may be there unasked."""
        bodies = [self._handed(body) if isinstance(body, ToolCall) else body for body in said]
        ours = [body for body in bodies if isinstance(body, ToolCall) and not body.client]
        asked, denied = self._asked_for(ours)
        for call in () if self._client else [call for call in ours if self._agent.is_client_tool(call.tool)]:
            denied.append(ToolResult(call.call_id, call.tool, (Text(NO_CLIENT),), "not_run"))
            asked.append(NewEvent(denied[-1]))
        self._journal.add([*(NewEvent(body, response=number) for body in bodies), *asked])
        if ours:  # nothing is started for the client's calls
            self._fresh = {call.call_id for call in ours}
            await self._journal.flush()
        for result in denied:
            self._tell(CallEnded(result))

    def _handed(self, call: ToolCall) -> ToolCall:
        is_handed = self._client and self._agent.is_client_tool(call.tool)
        return replace(call, client=True) if is_handed else call

    def _options_now(self, standing: "Standing") -> Options:
        holds = standing.answered == 0 or self._options.tool_choice in {"auto", "none"}
        return self._options if holds else replace(self._options, tool_choice="auto")

    def _asked_for(self, calls: Sequence[ToolCall]) -> tuple[list[NewEvent], list[ToolResult]]:
        """What is asked about these calls before they may run; and the results of those that are denied at once."""
        events: list[NewEvent] = []
        denied: list[ToolResult] = []
        for call in calls:
            why = self._why_ask(call)
            if why is None or not (self._attended or self._agent.unattended == "deny"):
                continue
            events.append(NewEvent(ApprovalAsked(call.call_id, call.tool, why)))
            if not self._attended:
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

    async def _answer(self, standing: "Standing") -> tuple[ToolCall, ...]:
        """Runs our open calls, at once; gives those that wait for an approval instead."""
        runnable = [call for call in standing.open if call.call_id not in standing.waiting]
        repeated = [call for call in runnable if call.call_id not in self._fresh and not self._may_repeat(call)]
        for call in repeated:
            self._journal.add([NewEvent(ToolResult(call.call_id, call.tool, (Text(MAY_HAVE_RUN),), "unknown"))])
        if runnable:
            await self._journal.flush()  # an approval too is on disk before what it allows can have happened
        await self._run_all([call for call in runnable if call not in repeated])
        waiting = tuple(call for call in standing.open if call.call_id in standing.waiting)
        for call in waiting:
            self._tell(CallWaits(call, standing.waiting[call.call_id]))
        return waiting

    def _may_repeat(self, call: ToolCall) -> bool:
        tool = self._agent.tool(call.tool)
        return call.call_id in self._rerun or tool is None or tool.repeatable

    async def _run_all(self, calls: Sequence[ToolCall]) -> None:
        errors: list[BaseException] = []

        async def run(call: ToolCall) -> None:
            try:
                await self._run(call)
            except Exception as error:  # the journal's: the turn cannot go on
                errors.append(error)
                group.cancel_scope.cancel()

        if len(calls) == 1:
            await self._run(calls[0])
            return
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(run, call)
        if errors:
            raise errors[0]

    async def _run(self, call: ToolCall) -> None:
        self._fresh.discard(call.call_id)
        self._tell(CallStarted(call))
        context = ToolContext(
            call.call_id,
            key=f"{self._turn}/{self._responses}/{call.call_id}",
            workspace=self._workspace,
            state=self._journal.state,
            team=self._team,
        )
        context.tell = lambda text: self._progress(call, text, context)
        before = self._journal.state
        result = await run_call(self._agent.tool(call.tool), call, context)
        context.end()
        change = context.state.change if not result.error else None
        if change is not None and (key := context.state.outdated(before, self._journal.state)) is not None:
            told = (Text(STATE_CHANGED.format(key=key)), *result.parts)
            change, result = None, ToolResult(call.call_id, call.tool, told, "failed", result.duration)
        self._journal.add([NewEvent(body) for body in (change, *context.events, result) if body is not None])
        await self._journal.flush()
        self._tell(CallEnded(result))

    def _progress(self, call: ToolCall, text: str, context: ToolContext) -> None:
        def tell() -> None:
            if not context.is_ended:
                self._tell(CallProgress(call.call_id, call.tool, text))

        if threading.get_ident() == self._thread:
            tell()
        else:
            with suppress(anyio.RunFinishedError):  # a thread that was left behind, and so was its turn
                anyio.from_thread.run_sync(tell, token=self._token)

    def _finished(self, text: str, corrections: int) -> Done | None:
        """The answer, if it has the form that was asked for; otherwise the model is told, and asked again."""
        if self._agent.output is None:
            return Done()
        try:
            decode_as(self._agent.output, text)
        except ValueError as error:
            if self._is_cut():  # the next one would be cut in the same way
                raise BadOutput(corrections + 1, f"it was cut off by its limit of tokens ({error})") from error
            if corrections >= CORRECTIONS:
                raise BadOutput(corrections + 1, str(error)) from error
            told = f"Your answer does not have the form that was asked for: {error}. Answer again, in that form alone."
            self._journal.add([NewEvent(SystemMessage((Text(told),)))])
            return None
        return Done()

    def _is_cut(self) -> bool:
        """Whether the model's last answer reached the limit of tokens that it was given."""
        called = (step.body for step in reversed(self._journal.so_far) if isinstance(step.body, ModelCalled))
        return next((one.finish == "length" for one in called), False)


class Standing(Struct, frozen=True):
    """How a turn stands after its steps."""

    open: tuple[ToolCall, ...]  # calls of ours without a result
    waiting: dict[str, str]  # which of them wait for an approval, and why
    answer: str | None  # what the model said last, if it asked for no tool and nobody objected
    asked: int  # how often a model was asked
    responses: int  # the number of its newest answer
    corrections: int  # how often its answer had the wrong form
    handed: tuple[ToolCall, ...] = ()  # calls without a result that are the client's to answer
    answered: int = 0  # how often a model that was asked has answered


def stand(steps: Iterable[StagedEvent | Event]) -> Standing:
    """How a turn with these steps stands."""
    open: dict[str, ToolCall] = {}
    waiting: dict[str, str] = {}
    answer: str | None = None
    asked = responses = corrections = answered = 0
    for step in steps:
        response = step.envelope.response
        match step.body:
            case ToolCall() as call:
                open[call.call_id] = call
                answer = None
            case ToolResult(call_id=id):
                open.pop(id, None)
            case ApprovalAsked(call_id=id, reason=reason):
                waiting[id] = reason or "it is to be approved"
            case ApprovalGiven(call_id=id) | ApprovalDenied(call_id=id):
                waiting.pop(id, None)
            case AssistantMessage(parts=parts) if not open:
                before = answer if response == responses else None  # one response may say several things
                answer = (before or "") + "".join(part.text for part in parts if isinstance(part, Text))
            case SystemMessage() if answer is not None:
                answer = None
                corrections += 1
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
    return Standing(ours, waiting, answer, asked, responses, corrections, handed, answered)
