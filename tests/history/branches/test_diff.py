"""`history.branches.diff`: the pieces of a difference give both texts back, and no text takes long."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkpoint.history.branches.diff import Piece, TextDiff, Work, aligned, text_diff

WORDS = st.lists(st.sampled_from(["one", "two", "three", " ", "\n", ".", "\u2028", "é"]), max_size=40).map("".join)
TEXTS = st.one_of(st.text(max_size=80), WORDS)


def marked(diff: TextDiff) -> str:
    signs = {"both": "{}", "a": "[-{}-]", "b": "{{+{}+}}"}
    return "".join(signs[piece.side].format(piece.text) for piece in diff.pieces)


# Texts.


@given(TEXTS, TEXTS)
def test_the_pieces_of_a_difference_give_both_texts_back(a: str, b: str) -> None:
    found = text_diff(a, b)
    assert (found.text("a"), found.text("b")) == (a, b)
    assert found.same == (a == b)
    assert found.exact


@given(TEXTS, TEXTS, st.integers(0, 30))
def test_they_do_so_however_little_was_compared(a: str, b: str, steps: int) -> None:
    found = text_diff(a, b, Work(steps))
    assert (found.text("a"), found.text("b")) == (a, b)


@given(TEXTS, TEXTS)
def test_neighbouring_pieces_are_of_different_sides_and_none_is_empty(a: str, b: str) -> None:
    pieces = text_diff(a, b).pieces
    assert all(piece.text for piece in pieces)
    assert all(one.side != next.side for one, next in pairwise(pieces))
    order = "".join(piece.side[-1] for piece in pieces)
    assert "ba" not in order.replace("h", " "), "what only a has comes before what only b has"


@given(st.lists(st.integers(0, 5), max_size=30), st.lists(st.integers(0, 5), max_size=30))
def test_as_many_equal_entries_stand_beside_each_other_as_is_possible(a: list[int], b: list[int]) -> None:
    pairs = aligned(a, b, lambda x, y: False)
    beside = [(x, y) for x, y in pairs if x is not None and y is not None]
    assert all(a[x] == b[y] for x, y in beside)
    lengths = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for x in range(len(a)):
        for y in range(len(b)):
            longer = lengths[x][y] + 1 if a[x] == b[y] else 0
            lengths[x + 1][y + 1] = max(longer, lengths[x][y + 1], lengths[x + 1][y])
    assert len(beside) == lengths[-1][-1]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("The disk is full.", "The disk is empty.", "The disk is [-full-]{+empty+}."),
        ("a b c", "a b c", "a b c"),
        ("", "new", "{+new+}"),
        ("one two", "three four", "[-one two-]{+three four+}"),
        ("first\nsame\nlast\n", "first\nsame\nend\n", "first\nsame\n[-last-]{+end+}\n"),
        ("same\n", "same\nmore\n", "same\n{+more\n+}"),
    ],
)
def test_words_that_differ_are_marked_and_no_others(a: str, b: str, expected: str) -> None:
    assert marked(text_diff(a, b)) == expected


def test_a_text_that_is_too_long_to_compare_is_shown_whole_and_the_difference_says_so() -> None:
    a, b = "x " * 60_000, "y " * 60_000
    found = text_diff(f"begin\n{a}\nend", f"begin\n{b}\nend")
    assert [piece.side for piece in found.pieces] == ["both", "a", "b", "both"]
    assert not found.exact
    assert (found.text("a"), found.text("b")) == (f"begin\n{a}\nend", f"begin\n{b}\nend")


def test_texts_that_differ_everywhere_take_a_bounded_number_of_steps() -> None:
    work = Work()
    a = "\n".join(f"line {n} of a" for n in range(20_000))
    b = "\n".join(f"line {n} of b" for n in range(20_000))
    before = work.left
    found = text_diff(a, b, work)
    assert not found.exact
    assert before - work.left < 450_000, "lines and words may take 200,000 steps each, and those of one round more"
    for _ in range(20):
        text_diff(a, b, work)
    assert work.left > -100_000, "the bound is for all texts of a comparison together"


# Lists.


def test_equal_entries_stand_beside_each_other_and_those_between_them_pair_up() -> None:
    assert aligned("axc", "abyc", lambda x, y: True) == [(0, 0), (1, 1), (None, 2), (2, 3)]
    assert aligned("ab", "b", lambda x, y: True) == [(0, None), (1, 0)]
    assert aligned("", "xy", lambda x, y: True) == [(None, 0), (None, 1)]
    assert aligned("pq", "rs", lambda x, y: False) == [(0, None), (None, 0), (1, None), (None, 1)]


@given(
    st.lists(st.integers(0, 5), max_size=20), st.lists(st.integers(0, 5), max_size=20), st.booleans(), st.integers(0, 9)
)
def test_every_entry_stands_in_one_pair_in_its_order(a: list[int], b: list[int], fits: bool, steps: int) -> None:
    pairs = aligned(a, b, lambda x, y: fits, Work(steps))
    assert [x for x, _ in pairs if x is not None] == list(range(len(a)))
    assert [y for _, y in pairs if y is not None] == list(range(len(b)))


def test_pieces_are_frozen_and_equal_by_what_they_say() -> None:
    assert text_diff("a", "b") == TextDiff((Piece("a", "a"), Piece("b", "b")))
