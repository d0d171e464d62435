"""Tests for pauses that grow."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from forkpoint.polling import pauses


def test_each_pause_is_twice_as_long_until_the_longest() -> None:
    assert list(islice(pauses(0.05, 0.5), 6)) == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5]


@given(first=st.floats(0.001, 1), more=st.floats(0, 60))
def test_pauses_grow_from_the_first_to_the_longest_and_stay_there(first: float, more: float) -> None:
    found = list(islice(pauses(first, first + more), 40))
    assert found[0] == first
    assert found == sorted(found)
    assert found[-1] == first + more
