"""Branches of a long conversation: `python -m benchmarks.branches`.

Fork, substitute, go on, keep, compare and bring are measured on two conversations, one of 100 events and one of a
million, whose prompts show equally much. What is printed is the ratio of the two: a ratio near 1 says that the verb
costs the same however long the history is.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

from benchmarks.progress import Progress
from benchmarks.tables import factor, milliseconds
from benchmarks.timing import Contender, Stopwatch, interleave
from forkpoint import Agent, AsyncConversation, Turn, tool
from forkpoint.events import AssistantMessage, BroughtAs, Condensation, Event, NewEvent, Text, UserMessage
from forkpoint.ids import new_id
from forkpoint.llm.scripts import Heard
from forkpoint.store import open_store
from forkpoint.testing import Reply, Script, ScriptedCall

SHORT = 100
LIMIT = 1.2
"""How many times the short conversation's time the same verb may take in the long one."""

SHOWN = 40  # events before the condensation that prompts still show
_NOTE = 20_000  # events in one note, while a history is built

Verb: TypeAlias = Callable[[Stopwatch], Awaitable[None]]


@tool
def look() -> str:
    """Looks at the disk."""
    return "The disk is full."


def _reply(heard: Heard) -> Reply:
    """A call of the tool for whoever says "Look", and words for everything else."""
    is_asked = heard.text.startswith("Look") and heard.body["messages"][-1]["role"] == "user"
    return Reply("Hm.", calls=(ScriptedCall("look", "{}"),)) if is_asked else Reply("Well.")


_AGENT = Agent(Script(_reply).register("benchmark-branches"), tools=[look])


class BranchedConversation:
    """A conversation of a certain length that ends in a turn with a tool call, and a branch that goes on from there."""

    def __init__(self, talk: AsyncConversation, last: Turn, branch: AsyncConversation) -> None:
        self._talk, self._last, self._branch = talk, last, branch
        events = [event for event in last.events if isinstance(event, Event)]
        self._result = next(event for event in events if event.kind == "tool_result")
        self._calls = {call.id: "The disk is empty." for call in last.calls}

    @property
    def verbs(self) -> dict[str, Verb]:
        """What is measured, by its name."""
        return {
            "fork in the middle of a turn": self._fork,
            "fork with another result": self._substitute,
            "go on": self._go_on,
            "keep": self._keep,
            "compare": self._compare,
            "bring an answer": partial(self._bring, "answer"),
            "bring turns": partial(self._bring, "turns"),
        }

    async def _fork(self, watch: Stopwatch) -> None:
        with watch:
            fork = await self._talk.fork(at=self._result)
        await fork.close()

    async def _substitute(self, watch: Stopwatch) -> None:
        with watch:
            fork = await self._talk.fork(at=self._last.calls[0], results=self._calls)
        await fork.close()

    async def _go_on(self, watch: Stopwatch) -> None:
        async with await self._talk.fork(at=self._result) as fork:
            with watch:
                await fork.go_on()

    async def _keep(self, watch: Stopwatch) -> None:
        async with await self._talk.fork() as fork:
            with watch:
                aside = await fork.keep(self._branch)
            if aside is not None:
                await aside.close()

    async def _compare(self, watch: Stopwatch) -> None:
        with watch:
            await self._talk.diff(self._branch)

    async def _bring(self, what: BroughtAs, watch: Stopwatch) -> None:
        async with await self._talk.fork() as fork:
            with watch:
                await fork.bring(self._branch, what)


async def build(store: str, events: int, progress: Progress) -> BranchedConversation:
    """Makes a conversation with about this many events, condensed near its end, and a branch of it."""
    talk = AsyncConversation(_AGENT, store=store)
    await talk.run("Hello.")
    async with await open_store(store) as file:
        done = (await file.read(talk.id)).head.ordinal
        while (left := events - done) > 0:
            await file.note(talk.id, new_id(), [_said(done + n) for n in range(min(left, _NOTE) // 2 * 2 or 2)])
            done = (await file.read(talk.id)).head.ordinal
            progress.part("events of", done, events)
        await file.note(talk.id, new_id(), [NewEvent(Condensation("They counted.", done - SHOWN + 1))])
    last = await talk.run("Look, please.")
    branch = await talk.fork(before=last)
    await branch.run("And otherwise?")
    return BranchedConversation(talk, last, branch)


def _said(ordinal: int) -> NewEvent:
    words = (Text(f"This is what was said as number {ordinal}: one more sentence of a long conversation."),)
    return NewEvent(AssistantMessage(words) if ordinal % 2 else UserMessage(words))


async def measure(folder: str, events: int, rounds: int, progress: Progress) -> int:
    """Prints the table. Returns 1 if a verb takes too long in the long conversation."""
    made: dict[int, BranchedConversation] = {}
    for count in (SHORT, events):
        progress.say(f"making a conversation of {count:,} events")
        made[count] = await build(f"sqlite:///{folder}/{count}.db", count, progress)
    contenders = [
        Contender(verb, f"{count:,}", step) for count, one in made.items() for verb, step in one.verbs.items()
    ]
    times = await interleave(contenders, rounds, progress)
    slow = 0
    print(f"{'':30}{f'{SHORT:,} events':>16}{f'{events:,} events':>20}   ratio")
    for verb in made[SHORT].verbs:
        short, long = (times[verb, f"{count:,}"].median for count in (SHORT, events))
        slow += long > LIMIT * short
        mark = f"  more than {LIMIT}" if long > LIMIT * short else ""
        print(f"{verb:30}{milliseconds(short):>16}{milliseconds(long):>20}   {factor(long / short)}{mark}")
    return int(bool(slow))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.branches", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="of the long conversation (default: 1,000,000)")
    parser.add_argument("--rounds", type=int, default=60, help="how often each verb is run (default: 60)")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measure(folder, chosen.events, chosen.rounds, Progress()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
