"""The matrix: every point of every act, and all that can happen there. And a sample of it, that is always the same.

What is covered: every suspension of every task of the turn, every statement that the store's writer gives to SQLite,
every file that the store opens, makes, removes or locks; alone in the store, and with another turn open there, which
sends writes through the writer's thread. At each point:

- an **exception**: at an await, what the thing that is awaited may raise (the store refuses or was closed, the
  connection to the model is lost, or something that nobody foresees; where a task only waits to be woken, as for a
  lock, nothing can be raised); at a statement, what SQLite says of a broken or a full disk, once or from then on, and
  of an fsync that fails; at a file, an error of the system;
- a **cancellation**: of the caller's task, once and twice; of a scope around it; by `cancel()`, `close()` or Ctrl-C; by
  the turn's own limit of time;
- a **kill** (SIGKILL) of the process, before, and at a COMMIT also after.

What is not: errors of SQLite's own system calls, which `tests/store/test_failed_fsync.py` injects in the kernel; reads,
whose statements are not struck one by one, but whose awaits are; two independent faults in one turn; on
trio, anything but cancellations (`on_trio.py`).
"""

import shutil
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace
from tests.conversation.faults.judge import WAYS, Broken, Reference, Way, judge, make_reference
from tests.conversation.faults.killing import Children
from tests.conversation.faults.kinds import Fault, faults_at
from tests.conversation.faults.points import Point
from tests.conversation.faults.runs import Run, Told, struck
from tests.conversation.faults.scenario import Listener
from tests.conversation.faults.starts import Act, Start, as_first, cut, failed, killed, make_start, waiting


class Verdict(Struct, frozen=True):
    """What came of one fault."""

    fault: Fault
    way: Way
    elsewhere: bool
    struck: bool  # False: this time the turn did not come to that point, and went through
    told: Told = "killed"
    stood: str = ""
    heard: tuple[str, ...] = ()  # what somebody heard who sent the turn a message
    problem: str | None = None

    def __str__(self) -> str:
        where = "elsewhere" if self.elsewhere else "by the same object"
        return f"{self.fault}\n    told: {self.told}; then {self.way} {where}: {self.problem or 'all is well'}"


class Matrix:
    """All faults, and what is needed to try them."""

    def __init__(self, folder: Path, children: Children, listener: Listener | None) -> None:
        self._folder = folder
        self._children = children
        self._listener = listener
        self._starts: dict[Act, Start] = {}
        self._references: dict[tuple[str, bool], Reference] = {}  # by conversation, and whether the turn is steered
        self._runs = 0
        self.points: dict[tuple[Act, bool], list[Point]] = {}

    async def find(self, acts: Sequence[Act]) -> list[Fault]:
        """Runs each act without a fault, alone and in company, and gives all faults at all points that it passed."""
        found: list[Fault] = []
        for act in acts:
            start = await self._start(act)
            for company in (False, True):
                folder = self._copy(start)
                run = Run(start, folder, None, self._listener)
                if act == "sync":
                    self._children.run(run, folder, company=company)
                else:
                    async with struck(run, company=company):
                        pass
                run.log.close()
                self.points[act, company] = run.points
                for point in run.points:
                    found += faults_at(act, point, company=company)
        return found

    async def try_one(self, fault: Fault) -> Verdict:
        """Strikes, judges and goes on. Which way, and where, depends on the fault and is always the same."""
        number = _number(fault)
        way = WAYS[number % len(WAYS)]
        elsewhere = fault.kind == "kill" or fault.act == "sync" or fault.closes or number // len(WAYS) % 2 == 1
        start = await self._start(fault.act)
        reference = await self._reference(start)
        folder = self._copy(start)
        run = Run(start, folder, fault, self._listener)
        try:
            if fault.kind == "kill" or fault.act == "sync":
                self._children.run(run, folder, company=fault.company)
                stood = await judge(run, reference, way, elsewhere=elsewhere)
            else:
                async with struck(run, company=fault.company):
                    stood = await judge(run, reference, way, elsewhere=elsewhere)
        except Exception as error:
            problem = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
            return Verdict(fault, way, elsewhere, run.struck, run.told, problem=problem)
        finally:
            run.log.close()
        heard = tuple(run.heard())
        shutil.rmtree(folder)
        return Verdict(fault, way, elsewhere, run.struck, run.told, stood, heard)

    async def _start(self, act: Act) -> Start:
        if act not in self._starts:
            self._starts[act] = await self._made(act, self._folder / f"start {act}")
        return self._starts[act]

    async def _made(self, act: Act, folder: Path) -> Start:
        match act:
            case "run" | "wait":
                return await make_start(folder, self._listener, asks=act == "wait")
            case "sync" | "stream" | "keyed" | "steer":
                return replace(await self._start("run"), act=act)
            case "first":
                return as_first(await self._start("run"))
            case "go on":
                return await cut(await self._start("run"), folder, self._listener)
            case "resume":
                return await failed(await self._start("run"), folder, self._listener)
            case "approve":
                return await waiting(await self._start("wait"), folder, self._listener)
            case "resume after a kill":
                start = await self._start("run")
                start.copy(folder)
                # What the turn writes first is that it begins, then the model's answer, then the two results.
                fault = Fault("run", "kill", "before", Point("statement", "COMMIT", 4), company=False)
                run = Run(start, folder, fault, self._listener)
                self._children.run(run, folder, company=False)
                run.log.close()
                return killed(start, folder)
            case _ as never:
                assert_never(never)

    async def _reference(self, start: Start) -> Reference:
        """What is asked without a fault: the same for all that happens in one conversation, with or without a steer."""
        which = start.conversation, start.act == "steer"
        if which not in self._references:
            own = start.act in ("first", "go on", "steer")
            base = start if own else await self._start("wait" if start.asks else "run")
            folder = self._folder / f"reference {len(self._references)}"
            self._references[which] = await make_reference(base, folder, self._listener)
        return self._references[which]

    def _copy(self, start: Start) -> Path:
        self._runs += 1
        folder = self._folder / f"run {self._runs}"
        start.copy(folder)
        return folder


@asynccontextmanager
async def open_matrix(folder: Path, *, http: bool = False) -> AsyncIterator[Matrix]:
    """A matrix in a folder; with ``http`` its model is a server."""
    with Children() as children:
        if not http:
            yield Matrix(folder, children, None)
            return
        listener = Listener()
        with listener.server:
            yield Matrix(folder, children, listener)


def sample(faults: Sequence[Fault]) -> list[Fault]:
    """The same faults in an order of which any beginning is a fair sample: at the commit first, then everywhere."""
    last = Counter[tuple[Act, bool]]()
    for fault in faults:
        if fault.point.name == "COMMIT":
            last[fault.act, fault.company] = max(last[fault.act, fault.company], fault.point.nth)

    def order(fault: Fault) -> tuple[bool, int]:
        at_the_commit = fault.point.name == "COMMIT" and fault.point.nth == last[fault.act, fault.company]
        return not (at_the_commit and fault.act == "run"), _number(fault)

    return sorted(faults, key=order)


def _number(fault: Fault) -> int:
    """A number that is always the same for a fault, and says nothing about it."""
    return zlib.crc32(str(fault).encode())


def counted(verdicts: Sequence[Verdict]) -> Counter[str]:
    """How often what came of it."""
    return Counter(
        f"{verdict.fault.kind} ({verdict.fault.how}): told {verdict.told}, the turn {verdict.stood}"
        for verdict in verdicts
        if verdict.problem is None
    )
