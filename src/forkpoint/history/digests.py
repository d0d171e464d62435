"""Digests: the chain that makes any change to history visible.

``payload digest = SHA-256(salt + payload)``, with 16 random bytes of salt for each event: without it, a short
text could be guessed from its digest after it was erased. ``chain digest = SHA-256(previous chain digest + turn +
envelope + payload digest)``. A segment's first event chains to its base, a root's first event to a digest of
its family. Erasing drops payload and salt and keeps the payload digest, so the chain still verifies.

A call that waits for an approval has a digest too (`call_digest`): whoever approves says by it what was seen.
"""

import os
from hashlib import sha256

from msgspec import Struct

SALT_BYTES = 16


class Link(Struct, frozen=True):
    """One event as the chain sees it. Payload and salt are None once it was erased."""

    turn: bytes
    envelope: str
    payload: str | None
    salt: bytes | None
    payload_digest: bytes
    chain_digest: bytes


def root_digest(family: bytes) -> bytes:
    """What the first event of a family chains to, so that no family's history passes for another's."""
    return sha256(b"forkpoint family " + family).digest()


def payload_digest(salt: bytes, payload: str) -> bytes:
    return sha256(salt + payload.encode()).digest()


def chain_digest(previous: bytes, turn: bytes, envelope: str, payload: bytes) -> bytes:
    """The digest of an event: it vouches for the event, for whose it is, and for all that came before it."""
    return sha256(previous + turn + envelope.encode() + payload).digest()


def forge(previous: bytes, turn: bytes, envelope: str, payload: str) -> Link:
    """The link of a new event of a turn that follows the one with digest ``previous``."""
    salt = os.urandom(SALT_BYTES)
    digest = payload_digest(salt, payload)
    return Link(turn, envelope, payload, salt, digest, chain_digest(previous, turn, envelope, digest))


def call_digest(response: int, call_id: str, tool: str, arguments: str) -> str:
    """The digest of what a model asks for: which response of its turn, the call's id, the tool, the exact arguments.

    It is "sha256:" and the SHA-256, in hex, of these four as netstrings: each is ``LENGTH:TEXT,`` and the length counts
    bytes of UTF-8, as in ``1:1,6:call_7,6:deploy,18:{"version": "1.8"},``. So different calls are different bytes.
    """
    fields = [field.encode(errors="surrogatepass") for field in (str(response), call_id, tool, arguments)]
    return "sha256:" + sha256(b"".join(b"%d:%b," % (len(field), field) for field in fields)).hexdigest()


def flaw(previous: bytes, link: Link) -> str | None:
    """What is wrong with a stored link, in words, or None if it verifies."""
    if chain_digest(previous, link.turn, link.envelope, link.payload_digest) != link.chain_digest:
        return "its envelope, its turn or its place in the chain was changed"
    if link.payload is None:
        return None
    salt = link.salt
    if salt is None or len(salt) != SALT_BYTES or payload_digest(salt, link.payload) != link.payload_digest:
        return "its payload was changed"
    return None
