"""A process is killed while a turn spawns sub-agents, waits for them and ends: each promise holds for all of them.

Here a sample of the kills is tried, always in the same order; ``python -m benchmarks.team_kills --every`` tries them
all. What is killed says `tests/conversation/team_faults/killing.py`; what must hold after it, `judge.py` beside it.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.conversation.faults.judge import Broken
from tests.conversation.faults.scenario import Log
from tests.conversation.team_faults.judge import WAYS, Reference, Way, judge, opened
from tests.conversation.team_faults.killing import ACTS
from tests.conversation.team_faults.scenario import STAGES, TASKS

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL, and no fork"),
]

ROOT = Path(__file__).parents[2]
KILLS = 36
SEEN = re.compile(r"^ +(\d+)  ([^,:]+), (\w+): (.+), with \d sub-agents; then (\w+)$", re.MULTILINE)


def test_after_every_kill_the_promises_hold_for_a_parent_and_its_sub_agents(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.team_kills", "--kills", str(KILLS), "--folder", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, f"{' '.join(command[1:])} found something:\n{run.stdout}{run.stderr}"
    seen = Counter[str]()
    for times, act, stage, stood, way in SEEN.findall(run.stdout):
        seen += Counter(dict.fromkeys({act, f"{act}, {stage}", stood, way}, int(times)))
    assert seen.keys() >= {*ACTS, *WAYS, *(f"run, {stage}" for stage in STAGES)}, f"this proved little:\n{run.stdout}"
    assert seen["interrupted"] > KILLS / 2, f"hardly any kill met a running turn:\n{run.stdout}"


def another_answer(reference: Reference, log: Path) -> Reference:
    return replace(reference, answer="They told me nothing.")


def another_request(reference: Reference, log: Path) -> Reference:
    return replace(reference, next=reference.next + b" ", without=reference.without + b" ")


def a_tool_that_ran_twice(reference: Reference, log: Path) -> Reference:
    world = Log(log, "run")
    for task in 2 * list(TASKS.values()):
        world.write("starts", f"{task}, near")
    world.close()
    return reference


async def test_the_judge_sees_what_is_wrong(tmp_path: Path) -> None:
    wrong: list[tuple[Callable[[Reference, Path], Reference], Way]] = [
        (another_answer, "resume"),
        (another_request, "resume"),
        (another_request, "discard"),
        (another_request, "supersede"),
        (a_tool_that_ran_twice, "resume"),
    ]
    with opened(tmp_path) as killing:
        kills = await killing.find(["run"])
        waiting = next(kill for kill in kills if kill.stage == "wait" and kill.point.kind == "await")
        for spoil, way in wrong:
            order, killed = killing.killed(waiting)
            assert killed
            reference = spoil(killing.reference, Path(order.folder) / "log")
            with pytest.raises(Broken):
                await judge(order, reference, way)
