"""The standing approvals of a store's conversations: given, listed, revoked, and asked for by turns that run.

They are on disk before the call that they are given with runs, and hold from then on, whatever becomes of its turn.
They can be revoked at any moment, from any process: a turn reads them anew for each call that it would ask about.
**A fork begins with those of its source at that moment, and from then on each conversation has its own. A rewind
changes none. A sub-agent has none of its parent's. In a folder that the user calls untrusted, none is used.**
Tests: tests/conversation/test_standing_approvals.py.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.agent.standing_approval import Always, StandingApproval
from forkpoint.agent.tool import Tool
from forkpoint.backend.options import Decision
from forkpoint.backend.results import calls_of
from forkpoint.clock import system_clock as now
from forkpoint.engine.trust import Trusting
from forkpoint.errors import BadArgument, NotFound
from forkpoint.events import JsonText, StagedEvent, ToolCall
from forkpoint.ids import new_id
from forkpoint.store.protocol import Store
from forkpoint.workspace.folders import origin_of

MOST = 200
"""Standing approvals that a conversation has at most. As many that were revoked are remembered besides."""


class StandingApprovals:
    """The standing approvals of a store's conversations."""

    def __init__(self, store: Store, trusting: Trusting) -> None:
        self._store = store
        self._trusting = trusting

    async def list(self, id: str, *, revoked: bool = False) -> tuple[StandingApproval, ...]:
        """The standing approvals of a conversation, the oldest first; with ``revoked``, the revoked ones too."""
        found, _ = _read(await self._store.approvals(id))
        return tuple(one for one in found if revoked or one.revoked is None)

    async def check(self, id: str, given: Sequence[StandingApproval], family: str, folder: Path | None) -> None:
        """Raises `BadArgument` if these could not be used where the conversation works, or would be too many."""
        if given and self.is_untrusted(folder, family):
            why = f"{folder} is untrusted, so every risky call there is asked about; approve this call alone"
            raise BadArgument("approve()", "always", why)
        if given and len(await self.list(id)) + len(given) > MOST:
            why = f"the conversation has {MOST} standing approvals, which is the most; revoke what is not needed"
            raise BadArgument("approve()", "always", why)

    def is_untrusted(self, folder: Path | None, family: str) -> bool:
        """Whether the user calls a folder untrusted: then no standing approval is used there."""
        return folder is not None and self._trusting.of(folder, family) == "untrusted"

    async def give(self, id: str, given: tuple[StandingApproval, ...]) -> tuple[StandingApproval, ...]:
        """Adds standing approvals, and returns them as they stand: the same is not given twice."""
        while True:
            text = await self._store.approvals(id)
            there, strange = _read(text)
            known = {_subject(one): one for one in there if one.revoked is None}
            new = {_subject(one): one for one in given if _subject(one) not in known}
            changed = _written((*there, *new.values()), strange)
            if not new or await self._store.change_approvals(id, changed, if_approvals=text):
                return tuple({**known, **new}[_subject(one)] for one in given)

    async def revoke(self, id: str, approval: str, by: str | None) -> StandingApproval:
        """Takes a standing approval back. Once more, it changes nothing. Raises `NotFound`."""
        while True:
            text = await self._store.approvals(id)
            there, strange = _read(text)
            found = next((one for one in there if one.id == approval), None)
            if found is None:
                raise NotFound("standing approval", approval[:200])
            if found.revoked is not None:
                return found
            revoked = replace(found, revoked=now(), revoked_by=by)
            changed = _written(tuple(revoked if one is found else one for one in there), strange)
            if await self._store.change_approvals(id, changed, if_approvals=text):
                return revoked

    def of_turn(self, conversation: str, family: str, folder: Path | None) -> "TurnApprovals":
        """The standing approvals as a turn of a conversation asks for them."""
        return TurnApprovals(self, conversation, family, folder)


class TurnApprovals(Struct, frozen=True):
    """The standing approvals of one conversation, for a turn that runs in a folder. Read anew for each call."""

    approvals: StandingApprovals
    conversation: str
    family: str
    folder: Path | None

    async def find(self, call: ToolCall, tool: Tool | None) -> StandingApproval | None:
        if tool is None:
            return None
        found = await self.approvals.list(self.conversation)
        if not found or self.approvals.is_untrusted(self.folder, self.family):
            return None
        here = project_of(self.folder)
        return next((one for one in found if one.covers(call, tool, here)), None)


def rules_of(
    decision: Decision | None, turn: str, steps: Sequence[StagedEvent], agent: Agent, folder: Path | None
) -> tuple[StandingApproval, ...]:
    """The standing approvals that a decision gives, one for each of its calls. Raises `BadArgument`."""
    if decision is None or decision.always is None or not decision.approved:
        return ()
    always = Always.of(decision.always)
    if always.kind == "prefix" and len(decision.calls) > 1:
        raise BadArgument("approve()", f"always={decision.always!r}", "a prefix is of one call; name the call")
    waiting = {call.id: call for call in calls_of(steps) if call.status == "waiting"}
    given = []
    for seen in decision.calls:
        if seen.arguments is not None:
            why = "it is of what the model asked for, and this call is to run with other arguments"
            raise BadArgument("approve()", f"always={decision.always!r}", why)
        call = ToolCall(seen.id, waiting[seen.id].tool, waiting[seen.id].arguments)
        arguments, tool_digest = always.checked(call, agent.tool(call.tool))
        given.append(
            StandingApproval(
                id=new_id()[-12:],  # the random part: short enough to be typed
                kind=always.kind,
                tool=call.tool,
                tool_digest=tool_digest,
                given=now(),
                arguments=arguments,
                prefix=always.prefix,
                workspace=project_of(folder),
                by=decision.by,
                turn=turn,
                call=call.call_id,
            )
        )
    return tuple(given)


def project_of(folder: Path | None) -> str | None:
    """The folder that a standing approval is of: a worktree or copy that was made for a fork counts as its origin."""
    return None if folder is None else str(origin_of(folder))


def _subject(one: StandingApproval) -> StandingApproval:
    """All that a standing approval is about, without who gave it, where and when."""
    return replace(one, id="", given=0, by=None, turn=None, call=None)


def _bounded(approvals: tuple[StandingApproval, ...]) -> tuple[StandingApproval, ...]:
    """The same without the oldest of too many that were revoked."""
    gone = [one.id for one in sorted((one for one in approvals if one.revoked), key=lambda one: one.revoked or 0)]
    forgotten = frozenset(gone[:-MOST])
    return tuple(one for one in approvals if one.id not in forgotten)


def _read(text: JsonText) -> tuple[tuple[StandingApproval, ...], tuple[Raw, ...]]:
    """The standing approvals in a document, and those of a form that only a newer version knows: they allow nothing
    here, and are written back as they are."""
    known: list[StandingApproval] = []
    strange: list[Raw] = []
    for one in msgspec.json.decode(text, type=list[Raw]):
        try:
            known.append(msgspec.json.decode(one, type=StandingApproval))
        except msgspec.ValidationError:
            strange.append(one)
    return tuple(known), tuple(strange)


def _written(approvals: tuple[StandingApproval, ...], strange: tuple[Raw, ...]) -> JsonText:
    return msgspec.json.encode([*_bounded(approvals), *strange]).decode()
