"""`bring()` is struck at every await and every write: the note is there whole or not at all, and it is paid once."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conversation.faults.bringing import BRANCH, HERE, OPTIONS, PAID, StruckBring, agent, file_in

from forkpoint.backend.bring import BringReport
from forkpoint.engine.engine import Engine
from forkpoint.events import Brought, Usage
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import NewConversation, NewFork
from forkpoint.testing.samples import exchange

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL, and no fork"),
]

ROOT = Path(__file__).parents[2]
THIRD = 3  # of the points are killed at, since a process takes its time; errors are tried at all of them


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def start(tmp_path: Path) -> Path:
    """A conversation and a branch that has gone on."""
    folder = tmp_path / "start"
    folder.mkdir()
    async with await SqliteStore.open(file_in(folder)) as store:
        here = await store.create(NewConversation(id=new_id(), name=HERE), exchange("one"))
        branch = await store.fork(here.id, NewFork(id=new_id(), name=BRANCH, cache="{}"))
        await store.note(branch.id, new_id(), exchange("two"))
    return folder


async def judged(folder: Path, told: object, *, alive: bool) -> bool:
    """Looks at what a run has left, and sends the request again. Says whether the first one had its effect."""
    async with await SqliteStore.open(file_in(folder)) as store:
        here = await store.find(HERE)
        notes = [event for event in await store.events(here.id) if isinstance(event.body, Brought)]
        spent = await store.usage(here.family)
        assert len(notes) <= 1
        if isinstance(told, BringReport):
            assert [note.turn for note in notes] == [told.id], "it was told done, and is not there"
        if notes:
            assert (await store.turn(notes[0].turn)).usage == PAID
            assert spent == PAID, "it was counted twice, or not at all"
        elif alive:
            assert spent in (Usage(), PAID), "what a model was paid is a charge, once"
        engine = Engine(store, owns_store=False)
        again = await engine.branches.bring(here.id, OPTIONS, agent())
        if notes:
            assert again.id == notes[0].turn, "the same key gave another note"
            assert await store.usage(here.family) == spent, "a model was asked again"
        else:
            assert await store.usage(here.family) == spent + PAID
        after = await store.events(here.id)
        assert sum(isinstance(event.body, Brought) for event in after) == 1
        assert (await store.verify()).ok
        await engine.close()
        return bool(notes)


async def points_of(start: Path, tmp_path: Path) -> int:
    shutil.copytree(start, tmp_path / "whole")
    whole = StruckBring(tmp_path / "whole", None)
    told = await whole.run()
    assert isinstance(told, BringReport), told
    assert await judged(tmp_path / "whole", told, alive=True)
    return len(whole.points)


@pytest.mark.parametrize("how", ["exception", "cancel"])
async def test_an_error_or_a_cancellation_at_any_point_leaves_the_note_whole_or_not_there(
    start: Path, tmp_path: Path, how: str
) -> None:
    stood, struck = [], 0
    for number in range(1, await points_of(start, tmp_path) + 1):
        folder = tmp_path / str(number)
        shutil.copytree(start, folder)
        run = StruckBring(folder, number, how)
        told = await run.run()
        struck += run.struck
        stood.append(await judged(folder, told, alive=True))
    assert struck >= 10, "hardly any point was struck, so this proved nothing"
    assert True in stood
    assert False in stood


async def test_a_kill_leaves_the_note_whole_or_not_there(start: Path, tmp_path: Path) -> None:
    last = await points_of(start, tmp_path)
    numbers = [*range(1, last, THIRD), last]
    runs = tmp_path / "runs"
    command = [sys.executable, "-m", "tests.conversation.faults.bringing", str(start), str(runs), *map(str, numbers)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)  # noqa: ASYNC221 - nothing else runs here
    stood = [await judged(runs / str(number), None, alive=False) for number in numbers]
    assert True in stood
    assert False in stood
