"""Differences: which words of two texts differ, and which entries of two lists stand beside each other.

**Nothing is lost: the pieces of a difference put together give both texts back, to the character.** And nothing takes
long: a `Work` is a bound that all texts of a comparison share. Lines are compared first, then the words of the lines
that differ. Where the bound is reached, both texts are shown whole, and the difference says so (`TextDiff.exact`).
Tests: tests/history/branches/test_diff.py.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

Side: TypeAlias = Literal["both", "a", "b"]
"""Which of two texts has something."""

WORK = 1_000_000
"""How many steps all texts of a comparison may take together: half a second, if they differ in everything."""

_STEPS = 200_000  # that one text may take
_WORDS = 200_000  # characters beyond which words are not told apart
_WORD = re.compile(r"\w+|\s+|[^\w\s]")

_Match: TypeAlias = tuple[int, int]


class Piece(Struct, frozen=True):
    """A part of a text that both have, or only one of them."""

    side: Side
    text: str


class TextDiff(Struct, frozen=True):
    """Two texts as pieces, in order. Those of ``both`` and ``a`` are the first text, those of ``both`` and ``b`` the
    second.

    ``exact`` is False if the texts were too long to be compared in full: then what is shown as different may have words
    that both have.
    """

    pieces: tuple[Piece, ...] = ()
    exact: bool = True

    @property
    def same(self) -> bool:
        """Whether both texts are the same."""
        return all(piece.side == "both" for piece in self.pieces)

    def text(self, side: Literal["a", "b"]) -> str:
        """One of the two texts."""
        return "".join(piece.text for piece in self.pieces if piece.side in ("both", side))


class Work:
    """How many steps of comparing may still be taken."""

    def __init__(self, left: int = WORK) -> None:
        self.left = left


def text_diff(a: str, b: str, work: Work | None = None) -> TextDiff:
    """How two texts differ: in which lines, and in which words of these."""
    if a == b:
        return TextDiff((Piece("both", a),) if a else ())
    work = work or Work()
    lines = a.splitlines(keepends=True), b.splitlines(keepends=True)
    same, exact = _matches(*lines, work)
    pieces: list[Piece] = []
    for piece in _pieces(*lines, same):
        if isinstance(piece, Piece):
            pieces.append(piece)
            continue
        found, is_exact = _words(*piece, work)
        pieces += found
        exact = exact and is_exact
    return TextDiff(tuple(_joined(pieces)), exact)


def aligned(
    a: Sequence[Hashable], b: Sequence[Hashable], fits: Callable[[int, int], bool], work: Work | None = None
) -> list[tuple[int | None, int | None]]:
    """Which entries of two lists stand beside each other, by their places: in order, each once.

    Equal entries stand beside each other. Of those between them, the next of each list do, if they fit. An entry that
    has no other one beside it has None there.
    """
    same, _ = _matches(a, b, work or Work())
    pairs: list[tuple[int | None, int | None]] = []
    x = y = 0
    for i, j in (*same, (len(a), len(b))):
        while x < i or y < j:
            if x < i and y < j and fits(x, y):
                pairs.append((x, y))
                x, y = x + 1, y + 1
            elif x < i and i - x >= j - y:
                pairs.append((x, None))
                x += 1
            else:
                pairs.append((None, y))
                y += 1
        if i < len(a):
            pairs.append((i, j))
        x, y = i + 1, j + 1
    return pairs


def _words(a: str, b: str, work: Work) -> tuple[list[Piece], bool]:
    """The words of two texts that have no line in common, and whether all of them were compared."""
    if not (a and b):
        return _whole(a, b), True
    if len(a) + len(b) > _WORDS:
        return _whole(a, b), False
    words: tuple[list[str], list[str]] = _WORD.findall(a), _WORD.findall(b)
    same, exact = _matches(*words, work)
    found: list[Piece] = []
    for piece in _pieces(*words, same):
        found += [piece] if isinstance(piece, Piece) else _whole(*piece)
    return list(_without_lone_blanks(found)), exact


def _pieces(a: Sequence[str], b: Sequence[str], same: Sequence[_Match]) -> Iterator[Piece | tuple[str, str]]:
    """What two texts have in common, and between that what each of them has there."""
    x = y = 0
    run: list[str] = []
    for i, j in (*same, (len(a), len(b))):
        if x < i or y < j:
            if run:
                yield Piece("both", "".join(run))
                run = []
            yield "".join(a[x:i]), "".join(b[y:j])
        run += a[i : i + 1]
        x, y = i + 1, j + 1
    if run:
        yield Piece("both", "".join(run))


def _whole(a: str, b: str) -> list[Piece]:
    both: tuple[Piece, Piece] = (Piece("a", a), Piece("b", b))
    return [piece for piece in both if piece.text]


def _without_lone_blanks(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """The same pieces, but blanks between two differences are part of both: words that differ are read together."""
    for n, piece in enumerate(pieces):
        between = 0 < n < len(pieces) - 1 and pieces[n - 1].side != "both" and pieces[n + 1].side != "both"
        if piece.side == "both" and between and piece.text.isspace():
            yield from (Piece("a", piece.text), Piece("b", piece.text))
        else:
            yield piece


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same pieces, neighbours as one: what only ``a`` has stands before what only ``b`` has."""
    texts: dict[Side, list[str]] = {"a": [], "b": [], "both": []}
    for piece in pieces:
        if texts["both"] if piece.side != "both" else (texts["a"] or texts["b"]):
            yield from _taken(texts)
        texts[piece.side].append(piece.text)
    yield from _taken(texts)


def _taken(texts: dict[Side, list[str]]) -> Iterator[Piece]:
    for side, parts in texts.items():
        if text := "".join(parts):
            yield Piece(side, text)
        parts.clear()


def _matches(a: Sequence[Hashable], b: Sequence[Hashable], work: Work) -> tuple[list[_Match], bool]:
    """Places of equal entries in two lists, as many as possible in order; and whether it was looked for all of them.

    What both begin and end with is found in any case, since that takes no longer than reading them.
    """
    shortest = min(len(a), len(b))
    start = next((n for n in range(shortest) if a[n] != b[n]), shortest)
    end = next((n for n in range(shortest - start) if a[-1 - n] != b[-1 - n]), shortest - start)
    middle = _snakes(a[start : len(a) - end], b[start : len(b) - end], work)
    found = [(n, n) for n in range(start)]
    found += [(start + i, start + j) for i, j in middle or ()]
    found += [(len(a) - n, len(b) - n) for n in range(end, 0, -1)]
    return found, middle is not None


def _snakes(a: Sequence[Hashable], b: Sequence[Hashable], work: Work) -> list[_Match] | None:
    """The same for lists that begin and end differently, by Myers' greedy algorithm; None if that takes too long.

    ``reach[k]`` is how far a path with ``d`` differences comes in ``a`` where it is ``k`` ahead of ``b``.
    """
    if not (a and b):
        return []
    trace: list[dict[int, int]] = []
    steps = budget = min(work.left, _STEPS)
    reach = {1: 0}
    for d in range(len(a) + len(b) + 1):
        trace.append(dict(reach))
        for k in range(-d, d + 1, 2):
            x = reach[k + 1] if k == -d or (k != d and reach[k - 1] < reach[k + 1]) else reach[k - 1] + 1
            begun = x
            while x < len(a) and x - k < len(b) and a[x] == b[x - k]:
                x += 1
            reach[k] = x
            steps -= 2 + x - begun
            if x >= len(a) and x - k >= len(b):
                work.left -= budget - steps
                return _walked_back(trace, len(a), len(b))
        if steps < 0:
            break
    work.left -= budget - steps
    return None


def _walked_back(trace: Sequence[dict[int, int]], x: int, y: int) -> list[_Match]:
    """The matches on the path that has come to the end of both lists."""
    found: list[_Match] = []
    for d in range(len(trace) - 1, -1, -1):
        reach, k = trace[d], x - y
        before = k + 1 if k == -d or (k != d and reach[k - 1] < reach[k + 1]) else k - 1
        begun = reach[before]
        while x > begun and y > begun - before:
            x, y = x - 1, y - 1
            found.append((x, y))
        x, y = begun, begun - before
    return found[::-1]
