"""Seals: all records of a tenant up to a point under one digest.

A chain of records ends where somebody cut it, and whoever rewrites all of it leaves no trace in it. A seal covers the
records of all chains of a tenant since the seal before, so that a cut or a rewritten chain contradicts a seal; and who
rewrites the seals too contradicts an anchor that is kept elsewhere (`forkpoint.history.anchors`).

::

    root   = tree hash, as in RFC 9162, section 2.1.1, of the records' digests in the order in which they were written
    digest = SHA-256("forkpoint seal 1" + previous + store + number + first + last + count + root + time + tenant)

``previous`` is the digest of the tenant's seal before, 32 zero bytes for its first one. ``store`` is the 16 bytes of
the store in which the seal was made. ``number`` counts a tenant's seals from 1. ``first`` and ``last`` are the row ids
of the first and the last record under the seal, ``count`` is how many records of the tenant are sealed in all, and
``time`` is in microseconds since 1970. These five are 8 bytes each, the highest first. The tenant's name, in UTF-8,
comes last: all that stands before it has a fixed length.

The store has seals of its own, for whoever operates it::

    root   = tree hash of the digest of each tenant's last seal, in the order of the tenants' names
    digest = SHA-256("forkpoint store seal 1" + previous + store + number + seal + count + root + time)

``seal`` is the row id of the newest seal that it covers, and ``count`` the records of all tenants that are sealed.
Tests: tests/history/test_seals.py.
"""

from collections.abc import Iterable
from hashlib import sha256

from msgspec import Struct

START = bytes(32)
"""Stands for the digest of the seal before the first one."""

HINT = 8
"""How many bytes of a record's digest are kept beside its seal, to find out which record changed."""


class Seal(Struct, frozen=True, kw_only=True):
    """A tenant's seal: what its digest is made of."""

    store: bytes
    tenant: str
    number: int
    first: int
    last: int
    count: int
    root: bytes
    previous: bytes
    time: int

    @property
    def digest(self) -> bytes:
        numbers = _numbers(self.number, self.first, self.last, self.count)
        after = self.root + _numbers(self.time) + self.tenant.encode()
        return sha256(b"forkpoint seal 1" + self.previous + self.store + numbers + after).digest()


class StoreSeal(Struct, frozen=True, kw_only=True):
    """A seal of a whole store: what its digest is made of."""

    store: bytes
    number: int
    seal: int
    count: int
    root: bytes
    previous: bytes
    time: int

    @property
    def digest(self) -> bytes:
        numbers = _numbers(self.number, self.seal, self.count)
        return sha256(
            b"forkpoint store seal 1" + self.previous + self.store + numbers + self.root + _numbers(self.time)
        ).digest()


def tree_hash(entries: Iterable[bytes]) -> bytes:
    """The Merkle tree hash of RFC 9162: it takes memory for the height of the tree, not for its leaves."""
    whole: list[tuple[int, bytes]] = []  # complete subtrees from left to right: how many leaves, and the hash
    for entry in entries:
        leaves, right = 1, sha256(b"\0" + entry).digest()
        while whole and whole[-1][0] == leaves:
            right = sha256(b"\1" + whole.pop()[1] + right).digest()
            leaves *= 2
        whole.append((leaves, right))
    if not whole:
        return sha256().digest()
    root = whole.pop()[1]
    while whole:
        root = sha256(b"\1" + whole.pop()[1] + root).digest()
    return root


def hints(digests: Iterable[bytes]) -> bytes:
    """The beginnings of digests, one after the other."""
    return b"".join(digest[:HINT] for digest in digests)


def _numbers(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "big", signed=True) for number in numbers)
