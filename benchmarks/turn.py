"""A whole turn of four events, begun and committed, at every length of history."""

from itertools import count

import anyio.to_thread

from benchmarks import ours, peers
from benchmarks.arena import arena
from benchmarks.bench import Bench
from benchmarks.floor import Floor
from benchmarks.ours import History
from benchmarks.peers import Peer
from benchmarks.plan import Plan
from benchmarks.results import Section, ratio, worst
from benchmarks.samples import TURN, turn
from benchmarks.tables import events_column, times_table
from benchmarks.timing import Contender, Stopwatch, interleave
from forkpoint.ids import new_id
from forkpoint.store import Store

BARE = "bare transaction"
THREAD = "bare transaction, from async code through a thread"

TEXT = """\
Four events of 1 KB (a question, a call, its result, an answer), begun and committed durably. The bare transaction
writes the same rows (the turn, four events, the conversation's head) to a copy of the same file in one durable
transaction, with everything worked out before the clock starts; once called directly, and once from async code
through a worker thread. Peers store the four messages in one call; LangGraph also as in use, by an `invoke` with one
node. Histories grow by the turns that are measured on them: Forkpoint's and the floor's by one in each round, those of
peers hardly, since they write to many conversations of the same length in turn."""


async def measure(bench: Bench) -> Section:
    plan = bench.plan
    contenders: list[Contender] = []
    async with arena(bench) as here:
        for size in plan.all_sizes:
            history = await bench.history(size)
            contenders += [_ours(await here.ours(history), history), *_bare(here.floor(history), size)]
        for size in plan.sizes:
            for kind in peers.appending():
                contenders.append(await _peer(here.empty_peer(kind), size, plan))
        bench.progress.say("  running turns")
        found = await interleave(contenders, plan.rounds, bench.progress)

    columns = [events_column(size) for size in plan.all_sizes]
    table = times_table("Turn", "median", columns, found, ours.NAME)
    budgets = [
        worst(what, 1.5, [ratio(column, found[ours.NAME, column], found[floor, column]) for column in columns])
        for what, floor in (
            ("turn of four events against one bare durable transaction of the same rows, called directly", BARE),
            ("the same, the bare transaction from async code through a thread", THREAD),
        )
    ]
    return Section("A whole turn", TEXT, (table,), tuple(budgets))


def _ours(store: Store, history: History) -> Contender:
    numbers = count(history.size // TURN)

    async def step(watch: Stopwatch) -> None:
        id, events = new_id(), ours.events(turn(next(numbers)))
        with watch:
            await ours.turn(store, history.conversation, id, events)

    return Contender(ours.NAME, events_column(history.size), step)


def _bare(floor: Floor, size: int) -> list[Contender]:
    async def directly(watch: Stopwatch) -> None:
        rows = floor.turn_rows()
        with watch:
            floor.write_turn(rows)

    async def through_a_thread(watch: Stopwatch) -> None:
        rows = floor.turn_rows()
        with watch:
            await anyio.to_thread.run_sync(floor.write_turn, rows)

    column = events_column(size)
    return [Contender(BARE, column, directly), Contender(THREAD, column, through_a_thread)]


async def _peer(peer: Peer, size: int, plan: Plan) -> Contender:
    conversations = await peers.fill_many(peer, size)
    numbers = count(size // TURN)

    async def step(watch: Stopwatch) -> None:
        conversation, native = next(conversations), peer.native(turn(next(numbers)))
        await peer.select(conversation)
        with watch:
            await peer.append(conversation, native)

    return Contender(peer.name, events_column(size), step, plan.peer_rounds, plan.peer_seconds)
