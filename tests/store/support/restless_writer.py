"""A program that writes to a store in all the ways there are, until somebody kills it.

    python restless_writer.py FILE --seed N
    python restless_writer.py FILE --only-open

Several tasks work at once, each on conversations of its own, so that commits share transactions. On standard output
it says, in lines of JSON, what it is about to do (``{"will": "commit", "number": 7, ...}``) and, only after the call
has returned, that it was done (``{"did": 7, "head": "3-12"}``). Each event's text begins with its label, which is its
turn's id and its place in the turn: ``TURN:0``, ``TURN:1`` and so on.

It starts when a line comes on standard input. With ``--only-open`` it does nothing but open the store and close it
again, which moves the log into the file.
"""

import argparse
import os
import random
import sys
from itertools import count

import anyio
import msgspec

from forkpoint.events import NewEvent, Position, Usage
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import NewConversation, NewFork, Onto, OpenTurn, TurnError
from forkpoint.testing.samples import answers, calls, remembers, returns, says

TASKS = 4
MOST_CONVERSATIONS = 5  # of one task
ONCE = Usage(calls=1)


class Reports:
    """What the program says. A line is one write, so that none is ever cut in half."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def say(self, **fields: object) -> None:
        os.write(1, msgspec.json.encode(fields) + b"\n")

    def will(self, what: str, **fields: object) -> int:
        number = next(self._numbers)
        self.say(will=what, number=number, **fields)
        return number

    def did(self, number: int, head: Position | None = None) -> None:
        self.say(did=number, head=None if head is None else str(head))


class Task:
    """One of several that write at once. It knows the turns on the path of each of its conversations."""

    def __init__(self, store: SqliteStore, reports: Reports, chance: random.Random) -> None:
        self._store = store
        self._reports = reports
        self._chance = chance
        self.paths: dict[str, list[str]] = {}
        self.families: dict[str, str] = {}

    async def work(self) -> None:
        acts = [
            self._turn,
            self._note,
            self._fork,
            self._rewind,
            self._keep,
            self._elsewhere,
            self._collect,
            self._anchor,
            self._create,
        ]
        while True:
            if not self.paths:
                await self._create("")
            elif len(self.paths) > MOST_CONVERSATIONS:
                await self._delete()
            else:
                (act,) = self._chance.choices(acts, weights=[10, 2, 3, 2, 3, 3, 1, 2, 1])
                await act(self._chance.choice(list(self.paths)))

    async def _create(self, _: str) -> None:
        id = new_id()
        number = self._reports.will("create", conversation=id)
        await self._store.create(NewConversation(id=id))
        self._reports.did(number)
        self.paths[id] = []
        self.families[id] = id

    async def _turn(self, conversation: str) -> None:
        turn = new_id()
        number = self._reports.will("begin", conversation=conversation, turn=turn)
        held = await self._store.begin(conversation, turn)
        assert isinstance(held, OpenTurn)
        self._reports.did(number)
        rest = [self._labelled("says", turn, 0)]
        for exchange in range(self._chance.choice([0, 0, 1, 2])):
            first = held.staged + len(rest)
            held = await self._journal(held, [*rest, self._labelled("calls", turn, first)])
            held = await self._journal(held, [self._labelled("returns", turn, first + 1, call=first)])
            rest = []
            if exchange == 1:
                held = await self._pause(held)
        (ending,) = self._chance.choices(["commit", "failed", "cancelled"], weights=[8, 1, 1])
        if ending == "commit":
            await self._commit(held, [*rest, self._labelled("answers", turn, held.staged + len(rest))])
        else:
            await self._end(held, ending)

    async def _journal(self, held: OpenTurn, events: list[NewEvent]) -> OpenTurn:
        number = self._reports.will("journal", turn=held.id, events=held.staged + len(events))
        held = await self._store.journal(held, events)
        self._reports.did(number)
        return held

    async def _pause(self, held: OpenTurn) -> OpenTurn:
        number = self._reports.will("end", turn=held.id, conversation=held.conversation, outcome="awaiting_approval")
        await self._store.wait(held)
        self._reports.did(number)
        number = self._reports.will("resume", turn=held.id)
        held = await self._store.resume(held.id)
        self._reports.did(number)
        return held

    async def _commit(self, held: OpenTurn, events: list[NewEvent]) -> None:
        size = held.staged + len(events)
        number = self._reports.will("commit", conversation=held.conversation, turn=held.id, events=size)
        done = await self._store.commit(held, events, usage=ONCE)
        self._reports.did(number, done.head.position)
        self.paths[held.conversation].append(held.id)

    async def _end(self, held: OpenTurn, outcome: str) -> None:
        number = self._reports.will("end", turn=held.id, conversation=held.conversation, outcome=outcome, paid=True)
        if outcome == "failed":
            await self._store.fail(held, TurnError("tried", "It was to fail."), usage=ONCE)
        else:
            await self._store.cancel(held, usage=ONCE)
        self._reports.did(number)

    async def _note(self, conversation: str) -> None:
        note = new_id()
        number = self._reports.will("note", conversation=conversation, turn=note, events=1)
        done = await self._store.note(conversation, note, [remembers("note", f'"{note}"')])
        self._reports.did(number, done.head.position)
        self.paths[conversation].append(note)

    async def _fork(self, conversation: str) -> None:
        path = self.paths[conversation]
        fork, at = new_id(), self._chance.choice([None, *path])
        number = self._reports.will("fork", conversation=conversation, made=fork, at=at)
        made = await self._store.fork(conversation, NewFork(id=fork, cache="{}"), at=at)
        self._reports.did(number, made.head.position)
        self.paths[fork] = path[:] if at is None else path[: path.index(at) + 1]
        self.families[fork] = self.families[conversation]

    async def _rewind(self, conversation: str) -> None:
        path = self.paths[conversation]
        if len(path) < 2:
            return
        aside, at = new_id(), self._chance.choice(path[:-1])
        number = self._reports.will("rewind", conversation=conversation, made=aside, at=at)
        record, _ = await self._store.rewind(conversation, NewFork(id=aside, cache="{}"), at=at)
        self._reports.did(number, record.head.position)
        self.paths[aside] = path
        self.families[aside] = self.families[conversation]
        self.paths[conversation] = path[: path.index(at) + 1]

    async def _keep(self, conversation: str) -> None:
        """The head of any other branch of the family that this task has."""
        path, family = self.paths[conversation], self.families[conversation]
        others = [id for id in self.paths if self.families[id] == family and self.paths[id] != path]
        if not others:
            return
        aside, branch = new_id(), self._chance.choice(others)
        number = self._reports.will("keep", conversation=conversation, made=aside, source=branch)
        record, left = await self._store.keep(conversation, branch, NewFork(id=aside, cache="{}"))
        self._reports.did(number, record.head.position)
        self.paths[conversation] = self.paths[branch][:]
        if left is not None:
            self.paths[aside] = path
            self.families[aside] = family

    async def _elsewhere(self, conversation: str) -> None:
        """A turn on any place of any branch of the family that this task has."""
        family = [id for id in self.paths if self.families[id] == self.families[conversation]]
        source, path = self._chance.choice(family), self.paths[conversation]
        at = self._chance.choice([None, *self.paths[source]])
        if at == (path[-1] if path else None):
            return  # at the head
        base = self.paths[source][: self.paths[source].index(at) + 1] if at else []
        turn, aside = new_id(), new_id()
        position = (await self._store.turn(at)).end if at else None
        number = self._reports.will("begin", conversation=conversation, turn=turn, elsewhere=True)
        held = await self._store.begin(conversation, turn, onto=Onto(source, position))
        assert isinstance(held, OpenTurn)
        self._reports.did(number)
        held = await self._journal(held, [self._labelled("says", turn, 0)])
        if self._chance.random() < 0.2:
            await self._end(held, "cancelled")
            return
        number = self._reports.will(
            "move", conversation=conversation, turn=turn, events=2, source=source, at=at, made=aside
        )
        last = [self._labelled("answers", turn, 1)]
        done = await self._store.commit(held, last, usage=ONCE, aside=NewFork(id=aside, cache="{}"))
        self._reports.did(number, done.head.position)
        if done.aside is not None:
            self.paths[aside] = path
            self.families[aside] = self.families[conversation]
        self.paths[conversation] = [*base, turn]

    async def _delete(self) -> None:
        conversation = self._chance.choice(list(self.paths))
        number = self._reports.will("delete", conversation=conversation)
        await self._store.delete(conversation)
        self._reports.did(number)
        del self.paths[conversation]

    async def _collect(self, _: str) -> None:
        number = self._reports.will("collect")
        await self._store.collect()
        self._reports.did(number)

    async def _anchor(self, _: str) -> None:
        number = self._reports.will("anchor")
        self._reports.say(did=number, anchor=await self._store.anchor())

    def _labelled(self, kind: str, turn: str, place: int, *, call: int | None = None) -> NewEvent:
        size = self._chance.choice([10, 100, 1000, 10_000])
        text = f"{turn}:{place} " + "x" * size
        match kind:
            case "says":
                return says(text)
            case "calls":
                return calls(f"{turn}:{place}")
            case "returns":
                return returns(f"{turn}:{call}", text)
            case _:
                return answers(text)


async def only_open(file: str) -> None:
    Reports().say(opening=file)
    while True:
        await (await SqliteStore.open(file)).close()


async def write(file: str, seed: int) -> None:
    chance = random.Random(seed)
    reports = Reports()
    reports.say(opening=file)
    async with await SqliteStore.open(file) as store:
        tasks = [Task(store, reports, random.Random(chance.random())) for _ in range(TASKS)]
        page = await store.conversations(limit=1000)
        for record, task in zip(page.items, tasks * len(page.items), strict=False):
            turns = await store.turns(record.id, limit=1000)
            task.paths[record.id] = [turn.id for turn in turns.items if turn.outcome == "committed"]
            task.families[record.id] = record.family
        async with anyio.create_task_group() as group:
            for task in tasks:
                group.start_soon(task.work)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes to a store until it is killed.")
    parser.add_argument("file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-open", action="store_true")
    given = parser.parse_args()
    sys.stdin.readline()
    if given.only_open:
        anyio.run(only_open, given.file)
    else:
        anyio.run(write, given.file, given.seed)
