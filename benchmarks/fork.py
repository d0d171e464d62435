"""Forking at the head and in the middle, at every size."""

from functools import partial

import anyio.to_thread

from benchmarks import ours, peers
from benchmarks.arena import arena
from benchmarks.bench import Bench
from benchmarks.floor import Floor
from benchmarks.ours import History
from benchmarks.peers import Peer
from benchmarks.plan import Plan
from benchmarks.results import Ratio, Section, ratio, worst
from benchmarks.tables import events_column, times_table
from benchmarks.timing import Contender, Place, Stopwatch, Times, interleave
from forkpoint.events import Position
from forkpoint.ids import new_id
from forkpoint.store import Store

HEAD = f"{ours.NAME}, at the head"
MIDDLE = f"{ours.NAME}, in the middle"
BARE = "bare row"
THREAD = "bare row, from async code through a thread"

TEXT = """\
A fork at the head, and one at the end of a turn in the middle. The bare row is one `INSERT` of the same row into a copy
of the same file, in a durable transaction of its own; once called directly, and once from async code through a
worker thread, since no async program may wait for a disk on its loop's thread. LangGraph copies the state to another
thread, SQLiteSession reads all items and adds them to another session, AdvancedSQLiteSession makes a branch, whose
nearest place to the head is before the last turn."""


async def measure(bench: Bench) -> Section:
    plan = bench.plan
    contenders: list[Contender] = []
    async with arena(bench) as here:
        for size in plan.all_sizes:
            history = await bench.history(size)
            contenders += _ours(await here.ours(history), history) + _bare(here.floor(history), size)
        for size in plan.sizes:
            for kind in peers.storing():
                contenders += await _peer(here.empty_peer(kind), size, plan)
        bench.progress.say("  forking")
        found = await interleave(contenders, plan.rounds, bench.progress)

    columns = [events_column(size) for size in plan.all_sizes]
    table = times_table("Fork", "median", columns, found, HEAD)
    small, large = columns[0], columns[-1]
    budgets = [
        worst(f"fork of {large} at the head, against {small}", 1.2, [_growth(found, HEAD, small, large)]),
        worst(f"fork of {large} in the middle, against {small}", 1.2, [_growth(found, MIDDLE, small, large)]),
        worst("fork against one bare durable row, called directly", 1.5, _against(found, columns, BARE)),
        worst("the same, the bare row from async code through a thread", 1.5, _against(found, columns, THREAD)),
    ]
    return Section("Fork", TEXT, (table,), tuple(budgets))


def _growth(found: dict[Place, Times], row: str, small: str, large: str) -> Ratio:
    return ratio("", found[row, large], found[row, small])


def _against(found: dict[Place, Times], columns: list[str], floor: str) -> list[Ratio]:
    return [
        ratio(f"{column}, {row.partition(', ')[2]}", found[row, column], found[floor, column])
        for column in columns
        for row in (HEAD, MIDDLE)
    ]


def _ours(store: Store, history: History) -> list[Contender]:
    async def step(watch: Stopwatch, at: Position | None) -> None:
        id = new_id()
        with watch:
            made = await ours.fork(store, history.conversation, id, at)
        assert made.head.ordinal == (at.ordinal if at else history.size)

    column = events_column(history.size)
    return [
        Contender(HEAD, column, partial(step, at=None)),
        Contender(MIDDLE, column, partial(step, at=history.middle)),
    ]


def _bare(floor: Floor, size: int) -> list[Contender]:
    async def directly(watch: Stopwatch) -> None:
        row = floor.fork_row()
        with watch:
            floor.write_fork(row)

    async def through_a_thread(watch: Stopwatch) -> None:
        row = floor.fork_row()
        with watch:
            await anyio.to_thread.run_sync(floor.write_fork, row)

    column = events_column(size)
    return [Contender(BARE, column, directly), Contender(THREAD, column, through_a_thread)]


async def _peer(peer: Peer, size: int, plan: Plan) -> list[Contender]:
    conversations = await peers.fill_many(peer, size)

    async def step(watch: Stopwatch, middle: bool) -> None:
        conversation = next(conversations)
        await peer.select(conversation)
        with watch:
            await peer.fork(conversation, middle=middle)

    return [
        Contender(f"{peer.name}, {where}", events_column(size), step, plan.peer_rounds, plan.peer_seconds)
        for where, step in (("at the head", partial(step, middle=False)), ("in the middle", partial(step, middle=True)))
    ]
