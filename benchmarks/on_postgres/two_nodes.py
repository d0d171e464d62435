"""One node and two on the same database, where a node is the limit and the database is not.

On one machine everything shares the same cores, so two nodes at full speed would measure the machine. Therefore each
node may only run for a part of the time: it is stopped and continued by signals, as a slow machine of its own would be.
"""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import anyio.to_thread

from benchmarks import server_model
from benchmarks.bench import Bench
from benchmarks.results import Budget, Table
from benchmarks.server import cpu_of, forkpoint_serving, model_arguments
from benchmarks.server_load import FORKPOINT, Load, Report, Task, loading
from benchmarks.tables import factor, figure

SHARE = 0.2
"""Of the time that a node may run."""

_BEAT = 0.02  # seconds in which a node runs once and stands once
_CLIENTS = 16  # of each node
_TURNS = 4

TEXT = f"""\
Two nodes: `forkpoint serve` on the same database, once one and once two, {_CLIENTS} clients each, and a model that
answers at once. Each node may only run for {SHARE:.0%} of the time (SIGSTOP and SIGCONT), as if it had a slow machine
of its own, so that the nodes are the limit and not the cores that all share with the database."""


async def measure(bench: Bench, url: str) -> tuple[Table, Budget]:
    """``url`` is an empty database."""
    return await anyio.to_thread.run_sync(partial(_measure, bench, url))


def _measure(bench: Bench, url: str) -> tuple[Table, Budget]:
    bench.progress.say("  one node, and two")
    folder = bench.new_file().parent
    with ExitStack() as exits:
        model, _ = exits.enter_context(server_model.serving())
        nodes = [exits.enter_context(_node(url, model, folder, number)) for number in range(2)]
        loads = [exits.enter_context(loading()) for _ in nodes]
        with ThreadPoolExecutor(len(nodes)) as threads:
            _run(threads, nodes, loads, conversations=1)  # connections are made, statements prepared
            for number, (_, pid) in enumerate(nodes):
                exits.enter_context(slowed(pid, later=number * _BEAT / 2))
            rates: tuple[list[float], list[float]] = ([], [])
            used: list[float] = []
            for _ in range(bench.plan.writer_rounds // 3 * 2 + 1):
                for count in (1, 2):
                    before = [cpu_of(pid) for _, pid in nodes]
                    reports = _run(threads, nodes[:count], loads, conversations=1 if bench.plan.quick else 6)
                    turns = sum(len(report.own) for report in reports)
                    rates[count - 1].append(turns / max(report.seconds for report in reports))
                    used.append(sum(cpu_of(pid) for _, pid in nodes) - sum(before))
                    used[-1] /= turns
    one, two = (median(found) for found in rates)
    rows = (("one node", figure(one), ""), ("two nodes", figure(two), factor(two / one)))
    note = f"CPU of a node for a turn: {median(used) * 1000:.1f} ms."
    table = Table("Nodes", ("turns per second, median", "all nodes together", "gain"), rows, note)
    return table, Budget("PostgreSQL: two nodes against one", 1.6, two / one, at_least=True)


def _run(
    threads: ThreadPoolExecutor, nodes: Sequence[tuple[str, int]], loads: Sequence[Load], *, conversations: int
) -> list[Report]:
    tasks = [Task(url, FORKPOINT, "json", _CLIENTS, conversations, _TURNS) for url, _ in nodes]
    running = [threads.submit(load.run, task) for load, task in zip(loads, tasks, strict=False)]
    reports = [each.result() for each in running]
    if failures := [failure for report in reports for failure in report.failures]:
        raise RuntimeError(f"turns failed: {failures}")
    return reports


@contextmanager
def _node(url: str, model: str, folder: Path, number: int) -> Iterator[tuple[str, int]]:
    options = ("--store", url, "--instructions", "Be short.", *model_arguments(model))
    with forkpoint_serving(folder, *options, log=folder / f"node-{number}.log") as node:
        yield node


@contextmanager
def slowed(pid: int, *, later: float) -> Iterator[None]:
    """Lets a process run for a part of the time only. ``later`` keeps two of them out of each other's way."""
    ending = threading.Event()

    def beat() -> None:
        ending.wait(later)
        try:
            while not ending.is_set():
                os.kill(pid, signal.SIGSTOP)
                ending.wait(_BEAT * (1 - SHARE))
                os.kill(pid, signal.SIGCONT)
                ending.wait(_BEAT * SHARE)
        finally:
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=beat, name=f"slows {pid}")
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
