"""Strikes a turn at every await and every write, and checks after each fault that every promise holds.

    ./run python -m benchmarks.faults              # a sample, for a minute
    ./run python -m benchmarks.faults --every      # all of it
    ./run python -m benchmarks.faults --list       # the points that were found

The turn has two steps with three tools, of which two run at once; `tests/conversation/faults` has it. It is run,
streamed, resumed and approved, over a store on disk. What it passes on its way is found by watching it, and not from a
list: `points.py` there says how, and `matrix.py` what is done to it at each point: exceptions, cancellations, SIGKILL.
After each fault the file is read by another connection, and compared with what the caller was told and with what the
tools did. Then the turn is retried, resumed, discarded or superseded, and what the model is asked from then on must be,
byte for byte, what it is asked where the fault never happened.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import anyio
import msgspec
from msgspec import Struct
from tests.conversation.faults.kinds import Fault, Kind
from tests.conversation.faults.matrix import Verdict, counted, open_matrix, sample
from tests.conversation.faults.starts import ACTS, Act

from benchmarks.progress import Progress

KINDS: tuple[Kind, ...] = get_args(Kind)
SHOWN = 20  # faults that were not handled


class Wanted(Struct, frozen=True):
    """Which faults are to be tried."""

    kinds: tuple[Kind, ...]
    acts: tuple[Act, ...]
    only: str
    every: bool
    seconds: float
    http: bool
    part: tuple[int, int]  # this one of so many, that share the work

    def of(self, faults: Sequence[Fault]) -> list[Fault]:
        fitting = [fault for fault in faults if fault.kind in self.kinds and self.only in str(fault)]
        number, parts = self.part
        return sample(fitting)[number::parts]


async def try_all(wanted: Wanted, folder: Path, progress: Progress) -> list[Verdict]:
    """Tries what is wanted, one after the other."""
    async with open_matrix(folder, http=wanted.http) as matrix:
        faults = wanted.of(await matrix.find(wanted.acts))
        for (act, company), points in matrix.points.items():
            kinds = Counter(point.kind for point in points)
            found = ", ".join(f"{count} of kind {kind}" for kind, count in kinds.items())
            progress.say(f"{act}{', in company' if company else ''}: {len(points)} points ({found})")
        until = time.monotonic() + wanted.seconds
        progress.say(f"{len(faults):,} faults{'' if wanted.every else f', for {wanted.seconds:g} s'}, in {folder}")
        verdicts: list[Verdict] = []
        for fault in faults:
            if not wanted.every and time.monotonic() > until:
                break
            verdicts.append(await matrix.try_one(fault))
            if verdicts[-1].problem is not None:
                progress.say(str(verdicts[-1]))
            progress.part("faults", len(verdicts), len(faults))
        return verdicts


async def show_points(wanted: Wanted, folder: Path) -> None:
    async with open_matrix(folder, http=wanted.http) as matrix:
        faults = Counter((fault.act, fault.company, fault.point) for fault in await matrix.find(wanted.acts))
        for (act, company), points in matrix.points.items():
            print(f"{act}{', in company' if company else ''}:")
            for number, point in enumerate(points, start=1):
                print(f"  {number:4}  {faults[act, company, point]:2} faults  {point}")


def try_in_parts(arguments: Sequence[str], folder: Path, jobs: int) -> list[Verdict]:
    """The same by several processes at once."""
    parts: list[subprocess.Popen[bytes]] = []
    for part in range(jobs):
        own = ["--jobs", "1", "--part", f"{part}/{jobs}", "--folder", str(folder / f"part {part + 1}")]
        command = [sys.executable, "-m", "benchmarks.faults", *arguments, *own]
        parts.append(subprocess.Popen(command, stdout=subprocess.PIPE))
    verdicts: list[Verdict] = []
    for process in parts:
        said, _ = process.communicate()
        if process.returncode not in (0, 1):
            raise SystemExit(process.returncode)
        verdicts += msgspec.json.decode(said, type=list[Verdict])
    return verdicts


def report(verdicts: Sequence[Verdict], seconds: float) -> int:
    for what, times in sorted(counted(verdicts).items()):
        print(f"  {times:7,}  {what}")
    missed = sum(not verdict.struck for verdict in verdicts)
    if missed:
        print(f"  {missed:7,}  did not come to their point this time, and went through")
    problems = [verdict for verdict in verdicts if verdict.problem is not None]
    print(f"{len(verdicts):,} faults in {seconds:,.0f} s; {len(problems):,} were not handled.")
    for verdict in problems[:SHOWN]:
        print(f"- {verdict}")
    if len(problems) > SHOWN:
        print(f"... and {len(problems) - SHOWN:,} more")
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__.split("\n")[0])
    parser.add_argument("--every", action="store_true", help="try all faults, and not a sample")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to sample (default: %(default)s)")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only faults of this kind; may be repeated")
    parser.add_argument("--act", choices=ACTS, action="append", help="only what strikes this; may be repeated")
    parser.add_argument("--only", default="", metavar="TEXT", help="only faults whose description has this text")
    parser.add_argument("--http", action="store_true", help="ask the model over HTTP, and compare the very bytes sent")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes share the work (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="show the points, and strike at none")
    parser.add_argument("--folder", type=Path, help="where to work (default: one that goes when all is well)")
    parser.add_argument("--quiet", action="store_true", help="say only how it ended")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    given = parser.parse_args()
    number, parts = map(int, given.part.split("/")) if given.part else (0, 1)
    wanted = Wanted(
        kinds=tuple(given.kind or KINDS),
        acts=tuple(given.act or ACTS),
        only=given.only,
        every=given.every,
        seconds=given.seconds,
        http=given.http,
        part=(number, parts),
    )
    folder: Path = given.folder or Path(tempfile.mkdtemp(prefix="forkpoint-faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    ended = 0
    if given.list:
        anyio.run(show_points, wanted, folder)
    elif given.jobs > 1:
        ended = report(try_in_parts(sys.argv[1:], folder, given.jobs), time.monotonic() - started)
    else:
        verdicts = anyio.run(try_all, wanted, folder, Progress(quiet=given.quiet))
        if given.part:
            print(msgspec.json.encode(verdicts).decode())
        else:
            ended = report(verdicts, time.monotonic() - started)
    if ended:
        print(f"What they left is in {folder}.")
    elif given.folder is None:
        shutil.rmtree(folder)
    return ended


if __name__ == "__main__":
    sys.exit(main())
