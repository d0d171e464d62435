"""The hooks of one turn, over its journal: each runs once, and is on disk before anything goes on.

What was run before is in the journal and nowhere else, so a turn that is resumed goes on where its hooks stood.
Tests: tests/agent/test_hooks.py.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from forkpoint.agent.hooks.hook import HookContext, Moment, left_to_run, ran_before
from forkpoint.agent.hooks.run import run_hooks
from forkpoint.events import NewEvent, ToolCall, ToolResult, UserMessage

if TYPE_CHECKING:
    from forkpoint.agent.loop import Journal
    from forkpoint.agent.run import Run


class HookPoint:
    """Runs the hooks of one turn. ``mask`` hides secrets in what is kept of them."""

    def __init__(self, run: "Run", journal: "Journal", *, mask: Callable[[str], str] = lambda text: text) -> None:
        self._run = run
        self._hooks = run.agent.hooks
        self._moments = frozenset(hook.moment for hook in self._hooks)
        self._journal = journal
        self._mask = mask

    def has(self, moment: Moment) -> bool:
        """Whether anything runs at a moment."""
        return moment in self._moments

    async def begin(self) -> str | None:
        """Runs the hooks of a turn's start and of what the user said; the reason if one blocks."""
        blocked = await self.at("turn_start")
        if blocked is None and self._run.messages:
            blocked = await self.at("user_message")
        return blocked

    async def steered(self, steer: str, message: UserMessage) -> str | None:
        """Runs the hooks of what the user says for a message that came while the turn ran; the reason if one blocks."""
        return await self._run_at(replace(self._context("user_message"), messages=(message,), call_id=steer))

    async def at(
        self,
        moment: Moment,
        call: ToolCall | None = None,
        *,
        result: ToolResult | None = None,
        answer: str | None = None,
    ) -> str | None:
        """Runs what is left to run at a moment; the reason if one blocks now, or has blocked before."""
        if moment not in self._moments:
            return None
        of_call = {} if call is None else {"call_id": call.call_id, "tool": call.tool, "arguments": call.arguments}
        return await self._run_at(replace(self._context(moment), **of_call, result=result, answer=answer))

    def _context(self, moment: Moment) -> HookContext:
        run = self._run
        return HookContext(
            moment,
            conversation=run.conversation,
            turn=run.turn,
            workspace=None if run.workspace is None else str(run.workspace),
            agent=run.agent.name,
            sub_agent=run.sub_agent,
            messages=run.messages,
        )

    async def _run_at(self, context: HookContext) -> str | None:
        moment, run = context.moment, self._run
        if moment not in self._moments:
            return None
        steps = self._journal.so_far
        if moment == "after_tool" and run.inherited:  # the call may be one that this turn goes on from
            steps = (*run.inherited, *steps)
        before = ran_before(steps, moment, context.call_id)
        for earlier in before:
            if earlier.blocked:
                return earlier.reason
        left = left_to_run(self._hooks, context, before)
        if left and moment == "turn_end":
            await self._journal.flush()  # the answer is on disk before it is judged, which may take long
        for hook in left:
            ran = await run_hooks([hook], context, workspace=run.workspace, mask=self._mask)
            self._journal.add([NewEvent(event) for event in ran.events])
            await self._journal.flush()
            if ran.blocked is not None:
                return ran.blocked
        return None
