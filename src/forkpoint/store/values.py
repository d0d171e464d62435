"""The values that a store takes and returns: frozen, and the same for every database.
Tests: tests/store/test_limits.py, forkpoint.testing.conformance."""

import re
from collections.abc import Callable
from typing import IO, Any, Literal, TypeAlias

from msgspec import Struct

from forkpoint.errors import BadName, Busy
from forkpoint.events import Event, JsonText, NewEvent, Position, Usage
from forkpoint.history.anchors import Anchor
from forkpoint.history.budgets import Budget
from forkpoint.history.exports.lines import FamilyEnd
from forkpoint.history.pairing import NO_CALLS, OpenCalls
from forkpoint.history.state import EMPTY, State
from forkpoint.history.steers import Steer
from forkpoint.ids import id_to_bytes

DEFAULT_TENANT = "default"

Outcome: TypeAlias = Literal["running", "awaiting_approval", "interrupted", "committed", "failed", "cancelled"]
"""How a turn stands. `interrupted` is never stored: a turn is so if it runs in a process that is known dead."""

Status: TypeAlias = Literal["idle", "running", "awaiting_approval", "interrupted"]

LineageKind: TypeAlias = Literal["root", "fork", "aside", "side", "sub_agent"]

ListOrder: TypeAlias = Literal["created", "used"]
"""How a list of conversations is sorted: the newest first, or the one first whose last turn began last."""

KeyedOperation: TypeAlias = Literal["create", "fork", "keep", "turn"]
"""An operation of which `Store.made_with` tells the result. A note counts as a turn. A rewind is repeated instead: that
moves nothing."""

StopReason: TypeAlias = Literal["cancel", "lost"]
"""Why a process has to stop a turn that it runs: somebody asked to cancel it, or it is another's now."""

Tags: TypeAlias = tuple[tuple[str, str], ...]


class Head(Struct, frozen=True):
    """Where a conversation stands, and what is true there. All of it moves together, or not at all."""

    position: Position | None  # None: no events yet
    digest: bytes
    turn: str | None = None  # the turn or note that wrote the event there
    totals: Usage = Usage()  # along the path, committed turns only
    state_of: str | None = None  # the turn or note whose folded state is in force
    state: State | None = None  # only where no commit stood: the state in the middle of a turn
    open_calls: OpenCalls = NO_CALLS

    @property
    def ordinal(self) -> int:
        """How many events the path has."""
        return self.position.ordinal if self.position else 0


class Lineage(Struct, frozen=True):
    """Where a conversation came from. This is provenance only: the store finds nothing through it."""

    kind: LineageKind = "root"
    source: str | None = None  # forked from, set aside from, asked beside, or spawned by this conversation
    at: Position | None = None  # where the two paths part; of a side, where its conversation stood
    turn: str | None = None  # the parent's turn that spawned it; None: no call did
    call: str | None = None  # and the call in it


class StoredConversation(Struct, frozen=True):
    """One conversation, as it stood when it was read."""

    id: str
    tenant: str
    name: str
    family: str
    revision: int
    head: Head
    settings: JsonText
    cache: JsonText  # the cache identity, a document of the model layer
    lineage: Lineage
    own_from: int  # the ordinal after which all of the path is this conversation's own spend
    inherited: Usage  # what others have spent on the path, all of it up to there
    carries_metrics: bool  # whether the inherited part is shown as its own
    title: str | None
    tags: Tags
    status: Status
    open_turn: str | None
    draft: bool
    created: int
    updated: int
    used: int  # when its last turn began, to the minute; when it was made, if it had none

    @property
    def spent(self) -> Usage:
        """What committed turns of this branch have used since it began."""
        return self.head.totals if self.carries_metrics else self.head.totals - self.inherited


class TurnError(Struct, frozen=True):
    """Why a turn did not commit."""

    code: str
    message: str


MOST_TAKEOVERS = 3
"""How often a turn is taken over from a process that died. If the next one dies too, the turn is the likely reason."""

GIVEN_UP = TurnError(
    "given_up",
    f"The process that ran it died or lost the store, and so did {MOST_TAKEOVERS} others that took it over; no other "
    "goes on with it by itself. Find out what stops them, then resume the turn, or discard it.",
)
"""What a turn says that is `interrupted` and that no process takes over any more."""


class HeldBy(Struct, frozen=True):
    """The process that runs a turn. A field is None if a program wrote it that did not say it yet."""

    host: str | None
    process: int | None  # its process id there
    since: int | None  # when the turn began, or its process if that is later; microseconds since 1970, UTC


class IdempotencyKey(Struct, frozen=True):
    """A caller's name for one request, and the digest of the request that it named.

    Without a digest a key can only be looked up, whatever it was used for: `Store.made_with`.
    """

    key: str
    request: bytes | None


class StoredTurn(Struct, frozen=True):
    """One try at answering, or one note."""

    id: str
    conversation: str
    kind: Literal["turn", "note"]
    outcome: Outcome
    base: Position | None
    end: Position | None
    input: JsonText | None
    usage: Usage
    totals: Usage
    open_calls: OpenCalls
    error: TurnError | None
    retry_of: str | None
    started: int
    ended: int | None
    held_by: HeldBy | None = None  # None unless it runs
    by: str | None = None  # who asked for it: the name of a key, or what a program said; None: nobody said it
    cancel_asked: int | None = None  # when somebody asked its holder to cancel it; resuming the turn forgets that
    steered: tuple[Steer, ...] = ()  # what was sent to it while it was open, in order
    partial: bool = False  # only its first events are on the path that was asked for: ``end`` is the last of them
    accepted: bool = False  # somebody was told that it runs, and asks later how it ended
    takeovers: int = 0  # how often another process took it over from one that had died; over the limit: it was given up

    @property
    def has_result(self) -> bool:
        """Whether there is a result for whoever asked for the turn: it has ended, or it waits for an approval."""
        return self.outcome not in ("running", "interrupted")

    def busy(self) -> Busy:
        """The error for whoever has to leave this turn alone, since a process runs it."""
        by = self.held_by or HeldBy(None, None, None)
        return Busy(self.conversation, self.id, by.host, by.process, by.since)


class Orphan(Struct, frozen=True, kw_only=True):
    """An open turn whose process is gone."""

    id: str
    tenant: str
    conversation: str
    accepted: bool  # somebody was promised it
    takeovers: int
    is_cancel_asked: bool  # somebody asked its process to cancel it


class StoredGlance(Struct, frozen=True):
    """What a list shows of a conversation beside the conversation itself. Counts end at a thousand."""

    first: StoredTurn | None  # its first turn; of a branch, the first since it parted, else the first of its path
    asides: int  # how many branches were set aside from it
    sides: int  # how many sides it has


class Onto(Struct, frozen=True):
    """A base for a turn other than its conversation's head, or for the path of a new conversation."""

    branch: str  # a conversation of the same family; it may be the turn's own
    position: Position | None  # on that conversation's path; None: the root


class OpenTurn(Struct, frozen=True):
    """The handle of a turn that this process may write to. `Store.journal` returns the handle for the next write.

    The token fences the turn: once another process has taken it over, a write with the old token has no effect.
    """

    id: str
    conversation: str
    token: bytes
    revision: int  # of the conversation at the turn's base
    base: Head
    segment: int | None  # where the conversation appends; None: the commit opens one
    family: str
    staged: int = 0  # how many events are journalled
    steps_digest: bytes | None = None  # of all of them, in the order of arrival; None: there are none
    calls: OpenCalls = NO_CALLS  # what is open after them
    state: State = EMPTY  # folded over base and staged events
    state_changed: bool = False
    usage: Usage = Usage()  # spent so far and recorded
    started: int = 0  # microseconds since 1970, UTC
    branch: str | None = None  # the conversation on whose path the base is; None: the base is the head
    by: str | None = None  # who asked for the turn
    input: JsonText | None = None
    retry_of: str | None = None
    records: int = 0  # of the conversation when the turn began, or was taken over; there may be more by now
    record_digest: bytes = b""  # of the last of them
    draft: bool = False  # the conversation is a draft, which the commit admits
    erasures: int = 0  # how often content was erased in the store: what was cached under another count is void
    steered: JsonText | None = None  # what was sent to it while it was open, as far as this handle knows
    budgeted: bool = False  # its family has a budget, so that what a call may cost is reserved before it
    slice: int | None = None  # microseconds that it may run before `Store.renew`; None: no budget limits its time


class Committed(Struct, frozen=True):
    """What a commit did: the conversation's new head, and the positions that it added."""

    conversation: str
    turn: str
    revision: int
    head: Head
    first: Position
    last: Position
    aside: str | None = None  # the branch that keeps the old head, if that is not on the new path
    ended: int = 0  # microseconds since 1970, UTC
    events: tuple[Event, ...] | None = None  # the events that it added; None: read them from the store


class NewConversation(Struct, frozen=True, kw_only=True):
    """A conversation to be made. The caller chooses its id; the name defaults to the id."""

    id: str
    name: str | None = None
    settings: JsonText = "{}"
    cache: JsonText = "{}"
    lineage: Lineage = Lineage()
    family: str | None = None  # None: the conversation is a root, and its id is also the family's
    onto: Onto | None = None  # where in the family its path begins; None: the path is empty
    title: str | None = None
    tags: Tags = ()
    budget: Budget | None = None  # of a root; a sub-agent that has one does not draw from the family's
    family_budget: Budget | None = None


class Announcement(Struct, frozen=True, kw_only=True):
    """A note in another conversation that tells of a new one: both are written, or neither is.

    The note's id is that of the new conversation. ``by`` is who asked for it.
    """

    conversation: str
    events: tuple[NewEvent, ...]
    if_revision: int | None = None
    by: str | None = None


class NewFork(Struct, frozen=True, kw_only=True):
    """A fork to be made. If ``settings`` is None, it gets those that the source has now."""

    id: str
    cache: JsonText
    name: str | None = None
    settings: JsonText | None = None
    title: str | None = None
    tags: Tags = ()
    carries_metrics: bool = False
    budget: Budget | None = None  # its own: it does not draw from the family's


Access: TypeAlias = Literal["write", "as_needed", "read"]
"""What opening a store may write.

- ``write``: the store is made if it does not exist, and opened only if it can be written.
- ``as_needed``: the first write makes the store. A store that cannot be written is read.
- ``read``: nothing is written, made or migrated.
"""


class Capabilities(Struct, frozen=True):
    """What a database can do, for callers that make use of it."""

    durable: bool  # survives its process
    shared: bool  # several processes may use it at once
    notify: bool  # tells other processes of commits by itself
    replicated: bool = False  # it may have standbys, so what can be read may still be lost until `Store.settle` says no


class StoreLimits(Struct, frozen=True):
    """How large things may be, in bytes unless said otherwise. A store refuses larger ones and changes nothing."""

    payload: int = 32 * 1024 * 1024
    commit: int = 256 * 1024 * 1024
    document: int = 4 * 1024 * 1024  # settings, cache identity
    shelf: int = 16 * 1024 * 1024  # a text of the whole store
    input: int = 64 * 1024 * 1024  # of a turn: messages, with pictures; and again of all that is steered to it
    title: int = 1024
    tags: int = 64  # how many
    steers: int = 1000  # how many messages may be steered to one turn
    tag: int = 1024


class Flaw(Struct, frozen=True):
    """A fault that `verify` found, and where."""

    where: str
    what: str


class Record(Struct, frozen=True):
    """One record of a conversation: what happened, when, by whom, and the digest that vouches for it and all before it.

    The first is its birth, of the kind ``born``. ``subject`` is the id of the turn or the charge that it is about.
    Times are in microseconds since 1970. ``body`` is all that the record says, as docs/data-model.md explains.
    """

    number: int
    kind: str
    digest: str  # in hexadecimal
    subject: str | None
    time: int
    by: str | None
    body: dict[str, Any]


VerifyProgress: TypeAlias = Callable[[int, int], None]
"""Is told how many events and records `verify` has looked at, and how many there are."""


class Verification(Struct, frozen=True):
    """How much `verify` checked, and the flaws that it found. Without a flaw, history is as it was written."""

    conversations: int
    events: int
    erased: int
    flaws: tuple[Flaw, ...]
    records: int = 0
    chains: int = 0  # of records: of conversations, families and the tenant
    seals: int = 0  # that were made anew and compared
    remarks: tuple[str, ...] = ()  # what is no flaw, but should be known
    since: int | None = None  # only what was recorded after this seal was looked at; None: everything was

    @property
    def ok(self) -> bool:
        return not self.flaws


class CopyStep(Struct, frozen=True):
    """How far a copy of a store has come, in bytes."""

    stage: Literal["copying", "checking"]
    done: int
    total: int


CopyProgress: TypeAlias = Callable[[CopyStep], None]
"""Is told how far a copy has come, from the thread that makes it."""


class Backup(Struct, frozen=True):
    """A backup that was written and checked."""

    path: str
    bytes: int
    conversations: int  # of all tenants
    events: int
    format: int
    taken: int  # when its copy was complete: microseconds since 1970, UTC
    anchor: Anchor | None = None  # of the whole store: keep it apart from the backup. None: nothing could be sealed


class Restored(Struct, frozen=True, kw_only=True):
    """A store that was made of a backup."""

    path: str
    bytes: int
    conversations: int  # of all tenants
    events: int
    format: int
    erasures: int  # how many newer ones were done again
    kept: str | None  # where the store is that stood there before


class Hold(Struct, frozen=True):
    """Something that keeps a family from deletion, erasure and retention."""

    id: str
    family: str
    reason: str
    by: str | None  # who set it, if somebody said so
    since: int  # microseconds since 1970, UTC


class StoredDocument(Struct, frozen=True):
    """A text that belongs to the whole store: the keys of callers, a server's file."""

    kind: str
    name: str
    version: int
    text: str
    updated: int  # microseconds since 1970, UTC


class Deleted(Struct, frozen=True):
    """The conversations that a delete removed: the conversation that was named, its sub-agents and its sides."""

    conversations: tuple[str, ...]


class Retention(Struct, frozen=True):
    """How long a store keeps what it keeps for a time only, in seconds; a process's turns are such a thing too."""

    drafts: float = 24 * 3600.0  # conversations that never had a committed turn, after their last use
    keys: float = 7 * 24 * 3600.0  # idempotency keys
    tries: float = 30 * 24 * 3600.0  # the content of failed and cancelled tries; outcome, times and cost stay
    responses: float = 30 * 24 * 3600.0  # conversations of the Responses API that nobody named, after their last use
    lease: float = 60.0  # what a process runs, after its last sign of life; it gives six of them in this time


class Pending(Struct, frozen=True):
    """Something that a collection could not finish. The next collection does, in whichever process."""

    # Removed text is still in the log; or there is more to remove; or erased text may be in unused parts of pages.
    what: Literal["log", "garbage", "erasure"]
    why: str


class Collected(Struct, frozen=True):
    """What the collector removed, or in a dry run would remove."""

    events: int = 0
    payload_bytes: int = 0
    segments: int = 0
    drafts: int = 0
    turns: int = 0  # what they cost was written off when their conversation was deleted
    keys: int = 0
    tries: int = 0  # failed and cancelled ones that lost their content; what they cost stays
    responses: int = 0  # conversations that the Responses API had made by itself, and that nobody named or used
    pending: tuple[Pending, ...] = ()

    def __add__(self, other: "Collected") -> "Collected":
        return Collected(
            self.events + other.events,
            self.payload_bytes + other.payload_bytes,
            self.segments + other.segments,
            self.drafts + other.drafts,
            self.turns + other.turns,
            self.keys + other.keys,
            self.tries + other.tries,
            self.responses + other.responses,
            self.pending + other.pending,
        )


class FamilyExport(Struct, frozen=True):
    """A family as the lines of an export. The file is temporary; whoever reads it closes it."""

    file: IO[bytes]
    lines: int
    digest: str  # of the last line
    end: FamilyEnd
    recorded: bool  # whether records tell of it; False: the store cannot be written


class FamilyImported(Struct, frozen=True):
    """What an import did to a family. Without a conversation in it, all of the file was here already."""

    family: str
    new: tuple[str, ...] = ()  # conversations that were made
    grown: tuple[str, ...] = ()  # conversations that went on
    events: int = 0
    renamed: tuple[tuple[str, str], ...] = ()  # conversations whose name was taken, and the names that they got
    erased: int = 0  # events that lost their content here, since the same was erased where the file is from


_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def check_name(what: str, name: str) -> str:
    """Returns the name, or raises `BadName` if it is malformed."""
    if name in {".", ".."}:
        raise BadName(what, name, "it means a folder in a path, so that no address could have it")
    if not _NAME.fullmatch(name):
        why = "it takes 1 to 128 of the characters A-Z a-z 0-9 . _ : -"
        raise BadName(what, name if len(name) <= 200 else name[:200] + "...", why)
    return name


def check_id(what: str, id: str) -> str:
    """Returns the id, or raises `BadName` if it is malformed."""
    try:
        id_to_bytes(id)
    except ValueError:
        raise BadName.bad_id(what, id if len(id) <= 200 else id[:200] + "...") from None
    return id
