"""`TableStore`: a store whose conversations are in the tables of a database.

This module says which operation reads and which one writes, how durably, and how to find out whether it landed. The
modules of `operations` say what each operation does, and a `View` how it is run in its database.
Tests: tests/store/test_sqlite_conformance.py, test_state_machine.py, test_limits.py, test_faults.py.
"""

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

from msgspec.structs import replace

from forkpoint.errors import BadArgument, BadName, BudgetExceeded, CommitFailed, NotFound, NotWhole, TooLarge
from forkpoint.events import Event, JsonText, NewEvent, Position, StagedEvent, Usage, UserMessage, encode_body
from forkpoint.history.anchors import Anchor
from forkpoint.history.budgets import Amount, Budget, BudgetScope, BudgetStanding
from forkpoint.history.exports.lines import Header, Line
from forkpoint.history.landmarks import LANDMARKS, Landmark, landmarks_in
from forkpoint.history.paths import Path
from forkpoint.history.records import Export
from forkpoint.history.state import State
from forkpoint.history.steers import Steer
from forkpoint.history.wholeness import check_whole
from forkpoint.ids import id_to_bytes, new_id
from forkpoint.paging import Page
from forkpoint.store.erasure import Erasing, Receipt, check_reason
from forkpoint.store.stage import placed
from forkpoint.store.tables.budgets import admission, limits
from forkpoint.store.tables.budgets.evidence import set_budget
from forkpoint.store.tables.budgets.reservations import give_back, is_reserved
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.erasure import receipts, removal, transaction
from forkpoint.store.tables.evidence.record_pages import read_records
from forkpoint.store.tables.held_turns import HeldTurns
from forkpoint.store.tables.operations import (
    commits,
    conversations,
    deletion,
    departure,
    history,
    holds,
    landmarks,
    ledger,
    lists,
    orphans,
    shelf,
    steers,
    turn_pages,
    turns,
)
from forkpoint.store.tables.rows import Scope, head_of
from forkpoint.store.tables.seals import sealing
from forkpoint.store.tables.transfer import exporter, intake
from forkpoint.store.tables.verification import verify
from forkpoint.store.tables.view import View
from forkpoint.store.values import (
    Announcement,
    Capabilities,
    Committed,
    Deleted,
    FamilyExport,
    FamilyImported,
    Hold,
    IdempotencyKey,
    KeyedOperation,
    ListOrder,
    NewConversation,
    NewFork,
    Onto,
    OpenTurn,
    Orphan,
    Outcome,
    Record,
    Status,
    StopReason,
    StoredConversation,
    StoredDocument,
    StoredGlance,
    StoredTurn,
    Tags,
    TurnError,
    Verification,
    VerifyProgress,
    check_id,
    check_name,
)


@dataclass(eq=False, repr=False)
class TableStore:
    """Conversations in the tables of a database, seen from one tenant."""

    tenant: str
    capabilities: Capabilities
    _view: View
    _turns: HeldTurns
    _is_owner: bool = True  # a store that `within` gave does not close the database

    def within(self, tenant: str) -> Self:
        view = self._view.within(check_name("tenant", tenant))
        return type(self)(tenant, self.capabilities, view, HeldTurns(view), _is_owner=False)

    async def close(self) -> None:
        raise NotImplementedError

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Conversations.

    async def create(
        self,
        new: NewConversation,
        events: Sequence[NewEvent] = (),
        *,
        key: IdempotencyKey | None = None,
        announced: Announcement | None = None,
    ) -> StoredConversation:
        self._view.opened.checks.new(new)
        self._view.opened.checks.key(key)
        note = new_id(self._view.opened.clock())
        limits = self._view.opened.settings.limits
        told = new.id

        def run(db: Database, scope: Scope) -> StoredConversation:
            nonlocal told
            made = conversations.made_before(db, scope, new, key)
            told = new.id if made is None else made.id
            if made is not None:
                return made
            made = conversations.create(db, scope, new, draft=False, key=key)
            if announced is not None:
                commits.announce(db, scope, new.id, announced, limits=limits)
            if not events:
                return made
            commits.note(db, scope, new.id, note, events, limits=limits)
            return conversations.read(db, scope, new.id)

        def landed(db: Database, scope: Scope) -> bool:
            return conversations.exists(db, scope, told)  # and with it the notes, which are of the same transaction

        return await self._view.write("conversation", new.id, run, landed=landed)

    async def read(self, id: str) -> StoredConversation:
        return await self._view.read(partial(conversations.read, id=id))

    async def find(self, name: str) -> StoredConversation:
        try:
            check_name("name", name)
        except BadName:
            raise NotFound("conversation", name if len(name) <= 200 else name[:200] + "...") from None
        return await self._view.read(partial(conversations.find, name=name))

    async def made_with(
        self, key: IdempotencyKey, operation: KeyedOperation, source: str | None = None
    ) -> StoredConversation | StoredTurn | None:
        # A read is enough. Its snapshot is as new as the call, so it has every key that any process committed before;
        # and a key that is taken afterwards is found by the operation itself, which looks again under the write lock.
        self._view.opened.checks.key(key)
        find = partial(turns.made_with, key=key, operation=operation, source=source)
        return await self._view.read_for_good("what was made with key", key.key, find, _is_answer)

    async def conversations(
        self,
        *,
        cursor: str | None = None,
        limit: int = 50,
        order: ListOrder = "created",
        tags: Tags = (),
        status: Status | None = None,
        family: str | None = None,
        parent: str | None = None,
        sub_agents: bool = True,
        sides: bool = True,
        asides: bool = True,
        drafts: bool = False,
    ) -> Page[StoredConversation]:
        self._view.opened.checks.order(order)
        self._view.opened.checks.description(None, tags)
        wanted = lists.Wanted(
            tags=tags,
            status=status,
            family=family,
            parent=parent,
            sub_agents=sub_agents,
            sides=sides,
            asides=asides,
            drafts=drafts,
        )
        page = partial(lists.page, order=order, cursor=cursor, limit=_bounded(limit), wanted=wanted)
        return await self._view.read(page)

    async def glances(self, ids: Sequence[str]) -> dict[str, StoredGlance]:
        return await self._view.read(partial(lists.glances, ids=ids))

    async def revisions(self, ids: Collection[str]) -> dict[str, int]:
        return await self._view.read(partial(conversations.revisions, ids=ids))

    async def describe(
        self,
        id: str,
        *,
        title: str | None = None,
        tags: Tags | None = None,
        name: str | None = None,
        if_unchanged: StoredConversation | None = None,
    ) -> StoredConversation:
        self._view.opened.checks.description(title, tags or ())
        if name is not None:
            check_name("name", name)
        run = partial(conversations.describe, id=id, title=title, tags=tags, name=name, if_unchanged=if_unchanged)
        return await self._view.write("description of", id, run, landed=partial(conversations.was_updated, id=id))

    async def approvals(self, id: str) -> JsonText:
        return await self._view.read(partial(conversations.approvals, id=id))

    async def change_approvals(self, id: str, approvals: JsonText, *, if_approvals: JsonText) -> bool:
        self._view.opened.checks.approvals(approvals)
        run = partial(conversations.change_approvals, id=id, approvals=approvals, before=if_approvals)
        landed = partial(conversations.has_approvals, id=id, approvals=approvals)
        return await self._view.write("approvals of", id, run, landed=landed)

    async def rename(self, id: str, name: str | None, *, if_revision: int | None = None) -> StoredConversation:
        conversations.key_of(id)
        if name is not None:
            check_name("name", name)
        run = partial(conversations.rename, id=id, name=name, if_revision=if_revision)
        return await self._view.write("name of", id, run, landed=partial(conversations.is_named, id=id, name=name))

    async def admit(self, id: str) -> StoredConversation:
        run = partial(conversations.admit, id=id)
        return await self._view.write("admission of", id, run, landed=partial(conversations.is_admitted, id=id))

    async def fork(
        self,
        source: str,
        new: NewFork,
        *,
        at: str | Position | None = None,
        before: str | Position | None = None,
        events: Sequence[NewEvent] = (),
        if_revision: int | None = None,
        key: IdempotencyKey | None = None,
        draft: bool = False,
        by: str | None = None,
    ) -> StoredConversation:
        self._view.opened.checks.new(new)
        self._view.opened.checks.key(key)
        note = new_id(self._view.opened.clock())
        limits = self._view.opened.settings.limits
        make = partial(
            conversations.fork,
            source=source,
            new=new,
            at=at,
            before=before,
            if_revision=if_revision,
            key=key,
            draft=draft,
            is_answered=bool(events),
        )

        def run(db: Database, scope: Scope) -> StoredConversation:
            if (before_this := conversations.forked_before(db, scope, source, key)) is not None:
                return before_this
            made = make(db, scope)
            if not events:
                return made
            commits.note(db, scope, new.id, note, events, limits=limits, by=by)
            return conversations.read(db, scope, new.id)

        return await self._view.write("conversation", new.id, run, landed=partial(conversations.exists, id=new.id))

    async def rewind(
        self,
        id: str,
        aside: NewFork,
        *,
        at: str | Position | None = None,
        before: str | Position | None = None,
        events: Sequence[NewEvent] = (),
        if_revision: int | None = None,
        key: IdempotencyKey | None = None,
        by: str | None = None,
    ) -> tuple[StoredConversation, StoredConversation | None]:
        self._view.opened.checks.new(aside)
        self._view.opened.checks.key(key)
        note = new_id(self._view.opened.clock())
        limits = self._view.opened.settings.limits
        move = partial(conversations.rewind, id=id, aside=aside, at=at, before=before, if_revision=if_revision, key=key)

        def run(db: Database, scope: Scope) -> tuple[StoredConversation, StoredConversation | None]:
            if (before_this := conversations.rewound_before(db, scope, id, key)) is not None:
                return before_this
            rewound, branched = move(db, scope)
            if not events:
                return rewound, branched
            commits.note(db, scope, id, note, events, limits=limits, by=by)
            return conversations.read(db, scope, id), branched

        has_landed = partial(turns.exists, id=note) if events else partial(conversations.exists, id=aside.id)
        return await self._view.write("rewind of", id, run, landed=has_landed)

    async def keep(
        self,
        id: str,
        branch: str,
        aside: NewFork,
        *,
        settings: JsonText | None = None,
        cache: JsonText | None = None,
        if_unchanged: Collection[StoredConversation] = (),
        key: IdempotencyKey | None = None,
    ) -> tuple[StoredConversation, StoredConversation | None]:
        self._view.opened.checks.new(aside)
        self._view.opened.checks.documents(settings, cache)
        self._view.opened.checks.key(key)
        conversations.key_of(id)
        conversations.key_of(branch)
        mark: departure.KeepMark | None = None

        def run(db: Database, scope: Scope) -> tuple[StoredConversation, StoredConversation | None]:
            nonlocal mark
            kept = departure.keep(
                db, scope, id, branch, aside, settings=settings, cache=cache, if_unchanged=if_unchanged, key=key
            )
            mark = departure.mark_of(db, scope, id)
            return kept

        def landed(db: Database, scope: Scope) -> bool:
            return departure.is_there(db, scope, id, mark)

        return await self._view.write("keep of", id, run, landed=landed, exclusive=True)

    async def note(
        self,
        id: str,
        note: str,
        events: Sequence[NewEvent],
        *,
        settings: JsonText | None = None,
        cache: JsonText | None = None,
        usage: Usage = Usage(),
        if_revision: int | None = None,
        if_erasures: int | None = None,
        key: IdempotencyKey | None = None,
        by: str | None = None,
    ) -> Committed:
        self._view.opened.checks.documents(settings, cache)
        self._view.opened.checks.key(key)
        conversations.key_of(id)
        check_id("note", note)

        run = partial(
            commits.note,
            conversation=id,
            note=note,
            events=events,
            limits=self._view.opened.settings.limits,
            settings=settings,
            cache=cache,
            usage=usage,
            if_revision=if_revision,
            if_erasures=if_erasures,
            key=key,
            by=by,
        )
        noted = await self._view.write("note", note, run, landed=partial(turns.exists, id=note))
        self._view.opened.running.discard(id_to_bytes(note))
        return noted

    async def delete(self, id: str, *, if_revision: int | None = None) -> Deleted:
        run = partial(deletion.delete, id=id, if_revision=if_revision)
        return await self._view.write(
            "removal of", id, run, landed=lambda db, scope: not conversations.exists(db, scope, id), exclusive=True
        )

    # Holds and erasures.

    async def hold(self, conversation: str, id: str, reason: str) -> Hold:
        check_id("hold", id)
        check_reason(reason)
        run = partial(holds.hold, conversation=conversation, id=id, reason=reason)
        landed = partial(holds.is_standing, conversation=conversation, id=id)
        return await self._view.write("hold", id, run, landed=landed)

    async def release(self, conversation: str, id: str | None = None) -> tuple[Hold, ...]:
        run = partial(holds.release, conversation=conversation, id=id)
        landed = partial(holds.is_released, conversation=conversation, id=id)
        return await self._view.write("release of", conversation, run, landed=landed)

    async def holds(self, conversation: str | None = None) -> tuple[Hold, ...]:
        return await self._view.read(partial(holds.read, conversation=conversation))

    async def erase(
        self, id: str, chosen: Erasing, *, reason: str, dry_run: bool = False, more_follow: bool = False
    ) -> Receipt:
        check_id("erasure", id)
        check_reason(reason)
        if dry_run:
            preview = await self._view.read(partial(removal.preview, id=id, chosen=chosen, reason=reason))
            return replace(preview, out_of_reach=self._view.out_of_reach)
        return await transaction.erase(self._view, id, chosen, reason, more_follow=more_follow)

    async def replay(self, receipt: Receipt) -> bool:
        return await transaction.replay(self._view, receipt)

    async def erasures(self, *, cursor: str | None = None, limit: int = 50) -> Page[Receipt]:
        return await self._view.read(partial(receipts.page, cursor=cursor, limit=_bounded(limit)))

    async def families(self, *, cursor: str | None = None, limit: int = 50) -> Page[str]:
        return await self._view.read(partial(conversations.families, cursor=cursor, limit=_bounded(limit)))

    async def erasure_count(self) -> int:
        return await self._view.read(receipts.count)

    # Turns.

    async def begin(
        self,
        conversation: str,
        turn: str,
        *,
        input: JsonText | None = None,
        retry_of: str | None = None,
        create: NewConversation | None = None,
        supersede: bool = False,
        if_revision: int | None = None,
        if_name: str | None = None,
        key: IdempotencyKey | None = None,
        onto: Onto | None = None,
        by: str | None = None,
        accepted: bool = False,
    ) -> OpenTurn | StoredTurn:
        self._view.opened.checks.input(input)
        conversations.key_of(conversation)
        check_id("turn", turn)
        if retry_of is not None:
            check_id("turn", retry_of)
        self._view.opened.checks.key(key)
        if create is not None:
            self._view.opened.checks.new(create)
            if create.id != conversation:
                raise BadName.bad_id(f"conversation that turn {turn} creates", create.id)
        token = os.urandom(16)
        run = partial(
            turns.begin,
            conversation=conversation,
            turn=turn,
            token=token,
            input=input,
            retry_of=retry_of,
            create=create,
            supersede=supersede,
            if_revision=if_revision,
            if_name=if_name,
            key=key,
            onto=onto,
            by=by,
            accepted=accepted,
        )
        quickly = None
        if (quick := self._view.quick) is not None and retry_of is None and onto is None:
            quickly = partial(
                quick.begin,
                conversation,
                turn,
                token=token,
                input=input,
                if_revision=if_revision,
                if_name=if_name,
                key=key,
                by=by,
                accepted=accepted,
            )
        taken = await self._turns.take(turn, token, begun=True, operation=run, durable=accepted, quickly=quickly)
        if isinstance(taken, OpenTurn):
            return taken
        return await self._view.read_for_good("turn", taken.id, partial(turns.read, id=taken.id), _is_answer)

    async def journal(
        self, turn: OpenTurn, events: Sequence[NewEvent], *, usage: Usage = Usage(), calling: bool = False
    ) -> OpenTurn:
        staged = self._view.stage(turn, events)
        spent = turn.usage + usage
        run = partial(turns.journal, turn=turn, staged=staged, usage=spent, calling=calling)
        landed = partial(turns.journalled, id=turn.id, staged=turn.staged + len(events), usage=spent)

        async def write() -> tuple[bytes | None, JsonText | None, bool]:
            quick = self._view.quick
            done = None if quick is None else await quick.journal(turn, staged, spent)
            if done is not None:
                return done
            return await self._view.write("steps of turn", turn.id, run, landed=landed, size=staged.size)

        digest, steered, budgeted = await self._turns.account(turn, write())
        return replace(
            turn,
            staged=turn.staged + len(events),
            steps_digest=digest,
            calls=staged.calls,
            state=staged.state,
            state_changed=turn.state_changed or staged.state is not turn.state,
            usage=spent,
            steered=steered,
            budgeted=budgeted,
        )

    async def steer(
        self,
        conversation: str,
        id: str,
        message: UserMessage,
        *,
        turn: str | None = None,
        by: str | None = None,
        key: IdempotencyKey | None = None,
    ) -> tuple[StoredTurn, Steer]:
        conversations.key_of(conversation)
        check_id("steer", id)
        if turn is not None:
            conversations.key_of(turn, "turn")
        self._view.opened.checks.key(key)
        check_whole(NewEvent(message))
        size = len(encode_body(message).encode())
        limits = self._view.opened.settings.limits
        if size > limits.payload:
            raise TooLarge("payload", size, limits.payload)
        new = Steer(id, 0, message, by)
        left_for = turn

        def run(db: Database, scope: Scope) -> tuple[StoredTurn, Steer]:
            nonlocal left_for
            found, one = steers.steer(db, scope, conversation, new, turn=turn, key=key, limits=limits)
            left_for = found.id
            return found, one

        def landed(db: Database, scope: Scope) -> bool:
            return steers.is_left(db, scope, left_for, id)

        return await self._view.write("message for a turn of", conversation, run, landed=landed, size=size)

    async def commit(
        self,
        turn: OpenTurn,
        events: Sequence[NewEvent] = (),
        *,
        usage: Usage = Usage(),
        cache: JsonText | None = None,
        settings: JsonText | None = None,
        aside: NewFork | None = None,
    ) -> Committed:
        self._view.opened.checks.documents(settings, cache)
        if aside is not None:
            self._view.opened.checks.new(aside)
        staged = self._view.stage(turn, events)
        if not turn.staged + len(events):
            raise NotWhole("turn", "it has no events")
        staged.calls.at_a_commit()
        run = partial(
            commits.commit,
            turn=turn,
            staged=staged,
            usage=turn.usage + usage,
            settings=settings,
            cache=cache,
            aside=aside,
        )

        def landed(db: Database, scope: Scope) -> bool:
            return turns.settle(db, scope, turn.id, turn.token, usage) == "committed"

        def not_landed(error: Exception) -> CommitFailed:
            return CommitFailed(self._view.opened.path, turn.id, str(error))

        async def write() -> Committed:
            quick, done = self._view.quick, None
            if quick is not None and aside is None:
                done = await quick.commit(turn, staged, turn.usage + usage, settings=settings, cache=cache)
            if done is not None:
                return done
            return await self._view.write("turn", turn.id, run, landed=landed, not_landed=not_landed, size=staged.size)

        committed = await self._turns.account(turn, write(), usage)
        if turn.staged:  # the rest is in the journal, and only the disk has it as it is
            return committed
        return replace(committed, events=placed(turn, events, staged, committed.first))

    async def fail(
        self, turn: OpenTurn, error: TurnError, *, usage: Usage = Usage(), unless_accepted: bool = False
    ) -> StoredTurn:
        error = TurnError(_printable(error.code), _printable(error.message))
        return await self._end(turn, "failed", error, usage, unless_accepted=unless_accepted)

    async def cancel(self, turn: OpenTurn, *, usage: Usage = Usage()) -> StoredTurn:
        return await self._end(turn, "cancelled", None, usage)

    async def _end(
        self,
        turn: OpenTurn,
        kind: Literal["failed", "cancelled"],
        error: TurnError | None,
        usage: Usage,
        *,
        unless_accepted: bool = False,
    ) -> StoredTurn:
        quick = None if unless_accepted else self._view.quick
        quickly = None if quick is None else partial(quick.end, turn, kind, error, usage)
        end = partial(turns.end, outcome=kind, error=error, unless_accepted=unless_accepted)
        return await self._turns.end(turn, end, usage, quickly=quickly)

    async def wait(self, turn: OpenTurn, events: Sequence[NewEvent] = (), *, usage: Usage = Usage()) -> StoredTurn:
        staged = self._view.stage(turn, events)
        return await self._turns.end(turn, partial(turns.wait, staged=staged), usage)

    async def resume(self, turn: str) -> OpenTurn:
        token = os.urandom(16)
        taken = await self._turns.take(turn, token, begun=False, operation=partial(turns.resume, id=turn, token=token))
        assert isinstance(taken, OpenTurn)
        return taken

    async def take_over(self, turn: str) -> OpenTurn | StoredTurn:
        token = os.urandom(16)
        run = partial(turns.take_over, id=turn, token=token)
        return await self._turns.take(turn, token, begun=False, operation=run)

    async def accept(self, turn: str) -> StoredTurn:
        what, read = "promise of turn", partial(turns.read, id=turn)
        found = await self._view.read_for_good(
            what, turn, read, lambda found: found.accepted and found.outcome == "running"
        )
        if found.accepted or found.outcome != "running":
            return found
        run, landed = partial(turns.accept, id=turn), partial(turns.is_accepted, id=turn)
        return await self._view.write(what, turn, run, landed=landed)

    async def orphans(
        self, *, cursor: str | None = None, limit: int = 50, accepted: bool = False, every_tenant: bool = False
    ) -> Page[Orphan]:
        page = partial(orphans.page, accepted=accepted, every_tenant=every_tenant)
        return await self._view.read(partial(page, cursor=cursor, limit=_bounded(limit)))

    async def discard(self, turn: str) -> StoredTurn:
        return await self._view.write(
            "turn", turn, partial(turns.discard, id=turn), landed=partial(turns.is_over, id=turn)
        )

    async def ask_cancel(self, turn: str) -> StoredTurn:
        # Not synced: a power cut that undoes it also ends the process that was asked.
        run, landed = partial(turns.ask_cancel, id=turn), partial(turns.is_cancel_asked, id=turn)
        return await self._view.write("cancel of turn", turn, run, landed=landed, durable=False)

    async def stops(self, turns_here: Sequence[OpenTurn]) -> dict[str, StopReason]:
        return await self._view.read(partial(turns.stops, turns=turns_here))

    async def settle(self, turn: str) -> Outcome:
        return await self._turns.settle(turn)

    async def refresh(self, turn: OpenTurn) -> OpenTurn:
        return await self._view.read(partial(turns.refresh, turn=turn))

    async def turn(self, id: str) -> StoredTurn:
        return await self._view.read(partial(turns.read, id=id))

    async def whole_turn(
        self, id: str, *, upto: Position | None = None
    ) -> tuple[StoredTurn, tuple[Event, ...] | tuple[StagedEvent, ...]]:
        def read(db: Database, scope: Scope) -> tuple[StoredTurn, tuple[Event, ...] | tuple[StagedEvent, ...]]:
            record = turns.read(db, scope, id)
            if record.end is None:
                return record, tuple(history.read_steps(db, id))
            first, last = record.base.ordinal + 1 if record.base else 1, record.end
            if upto is not None and upto.segment == last.segment and upto.ordinal < last.ordinal:
                last = upto
            return record, tuple(history.read_stretch(db, first, last))

        return await self._view.read(read)

    async def turns(
        self,
        conversation: str,
        *,
        cursor: str | None = None,
        limit: int = 50,
        since: int = 0,
        newest_first: bool = False,
        notes: bool = True,
        committed: bool = False,
    ) -> Page[StoredTurn]:
        wanted = turn_pages.Wanted(since, notes, committed)
        read = turn_pages.newest_page if newest_first else turn_pages.page
        page = partial(read, conversation=conversation, cursor=cursor, limit=_bounded(limit), wanted=wanted)
        return await self._view.read(page)

    # What was spent.

    async def charge(self, conversation: str | None, id: str, usage: Usage) -> None:
        if conversation is not None:
            conversations.key_of(conversation)
        check_id("charge", id)
        run = partial(ledger.charge, conversation=conversation, id=id, usage=usage)
        await self._view.write("charge", id, run, landed=partial(ledger.is_charged, id=id))
        self._view.opened.running.discard(id_to_bytes(id))

    async def spent(self, conversation: str | None) -> Usage:
        return await self._view.read(partial(ledger.spent, conversation=conversation))

    async def usage(self, family: str | None = None) -> Usage:
        return await self._view.read(partial(ledger.usage, family=family))

    # Budgets.

    async def set_budget(
        self, conversation: str, budget: Budget | None, *, scope: BudgetScope = "conversation"
    ) -> tuple[BudgetStanding, ...]:
        of = scope

        def run(db: Database, scope: Scope) -> tuple[BudgetStanding, ...]:
            row = conversations.row_of(db, scope, conversation)
            set_budget(db, scope, row["id"], row["family"], budget, of)
            return limits.standings(db, scope, row["id"], row["family"])

        def landed(db: Database, scope: Scope) -> bool:
            row = conversations.row_of(db, scope, conversation)
            return limits.is_set(db, scope, row["id"], row["family"], budget, of)

        return await self._view.write("budget of", conversation, run, landed=landed, exclusive=True)

    async def budgets(self, conversation: str) -> tuple[BudgetStanding, ...]:
        def read(db: Database, scope: Scope) -> tuple[BudgetStanding, ...]:
            row = conversations.row_of(db, scope, conversation)
            return limits.standings(db, scope, row["id"], row["family"])

        return await self._view.read(read)

    async def reserve(self, turn: OpenTurn, most: Amount, least: Amount, *, model: str = "") -> Amount:
        run = partial(turns.reserve, turn=turn, most=most, least=least, model=model)
        return await self._turns.hold("reservation of turn", turn.id, run, partial(_is_reserved, turn.id))

    async def reserve_beside(
        self, conversation: str, id: str, most: Amount, least: Amount, *, model: str = ""
    ) -> Amount:
        check_id("reservation", id)

        def run(db: Database, scope: Scope) -> Amount:
            row = conversations.row_of(db, scope, conversation)
            place = id_to_bytes(id), row["id"], row["family"]
            return admission.reserve(db, scope, *place, most, least, model)

        self._view.opened.running.add(id_to_bytes(id))  # so that this process says that it is alive
        try:
            return await self._turns.hold("reservation", id, run, partial(_is_reserved, id))
        except BaseException:
            self._view.opened.running.discard(id_to_bytes(id))
            raise

    async def give_back(self, id: str) -> None:
        def run(db: Database, scope: Scope) -> None:
            give_back(db, id_to_bytes(id))

        await self._view.write("reservation", id, run, landed=lambda db, scope: True, durable=False)
        self._view.opened.running.discard(id_to_bytes(id))

    async def renew(self, turn: OpenTurn) -> tuple[int | None, BudgetExceeded | None]:
        def landed(db: Database, scope: Scope, result: object) -> bool:
            return turns.is_renewed(db, scope, turn.id)

        return await self._turns.hold("time of turn", turn.id, partial(turns.renew, turn=turn), landed)

    # History.

    async def path(self, conversation: str) -> Path:
        def read(db: Database, scope: Scope) -> Path:
            row = conversations.row_of(db, scope, conversation)
            return history.read_path(db, scope, row["family"], head_of(row).position)

        return await self._view.read(read)

    async def events(
        self,
        conversation: str,
        *,
        at: Position | None = None,
        after: int = 0,
        limit: int | None = None,
        last: int | None = None,
        kinds: Sequence[str] = (),
    ) -> list[Event]:
        def read(db: Database, scope: Scope, *, marked: bool = False) -> list[Event]:
            family, head = history.place_on(db, scope, conversations.row_of(db, scope, conversation), at)
            begin, upto = max(after, 0), head.ordinal if head else 0
            if last is not None:
                begin = max(begin, upto - max(last, 0))
            if limit is not None:
                upto = min(upto, begin + max(limit, 0))
            if marked:
                places = landmarks.read_landmarks(db, scope, family, head, begin, upto, kinds)
                return landmarks.read_marked(db, places)
            return history.read_events(db, scope, family, head, begin, upto, kinds)

        if kinds and LANDMARKS.issuperset(kinds):
            return await landmarks.found(self._view, partial(read, marked=True), instead=read)
        return await self._view.read(read)

    async def landmarks(
        self, conversation: str, kinds: Collection[str], *, at: Position | None = None
    ) -> list[Landmark]:
        def read(db: Database, scope: Scope, *, marked: bool = True) -> list[Landmark]:
            family, head = history.place_on(db, scope, conversations.row_of(db, scope, conversation), at)
            upto = head.ordinal if head else 0
            if marked:
                return landmarks.read_landmarks(db, scope, family, head, 0, upto, kinds)
            return landmarks_in(history.read_events(db, scope, family, head, 0, upto, tuple(kinds)))

        return await landmarks.found(self._view, read, instead=partial(read, marked=False))

    async def steps(self, turn: str) -> list[StagedEvent]:
        def read(db: Database, scope: Scope) -> list[StagedEvent]:
            turns.read(db, scope, turn)
            return history.read_steps(db, turn)

        return await self._view.read(read)

    async def digests(self, conversation: str, *, at: Position | None = None, after: int = 0) -> list[bytes]:
        def read(db: Database, scope: Scope) -> list[bytes]:
            family, head = history.place_on(db, scope, conversations.row_of(db, scope, conversation), at)
            return history.read_digests(db, scope, family, head, max(after, 0))

        return await self._view.read(read)

    async def state(self, conversation: str, *, at: Position | None = None) -> State:
        def read(db: Database, scope: Scope) -> State:
            row = conversations.row_of(db, scope, conversation)
            if at is None:
                return history.read_state(db, head_of(row))
            family, position = history.place_on(db, scope, row, at)
            return history.read_state(db, history.head_at(db, family, position, is_answered=True))

        return await self._view.read(read)

    # Care.

    def check_writable(self) -> None:
        self._view.opened.check_writable()

    async def verify(
        self,
        conversation: str | None = None,
        *,
        head_digest: bytes | None = None,
        anchors: Sequence[Anchor] = (),
        since: Anchor | None = None,
        progress: VerifyProgress | None = None,
    ) -> Verification:
        if since is not None and (conversation is not None or head_digest is not None):
            why = "it is about all conversations, and looks at no older history"
            raise BadArgument("verify()", "since together with a conversation or a head digest", why)
        asked = partial(verify, conversation=conversation, head_digest=head_digest)
        return await self._view.read(partial(asked, anchors=anchors, since=since, progress=progress))

    async def anchor(self, *, all_tenants: bool = False) -> Anchor:
        return await sealing.anchor(self._view, all_tenants=all_tenants)

    async def records(self, conversation: str, *, cursor: str | None = None, limit: int = 50) -> Page[Record]:
        return await self._view.read(partial(read_records, id=conversation, cursor=cursor, limit=_bounded(limit)))

    # The shelf.

    async def document(self, kind: str, name: str) -> StoredDocument | None:
        self._view.opened.checks.shelved(kind, name)
        return await self._view.read(partial(shelf.read, kind=kind, name=name))

    async def document_versions(self, kind: str) -> dict[str, int]:
        return await self._view.read(partial(shelf.versions, kind=kind))

    async def put_document(self, kind: str, name: str, text: str | None, *, if_version: int) -> int | None:
        self._view.opened.checks.shelved(kind, name, text)
        run = partial(shelf.put, kind=kind, name=name, text=text, if_version=if_version)
        landed = partial(shelf.is_there, kind=kind, name=name, text=text)
        return await self._view.write("document", f"{kind}/{name}", run, landed=landed)

    # Copies.

    async def identity(self) -> str:
        return await self._view.read(exporter.store_id)

    async def export_family(
        self, family: str, conversations: Collection[str] | None = None, *, told: Export | None = None
    ) -> FamilyExport:
        return await exporter.export_family(self._view, family, conversations, told)

    async def record_export(self, conversations: Collection[str], told: Export) -> bool:
        return await exporter.record_export(self._view, conversations, told)

    async def import_family(
        self, family: str, lines: Callable[[], Iterable[Line]], header: Header, *, rename: bool = False
    ) -> FamilyImported:
        return await intake.import_family(self._view, family, lines, header, rename=rename)


def _is_reserved(owner: str, db: Database, scope: Scope, granted: Amount) -> bool:
    return is_reserved(db, id_to_bytes(owner), granted)


def _is_answer(made: StoredConversation | StoredTurn | None) -> bool:
    """Whether what a key has made is the result of the request that brought the key."""
    return made is not None and (isinstance(made, StoredConversation) or made.has_result)


def _bounded(limit: int) -> int:
    return min(max(limit, 1), 1000)


def _printable(text: str) -> str:
    """A text without half surrogate pairs: why a turn failed must not keep it from ending."""
    return text.encode(errors="backslashreplace").decode()
