"""The store: conversations on disk, in which turns commit whole or not at all.

Every database offers exactly this. `forkpoint.testing.StoreConformance` is the suite that a store must pass
to be one.

How a turn goes through it::

    turn = await store.begin(conversation, new_id())       # the lock; other turns hear `Busy`
    turn = await store.journal(turn, [response, ...])      # before the first tool starts
    done = await store.commit(turn, [last_response])       # the head moves, once

and what may happen instead of the last line: `fail`, `cancel`, `wait`, or nothing at all because the process
died, in which case another process may `resume` the turn.

A store object is seen from one tenant. `within` gives the same store seen from another; nothing of one tenant
can be read, named or guessed from another, everything there is `NotFound`.

A call that is cancelled either had no effect or has finished when the cancellation goes on: no write is ever
left behind running. What a cancelled call did is what the store says afterwards.
"""

from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, Self

from forkpoint.events import Event, JsonText, NewEvent, Position, StagedEvent, Usage
from forkpoint.history.paths import Path
from forkpoint.history.state import State
from forkpoint.paging import Page
from forkpoint.store.records import (
    Capabilities,
    Collected,
    Committed,
    ConversationRecord,
    Deleted,
    IdempotencyKey,
    KeyedOperation,
    NewConversation,
    NewFork,
    Onto,
    OpenTurn,
    Outcome,
    Status,
    Tags,
    TurnError,
    TurnRecord,
    Verification,
)


class Store(AbstractAsyncContextManager["Store", None], Protocol):
    """Conversations, seen from one tenant. `async with` closes it at the end."""

    @property
    def tenant(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def within(self, tenant: str) -> Self:
        """The same store, seen from another tenant."""
        ...

    async def close(self) -> None:
        """Finishes what is queued and lets go of the database. Turns still open here become `interrupted`.

        Closes the store for all that look at it; on a view that `within` gave it does nothing.
        """
        ...

    # Conversations.

    async def create(
        self,
        new: NewConversation,
        events: Sequence[NewEvent] = (),
        *,
        key: IdempotencyKey | None = None,
    ) -> ConversationRecord:
        """Makes a conversation; ``events``, if any, are its first note, made together with it. Raises `AlreadyExists`.

        A sub-agent is made once for a call of a turn: asked again, the one that is there is returned as it is, whatever
        else is asked for now.

        With ``new.onto`` its path begins there, shared with that branch as a fork's is: what was spent up to there is
        inherited. It is a place on the branch's path, or the one where its open turn stands, which need not be on it.
        Raises `NotFound` for a branch that is a draft or not of ``new.family``, `BadPosition` as `fork` does. If
        ``new.lineage`` names that branch as its source and not where the two part, this is filled in.
        """
        ...

    async def read(self, id: str) -> ConversationRecord:
        """The conversation with this inner id."""
        ...

    async def find(self, name: str) -> ConversationRecord:
        """The conversation with this outer name."""
        ...

    async def made_with(
        self, key: IdempotencyKey, operation: KeyedOperation, source: str | None = None
    ) -> ConversationRecord | TurnRecord | None:
        """The turn or conversation that an earlier request with this key made, as it is now; None if the key is free.

        ``source`` is the conversation that was forked or that the turn runs in; None for `create`. Raises `KeyReused`
        if the key was used for another operation, source or request, and `NotFound` if ``source`` is not an id.

        Changes nothing and reserves nothing: between this call and the operation another request may take the key, so
        the operation has to be called with the same key. It does not wait for a running turn.
        """
        ...

    async def conversations(
        self,
        *,
        cursor: str | None = None,
        limit: int = 50,
        tags: Tags = (),
        status: Status | None = None,
        family: str | None = None,
        parent: str | None = None,
        sub_agents: bool = True,
    ) -> Page[ConversationRecord]:
        """Conversations that are not drafts, the newest first; all given tags must match.

        ``parent`` selects the sub-agents of that conversation, not those of its sub-agents; with ``sub_agents=False``
        no sub-agent is among them.
        """
        ...

    async def revisions(self, ids: Collection[str]) -> dict[str, int]:
        """The revision of each of these conversations that exists, drafts too, all as they are at one moment.

        One that is not there, is another tenant's, or is not an id at all is left out. Made to be asked for thousands:
        it costs one read.
        """
        ...

    async def describe(self, id: str, *, title: str | None = None, tags: Tags | None = None) -> ConversationRecord:
        """Sets the title ("" removes it) or all tags. Not part of the revision: disturbs no turn."""
        ...

    async def rename(self, id: str, name: str | None, *, if_revision: int | None = None) -> ConversationRecord:
        """Gives it another outer name; None: its id. Not part of the revision. Raises `AlreadyExists`, `BadName`.

        With ``if_revision`` it must be at that revision and have no open turn, and its revision moves: whoever read it
        before and wants to begin something in it hears `Stale`.
        """
        ...

    async def admit(self, id: str) -> ConversationRecord:
        """Makes a draft a conversation: it is listed and can be forked, though no turn of it has committed."""
        ...

    async def fork(
        self,
        source: str,
        new: NewFork,
        *,
        at: str | Position | None = None,
        before: str | Position | None = None,
        if_revision: int | None = None,
        key: IdempotencyKey | None = None,
        draft: bool = False,
    ) -> ConversationRecord:
        """A new conversation that shares the source's path: one row, however long the history.

        ``at`` is a turn's id or a position, included; ``before`` the same, excluded; default is the head.
        Raises `BadPosition` inside a tool exchange or a model response, or off the path. Never waits for a
        running turn. A ``draft`` is unlisted, and cannot be forked, until its first turn commits.
        """
        ...

    async def rewind(
        self,
        id: str,
        aside: NewFork,
        *,
        at: str | Position | None = None,
        before: str | Position | None = None,
        if_revision: int | None = None,
        key: IdempotencyKey | None = None,
    ) -> tuple[ConversationRecord, ConversationRecord | None]:
        """Moves the head back; what stood after it is kept under ``aside``, in the same transaction.

        Gives the conversation and the branch that was set aside; None if nothing stood after the new head. Repeated
        with its key, it moves nothing and gives the branch of the first time, or None if that was deleted since.
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
    ) -> Committed:
        """Commits events that are not a turn, under the id ``note``, and new settings or cache identity.

        Repeated with the same id and events, it has no further effect.
        """
        ...

    async def delete(self, id: str, *, if_revision: int | None = None) -> Deleted:
        """Removes a conversation and its sub-agents, never a fork. Usage stays, without content."""
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
        key: IdempotencyKey | None = None,
        onto: Onto | None = None,
    ) -> OpenTurn | TurnRecord:
        """Takes the conversation for a new turn with this id.

        With ``create`` a conversation that does not exist comes into being as a draft, where ``create.onto`` says:
        unlisted until a first turn commits. A key that was used for the same request returns that request's turn as it
        stands. Raises `Busy` while another turn runs, `TurnOpen` while one waits or was interrupted (unless
        ``supersede``, which discards it).

        ``onto`` lets the turn stand elsewhere than at the head, on the path of any branch of the family: its commit
        moves the head there, and nothing else does. Raises `NotFound` for a branch that is not of the family,
        `BadPosition` as `fork` does. Lock and revision are the conversation's own, wherever the turn stands.
        """
        ...

    async def journal(self, turn: OpenTurn, events: Sequence[NewEvent], *, usage: Usage = Usage()) -> OpenTurn:
        """Stores steps of the turn durably, outside history. ``usage`` is what was spent since the last call."""
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
        """Makes the journalled events and these history, and moves the head. On disk when it returns.

        ``cache`` is another cache identity, ``settings`` are other settings, from here on.

        For a turn that stood elsewhere than at the head, what stood there is kept under ``aside``, in the same
        transaction, unless it is on the new path anyway. Raises `BadArgument` if ``aside`` is needed and not given.

        Raises `TurnLost` if the turn is no longer this writer's, `OutcomeUnknown` if the disk did not say.
        """
        ...

    async def fail(self, turn: OpenTurn, error: TurnError, *, usage: Usage = Usage()) -> TurnRecord:
        """Ends the turn as failed. The head has not moved; its steps and cost stay readable."""
        ...

    async def cancel(self, turn: OpenTurn, *, usage: Usage = Usage()) -> TurnRecord:
        """Ends the turn as cancelled. The head has not moved; its steps and cost stay readable."""
        ...

    async def wait(self, turn: OpenTurn, events: Sequence[NewEvent] = (), *, usage: Usage = Usage()) -> TurnRecord:
        """Leaves the turn as `awaiting_approval`: open, durable, held by no process. A draft is admitted."""
        ...

    async def resume(self, turn: str) -> OpenTurn:
        """Takes over a turn that no process runs, with a new token.

        It waited or was interrupted; or it failed or was cancelled. The head is its base: one that stood elsewhere has
        to be sent again. Raises `Busy` or `NotResumable` otherwise.
        """
        ...

    async def discard(self, turn: str) -> TurnRecord:
        """Ends an open turn that no process runs, as cancelled. Raises `Busy` if one does."""
        ...

    async def settle(self, turn: str) -> Outcome:
        """After `OutcomeUnknown`: what became of the turn. If it can still not be told, raises that again."""
        ...

    async def refresh(self, turn: OpenTurn) -> OpenTurn:
        """The handle of a running turn as far as its journal goes, after `TurnBehind`."""
        ...

    async def turn(self, id: str) -> TurnRecord:
        """One turn or note."""
        ...

    async def whole_turn(self, id: str) -> tuple[TurnRecord, tuple[Event, ...] | tuple[StagedEvent, ...]]:
        """One turn or note with its events, or with its steps if it is not committed, as they are at one moment."""
        ...

    async def turns(
        self, conversation: str, *, cursor: str | None = None, limit: int = 50, since: int = 0
    ) -> Page[TurnRecord]:
        """The path's turns and notes in order, with the conversation's own tries that did not commit.

        ``since`` leaves out all that started before this ordinal, and does not read them: from the head's ordinal on
        there are only tries. One that a rewind left behind, or that stood elsewhere than at the head, can be among
        them; its base is not on the path.
        """
        ...

    # What was spent.

    async def charge(self, conversation: str | None, id: str, usage: Usage) -> None:
        """Counts what was spent beside history, such as a side question: nothing else changes.

        None is for what was spent beside any conversation.
        Needs no lock, and works on a draft. On disk when it returns. Repeated with the same id, which the caller
        chose, it has no further effect: so it can be made again after `OutcomeUnknown`. Raises `KeyReused` if the id
        was used for another charge.
        """
        ...

    async def spent(self, conversation: str | None) -> Usage:
        """What this branch itself has spent: its committed turns since it branched off, its other tries, and what was
        charged beside. Never what it inherited. None: what was charged beside any conversation."""
        ...

    async def usage(self, family: str | None = None) -> Usage:
        """All that was ever spent in a family, each token once; failed turns, charges and deleted branches too.

        None: all that the tenant ever spent, in all its families and beside any conversation.
        """
        ...

    # History.

    async def path(self, conversation: str) -> Path:
        """Which stretches of which segments make up the conversation."""
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

    async def steps(self, turn: str) -> list[StagedEvent]:
        """The journalled events of a turn that has not committed."""
        ...

    async def state(self, conversation: str) -> State:
        """The folded state at the head."""
        ...

    # Care.

    async def pulse(self) -> int:
        """A number that is another once anything may have been committed by anybody, in this process or in others.

        If two calls give the same number, nothing was committed between them, by no tenant; if not, something may have
        been, and whoever reads now finds it. Numbers of one open store can be compared, and only for being the same.
        Cheap enough to be asked several times a second; it waits for no writer.
        """
        ...

    async def verify(self, conversation: str | None = None, *, head_digest: bytes | None = None) -> Verification:
        """Checks digests, pairing and reachability of one conversation's path, or of all of the tenant.

        ``head_digest``, kept outside earlier, must be on the path: then not even a rewritten history passes.
        """
        ...

    async def collect(self, *, dry_run: bool = False) -> Collected:
        """Removes what no conversation of the tenant reaches any more, and drafts and keys that ran out."""
        ...
