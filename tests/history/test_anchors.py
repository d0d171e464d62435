"""Anchors: small whatever they cover, read as they were written, and chained to each other."""

import pytest
from msgspec.structs import replace

from forkpoint.errors import BadArgument
from forkpoint.history.anchors import Anchor, anchor_of, contradictions, read_anchors
from forkpoint.history.seals import START, Seal, StoreSeal

LARGEST = 2**63 - 1


def seal(number: int, previous: bytes = START) -> Seal:
    return Seal(
        store=b"s" * 16,
        tenant="default",
        number=number,
        first=number,
        last=number,
        count=number,
        root=b"r" * 32,
        previous=previous,
        time=number,
    )


def chain(length: int) -> list[Anchor]:
    made = [seal(1)]
    while len(made) < length:
        made.append(seal(len(made) + 1, made[-1].digest))
    return [anchor_of(one) for one in made]


def test_an_anchor_is_small_even_if_all_its_numbers_and_its_tenant_are_as_long_as_can_be() -> None:
    digest = b"\xff" * 32
    largest = Seal(
        store=b"\xff" * 16,
        tenant="t" * 128,
        number=LARGEST,
        first=LARGEST,
        last=LARGEST,
        count=LARGEST,
        root=digest,
        previous=digest,
        time=LARGEST,
    )
    assert len(anchor_of(largest).to_json()) < 500
    whole = StoreSeal(
        store=b"\xff" * 16, number=LARGEST, seal=LARGEST, count=LARGEST, root=digest, previous=digest, time=LARGEST
    )
    assert len(anchor_of(whole).to_json()) < 500


def test_anchors_are_read_as_they_were_written_one_on_each_line() -> None:
    anchors = chain(3)
    assert read_anchors("\n".join(anchor.to_json() for anchor in anchors) + "\n\n") == tuple(anchors)


@pytest.mark.parametrize("text", ["", "\n", "{}", "rubbish", '{"store":"00"}', "[]", '{"store":"\ud800"}'])
def test_what_is_not_an_anchor_is_refused(text: str) -> None:
    with pytest.raises(BadArgument):
        read_anchors(text)


def test_the_line_that_is_not_an_anchor_is_named() -> None:
    with pytest.raises(BadArgument, match="line 2"):
        read_anchors(chain(1)[0].to_json() + '\n{"store":')


def test_a_chain_contradicts_nothing_also_with_gaps_and_repetitions() -> None:
    one, two, three, four = chain(4)
    assert not list(contradictions([one, two, three, four]))
    assert not list(contradictions([four, one, one, three]))


def test_an_anchor_that_does_not_follow_the_one_before_it_is_found() -> None:
    one, two, three = chain(3)
    forged = replace(two, digest="0" * 64)
    assert [found for found, _ in contradictions([one, forged, three])] == [three]
    assert [found for found, _ in contradictions([one, two, forged, three])] == [forged]
