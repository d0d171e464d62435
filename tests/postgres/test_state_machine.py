"""Whatever is done to a database of PostgreSQL, in whatever order: it agrees with a simple model in memory."""

from contextlib import ExitStack
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from tests.postgres.fixtures import Databases
from tests.postgres.modes import DIRECT, POOLED, Mode, new_store
from tests.store.support.machine import StoreMachine

from forkpoint.store.postgres.store import PostgresStore
from forkpoint.store.protocol import Store


class PostgresMachine(StoreMachine):
    mode: ClassVar[Mode]
    databases: ClassVar[Databases]
    request: ClassVar[pytest.FixtureRequest]
    places_of_events = "SELECT segment << 32 | ordinal FROM event"

    def make_place(self) -> None:
        self.place_of_run = ExitStack()
        self.url = self.place_of_run.enter_context(new_store(self.mode, self.databases, self.request))

    def remove_place(self) -> None:
        self.place_of_run.close()

    async def open_store(self) -> Store:
        return await PostgresStore.open(self.url, clock=self.clock)

    async def send_beat(self, store: Store) -> bool:
        assert isinstance(store, PostgresStore)
        opened = store._view.opened
        if not opened.running:
            return False
        opened.beaten = await opened._write("heartbeat", lambda db, scope: opened.say_alive(db))
        return True

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        database = self.url.rpartition("/")[2].partition("?")[0]
        return self.databases.server.execute(query, database=database)


class DirectMachine(PostgresMachine):
    mode = DIRECT


class PooledMachine(PostgresMachine):
    mode = POOLED


@pytest.fixture(autouse=True)
def _databases(postgres_databases: Databases, request: pytest.FixtureRequest) -> None:
    PostgresMachine.databases = postgres_databases
    PostgresMachine.request = request


_RULES = settings(max_examples=3, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))

TestDirect = DirectMachine.TestCase
TestDirect.settings = _RULES
TestPooled = PooledMachine.TestCase
TestPooled.settings = _RULES
