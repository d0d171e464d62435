"""Reading the last 100 events, at every length of history."""

import sqlite3

from benchmarks import ours, peers
from benchmarks.arena import IT, arena
from benchmarks.bench import Bench
from benchmarks.floor import connect, scan
from benchmarks.ours import History
from benchmarks.peers import Peer
from benchmarks.plan import Plan
from benchmarks.results import Section
from benchmarks.tables import events_column, times_table
from benchmarks.timing import Contender, Stopwatch, interleave
from forkpoint.store import Store

LAST = 100
BARE = "bare range scan with json.loads"

TEXT = """\
The last 100 events, from a store, a connection or a session that is open already. LangGraph cannot read a part of a
thread, so it loads all of it."""


async def measure(bench: Bench) -> Section:
    plan = bench.plan
    contenders: list[Contender] = []
    async with arena(bench) as here:
        for size in plan.sizes:
            history = await bench.history(size)
            contenders.append(_ours(await here.ours(history), history))
            db = connect(await here.documents(history))
            here.later(db.close)
            contenders.append(_bare(db, size))
            contenders += [_peer(await here.peer(kind, size), size, plan) for kind in peers.storing()]
        bench.progress.say("  reading")
        found = await interleave(contenders, plan.rounds, bench.progress)

    columns = [events_column(size) for size in plan.sizes]
    return Section("The last 100 events", TEXT, (times_table("Tail", "median", columns, found, ours.NAME),))


def _ours(store: Store, history: History) -> Contender:
    async def step(watch: Stopwatch) -> None:
        with watch:
            found = await store.events(history.conversation, last=LAST)
        assert len(found) == LAST

    return Contender(ours.NAME, events_column(history.size), step)


def _bare(db: sqlite3.Connection, size: int) -> Contender:
    async def step(watch: Stopwatch) -> None:
        with watch:
            found = scan(db, size - LAST + 1, size)
        assert len(found) == LAST

    return Contender(BARE, events_column(size), step)


def _peer(peer: Peer, size: int, plan: Plan) -> Contender:
    async def step(watch: Stopwatch) -> None:
        with watch:
            found = await peer.tail(IT, LAST)
        assert len(found) == LAST

    return Contender(peer.name, events_column(size), step, plan.peer_rounds, plan.peer_seconds)
