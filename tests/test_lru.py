"""Tests for the bounded cache."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forkpoint.lru import Lru

KEYS = st.sampled_from("abcdef")
WEIGHTS = st.integers(0, 12)


def test_the_entry_that_was_used_longest_ago_goes_first() -> None:
    cache: Lru[str, int] = Lru(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert list(cache.items()) == [("a", 1), ("c", 3)]


def test_the_sum_of_the_weights_is_bounded() -> None:
    cache: Lru[str, int] = Lru(None, 10)
    cache.put("a", 1, 4)
    cache.put("b", 2, 4)
    cache.put("a", 3, 6)
    assert list(cache) == ["b", "a"]
    cache.put("c", 4, 1)
    assert list(cache) == ["a", "c"], "11 is more than 10"


def test_an_entry_that_is_too_heavy_is_not_kept_and_drives_no_other_out() -> None:
    cache: Lru[str, int] = Lru(None, 10)
    cache.put("a", 1, 10)
    cache.put("b", 2, 11)
    assert list(cache) == ["a"]
    cache.put("a", 3, 11)
    assert list(cache) == [], "the old value of the key is out of date"


def test_the_newest_entry_stays_though_it_is_too_heavy_if_the_cache_keeps_the_newest() -> None:
    cache: Lru[str, int] = Lru(5, 10, 100, keeps_newest=True)
    cache.put("a", 1, 1, 1)
    cache.put("b", 2, 1, 101)
    assert list(cache) == ["b"]
    cache.put("c", 3, 1, 1)
    assert list(cache) == ["c"]


def test_a_demoted_entry_goes_next() -> None:
    cache: Lru[str, int] = Lru(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.demote("b")
    cache.demote("z")
    cache.put("c", 3)
    assert list(cache) == ["a", "c"]


def test_without_bounds_nothing_goes() -> None:
    cache: Lru[int, int] = Lru()
    for number in range(1000):
        cache.put(number, number)
    assert list(cache) == list(range(1000))


def test_an_entry_needs_as_many_weights_as_there_are_bounds() -> None:
    cache: Lru[str, int] = Lru(2, 10)
    with pytest.raises(TypeError, match="needs 1 weights, and has 0"):
        cache.put("a", 1)
    assert not cache


class Caches(RuleBasedStateMachine):
    """A cache beside a plain list of (key, value, weights), in the order of their use."""

    @initialize(most=st.none() | st.integers(0, 4), weights=st.lists(WEIGHTS, max_size=2), newest=st.booleans())
    def begin(self, most: int | None, weights: list[int], newest: bool) -> None:
        self.cache: Lru[str, int] = Lru(most, *weights, keeps_newest=newest)
        self.most, self.bounds, self.newest = most, weights, newest
        self.model: list[tuple[str, int, tuple[int, ...]]] = []

    def too_much(self, entries: list[tuple[str, int, tuple[int, ...]]]) -> bool:
        sums = [sum(entry[2][n] for entry in entries) for n in range(len(self.bounds))]
        many = self.most is not None and len(entries) > self.most
        return many or any(total > bound for total, bound in zip(sums, self.bounds, strict=True))

    @rule(key=KEYS, value=st.integers(), weights=st.tuples(WEIGHTS, WEIGHTS))
    def put(self, key: str, value: int, weights: tuple[int, int]) -> None:
        given = weights[: len(self.bounds)]
        self.cache.put(key, value, *given)
        self.model = [entry for entry in self.model if entry[0] != key]
        new = (key, value, given)
        if self.newest or not self.too_much([new]):
            self.model.append(new)
            while self.too_much(self.model) and (len(self.model) > 1 or not self.newest):
                del self.model[0]

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        found = [entry for entry in self.model if entry[0] == key]
        assert self.cache.get(key) == (found[0][1] if found else None)
        self.model = [entry for entry in self.model if entry[0] != key] + found

    @rule(key=KEYS)
    def pop(self, key: str) -> None:
        found = [entry for entry in self.model if entry[0] == key]
        assert self.cache.pop(key) == (found[0][1] if found else None)
        self.model = [entry for entry in self.model if entry[0] != key]

    @rule(key=KEYS)
    def demote(self, key: str) -> None:
        self.cache.demote(key)
        self.model.sort(key=lambda entry: entry[0] != key)

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.model = []

    @invariant()
    def agree(self) -> None:
        assert list(self.cache.items()) == [(key, value) for key, value, _ in self.model]
        assert list(self.cache) == [key for key, _, _ in self.model]
        assert len(self.cache) == len(self.model)
        for key in "abcdef":
            assert (key in self.cache) == any(entry[0] == key for entry in self.model)


Caches.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
test_a_cache_does_what_a_plain_list_does = Caches.TestCase
