"""The simulated prompt cache, and the blocks that it compares."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkpoint.events import Usage
from forkpoint.testing.prompts import prompt_of
from forkpoint.testing.simulated_cache import SimulatedCache

MARK = {"cache_control": {"type": "ephemeral"}}


class Seconds:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def block(name: str, tokens: int = 1000) -> bytes:
    return name.encode().ljust(tokens * 4, b".")


# OpenAI's kind.


def test_the_same_prompt_is_written_once_and_cached_afterwards() -> None:
    cache = SimulatedCache()
    prompt = [block("a"), block("b")]
    assert cache.count(prompt) == Usage(calls=1, input=2000, cached=0, written=1920)
    assert cache.count(prompt) == Usage(calls=1, input=2000, cached=1920, written=0)


def test_a_longer_prompt_is_cached_as_far_as_it_is_known() -> None:
    cache = SimulatedCache()
    cache.count([block("a"), block("b")])
    longer = cache.count([block("a"), block("b"), block("c")])
    assert (longer.cached, longer.written) == (1920, 1024)


def test_what_follows_a_difference_is_not_cached() -> None:
    cache = SimulatedCache()
    cache.count([block("a", 2048), block("b"), block("c")])
    assert cache.count([block("a", 2048), block("B"), block("c")]).cached == 2048


def test_the_same_prompt_with_another_key_misses() -> None:
    cache = SimulatedCache()
    prompt = [block("a", 2048)]
    for key in (None, "k1", "k2", "k3"):
        assert cache.count(prompt, key=key).cached == 0, key
    for key in (None, "k1", "k2", "k3"):
        assert cache.count(prompt, key=key).cached == 2048, key


def test_keys_share_a_shard_when_there_are_more_of_them_than_shards() -> None:
    cache = SimulatedCache(shards=2)
    prompt = [block("a", 2048)]
    assert [cache.count(prompt, key=key).cached for key in "abc"] == [0, 0, 2048]


def test_a_prompt_that_starts_in_another_way_goes_to_another_shard_and_misses() -> None:
    cache = SimulatedCache()
    cache.count([block("a"), block("same", 4000)], key="k")
    assert cache.count([block("b"), block("same", 4000)], key="k").cached == 0


def test_a_prompt_under_the_minimum_is_never_cached() -> None:
    cache = SimulatedCache(minimum=1024)
    for _ in range(2):
        assert cache.count([block("a", 1023)]) == Usage(calls=1, input=1023)
    cache.count([block("a", 1024)])
    assert cache.count([block("a", 1024)]).cached == 1024


def test_a_short_common_prefix_is_not_cached() -> None:
    cache = SimulatedCache(minimum=1024)
    cache.count([block("a", 512), block("b")])
    assert cache.count([block("a", 512), block("c")]).cached == 0


def test_a_growing_prompt_stays_on_its_shard_however_small_the_minimum_is() -> None:
    cache = SimulatedCache(minimum=2, granularity=1)
    prompt: list[bytes] = []
    known = 0
    for turn in range(20):
        prompt.append(block(f"turn {turn}", 5))
        usage = cache.count(prompt, key="k")
        assert usage.cached == known
        known = usage.input


def test_a_prefix_is_forgotten_when_it_was_not_used_for_its_time() -> None:
    clock = Seconds()
    cache = SimulatedCache(ttl=300, clock=clock)
    prompt = [block("a", 2048)]
    cache.count(prompt)
    for _ in range(3):
        clock.now += 299
        assert cache.count(prompt).cached == 2048, "each use keeps it"
    clock.now += 300
    assert cache.count(prompt).cached == 0


def test_a_cache_can_be_emptied() -> None:
    cache = SimulatedCache()
    cache.count([block("a", 2048)])
    cache.count([block("a", 2048)], wire="messages", marks=[0])
    cache.forget()
    assert cache.count([block("a", 2048)]).cached == 0
    assert cache.count([block("a", 2048)], wire="messages", marks=[0]).cached == 0


@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), max_size=6))
def test_as_much_is_cached_as_two_prompts_have_in_common(first: list[str], second: list[str]) -> None:
    cache = SimulatedCache(minimum=0, granularity=1)
    cache.count([block(name, 10) for name in first])
    usage = cache.count([block(name, 10) for name in second])
    common = next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    assert usage.cached == common * 10
    assert usage.cached + usage.written == usage.input == len(second) * 10


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.sampled_from([None, "k"])), max_size=20))
def test_no_more_is_cached_and_written_than_was_sent(calls: list[tuple[int, int, str | None]]) -> None:
    cache = SimulatedCache(minimum=20, granularity=7, lookback=2)
    for start, length, key in calls:
        prompt = [block(str(place), 13) for place in range(start, start + length)]
        for wire, marks in (("chat", []), ("messages", list(range(length))[::2])):
            usage = cache.count(prompt, key=key, wire=wire, marks=marks)
            assert 0 <= usage.cached <= usage.cached + usage.written <= usage.input == 13 * length


def test_a_cache_may_be_shared_between_threads() -> None:
    cache = SimulatedCache()
    with ThreadPoolExecutor(8) as pool:
        usages = list(pool.map(lambda _: cache.count([block("a", 2048)]), range(200)))
    assert sum(usage.written for usage in usages) == 2048, "it is written once"


# Anthropic's kind.


def test_without_a_mark_nothing_is_written() -> None:
    cache = SimulatedCache()
    for _ in range(2):
        assert cache.count([block("a", 2048)], wire="messages") == Usage(calls=1, input=2048)


def test_a_prefix_is_written_up_to_its_mark() -> None:
    cache = SimulatedCache()
    prompt = [block("a"), block("b"), block("c")]
    assert cache.count(prompt, wire="messages", marks=[1]) == Usage(calls=1, input=3000, written=2000)
    assert cache.count(prompt, wire="messages", marks=[1]) == Usage(calls=1, input=3000, cached=2000)
    assert cache.count(prompt, wire="messages").cached == 0, "without a mark nothing is read either"


def test_a_key_does_not_matter_to_anthropic() -> None:
    cache = SimulatedCache()
    cache.count([block("a", 2048)], wire="messages", marks=[0], key="one")
    assert cache.count([block("a", 2048)], wire="messages", marks=[0], key="two").cached == 2048


def test_a_mark_finds_an_earlier_write_and_only_the_rest_is_written() -> None:
    cache = SimulatedCache()
    cache.count([block("a"), block("b")], wire="messages", marks=[1])
    later = cache.count([block("a"), block("b"), block("c"), block("d")], wire="messages", marks=[3])
    assert (later.cached, later.written) == (2000, 2000)


def test_a_prefix_that_nobody_marked_is_not_found() -> None:
    cache = SimulatedCache()
    cache.count([block("a", 2000), block("b"), block("c")], wire="messages", marks=[2])
    assert cache.count([block("a", 2000), block("b"), block("C")], wire="messages", marks=[2]).cached == 0


@pytest.mark.parametrize(("added", "cached"), [(19, 2000), (20, 0)])
def test_a_mark_looks_at_twenty_blocks_itself_among_them(added: int, cached: int) -> None:
    cache = SimulatedCache()
    cache.count([block("a", 2000)], wire="messages", marks=[0])
    prompt = [block("a", 2000), *(block(str(place), 1) for place in range(added))]
    assert cache.count(prompt, wire="messages", marks=[added]).cached == cached


def test_a_second_mark_reaches_further_back() -> None:
    cache = SimulatedCache()
    cache.count([block("a", 2000)], wire="messages", marks=[0])
    prompt = [block("a", 2000), *(block(str(place), 1) for place in range(30))]
    usage = cache.count(prompt, wire="messages", marks=[15, 30])
    assert (usage.cached, usage.written) == (2000, 30)


def test_a_marked_prefix_under_the_minimum_is_not_written() -> None:
    cache = SimulatedCache(minimum=1024)
    prompt = [block("a", 1000), block("b")]
    assert cache.count(prompt, wire="messages", marks=[0]).written == 0
    assert cache.count(prompt, wire="messages", marks=[0, 1]) == Usage(calls=1, input=2000, written=2000)


def test_a_mark_can_ask_for_an_hour() -> None:
    clock = Seconds()
    cache = SimulatedCache(ttl=300, clock=clock)
    bodies = [
        {"system": [{"type": "text", "text": name * 8000, "cache_control": {"type": "ephemeral", "ttl": ttl}}]}
        for name, ttl in (("a", "5m"), ("b", "1h"))
    ]
    for body in bodies:
        cache.of_body(body, wire="messages", key=None)
    clock.now += 3599
    assert [cache.of_body(body, wire="messages", key=None).cached > 0 for body in bodies] == [False, True]


# From a body to blocks.


def messages(**fields: Any) -> dict[str, Any]:
    """A body whose tools, instructions and messages are each long enough to be cached, and are marked."""
    tool = {"name": "look", "description": "d" * 6000, **MARK}
    system = {"type": "text", "text": "s" * 6000, **MARK}
    content = [{"type": "text", "text": "m" * 6000, **MARK}]
    return {
        "model": "m",
        "tools": [tool],
        "system": [system],
        "messages": [{"role": "user", "content": content}],
        **fields,
    }


def cached_after(first: dict[str, Any], second: dict[str, Any]) -> int:
    """How many blocks of the second body are cached after the first."""
    cache = SimulatedCache()
    cache.of_body(first, wire="messages", key=None)
    cached = cache.of_body(second, wire="messages", key=None).cached
    sizes = [-(-len(block) // 4) for block in prompt_of(second, "messages").blocks]
    return [sum(sizes[:count]) for count in range(len(sizes) + 1)].index(cached)


@pytest.mark.parametrize(
    ("change", "blocks"),
    [
        ({}, 3),
        ({"max_tokens": 5, "temperature": 0.5, "stream": True}, 3),
        ({"model": "another"}, 0),
        ({"tools": [{"name": "look", "description": "D" * 6000, **MARK}]}, 0),
        ({"system": [{"type": "text", "text": "S" * 6000, **MARK}]}, 1),
        ({"tool_choice": {"type": "none"}}, 2),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 2),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_a_change_voids_what_comes_after_it(change: dict[str, Any], blocks: int) -> None:
    assert cached_after(messages(), messages(**change)) == blocks


def test_another_order_of_keys_is_another_prompt() -> None:
    reordered = {"description": "d" * 6000, "name": "look", **MARK}
    assert cached_after(messages(), messages(tools=[reordered])) == 0


def test_another_key_on_openais_wires_is_told_from_the_body() -> None:
    cache = SimulatedCache()
    body = {"model": "m", "instructions": "i" * 9000, "input": "hello"}
    cache.of_body(body, wire="responses", key="k")
    assert cache.of_body(body, wire="responses", key="other").cached == 0
    assert cache.of_body(body, wire="responses", key="k").cached > 2000


@pytest.mark.parametrize(
    "change", [{"model": "another"}, {"text": {"verbosity": "low"}}, {"reasoning": {"effort": "low"}}]
)
def test_a_changed_setting_voids_everything_on_openais_wires(change: dict[str, Any]) -> None:
    cache = SimulatedCache()
    body = {"model": "m", "instructions": "i" * 9000, "input": "hello"}
    cache.of_body(body, wire="responses", key="k")
    assert cache.of_body(body | change, wire="responses", key="k").cached == 0


def test_marks_are_no_part_of_a_block() -> None:
    plain = {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "x"}]}]}
    part = {"type": "tool_result", "content": [{"type": "text", "text": "x", **MARK}]}
    marked = {"role": "user", "content": [part]}
    one, other = (prompt_of({"messages": [message]}, "messages") for message in (plain, marked))
    assert one.blocks == other.blocks
    assert (one.marks, other.marks) == ((), (0,))


def test_a_text_and_a_list_with_one_text_are_the_same_to_anthropic() -> None:
    bodies: list[dict[str, Any]] = [
        {"system": "Be kind.", "messages": [{"role": "user", "content": "hi"}]},
        {
            "system": [{"type": "text", "text": "Be kind."}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        },
    ]
    one, other = (prompt_of(body, "messages") for body in bodies)
    assert one == other


def test_a_chat_prompt_has_a_block_for_each_message_and_each_part() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"arguments": '{"a":  1}'}}]}
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    body = {
        "tools": [{"type": "function"}],
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": parts},
            call,
            {"role": "tool", "tool_call_id": "c", "content": [parts[0]]},
        ],
    }
    assert [json.loads(block) for block in prompt_of(body, "chat").blocks] == [
        {"type": "function"},
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": parts[0]},
        {"role": "user", "content": parts[1]},
        call,
        {"role": "tool", "tool_call_id": "c", "content": parts[0]},
    ]


def test_a_responses_prompt_has_a_block_for_each_item() -> None:
    items = [{"type": "reasoning", "summary": []}, {"type": "function_call", "arguments": "{}"}]
    body = {"instructions": "Be kind.", "input": [{"role": "user", "content": "hi"}, *items]}
    assert [json.loads(block) for block in prompt_of(body, "responses").blocks] == [
        {"type": "text", "text": "Be kind."},
        {"role": "user", "content": "hi"},
        *items,
    ]


@pytest.mark.parametrize("body", [None, [], "text", {}, {"messages": None}, {"input": 3}, {"messages": [1, None]}])
@pytest.mark.parametrize("wire", ["chat", "responses", "messages", "scripted", None])
def test_whatever_stands_in_a_body_has_some_prompt(body: Any, wire: str | None) -> None:
    assert isinstance(prompt_of(body, wire).tokens, int)
