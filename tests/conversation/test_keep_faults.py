"""A keep that is struck anywhere is done, or it is not: and done again with its key, it is done once."""

import asyncio
import shutil
import sys
from pathlib import Path

import pytest
from tests.conversation.faults import keeping
from tests.conversation.faults.disk import FLAWS
from tests.conversation.faults.keeping import AFTER, BEFORE, KEY
from tests.conversation.faults.points import Point, Watch
from tests.conversation.faults.statements import FILE, Strike, do, kill_at_each

from forkpoint.backend.settings import Settings
from forkpoint.engine.engine import Engine
from forkpoint.errors import ForkpointError
from forkpoint.events import Text, UserMessage
from forkpoint.store.sqlite import SqliteStore

pytestmark = pytest.mark.anyio


async def said(store: SqliteStore, id: str) -> list[str]:
    bodies = [event.body for event in await store.events(id, kinds=["user_message"])]
    parts = [part for body in bodies if isinstance(body, UserMessage) for part in body.parts]
    return [part.text for part in parts if isinstance(part, Text)]


async def judge(file: Path, id: str, struck: str) -> bool:
    """Whether the keep is there. Fails if it is there in part; then it is done again, and must be there once."""
    store = await SqliteStore.open(file)
    record = await store.read(id)
    asides = [one for one in (await store.conversations()).items if one.lineage.kind == "aside"]
    agent = Settings.from_json(record.settings).agent_json
    is_there = await said(store, id) == AFTER
    assert await said(store, id) in (BEFORE, AFTER), struck
    assert (len(asides), record.revision) == ((1, 3) if is_there else (0, 2)), f"it is there in part: {struck}"
    assert (agent == keeping.THEIRS.to_json()) == is_there, f"the agent has come alone: {struck}"
    assert (await store.verify()).ok, struck
    assert (await store.usage(record.family)).calls == 3, struck

    engine = Engine(store)
    _, aside = await engine.branches.keep(id, "branch", key=KEY)
    asides = [one for one in (await store.conversations()).items if one.lineage.kind == "aside"]
    assert aside is not None
    assert [aside[0].id] == [one.id for one in asides], f"done again, it was done twice: {struck}"
    assert (await said(store, id), await said(store, aside[0].id)) == (AFTER, BEFORE), struck
    assert (await store.read(id)).revision == 3, struck
    assert (await store.verify()).ok, struck
    await engine.close()
    return is_there


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL, and no fork")
async def test_a_process_that_dies_at_any_write_of_a_keep_leaves_it_whole_or_not_at_all(tmp_path: Path) -> None:
    id = await keeping.prepare(tmp_path)
    killed = await kill_at_each(keeping.keep, tmp_path)
    found = {name: await judge(tmp_path / name / FILE, id, name) for name in killed}
    assert set(found.values()) == {True, False}


@pytest.mark.parametrize(
    "how", ["i/o error", "disk full from here on", "fsync failed, landed", "fsync failed, not landed"]
)
async def test_a_disk_that_fails_at_any_statement_of_a_keep_leaves_it_whole_or_not_at_all(
    start: tuple[Path, str], tmp_path: Path, how: str
) -> None:
    folder, id = start
    counted = Strike(0, how)
    await do(keeping.keep, copied(folder, tmp_path / "0"), counted)
    for nth, statement in enumerate(counted.met, start=1):
        if FLAWS[how].commits and statement != "COMMIT":
            continue
        file = copied(folder, tmp_path / str(nth))
        strike, heard = Strike(nth, how), "done"
        try:
            await do(keeping.keep, file, strike)
        except ForkpointError as error:
            heard = error.code
        assert strike.struck
        is_there = await judge(file, id, f"{how} at statement {nth}, and it said {heard}")
        assert is_there or heard != "done", f"it said that it was done: statement {nth}"
        assert not is_there or heard in ("done", "outcome_unknown"), f"it said {heard}, and it was done"


async def test_a_keep_that_is_cancelled_at_any_await_is_whole_or_not_there_at_all(
    start: tuple[Path, str], tmp_path: Path
) -> None:
    folder, id = start
    ended: list[bool] = []
    waits = nth = 0
    while waits == nth:
        nth += 1
        file = copied(folder, tmp_path / str(nth))
        waits = await cancelled(file, id, nth)
        ended.append(await judge(file, id, f"cancelled at await {nth}"))
    assert len(ended) >= 5, "it hardly ever waited, so this proved nothing"
    assert not ended[0]
    assert ended[-1]


async def cancelled(file: Path, id: str, nth: int) -> int:
    """Keeps the branch, and cancels that where it waits for the nth time. Returns how often it had waited by then."""
    waits = 0

    def strike(point: Point) -> None:
        nonlocal waits
        if point.kind == "await" and waits < nth:
            waits += 1
            if waits == nth and watch.root is not None:
                watch.root.cancel()

    engine = Engine(await SqliteStore.open(file))
    loop, watch = asyncio.get_running_loop(), Watch(strike, str(file.parent))
    watch.start(loop)
    keeps = loop.create_task(engine.branches.keep(id, "branch", key=KEY))
    await asyncio.wait([keeps])
    watch.stop(loop)
    await engine.close()
    return waits


def copied(start: Path, folder: Path) -> Path:
    shutil.copytree(start, folder)
    return folder / FILE


@pytest.fixture
async def start(tmp_path: Path) -> tuple[Path, str]:
    (folder := tmp_path / "start").mkdir()
    return folder, await keeping.prepare(folder)
