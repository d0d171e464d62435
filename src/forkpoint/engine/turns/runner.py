"""Running turns: each from what somebody asks for to its commit, or to the reason why there is none.

`Transaction` knows how one turn ends. The runner decides what may begin, registers what runs (`active_turns`), and does
what follows a commit. Tests: tests/conversation/test_turns.py, test_idempotency.py, test_once.py.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import anyio
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.agent.budget import Budget
from forkpoint.agent.loop import Done, Loop, stand
from forkpoint.backend.allowance import NOTHING
from forkpoint.backend.callbacks import Callback
from forkpoint.backend.messages import Given, read_input, said_in, split, write_input
from forkpoint.backend.options import Continuation, Decision, Draft, How, NewTurn
from forkpoint.backend.results import Turn, raise_for
from forkpoint.backend.settings import Settings
from forkpoint.clock import system_clock as now
from forkpoint.engine.condensation import PathCondenser
from forkpoint.engine.idempotency import turn_key
from forkpoint.engine.resources import Resources
from forkpoint.engine.turns.active_turns import ActiveTurns, RunningTurn
from forkpoint.engine.turns.journal import MemoryJournal, Steps
from forkpoint.engine.turns.plan import brought, check_open, decided
from forkpoint.engine.turns.reader import TurnReader, read_turn
from forkpoint.engine.turns.transaction import Plan, RunsBeneath, Transaction
from forkpoint.engine.turns.unended import UnendedTurns
from forkpoint.engine.views import new_conversation
from forkpoint.errors import (
    AlreadyExists,
    CannotResume,
    ContextTooLong,
    ForkpointError,
    NoSuchTurn,
    NotFound,
    OutcomeUnknown,
    TurnFailed,
)
from forkpoint.events import Condensation, NewEvent, SkillActivated, StagedEvent, Usage, UserMessage
from forkpoint.ids import new_id
from forkpoint.llm.prompt.identity import CacheIdentity, CallContext
from forkpoint.paging import Page
from forkpoint.store.records import ConversationRecord, IdempotencyKey, OpenTurn, TurnError, TurnRecord
from forkpoint.threads.shield import finished
from forkpoint.updates import TurnStarted


class Beneath(Protocol):
    """What works beneath turns: the sub-agents."""

    def team_for(self, plan: Plan, steps: Steps, budget: Budget) -> RunsBeneath | None:
        """The sub-agents of a turn that begins to run; None if its agent has none."""
        ...

    async def discard_beneath(self, conversation: str, turn: str | None) -> None:
        """Discards what sub-agents had begun for a turn that is discarded, or that has ended."""
        ...


class TurnRunner:
    """Runs the turns of an open store's conversations: asks models, runs tools, commits."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self.store = resources.store
        self._records = resources.records
        self._planner = resources.planner
        self._condenser = PathCondenser(resources)
        self.unended = UnendedTurns(self.store, self._condenser)
        self.active = ActiveTurns(self.store, self.unended)
        self.reader = TurnReader(self.store)
        self.beneath: Beneath  # the engine sets it: turns and sub-agents need each other

    async def run(self, id: str, agent: Agent, new: NewTurn, tell: Callback) -> Turn:
        """Runs a new turn, or joins the one that an earlier request with the same key began."""
        input = write_input(new.given, new.how.request, new.how.caller)
        agent.llm.key()  # a missing one is reported before anything begins
        key = turn_key(new, input)
        await self.unended.end(id)
        if (found := await self._admitted(id, new, key)) is not None:
            return await self.active.join(found, tell)
        how, draft, retry_of = new.how, new.draft, new.retry_of
        if draft is None and new.if_revision is None and how.onto is None:
            await self._condenser.if_owed(agent, id)
        if retry_of is not None and how.skills is None and await self._is_from_here(id, retry_of, how):
            how = replace(how, skills=_begun_with(await self.store.steps(retry_of)))
        left = (await self.store.read(id)).open_turn if new.supersede and draft is None else None
        opened = await self.store.begin(
            id,
            new_id(),
            input=input,
            retry_of=retry_of,
            create=None if draft is None else new_conversation(draft),
            supersede=new.supersede,
            if_revision=new.if_revision,
            key=key,
            onto=how.onto,
        )
        if isinstance(opened, TurnRecord):
            return await self.active.join(opened, tell)
        return await self._go(opened, agent, replace(new, how=how), tell, left=left)

    async def resume(self, id: str, turn: str, agent: Agent, how: Continuation, tell: Callback) -> Turn:
        """Goes on with a turn after its last finished step."""
        record = await self.reader.own(id, turn, "resume")
        steps = await self.store.steps(turn)  # what is wrong is said before the turn is taken
        decided(id, steps, how.decision)
        _check_rerun(id, steps, how.rerun)
        agent.llm.key()
        await self.unended.end(id)
        self.active.check_open(id)
        settings = brought(steps) or await self._settings(id)
        self._planner.check(settings, agent, how.how.allow)  # a turn that cannot go on would end as failed
        opened = await self.store.resume(turn)
        new = NewTurn(given=read_input(record.input), retry_of=record.retry_of, how=how.how)
        return await self._go(opened, agent, new, tell, resumed=how)

    async def once(
        self,
        agent: Agent,
        given: Sequence[Given],
        *,
        identity: CacheIdentity,
        how: How = How(),
        workspace: Path | None = None,
        tell: Callback,
    ) -> Turn:
        """Answers without a conversation: nothing of it is kept but what it cost, which counts for the tenant.

        The returned turn's events have no ids, and its conversation is not in the store. Raises what went wrong.
        """
        agent.llm.key()
        agent = self._resources.trusting.strict(agent, workspace)
        id = new_id()
        self.active.check_open(id)
        journal = MemoryJournal()
        turn = Turn(id, id, "cancelled", tuple(given), (), Usage(), started=now())
        with self.active.running(id, id, tell, agent) as (running, told):
            try:
                with running.scope:
                    told(TurnStarted(id, id, said_in(given)))
                    context = CallContext(identity, self.store.tenant)
                    run = await self._planner.plan_unkept(id, agent, given, context, how, workspace)
                    ended = await Loop(run, self._resources.models, journal, told).run()
                    assert isinstance(ended, Done), "nobody is asked, so nothing waits"
                    turn = replace(turn, outcome="committed")
            except Exception as error:
                code = error.code if isinstance(error, ForkpointError) else "error"
                turn = replace(turn, outcome="failed", error=TurnError(code, str(error)))
                raise
            finally:
                turn = running.ended = replace(turn, events=tuple(journal.so_far), usage=journal.spent, ended=now())
                self._resources.charges.add(None, journal.spent)
                await self._resources.charges.settle()  # what was spent is on disk before anybody hears of the end
                told(turn)
        return raise_for(turn)

    async def check(self, id: str, agent: Agent, *, allow: frozenset[str] = NOTHING) -> None:
        """Raises `CannotResume` for all that is missing."""
        self._planner.check(await self._settings(id), agent, allow)

    async def cancel(self, id: str) -> Turn:
        """Stops the turn that runs here."""
        return await self.active.cancel(id)

    async def discard(self, id: str, turn: str) -> Turn:
        """Gives up an open turn, and what its sub-agents had begun for it."""
        await self.reader.own(id, turn, "discard")
        await self.unended.end(id)
        record = await self.store.discard(turn)
        await self.beneath.discard_beneath(id, turn)
        return await read_turn(self.store, record.id)

    async def settle(self, id: str, turn: str) -> Turn:
        """Asks the disk how a turn of unknown outcome ended."""
        await self.reader.own(id, turn, "settle")
        await self.store.settle(turn)
        return await read_turn(self.store, turn)

    async def condense(
        self, id: str, agent: Agent, *, if_revision: int | None = None, allow: frozenset[str] = NOTHING
    ) -> Condensation | None:
        """Condenses the path at once."""
        await self.unended.end(id)
        self.active.check_open(id)
        return await self._condenser.condense(id, agent, if_revision=if_revision, allow=allow)

    async def read(self, id: str, turn: str) -> Turn:
        """A turn by its id."""
        return await self.reader.read(id, turn)

    async def list(self, id: str, *, cursor: str | None = None, limit: int = 50) -> Page[Turn]:
        """The turns of a conversation, the newest first."""
        return await self.reader.page(id, cursor, limit)

    async def tries(self, id: str) -> tuple[Turn, ...]:
        """The turns at the head that are not history."""
        return await self.reader.tries(id)

    async def stop(self) -> None:
        """Cancels what still runs here, and counts what it cost."""
        await self.active.stop()
        await self._resources.charges.settle()

    # Before a turn begins.

    async def _admitted(self, id: str, new: NewTurn, key: IdempotencyKey | None) -> TurnRecord | None:
        """Raises what is wrong with a request before anything begins; gives the turn that its key has begun already.

        The order matters. A repeat finds its turn even if what it asks for could not begin any more; otherwise each
        check would refuse it. So whatever refuses looks for the key first.
        """
        how, draft = new.how, new.draft
        if draft is not None and draft.chosen and (there := await self._namesake(draft)) is not None:
            if (made := await self._of_key(there.id, key)) is None:
                raise AlreadyExists("conversation", there.name)
            return made
        if (results := split(new.given)[0]) and how.onto is None:
            if (made := await self._of_key(id, key)) is not None:
                return made
            open = () if draft is not None else (await self.store.read(id)).head.open_calls.client
            check_open(id, open, results)
        self.active.check_open(id)
        try:
            await self._check_place(id, how, None if draft is None else draft.settings)
        except CannotResume:
            if (made := await self._of_key(id, key)) is None:
                raise
            return made
        return None

    async def _settings(self, id: str) -> Settings:
        return Settings.from_json(self._records.know(await self.store.read(id)).settings)

    async def _check_place(self, id: str, how: How, settings: Settings | None) -> None:
        """Raises `CannotResume` if the folder is missing. That costs one look at the disk.

        Functions were found when the conversation was opened. If they have changed since, the turn will say so.
        """
        settings = settings if how.settings is None else how.settings
        known = self._records.known(id) if settings is None else None
        if known is not None:
            with suppress(CannotResume):  # what is known may be out of date
                self._planner.check(Settings.from_json(known.settings), None, how.allow)
                return
        if settings is None:
            with suppress(NotFound):  # `begin` will say so
                settings = await self._settings(id)
        if settings is not None:
            self._planner.check(settings, None, how.allow)

    async def _is_from_here(self, id: str, retry_of: str, how: How) -> bool:
        """Whether a try began where its retry will: elsewhere prompts show other skills."""
        here = (await self.store.read(id)).head.position if how.onto is None else how.onto.position
        return (await self.store.turn(retry_of)).base == here

    async def _namesake(self, draft: Draft) -> ConversationRecord | None:
        """The conversation that already has the id or the name chosen for a new one."""
        try:
            return await self._records.find(draft.name or draft.id)
        except NotFound:
            return None

    async def _of_key(self, id: str, key: IdempotencyKey | None) -> TurnRecord | None:
        """The turn of an earlier request with this key; None if the key is free."""
        made = None if key is None else await self.store.made_with(key, "turn", id)
        assert made is None or isinstance(made, TurnRecord)
        return made

    # While it runs.

    async def _go(
        self,
        opened: OpenTurn,
        agent: Agent,
        new: NewTurn,
        tell: Callback,
        *,
        left: str | None = None,
        resumed: Continuation | None = None,
    ) -> Turn:
        """Runs a turn that this process has just taken to its end. ``left`` is the turn whose place it took."""
        transaction = Transaction(self._resources, opened, new.given, new.retry_of, self.beneath.team_for)

        async def plan(already: Sequence[StagedEvent]) -> Plan:
            await self._resources.trusting.keep_for(new.draft)
            if left is not None or (agent.sub_agents is not None and resumed is None):
                await self.beneath.discard_beneath(opened.conversation, left)
            made = await self._planner.plan(opened, agent, new.given, already, new.how)
            return made if resumed is None else _continued(made, already, resumed)

        with self.active.running(opened.conversation, opened.id, tell, agent) as (running, tell):
            try:
                with running.scope:
                    started = TurnStarted(opened.id, opened.conversation, said_in(new.given), resumed is not None)
                    turn = await transaction.run(plan, tell, started)
                if running.scope.cancelled_caught:
                    turn = await transaction.cancelled()
                running.ended = turn
                tell(turn)
                await self._after(running, transaction, turn, new.how)
                return raise_for(turn)
            except anyio.get_cancelled_exc_class():
                if running.ended is None and transaction.is_ended:  # whoever follows it hears how it ended
                    running.ended = await finished(transaction.cancelled)
                    tell(running.ended)
                raise
            except OutcomeUnknown:
                self.unended.add_unknown(opened.conversation, opened.id)
                raise
            except TurnFailed as failed:
                if isinstance(failed.cause, ContextTooLong):
                    self._condenser.owe(opened.conversation)
                if running.ended is None and isinstance(failed.turn, Turn):
                    running.ended = failed.turn
                    tell(failed.turn)
                raise
            finally:
                if not transaction.is_ended:
                    self.unended.add(opened.conversation, transaction)
                self._has_moved(running, transaction, new.how)

    async def _after(self, running: RunningTurn, transaction: Transaction, turn: Turn, how: How) -> None:
        """What follows a commit once callbacks were told of it: the path is condensed, if that is due."""
        committed, agent = transaction.committed, transaction.answered_by
        if committed is None:
            return
        self._has_moved(running, transaction, how)
        if agent is None or agent.condenser is None or self.active.is_stopped:
            return
        with running.afterwards:
            await self._condenser.after(agent, turn, committed, transaction.kept_from)

    def _has_moved(self, running: RunningTurn, transaction: Transaction, how: How) -> None:
        """Notes a commit in memory, once."""
        committed = transaction.committed
        if committed is None or running.has_moved:
            return
        running.has_moved = True
        if how.onto is None:
            self._records.moved(committed, transaction.cache, transaction.settings)
        else:
            self._records.moved_elsewhere(committed)


def _continued(plan: Plan, steps: Sequence[StagedEvent], how: Continuation) -> Plan:
    """The plan of a resumed turn, with somebody's decision and the calls to run again."""
    events, fresh = _still_decided(plan.run.conversation or "", steps, how.decision)
    return replace(plan, events=(*plan.events, *events), run=replace(plan.run, fresh=fresh, rerun=how.rerun))


def _begun_with(steps: Sequence[StagedEvent]) -> tuple[SkillActivated, ...] | None:
    """The skills that a try has begun with; None if it has not come so far."""
    said = next((n for n, step in enumerate(steps) if isinstance(step.body, UserMessage)), None)
    if said is None:
        return None
    return tuple(step.body for step in steps[:said] if isinstance(step.body, SkillActivated))


def _check_rerun(id: str, steps: Sequence[StagedEvent], rerun: Collection[str]) -> None:
    """Raises `NoSuchTurn` if a call cannot be run again: it would be settled as unknown instead, for good."""
    standing = stand(steps)
    open = [call.call_id for call in standing.open if call.call_id not in standing.waiting]
    if strangers := [call for call in rerun if call not in open]:
        said = ", ".join(open) or "none"
        raise NoSuchTurn(id, "resume", f"call {strangers[0]!r} cannot be run again; these have no result: {said}")


def _still_decided(id: str, steps: Sequence[StagedEvent], decision: Decision | None) -> tuple[list[NewEvent], set[str]]:
    """The events of a decision once the turn is held; none if somebody else decided first: then it waits again."""
    try:
        return decided(id, steps, decision)
    except NoSuchTurn:
        return [], set()
