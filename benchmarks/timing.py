"""Measuring contenders against each other: round by round, in changing order, on one clock."""

import gc
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from statistics import median
from types import TracebackType
from typing import TypeAlias

from msgspec import Struct

from benchmarks.progress import Progress

_FEWEST = 5  # rounds that even the slowest takes part in


class Stopwatch:
    """Times what runs inside ``with``. The garbage collector rests meanwhile, for everyone alike, unless told."""

    def __init__(self, *, collector: bool = False) -> None:
        self.seconds: list[float] = []
        self._collector = collector
        self._start = 0

    def __enter__(self) -> None:
        if not self._collector:
            gc.disable()
        self._start = time.perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        taken = time.perf_counter_ns() - self._start
        gc.enable()
        self.seconds.append(taken / 1e9)


Step: TypeAlias = Callable[[Stopwatch], Awaitable[None]]
"""Does one operation, the measured part of it within the stopwatch."""

Place: TypeAlias = tuple[str, str]
"""Row and column of a table."""


class Contender(Struct, frozen=True):
    """One operation of one product at one size."""

    row: str
    column: str
    step: Step
    most: int | None = None  # rounds that it takes part in, evenly spread; None: all
    seconds: float = inf  # that it may take in all, else it takes part in fewer
    collector: bool = False


class Times(Struct, frozen=True):
    """What the rounds came to, in seconds."""

    median: float
    best: float
    rounds: int


async def interleave(contenders: Sequence[Contender], rounds: int, progress: Progress) -> dict[Place, Times]:
    """Lets contenders take turns. The order is drawn anew each round, so that nobody always follows the same one."""
    watches = {(each.row, each.column): Stopwatch(collector=each.collector) for each in contenders}
    every = [await _warm_up(each, rounds) for each in contenders]
    chance = random.Random(0)
    for number in range(rounds):
        progress.part("round", number, rounds)
        order = [each for each, pause in zip(contenders, every, strict=True) if number % pause == 0]
        chance.shuffle(order)
        for each in order:
            await each.step(watches[each.row, each.column])
    return {
        place: Times(median(watch.seconds), min(watch.seconds), len(watch.seconds)) for place, watch in watches.items()
    }


async def _warm_up(contender: Contender, rounds: int) -> int:
    """Lets statements be prepared and threads be started; returns in every how many rounds it can take part."""
    start = time.perf_counter()
    await contender.step(Stopwatch())
    affordable = int(min(contender.most or rounds, contender.seconds / (time.perf_counter() - start)))
    return max(1, rounds // max(affordable, _FEWEST))
