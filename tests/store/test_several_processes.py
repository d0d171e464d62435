"""Several writers on one file: of two one wins, the other is refused, and nothing is ever merged or lost.

Where the operating system has to be in the game, the other writer is a process of its own; where time has to, it is
a second store on the same file, whose clock the test sets.
"""

import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import groupby
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pytest
from msgspec import Struct

from forkpoint.clock import system_clock
from forkpoint.errors import Busy, NotFound, TurnLost
from forkpoint.events import AssistantMessage, Event, NewEvent, Text, ToolResult, UserMessage
from forkpoint.history.anchors import Anchor
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteSettings, SqliteStore
from forkpoint.store.values import NewConversation, NewFork, OpenTurn, TurnError
from forkpoint.testing.samples import answers, calls, exchange, returns, says

pytestmark = pytest.mark.anyio

PROGRAM = Path(__file__).parent / "support" / "second_process.py"


class Process:
    """Another process that uses the store. What goes wrong there is on its standard error, which pytest shows."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    async def ready(self) -> None:
        assert self._process.stdout is not None
        line = await anyio.to_thread.run_sync(self._process.stdout.readline)
        assert line == b"ready\n", "the other process did not start"

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    async def result(self) -> bytes:
        """What it says at its end, which comes at the latest when its standard input is closed."""
        said, _ = await anyio.to_thread.run_sync(self._process.communicate)
        assert self._process.returncode == 0, "the other process failed"
        return said


@contextmanager
def another_process(path: Path, role: str, *shared: str) -> Iterator[Process]:
    command = [sys.executable, str(PROGRAM), str(path), role, *shared]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield Process(process)
        finally:
            process.kill()


class Written(Struct, frozen=True):
    """What a writing process was told was done."""

    turns: dict[str, list[str]]  # by conversation
    forks: dict[str, str]  # the source of each
    refused: dict[str, int]


class Swept(Struct, frozen=True):
    """What a collecting process did."""

    runs: int
    events: int


@asynccontextmanager
async def two_stores(path: Path, *, later: int = 0) -> AsyncIterator[tuple[SqliteStore, SqliteStore]]:
    """Two stores on one file, as two processes would have them; the second one's clock is ahead."""
    async with (
        await SqliteStore.open(path) as first,
        await SqliteStore.open(path, clock=lambda: system_clock() + later) as second,
    ):
        yield first, second


async def begin(store: SqliteStore, conversation: str, turn: str) -> OpenTurn:
    held = await store.begin(conversation, turn)
    assert isinstance(held, OpenTurn)
    return held


async def run_a_turn(store: SqliteStore, conversation: str, events: list[NewEvent]) -> str:
    held = await begin(store, conversation, new_id())
    await store.commit(held, events)
    return held.id


async def assert_whole(store: SqliteStore) -> None:
    found = await store.verify()
    assert found.ok, f"verify finds flaws: {found.flaws}"


def text_of(event: Event) -> str:
    assert isinstance(event.body, UserMessage | AssistantMessage)
    (part,) = event.body.parts
    assert isinstance(part, Text)
    return part.text


EXPIRED = SqliteSettings().expiry + 1


async def test_two_processes_write_to_one_file_and_every_history_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "store.db"  # not made yet: both try to
    shared = [new_id(), new_id()]
    with another_process(path, "write", *shared) as one, another_process(path, "write", *shared) as two:
        for process in (one, two):
            await process.ready()
        for process in (one, two):
            process.go()
        written = [msgspec.json.decode(await process.result(), type=Written) for process in (one, two)]
    async with await SqliteStore.open(path) as store:
        for conversation in {id for by_one in written for id in by_one.turns}:
            events = await store.events(conversation)
            assert [event.id.ordinal for event in events] == list(range(1, len(events) + 1))
            found = [(turn, [text_of(event) for event in group]) for turn, group in groupby(events, lambda e: e.turn)]
            interleaved = [turn for turn, texts in found if texts != [f"{turn}:{n}" for n in range(len(texts))]]
            assert not interleaved, f"turns of two processes interleave in conversation {conversation}"
            reported = [turn for by_one in written for turn in by_one.turns.get(conversation, [])]
            assert sorted(turn for turn, _ in found) == sorted(reported), "turns are lost, or there are more"
        for by_one in written:
            for fork, source in by_one.forks.items():
                inherited, history = await store.events(fork), await store.events(source)
                assert inherited == history[: len(inherited)], f"fork {fork} has another history than its source"
        await assert_whole(store)


async def test_of_two_processes_that_spawn_for_the_same_calls_both_get_the_same_whole_sub_agents(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.db"
    parent = new_id()
    async with await SqliteStore.open(path) as store:
        await store.create(NewConversation(id=parent))
        await run_a_turn(store, parent, exchange("The start."))
        held = await begin(store, parent, new_id())
        with (
            another_process(path, "spawn", parent, held.id) as one,
            another_process(path, "spawn", parent, held.id) as two,
        ):
            for process in (one, two):
                await process.ready()
            for process in (one, two):
                process.go()
            spawned = [msgspec.json.decode(await process.result(), type=dict[str, str]) for process in (one, two)]
        assert spawned[0] == spawned[1], "a call has two sub-agents"
        children = (await store.conversations(parent=parent, limit=1000)).items
        assert {child.lineage.call: child.id for child in children} == spawned[0]
        for child in children:
            texts = [text_of(event) for event in await store.events(child.id)][2:]
            assert texts == [f"{child.id}:0", f"{child.id}:1"], "the sub-agent's first note is another's, or not whole"
        await assert_whole(store)


async def test_the_collector_in_one_process_never_takes_what_another_forks(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    root, kept = new_id(), dict[str, list[Event]]()
    async with await SqliteStore.open(path) as store:
        await store.create(NewConversation(id=root))
        start = await run_a_turn(store, root, exchange("The start."))
        with another_process(path, "collect") as collector:
            await collector.ready()
            collector.go()
            for round in range(40):
                turns = [await run_a_turn(store, root, exchange(f"{round}, {n}.")) for n in range(3)]
                aside, forks = new_id(), [new_id() for _ in turns]
                await store.rewind(root, NewFork(id=aside, cache="{}"), at=start)
                history = await store.events(aside)

                async def fork(id: str, at: str, aside: str = aside, history: list[Event] = history) -> None:
                    try:
                        made = await store.fork(aside, NewFork(id=id, cache="{}"), at=at)
                    except NotFound:
                        return  # it was deleted first
                    kept[id] = history[: made.head.ordinal]

                async with anyio.create_task_group() as tasks:
                    for id, at in zip(forks, turns, strict=True):
                        tasks.start_soon(fork, id, at)
                        if id == forks[round % 3]:
                            tasks.start_soon(store.delete, aside)
                if round % 5 == 4:  # so that there is something to collect that was forked
                    gone = next(iter(kept))
                    await store.delete(gone)
                    del kept[gone]
            swept = msgspec.json.decode(await collector.result(), type=Swept)
        assert swept.runs > 1, "the collector did not run meanwhile, so this proved nothing"
        await store.collect()
        for id, events in kept.items():
            assert await store.events(id) == events, f"fork {id} was made, and the collector took some of it"
            await run_a_turn(store, id, exchange("It goes on."))
        await assert_whole(store)


async def test_a_rename_between_begin_and_commit_disturbs_neither(tmp_path: Path) -> None:
    conversation, turn = new_id(), new_id()
    async with two_stores(tmp_path / "store.db") as (worker, editor):
        await worker.create(NewConversation(id=conversation))
        held = await begin(worker, conversation, turn)
        await editor.describe(conversation, title="Renamed", tags=(("kind", "debug"),))
        held = await worker.journal(held, [says("Hello.")])
        await editor.describe(conversation, title="Renamed again")
        await worker.commit(held, [answers("Hello to you.")])
        record = await editor.read(conversation)
        assert (record.head.turn, record.revision) == (turn, 1)
        assert (record.title, record.tags) == ("Renamed again", (("kind", "debug"),))


ENDINGS: dict[str, Callable[[SqliteStore, OpenTurn], Awaitable[object]]] = {
    "commit": lambda store, turn: store.commit(turn, exchange("Mine.")),
    "journal": lambda store, turn: store.journal(turn, exchange("Mine.")),
    "wait": lambda store, turn: store.wait(turn, exchange("Mine.")),
    "fail": lambda store, turn: store.fail(turn, TurnError("failed", "Mine.")),
    "cancel": lambda store, turn: store.cancel(turn),
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_holder_whose_turn_was_taken_over_writes_nothing_any_more(tmp_path: Path, ending: str) -> None:
    conversation, turn = new_id(), new_id()
    async with two_stores(tmp_path / "store.db", later=EXPIRED) as (late, quick):
        await late.create(NewConversation(id=conversation))
        held = await begin(late, conversation, turn)
        assert (await quick.read(conversation)).status == "interrupted"
        taken = await quick.resume(turn)
        with pytest.raises(TurnLost):
            await ENDINGS[ending](late, held)
        assert (await quick.turn(turn)).outcome == "running", "the old holder ended a turn that is not its own"
        await quick.commit(taken, exchange("Ours."))
        with pytest.raises(TurnLost):
            await ENDINGS[ending](late, held)
        texts = [text_of(event) for event in await late.events(conversation)]
        assert texts == ["Ours.", "You said: Ours."], "what the old holder wrote was merged"
        await assert_whole(late)


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_holder_whose_turn_was_discarded_writes_nothing_any_more(tmp_path: Path, ending: str) -> None:
    conversation, turn = new_id(), new_id()
    async with two_stores(tmp_path / "store.db", later=EXPIRED) as (late, quick):
        await late.create(NewConversation(id=conversation))
        held = await begin(late, conversation, turn)
        await quick.discard(turn)
        other = await begin(quick, conversation, new_id())
        with pytest.raises(TurnLost):
            await ENDINGS[ending](late, held)
        await quick.commit(other, exchange("Ours."))
        assert (await late.turn(turn)).outcome == "cancelled"
        assert [event.turn for event in await late.events(conversation)] == [other.id, other.id]


async def test_a_late_commit_is_accepted_while_nobody_took_the_turn_over(tmp_path: Path) -> None:
    conversation, turn = new_id(), new_id()
    async with two_stores(tmp_path / "store.db", later=EXPIRED) as (late, watcher):
        await late.create(NewConversation(id=conversation))
        held = await begin(late, conversation, turn)
        assert (await watcher.turn(turn)).outcome == "interrupted", "the heartbeat should have run out"
        await late.commit(held, exchange("Late."))
        assert (await watcher.turn(turn)).outcome == "committed"


async def test_a_holder_that_is_taken_over_between_two_writes_can_start_no_tool(tmp_path: Path) -> None:
    conversation, turn = new_id(), new_id()
    async with two_stores(tmp_path / "store.db", later=EXPIRED) as (late, quick):
        await late.create(NewConversation(id=conversation))
        held = await begin(late, conversation, turn)
        held = await late.journal(held, [says("Look twice."), calls("first", response=1)])
        taken = await quick.resume(turn)
        assert (taken.staged, taken.calls.ours) == (2, ("first",)), "the new holder does not see what was journalled"
        with pytest.raises(TurnLost):
            await late.journal(held, [returns("first"), calls("second", response=2)])
        assert len(await quick.steps(turn)) == 2, "a step was journalled, and so a tool could have started"
        unknown = NewEvent(ToolResult("first", "look", (Text("It may have happened."),), status="unknown"))
        await quick.commit(taken, [unknown, answers("I do not know.", response=2)])
        kinds = [event.kind for event in await late.events(conversation)]
        assert kinds == ["user_message", "tool_call", "tool_result", "assistant_message"]
        await assert_whole(late)


async def test_a_turn_of_a_live_process_is_not_for_others_to_take(tmp_path: Path) -> None:
    """A begin that was refused before must not make a process look dead, either."""
    first, second, turn = new_id(), new_id(), new_id()
    async with two_stores(tmp_path / "store.db") as (one, other):
        await one.create(NewConversation(id=first))
        await one.create(NewConversation(id=second))
        await begin(one, first, new_id())
        with pytest.raises(Busy):
            await other.begin(first, new_id())
        await begin(other, second, turn)
        for store in (one, other):
            assert (await store.read(second)).status == "running"
            with pytest.raises(Busy):
                await store.resume(turn)
            with pytest.raises(Busy):
                await store.discard(turn)


async def test_a_thousand_forks_at_once_from_one_point_share_it_and_go_their_own_ways(tmp_path: Path) -> None:
    source, forks = new_id(), [new_id() for _ in range(1000)]
    async with await SqliteStore.open(tmp_path / "store.db") as store:
        await store.create(NewConversation(id=source))
        await run_a_turn(store, source, exchange("Where to?"))
        before = await store.read(source)
        history = await store.events(source)

        async def fork(id: str) -> None:
            await store.fork(source, NewFork(id=id, cache="{}"))

        async with anyio.create_task_group() as tasks:
            for id in forks:
                tasks.start_soon(fork, id)
        async with anyio.create_task_group() as tasks:
            for id in forks[::10]:
                tasks.start_soon(run_a_turn, store, id, exchange(id))
        assert await store.read(source) == before, "a fork changed its source"
        for place, id in enumerate(forks):
            texts = [text_of(event) for event in await store.events(id)]
            own = [id, f"You said: {id}"] if place % 10 == 0 else []
            assert texts == [text_of(event) for event in history] + own
        await assert_whole(store)


async def test_a_chain_of_a_thousand_forks_loads_and_verifies(tmp_path: Path) -> None:
    link = new_id()
    async with await SqliteStore.open(tmp_path / "store.db") as store:
        await store.create(NewConversation(id=link))
        for place in range(1000):
            if place:
                fork = new_id()
                await store.fork(link, NewFork(id=fork, cache="{}"))
                link = fork
            await run_a_turn(store, link, exchange(f"Link {place}."))
        events = await store.events(link)
        assert [event.id.ordinal for event in events] == list(range(1, 2001))
        assert [text_of(event) for event in events[::2]] == [f"Link {place}." for place in range(1000)]
        assert len((await store.path(link)).spans) == 1000
        assert [text_of(event) for event in await store.events(link, last=2)] == ["Link 999.", "You said: Link 999."]
        await assert_whole(store)


class Sealed(Struct, frozen=True):
    """The anchors that a sealing process got."""

    anchors: list[Anchor]


async def test_of_processes_that_seal_at_once_one_wins_and_no_seal_is_made_twice_or_left_out(tmp_path: Path) -> None:
    path, own = tmp_path / "store.db", new_id()
    anchors: list[Anchor] = []
    async with await SqliteStore.open(path) as store:
        await store.create(NewConversation(id=own))
        with another_process(path, "anchor") as other:
            await other.ready()
            other.go()
            while len({anchor.number for anchor in anchors}) < 40:
                await run_a_turn(store, own, exchange("One more."))
                anchors.append(await store.anchor())
            theirs = msgspec.json.decode(await other.result(), type=Sealed).anchors
        last = await store.anchor()
        found = await store.verify(anchors=[*anchors, *theirs, last])
        assert found.ok, found.flaws
        assert found.seals == last.number
        assert len(theirs) > 1, "the other process did not seal meanwhile, so this proved nothing"
