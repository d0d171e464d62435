"""Blocks: a plain list in all that can be seen of them, and shared underneath."""

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.llm.paths import common

from forkpoint.llm.prompt.blocks import Blocks, PromptBlock, chained, common_prefix

quick = with_settings(common, max_examples=60)

texts = st.sampled_from([b"a", b"b", b"ab", b""])
places = st.sampled_from(["tools", "system", "history"])
blocks = st.builds(PromptBlock, places, st.sampled_from(["user", "assistant"]), texts)
portions = st.lists(st.lists(blocks, max_size=9), max_size=12)


def plus(blocks: Blocks, more: Iterable[PromptBlock]) -> Blocks:
    """These blocks and more, each with the digest that goes on from the one before."""
    added: list[PromptBlock] = []
    digest = blocks.digest
    for block in more:
        digest = chained(digest, block.place, block.role, block.text)
        added.append(replace(block, digest=digest))
    return blocks.plus(added)


def grown(portions: list[list[PromptBlock]]) -> Blocks:
    """Blocks that were added in these portions, each with its ordinal, two blocks to an event."""
    result = Blocks()
    for portion in portions:
        result = plus(result, numbered(portion, len(result)))
    return result


def numbered(portion: list[PromptBlock], start: int) -> list[PromptBlock]:
    return [
        PromptBlock(block.place, block.role, block.text, last=n // 2) for n, block in enumerate(portion, start=start)
    ]


def seen(one: Blocks) -> list[tuple[str, str, bytes]]:
    return [(block.place, block.role, block.text) for block in one]


@quick
@given(portions=portions)
def test_they_are_the_list_of_what_was_added(portions: list[list[PromptBlock]]) -> None:
    model = [block for portion in portions for block in portion]
    result = grown(portions)
    assert seen(result) == [(block.place, block.role, block.text) for block in model]
    assert len(result) == len(model)
    assert [result[n] for n in range(len(model))] == list(result)
    assert result.last == (list(result)[-1] if model else None)
    assert result.digest == (list(result)[-1].digest if model else b"")
    with pytest.raises(IndexError):
        result[len(model)]


@quick
@given(portions=portions)
def test_an_index_from_the_end_is_refused_or_right(portions: list[list[PromptBlock]]) -> None:
    result = grown([*portions, [PromptBlock("history", "user", b"last")]])
    try:
        found = result[-1]
    except IndexError:
        return
    assert found == result.last, "blocks[-1] is silently some block in the middle"


@quick
@given(portions=portions)
def test_portions_do_not_matter(portions: list[list[PromptBlock]]) -> None:
    once = grown([[block for portion in portions for block in portion]])
    assert list(grown(portions)) == list(once)
    assert grown(portions).digest == once.digest


@quick
@given(portions=portions, more=st.lists(blocks, min_size=1, max_size=5), other=st.lists(blocks, min_size=1, max_size=5))
def test_adding_leaves_what_it_grew_from_as_it_was(
    portions: list[list[PromptBlock]], more: list[PromptBlock], other: list[PromptBlock]
) -> None:
    base = grown(portions)
    before = list(base)
    one, two = plus(base, more), plus(base, other)
    assert list(base) == before
    assert list(one)[: len(before)] == list(two)[: len(before)] == before
    assert seen(one)[len(before) :] == [(block.place, block.role, block.text) for block in more]
    assert seen(two)[len(before) :] == [(block.place, block.role, block.text) for block in other]


@quick
@given(shared=portions, left=portions, right=portions)
def test_the_common_prefix_is_that_of_the_lists(
    shared: list[list[PromptBlock]], left: list[list[PromptBlock]], right: list[list[PromptBlock]]
) -> None:
    one, other = grown(shared + left), grown(shared + right)
    model = 0
    for a, b in zip(seen(one), seen(other), strict=False):
        if a != b:
            break
        model += 1
    assert common_prefix(one, other) == common_prefix(other, one) == model
    assert common_prefix(one, one) == len(one)


@quick
@given(portions=portions, ordinal=st.integers(-1, 70))
def test_how_many_end_until_an_event_is_counted_as_in_a_list(portions: list[list[PromptBlock]], ordinal: int) -> None:
    result = grown(portions)
    assert result.count_until(ordinal) == sum(block.last <= ordinal for block in result)


@quick
@given(portions=st.lists(st.integers(1, 60), max_size=60))
def test_chunks_stay_few(portions: list[int]) -> None:
    result = Blocks()
    for size in portions:
        result = plus(result, [PromptBlock("history", "user", b"x")] * size)
    few = math.log2(len(result) + 1) + 1
    assert len(result.chunks) <= few, f"{len(result)} blocks lie in {len(result.chunks)} chunks"
    assert all(len(a) > len(b) for a, b in zip(result.chunks, result.chunks[1:], strict=False))


def test_ten_thousand_blocks_added_one_by_one_lie_in_few_chunks() -> None:
    result, touched = Blocks(), 0
    for _ in range(10_000):
        before = result.chunks
        result = plus(result, [PromptBlock("history", "user", b"x")])
        kept = sum(one is other for one, other in zip(before, result.chunks, strict=False))
        touched += sum(map(len, result.chunks[kept:]))
    assert len(result.chunks) <= 14
    assert touched < 10_000 * 30, f"adding 10,000 blocks one by one copied {touched} pointers"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (PromptBlock("history", "user", b"a"), PromptBlock("history", "assistant", b"a")),
        (PromptBlock("system", "user", b"a"), PromptBlock("history", "user", b"a")),
        (PromptBlock("history", "user", b"a"), PromptBlock("history", "user", b"b")),
        (PromptBlock("history", "user", b""), PromptBlock("history", "user", b"\0")),
    ],
    ids=["role", "place", "text", "emptiness"],
)
def test_a_digest_is_of_place_role_and_text(one: PromptBlock, other: PromptBlock) -> None:
    assert plus(Blocks(), [one]).digest != plus(Blocks(), [other]).digest


def test_a_digest_is_not_of_where_the_text_is_cut() -> None:
    """One block of ``ab`` and two of ``a`` and ``b`` are two prompts."""
    whole = plus(Blocks(), [PromptBlock("history", "user", b"ab")])
    parts = plus(Blocks(), [PromptBlock("history", "user", b"a"), PromptBlock("history", "user", b"b")])
    assert whole.digest != parts.digest
    assert common_prefix(whole, parts) == 0


def test_a_digest_does_not_depend_on_how_a_block_came_to_be_there() -> None:
    plain = plus(Blocks(), [PromptBlock("history", "user", b"a")])
    other = plus(
        Blocks(), [PromptBlock("history", "user", b"a", last=7, cut=False, markable=False, lead=b",", digest=b"x")]
    )
    assert plain.digest == other.digest


def test_adding_nothing_gives_the_same_blocks() -> None:
    base = plus(Blocks(), [PromptBlock("history", "user", b"a")])
    assert plus(base, []) is base
    assert plus(Blocks(), []).last is None
