"""A turn through an agent, and a fork: what each product adds to the model's own time."""

import gc
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import cycle
from math import inf
from pathlib import Path

from benchmarks.arena import IT, Arena, arena
from benchmarks.bench import Bench
from benchmarks.peers_runners import LangGraphAgent, OpenAIBranches, OpenAIRunner
from benchmarks.plan import Plan
from benchmarks.progress import Progress
from benchmarks.results import Section
from benchmarks.runners import BareCall, Forkpoint, RunnerKind, SdkCall
from benchmarks.scripted_model import LOOK, PLAIN, serving
from benchmarks.tables import Cost, cost_table
from benchmarks.timing import Contender, Place, Step, Stopwatch, Times, interleave

AGAIN = "another turn"
OPENED = "the first turn after opening"
TOOL = "another turn, with a tool call"

_ADDS = {PLAIN: 2, LOOK: 4}  # messages that a turn adds
_GROWTH = 10  # a conversation grows by one part in so many, then another is used
_SENT = 20_000  # earlier messages in all rounds of a size: peers take long over many
_FEWEST = 2  # rounds of a size
_OFTEN = 5  # times in a round for what is cheap, so that it seldom follows one who left caches cold and disks busy
_FORKS = 20  # the same for forks
_WITH_TOOL = 1_000  # messages up to which turns with a tool call are measured

TEXT = """\
A turn through each product's agent, on one scripted model that all of them ask over loopback HTTP (chat completions);
it runs in a process of its own and answers at once, always the same. *Own cost* is everything but the model and the
tool: the time of the whole turn less that of a bare HTTP call to the same model, with a body of the same size, in the
same rounds (two calls if the turn calls the tool). A cell has how many times Forkpoint's own cost it is, then that
cost, and the whole turn that it is part of. Each is driven as its documentation shows: `AsyncConversation.run`;
`Runner.run` with a `SQLiteSession`; `invoke` of the prebuilt agent with a `SqliteSaver`. Forkpoint has answers streamed
and the others have them whole, as each does by default; from each the bare call of its own kind is taken. Both peers
call `create()` of OpenAI's SDK, which goes through every message and is a large part of their time when there are many:
it is shown by itself, with the messages ready. Forkpoint gives the same SDK the request's bytes. Earlier messages have
200 characters and are a user's and the model's in turn, with all that the product's own turns leave beside them:
Forkpoint has three events for two messages, since it records each call of the model. The model counts what it is sent,
and no turn passes that did not send all messages. *Another turn* is run by objects that have run one before, of which
only Forkpoint keeps something: the prompt. *Opening* makes anew what a new process would, imports and trusted
certificates aside: the agent, the client and its connection, the store or session. *Another turn* waits for the disk
once in Forkpoint, twice in SQLiteSession and five times in SqliteSaver; with a tool call three, three and nine times.
After 10,000 messages, where turns of theirs take seconds, peers have two rounds, and no turn calls the tool. For a fork
SQLiteSession reads all items and adds them to another session, AdvancedSQLiteSession makes a branch, whose nearest
place to the head is before the last turn, and LangGraph copies the state to another thread."""


async def measure(bench: Bench) -> Section:
    plan, progress = bench.plan, bench.progress
    gc.collect()
    gc.freeze()  # what importing all this left behind
    kinds: list[RunnerKind] = [Forkpoint, OpenAIRunner, LangGraphAgent]
    forking: list[RunnerKind] = [*kinds, OpenAIBranches]
    turned: dict[Place, Times] = {}
    forked: dict[Place, Times] = {}
    with serving() as url:
        for size in plan.messages:
            progress.say(f"  turns and forks after {size:,} messages")
            async with arena(bench) as here, AsyncExitStack() as exits:
                stand = _Stand(plan, here, exits, url, size)
                turned |= await stand.run(await _turns(stand, kinds), _OFTEN, progress)
                forks = [await _fork(stand, kind) for kind in forking]
                forked |= await stand.run(forks, _FORKS, progress)

    columns = [_column(size) for size in plan.messages]
    tables = [
        cost_table(situation, f"own cost: {situation}", columns, _costs(turned, kinds, columns, situation))
        for situation in (AGAIN, OPENED, TOOL)
    ]
    tables.append(cost_table("A fork", "a fork", columns, {place: Cost(each.median) for place, each in forked.items()}))
    return Section("A turn through an agent, and a fork", TEXT, tuple(tables))


class _Stand:
    """Where the contenders of one size are made, with a model to ask. What they hold is closed when it is over."""

    def __init__(self, plan: Plan, here: Arena, exits: AsyncExitStack, url: str, size: int) -> None:
        self.here = here
        self.exits = exits
        self.url = url
        self.size = size
        self.rounds = max(_FEWEST, min(plan.run_rounds, _SENT // size))
        self._plan = plan

    async def run(self, contenders: Sequence[Contender], often: int, progress: Progress) -> dict[Place, Times]:
        os.sync()  # what the building left to be written must not be written while a clock runs
        cheap = [each for each in contenders if each.seconds == inf]
        return await interleave([*contenders, *cheap * (often - 1)], self.rounds, progress)

    def turns(self, kind: RunnerKind) -> int:
        """How many turns of a product are measured at most, the first included that only warms up."""
        return (self.rounds + 1) * (_OFTEN if kind is Forkpoint else 1)

    def contender(self, row: str, step: Step, *, peer: bool = False) -> Contender:
        column = _column(self.size)
        if not peer:
            return Contender(row, column, step)
        return Contender(row, column, step, seconds=self._plan.peer_seconds)


class _Pool:
    """Conversations to take in turn, so that none grows much; and how long each is by now."""

    def __init__(self, names: Sequence[str], size: int) -> None:
        self._lengths = dict.fromkeys(names, size)
        self._next = cycle(names)

    def next(self) -> str:
        return next(self._next)

    def grown(self, name: str, question: str, shown: int) -> None:
        """A turn has ended in which the model was sent so many messages: instructions, all earlier ones, its own."""
        earlier = self._lengths[name]
        wanted = earlier + 2 + (earlier + 4 if question == LOOK else 0)
        assert shown == wanted, f"the model was sent {shown:,} messages of {wanted:,}"
        self._lengths[name] += _ADDS[question]


async def _turns(stand: _Stand, kinds: Sequence[RunnerKind]) -> list[Contender]:
    """Each product's turns in every situation, and the calls of the model that they contain."""
    with_tool = stand.size <= _WITH_TOOL
    questions = (PLAIN, LOOK) if with_tool else (PLAIN,)
    made = [_bare(stand, streams, question) for streams in (True, False) for question in questions]
    made.append(_sdk(stand))
    for kind in kinds:
        path, names = await _filled(stand, kind)
        made.append(await _again(stand, kind, path, names, AGAIN, PLAIN))
        if with_tool:
            made.append(await _again(stand, kind, path, names, TOOL, LOOK))
        made.append(_opened(stand, kind, path, names))
    return made


async def _filled(stand: _Stand, kind: RunnerKind) -> tuple[Path, list[str]]:
    """A file with as many conversations as are needed."""
    path = stand.here.file()
    turns_of_each = max(1, stand.size // _GROWTH // _ADDS[LOOK])
    names = [f"{IT}-{number}" for number in range(-(-stand.turns(kind) // turns_of_each))]
    runner = kind(path, stand.url)
    for name in names:
        await runner.fill(name, stand.size)
    await runner.close()
    return path, names


async def _again(
    stand: _Stand, kind: RunnerKind, filled: Path, names: Sequence[str], situation: str, question: str
) -> Contender:
    path = stand.here.file()
    shutil.copyfile(filled, path)
    runner = kind(path, stand.url)
    stand.exits.push_async_callback(runner.close)
    pool = _Pool(names, stand.size)
    for name in names[1:]:  # the first one has its turn when contenders warm up
        pool.grown(name, PLAIN, runner.shown(await runner.turn(name, PLAIN)))

    async def step(watch: Stopwatch) -> None:
        name = pool.next()
        with watch:
            result = await runner.turn(name, question)
        pool.grown(name, question, runner.shown(result))

    return stand.contender(_row(kind, situation), step, peer=kind is not Forkpoint)


def _opened(stand: _Stand, kind: RunnerKind, path: Path, names: Sequence[str]) -> Contender:
    pool = _Pool(names, stand.size)

    async def step(watch: Stopwatch) -> None:
        name = pool.next()
        with watch:
            runner = kind(path, stand.url)
            result = await runner.turn(name, PLAIN)
        pool.grown(name, PLAIN, runner.shown(result))
        await runner.close()

    return stand.contender(_row(kind, OPENED), step, peer=kind is not Forkpoint)


async def _fork(stand: _Stand, kind: RunnerKind) -> Contender:
    runner = kind(stand.here.file(), stand.url)
    stand.exits.push_async_callback(runner.close)
    await runner.fill(IT, stand.size)

    async def step(watch: Stopwatch) -> None:
        with watch:
            made = await runner.fork(IT)
        await runner.after_fork(IT, made)

    return stand.contender(kind.name, step, peer=kind is not Forkpoint)


def _bare(stand: _Stand, streams: bool, question: str) -> Contender:
    bare = BareCall(stand.url, stand.size, streams=streams, question=question)
    stand.exits.push_async_callback(bare.close)

    async def step(watch: Stopwatch) -> None:
        with watch:
            await bare.run()

    return stand.contender(_bare_row(streams, question), step)


def _sdk(stand: _Stand) -> Contender:
    call = SdkCall(stand.url, stand.size)
    stand.exits.push_async_callback(call.close)

    async def step(watch: Stopwatch) -> None:
        with watch:
            await call.run()

    return stand.contender(SdkCall.name, step, peer=True)


def _costs(
    found: Mapping[Place, Times], kinds: Sequence[RunnerKind], columns: Sequence[str], situation: str
) -> dict[Place, Cost]:
    """What each product adds to the bare calls, and how long those take."""
    question = LOOK if situation == TOOL else PLAIN
    costs: dict[Place, Cost] = {}

    def add(row: str, times_of: str, streams: bool) -> None:
        for column in columns:
            whole, bare = found.get((times_of, column)), found.get((_bare_row(streams, question), column))
            if whole is not None and bare is not None:
                costs[row, column] = Cost(whole.median - bare.median, whole.median)

    for kind in kinds:
        add(kind.name, _row(kind, situation), kind.streams)
    if situation == AGAIN:
        add(SdkCall.name, SdkCall.name, streams=False)
    for streams in (True, False):
        row = _bare_row(streams, question)
        costs |= {(row, column): Cost(found[row, column].median) for column in columns if (row, column) in found}
    return costs


def _row(kind: RunnerKind, situation: str) -> str:
    return f"{kind.name}: {situation}"


def _bare_row(streams: bool, question: str) -> str:
    return f"bare HTTP, {'one call' if question == PLAIN else 'two calls'}, {'streamed' if streams else 'whole'}"


def _column(size: int) -> str:
    return f"{size:,} messages"
