"""Loading a whole conversation cold: by a store, a connection or a session that was opened just now."""

import gc
from pathlib import Path

from benchmarks import ours, peers
from benchmarks.arena import IT, arena
from benchmarks.bench import Bench
from benchmarks.floor import connect, scan
from benchmarks.ours import History
from benchmarks.peers import PeerKind
from benchmarks.plan import Plan
from benchmarks.results import Section, ratio, worst
from benchmarks.tables import events_column, times_table
from benchmarks.timing import Contender, Step, Stopwatch, interleave

BARE = "bare range scan with json.loads"
OPENING = ", opening included"
COLLECTOR = ", collector on"

TEXT = """\
All events of a conversation, by a store, a connection or a session that was opened just before; the operating system
may have the file in memory, for everyone alike. The bare scan reads a table with one JSON document for each event (the
same envelope and content) in one range and parses each with `json.loads`. Python's garbage collector rests while the
clock runs, which favours the bare scan: its dictionaries are work for the collector, Forkpoint's records are not. So
both are also shown with the collector on; and with the opening of the file inside the measured time."""


async def measure(bench: Bench) -> Section:
    plan = bench.plan
    contenders: list[Contender] = []
    async with arena(bench) as here:
        for size in plan.sizes:
            history = await bench.history(size)
            contenders += _ours(history) + _bare(await here.documents(history), size)
        for size in plan.sizes:
            for kind in peers.storing():
                contenders.append(_peer(kind, await here.peer_file(kind, size), size, plan))
        bench.progress.say("  loading")
        found = await interleave(contenders, plan.load_rounds, bench.progress)

    columns = [events_column(size) for size in plan.sizes]
    table = times_table("Cold load", "median", columns, found, ours.NAME)
    most = columns[-1]
    budgets = [
        worst(
            f"cold load of {most} against a bare range scan with `json.loads`{how}",
            1.0,
            [ratio("", found[ours.NAME + how, most], found[BARE + how, most])],
        )
        for how in ("", OPENING, COLLECTOR)
    ]
    return Section("Cold load", TEXT, (table,), tuple(budgets))


def _ours(history: History) -> list[Contender]:
    async def load(watch: Stopwatch) -> None:
        async with await ours.opened(history.path) as store:
            gc.collect()
            with watch:
                found = await store.events(history.conversation)
            assert len(found) == history.size

    async def open_and_load(watch: Stopwatch) -> None:
        gc.collect()
        with watch:
            store = await ours.opened(history.path)
            found = await store.events(history.conversation)
        await store.close()
        assert len(found) == history.size

    return _ways(ours.NAME, history.size, load, open_and_load)


def _bare(path: Path, size: int) -> list[Contender]:
    async def load(watch: Stopwatch) -> None:
        db = connect(path)
        gc.collect()
        with watch:
            found = scan(db, 1, size)
        db.close()
        assert len(found) == size

    async def open_and_load(watch: Stopwatch) -> None:
        gc.collect()
        with watch:
            db = connect(path)
            found = scan(db, 1, size)
        db.close()
        assert len(found) == size

    return _ways(BARE, size, load, open_and_load)


def _ways(name: str, size: int, load: Step, open_and_load: Step) -> list[Contender]:
    column = events_column(size)
    return [
        Contender(name, column, load),
        Contender(name + OPENING, column, open_and_load),
        Contender(name + COLLECTOR, column, load, collector=True),
    ]


def _peer(kind: PeerKind, path: Path, size: int, plan: Plan) -> Contender:
    async def load(watch: Stopwatch) -> None:
        peer = kind(path)
        peer.open(IT)
        gc.collect()
        with watch:
            found = await peer.load(IT)
        peer.close()
        assert len(found) == size

    return Contender(kind.name, events_column(size), load, plan.peer_rounds, plan.peer_seconds)
