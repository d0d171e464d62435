"""Paths against a naive model: a path is the list of its positions, and nothing more."""

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint.events import Position
from forkpoint.history.paths import Parting, Path, Span, common_ancestor, join, parting

quick = settings(max_examples=60, deadline=None, database=None)

Model = list[Position]


class Tree(NamedTuple):
    """Segments, each with its base (None: the root) and its number of events."""

    bases: list[Position | None]
    counts: list[int]

    def first(self, segment: int) -> int:
        base = self.bases[segment - 1]
        return base.ordinal + 1 if base else 1

    def model(self, head: Position | None) -> Model:
        """The positions from the root to a head, by following bases one event at a time."""
        path: Model = []
        while head is not None:
            path.append(head)
            before = head.ordinal - 1
            head = (
                Position(head.segment, before) if before >= self.first(head.segment) else self.bases[head.segment - 1]
            )
        return path[::-1]

    def path(self, head: Position | None) -> Path:
        """The same as the engine would build it: a span for each segment on the way."""
        spans = []
        while head is not None:
            spans.append(Span(head.segment, self.first(head.segment), head.ordinal))
            head = self.bases[head.segment - 1]
        return join(reversed(spans))


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Families with several roots too: two segments without a base share nothing."""
    tree = Tree([], [])
    places: Model = []
    for segment in range(1, draw(st.integers(1, 8)) + 1):
        base = draw(st.sampled_from([None, *places]))
        count = draw(st.integers(1, 5))
        tree.bases.append(base)
        tree.counts.append(count)
        first = tree.first(segment)
        places += [Position(segment, ordinal) for ordinal in range(first, first + count)]
    return tree


@st.composite
def paths(draw: st.DrawFn) -> tuple[Path, Model, Path, Model]:
    """Two paths of one family, with their models."""
    tree = draw(trees())
    places = [
        Position(segment, tree.first(segment) + n)
        for segment, count in enumerate(tree.counts, start=1)
        for n in range(count)
    ]
    left, right = draw(st.sampled_from([None, *places])), draw(st.sampled_from([None, *places]))
    return tree.path(left), tree.model(left), tree.path(right), tree.model(right)


def listed(spans: tuple[Span, ...]) -> Model:
    return [Position(span.segment, ordinal) for span in spans for ordinal in range(span.first, span.last + 1)]


@quick
@given(two=paths())
def test_a_path_is_the_sequence_of_its_positions(two: tuple[Path, Model, Path, Model]) -> None:
    path, model, _, _ = two
    assert list(path) == model
    assert len(path) == len(model)
    assert bool(path) == bool(model)
    assert path.head == (model[-1] if model else None)
    assert [position.ordinal for position in path] == list(range(1, len(model) + 1))


@quick
@given(two=paths(), ordinal=st.integers(-3, 50))
def test_at_finds_the_position_with_an_ordinal(two: tuple[Path, Model, Path, Model], ordinal: int) -> None:
    path, model, _, _ = two
    assert path.at(ordinal) == (model[ordinal - 1] if 1 <= ordinal <= len(model) else None)


@quick
@given(two=paths(), segment=st.integers(0, 10), ordinal=st.integers(-1, 45))
def test_a_path_contains_its_own_positions_and_no_others(
    two: tuple[Path, Model, Path, Model], segment: int, ordinal: int
) -> None:
    path, model, _, other = two
    for position in [*model, *other, Position(segment, ordinal)]:
        assert (position in path) == (position in model), f"whether {position} is on {path}"


@pytest.mark.parametrize("stranger", [None, 1, "1-1", (1, 1), Span(1, 1, 1)], ids=repr)
def test_nothing_but_a_position_is_on_a_path(stranger: object) -> None:
    assert stranger not in Path((Span(1, 1, 3),))


@quick
@given(two=paths(), ordinal=st.integers(-3, 50))
def test_upto_and_after_cut_a_path_in_two(two: tuple[Path, Model, Path, Model], ordinal: int) -> None:
    path, model, _, _ = two
    cut = max(ordinal, 0)
    assert list(path.upto(ordinal)) == model[:cut]
    assert listed(path.after(ordinal)) == model[cut:]
    assert join(path.upto(ordinal).spans) == path.upto(ordinal), "what upto gives is a path itself"
    assert all(span.first <= span.last for span in path.after(ordinal)), "after gave an empty span"


@quick
@given(two=paths())
def test_two_paths_part_after_their_last_common_position(two: tuple[Path, Model, Path, Model]) -> None:
    left, left_model, right, right_model = two
    shared = 0
    for ours, theirs in zip(left_model, right_model, strict=False):
        if ours != theirs:
            break
        shared += 1
    found = parting(left, right)
    assert found.common == (left_model[shared - 1] if shared else None)
    assert listed(found.left) == left_model[shared:]
    assert listed(found.right) == right_model[shared:]
    assert common_ancestor(left, right) == found.common
    assert parting(right, left) == Parting(found.common, found.right, found.left), "diff depends on which side is left"


@quick
@given(two=paths())
def test_a_path_differs_from_itself_in_nothing(two: tuple[Path, Model, Path, Model]) -> None:
    path = two[0]
    assert parting(path, path) == Parting(path.head, (), ())


@quick
@given(two=paths(), ordinal=st.integers(0, 50))
def test_a_path_and_its_beginning_share_all_of_the_beginning(
    two: tuple[Path, Model, Path, Model], ordinal: int
) -> None:
    path = two[0]
    beginning = path.upto(ordinal)
    assert parting(path, beginning) == Parting(beginning.head, path.after(ordinal), ())


def test_a_path_grows_within_the_segment_of_its_head() -> None:
    path = join([Span(1, 1, 3), Span(4, 4, 6)])
    assert path.grown(Position(4, 9)) == join([Span(1, 1, 3), Span(4, 4, 9)])
    for elsewhere in (Position(1, 7), Position(4, 5)):
        with pytest.raises(ValueError, match="does not continue"):
            path.grown(elsewhere)


def test_an_empty_path_has_no_positions() -> None:
    empty = Path()
    assert list(empty) == []
    assert len(empty) == 0
    assert empty.head is None
    assert empty.at(0) is None
    assert empty.at(1) is None
    assert empty.upto(5) == empty
    assert empty.after(0) == ()
    assert join([]) == empty
    assert parting(empty, empty) == Parting(None, (), ())


@quick
@given(two=paths())
def test_join_builds_a_path_from_its_spans(two: tuple[Path, Model, Path, Model]) -> None:
    path = two[0]
    assert join(iter(path.spans)) == path


@quick
@given(two=paths(), data=st.data())
def test_join_refuses_spans_with_one_missing_moved_or_changed(
    two: tuple[Path, Model, Path, Model], data: st.DataObject
) -> None:
    spans = list(two[0].spans)
    if not spans:
        return
    place = data.draw(st.integers(0, len(spans) - 1))
    span = spans[place]
    broken = data.draw(
        st.sampled_from(
            [
                [*spans[:place], Span(span.segment, span.first + 1, span.last), *spans[place + 1 :]],
                [*spans[:place], Span(span.segment, span.first - 1, span.last), *spans[place + 1 :]],
                [*spans[:place], Span(span.segment, span.first, span.first - 1), *spans[place + 1 :]],
                [*spans[:place], span, *spans[place:]],
                *([[*spans[:place], *spans[place + 1 :]]] if place < len(spans) - 1 else []),
                *([spans[::-1]] if len(spans) > 1 else []),
            ]
        )
    )
    with pytest.raises(ValueError, match=r"segment \d+ covers"):
        join(broken)


def test_paths_are_frozen_and_hashable() -> None:
    path = Path((Span(1, 1, 2),))
    assert hash(path) == hash(Path((Span(1, 1, 2),)))
    with pytest.raises(AttributeError):
        path.spans = ()  # type: ignore[misc]
