"""Blocks: a prompt as a sequence of pieces that are never changed, only followed by more.

A block is one tool, the instructions, or one message, item or content block of the history, as the exact bytes that
are sent. Each carries a digest of itself and all before it, so two prompts part where their digests do.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

Place: TypeAlias = Literal["tools", "system", "history"]


class PromptBlock(Struct, frozen=True, gc=False):
    """One piece of a prompt. Blocks with equal digests have equal prompts up to and including them."""

    place: Place
    role: str
    text: bytes
    last: int = 0  # the ordinal of the last event in it; 0 for what stands before the history
    cut: bool = True  # whether a prompt may start its history here: no call is open, no response is cut
    stays: bool = False  # whether a condensation leaves it: what a developer said is no small talk
    markable: bool = True  # whether a cache mark may stand on it
    lead: bytes = b""  # what joins it to the block before, in the request's body
    digest: bytes = b""


class Blocks(Struct, frozen=True):
    """A sequence of blocks that shares its beginning with those it grew from.

    Its chunks double in size towards the front, so that adding costs what is added, with few pointers copied, and any
    number of forks, threads and tasks can grow from one prompt at once.
    """

    chunks: tuple[tuple[PromptBlock, ...], ...] = ()
    size: int = 0  # bytes of all of them

    def plus(self, added: Sequence[PromptBlock]) -> "Blocks":
        """These blocks and more, whose digests go on from here."""
        if not added:
            return self
        chunks = [*self.chunks, tuple(added)]
        while len(chunks) > 1 and len(chunks[-1]) * 2 >= len(chunks[-2]):
            last = chunks.pop()
            chunks[-1] += last
        return Blocks(tuple(chunks), self.size + sum(len(block.text) for block in added))

    @property
    def digest(self) -> bytes:
        """The digest of the whole sequence."""
        return self.chunks[-1][-1].digest if self.chunks else b""

    @property
    def last(self) -> PromptBlock | None:
        return self.chunks[-1][-1] if self.chunks else None

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    def __iter__(self) -> Iterator[PromptBlock]:
        for chunk in self.chunks:
            yield from chunk

    def __getitem__(self, index: int) -> PromptBlock:
        if index < 0:
            index += len(self)
        if index < 0:
            raise IndexError(index)
        for chunk in self.chunks:
            if index < len(chunk):
                return chunk[index]
            index -= len(chunk)
        raise IndexError(index)

    def count_until(self, ordinal: int) -> int:
        """How many blocks end at or before the event with this ordinal."""
        before = len(self)
        for chunk in reversed(self.chunks):
            before -= len(chunk)
            if chunk[0].last <= ordinal:
                return before + bisect_right(chunk, ordinal, key=lambda block: block.last)
        return 0


def common_prefix(one: Blocks, other: Blocks) -> int:
    """How many blocks two prompts share from their start."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # digests are chained, so equal ones mean that everything before is equal too
        middle = (low + high + 1) // 2
        if one[middle - 1].digest == other[middle - 1].digest:
            low = middle
        else:
            high = middle - 1
    return low


def chained(before: bytes, place: Place, role: str, text: bytes) -> bytes:
    """The digest of a block after everything that has the digest before."""
    head = f"{place} {role} {len(text)}\0".encode()
    return hashlib.sha256(before + head + text).digest()[:16]  # twice as fast as blake2b where the CPU knows it
