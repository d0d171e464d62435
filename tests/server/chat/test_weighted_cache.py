"""What is kept for whoever wants it again: never more than its weight in all."""

from hypothesis import given
from hypothesis import strategies as st

from forkpoint.server.wires.chat.memory import WeightedCache


def test_what_was_used_longest_ago_goes_first() -> None:
    kept: WeightedCache[str, str] = WeightedCache(3)
    for key in ("a", "b", "c"):
        kept.put(key, key.upper(), 1)
    assert kept.get("a") == "A"
    kept.put("d", "D", 1)
    assert (kept.get("b"), kept.get("a"), kept.get("c"), kept.get("d")) == (None, "A", "C", "D")


def test_what_alone_is_too_heavy_is_not_kept_and_pushes_nothing_out() -> None:
    kept: WeightedCache[str, str] = WeightedCache(3)
    kept.put("a", "A", 3)
    kept.put("b", "B", 4)
    assert (kept.get("a"), kept.get("b")) == ("A", None)
    kept.put("a", "heavier", 4)
    assert kept.get("a") is None, "what has its key now is not what it was"


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 5), st.sampled_from(["put", "get", "forget"]))))
def test_it_never_holds_more_than_its_weight_and_has_what_was_used_last(acts: list[tuple[str, int, str]]) -> None:
    kept: WeightedCache[str, int] = WeightedCache(8)
    there: dict[str, int] = {}  # the one that was used longest ago stands first
    for key, weight, act in acts:
        if act == "put":
            there.pop(key, None)
            there[key] = weight
            kept.put(key, weight, weight)
            while sum(there.values()) > 8:
                del there[next(iter(there))]
        elif act == "get":
            assert kept.get(key) == there.get(key)
            if key in there:
                there[key] = there.pop(key)
        else:
            there.pop(key, None)
            kept.forget(key)
        assert len(kept) == len(there)
    assert {key: kept.get(key) for key in "abcdef"} == {key: there.get(key) for key in "abcdef"}
