"""Runs of the turn in processes of their own, which are killed where they are told to be.

    python -m tests.conversation.team_faults.killing

makes a child by ``os.fork`` for each line of JSON on standard input, and answers with how it ended. Where a turn can be
killed is found by watching one: `tests/conversation/faults/points.py` says how.
"""

import asyncio
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, assert_never, get_args

import msgspec
from msgspec import Struct
from tests.conversation.faults.disk import Disk
from tests.conversation.faults.points import Point, Watch
from tests.conversation.team_faults.scenario import GO, NEXT, Stage, World

from forkpoint import AsyncConversation
from forkpoint.store.sqlite import SqliteStore

ROOT = Path(__file__).parents[3]

Act: TypeAlias = Literal["run", "resume spawning", "resume waiting", "discard", "supersede"]
"""What is killed: the parent's turn; the same again, resumed after it was killed while it spawned, or while it waited;
whoever discards it then, or begins another in its place."""

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


class Program:
    """The program, started."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.conversation.team_faults.killing"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, order: Order) -> bool:
        """Runs the turn in a process of its own. Gives whether that was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline() or b"1")
        if status not in (0, -signal.SIGKILL):
            raise RuntimeError(f"the process ended with status {status}; its errors are above")
        return status != 0

    def find(self, order: Order) -> list[Kill]:
        """All kills there can be in an act, which is run to its end for that."""
        self.run(order)
        kills = msgspec.json.decode((Path(order.folder) / "kills").read_bytes(), type=list[Kill])
        return kills + [msgspec.structs.replace(kill, after=True) for kill in kills if kill.point.name == "COMMIT"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


class _Victim:
    """The process that is to be killed."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._world = World(Path(order.folder), order.act)
        self._watch = Watch(self._meets, str(self._world.file.parent))
        self._disk = Disk(self._watch.statement)
        self._passed: list[Kill] = []

    async def live(self) -> None:
        order = self._order
        opened = SqliteStore.open(self._world.file, connect=self._disk.connect)
        async with await opened as store, await self._world.open(store, order.conversation) as parent:
            loop = asyncio.get_running_loop()
            self._watch.start(loop)
            try:
                await asyncio.create_task(_act(order.act, parent))
            finally:
                self._watch.stop(loop)
        (Path(order.folder) / "kills").write_bytes(msgspec.json.encode(self._passed))

    def _meets(self, point: Point) -> None:
        self._passed.append(Kill(self._order.act, self._world.stage, point))
        kill = self._order.kill
        if kill is None or not point.same(kill.point):
            return
        if kill.after:
            self._disk.kill_after()
        else:
            os.kill(os.getpid(), signal.SIGKILL)


async def _act(act: Act, parent: AsyncConversation) -> Any:
    match act:
        case "run":
            return await parent.run(GO)
        case "resume spawning" | "resume waiting":
            return await parent.resume()
        case "discard":
            return await parent.discard()
        case "supersede":
            return await parent.run(NEXT, supersede=True)
        case _ as never:
            assert_never(never)


def main() -> None:
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
