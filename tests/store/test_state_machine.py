"""Whatever is done to a file of SQLite, in whatever order: it agrees with a simple model in memory."""

import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from tests.store.support.machine import StoreMachine

from forkpoint.store.protocol import Store
from forkpoint.store.sqlite import SqliteStore


class SqliteMachine(StoreMachine):
    def make_place(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="forkpoint-"))

    def remove_place(self) -> None:
        shutil.rmtree(self.folder)

    async def open_store(self) -> Store:
        return await SqliteStore.open(self.folder / "store.db", clock=self.clock)

    async def send_beat(self, store: Store) -> bool:
        assert isinstance(store, SqliteStore)
        file = store._view.opened
        beat = file.beat()
        if beat is not None:
            await file.writer.submit(beat)
        return beat is not None

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "store.db")) as db:
            return db.execute(query).fetchall()


TestStoreMachine = SqliteMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=35, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
