"""A summary that is brought from a branch, struck at any await or write.

    python -m tests.conversation.faults.bringing START RUNS NUMBER...

kills a process at each of these points, each in a copy of START below RUNS. It loads everything once and makes a child
for each by ``os.fork``, so that a run costs no start of Python.
"""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
from tests.conversation.faults.disk import FLAWS, Disk
from tests.conversation.faults.points import Point, Watch

from forkpoint import LLM, Agent
from forkpoint.backend.bring import BringOptions, BringReport
from forkpoint.engine.engine import Engine
from forkpoint.events import Usage
from forkpoint.llm.model import Retries
from forkpoint.store.sqlite import SqliteStore
from forkpoint.testing import Reply, Script

PAID = Usage(calls=1, input=100, output=10)
HERE, BRANCH = "here", "branch"
OPTIONS = BringOptions(branch=BRANCH, what="summary", key="a key")


class Unforeseen(Exception):
    """Something that nobody expects."""


def agent() -> Agent:
    """An agent whose model answers anything, and is paid for it."""
    script = Script(lambda heard: Reply(f"About: {heard.text[:9]}", usage=PAID))
    return Agent(LLM(script.register("bringing"), retries=Retries(attempts=1)))


def file_in(folder: Path) -> Path:
    return folder / "store.db"


class StruckBring:
    """One request to bring a summary, with something that happens at its so many-th point."""

    def __init__(self, folder: Path, number: int | None, how: str = "kill") -> None:
        self.points: list[Point] = []
        self.struck = False
        self._folder = folder
        self._number = number
        self._how = how
        self._seen = 0

    async def run(self) -> BringReport | BaseException:
        """What came of it."""
        watch = Watch(self._meets, str(self._folder))
        self._disk = Disk(watch.statement)
        store = await SqliteStore.open(file_in(self._folder), connect=self._disk.connect)
        engine = Engine(store)
        loop = asyncio.get_running_loop()
        self._task: asyncio.Task[BringReport] | None = None
        here = (await engine.find(HERE))[0].id
        watch.start(loop)
        try:
            self._task = loop.create_task(engine.branches.bring(here, OPTIONS, agent()))
            with anyio.CancelScope() as scope:
                self._scope = scope
                await asyncio.wait([self._task])
        finally:
            watch.stop(loop)
            self.points = watch.points
            self._disk.mend()
        try:
            return self._task.result()
        except BaseException as error:
            return error
        finally:
            await engine.close()

    def _meets(self, point: Point) -> BaseException | None:
        self._seen += 1
        if self.struck or self._number is None or self._seen < self._number:
            return None
        match self._how:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "cancel" if self._task is not None and point.kind == "await":
                self.struck = True
                self._task.cancel()
            case "exception" if point.kind == "statement":
                self.struck = True
                self._disk.strike(FLAWS["i/o error"])
            case "exception" if point.kind == "await" and point.raises:
                self.struck = True
                return Unforeseen("as the test wants it")
            case _:
                pass
        return None


def killed(start: Path, runs: Path, number: int, forked: Callable[[], int] = os.fork) -> None:
    """A run that is killed at a point, in a process of its own."""
    folder = runs / str(number)
    shutil.copytree(start, folder)
    child = forked()
    if not child:
        try:
            anyio.run(StruckBring(folder, number).run)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


if __name__ == "__main__":
    for each in sys.argv[3:]:
        killed(Path(sys.argv[1]), Path(sys.argv[2]), int(each))
