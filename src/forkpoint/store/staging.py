"""Staging: from events that somebody wants to commit to rows that are ready to be.

Everything that can be wrong with an event is found here, before anything is written and outside any transaction:
wholeness, pairing, size, Unicode. Digests are made here too; they depend on the base only, which cannot move while
the turn holds its conversation.
"""

from collections.abc import Sequence

from msgspec import Struct

from forkpoint.errors import NotWhole, TooLarge
from forkpoint.events import NewEvent, encode_body, encode_envelope, seal
from forkpoint.history.digests import Link, forge
from forkpoint.history.pairing import OpenCalls
from forkpoint.history.state import State
from forkpoint.history.wholeness import check_whole
from forkpoint.store.records import Limits


class Staged(Struct, frozen=True):
    """Events as links of the chain, and what is true after them."""

    links: tuple[Link, ...]
    digest: bytes
    calls: OpenCalls
    state: State
    size: int  # bytes of payload and envelope


def stage(
    events: Sequence[NewEvent], *, digest: bytes, calls: OpenCalls, state: State, now: int, limits: Limits
) -> Staged:
    """The events as they will stand after ``digest``. Raises `NotWhole`, `Unpaired` or `TooLarge`."""
    links = []
    size = 0
    for event in events:
        check_whole(event)
        envelope = seal(event, now)
        calls = calls.then(envelope)
        payload = encode_body(event.body)
        bytes = len(payload.encode())
        if bytes > limits.payload:
            raise TooLarge("payload", bytes, limits.payload)
        link = forge(digest, encode_envelope(envelope), payload)
        digest = link.chain_digest
        state = state.then(event.body)
        size += bytes + len(link.envelope)
        links.append(link)
    if size > limits.commit:
        raise TooLarge("commit", size, limits.commit)
    return Staged(tuple(links), digest, calls, state, size)


def check_size(what: str, text: str | None, limit: int) -> None:
    """Raises `TooLarge` for a text of more bytes than the limit, `NotWhole` for one that is not valid Unicode."""
    if text is None:
        return
    check_text(what, text)
    if (size := len(text.encode())) > limit:
        raise TooLarge(what, size, limit)


def check_text(what: str, text: str | None) -> None:
    """Raises `NotWhole` for a text that is not valid Unicode."""
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        raise NotWhole(what, f"its text is not valid Unicode ({error.reason})") from None
