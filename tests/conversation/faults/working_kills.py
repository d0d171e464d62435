"""The turn with hooks, skills, an MCP server, a secret and a condensation, in processes of its own that are killed.

    python -m tests.conversation.faults.working_kills

makes a child by ``os.fork`` for each line of JSON on standard input, and answers with how it ended. What is killed is
the turn, and its resumption after it was killed once; where that can be is found by watching one (`points.py`). What
must hold afterwards says `working.py`.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import traceback
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct
from tests.conversation.faults.disk import Disk
from tests.conversation.faults.family import Start, within
from tests.conversation.faults.judge import Broken, check
from tests.conversation.faults.points import Point, Watch
from tests.conversation.faults.working import WAYS, Found, Judge, Reference, Way, look
from tests.conversation.faults.working_world import GO, Stage, World

from forkpoint.agent.mcp import end_servers
from forkpoint.backend.messages import as_message
from forkpoint.backend.options import Continuation, NewTurn
from forkpoint.engine.engine import Engine
from forkpoint.events import Event, ModelCalled, StagedEvent
from forkpoint.store.sqlite import SqliteStore

ROOT = Path(__file__).parents[3]

Act: TypeAlias = Literal["run", "resume"]
ACTS: tuple[Act, ...] = get_args(Act)


class Kill(Struct, frozen=True):
    """Where in which act the process dies: before something, or after a statement."""

    act: Act
    stage: Stage
    point: Point
    after: bool = False

    def __str__(self) -> str:
        return f"{self.act}, at the stage {self.stage}: killed {'after' if self.after else 'before'} {self.point}"


class Order(Struct, frozen=True):
    """A run that is wanted."""

    folder: str
    conversation: str
    act: Act
    kill: Kill | None = None


class Verdict(Struct, frozen=True):
    """What came of one kill."""

    kill: Kill
    way: Way
    killed: bool  # False: this time the turn did not come to that point, and went through
    stood: str = ""
    problem: str | None = None

    def __str__(self) -> str:
        return f"{self.kill}; then {self.way}: {self.problem or self.stood}"


class Killing:
    """All kills there are, and the program that is killed."""

    def __init__(self, start: Start, reference: Reference, folder: Path, process: "subprocess.Popen[bytes]") -> None:
        self._reference = reference
        self._folder = folder
        self._process = process
        self._starts: dict[Act, Start] = {"run": start}
        self._runs = 0

    def find(self) -> list[Kill]:
        """Does what can be killed, without a kill. Gives all that can happen to it, the fairest sample first."""
        kills = self.passed("run")
        written = [kill for kill in kills if kill.stage == "tools" and kill.after]
        order, killed = self.killed(written[len(written) // 2])
        check(killed, "nothing is left to be resumed")
        self._starts["resume"] = Start(Path(order.folder), order.conversation)
        return _fairly([*kills, *self.passed("resume")])

    def passed(self, act: Act) -> list[Kill]:
        """All kills there can be in an act, which is run to its end for that."""
        order = self._order(act)
        self._run(order)
        kills = msgspec.json.decode((Path(order.folder) / "kills").read_bytes(), type=list[Kill])
        return kills + [msgspec.structs.replace(kill, after=True) for kill in kills if kill.point.name == "COMMIT"]

    def killed(self, kill: Kill) -> tuple[Order, bool]:
        """Runs what is to be killed. Gives where, and whether it was."""
        order = self._order(kill.act, kill)
        return order, self._run(order)

    async def try_one(self, kill: Kill, turn: int = 0) -> Verdict:
        """Kills, judges and goes on, in this process. Which way depends on the kill and on how often it was tried."""
        way = WAYS[(_number(kill) // 7 + turn) % len(WAYS)]
        order, killed = self.killed(kill)
        try:
            stood = await within("going on", judge(order, self._reference, way, killed=killed))
        except Exception as error:
            problem = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
            return Verdict(kill, way, killed, problem=f"{problem} ({order.folder})")
        shutil.rmtree(order.folder)
        return Verdict(kill, way, killed, stood)

    def _order(self, act: Act, kill: Kill | None = None) -> Order:
        self._runs += 1
        folder, start = self._folder / f"kill {self._runs}", self._starts[act]
        start.copy(folder)
        return Order(str(folder), start.parent, act, kill)

    def _run(self, order: Order) -> bool:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline() or b"1")
        if status not in (0, -signal.SIGKILL):
            raise RuntimeError(f"the process ended with status {status}; its errors are above")
        return status != 0


@contextmanager
def killing(start: Start, reference: Reference, folder: Path) -> Iterator[Killing]:
    command = [sys.executable, "-m", "tests.conversation.faults.working_kills"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Killing(start, reference, folder, process)


async def judge(order: Order, reference: Reference, way: Way, *, killed: bool) -> str:
    """Checks all that is promised, and goes on in this process. Gives how it stood. Raises `Broken`."""
    world = World(Path(order.folder))
    judging = Judge(world, order.conversation, reference)
    try:
        async with await SqliteStore.open(world.file) as store:
            found = await look(store, order.conversation)
            outcome = None if found.turn is None else found.turn.outcome
            check(outcome in ((None, "interrupted", "committed") if killed else ("committed",)), f"it is {outcome}")
            check(killed or found.is_condensed, "nothing happened to it, and it is not condensed")
            judging.check_whole(found)
            judging.check_usage(found, known(found) if killed or order.act == "resume" else None)
            did = world.lines()
            backend = Engine(store, owns_store=False)
            await judging.go_on(backend, store, way)
            await backend.close()
            after = await look(store, order.conversation)
            check(after.record.status == "idle", f"at the end it is {after.record.status}")
            summaries = world.lines()[len(did) :].count("summary")
            judging.check_usage(after, found.counted.calls + world.paid.calls + summaries)
            return found.stood
    finally:
        world.close()
        await end_servers()


def known(found: Found) -> int:
    """How many answers the file knows of: those must be counted."""
    return sum(isinstance(event.body, ModelCalled) for event in [*found.events, *_steps(found)]) + found.is_condensed


def _steps(found: Found) -> Sequence[Event | StagedEvent]:
    return () if found.turn is None or found.turn.outcome == "committed" else found.turn.events


class _Victim:
    """The process that is to be killed."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._world = World(Path(order.folder))
        self._watch = Watch(self._meets, order.folder)
        self._disk = Disk(self._watch.statement)
        self._passed: list[Kill] = []

    async def live(self) -> None:
        async with await SqliteStore.open(self._world.file, connect=self._disk.connect) as store:
            backend = Engine(store, owns_store=False)
            loop = asyncio.get_running_loop()
            self._watch.start(loop)
            try:
                await asyncio.create_task(self._act(backend, store))
            finally:
                self._watch.stop(loop)
            await backend.close()
        (Path(self._order.folder) / "kills").write_bytes(msgspec.json.encode(self._passed))
        await end_servers()

    async def _act(self, backend: Engine, store: SqliteStore) -> None:
        world, id = self._world, self._order.conversation
        if self._order.act == "run":
            await backend.turns.run(id, world.agent, NewTurn(given=(as_message(GO),)), world.told)
        else:
            open = (await store.read(id)).open_turn
            assert open is not None
            await backend.turns.resume(id, open, world.agent, Continuation(), world.told)

    def _meets(self, point: Point) -> None:
        self._passed.append(Kill(self._order.act, self._world.stage, point))
        kill = self._order.kill
        if kill is None or not point.same(kill.point):
            return
        if kill.after:
            self._disk.kill_after()
        else:
            os.kill(os.getpid(), signal.SIGKILL)


def _fairly(kills: Sequence[Kill]) -> list[Kill]:
    """The same kills in an order of which any beginning is a fair sample: of each act, stage and kind, turn by turn."""
    groups: dict[tuple[str, str, str], list[Kill]] = {}
    for kill in sorted(kills, key=_number):
        written = "written" if kill.point.name == "COMMIT" else kill.point.kind
        groups.setdefault((kill.act, kill.stage, written), []).append(kill)
    rounds = range(max(map(len, groups.values()), default=0))
    return [group[n] for n in rounds for group in groups.values() if n < len(group)]


def _number(kill: Kill) -> int:
    """A number that is always the same for a kill, and says nothing about it."""
    return zlib.crc32(str(kill).encode())


def main() -> None:
    import jsonschema  # noqa: F401 - once, and not in each child
    import mcp  # noqa: F401

    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=Order)
        child = os.fork()
        if not child:
            ended = 1
            try:
                asyncio.run(_Victim(order).live())
                ended = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(ended)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
