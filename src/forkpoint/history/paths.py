"""Paths: which stretches of which segments lead from the root to a position.

A segment is a run of events by one writer; its base is a position in another segment. A path therefore is a
sequence of spans, from the root's segment to the head's, each ending where the next one branched off.
Ordinals count along the path, so spans are contiguous: each starts one after its predecessor's end.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from msgspec import Struct

from forkpoint.events import Position


class Span(Struct, frozen=True, gc=False):
    """A stretch of one segment, both ends included."""

    segment: int
    first: int
    last: int


class Path(Struct, frozen=True):
    """The events from the root to a position, as spans. An empty conversation has an empty path."""

    spans: tuple[Span, ...] = ()

    def __len__(self) -> int:
        return self.spans[-1].last if self.spans else 0

    def __iter__(self) -> Iterator[Position]:
        for span in self.spans:
            for ordinal in range(span.first, span.last + 1):
                yield Position(span.segment, ordinal)

    def __contains__(self, position: object) -> bool:
        return isinstance(position, Position) and self.at(position.ordinal) == position

    @property
    def head(self) -> Position | None:
        """The last position, or None for an empty path."""
        return self.at(len(self))

    def at(self, ordinal: int) -> Position | None:
        """The position with this ordinal, or None if the path does not reach it."""
        if not 1 <= ordinal <= len(self):
            return None
        span = self.spans[bisect_left(self.spans, ordinal, key=lambda span: span.last)]
        return Position(span.segment, ordinal)

    def upto(self, ordinal: int) -> "Path":
        """The path that ends at this ordinal."""
        return Path(
            tuple(
                Span(span.segment, span.first, min(span.last, ordinal)) for span in self.spans if span.first <= ordinal
            )
        )

    def grown(self, head: Position) -> "Path":
        """The path that goes on to this position, which is in the segment of its own head."""
        last = self.spans[-1]
        if head.segment != last.segment or head.ordinal < last.last:
            raise ValueError(f"{head} does not continue segment {last.segment} from {last.last} on")
        return Path((*self.spans[:-1], Span(last.segment, last.first, head.ordinal)))

    def after(self, ordinal: int) -> tuple[Span, ...]:
        """The spans of what follows this ordinal."""
        return tuple(
            Span(span.segment, max(span.first, ordinal + 1), span.last) for span in self.spans if span.last > ordinal
        )


class Parting(Struct, frozen=True):
    """What two paths share, and what each has of its own after that."""

    common: Position | None
    left: tuple[Span, ...]
    right: tuple[Span, ...]


def join(spans: Iterable[Span]) -> Path:
    """A path from its spans, root first. Raises ``ValueError`` if they are not contiguous from 1 on."""
    spans = tuple(spans)
    expected = 1
    for span in spans:
        if span.first != expected or span.last < span.first:
            raise ValueError(f"segment {span.segment} covers {span.first} to {span.last}, expected from {expected}")
        expected = span.last + 1
    return Path(spans)


def common_ancestor(left: Path, right: Path) -> Position | None:
    """The last position on both paths, or None if they share nothing."""
    return parting(left, right).common


def parting(left: Path, right: Path) -> Parting:
    """Where two paths part, and what follows on each side."""
    shared = 0
    for ours, theirs in zip(left.spans, right.spans, strict=False):
        if ours.segment != theirs.segment:
            break
        shared = min(ours.last, theirs.last)
        if ours.last != theirs.last:
            break
    return Parting(left.at(shared), left.after(shared), right.after(shared))
