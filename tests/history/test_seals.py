"""Seals: their tree is that of RFC 9162, and each part of them counts."""

from hashlib import sha256

import pytest
from msgspec.structs import asdict, replace

from forkpoint.history.seals import START, Seal, StoreSeal, hints, tree_hash


def defined(entries: list[bytes]) -> bytes:
    """The tree hash, word by word as RFC 9162, section 2.1.1, defines it."""
    n = len(entries)
    if n == 0:
        return sha256(b"").digest()
    if n == 1:
        return sha256(b"\x00" + entries[0]).digest()
    k = 1
    while k * 2 < n:
        k *= 2
    return sha256(b"\x01" + defined(entries[:k]) + defined(entries[k:])).digest()


@pytest.mark.parametrize("size", [*range(35), 63, 64, 65, 1000])
def test_the_tree_is_that_of_the_rfc(size: int) -> None:
    entries = [sha256(str(n).encode()).digest() for n in range(size)]
    assert tree_hash(entries) == defined(entries)


def test_the_tree_is_that_of_certificate_transparency() -> None:
    """The roots that Google's implementation is tested with, for the same eight leaves, and for the first of them."""
    leaves = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
    entries = [bytes.fromhex(leaf) for leaf in leaves]
    assert tree_hash(entries[:1]).hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    assert tree_hash(entries).hex() == "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"


SEAL = Seal(
    store=bytes(16), tenant="default", number=2, first=5, last=9, count=9, root=b"r" * 32, previous=START, time=1_000
)
STORE_SEAL = StoreSeal(store=bytes(16), number=2, seal=7, count=9, root=b"r" * 32, previous=START, time=1_000)


def test_the_digest_of_a_seal_is_what_the_formula_says() -> None:
    eight = [n.to_bytes(8, "big") for n in (2, 5, 9, 9)]
    text = b"forkpoint seal 1" + bytes(32) + bytes(16) + b"".join(eight) + b"r" * 32 + (1000).to_bytes(8, "big")
    assert SEAL.digest == sha256(text + b"default").digest()
    numbers = b"".join(n.to_bytes(8, "big") for n in (2, 7, 9))
    text = b"forkpoint store seal 1" + bytes(32) + bytes(16) + numbers + b"r" * 32 + (1000).to_bytes(8, "big")
    assert STORE_SEAL.digest == sha256(text).digest()


@pytest.mark.parametrize("seal", [SEAL, STORE_SEAL], ids=["tenant", "store"])
def test_every_part_of_a_seal_changes_its_digest(seal: Seal | StoreSeal) -> None:
    for name, value in asdict(seal).items():
        other = value + 1 if isinstance(value, int) else value[:-1] + ("x" if isinstance(value, str) else b"x")
        assert replace(seal, **{name: other}).digest != seal.digest, name


def test_hints_are_the_beginnings_of_digests() -> None:
    assert hints([b"a" * 32, b"b" * 32]) == b"a" * 8 + b"b" * 8
