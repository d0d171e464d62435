"""PostgreSQL is a store, in each of its modes."""

from collections.abc import Iterator
from typing import ClassVar

import pytest
from tests.postgres.fixtures import Databases
from tests.postgres.modes import DIRECT, ONE_PARTITION, POLLING, POOLED, Mode, new_store

from forkpoint.clock import Clock
from forkpoint.store import Store
from forkpoint.store.postgres.store import PostgresStore
from forkpoint.testing.conformance import StoreConformance
from forkpoint.testing.conformance.base import Opener


class PostgresConformance(StoreConformance):
    mode: ClassVar[Mode]

    @pytest.fixture
    def opener(self, postgres_databases: Databases, request: pytest.FixtureRequest) -> Iterator[Opener]:
        with new_store(self.mode, postgres_databases, request) as url:

            async def open_database(clock: Clock) -> Store:
                return await PostgresStore.open(url, clock=clock)

            yield open_database


class TestDirect(PostgresConformance):
    mode = DIRECT


@pytest.mark.sample(0)
class TestPooled(PostgresConformance):
    mode = POOLED


@pytest.mark.sample(1)
class TestPolling(PostgresConformance):
    mode = POLLING


@pytest.mark.sample(2)
class TestOnePartition(PostgresConformance):
    mode = ONE_PARTITION
