"""Every error that a caller can meet.

Each is a class of its own with a stable ``code``. The docstring *is* the message: it says what happened,
where, and what to do, and is filled in from the error's fields. Nothing anywhere tells two errors apart by
searching their text.
"""

import dataclasses
import inspect
from typing import Any, ClassVar, dataclass_transform


@dataclass_transform(eq_default=False)
class ForkpointError(Exception):
    """Something went wrong in Forkpoint."""

    code: ClassVar[str] = "error"

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(eq=False, repr=False)(cls)

    def __str__(self) -> str:
        if type(self).__doc__ is None:  # python -OO drops docstrings; what happened must still be told
            return f"{self.code}: {vars(self)}"
        text = " ".join(inspect.cleandoc(type(self).__doc__ or "").split())
        return text.format(**vars(self)).encode(errors="backslashreplace").decode()

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        fields = getattr(self, "__dataclass_fields__", {})
        return type(self), tuple(getattr(self, name) for name in fields)


# What the caller asked for does not fit.


class NotFound(ForkpointError):
    """There is no {what} {id!r} here. Check the id, the tenant and the store's address; it may also have
    been deleted."""

    code = "not_found"
    what: str
    id: str


class AlreadyExists(ForkpointError):
    """A {what} {name!r} exists already, and nothing was changed. Choose another name or id, or open the one
    that exists."""

    code = "exists"
    what: str
    name: str


class BadName(ForkpointError):
    """{name!r} cannot be the {what}. It takes 1 to 128 of the characters A-Z a-z 0-9 . _ : -"""

    code = "bad_name"
    what: str
    name: str


class BadId(ForkpointError):
    """{id!r} cannot be the id of a {what}. Make one with forkpoint.ids.new_id()."""

    code = "bad_id"
    what: str
    id: str


class BadLineage(ForkpointError):
    """A conversation cannot be created as a {kind} ({why}). Create a root, or a sub_agent with its parent, the
    parent's turn and the call; use fork() and rewind() for what they make."""

    code = "bad_lineage"
    kind: str
    why: str


class BadPosition(ForkpointError):
    """{position} is not a place to fork at or rewind to: {why}. The nearest safe positions: {nearest}."""

    code = "bad_position"
    position: str
    why: str
    nearest: str


class BadCursor(ForkpointError):
    """{cursor!r} is not a cursor of this list. Pass `next` of an earlier page, unchanged, or none at all."""

    code = "bad_cursor"
    cursor: str


class BadStoreUrl(ForkpointError):
    """{url!r} is not a store's address: {why}. Use sqlite:///relative/file.db, sqlite:////absolute/file.db
    or memory:"""

    code = "bad_store_url"
    url: str
    why: str


class TooLarge(ForkpointError):
    """The {what} has {size:,} {unit}; the limit is {limit:,}. Make it smaller, or raise the store's limit."""

    code = "too_large"
    what: str
    size: int
    limit: int
    unit: str = "bytes"


class NotWhole(ForkpointError):
    """The {kind} cannot be stored: {why}. Leave it out, or make it whole: a conversation that holds it could not
    go on."""

    code = "not_whole"
    kind: str
    why: str


class Unpaired(ForkpointError):
    """Tool calls and results do not pair up: {why}. Each call needs exactly one result, in order, before
    the conversation goes on."""

    code = "unpaired"
    why: str
    call_id: str


class KeyReused(ForkpointError):
    """The idempotency key {key!r} was used before for another request. Use a fresh key for each request,
    and the same key only to repeat one."""

    code = "key_reused"
    key: str


# Somebody else was there first.


class Busy(ForkpointError):
    """Conversation {conversation} is running turn {turn}. Wait for it, join it, or cancel it."""

    code = "busy"
    conversation: str
    turn: str


class TurnOpen(ForkpointError):
    """Turn {turn} of conversation {conversation} is open ({outcome}). Resume it, discard it, or begin a new
    one with supersede=True, which discards it."""

    code = "turn_open"
    conversation: str
    turn: str
    outcome: str


class TurnLost(ForkpointError):
    """Turn {turn} is no longer this writer's: it is {outcome} now. Nothing of it was committed by this call;
    read the turn to see what became of it."""

    code = "turn_lost"
    turn: str
    outcome: str


class TurnBehind(ForkpointError):
    """Turn {turn} has {staged} journalled steps, and this handle knows of {known}: a call that was cancelled had
    landed. Use refresh() to get a handle that knows them all, and go on from there."""

    code = "turn_behind"
    turn: str
    known: int
    staged: int


class NotResumable(ForkpointError):
    """Turn {turn} ({outcome}) cannot be resumed: {why}. Read the
    conversation, and retry the turn or begin a new one."""

    code = "not_resumable"
    turn: str
    outcome: str
    why: str


class Stale(ForkpointError):
    """Conversation {conversation} is at revision {actual}, not {expected}, and nothing was changed. Read it
    again and decide anew."""

    code = "stale"
    conversation: str
    expected: int
    actual: int


# The store itself.


class StoreError(ForkpointError):
    """The store at {path} has a problem."""

    code = "store_error"
    path: str


class OutcomeUnknown(StoreError):
    """Whether {what} {id} is in the store at {path} cannot be told now ({detail}). It is not lost and not
    repeated: ask again with settle() or read it once the disk answers, before you try it anew."""

    code = "outcome_unknown"
    what: str
    id: str
    detail: str


class CommitFailed(StoreError):
    """Turn {turn} did not reach the disk of the store at {path} ({detail}): it is failed, and nothing of it is in
    history. Its steps and its cost are kept; resume it, or retry it, once the disk answers."""

    code = "commit_failed"
    turn: str
    detail: str


class StoreUnavailable(StoreError):
    """The store at {path} did not answer: {detail}. Nothing was changed; try again."""

    code = "store_unavailable"
    detail: str


class StoreClosed(StoreError):
    """The store at {path} was closed. Open it again before use."""

    code = "store_closed"


class DiskFull(StoreError):
    """The disk of the store at {path} is full ({detail}), and nothing was changed. Free some space and try
    again."""

    code = "disk_full"
    detail: str


class ReadOnly(StoreError):
    """The store at {path} cannot be written ({detail}). Check the owner and mode of the file and its folder,
    and that the disk is not mounted read-only."""

    code = "read_only"
    detail: str


class StoreDamaged(StoreError):
    """The store at {path} is damaged: {detail}. Stop writing to it, keep a copy of the file with its -wal
    beside it, and restore a backup."""

    code = "store_damaged"
    detail: str


class NotAStore(StoreError):
    """{path} is not a Forkpoint store ({detail}), and it was left untouched. Name another file, or remove
    this one if nobody needs it."""

    code = "not_a_store"
    detail: str


class StoreNewer(StoreError):
    """The store at {path} has format {found}, which only a newer Forkpoint may use (this one knows up to
    {known}); it was left untouched. Upgrade Forkpoint."""

    code = "store_newer"
    found: int
    known: int


class NetworkFileSystem(StoreError):
    """The store at {path} would stand on a network file system ({kind}), where SQLite cannot keep its
    promises. Use a local disk, or a PostgreSQL store for several machines."""

    code = "network_file_system"
    kind: str
