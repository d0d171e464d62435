"""Prompts that are kept: bounded in memory, and the same bytes as if everything were rendered anew."""

import itertools
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from tests.conversation.support.agents import agent_of, asks, call

from forkpoint import LLM, Agent, AsyncConversation, TurnFailed, tool
from forkpoint.backend.options import NewTurn
from forkpoint.engine.engine import Engine
from forkpoint.engine.resources import EngineOptions
from forkpoint.engine.turns.prompts import KEPT, Prompts
from forkpoint.events import Condensation, Event, NewEvent, Text, UserMessage
from forkpoint.ids import new_id
from forkpoint.llm.prompt.manifest import manifest_of
from forkpoint.llm.prompt.rendering import render
from forkpoint.store.protocol import Store
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import NewConversation, NewFork, OpenTurn
from forkpoint.testing import Fault, Heard, Reply
from forkpoint.testing.samples import exchange

pytestmark = pytest.mark.anyio

MANIFEST = manifest_of(LLM("scripted/echo"))
HELLO = (UserMessage((Text("Hello"),)),)


class Counting:
    """A store that counts how often events are read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def events(self, *args: Any, **kwargs: Any) -> list[Event]:
        self.reads += 1
        return await self._store.events(*args, **kwargs)


async def grown(store: Store, id: str, events: Sequence[NewEvent]) -> None:
    turn = await store.begin(id, new_id())
    assert isinstance(turn, OpenTurn)
    await store.commit(turn, events)


# What is kept.


async def test_a_prompt_is_rendered_once_and_then_kept() -> None:
    async with await SqliteStore.open(None) as inner:
        store = Counting(inner)
        prompts = Prompts(store)
        id = new_id()
        await inner.create(NewConversation(id=id))
        await grown(inner, id, exchange("hello"))
        head = (await inner.read(id)).head
        first = await prompts.at(id, head, MANIFEST)
        assert await prompts.at(id, head, MANIFEST) is first
        assert store.reads == 1
        other = manifest_of(LLM("scripted/echo"), instructions="Be brief.")
        assert (await prompts.at(id, head, other)).blocks != first.blocks
        assert store.reads == 2


async def test_no_more_prompts_are_kept_than_it_says_the_longest_unused_goes_first() -> None:
    async with await SqliteStore.open(None) as inner:
        store = Counting(inner)
        prompts = Prompts(store, kept=2)
        heads = []
        for n in range(3):
            id = new_id()
            await inner.create(NewConversation(id=id))
            await grown(inner, id, exchange(str(n)))
            heads.append((id, (await inner.read(id)).head))
        for n in (0, 1, 0, 2):
            await prompts.at(*heads[n], MANIFEST)
        assert store.reads == 3
        await prompts.at(*heads[0], MANIFEST)
        assert store.reads == 3, "it was used lately"
        await prompts.at(*heads[1], MANIFEST)
        assert store.reads == 4, "this one made way"


async def test_the_events_of_all_kept_prompts_are_bounded_and_one_is_always_kept() -> None:
    async with await SqliteStore.open(None) as inner:
        store = Counting(inner)
        prompts = Prompts(store, kept_blocks=10)
        ids = [new_id(), new_id()]
        for id in ids:
            await inner.create(NewConversation(id=id))
            for n in range(4):
                await grown(inner, id, exchange(str(n)))
        heads = [(await inner.read(id)).head for id in ids]
        await prompts.at(ids[0], heads[0], MANIFEST)
        await prompts.at(ids[1], heads[1], MANIFEST)
        reads = store.reads
        await prompts.at(ids[1], heads[1], MANIFEST)
        assert store.reads == reads
        await prompts.at(ids[0], heads[0], MANIFEST)
        assert store.reads == reads + 1, "both together had too many events"
        for n in range(20):
            await grown(inner, ids[0], exchange(str(n)))
        head = (await inner.read(ids[0])).head
        long = await prompts.at(ids[0], head, MANIFEST)
        assert await prompts.at(ids[0], head, MANIFEST) is long, "the newest is kept however long it is"


async def test_a_condensed_path_weighs_what_its_prompt_shows_so_that_a_fork_does_not_push_its_source_out() -> None:
    async with await SqliteStore.open(None) as inner:
        store = Counting(inner)
        prompts = Prompts(store, kept_blocks=50)
        id = new_id()
        await inner.create(NewConversation(id=id), [event for n in range(200) for event in exchange(str(n))])
        await inner.note(id, new_id(), [NewEvent(Condensation("They counted.", 390)), *exchange("more")])
        fork = await inner.fork(id, NewFork(id=new_id(), cache="{}"))
        await grown(inner, fork.id, exchange("other"))
        heads = {one: (await inner.read(one)).head for one in (id, fork.id)}
        for one in heads:
            await prompts.at(one, heads[one], MANIFEST)
        reads = store.reads
        for one in heads:
            await prompts.at(one, heads[one], MANIFEST)
        assert store.reads == reads, "both fit, for both show few events of 400"


async def test_what_made_way_does_not_count_any_more() -> None:
    async with await SqliteStore.open(None) as inner:
        store = Counting(inner)
        prompts = Prompts(store, kept_blocks=10)
        ids = [new_id() for _ in range(20)]
        for id in ids:
            await inner.create(NewConversation(id=id))
            await grown(inner, id, exchange("hello"))
            await prompts.at(id, (await inner.read(id)).head, MANIFEST)
        reads = store.reads
        for id in ids[-5:]:
            await prompts.at(id, (await inner.read(id)).head, MANIFEST)
        assert store.reads == reads, "five of two events each are kept, however many there were before"


async def test_the_bytes_of_all_kept_prompts_are_bounded_and_what_was_dropped_is_rendered_again_and_equal() -> None:
    async with await SqliteStore.open(None) as inner:
        store = Counting(inner)
        ids = [new_id() for _ in range(3)]
        for id in ids:
            await inner.create(NewConversation(id=id))
            await grown(inner, id, exchange(f"{id} {'x' * 10_000}"))
        heads = [(await inner.read(id)).head for id in ids]
        size = (await Prompts(inner).at(ids[0], heads[0], MANIFEST)).blocks.size
        assert size > 10_000
        prompts = Prompts(store, kept_bytes=2 * size)
        first, *_ = [await prompts.at(id, head, MANIFEST) for id, head in zip(ids, heads, strict=True)]
        assert store.reads == 3
        for n in (1, 2):
            await prompts.at(ids[n], heads[n], MANIFEST)
        assert store.reads == 3, "two of them fit"
        again = await prompts.at(ids[0], heads[0], MANIFEST)
        assert store.reads == 4, "this one made way"
        assert again is not first
        assert again == first
        assert await prompts.at(ids[0], heads[0], MANIFEST) is again
        await prompts.at(ids[2], heads[2], MANIFEST)
        assert store.reads == 4, "what made way does not count any more"
        await grown(inner, ids[0], exchange("y" * 3 * size))
        head = (await inner.read(ids[0])).head
        large = await prompts.at(ids[0], head, MANIFEST)
        assert await prompts.at(ids[0], head, MANIFEST) is large, "the newest is kept however large it is"
        reads = store.reads
        await prompts.at(ids[2], heads[2], MANIFEST)
        assert store.reads == reads + 1, "and leaves no room for others"


async def test_all_tenants_together_keep_no_more_bytes_than_one() -> None:
    async with await SqliteStore.open(None) as inner:
        store = Counting(inner)
        prompts = Prompts(store, kept_bytes=15_000)
        other = prompts.within(store)
        heads = []
        for n in range(2):
            id = new_id()
            await inner.create(NewConversation(id=id))
            await grown(inner, id, exchange(f"{n} {'x' * 10_000}"))
            heads.append((id, (await inner.read(id)).head))
        await prompts.at(*heads[0], MANIFEST)
        await other.at(*heads[1], MANIFEST)
        await prompts.at(*heads[0], MANIFEST)
        assert store.reads == 3


async def test_the_path_as_it_was_before_a_turn_makes_way_first() -> None:
    async with await SqliteStore.open(None) as inner:
        store = Counting(inner)
        prompts = Prompts(store, kept=3)
        ids = [new_id() for _ in range(3)]
        for id in ids:
            await inner.create(NewConversation(id=id))
            await grown(inner, id, exchange(id))
        heads = [(await inner.read(id)).head for id in ids]
        await prompts.at(ids[0], heads[0], MANIFEST)
        base = await prompts.at(ids[1], heads[1], MANIFEST)
        await grown(inner, ids[1], exchange("more"))
        after, events = (await inner.read(ids[1])).head, await inner.events(ids[1], after=2)
        longer = prompts.grown(after.digest, base, events, base_digest=heads[1].digest)
        await prompts.at(ids[2], heads[2], MANIFEST)
        reads = store.reads
        await prompts.at(ids[0], heads[0], MANIFEST)
        assert await prompts.at(ids[1], after, MANIFEST) is longer
        assert store.reads == reads, "others stay though they were not used as lately"
        again = await prompts.at(ids[1], heads[1], MANIFEST)
        assert store.reads == reads + 1, "this one made way"
        assert again == base


@pytest.mark.parametrize("kept", [2, KEPT])
async def test_as_many_conversations_as_are_kept_take_turns_and_none_is_rendered_again(kept: int) -> None:
    async with await SqliteStore.open(None) as inner:
        store = Counting(inner)
        backend = Engine(store, options=EngineOptions(prompts=Prompts(store, kept=kept)), owns_store=False)
        agent = agent_of(["x"] * 8)
        ids = [new_id(), new_id()]
        for id in ids:
            await inner.create(NewConversation(id=id))
            await backend.turns.run(id, agent, NewTurn(given=HELLO), lambda _: None)
        reads = store.reads
        for id in ids * 3:
            await backend.turns.run(id, agent, NewTurn(given=HELLO), lambda _: None)
        assert store.reads == reads
        await backend.close()


async def test_a_turn_reads_no_history_that_this_process_has_rendered() -> None:
    async with await SqliteStore.open(None) as inner:
        store = Counting(inner)
        async with AsyncConversation(agent_of(["x"] * 12), store=store) as conversation:
            afters = []
            for n in range(5):
                await conversation.run(str(n))
                afters.append(store.reads)
            steps = {after - before for before, after in itertools.pairwise(afters)}
            assert steps == {afters[1] - afters[0]}, "each turn reads the same, however long the history"
            fork = await conversation.fork()
            before = store.reads
            await fork.run("more")
            assert store.reads - before == afters[1] - afters[0], "and a fork renders nothing of its source"
            await fork.close()


async def test_a_kept_prompt_is_what_rendering_anew_gives() -> None:
    async with await SqliteStore.open(None) as store:
        prompts = Prompts(store)
        id = new_id()
        await store.create(NewConversation(id=id))
        base = await prompts.at(id, (await store.read(id)).head, MANIFEST)
        await grown(store, id, exchange("hello"))
        head, events = (await store.read(id)).head, await store.events(id)
        kept = prompts.grown(head.digest, base, events)
        assert kept.blocks.digest == render(MANIFEST, events).blocks.digest
        assert await prompts.at(id, head, MANIFEST) is kept


# Whatever happens, a long-lived object sends what a freshly opened one would.


class Step(Struct, frozen=True):
    """One act of a random conversation: a turn with so many calls in each response, and how it ends."""

    calls: tuple[int, ...]
    seed: int
    fails: bool
    then: str  # what comes after it


STEPS = st.lists(
    st.builds(
        Step,
        calls=st.lists(st.integers(1, 3), max_size=3).map(tuple),
        seed=st.integers(0, 99),
        fails=st.booleans(),
        then=st.sampled_from(["nothing", "fork", "rewind", "state", "agent", "resume"]),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=25, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_a_long_lived_object_sends_the_same_bytes_as_a_freshly_opened_one(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(replay, steps, Path(folder) / "a.db")


async def replay(steps: list[Step], file: Path) -> None:
    order: list[int] = []
    todo: list[Reply] = []
    bodies: list[Any] = []

    @tool
    async def work(n: int) -> str:
        """Ends in an order that was drawn."""
        for _ in range(order[n]):
            await checkpoint()
        return f"did {n}"

    def answer(heard: Heard) -> Reply:
        if heard.text == "compare":
            bodies.append(heard.body)
        return todo.pop(0) if todo else Reply(f"answer to {heard.text}", reasoning="Hm.")

    agent = agent_of(answer, tools=[work], instructions="one")
    conversation = AsyncConversation(agent, store=file)
    opened = [conversation]
    try:
        for number, step in enumerate(steps):
            drawn = random.Random(step.seed)
            order[:] = [drawn.randrange(6) for _ in range(3)]
            todo[:] = [asks(*(call("work", f"c{n}", n=n) for n in range(count)), text="So.") for count in step.calls]
            todo += [Reply("x", fault=Fault("overloaded"))] if step.fails else []
            try:
                await conversation.run(f"message {number}")
            except TurnFailed:
                if step.then == "resume":
                    await conversation.resume()
            match step.then:
                case "fork":
                    conversation = await conversation.fork(cache="inherit")
                    opened.append(conversation)
                case "rewind" if (turns := (await conversation.turns()).items) and turns[-1].outcome == "committed":
                    aside = await conversation.rewind(before=turns[-1])
                    opened += [aside] if aside is not None else []
                case "state":
                    await conversation.update_state({"n": number})
                case "agent":
                    agent = Agent(agent.llm, tools=[work], instructions=f"instructions {number}")
                    await conversation.change_agent(agent)
                case _:
                    pass
            await conversation.ask("compare")
            async with (
                await SqliteStore.open(file) as elsewhere,
                await AsyncConversation.open(conversation.id, agent=agent, store=elsewhere) as fresh,
            ):
                await fresh.ask("compare")
            assert bodies[-1] == bodies[-2]
    finally:
        for one in reversed(opened):
            await one.close()


async def test_a_process_that_opens_it_anew_sends_what_the_one_that_made_it_would(tmp_path: Path) -> None:
    @tool
    async def work(n: int) -> str:
        """Ends in the reverse order of its calls."""
        for _ in range(5 - n):
            await checkpoint()
        return f"did {n}"

    bodies: list[Any] = []

    def answer(heard: Heard) -> Reply:
        if heard.text == "compare":
            bodies.append(heard.body)
            return Reply("compared")
        if heard.body["messages"][-1]["role"] == "tool":
            return Reply("done", reasoning="Hm.")
        return asks(*(call("work", f"c{n}", n=n) for n in range(5)), text="So.")

    agent = agent_of(answer, tools=[work])
    async with AsyncConversation(agent, store=tmp_path / "a.db") as conversation:
        for n in range(3):
            await conversation.run(str(n))
        await conversation.ask("compare")
        async with (
            await SqliteStore.open(tmp_path / "a.db") as elsewhere,
            await AsyncConversation.open(conversation.id, agent=agent, store=elsewhere) as fresh,
        ):
            await fresh.ask("compare")
        assert bodies[0] == bodies[1]
