"""The lines of an export: which there are, what each says, and the digest that each ends with.

A file is a header, families one after the other, and an end. A family is told in this order, so that a reader can check
it in one go: its own records, its segments with their events, then chain by chain the conversation (if it is in the
file), its records, and after the last record about a turn that turn with its steps; then turns that have no record, and
charges.

::

    digest of a line = SHA-256(digest of the line before it + the line without its digest)

Both are text: 64 hexadecimal digits, and the JSON object without its last member ``sha256``. In front of a header, of
the first line of a family and of the end stand 64 zeros, so that a family's lines do not depend on what else is in the
file. Tests: tests/history/test_exports.py.
"""

from hashlib import sha256
from typing import ClassVar, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

FORMAT = "forkpoint export"
VERSION = 1
NOTHING = "0" * 64
"""Stands for the digest of the line before, if there is none."""

LONGEST_LINE = 512 * 1024 * 1024
"""How many bytes a line may have: the largest payload, written as a JSON string in which every character is escaped."""

Place: TypeAlias = tuple[int, int]
"""A position in a file: a segment's number in its family, and the ordinal. Segment 0: the event is not in the file."""

Scope: TypeAlias = Literal["conversation", "family", "tags", "all"]


class Header(Struct, frozen=True, tag_field="line", tag="header", kw_only=True):
    """The first line: which format this is, who made the file, and what was asked for."""

    format: str = FORMAT
    version: int = VERSION
    program: str
    store: str  # which store it is from
    tenant: str
    scope: Scope
    asked: str  # a name, an id or tags; empty for all
    time: int  # microseconds since 1970, UTC
    by: str | None = None


class Family(Struct, frozen=True, tag_field="line", tag="family", kw_only=True):
    """The first line of a family. ``whole``: all of its conversations are here."""

    family: str
    whole: bool


class Segment(Struct, frozen=True, tag_field="line", tag="segment", kw_only=True):
    """A run of events. The events that follow are its events."""

    segment: int  # from 1 on, in this family in this file
    base: Place | None  # None: it starts at the root
    base_digest: str


class EventLine(Struct, frozen=True, tag_field="line", tag="event", kw_only=True):
    """An event, byte for byte. Payload and salt are None once it was erased."""

    ordinal: int
    turn: str
    envelope: str
    payload: str | None
    salt: str | None
    payload_digest: str
    chain_digest: str


class ConversationLine(Struct, frozen=True, tag_field="line", tag="conversation", kw_only=True):
    """A conversation. Its records follow."""

    id: str
    name: str
    revision: int
    head: Place | None
    head_digest: str
    head_turn: str | None
    head_totals: str
    head_state_of: str | None
    head_state: str | None
    head_open_calls: str
    open_turn: str | None
    settings: str
    cache: str
    approvals: str
    lineage_kind: str
    lineage_source: str | None
    lineage_at: Place | None
    lineage_turn: str | None
    lineage_call: str | None
    own_from: int
    inherited: str
    carries_metrics: bool
    title: str | None
    tags: str
    draft: bool
    created: int
    updated: int
    used: int
    born: str
    born_salt: str | None


class Chain(Struct, frozen=True, tag_field="line", tag="chain", kw_only=True):
    """A chain of records, which follow. ``source`` is the digest that a fork's chain goes on from.

    ``follows`` and ``first`` are of a chain whose conversation is not in the file and was not deleted: the digest of
    its birth, and the number after which it begins.
    """

    chain: str
    records: int
    digest: str  # of the last record, or of the birth
    source: str | None = None
    follows: int = 0
    first: str | None = None


class RecordLine(Struct, frozen=True, tag_field="line", tag="record", kw_only=True):
    """A record. Its body is None if its conversation is not in the file, unless it is about a turn that is."""

    number: int
    kind: str
    subject: str | None
    body: str | None
    salt: str | None
    digest: str


class TurnLine(Struct, frozen=True, tag_field="line", tag="turn", kw_only=True):
    """A turn or note, as the record before it left it."""

    id: str
    conversation: str
    kind: str
    outcome: str
    base: Place | None
    end: Place | None
    staged: int
    input: str | None
    usage: str
    totals: str
    state_of: str | None
    state: str | None
    open_calls: str
    error: str | None
    retry_of: str | None
    started: int
    ended: int | None
    by: str | None
    steps_digest: str | None
    expired: int | None  # when a rule of retention removed input, error and steps
    steered: str | UnsetType = UNSET  # what was sent to it while it was open; only there if somebody has sent something


class StepLine(Struct, frozen=True, tag_field="line", tag="step", kw_only=True):
    """A journalled event of the turn before it."""

    number: int
    envelope: str
    payload: str | None
    salt: str | None
    payload_digest: str


class Spent(Struct, frozen=True, tag_field="line", tag="spent", kw_only=True):
    """Something in the ledger: a charge, or, without an id, what the turns of a deleted conversation had spent."""

    id: str | None
    conversation: str
    usage: str
    deleted: int


class FamilyEnd(Struct, frozen=True, tag_field="line", tag="family_end", kw_only=True):
    """The last line of a family: how much of each there was."""

    family: str
    conversations: int
    segments: int
    events: int
    turns: int
    records: int


class End(Struct, frozen=True, tag_field="line", tag="end", kw_only=True, omit_defaults=True):
    """The last line. ``digest`` is the SHA-256 of the digests of the header and of each family's last line, as text.

    ``recorded`` is only there if it is False: the store could only be read, and has no record of this export.
    """

    families: int
    lines: int  # before this one
    digest: str
    recorded: bool = True


Line: TypeAlias = (
    Header
    | Family
    | Segment
    | EventLine
    | ConversationLine
    | Chain
    | RecordLine
    | TurnLine
    | StepLine
    | Spent
    | FamilyEnd
    | End
)

_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line, strict=True)
_MARK = b',"sha256":"'
_TAIL = len(_MARK) + 64 + 2  # the digest, the quote, the brace


NOT_RECORDED = "*The store has no record of this export, since it can only be read.*"
"""The last line of a transcript for people, if that is so."""


class Seal(Struct):
    """Writes lines, and knows the digest of the last one."""

    last: str = NOTHING

    FIRST: ClassVar = (Header, Family, End)

    def line(self, line: Line) -> bytes:
        """A line as it stands in the file."""
        text = msgspec.json.encode(line)
        before = NOTHING if isinstance(line, self.FIRST) else self.last
        self.last = digest_of(before, text)
        return b'%b%b%b"}\n' % (text[:-1], _MARK, self.last.encode())


def digest_of(before: str, text: bytes) -> str:
    """The digest of a line without its own digest."""
    return sha256(before.encode() + text).hexdigest()


def parted(raw: bytes) -> tuple[bytes, str]:
    """A line of a file without its digest, and that digest. Raises ``ValueError`` if it does not end with one."""
    if not raw.endswith(b'"}\n') or raw[-_TAIL - 1 : -67] != _MARK:
        raise ValueError("it does not end with a digest, or not at all")
    return raw[: -_TAIL - 1] + b"}", raw[-67:-3].decode("latin-1")


def decoded(text: bytes) -> Line:
    """A line without its digest. Raises ``ValueError`` if it is not a line of an export."""
    return _decoder.decode(text)
