"""The collector: what it costs when there is nothing to do, and what writers notice while it works.

    python -m benchmarks.collect                      # some minutes
    python -m benchmarks.collect --conversations 10000 --megabytes 40 --rounds 2

Idle, a collection in a store of many conversations takes as long as in one of a hundred. At work, each round measures
writers first alone and then beside a collection, and counts the payload that the collection removed in that time.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

import anyio
from msgspec import Struct

from benchmarks.progress import Progress
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import NewConversation, OpenTurn
from forkpoint.testing.samples import answers, exchange, says

FEW = 100
LOOKS = 200
WRITERS = 4
EVENT = 8_000  # bytes of a payload of the garbage
TURN = 50  # events of it
MEGABYTE = 1_000_000


class Work(Struct, frozen=True):
    """What one round has shown: how long turns took, in seconds, and how fast the collection was."""

    alone: list[float]
    beside: list[float]
    rate: float  # megabytes a second


async def fill(store: SqliteStore, conversations: int, progress: Progress) -> None:
    """Conversations with one exchange each."""
    for done in range(0, conversations, 50):
        async with anyio.create_task_group() as tasks:
            for _ in range(min(50, conversations - done)):
                tasks.start_soon(store.create, NewConversation(id=new_id()), exchange("Hello."))
        progress.part("conversations", done, conversations)


async def idle(store: SqliteStore) -> float:
    """Seconds that a collection takes that finds nothing."""
    taken = []
    for _ in range(LOOKS):
        start = time.perf_counter()
        await store.collect(every_tenant=True)
        taken.append(time.perf_counter() - start)
    return median(taken)


async def make_garbage(store: SqliteStore, megabytes: int) -> None:
    """Deleted conversations of ten turns each."""
    left = megabytes * MEGABYTE // EVENT
    while left > 0:
        made = await store.create(NewConversation(id=new_id()))
        for _ in range(10):
            await store.note(made.id, new_id(), [says("x" * EVENT) for _ in range(TURN)])
            left -= TURN
        await store.delete(made.id)


async def write(store: SqliteStore, until: anyio.Event, taken: list[float]) -> None:
    """Turns of one conversation, one after the other, until somebody says that it is enough."""
    made = await store.create(NewConversation(id=new_id()))
    while not until.is_set():
        start = time.perf_counter()
        held = await store.begin(made.id, new_id())
        assert isinstance(held, OpenTurn)
        await store.commit(held, [says("What now?" * 20), answers("This. " * 60)])
        taken.append(time.perf_counter() - start)
        await anyio.sleep(0.002)  # a model would take longer


async def at_work(store: SqliteStore, megabytes: int) -> Work:
    """Writers alone, then writers beside a collection, for the same time."""
    await make_garbage(store, megabytes)
    beside: list[float] = []
    alone: list[float] = []
    start = time.perf_counter()
    removed = 0
    async with anyio.create_task_group() as tasks:
        enough = anyio.Event()
        for _ in range(WRITERS):
            tasks.start_soon(write, store, enough, beside)
        removed = (await store.collect(every_tenant=True)).payload_bytes
        seconds = time.perf_counter() - start
        enough.set()
    async with anyio.create_task_group() as tasks:
        enough = anyio.Event()
        for _ in range(WRITERS):
            tasks.start_soon(write, store, enough, alone)
        await anyio.sleep(max(seconds, 5.0))
        enough.set()
    return Work(alone, beside, removed / MEGABYTE / seconds)


def p99(taken: list[float]) -> float:
    return quantiles(taken, n=100)[98]


async def measure(folder: Path, conversations: int, megabytes: int, rounds: int) -> None:
    progress = Progress()
    few, many = folder / "few.db", folder / "many.db"
    async with await SqliteStore.open(few) as small, await SqliteStore.open(many) as large:
        progress.say(f"filling stores with {FEW:,} and {conversations:,} conversations")
        await fill(small, FEW, progress)
        await fill(large, conversations, progress)
        progress.say("idle")
        pairs = [(await idle(small), await idle(large)) for _ in range(5)]
        at_few, at_many = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
        print(f"idle: {at_few * 1e6:.0f} us at {FEW:,}, {at_many * 1e6:.0f} us at {conversations:,} conversations:"
              f" {at_many / at_few:.2f} times")  # fmt: skip
        found = []
        for number in range(rounds):
            progress.say(f"at work, round {number + 1} of {rounds}")
            work = await at_work(large, megabytes)
            found.append(work)
            print(f"at work: {work.rate:.1f} MB/s; turns alone p50 {median(work.alone) * 1e3:.2f} ms,"
                  f" p99 {p99(work.alone) * 1e3:.2f} ms; beside p50 {median(work.beside) * 1e3:.2f} ms,"
                  f" p99 {p99(work.beside) * 1e3:.2f} ms: {p99(work.beside) / p99(work.alone):.2f} times")  # fmt: skip
        alone = [one for work in found for one in work.alone]
        beside = [one for work in found for one in work.beside]
        print(f"all rounds: {median(work.rate for work in found):.1f} MB/s,"
              f" p99 {p99(beside) / p99(alone):.2f} times")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--conversations", type=int, default=100_000)
    parser.add_argument("--megabytes", type=int, default=100, help="of garbage in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the stores are made; default: where temporary files are")
    said = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=said.folder) as folder:
        anyio.run(measure, Path(folder), said.conversations, said.megabytes, said.rounds)


if __name__ == "__main__":
    main()
