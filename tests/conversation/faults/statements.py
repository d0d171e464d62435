"""One thing that an engine does, struck at a statement of its store: by the disk, or by SIGKILL.

    python -m tests.conversation.faults.statements MODULE FUNCTION FOLDER

is the program that dies: it kills what a function of this package does, once at each place, and prints how often.
"""

import importlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import anyio
from tests.conversation.faults.disk import FLAWS, Disk
from tests.conversation.faults.points import Point

from forkpoint.engine.engine import Engine
from forkpoint.store.sqlite import SqliteStore

ROOT = Path(__file__).parents[3]
FILE = "store.db"

Verb: TypeAlias = Callable[[Engine], Awaitable[object]]
"""What is struck."""


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


async def do(verb: Verb, file: Path, strike: Strike) -> None:
    """Does it, on a disk that is struck."""
    engine = Engine(await SqliteStore.open(file, connect=strike.disk.connect))
    strike.arm()
    try:
        await verb(engine)
    finally:
        strike.disk.mend()
        await engine.close()


async def kill_at_each(verb: Verb, folder: Path) -> list[str]:
    """Kills it before each of its statements, and after the last: after another one is before the next.

    Each time in a copy of the folder. Returns the names of these folders; in the last one of those that say "before" it
    was left alone, since it had no such statement.
    """
    command = [sys.executable, "-m", __name__, verb.__module__, verb.__name__, str(folder)]
    done = await anyio.run_process(command, cwd=ROOT, stderr=subprocess.STDOUT)
    assert int(done.stdout) >= 10, "hardly any statement was struck, so this proved nothing"
    return sorted(name for name in os.listdir(folder) if name.startswith("kill"))


def main(module: str, function: str, folder: Path) -> int:
    """Makes a child for each death by ``os.fork``, so that it costs no start of Python. Returns how many died."""
    verb = getattr(importlib.import_module(module), function)
    made = 0
    while _is_killed(verb, folder, "kill before", made + 1):
        made += 1
    assert _is_killed(verb, folder, "kill after", made), "it was not killed after its last statement"
    return made + 1


def _is_killed(verb: Verb, folder: Path, how: str, nth: int) -> bool:
    """Whether a process was killed that does it in a copy of the folder: else it had no such statement."""
    there = folder / f"{how} {nth}"
    shutil.copytree(folder, there, ignore=shutil.ignore_patterns("kill*"))
    child = os.fork()
    if not child:
        strike = Strike(nth, how)
        failed = 1
        try:
            anyio.run(do, verb, there / FILE, strike)
            failed = 1 if strike.struck else 0
        finally:
            os._exit(failed)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), "it failed before it was killed"
    return code == -signal.SIGKILL


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
