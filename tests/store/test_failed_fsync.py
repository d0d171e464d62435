"""A failed fsync, then a kill: what the caller heard is what is there when the store is opened again.

An fsync that fails at COMMIT leaves the commit in the log, where no connection sees it until a crash brings it to
light. `support/failing_disk.py` lets the kernel fail the log's syncs in a process of its own, which is then killed.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from forkpoint.errors import NotFound
from forkpoint.events import Usage
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import NewConversation, NewFork, OpenTurn
from forkpoint.testing.samples import exchange

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux can let chosen system calls fail"),
]

PROGRAM = Path(__file__).parent / "support" / "failing_disk.py"
UNSUPPORTED = 77
CHARGED = Usage(calls=1, input=3)  # as the program does
ACTS = ["create", "fork", "rewind", "keep", "note", "delete", "journal", "commit", "fail", "charge"]


class Ids(Struct, frozen=True):
    """What the program works on: see there."""

    told: str
    first: str
    free: str
    turn: str
    new: str
    early: str


class Said(Struct, frozen=True):
    """What the program was told by its store."""

    answer: str
    read: str  # what the store said afterwards of what the call makes
    settled: str  # what `settle` said, if the call was a commit


class Program:
    """The program on its failing disk."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def listen(self) -> Said:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            error = self._process.stderr.read().decode()
            if self._process.wait() == UNSUPPORTED:
                pytest.skip(error)
            pytest.fail(f"the program ended by itself:\n{error}")
        return msgspec.json.decode(line, type=Said)

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"again\n")
        self._process.stdin.flush()


@contextmanager
def started(path: Path, fault: str, act: str, ids: Ids) -> Iterator[Program]:
    """The program, which is killed at the end of the block."""
    command = [sys.executable, str(PROGRAM), str(path), fault, act, json.dumps(msgspec.structs.asdict(ids))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield Program(process)
        finally:
            process.kill()


async def prepared(path: Path) -> Ids:
    """A store with a conversation of two turns, and one without any."""
    ids = Ids(told=new_id(), first=new_id(), free=new_id(), turn=new_id(), new=new_id(), early=new_id())
    async with await SqliteStore.open(path) as store:
        for conversation in (ids.told, ids.free):
            await store.create(NewConversation(id=conversation))
        for turn in (ids.first, new_id()):
            held = await store.begin(ids.told, turn)
            assert isinstance(held, OpenTurn)
            await store.commit(held, exchange("Hello."))
        await store.fork(ids.told, NewFork(id=ids.early, cache="{}"), at=ids.first)
    return ids


async def is_there(store: SqliteStore, act: str, ids: Ids) -> bool:
    """Whether the call has had its effect; fails if only part of it is there."""
    found = await store.verify()
    assert found.ok, f"verify finds flaws: {found.flaws}"
    lengths = [await length_of(store, id) for id in (ids.told, ids.free, ids.new)]
    before = [4, 0, None]
    after: dict[str, list[int | None]] = {
        "create": [4, 0, 2],
        "fork": [4, 0, 4],
        "rewind": [2, 0, 4],
        "keep": [2, 0, 4],
        "note": [6, 0, None],
        "delete": [None, 0, None],
        "commit": [4, 2, None],
    }
    assert lengths in (before, after.get(act)), f"the {act} is there in part: the conversations have {lengths} events"
    match act:
        case "charge":
            spent = await store.spent(ids.told)
            assert spent in (Usage(), CHARGED), f"the charge is there in part or more than once: {spent}"
            return spent == CHARGED
        case "journal":
            return len(await store.steps(ids.turn)) == 1
        case "fail" | "commit":
            ended = (await store.turn(ids.turn)).outcome == ("committed" if act == "commit" else "failed")
            assert ended == (lengths == after["commit"]) or act == "fail", "turn and head do not agree"
            return ended
        case _:
            return lengths != before


async def length_of(store: SqliteStore, conversation: str) -> int | None:
    try:
        return len(await store.events(conversation))
    except NotFound:
        return None


async def assert_the_turn_can_be_ended(store: SqliteStore, turn: str) -> None:
    """Whatever became of the turn of the killed program, another one can go on."""
    outcome = await store.settle(turn)
    assert outcome in ("committed", "failed", "interrupted"), f"the killed program's turn is {outcome}"
    if outcome != "committed":
        resumed = await store.resume(turn)
        await store.commit(resumed, exchange("Once more.")[resumed.staged :])
        assert (await store.turn(turn)).outcome == "committed"


@pytest.mark.parametrize(
    ("fault", "act"), [*product(["sync-once"], ACTS), *product(["write-once"], ["fork", "commit"])]
)
async def test_after_one_failure_the_caller_hears_what_a_kill_cannot_change(
    tmp_path: Path, act: str, fault: str
) -> None:
    path = tmp_path / "store.db"
    ids = await prepared(path)
    with started(path, fault, act, ids) as program:
        said = program.listen()
    assert said.answer == "done" or said.answer.startswith("refused"), f"it could be found out, but heard {said.answer}"
    if fault == "write-once":
        assert said.answer in ("done", "refused: disk_full")
    async with await SqliteStore.open(path) as store:
        there = await is_there(store, act, ids)
        assert there == (said.answer == "done"), f"the caller heard {said.answer!r}; after the kill it is another thing"
        await assert_the_turn_can_be_ended(store, ids.turn)


@pytest.mark.parametrize("act", ["fork", "commit", "charge"])
async def test_after_one_failed_sync_the_same_call_works_and_survives_a_kill(tmp_path: Path, act: str) -> None:
    path = tmp_path / "store.db"
    ids = await prepared(path)
    with started(path, "sync-once", act, ids) as program:
        first = program.listen()
        program.go_on()
        second = program.listen()
    assert first.answer.startswith("refused"), f"no sync failed, so this proved nothing: {first}"
    assert second.answer == "done", f"the {act} could not be made again: {second}"
    async with await SqliteStore.open(path) as store:
        assert await is_there(store, act, ids), f"the {act} was reported as done and is gone"


@pytest.mark.parametrize("act", ["fork", "rewind", "keep", "delete", "journal", "commit", "charge"])
async def test_while_no_sync_works_the_outcome_is_unknown_and_wholly_there_or_not_after_a_kill(
    tmp_path: Path, act: str
) -> None:
    path = tmp_path / "store.db"
    ids = await prepared(path)
    with started(path, "sync-always", act, ids) as program:
        said = program.listen()
    assert said.answer == "unknown", f"nothing is certain while no sync works, and yet the caller heard {said.answer!r}"
    assert said.settled in ("", "refused: outcome_unknown"), f"settle made up an answer: {said.settled!r}"
    async with await SqliteStore.open(path) as store:
        await is_there(store, act, ids)
        await assert_the_turn_can_be_ended(store, ids.turn)


@pytest.mark.parametrize("act", ["fork", "note", "delete", "charge"])
async def test_what_is_read_after_an_unknown_outcome_is_still_true_after_a_kill(tmp_path: Path, act: str) -> None:
    path = tmp_path / "store.db"
    ids = await prepared(path)
    with started(path, "sync-once-no-files", act, ids) as program:
        said = program.listen()
    assert said.answer == "unknown", f"the store could not find out, and yet the caller heard {said.answer!r}"
    async with await SqliteStore.open(path) as store:
        there = await is_there(store, act, ids)
    if said.read.startswith("refused"):
        return  # it did not know, and said so
    read_as_there = said.read == ("not found" if act == "delete" else "committed" if act == "note" else "found")
    assert there == read_as_there, f"the store read {said.read!r} after the {act}; after the kill it is another thing"
