"""The hot set is bounded by number and by time, and never drops what is in use."""

from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from forkpoint.server.wires.chat.memory import Entry, HotSet, Key

A, B, C, D = [("acme", name) for name in "abcd"]


class Hot:
    """A hot set with a clock that the test moves, and what it said that it dropped."""

    def __init__(self, most: int = 3, ttl: float = 10.0) -> None:
        self.now = 100.0
        self.gone: list[str] = []
        self.set = HotSet(most, ttl, clock=lambda: self.now, dropped=lambda key, entry: self.gone.append(entry.id))

    def put(self, *keys: Key) -> None:
        for key in keys:
            self.set.put(key, Entry(key[1]))

    def has(self, key: Key) -> bool:
        return key in self.set._entries  # without touching it


def test_what_was_put_is_found_under_its_tenant_and_name_alone() -> None:
    hot = Hot()
    entry = Entry("one")
    hot.set.put(("acme", "a"), entry)
    assert hot.set.get(("acme", "a")) is entry
    assert hot.set.get(("other", "a")) is None
    assert hot.set.get(("acme", "b")) is None
    assert len(hot.set) == 1


def test_what_is_moved_is_found_under_its_new_name_alone_and_was_not_dropped() -> None:
    hot = Hot()
    hot.put(A, B)
    entry = hot.set.get(A)
    hot.set.move(A, C)
    hot.set.move(D, A)
    assert (hot.set.get(C), hot.set.get(A), hot.gone) == (entry, None, [])
    hot.set.move(C, B)
    assert (hot.set.get(B), hot.gone) == (entry, ["b"]), "another conversation that had the name goes"


def test_of_too_many_the_one_that_was_unused_longest_goes_first() -> None:
    hot = Hot(most=3)
    hot.put(A, B, C)
    hot.set.get(A)
    hot.put(D)
    assert hot.gone == ["b"]
    assert len(hot.set) == 3


def test_one_that_nobody_used_for_its_time_is_gone_and_reported_once() -> None:
    hot = Hot(ttl=10)
    hot.put(A)
    hot.now += 9.9
    assert hot.set.get(A) is not None, "its time has not run out"
    hot.now += 9.9
    assert hot.set.get(A) is not None, "the last get was a use"
    hot.now += 10
    assert hot.set.get(A) is None
    assert hot.set.get(A) is None
    assert hot.gone == ["a"]
    assert len(hot.set) == 0


def test_one_that_is_in_use_is_never_dropped_and_is_idle_only_from_when_its_use_ends() -> None:
    hot = Hot(most=1, ttl=10)
    hot.put(A)
    with hot.set.busy(A):
        hot.now += 1000
        assert hot.set.sweep() is None
        hot.put(B, C)
        assert hot.gone == ["b"]
        assert hot.set.get(A) is not None
    assert hot.gone == ["b", "c"], "now there is one too many, and the other one was idle longer"
    hot.now += 9
    assert hot.set.get(A) is not None
    hot.now += 10
    assert hot.set.get(A) is None


def test_if_all_are_in_use_there_may_be_more_until_one_of_them_ends() -> None:
    hot = Hot(most=1)
    with ExitStack() as stack:
        for key in (A, B, C):
            hot.put(key)
            stack.enter_context(hot.set.busy(key))
        assert len(hot.set) == 3
        assert hot.gone == []
    assert len(hot.set) == 1
    assert hot.gone == ["c", "b"], "the uses ended in this order"


def test_what_comes_while_its_name_is_in_use_is_in_use_too() -> None:
    hot = Hot(most=1, ttl=10)
    with hot.set.busy(A):
        hot.put(A)
        hot.now += 50
        hot.put(B)
        hot.put(C)
        assert hot.set.get(A) is not None
        assert hot.gone == ["b"]


def test_a_name_that_several_use_is_in_use_until_the_last_of_them_ends() -> None:
    hot = Hot(ttl=10)
    hot.put(A)
    with hot.set.busy(A):
        with hot.set.busy(A):
            pass
        hot.now += 50
        hot.set.sweep()
        assert hot.gone == []
    hot.now += 10
    hot.set.sweep()
    assert hot.gone == ["a"]


def test_a_use_that_fails_ends_too() -> None:
    hot = Hot(ttl=10)
    hot.put(A)
    with pytest.raises(ZeroDivisionError), hot.set.busy(A):
        raise ZeroDivisionError
    hot.now += 10
    assert hot.set.get(A) is None


def test_beginning_to_use_what_ran_out_does_not_revive_it() -> None:
    hot = Hot(ttl=10)
    hot.put(A)
    hot.now += 10
    with hot.set.busy(A):
        assert hot.set.get(A) is None
    assert hot.gone == ["a"]


def test_a_sweep_drops_what_ran_out_and_says_when_to_look_again() -> None:
    hot = Hot(ttl=10)
    assert hot.set.sweep() is None, "there is nothing to wait for"
    hot.put(A)
    hot.now += 4
    hot.put(B)
    assert hot.set.sweep() == 6
    hot.now += 6
    assert hot.set.sweep() == 4
    assert hot.gone == ["a"]
    hot.now += 4
    assert hot.set.sweep() is None
    assert hot.gone == ["a", "b"]


def test_with_no_time_limit_there_is_nothing_to_look_for() -> None:
    hot = Hot(ttl=float("inf"))
    hot.put(A)
    hot.now += 1e9
    assert hot.set.sweep() is None
    assert hot.set.get(A) is not None


def test_another_conversation_under_the_name_drops_the_one_before_and_the_same_one_does_not() -> None:
    hot = Hot()
    hot.set.put(A, Entry("one"))
    hot.set.put(A, Entry("one"))
    assert hot.gone == [], "it is the same conversation, and still in memory"
    hot.set.put(A, Entry("two"))
    assert hot.gone == ["one"]
    with hot.set.busy(A):
        hot.set.put(A, Entry("three"))
    assert hot.gone == ["one", "two"]
    assert len(hot.set) == 1


def test_what_is_forgotten_is_gone_even_in_use() -> None:
    hot = Hot()
    hot.put(A, B)
    hot.set.forget(A)
    hot.set.forget(A)
    with hot.set.busy(B):
        hot.set.forget(B)
        assert hot.set.get(B) is None
    assert hot.gone == ["a", "b"]
    assert len(hot.set) == 0


def test_it_is_gone_already_when_the_drop_is_told() -> None:
    sizes: list[int] = []
    hot = HotSet(1, 10, clock=lambda: 0.0, dropped=lambda key, entry: sizes.append(len(hot)))
    hot.put(A, Entry("a"))
    hot.put(B, Entry("b"))
    hot.forget(B)
    assert sizes == [1, 0]


KEYS = st.sampled_from([A, B, C, D])


class Model(RuleBasedStateMachine):
    """The same, done slowly: a list of what is there, each with its last use."""

    def __init__(self) -> None:
        super().__init__()
        self.hot = Hot(most=2, ttl=10.0)
        self.there: dict[Key, tuple[str, float]] = {}
        self.uses: list[tuple[Key, AbstractContextManager[Any]]] = []
        self.gone: list[str] = []
        self.made = 0

    def busy(self, key: Key) -> bool:
        return any(used == key for used, _ in self.uses)

    def drop(self, key: Key) -> None:
        self.gone.append(self.there.pop(key)[0])

    def idle(self) -> list[Key]:
        return sorted((key for key in self.there if not self.busy(key)), key=lambda key: self.there[key][1])

    def ran_out(self, key: Key) -> bool:
        return key in self.there and not self.busy(key) and self.hot.now - self.there[key][1] >= 10.0

    def use(self, key: Key) -> None:
        self.hot.now += 0.001  # no two uses at once, so that it is plain which was first
        self.there[key] = (self.there[key][0], self.hot.now)

    def trim(self, spared: Key | None = None) -> None:
        while len(self.there) > 2 and [key for key in self.idle() if key != spared]:
            self.drop(next(key for key in self.idle() if key != spared))

    @rule(key=KEYS)
    def put(self, key: Key) -> None:
        self.made += 1
        if key in self.there:
            self.drop(key)
        self.there[key] = (str(self.made), 0.0)
        self.use(key)
        self.hot.set.put(key, Entry(str(self.made)))
        self.trim(spared=key)

    @rule(key=KEYS)
    def get(self, key: Key) -> None:
        if self.ran_out(key):
            self.drop(key)
        elif key in self.there:
            self.use(key)
        found = self.hot.set.get(key)
        assert (found.id if found else None) == self.there.get(key, (None, 0))[0]

    @rule(key=KEYS)
    def begin(self, key: Key) -> None:
        if self.ran_out(key):
            self.drop(key)
        use = self.hot.set.busy(key)
        use.__enter__()
        self.uses.append((key, use))

    @precondition(lambda self: self.uses)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        key, use = self.uses.pop(data.draw(st.integers(0, len(self.uses) - 1)))
        if key in self.there and not self.busy(key):
            self.use(key)
        use.__exit__(None, None, None)
        if not self.busy(key):
            self.trim()

    @rule(key=KEYS)
    def forget(self, key: Key) -> None:
        if key in self.there:
            self.drop(key)
        self.hot.set.forget(key)

    @rule(seconds=st.sampled_from([1.0, 4.0, 10.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.hot.now += seconds

    @rule()
    def sweep(self) -> None:
        for key in self.idle():
            if self.ran_out(key):
                self.drop(key)
        left = self.hot.set.sweep()
        idle = self.idle()
        assert left == (pytest.approx(10.0 - (self.hot.now - self.there[idle[0]][1])) if idle else None)
        assert left is None or left > 0

    @invariant()
    def both_agree(self) -> None:
        assert self.hot.gone == self.gone
        assert len(self.hot.set) == len(self.there)
        assert all(self.hot.has(key) for key in self.there)

    def teardown(self) -> None:
        for _, use in self.uses:
            use.__exit__(None, None, None)


def test_it_does_what_a_plain_list_would_do() -> None:
    quick = settings(max_examples=60, stateful_step_count=30, deadline=None, database=None)
    run_state_machine_as_test(Model, settings=quick)
