"""A long conversation with a condensation near its end: opened, run, and forked, by a process that knows nothing of it.

``./run python -m benchmarks.long [--events 1000000]``. Two conversations are built in a temporary folder, one short and
one long, whose prompts show equally much. Then fresh processes open them in turn, and say how long each act took and
how much memory they had at their most. What is printed are the medians, and the ratio of the long one to the short one:
a ratio near 1 says that a run reads what its prompt shows, and no more.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

import msgspec
from msgspec import Struct

from benchmarks.progress import Progress
from forkpoint import Agent, AsyncConversation
from forkpoint.events import AssistantMessage, Condensation, NewEvent, Text, UserMessage
from forkpoint.ids import new_id
from forkpoint.store import open_store

SHORT = 1_000
SHOWN = 200  # events before the condensation that prompts still show
TURNS = 20  # that follow it
_NOTE = 20_000  # events in one note, while a history is built

ACTS = ("open", "first run", "second run", "request", "fork", "fork's first run", "aside", "usage")
_AGENT = Agent("scripted/echo", instructions="Be brief.")


class Act(Struct, frozen=True):
    """What one act took: its seconds, and the most memory that the process had until its end, in MB."""

    name: str
    seconds: float
    memory: float


async def build(file: Path, events: int, progress: Progress) -> str:
    """Makes a conversation with about this many events, condensed near its end. Returns its id."""
    async with AsyncConversation(_AGENT, store=file) as conversation:
        await conversation.run("Hello")
        id = conversation.id
    async with await open_store(f"sqlite:///{file}") as store:
        done = (await store.read(id)).head.ordinal
        while (left := events - done - 4 * TURNS) > 0:
            await store.note(id, new_id(), [_said(done + n) for n in range(min(left, _NOTE) // 2 * 2 or 2)])
            done = (await store.read(id)).head.ordinal
            progress.part("events of", done, events)
        summary = NewEvent(Condensation("They counted, and nothing else happened.", done - SHOWN + 1))
        await store.note(id, new_id(), [summary])
    async with await AsyncConversation.open(id, agent=_AGENT, store=file) as conversation:
        for n in range(TURNS):
            await conversation.run(f"And then? {n}")
    return id


def _said(ordinal: int) -> NewEvent:
    words = (Text(f"This is what was said as number {ordinal}: one more sentence of a long conversation."),)
    return NewEvent(AssistantMessage(words) if ordinal % 2 else UserMessage(words))


async def measure(file: Path, id: str) -> list[Act]:
    """What a process that knows nothing yet needs for each act."""
    async with AsyncConversation(_AGENT, store="memory:") as other:
        await other.run("Hello")  # what is imported at first use is no part of it
    acts: list[Act] = []

    @asynccontextmanager
    async def act(name: str) -> AsyncIterator[None]:
        started = time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        acts.append(Act(name, seconds, _most_memory()))

    async with act("open"):
        conversation = await AsyncConversation.open(id, agent=_AGENT, store=file)
    async with act("first run"):
        await conversation.run("What did we say?")
    async with act("second run"):
        await conversation.run("And what else?")
    async with act("request"):
        await conversation.request("What would you see?")
    async with act("fork"):
        fork = await conversation.fork()
    async with act("fork's first run"):
        await fork.run("Now you.")
    async with act("aside"):
        await conversation.ask("By the way?")
    async with act("usage"):
        await conversation.stats()
    await fork.close()
    await conversation.close()
    return acts


def _most_memory() -> float:
    """The most that this process was ever resident, in MB. Linux counts ``ru_maxrss`` from its parent on."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="of the long conversation")
    parser.add_argument("--rounds", type=int, default=5, help="processes for each; what is printed is the median")
    parser.add_argument("--measure", nargs=2, metavar=("FILE", "ID"), help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.measure:
        found = asyncio.run(measure(Path(chosen.measure[0]), chosen.measure[1]))
        sys.stdout.buffer.write(msgspec.json.encode(found))
        return
    progress = Progress()
    with tempfile.TemporaryDirectory() as folder:
        made = [_made(Path(folder), events, progress) for events in (SHORT, chosen.events)]
        progress.say(f"measuring both, in {chosen.rounds} processes each")
        rounds = [[_measured(*one) for one in made] for _ in range(chosen.rounds)]
    print(f"{'':18}{SHORT:>12,} events{'':6}{chosen.events:>12,} events{'':6}ratio")
    for n, name in enumerate(ACTS):
        short, long = (_median(name, [found[which][n] for found in rounds]) for which in (0, 1))
        ratio = f"{long.seconds / short.seconds:6.1f} {long.memory / short.memory:6.2f}"
        print(f"{name:18}{_told(short)} {_told(long)} {ratio}")


def _median(name: str, found: list[Act]) -> Act:
    return Act(name, median(act.seconds for act in found), median(act.memory for act in found))


def _told(act: Act) -> str:
    return f"{act.seconds * 1000:9.1f} ms {act.memory:6.0f} MB"


def _made(folder: Path, events: int, progress: Progress) -> tuple[Path, str]:
    file = folder / f"{events}.db"
    progress.say(f"building a conversation of {events:,} events")
    return file, asyncio.run(build(file, events, progress))


def _measured(file: Path, id: str) -> list[Act]:
    command = [sys.executable, "-m", "benchmarks.long", "--measure", str(file), id]
    answer = subprocess.run(command, check=True, capture_output=True, timeout=600)
    return msgspec.json.decode(answer.stdout, type=list[Act])


if __name__ == "__main__":
    main(sys.argv[1:])
