"""The store: conversations on disk, in which turns commit whole or not at all.

Every database offers exactly this. A store must pass the suite `forkpoint.testing.StoreConformance`.

How a turn goes through it::

    turn = await store.begin(conversation, new_id())       # takes the lock; another turn is refused with `Busy`
    turn = await store.journal(turn, [response, ...])      # before the first tool starts
    done = await store.commit(turn, [last_response])       # the head moves, once

Instead of the last line the process may call `fail`, `cancel` or `wait`. If it dies, another process may `resume`
the turn.

A store object shows what one tenant has; `within` gives the same store for another tenant. A tenant cannot read, name
or guess anything of another tenant: all of it is `NotFound`.

If a call is cancelled, it either had no effect or is finished before the cancellation goes on: no write keeps running
behind the caller's back. Read the store to learn which of the two happened.
Tests: forkpoint.testing.conformance, which tests/store/test_sqlite_conformance.py runs.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from os import PathLike
from typing import Protocol, Self

from forkpoint.errors import BudgetExceeded
from forkpoint.events import Event, JsonText, NewEvent, Position, StagedEvent, Usage, UserMessage
from forkpoint.history.anchors import Anchor
from forkpoint.history.budgets import Amount, Budget, BudgetScope, BudgetStanding
from forkpoint.history.exports.lines import Header, Line
from forkpoint.history.landmarks import Landmark
from forkpoint.history.paths import Path
from forkpoint.history.records import Export
from forkpoint.history.state import State
from forkpoint.history.steers import Steer
from forkpoint.paging import Page
from forkpoint.store.erasure import Erasing, Receipt
from forkpoint.store.values import (
    Announcement,
    Backup,
    Capabilities,
    Collected,
    Committed,
    CopyProgress,
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
)


class Store(AbstractAsyncContextManager["Store", None], Protocol):
    """Conversations, seen from one tenant. `async with` closes it at the end."""

    @property
    def tenant(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def within(self, tenant: str) -> Self:
        """The same store for another tenant."""
        ...

    async def close(self) -> None:
        """Finishes the writes that are queued and closes the database. Turns still open here become `interrupted`.

        It closes the store for all tenants. On a store that `within` gave it does nothing.
        """
        ...

    # Conversations.

    async def create(
        self,
        new: NewConversation,
        events: Sequence[NewEvent] = (),
        *,
        key: IdempotencyKey | None = None,
        announced: Announcement | None = None,
    ) -> StoredConversation:
        """Makes a conversation, and its first note with ``events`` in the same transaction. Raises `AlreadyExists`.

        A call of a turn makes at most one sub-agent: if the call has made one, that conversation is returned as it is,
        whatever ``new`` says.

        With ``new.onto`` the path begins there. It is shared with that branch, as a fork shares its source's path: what
        was spent up to there is inherited. The place is on the branch's path, or is the base of the branch's open turn.
        Raises `NotFound` if the branch is a draft or not of ``new.family``, and `BadPosition` as `fork` does. If
        ``new.lineage`` names the branch as its source without saying where the two part, the store fills that in. So
        a first turn may make the fork that it stands on.

        ``announced`` is a note in another conversation, written in the same transaction. Whatever refuses that note
        (`Stale`, `Busy`, `TurnOpen`) refuses the new conversation too.
        """
        ...

    async def read(self, id: str) -> StoredConversation:
        """The conversation with this inner id."""
        ...

    async def find(self, name: str) -> StoredConversation:
        """The conversation with this outer name."""
        ...

    async def made_with(
        self, key: IdempotencyKey, operation: KeyedOperation, source: str | None = None
    ) -> StoredConversation | StoredTurn | None:
        """The turn or conversation that an earlier request with this key made, as it is now; None if the key is free.

        A note is found as a turn is.

        ``source`` is the conversation that was forked, that has kept a branch, or that the turn runs in; None for
        `create`, and for a turn in whichever conversation it runs. A keep gives the branch that it set aside, or
        ``source`` itself if there is no such branch. Raises `KeyReused` if the key was used for another operation,
        source or request, and `NotFound` if ``source`` is not an id.

        Changes nothing and reserves nothing: between this call and the operation another request may take the key, so
        the operation has to be called with the same key. It does not wait for a running turn. What it returns as a
        result is as safe as a commit; raises `OutcomeUnknown` if nobody can say so.
        """
        ...

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
        """Conversations, without drafts unless ``drafts``; all given tags must match.

        ``order``: the newest come first, or those whose last turn began last. A time of use may lag a minute behind.
        ``cursor`` is `Page.next` of a page in the same order: else it raises `BadName`. Who reads page after page sees
        no conversation twice, whatever others do meanwhile. In the order ``created`` it misses no conversation
        that was there all the time. In the order ``used`` it may miss a conversation that is used meanwhile, since that
        moves to the front.

        ``parent`` selects the sub-agents of that conversation, but not their own sub-agents. ``sub_agents=False``
        leaves out all sub-agents, ``sides=False`` all sides, and ``asides=False`` all branches that were set aside.
        """
        ...

    async def glances(self, ids: Sequence[str]) -> dict[str, StoredGlance]:
        """What a list shows of each of these conversations beside the conversation itself, all in one read.

        Leaves out a conversation that is unknown or another tenant's.
        """
        ...

    async def revisions(self, ids: Collection[str]) -> dict[str, int]:
        """The revision of each of these conversations, drafts too, all as they are at one moment.

        Leaves out an id that is malformed, unknown or another tenant's. It is one read, also for thousands of ids.
        """
        ...

    async def describe(
        self,
        id: str,
        *,
        title: str | None = None,
        tags: Tags | None = None,
        name: str | None = None,
        if_unchanged: StoredConversation | None = None,
    ) -> StoredConversation:
        """Sets the title ("" removes it), all tags, or the outer name. The revision stays, so no turn is disturbed.

        Raises `Stale`, and changes nothing, unless revision, name, title and tags are those of ``if_unchanged``.
        Raises `AlreadyExists` or `BadName` for the name, and changes nothing then. The name that the conversation has
        already is no change.
        """
        ...

    async def approvals(self, id: str) -> JsonText:
        """The standing approvals of a conversation, a JSON array that is opaque to the store: ``[]`` when it is made.

        A fork, and the branch that a rewind sets aside, begin with those that their source has at that moment.
        """
        ...

    async def change_approvals(self, id: str, approvals: JsonText, *, if_approvals: JsonText) -> bool:
        """Replaces the standing approvals, also while a turn is open; the revision stays, and no turn is disturbed.

        Does nothing and returns False if they are not ``if_approvals``, byte for byte: somebody else has changed them.
        """
        ...

    async def rename(self, id: str, name: str | None, *, if_revision: int | None = None) -> StoredConversation:
        """Sets the outer name; None sets the id as the name. Raises `AlreadyExists`, `BadName`.

        The revision stays, unless ``if_revision`` is given: then the conversation must be at that revision and have no
        open turn, and its revision moves, so that a caller who read it before and now begins a turn gets `Stale`.
        """
        ...

    async def admit(self, id: str) -> StoredConversation:
        """Makes a draft a conversation: it is listed and can be forked, though no turn of it has committed."""
        ...

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
        """Makes a conversation that shares the source's path: one row, however long the history.

        The fork ends after ``at``, a turn's id or a position, or just in front of ``before``; default is the head.
        Raises `BadPosition` if the place is inside a tool exchange or a model response, or not on the path. Does not
        wait for a running turn. A ``draft`` is not listed and cannot be forked until its first turn commits.

        With ``events`` the fork begins with a first note, in the same transaction; ``by`` is who asked for that. Then
        the place may also be after a whole model response none of whose calls has a result: the note must answer each
        call, else `Unpaired` is raised and there is no fork.
        """
        ...

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
        """Moves the head back, and makes the branch ``aside`` of the events after it, in the same transaction.

        With ``events`` a note follows the new head, also in that transaction; ``by`` is who asked for it.

        Returns the conversation and that branch, or None for the branch if there were no events after the new head.
        Repeated with its key, it moves nothing and returns the branch of the first time, or None if that was deleted.
        """
        ...

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
        """Moves the head to the head of a branch of the family, and makes the branch ``aside`` of the old head, in the
        same transaction. The branch stays as it is. Its cost is the same however long the history is.

        ``settings`` and ``cache`` replace the conversation's; ``aside`` has the settings that it had before. Raises
        `Stale`, and changes nothing, unless revision, settings and cache identity of each conversation in
        ``if_unchanged`` are as given: so nobody keeps something else than what these documents were made of.

        Returns the conversation, and what was set aside: None if the branch goes on from the old head and the settings
        stay. If the branch has the very same head and settings, nothing moves. Repeated with its key, it moves nothing
        and returns the branch of the first time, or None if that was deleted.

        Raises `Busy` or `TurnOpen` if a turn holds the conversation; a turn in the branch is not waited for. Raises
        `CannotKeep` if the branch is the conversation itself, of another family, a sub-agent, a draft, or if it has
        open calls of the client's tools.
        """
        ...

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
        """Commits events that are not a turn, under the id ``note``, with new settings or a new cache identity.

        ``by`` is who asked for it. ``if_erasures`` is `erasure_count` as it was when the caller read what the events
        repeat: if content was erased since, `Stale` is raised, so that nothing that was erased comes back.

        A repetition with the same id and events has no effect. If an earlier request had the same key, its note is
        returned, whatever ``note`` and ``events`` are; `made_with` finds it as it finds a turn.
        """
        ...

    async def delete(self, id: str, *, if_revision: int | None = None) -> Deleted:
        """Removes a conversation, its sub-agents and sides, but none of its forks. What they spent stays counted.

        Raises `Held`.
        """
        ...

    # Holds and erasures.

    async def hold(self, conversation: str, id: str, reason: str) -> Hold:
        """Keeps a conversation's family from deletion, erasure and retention, once for each id of a hold."""
        ...

    async def release(self, conversation: str, id: str | None = None) -> tuple[Hold, ...]:
        """Ends one hold of a conversation's family, or all of them, and returns these. Raises `NotFound`."""
        ...

    async def holds(self, conversation: str | None = None) -> tuple[Hold, ...]:
        """What holds a conversation's family, the oldest first; all holds of the tenant if None is given."""
        ...

    async def erase(
        self, id: str, chosen: Erasing, *, reason: str, dry_run: bool = False, more_follow: bool = False
    ) -> Receipt:
        """Removes the content of events for good, wherever a copy of it is. Envelopes and digests stay.

        It is done whole or not at all. With ``more_follow`` what takes long is left to the erasure after it. With
        ``dry_run`` nothing is changed, and the receipt says what would be. Raises `Busy` if a turn runs in what it
        touches; turns that nobody runs are discarded. Raises `Held` and `NotFound`.
        """
        ...

    async def replay(self, receipt: Receipt) -> bool:
        """Erases in a copy that was made earlier what a receipt names. False if that was done, or nothing is here."""
        ...

    async def erasures(self, *, cursor: str | None = None, limit: int = 50) -> Page[Receipt]:
        """The receipts of the tenant's erasures, the oldest first, with what `replay` needs and no more."""
        ...

    async def families(self, *, cursor: str | None = None, limit: int = 50) -> Page[str]:
        """The families that have conversations, drafts too."""
        ...

    async def erasure_count(self) -> int:
        """How often content was erased in this store. Whatever was cached under another count must not be used."""
        ...

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
        """Takes the conversation for a new turn with this id. ``by`` is who asked for it.

        ``accepted``: whoever asked is told that the turn runs, and asks later how it ended. So the turn is on disk when
        this returns, and another process may go on with it if this one dies: `orphans`.

        ``if_name`` is the outer name that the caller found the conversation by: if it has another one by now, nobody
        may go on in it under the old one, and `NotFound` is raised.

        A retry (``retry_of``) takes over the keys of the tries before it, as far as they are free: the same request
        again gets the retry.

        With ``create`` a conversation that does not exist is made as a draft: it is not listed until its first turn
        commits. If the key was used for the same request, returns that request's turn as it is now. Raises `Busy` while
        another turn runs, and `TurnOpen` if a turn waits or was interrupted; with ``supersede`` that turn is discarded.

        ``onto`` is another base than the head, on the path of any branch of the family. Only the turn's commit moves
        the head there. Raises `NotFound` if the branch is not of the family, and `BadPosition` as `fork` does. Lock and
        revision are the conversation's own, whatever the base.
        """
        ...

    async def journal(
        self, turn: OpenTurn, events: Sequence[NewEvent], *, usage: Usage = Usage(), calling: bool = False
    ) -> OpenTurn:
        """Stores steps of the turn durably, outside history. ``usage`` is what was spent since the last call.

        The handle that it returns knows of all that was steered to the turn until then. An event that names a steer
        delivers that message. What was reserved for a call of a model is given back, unless the turn is still
        ``calling`` it.
        """
        ...

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
        """Leaves a message for the open turn of a conversation; for this turn, if ``turn`` is given.

        ``id`` is what the caller calls the message. It is on disk when this returns, and nothing else happens: whoever
        runs the turn delivers the message. Returns the turn and the message as they stand. Repeated with its id or its
        key, it changes nothing, also if the turn is over by then. Raises `NoSuchTurn` if no turn is open, and
        `NotWhole` or `TooLarge`.
        """
        ...

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
        """Makes the journalled events and these history, and moves the head. All of it is on disk when it returns.

        ``cache`` and ``settings`` replace the conversation's cache identity and settings.

        If the turn's base was not the head, the old head is kept as the branch ``aside`` in the same transaction,
        unless it is on the new path. Raises `BadArgument` if ``aside`` is needed and None.

        Raises `TurnLost` if this process no longer holds the turn, `OutcomeUnknown` if the disk did not say whether it
        was written. Raises `TurnSteered`, and changes nothing, if a message was steered to the turn that this handle
        does not know of: `refresh` gives a handle that knows it.
        """
        ...

    async def fail(
        self, turn: OpenTurn, error: TurnError, *, usage: Usage = Usage(), unless_accepted: bool = False
    ) -> StoredTurn:
        """Ends the turn as failed. The head has not moved; its steps and cost stay readable.

        With ``unless_accepted`` an accepted turn does not end. It is left open and held by no process, as an orphan,
        with one take-over more.
        """
        ...

    async def cancel(self, turn: OpenTurn, *, usage: Usage = Usage()) -> StoredTurn:
        """Ends the turn as cancelled. The head has not moved; its steps and cost stay readable."""
        ...

    async def wait(self, turn: OpenTurn, events: Sequence[NewEvent] = (), *, usage: Usage = Usage()) -> StoredTurn:
        """Leaves the turn as `awaiting_approval`: open, durable, held by no process. A draft is admitted."""
        ...

    async def resume(self, turn: str) -> OpenTurn:
        """Takes over a turn that waits, was interrupted, failed or was cancelled. The turn gets a new token.

        The head must be the turn's base: a turn with another base has to be sent again. Raises `Busy` if a process runs
        it, and `NotResumable` if it has committed or the conversation has gone on.
        """
        ...

    async def accept(self, turn: str) -> StoredTurn:
        """Makes a turn that runs an accepted one, as `begin` can, and returns it. A turn that has ended stays as it
        is. A turn that was accepted before is returned when that is as safe as a commit."""
        ...

    async def orphans(
        self, *, cursor: str | None = None, limit: int = 50, accepted: bool = False, every_tenant: bool = False
    ) -> Page[Orphan]:
        """The open turns whose process is gone, and that nobody has gone on with: of this tenant, or of all tenants.

        With ``accepted`` only those that somebody was promised. A turn that was given up is not among them.
        """
        ...

    async def take_over(self, turn: str) -> OpenTurn | StoredTurn:
        """Takes over an orphan, as `resume` does, without anybody asking for it. Of several processes one gets it.

        The store counts how often a turn was taken over from a process that died. After three times the turn is given
        up: it stays `interrupted`, for somebody to resume or discard, and the turn that this returns says so in its
        error. A process that closed the store did not die, so taking over what it left does not count. Raises as
        `resume` does, and `NotResumable` if the turn is no orphan any more.
        """
        ...

    async def discard(self, turn: str) -> StoredTurn:
        """Ends an open turn that no process runs, as cancelled. Raises `Busy` if one does."""
        ...

    async def ask_cancel(self, turn: str) -> StoredTurn:
        """Asks the process that runs a turn to cancel it, and returns the turn as it is now.

        The process hears of it by `stops`. If no process runs the turn, nothing changes. A turn that is resumed
        afterwards runs on: nobody has asked its new holder.
        """
        ...

    async def stops(self, turns_here: Sequence[OpenTurn]) -> dict[str, StopReason]:
        """Which of the turns that this process runs it has to stop, and why; the others are left out.

        `cancel`: somebody asked for that. `lost`: the turn is no longer this process's, since another process has
        taken it over or ended it, or its conversation was deleted. It is one read, however many turns are given.
        """
        ...

    async def settle(self, turn: str) -> Outcome:
        """After `OutcomeUnknown`: what became of the turn, for good. Raises `OutcomeUnknown` again if the disk still
        fails."""
        ...

    async def refresh(self, turn: OpenTurn) -> OpenTurn:
        """After `TurnBehind`: the handle of a running turn with all steps that its journal has."""
        ...

    async def turn(self, id: str) -> StoredTurn:
        """One turn or note."""
        ...

    async def whole_turn(
        self, id: str, *, upto: Position | None = None
    ) -> tuple[StoredTurn, tuple[Event, ...] | tuple[StagedEvent, ...]]:
        """One turn or note with its events, or with its steps if it is not committed, as they are at one moment.

        ``upto`` leaves out the events after this one. For a turn that is ``partial`` on a path, give its ``end``.
        """
        ...

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
        """The path's turns and notes in order, with the conversation's own tries that did not commit.

        A fork or a rewind into the middle of a turn leaves a part of it on the path: that turn is ``partial``. Its
        ``usage`` is what this conversation has spent on the part: nothing if it has inherited it.

        ``since`` leaves out all turns that started before this ordinal, without reading them: from the head's ordinal
        on there are only tries. The base of a try need not be on the path: a rewind may have left it behind.

        ``newest_first`` lists the turn first that began last, and reads no more of the path than a page needs. A cursor
        belongs to its order; turns that begin meanwhile are on no later page. ``notes=False`` leaves notes out, and
        ``committed`` all tries that did not commit.
        """
        ...

    # What was spent.

    async def charge(self, conversation: str | None, id: str, usage: Usage) -> None:
        """Counts what was spent outside of turns, for example on a side question. Nothing else changes.

        ``conversation`` is None if the cost belongs to no conversation. A charge needs no lock, works on a draft and is
        on disk when this returns. A repetition with the same ``id`` has no effect, so it is safe after
        `OutcomeUnknown`. Raises `KeyReused` if the id was used for another charge.
        """
        ...

    async def spent(self, conversation: str | None) -> Usage:
        """What this branch itself has spent: its turns since it branched off, committed or not, and its charges.

        What it inherited is not counted. None: all charges that belong to no conversation.
        """
        ...

    async def usage(self, family: str | None = None) -> Usage:
        """All that was ever spent in a family, each token once; failed turns, charges and deleted branches too.

        None: all that the tenant ever spent, in all its families and outside of any conversation.
        """
        ...

    # Budgets.

    async def set_budget(
        self, conversation: str, budget: Budget | None, *, scope: BudgetScope = "conversation"
    ) -> tuple[BudgetStanding, ...]:
        """Sets what a conversation or its family may spend, and records that; None removes it. Returns what `budgets`
        does. All that was ever spent there counts. It holds for turns that run from their next step on.

        A conversation's budget covers all that works beneath it too: sub-agents, sides, branches set aside. If the
        budget of a conversation is removed that was not to draw from the family's, it does so again.
        """
        ...

    async def budgets(self, conversation: str) -> tuple[BudgetStanding, ...]:
        """The budgets that cover a conversation, its own first and the family's last, and how they stand."""
        ...

    async def reserve(self, turn: OpenTurn, most: Amount, least: Amount, *, model: str = "") -> Amount:
        """Reserves the most that the turn's next call can cost, in all budgets that cover it or in none.

        It takes the place of what the turn had reserved for a call, so ``most`` has what is spent and not journalled
        yet. Grants as much between ``least`` and ``most`` as fits; the two differ by tokens of output and their price.
        It survives a dead process, not a power cut. Raises `BudgetExceeded`, and `TurnLost`.
        """
        ...

    async def reserve_beside(
        self, conversation: str, id: str, most: Amount, least: Amount, *, model: str = ""
    ) -> Amount:
        """Reserves the most that a call outside of turns can cost. ``id`` is that of the charge or the note that will
        count the cost; either of them gives back what was reserved, and so does `give_back`."""
        ...

    async def give_back(self, id: str) -> None:
        """Gives back what was reserved for a charge or note that has cost nothing."""
        ...

    async def renew(self, turn: OpenTurn) -> tuple[int | None, BudgetExceeded | None]:
        """Counts the time that a turn has run, and reserves more: so many microseconds, or it says why not.

        None and None if no budget limits its time any more. Raises `TurnLost`.
        """
        ...

    # History.

    async def path(self, conversation: str) -> Path:
        """The stretches of segments that make up the conversation."""
        ...

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
        """Committed events in order: those after an ordinal, up to ``at`` (default: the head).

        Raises `NotFound` if ``at`` is not on the conversation's path. ``last`` is how many events before ``at`` are
        read, ``limit`` how many at most; ``kinds`` then selects from these.
        """
        ...

    async def landmarks(
        self, conversation: str, kinds: Collection[str], *, at: Position | None = None
    ) -> list[Landmark]:
        """Where events of these kinds, all of them in `LANDMARKS`, stand on the path up to ``at`` (default: the head).

        It reads no event, however long the path is. `events` with such kinds reads those events and no others.
        """
        ...

    async def steps(self, turn: str) -> list[StagedEvent]:
        """The journalled events of a turn that has not committed."""
        ...

    async def digests(self, conversation: str, *, at: Position | None = None, after: int = 0) -> list[bytes]:
        """The chain digests of the events that `events` returns for the same place."""
        ...

    async def state(self, conversation: str, *, at: Position | None = None) -> State:
        """The folded state at a position of the path where a fork could begin (default: the head).

        That may be a fork with other results, whose first note answers the calls that are open there. Raises `NotFound`
        if ``at`` is not on the path, and `BadPosition` as `fork` does.
        """
        ...

    # Care.

    def check_writable(self) -> None:
        """Raises `StoreUnusable.opened_to_read` if nothing may be written. Whoever spends money first asks here."""
        ...

    async def pulse(self) -> int:
        """A number that changes with every commit, of any tenant and any process.

        If two calls return the same number, nothing was committed between them. If the numbers differ, something may
        have been committed, and a read finds it. Compare only numbers of one open store, and only for equality. The
        call waits for no writer and is cheap enough for several times a second.
        """
        ...

    async def tell(self, text: str) -> None:
        """Gives all processes that have the store open a short hint, at most 7,999 bytes. A hint may be lost.

        Does nothing unless `capabilities.notify`. No truth may depend on it: what counts is in the tables.
        """
        ...

    def hear(self, heard: Callable[[str], None]) -> AbstractContextManager[None]:
        """Within the block ``heard`` is called with each hint, those of this process too. It must not take long."""
        ...

    async def verify(
        self,
        conversation: str | None = None,
        *,
        head_digest: bytes | None = None,
        anchors: Sequence[Anchor] = (),
        since: Anchor | None = None,
        progress: VerifyProgress | None = None,
    ) -> Verification:
        """Checks that all is as it was written: one conversation's path, turns and records, or all that the tenant has.

        ``head_digest``, which the caller noted earlier, must be on the path: so a rewritten history is found out.
        ``progress`` is called now and then, from another thread. Raises `StoreDamaged` if the file itself is damaged.
        ``anchors`` were kept elsewhere, and their seals must be there: so it is found out if everything was rewritten.
        An anchor of the whole store makes it check the seals of all tenants: only its operator may ask for that.

        ``since`` is an anchor too. Only what was recorded after its seal is looked at, and no older payload: the result
        says so. It cannot be combined with ``conversation`` or ``head_digest``.
        """
        ...

    async def anchor(self, *, all_tenants: bool = False) -> Anchor:
        """Seals all records that are new, and returns the anchor that names the tenant's last seal.

        If nothing is new, it is the same anchor as before. ``all_tenants``: the anchor of the whole store, for whoever
        operates it. Commits do not wait for it, and of several callers at once each gets a seal that covers all that
        was committed before its call.
        """
        ...

    async def records(self, conversation: str, *, cursor: str | None = None, limit: int = 50) -> Page[Record]:
        """The records of a conversation in order, beginning with its birth. Raises `NotFound`, and `BadName` for a
        cursor that no page gave."""
        ...

    # The shelf: texts that belong to the whole store, and to no tenant.

    async def document(self, kind: str, name: str) -> StoredDocument | None:
        """The text of this kind and name, or None if there is none. Raises `BadName`."""
        ...

    async def document_versions(self, kind: str) -> dict[str, int]:
        """The version of each document of a kind, by name. It costs little, and can be asked every second."""
        ...

    async def put_document(self, kind: str, name: str, text: str | None, *, if_version: int) -> int | None:
        """Writes a document, or removes it if the text is None. Returns its new version, which is higher than any
        before.

        Does nothing and returns None if the document has another version than ``if_version``: somebody else has changed
        it. The version of a document that is not there is 0. Raises `BadName`, `TooLarge` and `NotWhole`.
        """
        ...

    # Copies.

    async def identity(self) -> str:
        """Which store this is, in hexadecimal. A copy of its file says the same until it is restored."""
        ...

    async def export_family(
        self, family: str, conversations: Collection[str] | None = None, *, told: Export | None = None
    ) -> FamilyExport:
        """A family as lines of an export (`forkpoint.history.exports`), as it is at one moment.

        ``conversations`` selects some, with their sub-agents and sides, and with what their chains go on from. If
        ``told`` is given, each conversation in the export first gets a record that says so.
        """
        ...

    async def record_export(self, conversations: Collection[str], told: Export) -> bool:
        """Adds the record of an export to each conversation. False if the store can only be read."""
        ...

    async def import_family(
        self, family: str, lines: Callable[[], Iterable[Line]], header: Header, *, rename: bool = False
    ) -> FamilyImported:
        """Brings a family of a checked export into the store, whole or not at all.

        ``lines`` reads its lines, each time from the first, in any thread. Ids, turns, records and digests stay.
        A conversation that is here already stays as it is, or goes on if its records in the file go on from those
        here. Raises `ImportRefused` if it has gone another way here, or was deleted here. Raises `AlreadyExists` if
        another conversation has its name, unless ``rename`` is set: then it gets another name.
        """
        ...

    async def collect(self, *, dry_run: bool = False, compact: bool = False, every_tenant: bool = False) -> Collected:
        """Removes what no conversation of the tenant reaches any more, and what was kept long enough.

        What is kept for a time only are drafts, idempotency keys, and the content of failed and cancelled tries. The
        result says what was removed, or in a dry run would be, and what is still pending and why: removed text may
        stay on disk for as long as somebody reads the store. The next collection then finishes the work.

        With ``compact`` the store also writes all of its data anew, without gaps; nobody can write meanwhile.
        ``every_tenant`` means all tenants of the store, for whoever runs it.
        """
        ...

    async def backup(
        self, path: str | PathLike[str], *, force: bool = False, progress: CopyProgress | None = None
    ) -> Backup:
        """Writes a copy of the whole store, all tenants, to a file, while others write. Checks the copy first.

        It has all that was committed when the call was made. Raises `CopyRefused` if the file is there already, unless
        ``force``; and `StoreDamaged` if the copy is not sound: then there is no file.
        """
        ...
