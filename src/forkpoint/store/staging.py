"""Staging: from events that somebody wants to commit to rows that are ready to be.

Everything that can be wrong with an event is found here, before anything is written and outside any transaction:
wholeness, pairing, size, Unicode. Digests are made here too; they depend on the base only, which cannot move while
the turn holds its conversation.
"""

from collections.abc import Sequence

from msgspec import Struct

from forkpoint.errors import TooLarge
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
        if len(payload) > limits.payload // 4:  # only then can it be too long in bytes
            check_size("payload", payload, limits.payload)
        link = forge(digest, encode_envelope(envelope), payload)
        digest = link.chain_digest
        state = state.then(event.body)
        size += len(payload) + len(link.envelope)
        links.append(link)
    if size > limits.commit:
        raise TooLarge("commit", size, limits.commit)
    return Staged(tuple(links), digest, calls, state, size)


def check_size(what: str, text: str | None, limit: int) -> None:
    """Raises `TooLarge` for a text of more bytes than the limit."""
    if text is not None and (size := len(text.encode(errors="surrogatepass"))) > limit:
        raise TooLarge(what, size, limit)
