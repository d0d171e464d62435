"""Engines whose store takes a silent process for dead after a second, and another process that has one::

    python -m tests.conversation.support.short_lease FILE ASKED ID...

It runs the message ASKED in each conversation at once, under the key ``k-ID``, and says in a line of JSON how each turn
ended for it.
"""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from tests.conversation.support.tools import agent

from forkpoint import AsyncConversation, ForkpointError
from forkpoint.engine import Engine
from forkpoint.store.sqlite import SqliteSettings, SqliteStore

ROOT = Path(__file__).parents[3]
SHORT = SqliteSettings(heartbeat=100_000, expiry=1_000_000)


@asynccontextmanager
async def engine_on(file: Path | str, settings: SqliteSettings = SHORT) -> AsyncIterator[Engine]:
    """An engine on a file, as another process would have it."""
    engine = Engine(await SqliteStore.open(file, settings=settings))
    try:
        yield engine
    finally:
        await engine.close()


async def over(engine: Engine, id: str) -> AsyncConversation:
    """A conversation that an engine runs, with the obedient agent."""
    info, settings = await engine.find(id)
    return AsyncConversation.over(engine, info, settings, agent())


def start(file: Path, asked: str, *ids: str) -> Any:
    """Starts the other process. Its standard input and output are pipes."""
    command = [sys.executable, "-m", "tests.conversation.support.short_lease", str(file), asked, *ids]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def main(file: str, asked: str, ids: list[str]) -> None:
    async with engine_on(file) as engine:

        async def run(id: str) -> None:
            told: dict[str, str]
            try:
                told = {"outcome": (await (await over(engine, id)).run(asked, key=f"k-{id}")).outcome}
            except ForkpointError as error:
                told = {"error": error.code}
            print(json.dumps({"id": id} | told), flush=True)

        async with anyio.create_task_group() as tasks:
            for id in ids:
                tasks.start_soon(run, id)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3:])
