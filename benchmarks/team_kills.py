"""Kills a process while a turn spawns sub-agents, waits for them and ends, and checks what is left of all of them.

    ./run python -m benchmarks.team_kills --kills 1000
    ./run python -m benchmarks.team_kills --every          # each kill there is, followed by each way to go on

A parent's turn gives two tasks to forked sub-agents, waits for both and answers; `tests/conversation/team_faults` has
it. Where it can be killed (SIGKILL) is found by watching it: at each await of any task, each statement of the store's
writer, each file that the store opens or locks. So are its resumption, after it was killed while it spawned and while
it waited, and its being discarded or superseded then. After each kill another process reads the file, and resumes,
discards or supersedes the turn. Nothing may be in the parent before it commits; each call has made one sub-agent; what
sub-agents committed is there and was not run twice; a resumed parent has the answer of one that was never killed; what
was left is cancelled in all of them; each answer of a model is counted once; `verify` finds no flaw.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import anyio
from tests.conversation.team_faults.judge import WAYS, Verdict, counted, opened
from tests.conversation.team_faults.killing import Kill

from benchmarks.progress import Progress

SHOWN = 20  # kills that were not survived


async def kill_all(kills: int | None, folder: Path, progress: Progress) -> list[Verdict]:
    """Kills so often; None is all kills, with all ways to go on."""
    verdicts: list[Verdict] = []
    with opened(folder) as killing:
        found = await killing.find()
        for (act, stage), count in sorted(Counter((kill.act, kill.stage) for kill in found).items()):
            progress.say(f"{act}, {stage}: {count} kills")
        wanted = kills or len(found) * len(WAYS)
        for kill, turn in _again_and_again(found):
            if len(verdicts) == wanted:
                break
            verdicts.append(await killing.try_one(kill, turn))
            if verdicts[-1].problem is not None:
                progress.say(str(verdicts[-1]))
            progress.part("kills", len(verdicts), wanted)
    return verdicts


def _again_and_again(kills: Sequence[Kill]) -> Iterator[tuple[Kill, int]]:
    """Each kill, and how often it was tried before: each time another way to go on follows."""
    turn = 0
    while True:
        for kill in kills:
            yield kill, turn
        turn += 1


def report(verdicts: Sequence[Verdict], seconds: float) -> int:
    problems = [verdict for verdict in verdicts if verdict.problem is not None]
    if not problems:
        print(f"{len(verdicts):,} kills, and each promise was kept, in {seconds:,.0f} s. Seen:")
    for what, times in sorted(counted(verdicts).items()):
        print(f"  {times:7,}  {what}")
    if missed := sum(not verdict.killed for verdict in verdicts):
        print(f"  {missed:7,}  did not come to their point this time, and went through")
    if problems:
        print(f"{len(problems):,} of {len(verdicts):,} kills were not survived:")
    for verdict in problems[:SHOWN]:
        print(f"- {verdict}")
    if len(problems) > SHOWN:
        print(f"... and {len(problems) - SHOWN:,} more")
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.team_kills", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=300, help="how often to kill (default: %(default)s)")
    parser.add_argument("--every", action="store_true", help="try each kill there is, with each way to go on")
    parser.add_argument("--folder", type=Path, help="where to work (default: one that goes when all is well)")
    parser.add_argument("--quiet", action="store_true", help="say only how it ended")
    given = parser.parse_args()
    folder: Path = given.folder or Path(tempfile.mkdtemp(prefix="forkpoint-team-kills-"))
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    verdicts = anyio.run(kill_all, None if given.every else given.kills, folder, Progress(quiet=given.quiet))
    ended = report(verdicts, time.monotonic() - started)
    if ended:
        print(f"What they left is in {folder}.")
    elif given.folder is None:
        shutil.rmtree(folder)
    return ended


if __name__ == "__main__":
    sys.exit(main())
