"""Erasures: what somebody wants to erase, and the receipt of what went. The same for every database.

A receipt is one line of JSON. A file of such lines is what a restored copy needs to forget the same again.
Tests: forkpoint.testing.conformance.evidence.erasures, tests/store/test_erasure.py.
"""

import msgspec
from msgspec import Struct

from forkpoint.errors import BadArgument
from forkpoint.events import Position
from forkpoint.history.records import ErasedRun

NAMED = 100
"""How many of the conversations that an erasure touches a receipt names."""

OUT_OF_REACH = (
    "backups and snapshots of the store's file or disk that were made before: restore them with --erasures",
    "exports and other copies of the conversation outside of this store",
    "what a model's provider has received, and its cache",
    "what tools have written to files, and what programs have logged",
)
"""What no erasure in a store can remove."""


_LONGEST_REASON = 1024  # characters


class Erasing(Struct, frozen=True, kw_only=True):
    """What is to be erased: one turn or one event of a conversation, or everything in some conversations of a family.

    ``family`` is given instead of conversations if everything in it is meant, drafts and what nobody reaches included.
    With ``keep_summaries`` the summaries of condensations that cover erased events, and those that were brought from
    one branch to another, stay as they are.
    """

    conversations: tuple[str, ...] = ()
    family: str | None = None
    turn: str | None = None
    event: Position | None = None
    keep_summaries: bool = False


class Touched(Struct, frozen=True):
    """A conversation that shows something else once the erasure is done."""

    id: str
    name: str


class Receipt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an erasure removed, from where, by whom and why; or, in a preview, what it would remove.

    ``runs`` names the erased events by the chain digests of neighbours, ``turns`` all turns that lost what they were
    asked and why they failed, ``conversations`` those that lost title, tags and name, or only the title (``untitled``).
    """

    id: str
    tenant: str
    family: str
    reason: str
    time: int  # microseconds since 1970, UTC
    by: str | None = None
    done: bool = True  # False in a preview
    events: int = 0
    bytes: int = 0  # of payloads
    positions: tuple[str, ...] = ()  # of the erased events: one, or the first and the last of neighbours
    runs: tuple[ErasedRun, ...] = ()
    turns: tuple[str, ...] = ()
    conversations: tuple[str, ...] = ()
    untitled: tuple[str, ...] = ()
    summaries: tuple[str, ...] = ()  # that were made of erased events: erased, or kept
    summaries_kept: bool = False
    discarded: tuple[str, ...] = ()  # open turns that nobody ran
    running: tuple[str, ...] = ()  # in a preview: turns that have to end first
    touched: int = 0  # how many conversations show something else now
    touched_named: tuple[Touched, ...] = ()  # the first of them
    places: dict[str, int] = {}  # rows by table
    pending: tuple[str, ...] = ()  # what is still to be done, and happens by itself
    out_of_reach: tuple[str, ...] = OUT_OF_REACH


def check_reason(reason: str) -> None:
    """Raises `BadArgument` for a reason that is blank or too long: it stays for good, as part of the evidence."""
    if not reason.strip():
        raise BadArgument("reason", repr(reason), "it is blank; say why, for whoever asks later")
    if "\0" in reason:
        raise BadArgument("reason", repr(reason[:40]), "it has a NUL character")
    if len(reason) > _LONGEST_REASON:
        raise BadArgument("reason", f"{reason[:40]!r}...", f"it has more than {_LONGEST_REASON} characters")


def encode_receipt(receipt: Receipt) -> str:
    """One line of JSON."""
    return msgspec.json.encode(receipt).decode()


_decode = msgspec.json.Decoder(Receipt).decode


def decode_receipts(lines: str) -> list[Receipt]:
    """The receipts of a file that has one on each line. Raises ``msgspec.DecodeError``."""
    return [_decode(line) for line in lines.splitlines() if line.strip()]
