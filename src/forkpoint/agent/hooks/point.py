"""The hooks of one turn, over its journal: each runs once, and is on disk before anything goes on.

What was run before is in the journal and nowhere else, so a turn that is resumed goes on where its hooks stood.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forkpoint.agent.hooks.hook import Hook, HookContext, Moment, left_to_run, ran_before
from forkpoint.agent.hooks.run import run_hooks
from forkpoint.events import NewEvent, ToolCall, ToolResult, UserMessage

if TYPE_CHECKING:
    from forkpoint.agent.loop import Journal


class Hooking:
    """Runs the hooks of a turn. ``conversation`` is None if nothing of it is kept."""

    def __init__(
        self,
        hooks: Sequence[Hook],
        journal: "Journal",
        *,
        turn: str,
        conversation: str | None = None,
        workspace: Path | None = None,
        agent: str | None = None,
        sub_agent: str | None = None,
        messages: Sequence[UserMessage] = (),
        env: Mapping[str, str] | None = None,
        mask: Callable[[str], str] = lambda text: text,
    ) -> None:
        self._hooks = tuple(hooks)
        self._moments = frozenset(hook.moment for hook in self._hooks)
        self._journal = journal
        self._turn = turn
        self._conversation = conversation
        self._workspace = workspace
        self._agent = agent
        self._sub_agent = sub_agent
        self._messages = tuple(messages)
        self._env = env
        self.mask = mask  # what is kept of them goes through it

    async def begin(self) -> str | None:
        """Runs the hooks of a turn's start and of what the user said; the reason if one blocks."""
        blocked = await self.at("turn_start")
        if blocked is None and self._messages:
            blocked = await self.at("user_message")
        return blocked

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
        context = HookContext(
            moment,
            conversation=self._conversation,
            turn=self._turn,
            workspace=None if self._workspace is None else str(self._workspace),
            agent=self._agent,
            sub_agent=self._sub_agent,
            messages=self._messages,
            call_id=None if call is None else call.call_id,
            tool=None if call is None else call.tool,
            arguments=None if call is None else call.arguments,
            result=result,
            answer=answer,
        )
        before = ran_before(self._journal.so_far, moment, context.call_id)
        for run in before:
            if run.blocked:
                return run.reason
        left = left_to_run(self._hooks, context, before)
        if left and moment == "turn_end":
            await self._journal.flush()  # the answer is on disk before it is judged, which may take long
        for hook in left:
            ran = await run_hooks([hook], context, workspace=self._workspace, env=self._env, mask=self.mask)
            self._journal.add([NewEvent(run) for run in ran.events])
            await self._journal.flush()
            if ran.blocked is not None:
                return ran.blocked
        return None
