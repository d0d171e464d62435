"""Which call runs in which slot. What llama.cpp makes of it is measured in test_engine.py."""

import anyio
import pytest
from anyio.lowlevel import checkpoint

from forkpoint.llm.local.slots import Chain, SlotPlace, Slots, chain_of

pytestmark = pytest.mark.anyio

LONG = "word " * 100


def prompt(*words: str) -> Chain:
    return chain_of({"messages": [{"role": "user", "content": f"{word} {LONG}"} for word in words]})


async def run(slots: Slots, *words: str) -> SlotPlace:
    """A call from beginning to end."""
    place = await slots.take(prompt(*words))
    slots.give_back(place)
    return place


async def test_a_conversation_goes_on_in_a_copy_so_that_forks_find_the_original() -> None:
    slots = Slots(4)
    first = await run(slots, "a")
    second = await slots.take(prompt("a", "b"))
    assert second.slot != first.slot
    assert second.wash == second.slot  # filled from the cache
    fork = await slots.take(prompt("a", "c"))
    assert fork.slot not in {first.slot, second.slot}
    assert fork.wash == fork.slot


async def test_a_fork_goes_on_in_its_sources_slot_after_the_source_is_in_the_cache() -> None:
    slots = Slots(2)
    source = await run(slots, "a", "b")
    fork = await slots.take(prompt("a", "c"))
    assert fork.slot == source.slot
    assert fork.wash not in {None, fork.slot}


async def test_a_source_whose_slot_a_fork_took_comes_back_from_the_cache() -> None:
    slots = Slots(2)
    source = await run(slots, "a", "b")
    fork = await run(slots, "a", "c")
    assert fork.slot == source.slot
    back = await slots.take(prompt("a", "b", "d"))
    assert back.slot != fork.slot
    assert back.wash == back.slot


async def test_a_conversation_that_shares_nothing_takes_a_slot_that_nobody_misses() -> None:
    slots = Slots(2)
    one = await run(slots, "a")
    other = await slots.take(prompt("b"))
    assert other.slot != one.slot
    assert other.wash is None


async def test_other_tools_make_another_prompt() -> None:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    assert chain_of(body)[0].digest != chain_of(body | {"tools": [{"type": "function"}]})[0].digest


async def test_a_slot_that_is_only_washed_is_free_again_afterwards() -> None:
    slots = Slots(2)
    await run(slots, "a", "b")
    fork = await slots.take(prompt("a", "c"))
    assert slots.idle == 0
    slots.washed(fork)
    assert slots.idle == 1
    slots.give_back(fork)
    assert slots.idle == 2


async def test_calls_that_find_no_slot_wait_in_line_in_order() -> None:
    slots = Slots(1)
    held = await slots.take(prompt("a"))
    served: list[str] = []

    async def ask(word: str) -> None:
        place = await slots.take(prompt(word))
        served.append(word)
        slots.give_back(place)

    async with anyio.create_task_group() as tasks:
        for number, word in enumerate("bcd"):
            tasks.start_soon(ask, word)
            while slots.waiting <= number:
                await checkpoint()
        assert served == []
        slots.give_back(held)
    assert served == ["b", "c", "d"]
    assert slots.idle == 1


async def test_a_call_that_is_cancelled_in_line_takes_no_slot() -> None:
    slots = Slots(1)
    held = await slots.take(prompt("a"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slots.take, prompt("b"))
        while not slots.waiting:
            await checkpoint()
        tasks.cancel_scope.cancel()
    assert slots.waiting == 0
    slots.give_back(held)
    assert slots.idle == 1


async def test_a_slot_handed_over_to_a_call_that_is_being_cancelled_comes_back() -> None:
    slots = Slots(1)
    held = await slots.take(prompt("a"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slots.take, prompt("b"))
        while not slots.waiting:
            await checkpoint()
        slots.give_back(held)
        tasks.cancel_scope.cancel()
    assert slots.idle == 1
