"""Another process that uses the same store: it writes to shared conversations, spawns, collects, or seals.

    python second_process.py FILE write SHARED...     some turns, notes and forks; SHARED are ids of conversations
    python second_process.py FILE spawn PARENT TURN   the sub-agents of the calls of a turn, one after the other
    python second_process.py FILE collect             over and over, until standard input is closed
    python second_process.py FILE anchor              the same, and a turn before each anchor

It says that it is ready, starts when a line comes on standard input, and ends by saying in one line of JSON what it
was told was done. The text of each event is its turn's id and its place in the turn: ``TURN:0``, ``TURN:1``.
"""

import json
import sys
import threading
from collections import Counter

import anyio
from msgspec import to_builtins

from forkpoint.errors import AlreadyExists, Busy
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import Lineage, NewConversation, NewFork, Onto, OpenTurn
from forkpoint.testing.samples import answers, says

ROUNDS = 25


async def write(store: SqliteStore, shared: list[str]) -> dict[str, object]:
    own = new_id()
    for conversation in (*shared, own):
        try:
            await store.create(NewConversation(id=conversation))
        except AlreadyExists:
            continue  # the other one was quicker
    turns: dict[str, list[str]] = {conversation: [] for conversation in (*shared, own)}
    forks: dict[str, str] = {}
    refused = Counter[str]()

    async def run_turns(conversation: str) -> None:
        """Not before so many are committed: hearing that another turn runs is no reason to give up."""
        while len(turns[conversation]) < ROUNDS:
            turn = new_id()
            try:
                held = await store.begin(conversation, turn)
            except Busy:
                refused["turns"] += 1
                continue
            assert isinstance(held, OpenTurn)
            held = await store.journal(held, [says(f"{turn}:0")])
            await store.commit(held, [answers(f"{turn}:1")])
            turns[conversation].append(turn)

    async def fork_and_note(conversation: str) -> None:
        for _ in range(ROUNDS):
            fork, note = new_id(), new_id()
            await store.fork(conversation, NewFork(id=fork, cache="{}"))
            forks[fork] = conversation
            try:
                await store.note(conversation, note, [says(f"{note}:0")])
                turns[conversation].append(note)
            except Busy:
                refused["notes"] += 1

    async with anyio.create_task_group() as tasks:
        for conversation in (*shared, own):
            tasks.start_soon(run_turns, conversation)
        for conversation in shared:
            tasks.start_soon(fork_and_note, conversation)
    return {"turns": turns, "forks": forks, "refused": dict(refused)}


async def spawn(store: SqliteStore, shared: list[str]) -> dict[str, object]:
    parent, turn = shared
    onto = Onto(parent, (await store.read(parent)).head.position)
    spawned: dict[str, object] = {}
    for call in (f"c{n}" for n in range(ROUNDS)):
        new = NewConversation(
            id=new_id(), family=parent, lineage=Lineage("sub_agent", parent, None, turn, call), onto=onto
        )
        made = await store.create(new, [says(f"{new.id}:0"), answers(f"{new.id}:1")])
        spawned[call] = made.id
    return spawned


async def collect(store: SqliteStore) -> dict[str, object]:
    enough = end_of_input()
    runs = events = 0
    while not enough.is_set():
        events += (await store.collect()).events
        runs += 1
    return {"runs": runs, "events": events}


async def anchor(store: SqliteStore) -> dict[str, object]:
    enough = end_of_input()
    own, anchors = new_id(), []
    await store.create(NewConversation(id=own))
    while not enough.is_set():
        await store.note(own, new_id(), [says("One more.")])
        anchors.append(to_builtins(await store.anchor()))
    return {"anchors": anchors}


def end_of_input() -> threading.Event:
    enough = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        enough.set()

    threading.Thread(target=listen, daemon=True).start()
    return enough


async def main(file: str, role: str, shared: list[str]) -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    async with await SqliteStore.open(file) as store:
        match role:
            case "write":
                done = await write(store, shared)
            case "spawn":
                done = await spawn(store, shared)
            case "anchor":
                done = await anchor(store)
            case _:
                done = await collect(store)
    print(json.dumps(done), flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3:])
