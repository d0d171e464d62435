"""A keep that is struck at every statement: by the disk, by a cancellation, by SIGKILL.

    python -m tests.conversation.faults.keeping FOLDER

is the program that dies: it makes a child for each statement of a keep, by ``os.fork``, so that a death costs no start
of Python. Each child has a copy of the store, keeps the branch, and is killed at its statement. The program prints how
many children it made.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

import anyio
from tests.conversation.faults.disk import FLAWS, Disk
from tests.conversation.faults.points import Point

from forkpoint.agent import Agent
from forkpoint.backend.callbacks import Update
from forkpoint.backend.messages import as_message
from forkpoint.backend.options import Draft, ForkOptions, NewTurn
from forkpoint.backend.settings import Settings
from forkpoint.engine.engine import Engine
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore

FILE = "store.db"
MINE, THEIRS = Agent("scripted/echo", instructions="Be brief."), Agent("scripted/echo", instructions="Be long.")
BEFORE, AFTER = ["one", "two"], ["one", "other"]
KEY = "the key of the keep"


async def prepare(folder: Path) -> str:
    """A conversation of two turns, and a branch with another agent. Returns the conversation's id."""
    engine = Engine(await SqliteStore.open(folder / FILE))
    id = new_id()
    draft = Draft(id=id, name="build", settings=Settings.of(MINE, None))
    first = await engine.turns.run(id, MINE, NewTurn(given=(as_message("one"),), draft=draft), _quiet)
    await engine.turns.run(id, MINE, NewTurn(given=(as_message("two"),)), _quiet)
    branch, _ = await engine.branches.fork(id, ForkOptions(id=new_id(), name="branch", at=first.id, agent=THEIRS))
    await engine.turns.run(branch.id, THEIRS, NewTurn(given=(as_message("other"),)), _quiet)
    await engine.close()
    return id


def _quiet(update: Update) -> None:
    pass


class Strike:
    """A disk on which something happens at one statement of the writer's, counted from where it is armed."""

    def __init__(self, nth: int, how: str) -> None:
        self.disk = Disk(self._meets)
        self.struck = False
        self.met: list[str] = []  # the statements, in order
        self._is_armed = False
        self._nth = nth  # 0: none is struck
        self._how = how

    def arm(self) -> None:
        self._is_armed = True

    def _meets(self, sql: str) -> Point | None:
        if not self._is_armed:
            return None
        self.met.append(sql)
        if len(self.met) != self._nth:
            return None
        self.struck = True
        if self._how == "kill before":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._how == "kill after":
            self.disk.kill_after()
        elif not FLAWS[self._how].commits or sql == "COMMIT":
            self.disk.strike(FLAWS[self._how])
        else:
            self.struck = False
        return None


async def keep(file: Path, id: str, strike: Strike) -> None:
    """Keeps the branch, on a disk that is struck."""
    engine = Engine(await SqliteStore.open(file, connect=strike.disk.connect))
    strike.arm()
    try:
        await engine.branches.keep(id, "branch", key=KEY)
    finally:
        strike.disk.mend()
        await engine.close()


def main(folder: Path) -> int:
    """Kills a keep before each of its statements, and after the last: after another one is before the next."""
    id = anyio.run(prepare, folder)
    made = 0
    while _killed(folder, id, "kill before", made + 1):
        made += 1
    assert _killed(folder, id, "kill after", made), "it was not killed after its last statement"
    return made + 1


def _killed(folder: Path, id: str, how: str, nth: int) -> bool:
    """Whether a process was killed that keeps the branch in a copy of the folder: else it had no such statement."""
    there = folder / f"{how} {nth}"
    shutil.copytree(folder, there, ignore=shutil.ignore_patterns("kill*"))
    child = os.fork()
    if not child:
        strike = Strike(nth, how)
        try:
            anyio.run(keep, there / FILE, id, strike)
        finally:
            os._exit(1 if strike.struck else 0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), "it failed before it was killed"
    return code == -signal.SIGKILL


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
