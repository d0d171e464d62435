"""Sixteen writers at once: each on a conversation of its own, and all on the same one."""

import random
import time
from collections.abc import Sequence
from statistics import median

import anyio
from msgspec import Struct

from benchmarks import ours, peers
from benchmarks.arena import Arena, arena
from benchmarks.bench import Bench
from benchmarks.floor import Floor
from benchmarks.plan import Plan
from benchmarks.progress import Progress
from benchmarks.results import Budget, Section, Table
from benchmarks.samples import TURN, contiguous
from benchmarks.tables import factor, figure
from benchmarks.writing import BEFORE, Bare, Other, Ours, Product, Writer, make_conversations

WRITERS = 16

TEXT = f"""\
Turns of four events on conversations that begin with {BEFORE}. First {WRITERS} writers, each on a conversation of its
own in one database, against one writer alone that writes the same turns to the same number of conversations. Then
{WRITERS} writers on the same conversation: what was acknowledged is looked for afterwards. *Lost* is a turn that was
acknowledged and of which something is missing; *interleaved* is one whose messages do not stand together. Group
commit by hand shows how much there is to gain on this disk at all: one thread that does nothing else puts {WRITERS}
turns, whose rows were worked out before, into one transaction. Forkpoint refuses a second turn while one runs; its
writers try again until they are accepted. OpenAI's SQLiteSession is shown with a turn in one call, and in two, as its
`Runner` stores it: the question first, the rest when the model has answered. LangGraph's `invoke` likewise stores the
question and then the answer."""


class Rates(Struct, frozen=True):
    """Turns per second, in each round."""

    alone: list[float]
    together: list[float]


class Collision(Struct, frozen=True):
    """What became of turns that were written to one conversation at once."""

    acknowledged: int = 0
    refused: int = 0
    failed: int = 0
    lost: int = 0
    interleaved: int = 0

    def __add__(self, other: "Collision") -> "Collision":
        return Collision(
            self.acknowledged + other.acknowledged,
            self.refused + other.refused,
            self.failed + other.failed,
            self.lost + other.lost,
            self.interleaved + other.interleaved,
        )


async def measure(bench: Bench) -> Section:
    plan = bench.plan
    async with arena(bench) as here:
        us, others = await _us(here), await _others(here)
        bench.progress.say(f"  {WRITERS} writers on {WRITERS} conversations")
        rates = await _rates([us, await _bare(here, plan), *others], plan, bench.progress)
        rates["bare SQLite, group commit by hand"] = await _by_hand(here, plan)
        bench.progress.say(f"  {WRITERS} writers on one conversation")
        collisions = await _collisions([us, *others], plan, bench.progress)
    gain = _gain(rates[ours.NAME])
    budget = Budget(f"{WRITERS} conversations committing at once against one alone", 2.5, gain, at_least=True)
    return Section("Writers at once", TEXT, (_rates_table(rates), _collisions_table(collisions)), (budget,))


async def _us(here: Arena) -> Ours:
    return Ours(await here.store())


async def _others(here: Arena) -> list[Other]:
    return [Other(here.empty_peer(kind)) for kind in peers.writing()]


async def _bare(here: Arena, plan: Plan) -> Bare:
    path = here.file()
    bare = Bare(path, await make_conversations(path, 2 * WRITERS * plan.writer_rounds))
    here.later(bare.close)
    return bare


async def _rates(products: Sequence[Product], plan: Plan, progress: Progress) -> dict[str, Rates]:
    rates = {product.name: Rates([], []) for product in products}
    chance = random.Random(0)
    for number in range(plan.writer_rounds):
        order = [each for each in products if number % 3 == 0 or isinstance(each, Ours | Bare)]
        chance.shuffle(order)
        for product in order:
            progress.part("round", number, plan.writer_rounds)
            rates[product.name].alone.append(await _rate(await _writers(product), plan.writer_turns, at_once=1))
            rates[product.name].together.append(await _rate(await _writers(product), plan.writer_turns))
    return rates


async def _by_hand(here: Arena, plan: Plan) -> Rates:
    path = here.file()
    floors = [Floor(path, conversation) for conversation in await make_conversations(path, WRITERS)]
    for floor in floors:
        here.later(floor.close)
    rates = Rates([], [])
    for _ in range(plan.writer_rounds):
        singles = [floor.turn_rows() for _ in range(plan.writer_turns) for floor in floors]
        start = time.perf_counter()
        for rows in singles:
            floors[0].write_turn(rows)
        rates.alone.append(len(singles) / (time.perf_counter() - start))
        groups = [[floor.turn_rows() for floor in floors] for _ in range(plan.writer_turns)]
        start = time.perf_counter()
        for group in groups:
            floors[0].write_turns(group)
        rates.together.append(len(groups) * WRITERS / (time.perf_counter() - start))
    return rates


async def _writers(product: Product) -> list[Writer]:
    return [product.writer(await product.conversation()) for _ in range(WRITERS)]


async def _rate(writers: Sequence[Writer], turns: int, *, at_once: int = WRITERS) -> float:
    """Turns per second when this many write at once."""
    work = [(writer, [writer.prepare(BEFORE // TURN + number) for number in range(turns)]) for writer in writers]
    limiter = anyio.CapacityLimiter(at_once)

    async def write(writer: Writer, prepared: Sequence[object]) -> None:
        async with limiter:
            for turn in prepared:
                await writer.write(turn)

    start = time.perf_counter()
    async with anyio.create_task_group() as group:
        for writer, prepared in work:
            group.start_soon(write, writer, prepared)
    return len(writers) * turns / (time.perf_counter() - start)


async def _collisions(products: Sequence[Ours | Other], plan: Plan, progress: Progress) -> dict[str, Collision]:
    collisions = {product.name: Collision() for product in products}
    for number in range(plan.collisions):
        for product in products:
            progress.part("round", number, plan.collisions)
            collisions[product.name] += await _collide(product, plan.writer_turns)
    return collisions


async def _collide(product: Ours | Other, turns: int) -> Collision:
    conversation = await product.conversation()
    acknowledged: list[int] = []
    refused: list[int] = []
    failed: list[int] = []

    async def write(writer: Writer, numbers: range) -> None:
        for number, prepared in [(number, writer.prepare(number)) for number in numbers]:
            try:
                refused.append(await writer.write(prepared))
                acknowledged.append(number)
            except Exception:  # whatever a peer raises: its caller was told that the turn is not stored
                failed.append(number)

    first = BEFORE // TURN
    async with anyio.create_task_group() as group:
        for n in range(WRITERS):
            mine = range(first + n * turns, first + (n + 1) * turns)
            group.start_soon(write, product.writer(conversation), mine)
    stored = await product.numbers(conversation)
    found = [contiguous(stored, number) for number in acknowledged]
    return Collision(len(acknowledged), sum(refused), len(failed), found.count(None), found.count(False))


def _gain(rates: Rates) -> float:
    return median(rates.together) / median(rates.alone)


def _rates_table(rates: dict[str, Rates]) -> Table:
    rows = tuple(
        (name, figure(median(each.alone)), figure(median(each.together)), factor(_gain(each)))
        for name, each in rates.items()
    )
    header = ("turns per second, median", "one alone", f"{WRITERS} on {WRITERS} conversations", "gain")
    return Table("Conversations of their own", header, rows)


def _collisions_table(collisions: dict[str, Collision]) -> Table:
    rows = tuple(
        (name, *(f"{n:,}" for n in (each.acknowledged, each.refused, each.failed)), *_shares(each))
        for name, each in collisions.items()
    )
    header = ("turns", "acknowledged", "refused and tried again", "failed", "lost", "interleaved")
    return Table(f"{WRITERS} writers on one conversation", header, rows)


def _shares(collision: Collision) -> tuple[str, ...]:
    def share(count: int) -> str:
        return f"{count:,} ({count / max(1, collision.acknowledged):.0%})" if count else "0"

    return share(collision.lost), share(collision.interleaved)
