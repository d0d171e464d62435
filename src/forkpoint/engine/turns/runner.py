"""Running turns: each from what somebody asks for to its commit, or to the reason why there is none.

`Transaction` knows how one turn ends. The runner decides what may begin, registers what runs (`active_turns`), and does
what follows a commit. Tests: tests/conversation/test_turns.py, test_idempotency.py, test_once.py.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import anyio
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.agent.budget import TurnBudget
from forkpoint.agent.loop import Done, Loop, stand
from forkpoint.agent.run import Run
from forkpoint.agent.standing_approval import StandingApproval
from forkpoint.backend.actor import actor
from forkpoint.backend.allowance import NOTHING, missing_workspace
from forkpoint.backend.callbacks import Callback
from forkpoint.backend.messages import WITHOUT_INPUT, Given, caller_of, read_input, said_in, split, write_input
from forkpoint.backend.options import Continuation, Decision, Draft, How, NewTurn
from forkpoint.backend.results import SteerReceipt, Turn, raise_for
from forkpoint.backend.settings import Settings
from forkpoint.clock import system_clock as now
from forkpoint.engine.condensation import PathCondenser
from forkpoint.engine.idempotency import steer_key, turn_key
from forkpoint.engine.resources import Resources
from forkpoint.engine.standing_approvals import rules_of
from forkpoint.engine.turns.active_turns import POLL, ActiveTurns, RunningTurn
from forkpoint.engine.turns.journal import MemoryJournal, Steps
from forkpoint.engine.turns.plan import brought, check_open, decided
from forkpoint.engine.turns.reader import TurnReader, read_turn
from forkpoint.engine.turns.transaction import Plan, RunsBeneath, Transaction
from forkpoint.engine.turns.unended import UnendedTurns
from forkpoint.engine.turns.unfinished import UnfinishedPaths
from forkpoint.engine.views import new_conversation
from forkpoint.errors import (
    AlreadyExists,
    BadArgument,
    BadSetting,
    Busy,
    CallChanged,
    CannotResume,
    ContextTooLong,
    ForkpointError,
    KeyReused,
    NoAgent,
    NoSuchTurn,
    NotFound,
    NothingToRun,
    NotResumable,
    OutcomeUnknown,
    Stale,
    TrustChanged,
    TurnFailed,
    TurnOpen,
    Unpaired,
)
from forkpoint.events import (
    ApprovalGiven,
    Condensation,
    JsonText,
    NewEvent,
    SkillActivated,
    StagedEvent,
    Usage,
    UserMessage,
)
from forkpoint.ids import new_id
from forkpoint.llm.prompt.identity import CacheIdentity, CallContext
from forkpoint.masking import masked
from forkpoint.paging import Page
from forkpoint.polling import pauses
from forkpoint.store.values import IdempotencyKey, OpenTurn, StoredConversation, StoredTurn, TurnError
from forkpoint.threads.shield import finished
from forkpoint.updates import TurnJoined, TurnStarted


class Beneath(Protocol):
    """What works beneath turns: the sub-agents."""

    def team_for(self, plan: Plan, steps: Steps, budget: TurnBudget) -> RunsBeneath | None:
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
        self._standing = resources.standing
        self._condenser = PathCondenser(resources)
        self.unended = UnendedTurns(self.store, self._condenser)
        self.active = ActiveTurns(self.store, self.unended)
        self.reader = TurnReader(self.store)
        self._unfinished = UnfinishedPaths(self.store, resources.planner)
        self.beneath: Beneath  # the engine sets it: turns and sub-agents need each other

    async def run(self, id: str, agent: Agent, new: NewTurn, tell: Callback) -> Turn:
        """Runs a new turn. If an earlier request with the same key began one, see `repeat`."""
        if new.go_on:
            return await self._go_on(id, agent, new, tell)
        input = write_input(new.given, new.how.request, new.how.caller, new.how.echo)
        agent.llm.key()  # a missing one is reported before anything begins
        key = turn_key(new, input)
        await self.unended.end(id)
        if (found := await self._admitted(id, new, key)) is not None:
            return await self.repeat(found, agent, new, tell)
        new = await self._with_guards(id, new)
        begun = await self._begin(id, agent, new, input, key, tell)
        return begun if isinstance(begun, Turn) else await self.repeat(begun, agent, new, tell)

    async def _go_on(self, id: str, agent: Agent, new: NewTurn, tell: Callback) -> Turn:
        """Runs a turn without input from where the path ends. Raises `NothingToRun` if nothing can go on there."""
        agent.llm.key()
        await self.unended.end(id)
        if (made := await self._unfinished.gone_on(id, agent, new)) is not None:
            return await self.repeat(made, agent, new, tell)
        self.active.check_open(id)
        await self._check_place(id, new.how, None)
        new = await self._with_guards(id, new)
        if new.if_revision is None:
            await self._condenser.if_owed(agent, id)
        while True:
            try:
                bound, key = await self._unfinished.next(id, agent, new)
                begun = await self._begin(id, agent, bound, WITHOUT_INPUT, key, tell)
            except (NothingToRun, KeyReused, Busy, TurnOpen):  # or the same request was faster
                if (made := await self._unfinished.gone_on(id, agent, new)) is None:
                    raise
                return await self.repeat(made, agent, new, tell)
            except Stale:
                if new.if_revision is not None:
                    raise
            else:
                return begun if isinstance(begun, Turn) else await self.repeat(begun, agent, new, tell)

    async def repeat(self, made: StoredTurn, agent: Agent, new: NewTurn, tell: Callback) -> Turn:
        """The turn of a request that was sent before, for the same request again.

        A turn that runs is joined, in whichever process. A turn that was interrupted is resumed; if it cannot be
        resumed, since its base is not the head, its input is run anew. Of several repeats one does that, and the
        others join it. A turn that is committed or that waits is given as it is.
        """
        joined = False
        while True:
            made = await self.store.turn(made.id)  # it may have been taken over, or have ended, since it was read
            if not joined and made.outcome in ("failed", "cancelled"):  # by another repeat, which has freed the key
                return await self.run(made.conversation, agent, replace(new, draft=None), tell)
            if made.outcome != "interrupted":
                if not joined:
                    tell(TurnJoined(made.id, made.conversation))
                joined = True
                turn = await self.active.rest(made)
                if turn.outcome != "interrupted":
                    return raise_for(turn)
            try:
                if (how := await self._terms_of_resuming(made, agent, new.how)) is None:
                    return await self._anew(made, agent, new, tell)
                opened = await self._taken(made, agent, Continuation(how=how))
            except (Busy, NotResumable):  # another repeat was faster
                continue
            again = NewTurn(given=read_input(made.input), retry_of=made.retry_of, how=how)
            resumed = Continuation(how=how) if opened.staged else None  # without a step nothing was begun yet
            return await self._go(opened, agent, again, tell, resumed=resumed)

    async def _begin(
        self, id: str, agent: Agent, new: NewTurn, input: JsonText, key: IdempotencyKey | None, tell: Callback
    ) -> Turn | StoredTurn:
        """Runs a new turn; or returns the record of the turn that the key has begun meanwhile."""
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
            if_name=new.if_name,
            key=key,
            onto=how.onto,
            by=actor(),
            accepted=new.accepted,
        )
        if isinstance(opened, StoredTurn):
            return opened
        return await self._go(opened, agent, replace(new, how=how), tell, left=left)

    async def resume(self, id: str, turn: str, agent: Agent, how: Continuation, tell: Callback) -> Turn:
        """Goes on with a turn after its last finished step."""
        record = await self.reader.own(id, turn, "resume")
        opened = await self._taken(record, agent, how)
        new = NewTurn(given=read_input(record.input), retry_of=record.retry_of, how=how.how)
        return await self._go(opened, agent, new, tell, resumed=how)

    async def take_over(self, id: str, turn: str, bound: Callable[[JsonText], Agent], tell: Callback) -> Turn:
        """Goes on with a turn whose process is gone, without anybody asking for it.

        What was started and has no result is not run again, unless its tool is repeatable. ``bound`` gives the agent of
        the document that the turn or its conversation has.

        A turn that has killed each process that ran it is given up, and comes back as it is then: `interrupted`, with
        the reason as its error. Raises `NotResumable` if the turn is none that goes on by itself, and as `resume` does.
        """
        record = await self.reader.own(id, turn, "resume")
        if caller_of(record.input) is not None:
            raise NotResumable(turn, record.outcome, "it goes on with the turn that began it")
        settings = brought(await self.store.steps(turn)) or Settings.from_json((await self.store.read(id)).settings)
        if settings.agent_json is None:
            raise NoAgent(id, "it was made without an agent")
        agent = bound(settings.agent_json)
        await self._check_continued(record, agent, Continuation())
        opened = await self.store.take_over(turn)
        if isinstance(opened, StoredTurn):
            return await read_turn(self.store, turn)
        new = NewTurn(given=read_input(record.input), retry_of=record.retry_of)
        resumed = Continuation() if opened.staged else None  # without a step nothing was begun yet
        return await self._go(opened, agent, new, tell, resumed=resumed)

    async def accept(self, id: str, turn: str) -> Turn:
        """The turn, as it stands. If it runs, it goes on elsewhere from now on if this process dies."""
        if not self.active.has_promised(id, turn):  # else its begin has already put that on disk
            await self.store.accept(turn)
        return await self.reader.read(id, turn)

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
        self._resources.charges.check()
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
                code, why = (
                    (error.code, error.message()) if isinstance(error, ForkpointError) else ("error", str(error))
                )
                turn = replace(turn, outcome="failed", error=TurnError(code, masked(why)))
                raise
            finally:
                turn = running.ended = replace(turn, events=tuple(journal.so_far), usage=journal.spent, ended=now())
                self._resources.charges.add(None, journal.spent)
                await self._resources.charges.settle()  # what was spent is on disk before anybody hears of the end
                told(turn)
        return raise_for(turn)

    async def make_way(self, id: str, turn: str, agent: Agent, *, allow: frozenset[str] = NOTHING) -> None:
        """Gives up an open turn whose input is about to be run again, unless that would be refused.

        Raises `CannotResume` for all that is missing, and `TrustChanged` if the project is not what was approved.
        """
        record = self._records.know(await self.store.read(id))
        settings = Settings.from_json(record.settings)
        self._planner.check(settings, agent, allow)
        self._planner.check_trust(settings, record.family)
        await self.discard(id, turn)  # this turn, and no other that is open by then

    async def cancel(self, id: str, turn: str | None = None) -> Turn:
        """Cancels a turn, whichever process runs it, and gives it as it ended; the open turn, if none is named.

        A turn whose process is gone ends as cancelled here and now. Raises `NoSuchTurn` if there is nothing to cancel.
        """
        if self.active.runs(id, turn):
            return await self.active.cancel(id)
        await self.unended.end(id)
        if turn is None:
            turn = (await self.store.read(id)).open_turn
        if turn is None:
            raise NoSuchTurn(id, "cancel", "none is running")
        found = await self.reader.own(id, turn, "cancel")
        if found.outcome == "awaiting_approval":
            raise NoSuchTurn(id, "cancel", f"turn {turn} waits for an approval and does not run; discard it")
        found = await self.store.ask_cancel(turn)
        for wait in pauses(*POLL):
            match found.outcome:
                case "running":
                    if found.cancel_asked is None:  # it was stopped, or its process died, and somebody resumed it
                        raise found.busy()
                    await anyio.sleep(wait)
                case "interrupted":
                    with suppress(Busy):  # somebody has just resumed it
                        return await self.discard(id, turn)
                case _:
                    return await read_turn(self.store, turn)
            found = await self.store.turn(turn)
        raise AssertionError("pauses have no end")

    async def steer(
        self, id: str, message: UserMessage, *, turn: str | None = None, key: str | None = None
    ) -> SteerReceipt:
        """Leaves a message for the open turn, or for the turn that is named, whichever process runs it.

        Nobody has to be told: the write that journals the turn's next result brings the message along, and so does the
        commit, which is refused as long as a message is there that the turn has not seen.
        """
        await self.unended.end(id)
        left = self.store.steer(id, new_id(), message, turn=turn, by=actor(), key=steer_key(key, message))
        found, one = await left
        return SteerReceipt(one.id, found.id, found.conversation, found.outcome, one.delivered)

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
        await self.unended.settle(id, turn)
        return await read_turn(self.store, turn)

    async def condense(
        self,
        id: str,
        agent: Agent,
        *,
        focus: str | None = None,
        if_revision: int | None = None,
        allow: frozenset[str] = NOTHING,
    ) -> Condensation | None:
        """Condenses the path at once."""
        await self.unended.end(id)
        self.active.check_open(id)
        return await self._condenser.condense(id, agent, focus=focus, if_revision=if_revision, allow=allow)

    async def read(self, id: str, turn: str) -> Turn:
        """A turn by its id."""
        return await self.reader.read(id, turn)

    async def list(
        self,
        id: str,
        *,
        cursor: str | None = None,
        limit: int = 50,
        newest_first: bool = False,
        committed: bool = False,
    ) -> Page[Turn]:
        """The turns of a conversation, in order or the newest first."""
        return await self.reader.page(id, cursor, limit, newest_first=newest_first, committed=committed)

    async def tries(self, id: str) -> tuple[Turn, ...]:
        """The turns at the head that are not history."""
        return await self.reader.tries(id)

    async def made_with(self, id: str, key: str) -> Turn | None:
        """The turn of a conversation that a request with this key began, or None."""
        try:
            made = await self._of_key(id, IdempotencyKey(key, None))
        except KeyReused:  # for something else than a turn of this conversation
            return None
        return None if made is None or made.kind == "note" else await read_turn(self.store, made.id)

    async def stop(self, *, hand_over: bool = False) -> None:
        """Cancels what still runs here, or leaves it to another process, and counts what it cost."""
        await self.active.stop(hand_over=hand_over)
        await self._resources.charges.settle()

    # Before a turn begins.

    async def _admitted(self, id: str, new: NewTurn, key: IdempotencyKey | None) -> StoredTurn | None:
        """Raises what is wrong with a request before anything begins; gives the turn that its key has begun already.

        The order matters. A repeat finds its turn even if what it asks for could not begin any more; otherwise each
        check would refuse it. So whatever refuses looks for the key first.
        """
        how, draft = new.how, new.draft
        if draft is not None and draft.chosen and (there := await self._namesake(draft)) is not None:
            if (made := await self._of_key(there.id, key)) is None:
                raise AlreadyExists("conversation", there.name)
            return made
        is_beside = draft is not None and draft.beside is not None  # the plan looks which calls are open there
        if (results := split(new.given)[0]) and how.onto is None and not is_beside:
            if (made := await self._of_key(id, key)) is not None:
                return made
            open = () if draft is not None else (await self.store.read(id)).head.open_calls.client
            check_open(id, open, results)
        self.active.check_open(id)
        try:
            await self._check_place(id, how, draft)
        except (CannotResume, TrustChanged):
            if (made := await self._of_key(id, key)) is None:
                raise
            return made
        return None

    async def _check_place(self, id: str, how: How, draft: Draft | None) -> None:
        """Raises `CannotResume` if the folder is missing, and `TrustChanged` if its project is not what was approved.
        That costs a look or two at the disk.

        Functions were found when the conversation was opened. If they have changed since, the turn will say so.
        """

        def check(stored: Settings, family: str, wish: bool | None = None) -> None:
            settings = stored if how.settings is None else how.settings
            self._planner.check(settings, None, how.allow)
            if not missing_workspace(settings):  # or whoever goes on without it works nowhere
                self._planner.check_trust(settings, family, wish)

        if draft is not None:
            return check(draft.settings, draft.id, draft.trust)
        if (known := self._records.known(id)) is not None:
            with suppress(CannotResume, TrustChanged):  # what is known may be out of date
                return check(Settings.from_json(known.settings), known.family)
        try:
            record = self._records.know(await self.store.read(id))
        except NotFound:  # `begin` will say so
            return None
        return check(Settings.from_json(record.settings), record.family)

    async def _with_guards(self, id: str, new: NewTurn) -> NewTurn:
        """The same request, once its conversation names the project whose guards it works under.

        That is on disk before the turn begins: if the turn fails, the next one must not have forgotten it.
        """
        draft = new.draft
        if draft is not None:
            family = draft.id if draft.beside is None else draft.beside.family
            return replace(new, draft=replace(draft, settings=self._guarded(draft.settings, family, draft.trust)))
        record = self._records.known(id)
        if record is not None and self._guarded_anew(record) is None:
            return new
        record = self._records.know(await self.store.read(id))  # what is known may be out of date
        guarded = self._guarded_anew(record)
        if guarded is None or record.draft:  # a draft has it from its first turn
            return new
        change = await self._planner.settings_change(id, record.head, record.settings, guarded)
        revision = record.revision if new.if_revision is None else new.if_revision
        try:
            noted = await self.store.note(id, new_id(), change, settings=guarded, if_revision=revision, by=actor())
        except Stale:
            if new.if_revision is None:  # somebody else wrote since it was read
                return await self._with_guards(id, new)
            raise
        except (Busy, TurnOpen, Unpaired):  # no note can stand here; the turn is refused too, or brings it along
            return new
        self._records.forget(id)
        return new if new.if_revision is None else replace(new, if_revision=noted.revision)

    def _guarded_anew(self, record: StoredConversation) -> JsonText | None:
        """The settings of a conversation with the project that guards it now; None if they name it already."""
        settings = Settings.from_json(record.settings)
        guarded = self._guarded(settings, record.family)
        return None if guarded is settings else guarded.to_json()

    def _guarded(self, settings: Settings, family: str, wish: bool | None = None) -> Settings:
        """The settings with the project that guards their folder now; they themselves if nothing changes."""
        if missing_workspace(settings):
            return settings
        with suppress(BadSetting):  # the turn says so
            return self._resources.trusting.guarded(settings, family, wish)
        return settings

    async def _is_from_here(self, id: str, retry_of: str, how: How) -> bool:
        """Whether a try began where its retry will: elsewhere prompts show other skills."""
        here = (await self.store.read(id)).head.position if how.onto is None else how.onto.position
        return (await self.store.turn(retry_of)).base == here

    async def _namesake(self, draft: Draft) -> StoredConversation | None:
        """The conversation that already has the id or the name chosen for a new one."""
        try:
            return await self._records.find(draft.name or draft.id)
        except NotFound:
            return None

    async def _of_key(self, id: str, key: IdempotencyKey | None) -> StoredTurn | None:
        """The turn of an earlier request with this key; None if the key is free."""
        made = None if key is None else await self.store.made_with(key, "turn", id)
        assert made is None or isinstance(made, StoredTurn)
        return made

    async def _terms_of_resuming(self, made: StoredTurn, agent: Agent, how: How) -> How | None:
        """The terms on which an interrupted turn goes on for a request with these; None if it has to be run anew.

        What the request brings along (``how.settings``) may be other than the turn has begun with, if an agent of this
        server was changed since. Then the turn goes on as it has begun, if that is still possible.
        """
        record = await self.store.read(made.conversation)
        if record.head.position != made.base:
            return None
        steps = await self.store.steps(made.id)
        if how.settings is None or not steps:
            return how
        begun = brought(steps) or (None if made.base is None else Settings.from_json(record.settings))
        if begun is None or begun.to_json() == how.settings.to_json():
            return how
        try:
            self._planner.check(begun, agent, how.allow)
        except CannotResume:
            return None
        return replace(how, settings=None)

    async def _taken(self, record: StoredTurn, agent: Agent, how: Continuation) -> OpenTurn:
        """Takes a turn over to go on with it. Raises what is wrong before the turn is taken."""
        await self._check_continued(record, agent, how)
        return await self.store.resume(record.id)

    async def _check_continued(self, record: StoredTurn, agent: Agent, how: Continuation) -> None:
        """Raises what keeps a turn from going on so."""
        id = record.conversation
        steps = await self.store.steps(record.id)
        decided(id, record.id, steps, how.decision)
        _check_rerun(id, steps, how.rerun)
        agent.llm.key()
        await self.unended.end(id)
        self.active.check_open(id)
        of = self._records.know(await self.store.read(id))
        settings = how.how.settings or brought(steps) or Settings.from_json(of.settings)
        if how.how.settings is None:
            self._planner.check(settings, agent, how.how.allow)  # a turn that cannot go on would end as failed
            self._planner.check_arguments(settings, agent, steps, how.decision, how.how)
            if how.decision is not None and how.decision.always is not None:
                bound = self._planner.agent_for(settings.to_json(), agent, how.how.allow)
                rules = rules_of(how.decision, record.id, steps, bound, settings.folder)
                await self._standing.check(id, rules, of.family, settings.folder)
        self._planner.check_trust(settings, of.family)

    async def _anew(self, made: StoredTurn, agent: Agent, new: NewTurn, tell: Callback) -> Turn:
        """Runs the input of an interrupted turn anew, under the same key. Raises `Busy` if somebody else goes on."""
        assert not new.go_on, "it stands at the head, so it is resumed"
        input, id = write_input(new.given, new.how.request, new.how.caller, new.how.echo), made.conversation
        key = turn_key(new, input)
        await self._check_place(id, new.how, None)  # before anything is discarded
        await self.discard(id, made.id)  # which frees its key
        again = replace(new, draft=None, supersede=False, retry_of=made.id)
        begun = await self._begin(id, agent, again, input, key, tell)
        return begun if isinstance(begun, Turn) else await self.repeat(begun, agent, new, tell)

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
            return made if resumed is None else await self._continued(made, already, resumed)

        with self.active.running(opened.conversation, opened.id, tell, agent, opened) as (running, tell):
            running.transaction = transaction
            running.is_promised = new.accepted
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
                if (
                    running.ended is None and transaction.is_ended and transaction.lost is None
                ):  # whoever follows it hears how it ended
                    with suppress(OutcomeUnknown):
                        running.ended = await finished(transaction.cancelled)
                        tell(running.ended)
                raise
            except OutcomeUnknown as unknown:
                running.unknown = unknown
                if transaction.is_ended:  # else its end is written first, and is known then
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

    async def _continued(self, plan: Plan, steps: Sequence[StagedEvent], how: Continuation) -> Plan:
        """The plan of a resumed turn, with somebody's decision and the calls to run again.

        A standing approval that comes with the decision is on disk before anything of the decision is: if the process
        dies in between, the call still waits, and is allowed as soon as the turn goes on.
        """
        run = plan.run
        events, fresh, rules = _still_decided(run, steps, how.decision)
        if rules:
            events = _recorded(events, await self._standing.give(run.conversation or "", rules))
        return replace(plan, events=(*plan.events, *events), run=replace(run, fresh=fresh, rerun=how.rerun))

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


def _recorded(events: Sequence[NewEvent], rules: Sequence[StandingApproval]) -> list[NewEvent]:
    """The events of a decision, in which each approval names the standing approval that was given with it."""
    given = [event.body for event in events if isinstance(event.body, ApprovalGiven)]
    return [
        NewEvent(replace(body, always=rule.id, allows=rule.allows)) for body, rule in zip(given, rules, strict=True)
    ]


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


def _still_decided(
    run: Run, steps: Sequence[StagedEvent], decision: Decision | None
) -> tuple[list[NewEvent], set[str], tuple[StandingApproval, ...]]:
    """The events of a decision once the turn is held, which calls may run, and the standing approvals that it gives.

    None of it if somebody else decided first, or changed the tool meanwhile: then the turn waits again.
    """
    try:
        events, fresh = decided(run.conversation or "", run.turn, steps, decision)
        return events, fresh, rules_of(decision, run.turn, steps, run.agent, run.workspace)
    except (NoSuchTurn, CallChanged, BadArgument):
        return [], set(), ()
