"""A store that says how long its operations take, and is a store in every other way."""

import inspect
from typing import Any

import pytest

from forkpoint.clock import Clock
from forkpoint.errors import NotFound
from forkpoint.server.http.metrics import Metrics
from forkpoint.server.http.timed_store import OPERATIONS, TimedStore, timed
from forkpoint.store import Store, open_store
from forkpoint.store.sqlite import SqliteStore
from forkpoint.testing.conformance import StoreConformance
from forkpoint.testing.conformance.base import Opener

pytestmark = pytest.mark.anyio


class TestTimedStore(StoreConformance):
    @pytest.fixture
    def opener(self) -> Opener:
        async def open_timed(clock: Clock) -> Store:
            return timed(await SqliteStore.open(None, clock=clock), lambda operation, seconds: None)

        return open_timed


class Report:
    def __init__(self) -> None:
        self.told: list[tuple[str, float]] = []

    def __call__(self, operation: str, seconds: float) -> None:
        self.told.append((operation, seconds))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.told]


async def test_every_operation_is_reported_with_its_time_also_one_that_fails() -> None:
    report = Report()
    async with timed(await open_store("memory:"), report) as store:
        assert isinstance(store, TimedStore)
        await store.conversations()
        with pytest.raises(NotFound):
            await store.read("nobody")
        assert store.tenant == "default"
    assert report.names == ["conversations", "read"]
    assert all(0 < seconds < 60 for _, seconds in report.told)


async def test_another_tenants_view_is_timed_too() -> None:
    report = Report()
    async with timed(await open_store("memory:"), report) as store:
        other = store.within("other")
        assert other.tenant == "other"
        await other.conversations()
        await other.within("third").conversations()
    assert report.names == ["conversations", "conversations"]


def test_all_that_can_be_awaited_of_a_store_is_an_operation() -> None:
    awaited = {name for name, value in inspect.getmembers(Store, inspect.iscoroutinefunction) if name[0] != "_"}
    assert awaited == OPERATIONS
    assert {"begin", "commit", "events", "close"} <= OPERATIONS


async def test_what_is_no_operation_is_passed_through_as_it_is() -> None:
    class Small:
        async def commit(self, *args: Any) -> Any:
            return args

        def sync(self) -> str:
            return "as it is"

    report = Report()
    store: Any = timed(Small(), report)  # type: ignore[arg-type]
    assert await store.commit(1, 2) == (1, 2)
    assert store.sync() == "as it is"
    assert report.names == ["commit"]
    with pytest.raises(AttributeError):
        _ = store.nothing


async def test_a_report_that_breaks_costs_no_operation(caplog: pytest.LogCaptureFixture) -> None:
    def breaks(operation: str, seconds: float) -> None:
        raise RuntimeError("cannot count")

    async with timed(await open_store("memory:"), breaks) as store:
        assert (await store.conversations()).items == ()
    assert [record.exc_info is not None for record in caplog.records] == [True]


async def test_metrics_show_the_time_of_each_operation() -> None:
    metrics = Metrics()
    async with timed(await open_store("memory:"), metrics.store) as store:
        await store.conversations()
    assert b'forkpoint_store_seconds_count{operation="conversations"} 1.0' in metrics.render()[0]
