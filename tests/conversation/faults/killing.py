"""Runs of the struck turn in processes of their own: those that are killed, and those of programs that are not async.

    python -m tests.conversation.faults.killing

is the program that makes them: it loads everything once, and then makes a child for each line of JSON on standard
input, by ``os.fork``, so that a run costs no start of Python. It answers with how the child ended. It has no thread and
no event loop of its own, which a fork would cut in half.
"""

import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import msgspec
from msgspec import Struct
from tests.conversation.faults.kinds import Fault
from tests.conversation.faults.points import Point
from tests.conversation.faults.runs import Run, Told, struck, struck_in_sync
from tests.conversation.faults.scenario import Listener
from tests.conversation.faults.starts import Start

ROOT = Path(__file__).parents[3]


class Order(Struct, frozen=True):
    """A run that is wanted."""

    start: Start
    folder: str
    fault: Fault | None
    company: bool
    model: str | None  # its address


class Report(Struct, frozen=True):
    """What a child says that was not killed."""

    told: Told
    struck: bool
    points: list[Point]
    error: str


class Children:
    """The program, started."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.conversation.faults.killing"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, run: Run, folder: Path, *, company: bool) -> Run:
        """Runs the turn in a process of its own, to its end or to its death."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        address = None
        if isinstance(run.listener, Listener):
            run.listener.log, address = run.log, run.listener.server.url
        order = Order(run.start, str(folder), run.fault, company, address)
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the program that makes processes has died")
        status = int(answer)
        if status == 0:
            report = msgspec.json.decode((folder / "report").read_bytes(), type=Report)
            run.told, run.struck, run.points = report.told, report.struck, report.points
            run.error = RuntimeError(report.error) if report.error else None
        elif status == -signal.SIGKILL:
            run.told, run.struck = "killed", True
        else:
            raise RuntimeError(f"the process ended with status {status}")
        return run

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


def _be(order: Order) -> None:
    """What a child does."""
    folder = Path(order.folder)
    run = Run(order.start, folder, order.fault, order.model)
    if order.start.act == "sync":
        struck_in_sync(run, company=order.company)
    else:
        anyio.run(_run, run, order.company)
    report = Report(run.told, run.struck, run.points, "" if run.error is None else repr(run.error))
    (folder / "report").write_bytes(msgspec.json.encode(report))


async def _run(run: Run, company: bool) -> None:
    async with struck(run, company=company):
        pass


def main() -> None:
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=Order)
        child = os.fork()
        if not child:
            ended = 1
            try:
                _be(order)
                ended = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(ended)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
