"""Fork, turn, load, chain and writers on PostgreSQL, beside psycopg, SQLite and peers on the same server."""

import gc
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from itertools import count
from statistics import median
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import psycopg
from msgspec import Struct

from benchmarks import ours
from benchmarks.bench import Bench
from benchmarks.cluster.forms import free_ports
from benchmarks.cluster.postgres import DATABASE, Postgres
from benchmarks.on_postgres import two_nodes
from benchmarks.on_postgres.floor import PostgresFloor, make_documents
from benchmarks.results import Budget, Section, Table, ratio, worst
from benchmarks.samples import TURN, messages, turn
from benchmarks.tables import events_column, factor, figure, times_table
from benchmarks.timing import Contender, Place, Stopwatch, Times, interleave
from forkpoint.ids import new_id
from forkpoint.store import Store, open_store

SQLITE = "Forkpoint on SQLite"
BARE_ROW = "psycopg, the same row"
BARE_TURN = "psycopg, the same rows in one statement"
BARE_SCAN = "psycopg, range scan with json.loads"
CHAIN, FLAT = "chain of forks", "one segment"

_WRITERS = 16
_LINK = 10  # events of each fork in the chain
_BEFORE = 100  # events of a conversation before the writers come

TEXT = f"""\
The same on a PostgreSQL server on this machine, with its own defaults (fsync and synchronous_commit on, no standby),
reached by TCP on loopback. The floor is psycopg's asynchronous connection: one INSERT of the same row for a fork; for
a turn the same rows (turn, four events, record, head) in one prepared statement into the same tables, with their
indexes and foreign keys, worked out before the clock starts. Forkpoint's turn is a begin and a commit. The bare scan
reads one JSON document for each event. LangGraph's AsyncPostgresSaver stores a turn by `aupdate_state`, the Agents
SDK's SQLAlchemySession by `add_items`; both on the same server, in databases of their own. With {_WRITERS} writers each
has a conversation of its own; the floor has a connection for each."""


class Rates(Struct, frozen=True):
    """Turns per second, in each round."""

    alone: list[float]
    together: list[float]


class Stand:
    """A server, and what is opened on it."""

    def __init__(self, bench: Bench, exits: AsyncExitStack, server: Postgres) -> None:
        self.bench = bench
        self.exits = exits
        self._server = server

    async def database(self, name: str) -> str:
        """The address of a new database."""
        await anyio.to_thread.run_sync(self._server.execute, f"CREATE DATABASE {name}")
        return f"postgresql://postgres@{self._server.host}:{self._server.port}/{name}"

    async def store(self, url: str) -> Store:
        return await self.exits.enter_async_context(await open_store(url))

    async def floor(self, url: str, conversation: str) -> PostgresFloor:
        floor = await PostgresFloor.open(url, conversation)
        self.exits.push_async_callback(floor.close)
        return floor

    def size(self, name: str) -> int:
        return int(self._server.execute("SELECT pg_database_size(%s)", name)[0][0])


async def measure(bench: Bench) -> Section:
    async with AsyncExitStack() as exits:
        bench.progress.say("  starting PostgreSQL")
        server = Postgres("benchmark", "127.0.0.1", free_ports(1)[0], synchronous_standby_names="")
        exits.callback(server.stop)
        await anyio.to_thread.run_sync(server.make)
        stand = Stand(bench, exits, server)
        url = f"postgresql://postgres@{server.host}:{server.port}/{DATABASE}"
        times = await _times(stand, url)
        chain = await _chain(stand, url)
        rates = await _rates(stand, url)
        disk = await _disk(stand)
        nodes, gain = await two_nodes.measure(bench, await stand.database("nodes"))
    sizes = [events_column(size) for size in bench.plan.all_sizes]
    loads = [events_column(size) for size in bench.plan.sizes]
    fork, whole, load = (times[what] for what in ("fork", "turn", "load"))
    tables = (
        times_table("Fork", "fork, median", sizes, fork, ours.NAME),
        times_table("Turn", "turn, median", sizes, whole, ours.NAME),
        times_table("Cold load", "load, median", loads, load, ours.NAME),
        times_table("Chain", "load at the end, median", ["load"], chain, CHAIN),
        _rates_table(rates),
        disk,
        nodes,
    )
    small, large = sizes[0], sizes[-1]
    share = median(rates[ours.NAME].together) / median(rates[BARE_TURN].together)
    budgets = (
        worst(
            f"PostgreSQL: fork of {large}, against {small}",
            1.2,
            [ratio("", fork[ours.NAME, large], fork[ours.NAME, small])],
        ),
        worst(
            "PostgreSQL: turn against the same rows in one statement by psycopg",
            1.6,
            [ratio(column, whole[ours.NAME, column], whole[BARE_TURN, column]) for column in sizes],
        ),
        worst(
            f"PostgreSQL: cold load at the end of a chain of {bench.plan.chain:,} forks, against one segment",
            1.5,
            [ratio("", chain[CHAIN, "load"], chain[FLAT, "load"])],
        ),
        Budget(f"PostgreSQL: {_WRITERS} writers against as many of the floor", 0.5, share, at_least=True),
        gain,
    )
    return Section("On PostgreSQL", f"{TEXT}\n\n{two_nodes.TEXT}", tables, budgets)


async def _times(stand: Stand, url: str) -> dict[str, dict[Place, Times]]:
    """Fork, turn and load at every size."""
    bench, plan = stand.bench, stand.bench.plan
    store = await stand.store(url)
    forks: list[Contender] = []
    turns: list[Contender] = []
    loads: list[Contender] = []
    for size in plan.all_sizes:
        bench.progress.say(f"  building two conversations of {size:,} events")
        (mine, _), (bare, _) = [await ours.fill(store, size, bench.progress) for _ in range(2)]
        floor = await stand.floor(url, bare)
        column = events_column(size)
        forks += [Contender(ours.NAME, column, _forking(store, mine)), Contender(BARE_ROW, column, _row(floor))]
        turns += [Contender(ours.NAME, column, _turning(store, mine, size)), Contender(BARE_TURN, column, _rows(floor))]
        if size in plan.sizes:
            whole = await store.events(mine)
            document = [{"turn": each.turn, "envelope": each.envelope, "body": each.body} for each in whole]
            await make_documents(url, f"floor_{size}", [msgspec.json.encode(each).decode() for each in document])
            loads += [Contender(ours.NAME, column, _loading(url, await _fixed(store, size, bench), size))]
            loads += [Contender(BARE_SCAN, column, _scanning(url, f"floor_{size}", size))]
            local = await bench.history(size)
            file = await stand.exits.enter_async_context(await ours.opened(bench.copy(local)))
            forks.append(Contender(SQLITE, column, _forking(file, local.conversation)))
            turns.append(Contender(SQLITE, column, _turning(file, local.conversation, size)))
            loads.append(Contender(SQLITE, column, _loading(f"sqlite:///{local.path}", local.conversation, size)))
    for peer in await _peers(stand, "peers", 4):
        for size in plan.sizes:
            column, most = events_column(size), (plan.peer_rounds, plan.peer_seconds)
            await peer.append(f"it-{size}", peer.native(messages(0, size)))
            forks.append(Contender(peer.name, column, _of_peer(peer, f"it-{size}", "fork"), *most))
            loads.append(Contender(peer.name, column, _of_peer(peer, f"it-{size}", "load"), *most))
            turns.append(Contender(peer.name, column, _of_peer(peer, f"it-{size}", "turn"), *most))
    found = {}
    _settle()
    for what, contenders, rounds in (
        ("fork", forks, plan.rounds),
        ("load", loads, plan.load_rounds),
        ("turn", turns, plan.rounds),
    ):
        bench.progress.say(f"  {what}")
        found[what] = await interleave(contenders, rounds, bench.progress)
    return found


def _settle() -> None:
    """What was made ready is not work for the collector while something is measured."""
    gc.collect()
    gc.freeze()


async def _fixed(store: Store, size: int, bench: Bench) -> str:
    """A conversation that no turn is added to."""
    return (await ours.fill(store, size, bench.progress))[0]


Step = Callable[[Stopwatch], Awaitable[None]]


def _forking(store: Store, conversation: str) -> Step:
    async def step(watch: Stopwatch) -> None:
        id = new_id()
        with watch:
            await ours.fork(store, conversation, id)

    return step


def _turning(store: Store, conversation: str, size: int) -> Step:
    numbers = count(size // TURN)

    async def step(watch: Stopwatch) -> None:
        id, events = new_id(), ours.events(turn(next(numbers)))
        with watch:
            await ours.turn(store, conversation, id, events)

    return step


def _row(floor: PostgresFloor) -> Step:
    async def step(watch: Stopwatch) -> None:
        rows = floor.fork_row()
        with watch:
            await floor.write(rows)

    return step


def _rows(floor: PostgresFloor) -> Step:
    async def step(watch: Stopwatch) -> None:
        rows = floor.turn_rows()
        with watch:
            await floor.write(rows)

    return step


def _loading(url: str, conversation: str, size: int) -> Step:
    async def step(watch: Stopwatch) -> None:
        async with await open_store(url) as store:
            gc.collect()
            with watch:
                found = await store.events(conversation)
            assert len(found) == size

    return step


def _scanning(url: str, table: str, size: int) -> Step:
    async def step(watch: Stopwatch) -> None:
        async with await psycopg.AsyncConnection.connect(url) as db:
            gc.collect()
            with watch:
                rows = await (await db.execute(f"SELECT id, body FROM {table} ORDER BY id".encode())).fetchall()
                found = [(id, json.loads(body)) for id, body in rows]
            assert len(found) == size

    return step


def _of_peer(peer: Any, conversation: str, what: str) -> Step:
    numbers = count(1_000_000)

    async def step(watch: Stopwatch) -> None:
        native = peer.native(turn(next(numbers)))
        if what == "turn":
            with watch:
                await peer.append(conversation, native)
        else:
            with watch:
                await (peer.fork if what == "fork" else peer.load)(conversation)

    return step


async def _peers(stand: Stand, name: str, connections: int) -> Sequence[Any]:
    from benchmarks.on_postgres import peers

    return await peers.opened(await stand.database(name), stand.exits, connections)


# A chain of forks of forks.


async def _chain(stand: Stand, url: str) -> dict[Place, Times]:
    bench, links = stand.bench, stand.bench.plan.chain
    bench.progress.say(f"  building a chain of {links:,} forks")
    store = await stand.store(url)
    ends = {}
    for row in (CHAIN, FLAT):
        conversation = await ours.new_conversation(store)
        for link in range(links):
            bench.progress.part("link", link, links)
            if row == CHAIN and link:
                conversation = (await ours.fork(store, conversation, new_id())).id
            await store.note(conversation, new_id(), ours.events(messages(link * _LINK, _LINK, turn=_LINK)))
        ends[row] = conversation
    contenders = [Contender(row, "load", _loading(url, end, links * _LINK)) for row, end in ends.items()]
    return await interleave(contenders, bench.plan.load_rounds, bench.progress)


# Writers at once.


async def _rates(stand: Stand, url: str) -> dict[str, Rates]:
    bench, plan = stand.bench, stand.bench.plan
    bench.progress.say(f"  {_WRITERS} writers on {_WRITERS} conversations")
    store = await stand.store(url)
    peers = await _peers(stand, "writers", _WRITERS)
    names = [ours.NAME, BARE_TURN, *(peer.name for peer in peers)]
    rates = {name: Rates([], []) for name in names}
    floors = [await stand.floor(url, await _begun(store)) for _ in range(_WRITERS)]
    chance = random.Random(0)
    _settle()
    for number in range(plan.writer_rounds):
        order = list(names) if number % 3 == 0 else names[:2]
        chance.shuffle(order)
        for name in order:
            bench.progress.part("round", number, plan.writer_rounds)
            for at_once, into in ((1, rates[name].alone), (_WRITERS, rates[name].together)):
                work = await _work(name, store, floors, peers, plan.writer_turns)
                into.append(await _rate(work, at_once))
    return rates


async def _work(
    name: str, store: Store, floors: Sequence[PostgresFloor], peers: Sequence[Any], turns: int
) -> list[list[Callable[[], Awaitable[Any]]]]:
    """For each writer its turns, ready to be written."""
    if name == BARE_TURN:
        return [[_bound(floor.write, floor.turn_rows()) for _ in range(turns)] for floor in floors]
    numbers = range(_BEFORE // TURN, _BEFORE // TURN + turns)
    work = []
    for _ in range(_WRITERS):
        if name == ours.NAME:
            it = await _begun(store)
            work.append([_bound(ours.turn, store, it, new_id(), ours.events(turn(number))) for number in numbers])
        else:
            (peer,) = [peer for peer in peers if peer.name == name]
            it = new_id()
            await peer.append(it, peer.native(messages(0, _BEFORE)))
            work.append([_bound(peer.append, it, peer.native(turn(number))) for number in numbers])
    return work


async def _begun(store: Store) -> str:
    """A conversation with some history, whose last turn is one of four events."""
    conversation = await ours.new_conversation(store)
    await store.note(conversation, new_id(), ours.events(messages(0, _BEFORE - TURN)))
    await ours.turn(store, conversation, new_id(), ours.events(messages(_BEFORE - TURN, TURN)))
    return conversation


def _bound(do: Callable[..., Awaitable[Any]], *arguments: Any) -> Callable[[], Awaitable[Any]]:
    return lambda: do(*arguments)


async def _rate(work: Sequence[Sequence[Callable[[], Awaitable[Any]]]], at_once: int) -> float:
    """Turns per second when this many write at once."""
    limiter = anyio.CapacityLimiter(at_once)

    async def write(turns: Sequence[Callable[[], Awaitable[Any]]]) -> None:
        async with limiter:
            for one in turns:
                await one()

    start = time.perf_counter()
    async with anyio.create_task_group() as group:
        for turns in work:
            group.start_soon(write, turns)
    return sum(map(len, work)) / (time.perf_counter() - start)


def _rates_table(rates: dict[str, Rates]) -> Table:
    header = ("turns per second, median", "one alone", f"{_WRITERS} on {_WRITERS} conversations", "gain")
    rows = []
    for name, each in rates.items():
        alone, together = median(each.alone), median(each.together)
        rows.append((name, figure(alone), figure(together), factor(together / alone)))
    return Table("Writers at once", header, tuple(rows))


# Bytes.


async def _disk(stand: Stand) -> Table:
    """What turns take on the disk: all tables and indexes, by how many turns a conversation has."""
    rows = []
    for turns in (1, 10, 100):
        name = f"disk_{turns}"
        url = await stand.database(name)
        many = max(1, 400 // turns)
        async with await open_store(url) as store:
            empty = await anyio.to_thread.run_sync(stand.size, name)
            for _ in range(many):
                conversation = await ours.new_conversation(store)
                for number in range(turns):
                    await ours.turn(store, conversation, new_id(), ours.events(turn(number)))
        grown = await anyio.to_thread.run_sync(stand.size, name) - empty
        payload = TURN * 1040
        each = grown / many / turns
        rows.append((f"{turns:,}", f"{each:,.0f}", factor(each / payload), f"{grown / many:,.0f}"))
    header = (
        "turns of four events of 1 KB in a conversation",
        "bytes a turn",
        "of its payload",
        "bytes a conversation",
    )
    return Table("Bytes", header, tuple(rows))
