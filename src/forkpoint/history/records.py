"""Records: the second chain, which makes any change to what is kept *about* a conversation visible.

Events are what was said; records are what became of it: how each try ended and what it cost, notes, settings, the
cache identity, names, rewinds, keeps, charges, erasures. **A record states what it changes.** Folding a
conversation's birth and all its records therefore gives what its row must say today, and each turn's row says what the
last record about that turn says.

::

    record digest = SHA-256("forkpoint record 1" + previous + chain + number + SHA-256(body))
    first digest  = SHA-256("forkpoint birth 1" + digest of the source + its number of records + SHA-256(birth))

``chain`` says whose records these are: "c" and a conversation's 16 bytes, "f" and a family's, or "t" and one byte for
one of the few chains of a tenant. ``number`` counts from 1, as 8 bytes, the highest first. The source is the
conversation that was forked; 32 zero bytes and 0 stand for it if there is none. So a fork's chain goes on from its
source's, and the fork is still one row.

A body holds nobody's words: texts stand in it as ``SHA-256(salt + text)``, with 16 random bytes of salt for each
record. Erasing a text removes the salt too, so that nobody can guess the text from what is left.
Tests: forkpoint.testing.conformance.evidence.records, tests/store/test_verify.py.
"""

import os
from hashlib import sha256

import msgspec
from msgspec import Struct

from forkpoint.events import Usage
from forkpoint.history.budgets import Budget

SALT_BYTES = 16
NO_SOURCE = bytes(32)
"""Stands for the digest of the source of a conversation that was not forked."""

ABOUT_A_TURN = ("committed", "note", "failed", "cancelled", "awaiting_approval", "resumed", "steered")
"""Kinds of records that say how a turn or a note stands."""

TENANT_CHAINS = 8
"""How many chains a tenant has for records that belong to no conversation: with one, its row would be a bottleneck."""


class Point(Struct, frozen=True, array_like=True):
    """A point of a path: how many events lead to it, and the chain digest of the last of them."""

    ordinal: int
    digest: bytes


class TurnFacts(Struct, frozen=True, omit_defaults=True):
    """How a turn or note stands. Input and error are salted digests, steps the digest of the journal."""

    id: str
    outcome: str
    base: Point | None = None  # None: the root
    end: Point | None = None  # None unless it is committed
    usage: Usage = Usage()
    started: int = 0
    ended: int | None = None
    by: str | None = None  # who asked for it
    retry_of: str | None = None
    input: bytes | None = None
    error: bytes | None = None
    steps: bytes | None = None  # None: it has no steps
    steered: bytes | None = None  # a salted digest too; None: nobody has steered it


class Charge(Struct, frozen=True):
    """Something that was spent beside turns."""

    id: str
    usage: Usage


class Removal(Struct, frozen=True):
    """A conversation that is gone: where its chain began and ended, and what was written off of its turns and charges.

    ``first`` is the digest of its birth, and ``follows`` what its birth says.
    """

    conversation: str
    follows: int
    first: bytes
    records: int
    digest: bytes
    spent: Usage
    charged: Usage


class ErasedRun(Struct, frozen=True, array_like=True):
    """Neighbouring events of one segment whose content was erased: the chain digests of the first and the last."""

    first: bytes
    last: bytes
    events: int


class Erasure(Struct, frozen=True, omit_defaults=True):
    """Content that was removed on purpose, and why."""

    id: str
    reason: str
    runs: tuple[ErasedRun, ...] = ()
    turns: tuple[str, ...] = ()  # turns that lost input, error and steps
    conversations: tuple[str, ...] = ()  # conversations that lost title, tags and name, and the salts of these
    untitled: tuple[str, ...] = ()  # those of them that lost only their title, or the task of a sub-agent


class Expiry(Struct, frozen=True):
    """Tries that lost input, error and steps because they ended before a time; ``rule`` is the setting that says so."""

    rule: str
    before: int
    turns: tuple[str, ...]


class Hold(Struct, frozen=True, omit_defaults=True):
    """Something that keeps a family from deletion, erasure and retention."""

    id: str
    reason: str = ""


class KeptHead(Struct, frozen=True):
    """A head that went to the head of a branch: which branch, and where the head stood before (``left``)."""

    branch: str
    left: Point


class BudgetSet(Struct, frozen=True, omit_defaults=True):
    """A budget that somebody set; without limits it was removed. ``conversation`` is None for the family's.

    ``apart``: what it covers does not draw from the family's.
    """

    conversation: str | None = None
    limits: Budget | None = None
    apart: bool = False


class Export(Struct, frozen=True):
    """A copy that left the store: of what (the conversation, its family, all with some tags, all), and as what."""

    id: str
    scope: str
    format: str


class Left(Struct, frozen=True):
    """A conversation that an import has left behind, though a fork of it came, or turns: as much of its chain as came.

    ``first`` is the digest of its birth, and ``follows`` what its birth says.
    """

    conversation: str
    follows: int
    first: bytes
    records: int
    digest: bytes


class Import(Struct, frozen=True, omit_defaults=True):
    """Conversations that came from another store.

    Births of this family may name ``tenant``, which they had there. The chains of ``left`` are here only as far as
    turns that came are about them, as if these conversations were deleted. ``parted`` are the rests of erased runs that
    the other store has in one segment, and this one in two, since an earlier import had brought the first part.
    """

    id: str
    store: str
    tenant: str
    exported: int  # when the file was made
    conversations: int  # how many were made or went on
    left: tuple[Left, ...] = ()
    parted: tuple[ErasedRun, ...] = ()


class Standing(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a birth or a record states about a conversation's row; None: it states nothing about that.

    Settings, cache identity, approvals, name, title and tags are salted digests of their stored text. ``totals`` is
    what the path has cost at a head that was moved without a commit; a birth's is what it inherited.
    """

    head: Point | None = None
    totals: Usage | None = None
    revision: int | None = None
    own_from: int | None = None
    inherited: Usage | None = None
    draft: bool | None = None
    settings: bytes | None = None
    cache: bytes | None = None
    approvals: bytes | None = None
    name: bytes | None = None
    title: bytes | None = None
    tags: bytes | None = None


class Birth(Standing, frozen=True, omit_defaults=True, kw_only=True):
    """How a conversation began. ``records`` is how many its source had; None if its chain goes on from no other.

    ``follows`` is not 0 only if a conversation with this id was deleted before: then the numbers go on after its last.
    """

    id: str
    tenant: str
    family: str
    kind: str
    source: str | None = None
    at: Point | None = None
    turn: str | None = None
    call: str | None = None
    carries_metrics: bool = False
    created: int
    records: int | None = None
    follows: int = 0


class Fact(Standing, frozen=True, omit_defaults=True, kw_only=True):
    """The body of a record. ``by`` is who did it, if somebody said so.

    What follows ``kind``, ``time`` and ``by`` depends on the kind. Kinds of a conversation's chain: how a turn stands
    (`committed`, `failed`, `cancelled`, `awaiting_approval`, `resumed`, `steered`), `note`, `rewound`, `kept`,
    `renamed`, `described`, `approvals`, `admitted`, `charged`, `exported`, `restated`. Kinds of a family's
    chain: `deleted`, `expired`, `erased`, `held`, `released`, `budget`, `imported`. A tenant's chains have `charged`.
    """

    kind: str
    time: int
    by: str | None = None
    turn: TurnFacts | None = None
    charge: Charge | None = None
    aside: str | None = None  # the branch that keeps what a head left
    kept: KeptHead | None = None
    removed: Removal | None = None
    erased: Erasure | None = None
    expired: Expiry | None = None
    hold: Hold | None = None
    budget: BudgetSet | None = None
    exported: Export | None = None
    imported: Import | None = None


_birth = msgspec.json.Decoder(Birth)
_fact = msgspec.json.Decoder(Fact)


def encode(body: Birth | Fact) -> str:
    """The text that is stored, and whose digest counts."""
    return msgspec.json.encode(body).decode()


def decode_birth(text: str) -> Birth:
    return _birth.decode(text)


def decode_fact(text: str) -> Fact:
    return _fact.decode(text)


def conversation_chain(id: bytes) -> bytes:
    return b"c" + id


def family_chain(family: bytes) -> bytes:
    return b"f" + family


def tenant_chain(subject: bytes) -> bytes:
    """The chain of a tenant in which a record about this subject stands."""
    return b"t" + bytes([subject[-1] % TENANT_CHAINS])


def new_salt() -> bytes:
    return os.urandom(SALT_BYTES)


def salted(salt: bytes, text: str | None) -> bytes:
    """The digest of a text in a body. No text counts as an empty one."""
    return sha256(salt + (text or "").encode()).digest()


def first_digest(source: bytes, records: int, birth: str) -> bytes:
    """The digest with which a conversation's chain begins."""
    return sha256(b"forkpoint birth 1" + source + records.to_bytes(8, "big") + sha256(birth.encode()).digest()).digest()


def start_of(chain: bytes) -> bytes:
    """The digest with which the chain of a family or a tenant begins."""
    return sha256(b"forkpoint chain 1" + chain).digest()


def record_digest(previous: bytes, chain: bytes, number: int, body: str) -> bytes:
    """The digest of a record: it vouches for the record and for all of its chain that came before it."""
    return sha256(
        b"forkpoint record 1" + previous + chain + number.to_bytes(8, "big") + sha256(body.encode()).digest()
    ).digest()


def start_of_steps(turn: bytes) -> bytes:
    """What the first step of a turn chains to. Each step then follows as an event follows another."""
    return sha256(b"forkpoint steps 1" + turn).digest()
