"""Whatever strikes a turn with hooks, skills, an MCP server, a secret and a condensation, each promise holds.

Disk faults, cancellations and kills are tried at a sample of all statements and awaits, as many as there is time for;
``python -m tests.conversation.faults.working`` tries them all. What must hold after each says
`tests/conversation/faults/working.py`.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from tests.conversation.faults.disk import FLAWS, Disk
from tests.conversation.faults.family import Blow
from tests.conversation.faults.judge import Broken
from tests.conversation.faults.working import Judge, Matrix, Reference, look
from tests.conversation.faults.working_kills import ACTS, Killing, judge, killing
from tests.conversation.faults.working_world import GO, KEY, NEXT, STAGES, World

from forkpoint.agent.mcp import end_servers
from forkpoint.backend.messages import as_message
from forkpoint.backend.options import NewTurn
from forkpoint.engine.engine import Engine
from forkpoint.errors import StoreError
from forkpoint.events import Condensation
from forkpoint.store.sqlite import SqliteStore

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        sys.platform == "win32", reason="Windows has no SIGKILL, no fork, and no hooks that are commands"
    ),
]

SECONDS = 2.0  # for each sample
AT_LEAST = 6  # faults, or it proved nothing
KILLS = 10


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("POST_LOG", "POST_KEY"):  # which are set for each run, and not left behind
            patch.setenv(name, "none")
        yield anyio.run(Matrix.make, tmp_path_factory.mktemp("working") / "matrix")
        anyio.run(end_servers)


@pytest.fixture(scope="module")
def program(matrix: Matrix, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killing]:
    with killing(matrix.start, matrix.reference, tmp_path_factory.mktemp("killed")) as program:
        yield program


async def tried(matrix: Matrix, kind: str) -> None:
    """A sample of all blows, as large as there is time for."""
    until = time.monotonic() + SECONDS
    struck, problems = 0, []
    for blow in matrix.blows(kind):
        if time.monotonic() > until and struck >= AT_LEAST:
            break
        verdict = await matrix.try_one(blow)
        struck += verdict.hit
        problems += [str(verdict)] if verdict.problem is not None else []
    assert not problems, f"{len(problems)} were not handled:\n" + "\n".join(problems[:5])
    assert struck >= AT_LEAST, "hardly any fault struck, so this proved nothing"


async def test_a_disk_that_fails_at_any_statement_leaves_a_working_turn_whole(matrix: Matrix) -> None:
    await tried(matrix, "disk")


async def test_a_disk_that_loses_the_note_of_a_condensation_leaves_the_turn_committed(matrix: Matrix) -> None:
    note = [point for point in matrix.points if point.name == "COMMIT"][-1]
    for how in ("fsync failed from here on, landed", "fsync failed from here on, not landed"):
        for elsewhere in (True, False):
            verdict = await matrix.try_one(Blow("disk", how, note, elsewhere=elsewhere))
            assert verdict.problem is None, str(verdict)
            assert verdict.hit
            assert verdict.stood.startswith("committed"), str(verdict)


@pytest.mark.parametrize("how", ["fsync failed from here on, landed", "fsync failed from here on, not landed"])
async def test_a_note_is_asked_for_until_the_disk_says_whether_it_is_there(
    matrix: Matrix, tmp_path: Path, how: str
) -> None:
    note = [point for point in matrix.points if point.name == "COMMIT"][-1]
    commits = 0

    def meets(sql: str) -> None:
        nonlocal commits
        commits += sql == "COMMIT"
        if sql == "COMMIT" and commits == note.nth:
            disk.strike(FLAWS[how])

    disk = Disk(meets)
    id, file = matrix.start.parent, matrix.start.copy(tmp_path / "run")
    opened = SqliteStore.open(file, connect=disk.connect)
    with closing(World(tmp_path / "run")) as world:
        async with await opened as store:
            commits = 0  # of opening it
            backend = Engine(store, owns_store=False)
            assert (
                await backend.turns.run(id, world.agent, NewTurn(given=(as_message(GO),)), world.told)
            ).outcome == "committed"
            for _ in range(2):
                with pytest.raises(StoreError):
                    await backend.turns.run(id, world.agent, NewTurn(given=(as_message(NEXT),)), world.told)
            disk.mend()
            await backend.turns.run(id, world.agent, NewTurn(given=(as_message(NEXT),)), world.told)
            await backend.close()
            found = await look(store, id)
        Judge(world, id, matrix.reference).check_usage(found)
    assert sum(isinstance(event.body, Condensation) for event in found.events) == 1


async def test_a_working_turn_that_is_cancelled_at_any_await_leaves_nothing_at_work(matrix: Matrix) -> None:
    await tried(matrix, "cancel")


async def test_a_process_that_is_killed_anywhere_leaves_a_turn_that_somebody_else_goes_on_with(
    program: Killing,
) -> None:
    kills = program.find()
    verdicts = [await program.try_one(kill) for kill in kills[:KILLS]]
    problems = [str(verdict) for verdict in verdicts if verdict.problem is not None]
    assert not problems, f"{len(problems)} were not survived:\n" + "\n".join(problems[:5])
    met = Counter(kill.stage for kill in kills[:KILLS]) + Counter(kill.act for kill in kills[:KILLS])
    assert met.keys() >= {*ACTS, *STAGES}, f"this proved little: {met}"
    assert sum(verdict.killed for verdict in verdicts) >= AT_LEAST, "hardly any process was killed"


def asks_otherwise(reference: Reference, folder: Path) -> Reference:
    return Reference(b"{}", b"{}", b"{}")


def runs_a_call_twice(reference: Reference, folder: Path) -> Reference:
    with (folder / "log").open("a") as log:
        log.write("starts call_look\n")
    return reference


def counts_what_nobody_paid_for(reference: Reference, folder: Path) -> Reference:
    log = folder / "log"
    log.write_text(log.read_text().replace("answered\n", ""))
    return reference


def keeps_the_secret(reference: Reference, folder: Path) -> Reference:
    (folder / "store.db-else").write_text(f"it is {KEY}")
    return reference


SPOILED = {
    asks_otherwise: "asks otherwise",
    runs_a_call_twice: "was run again",
    counts_what_nobody_paid_for: "are counted",
    keeps_the_secret: "the secret is in",
}


async def test_the_judge_sees_what_is_wrong(matrix: Matrix, program: Killing) -> None:
    *_, kill = [kill for kill in program.passed("run") if kill.stage == "tools" and kill.after]
    for spoil, wrong in SPOILED.items():
        order, killed = program.killed(kill)
        assert killed
        reference = spoil(matrix.reference, Path(order.folder))
        with pytest.raises(Broken, match=wrong):
            await judge(order, reference, "resume" if spoil is runs_a_call_twice else "discard", killed=True)
