"""Running turns: those of a store's conversations that this process has taken, each to its end.

`turn.Transaction` knows how one turn ends; this knows which ones run here, so that they can be joined and cancelled,
and which ones the disk did not let end, so that they are ended later.
"""

import hashlib
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path

import anyio
from msgspec.structs import replace

from forkpoint.agent.agent import Agent, Limits
from forkpoint.agent.budget import Budget
from forkpoint.agent.loop import stand
from forkpoint.backend.callbacks import Callback
from forkpoint.backend.messages import Given, read_input, said_in, split, write_input
from forkpoint.backend.protocol import Decision, Draft, How
from forkpoint.backend.results import Turn
from forkpoint.backend.settings import Settings
from forkpoint.clock import system_clock as now
from forkpoint.engine.condensation import Condensing
from forkpoint.engine.record_cache import Records, check_idle
from forkpoint.engine.trust import Trusting
from forkpoint.engine.turns.journal import Steps
from forkpoint.engine.turns.memory_journal import Passing, answer
from forkpoint.engine.turns.missing import NOTHING
from forkpoint.engine.turns.plan import Planner, brought, check_open, decided
from forkpoint.engine.turns.prompts import Prompts
from forkpoint.engine.turns.trace import traced
from forkpoint.engine.turns.transaction import Plan, RunsBeneath, Transaction, raise_for, read_turn
from forkpoint.engine.views import new_conversation
from forkpoint.errors import (
    AlreadyExists,
    Busy,
    CannotResume,
    ContextTooLong,
    ConversationClosed,
    ForkpointError,
    NoSuchTurn,
    NotFound,
    OutcomeUnknown,
    Stale,
    TurnFailed,
)
from forkpoint.events import (
    Condensation,
    JsonText,
    NewEvent,
    SkillActivated,
    StagedEvent,
    Usage,
    UserMessage,
)
from forkpoint.ids import new_id
from forkpoint.llm.call import Models
from forkpoint.llm.prompt.identity import CacheIdentity, CallContext
from forkpoint.shield import finished
from forkpoint.store.protocol import Store
from forkpoint.store.records import (
    Committed,
    ConversationRecord,
    IdempotencyKey,
    OpenTurn,
    TurnError,
    TurnRecord,
)
from forkpoint.updates import TurnJoined, TurnStarted

_log = logging.getLogger("forkpoint")

POLL = 0.05, 1.0  # seconds between two looks at a turn that another process runs, at first and at most


class _Running:
    """A turn that this process runs."""

    def __init__(self, conversation: str, turn: str) -> None:
        self.conversation = conversation
        self.turn = turn
        self.scope = anyio.CancelScope()
        self.afterwards = anyio.CancelScope()  # what is done once it has committed
        self.done = anyio.Event()
        self.has_moved = False  # what is known of its conversation has been changed
        self.ended: Turn | None = None  # as it was told


_inside: ContextVar[_Running | None] = ContextVar("forkpoint turn", default=None)
"""The turn that whatever runs here is part of: a tool, a callback, a model's provider."""


class RunsTurns:
    """Runs the turns of an open store's conversations: asks models, runs tools, commits."""

    def __init__(
        self,
        store: Store,
        models: Models,
        prompts: Prompts | None = None,
        moved: Callable[[str, int], None] | None = None,
        patience: float | None = None,
        trusting: Trusting | None = None,
        beside: Callable[[str], Callback] | None = None,
    ) -> None:
        self._beside = beside  # who is told of turns that sub-agents run, by the conversation
        self._store = store
        self._models = models
        self._prompts = prompts or Prompts(store)
        self._moved = moved  # told which conversation a turn has moved, and to which revision
        self._patience = patience  # seconds that a turn may take, whatever its agent says
        self._records = Records(store)
        self._trusting = trusting or Trusting()
        self._planner = Planner(store, self._prompts, self._records, self._trusting)
        self._condensing = Condensing(store, models, self._prompts, self._charging)
        self._running: dict[str, _Running] = {}
        self._unended: dict[str, Transaction] = {}
        self._unknown: dict[str, str] = {}  # turns of which only the disk knows how they ended, by their conversation
        self._uncharged: list[tuple[str | None, str, Usage]] = []  # spent beside turns, and no disk has taken it yet
        self._stopped = False  # nothing begins any more

    def check_closable(self) -> None:
        """Raises `Busy` inside of a turn that runs here: closing would wait for the very turn that waits for it."""
        inside = _inside.get()
        if inside is not None and self._running.get(inside.conversation) is inside:
            raise Busy(inside.conversation, inside.turn)

    async def run(
        self,
        id: str,
        agent: Agent,
        given: Sequence[Given],
        *,
        draft: Draft | None = None,
        retry_of: str | None = None,
        supersede: bool = False,
        key: str | None = None,
        if_revision: int | None = None,
        allow: frozenset[str] = NOTHING,
        how: How = How(),
        tell: Callback,
    ) -> Turn:
        how = replace(how, allow=allow) if allow else how
        input = write_input(given, how.request, how.caller)
        agent.llm.key()  # a missing one is said before anything begins
        once = None if key is None else IdempotencyKey(key, _digest(input, retry_of, supersede, how.request))
        await self.end_what_could_not_be_ended(id)
        if draft is not None and draft.chosen and (there := await self._namesake(draft)) is not None:
            return await self.join(await self._same_request(there, input, once), tell)
        if (results := split(given)[0]) and how.onto is None:  # what is wrong is said before anything begins
            if (made := await self._of_key(id, input, once)) is not None:
                return await self.join(made, tell)
            open = () if draft is not None else (await self._store.read(id)).head.open_calls.client
            check_open(id, open, results)
        self._check_open(id)
        try:
            await self._check_place(id, how, None if draft is None else draft.settings)
        except CannotResume:
            if (made := await self._of_key(id, input, once)) is None:
                raise
            return await self.join(made, tell)
        if draft is None and if_revision is None and how.onto is None:
            await self._condense_what_is_owed(id, agent)
        if retry_of is not None and how.skills is None and await self._is_from_here(id, retry_of, how):
            how = replace(how, skills=_begun_with(await self._store.steps(retry_of)))
        left = (await self._store.read(id)).open_turn if supersede and draft is None else None
        opened = await self._store.begin(
            id,
            new_id(),
            input=input,
            retry_of=retry_of,
            create=None if draft is None else new_conversation(draft),
            supersede=supersede,
            if_revision=if_revision,
            key=once,
            onto=how.onto,
        )
        if isinstance(opened, TurnRecord):
            return await self.join(opened, tell)
        return await self._go(opened, agent, tuple(given), tell, how, retry_of=retry_of, left=left, draft=draft)

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

        The turn has events without ids, and the conversation that it names is none. Raises what went wrong.
        """
        agent.llm.key()
        agent = self._trusting.strict(agent, workspace)
        id = new_id()
        self._check_open(id)
        running = self._running[id] = _Running(id, id)
        journal, started = Passing(), now()
        inside = _inside.set(running)
        trace = traced(tell, conversation=id, tenant=self._store.tenant, agent=agent)
        told = trace.tell
        turn = Turn(id, id, "cancelled", tuple(given), (), Usage(), started=started)
        try:
            with running.scope:
                told(TurnStarted(id, id, said_in(given)))
                context = CallContext(identity, self._store.tenant)
                agent = await self._planner.served(agent, workspace)
                await answer(
                    agent,
                    self._models,
                    context,
                    given,
                    journal,
                    turn=id,
                    how=self._bounded(agent, how),
                    workspace=workspace,
                    tell=told,
                    skills=await self._planner.skills.of(agent, workspace),
                )
                turn = replace(turn, outcome="committed")
        except Exception as error:
            code = error.code if isinstance(error, ForkpointError) else "error"
            turn = replace(turn, outcome="failed", error=TurnError(code, str(error)))
            raise
        finally:
            turn = running.ended = replace(turn, events=tuple(journal.so_far), usage=journal.spent, ended=now())
            self._charging(None, journal.spent)
            try:
                await finished(self._charge)  # what was spent is on disk before anybody hears of the end
                told(turn)
            finally:
                trace.end()
                _inside.reset(inside)
                self._running.pop(id, None)
                running.done.set()
        return raise_for(turn)

    async def resume(
        self,
        id: str,
        turn: str,
        agent: Agent,
        *,
        decision: Decision | None = None,
        rerun: Collection[str] = (),
        limits: Limits | None = None,
        allow: frozenset[str] = NOTHING,
        how: How = How(),
        tell: Callback,
    ) -> Turn:
        how = replace(how, allow=allow or how.allow, limits=limits or how.limits)
        record = await self._own_turn(id, turn, "resume")
        steps = await self._store.steps(turn)  # what is wrong is said before the turn is taken
        decided(id, steps, decision)
        _check_rerun(id, steps, rerun)
        agent.llm.key()
        await self.end_what_could_not_be_ended(id)
        self._check_open(id)
        await self._check_there(id, agent, how, brought(steps))  # one that cannot go on would end as failed
        opened = await self._store.resume(turn)
        given = read_input(record.input)
        return await self._go(
            opened,
            agent,
            given,
            tell,
            how,
            retry_of=record.retry_of,
            resumed=True,
            decision=decision,
            rerun=rerun,
        )

    async def check(self, id: str, agent: Agent, *, allow: frozenset[str] = NOTHING) -> None:
        await self._check_there(id, agent, How(allow=allow))

    async def _check_there(self, id: str, agent: Agent, how: How, settings: Settings | None = None) -> None:
        """Raises `CannotResume` for all that is missing, before an open turn is touched.

        ``settings`` are those of a turn that has others than its conversation.
        """
        if settings is None:
            settings = Settings.from_json(self._records.know(await self._store.read(id)).settings)
        self._planner.check(settings, agent, how.allow)

    async def _check_place(self, id: str, how: How, settings: Settings | None) -> None:
        """Raises `CannotResume` if the folder is missing, before anything begins. That costs one look at the disk.

        The functions are at hand since it was opened. If they are others by now, the turn says so that finds out.
        """
        settings = settings if how.settings is None else how.settings
        known = self._records.known(id) if settings is None else None
        if known is not None:
            with suppress(CannotResume):  # what is known may be out of date
                self._planner.check(Settings.from_json(known.settings), None, how.allow)
                return
        if settings is None:
            with suppress(NotFound):  # as whoever begins the turn will say
                settings = Settings.from_json(self._records.know(await self._store.read(id)).settings)
        if settings is not None:
            self._planner.check(settings, None, how.allow)

    async def cancel(self, id: str) -> Turn:
        running = self._running.get(id)
        if running is None:
            record = await self._store.read(id)
            if record.status == "running" and record.open_turn is not None:
                raise Busy(id, record.open_turn)  # in another process, which alone can stop it
            raise NoSuchTurn(id, "cancel", "none is running")
        running.scope.cancel()
        running.afterwards.cancel()
        await running.done.wait()
        return running.ended or await read_turn(self._store, running.turn)

    async def discard(self, id: str, turn: str) -> Turn:
        await self._own_turn(id, turn, "discard")
        await self.end_what_could_not_be_ended(id)
        record = await self._store.discard(turn)
        await self._discard_beneath(id, turn)
        return await read_turn(self._store, record.id)

    async def settle(self, id: str, turn: str) -> Turn:
        await self._own_turn(id, turn, "settle")
        await self._store.settle(turn)
        return await read_turn(self._store, turn)

    def _team_for(self, plan: Plan, steps: Steps, budget: Budget) -> RunsBeneath | None:
        """Who works for a turn."""
        return None

    async def _discard_beneath(self, id: str, turn: str | None) -> None:
        """Ends what others had begun for a turn that is discarded, or that has ended."""

    def _check_open(self, id: str) -> None:
        if self._stopped:
            raise ConversationClosed(id)

    async def stop(self) -> None:
        """Cancels what still runs here, and ends what could not be ended, if that is possible now."""
        self._stopped = True
        running = list(self._running.values())
        for one in running:
            one.scope.cancel()
            one.afterwards.cancel()
        for one in running:
            await one.done.wait()
        for id in [*self._unended, *self._unknown, *self._condensing.unsettled]:
            with suppress(ForkpointError):
                await self.end_what_could_not_be_ended(id)
        await finished(self._charge)

    async def _go(
        self,
        opened: OpenTurn,
        agent: Agent,
        given: tuple[Given, ...],
        tell: Callback,
        how: How,
        *,
        retry_of: str | None = None,
        left: str | None = None,
        draft: Draft | None = None,
        resumed: bool = False,
        decision: Decision | None = None,
        rerun: Collection[str] = (),
    ) -> Turn:
        """A turn that this process has just taken, to its end. ``left`` is the one that it took the place of."""
        running = self._running[opened.conversation] = _Running(opened.conversation, opened.id)
        inside = _inside.set(running)
        transaction = Transaction(self._store, self._models, self._prompts, opened, given, retry_of, self._team_for)
        trace = traced(tell, conversation=opened.conversation, tenant=self._store.tenant, agent=agent)
        tell = trace.tell

        async def plan(already: Sequence[StagedEvent]) -> Plan:
            await self._trusting.keep_for(draft)
            if left is not None or (agent.sub_agents is not None and not resumed):
                await self._discard_beneath(opened.conversation, left)
            made = await self._planner.plan(opened, agent, given, already, how)
            events, fresh = _still_decided(opened.conversation, already, decision)
            return replace(
                made, events=(*made.events, *events), fresh=fresh, rerun=rerun, how=self._bounded(made.agent, how)
            )

        try:
            with running.scope:
                started = TurnStarted(opened.id, opened.conversation, said_in(given), resumed)
                turn = await transaction.run(plan, tell, started)
            if running.scope.cancelled_caught:
                turn = await transaction.cancelled()
            running.ended = turn
            tell(turn)
            await self._condensed(running, transaction, turn, how)
            return raise_for(turn)
        except anyio.get_cancelled_exc_class():
            if running.ended is None and transaction.is_ended:  # whoever follows it hears how it ended
                running.ended = await finished(transaction.cancelled)
                tell(running.ended)
            raise
        except OutcomeUnknown:
            self._unknown[opened.conversation] = opened.id
            raise
        except TurnFailed as failed:
            if isinstance(failed.cause, ContextTooLong):
                self._condensing.owe(opened.conversation)
            if running.ended is None and isinstance(failed.turn, Turn):
                running.ended = failed.turn
                tell(failed.turn)
            raise
        finally:
            trace.end()
            _inside.reset(inside)
            if not transaction.is_ended:
                self._unended[opened.conversation] = transaction
            self._has_moved(running, transaction, how)
            if self._running.get(opened.conversation) is running:
                del self._running[opened.conversation]
            running.done.set()

    def _has_moved(self, running: _Running, transaction: Transaction, how: How) -> None:
        """If a turn has committed, what is known of its conversation changes, once."""
        committed = transaction.committed
        if committed is None or running.has_moved:
            return
        running.has_moved = True
        if how.onto is None:
            self._records.moved(committed, transaction.cache, transaction.settings)
        else:
            self._records.forget(committed.conversation)
        if self._moved is not None:
            self._moved(committed.conversation, committed.revision)

    async def _condensed(self, running: _Running, transaction: Transaction, turn: Turn, how: How) -> None:
        """What is done once a turn has committed and was told: its path is condensed, if that is due."""
        committed, agent = transaction.committed, transaction.answered_by
        if committed is None:
            return
        self._has_moved(running, transaction, how)
        if agent is None or agent.condenser is None or self._stopped:
            return
        try:
            with running.afterwards:
                note = await self._condensing.after(agent, turn, committed, transaction.kept_from)
                if note is not None:
                    self._noted(note)
        finally:
            await finished(self._charge)

    def _noted(self, note: Committed) -> None:
        self._records.moved(note)
        if self._moved is not None:
            self._moved(note.conversation, note.revision)

    async def condense(
        self, id: str, agent: Agent, *, if_revision: int | None = None, allow: frozenset[str] = NOTHING
    ) -> Condensation | None:
        await self.end_what_could_not_be_ended(id)
        self._check_open(id)
        record = await self._store.read(id)
        if if_revision is not None and record.revision != if_revision:
            raise Stale(id, if_revision, record.revision)
        check_idle(record)  # before anybody is paid for a summary
        agent = self._planner.agent_for(record.settings, agent, allow)
        agent.llm.key()
        try:
            note = await self._condensing.at_once(agent, record)
        finally:
            await finished(self._charge)
        if note is None:
            if (now_at := (await self._store.read(id)).revision) != record.revision:
                raise Stale(id, record.revision, now_at)  # somebody was faster than the summary
            return None
        self._noted(note)
        made = await self._store.events(id, at=note.head.position, kinds=("condensation",))
        return next((event.body for event in reversed(made) if isinstance(event.body, Condensation)), None)

    async def _is_from_here(self, id: str, retry_of: str, how: How) -> bool:
        """Whether a try began where its retry will: elsewhere other skills were told, or are forgotten."""
        here = (await self._store.read(id)).head.position if how.onto is None else how.onto.position
        return (await self._store.turn(retry_of)).base == here

    async def _condense_what_is_owed(self, id: str, agent: Agent) -> None:
        """A turn could not be, since its prompt was too long: the path is condensed before the next."""
        if not self._condensing.is_owed(id) or agent.condenser is None:
            return
        try:
            if (note := await self._condensing.now(agent, id)) is not None:
                self._noted(note)
        finally:
            await finished(self._charge)

    async def join(self, record: TurnRecord, tell: Callback) -> Turn:
        """A turn that was begun by another request, once it has ended."""
        tell(TurnJoined(record.id, record.conversation))
        if (running := self._running.get(record.conversation)) is not None and running.turn == record.id:
            await running.done.wait()
        wait, longest = POLL
        while True:
            await self.end_what_could_not_be_ended(record.conversation)
            await self._store.settle(record.id)  # raises what its runner heard, if only the disk knows
            if (turn := await read_turn(self._store, record.id)).outcome != "running":
                return raise_for(turn)
            await anyio.sleep(wait)
            wait = min(wait * 2, longest)

    def _bounded(self, agent: Agent, how: How) -> How:
        """The same within the time that a turn may take here."""
        limits = agent.limits if how.limits is None else how.limits
        if self._patience is None or (limits.seconds is not None and limits.seconds <= self._patience):
            return how
        return replace(how, limits=replace(limits, seconds=self._patience))

    def _charging(self, id: str | None, used: Usage) -> None:
        """Something was spent beside a turn: in a conversation, or in none."""
        if used:
            self._uncharged.append((id, new_id(), used))

    async def _charge(self) -> None:
        """Counts what was spent beside turns. What the disk does not take now is counted with the next."""
        while self._uncharged:
            one = id, charge, used = self._uncharged[0]
            try:
                await self._store.charge(id, charge, used)
            except NotFound:
                pass  # it was deleted meanwhile, with all that is counted for it
            except ForkpointError as error:
                _log.warning("what was spent beside a turn is not counted yet: %s", error)
                return
            if one in self._uncharged:  # another question may have counted it meanwhile: the same charge counts once
                self._uncharged.remove(one)

    async def end_what_could_not_be_ended(self, id: str) -> None:
        """A turn whose end the disk did not take still holds its conversation: its end is written now.

        Raises `OutcomeUnknown` while the disk does not even say how it ended.
        """
        await self._condensing.settle(id)
        if (turn := self._unknown.get(id)) is not None:
            with suppress(NotFound):  # it was never begun
                await self._store.settle(turn)
            self._unknown.pop(id, None)
        if (transaction := self._unended.get(id)) is not None:
            await transaction.end()
            if transaction.is_ended and self._unended.get(id) is transaction:
                del self._unended[id]

    async def _namesake(self, draft: Draft) -> ConversationRecord | None:
        """A conversation that has the id or the name that somebody chose for a new one."""
        try:
            return await self._records.find(draft.name or draft.id)
        except NotFound:
            return None

    async def _same_request(self, there: ConversationRecord, input: JsonText, key: IdempotencyKey | None) -> TurnRecord:
        """The turn of an earlier request with this key, which made the conversation. Raises `AlreadyExists`."""
        if (made := await self._of_key(there.id, input, key)) is None:
            raise AlreadyExists("conversation", there.name)
        return made

    async def _of_key(self, id: str, input: JsonText, key: IdempotencyKey | None) -> TurnRecord | None:
        """The turn of an earlier request with this key; None if the key is free."""
        made = None if key is None else await self._store.made_with(key, "turn", id)
        assert made is None or isinstance(made, TurnRecord)
        return made

    async def _own_turn(self, id: str, turn: str, verb: str) -> TurnRecord:
        record = await self._store.turn(turn)
        if record.kind != "turn":
            raise NotFound("turn", turn)  # a note is none
        if record.conversation != id:
            raise NoSuchTurn(id, verb, f"turn {turn} is another conversation's")
        return record


def _digest(input: JsonText, retry_of: str | None, supersede: bool, request: str | None) -> bytes:
    """What tells one request from another that has the same key."""
    if request is not None:
        return bytes.fromhex(request)
    return hashlib.sha256(f"{retry_of or ''}\0{supersede}\0{input}".encode()).digest()


def _begun_with(steps: Sequence[StagedEvent]) -> tuple[SkillActivated, ...] | None:
    """The skills that a try has begun with; None if it has not come so far."""
    said = next((n for n, step in enumerate(steps) if isinstance(step.body, UserMessage)), None)
    if said is None:
        return None
    return tuple(step.body for step in steps[:said] if isinstance(step.body, SkillActivated))


def _check_rerun(id: str, steps: Sequence[StagedEvent], rerun: Collection[str]) -> None:
    """Refuses to run a call again that is not there to be: it would be settled as unknown instead, for good."""
    standing = stand(steps)
    open = [call.call_id for call in standing.open if call.call_id not in standing.waiting]
    if strangers := [call for call in rerun if call not in open]:
        said = ", ".join(open) or "none"
        raise NoSuchTurn(id, "resume", f"call {strangers[0]!r} cannot be run again; these have no result: {said}")


def _still_decided(id: str, steps: Sequence[StagedEvent], decision: Decision | None) -> tuple[list[NewEvent], set[str]]:
    """What a decision comes to once the turn is held: nothing if somebody decided first, and it just waits again."""
    try:
        return decided(id, steps, decision)
    except NoSuchTurn:
        return [], set()
