"""A chain of forks of forks: what its length costs at its end."""

import gc
from pathlib import Path
from statistics import median

from msgspec import Struct

from benchmarks import ours
from benchmarks.bench import Bench
from benchmarks.results import Section, Table, ratio, worst
from benchmarks.samples import messages
from benchmarks.tables import factor, figure, milliseconds, times_table
from benchmarks.timing import Contender, Step, Stopwatch, interleave
from forkpoint.events import Position
from forkpoint.ids import new_id

LINK = 10  # events that each fork adds

CHAIN = "the end of the chain"
FLAT = "one segment"
LOAD = "cold load"


class End(Struct, frozen=True):
    """A conversation, and a place in the middle of its path that is the end of a commit."""

    path: Path
    conversation: str
    events: int
    middle: Position


async def measure(bench: Bench) -> Section:
    plan = bench.plan
    bench.progress.say(f"  building a chain of {plan.chain:,} forks, and the same in one segment")
    watch = Stopwatch()
    chain = await _build(bench, watch)
    flat = await _build(bench)
    contenders = _contenders(CHAIN, chain) + _contenders(FLAT, flat)
    bench.progress.say("  reading and forking at the end")
    found = await interleave(contenders, plan.load_rounds * 2, bench.progress)
    bench.drop(chain.path, flat.path)

    columns = list(dict.fromkeys(each.column for each in contenders))
    table = times_table("Chain", "median", columns, found, FLAT)
    tenth = max(1, plan.chain // 10)
    early, late = median(watch.seconds[:tenth]), median(watch.seconds[-tenth:])
    growth = Table(
        "Making the chain",
        ("one fork, median", "time"),
        (
            (f"the first {tenth:,} forks", milliseconds(early)),
            (f"the last {tenth:,} forks", f"{milliseconds(late)} ({factor(late / early)})"),
        ),
    )
    text = f"""\
Each of {plan.chain:,} conversations is a fork of the one before it, at its head, and adds {LINK} events:
{chain.events:,} in all. The same events in one conversation, also {LINK} to a commit, are the measure. Stores are
opened anew for each operation. No peer takes part: forks that copy would
write about {figure(plan.chain * chain.events * 1024 / 2 / 1e9)} GB for this."""
    budget = worst(
        f"cold load at the end of a chain of {plan.chain:,} forks of {LINK} events, against one segment",
        1.5,
        [ratio("", found[CHAIN, LOAD], found[FLAT, LOAD])],
    )
    return Section("A chain of forks", text, (table, growth), (budget,))


async def _build(bench: Bench, forks: Stopwatch | None = None) -> End:
    """Ten events at a time: each in a new fork, timed by the stopwatch given; or all in one conversation."""
    path = bench.new_file()
    links = bench.plan.chain
    middle = Position(0, 0)
    async with await ours.opened(path) as store:
        conversation = await ours.new_conversation(store)
        for link in range(links):
            bench.progress.part("link", link, links)
            if forks is not None and link:
                id = new_id()
                with forks:
                    conversation = (await ours.fork(store, conversation, id)).id
            added = ours.events(messages(link * LINK, LINK, turn=LINK))
            done = await store.note(conversation, new_id(), added)
            if link == links // 2:
                middle = done.last
    return End(path, conversation, links * LINK, middle)


def _contenders(row: str, end: End) -> list[Contender]:
    async def load(watch: Stopwatch) -> None:
        async with await ours.opened(end.path) as store:
            gc.collect()
            with watch:
                found = await store.events(end.conversation)
            assert len(found) == end.events

    async def tail(watch: Stopwatch) -> None:
        async with await ours.opened(end.path) as store:
            with watch:
                found = await store.events(end.conversation, last=100)
            assert len(found) == 100

    def fork(at: Position | None) -> Step:
        async def step(watch: Stopwatch) -> None:
            async with await ours.opened(end.path) as store:
                id = new_id()
                with watch:
                    await ours.fork(store, end.conversation, id, at)

        return step

    return [
        Contender(row, LOAD, load),
        Contender(row, "last 100 events, cold", tail),
        Contender(row, "fork at the head", fork(None)),
        Contender(row, "fork in the middle", fork(end.middle)),
    ]
