"""SQLite, in a file and in memory, is a store."""

from pathlib import Path

import pytest

from forkpoint.clock import Clock
from forkpoint.store import Store
from forkpoint.store.sqlite import SqliteStore
from forkpoint.testing.conformance import StoreConformance
from forkpoint.testing.conformance.base import Opener


class TestSqliteFile(StoreConformance):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        async def open_file(clock: Clock) -> Store:
            return await SqliteStore.open(tmp_path / "store.db", clock=clock)

        return open_file


class TestSqliteFileOnTrio(TestSqliteFile):
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "trio"


class TestSqliteMemory(StoreConformance):
    @pytest.fixture
    def opener(self) -> Opener:
        async def open_memory(clock: Clock) -> Store:
            return await SqliteStore.open(None, clock=clock)

        return open_memory
