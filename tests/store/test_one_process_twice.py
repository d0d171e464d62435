"""Two stores on one file in one process: SQLite's own locks on the file belong to the process, not to either store."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

from forkpoint.store.sqlite import SqliteStore
from forkpoint.testing.conformance.base import create, run

pytestmark = pytest.mark.anyio

COUNT = """
import anyio, sys
from forkpoint.store.sqlite import SqliteStore
async def main():
    async with await SqliteStore.open(sys.argv[1]) as store:
        print(len(await store.events(sys.argv[2])))
anyio.run(main)
"""


async def events_seen_elsewhere(path: Path, conversation: str) -> int:
    command = [sys.executable, "-c", COUNT, str(path), conversation]
    run = partial(subprocess.run, command, capture_output=True, text=True, check=True, timeout=60)
    return int((await anyio.to_thread.run_sync(run)).stdout)


@pytest.mark.parametrize("stays_open", [False, True], ids=["the second is closed", "the second stays open"])
async def test_opening_a_file_again_does_not_drop_the_locks_of_the_first(tmp_path: Path, stays_open: bool) -> None:
    path = tmp_path / "store.db"
    async with await SqliteStore.open(path) as store:
        made = await create(store)
        await run(store, made.id, "one")
        second = await SqliteStore.open(path)
        if not stays_open:
            await second.close()
        assert await events_seen_elsewhere(path, made.id) == 2
        await run(store, made.id, "two")
        assert await events_seen_elsewhere(path, made.id) == 4
        await second.close()
        assert (await store.verify()).ok
