"""Anchors: small documents that name a seal. Kept outside the store, one shows whether anybody rewrote what it covers.

An anchor is one line of JSON of less than 500 bytes, however much it covers::

    {"store":"9f...","tenant":"default","number":3,"digest":"5a...","count":1200,"time":1784000000000000,
     "previous":"c1..."}

``digest`` is the digest of the tenant's seal with this number, ``count`` how many records that seal and those before it
cover, ``time`` when it was made, and ``previous`` the digest that the anchor of the seal before has: anchors are
chained as seals are, since a seal's digest covers the one before it. An anchor without a tenant (null) is of the whole
store, for whoever operates it. Number 0 says that nothing was recorded yet. Tests: tests/history/test_anchors.py.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from forkpoint.errors import BadArgument
from forkpoint.history.seals import START, Seal, StoreSeal

_Digest: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
_Number: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Anchor(Struct, frozen=True):
    """What is kept outside: which seal a store had, and when. Digests and the store's id are in hexadecimal."""

    store: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    tenant: Annotated[str, Meta(pattern="^[A-Za-z0-9._:-]{1,128}$")] | None  # None: of the whole store
    number: _Number
    digest: _Digest
    count: _Number
    time: _Number  # microseconds since 1970, UTC
    previous: _Digest

    @property
    def name(self) -> str:
        """The anchor in words, for whoever reads of a flaw."""
        return f"anchor {self.number} of {'the whole store' if self.tenant is None else f'tenant {self.tenant}'}"

    def to_json(self) -> str:
        """The document, without a line break."""
        return msgspec.json.encode(self).decode()


_anchor = msgspec.json.Decoder(Anchor)


def anchor_of(seal: Seal | StoreSeal) -> Anchor:
    """The anchor that names a seal."""
    return Anchor(
        store=seal.store.hex(),
        tenant=seal.tenant if isinstance(seal, Seal) else None,
        number=seal.number,
        digest=seal.digest.hex(),
        count=seal.count,
        time=seal.time,
        previous=seal.previous.hex(),
    )


def anchor_of_nothing(store: bytes, tenant: str | None) -> Anchor:
    """The anchor of a tenant, or of a store, that has no record yet."""
    return Anchor(store.hex(), tenant, 0, START.hex(), 0, 0, START.hex())


def read_anchors(lines: str) -> tuple[Anchor, ...]:
    """The anchors in a text, one on each line. Raises `BadArgument` if a line is not an anchor, or no line is."""
    found = []
    for number, line in enumerate(lines.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found.append(_anchor.decode(line))
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise BadArgument("read_anchors()", f"line {number}", f"it is not an anchor ({error})") from None
    if not found:
        raise BadArgument("read_anchors()", "this text", "there is no anchor in it")
    return tuple(found)


def contradictions(anchors: Iterable[Anchor]) -> Iterator[tuple[Anchor, str]]:
    """Anchors that do not fit to others of the same store and tenant that were kept with them, and why."""
    seen: dict[tuple[str, str | None, int], Anchor] = {}
    for anchor in anchors:
        if (same := seen.setdefault((anchor.store, anchor.tenant, anchor.number), anchor)) != anchor:
            yield anchor, f"another anchor has the same number and the digest {same.digest}"
    for (store, tenant, number), anchor in seen.items():
        before = seen.get((store, tenant, number - 1))
        if before is not None and anchor.previous != before.digest:
            yield anchor, f"it does not follow anchor {before.number}, whose digest is {before.digest}"
