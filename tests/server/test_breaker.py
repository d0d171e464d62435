"""The breaker: a store that does not answer is left alone, requests are refused at once, and recovery needs no hand."""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
import pytest
from tests.server.support.serving import served
from tests.server.support.turning import PATIENCE, Visits

from forkpoint.errors import NotFound, StoreUnavailable
from forkpoint.server.http.breaker import FAILURES, HELD, LONG, READS, SLOW, Breaker
from forkpoint.server.http.timed_store import OPERATIONS
from forkpoint.server.settings import ServerSettings
from forkpoint.store import Store
from forkpoint.store.sqlite import writer

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class StandIn:
    """A store that answers, fails or hangs, as the test wants it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: Exception | None = None
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    def operation(self, name: str) -> Callable[..., Awaitable[str]]:
        async def run(*args: Any, **kwargs: Any) -> str:
            self.asked.append(name)
            await self.goes_on.wait()
            if self.error is not None:
                raise self.error
            return name

        return run

    def __getattr__(self, name: str) -> Any:
        return self.operation(name)


class Bench:
    """A breaker before a stand-in, with a clock that the test moves and pauses that the test ends."""

    def __init__(self, most: int = 100) -> None:
        self.now = 0.0
        self.store = StandIn()
        self.changes: list[tuple[str, bool]] = []
        self.pauses: asyncio.Queue[float] = asyncio.Queue()
        self._go = asyncio.Semaphore(0)
        self.breaker = Breaker(
            most, lambda kind, is_open: self.changes.append((kind, is_open)), clock=lambda: self.now, pause=self._pause
        )

    async def _pause(self, seconds: float) -> None:
        self.pauses.put_nowait(seconds)
        await self._go.acquire()

    def end_pause(self) -> None:
        self._go.release()

    async def do(self, name: str) -> Any:
        return await self.breaker.guarded(name, self.store.operation(name))()

    async def fail(self, name: str, times: int) -> None:
        """Lets an operation fail so often, and the store answer from then on."""
        self.store.error = StoreUnavailable("there", "it is away")
        for _ in range(times):
            with pytest.raises(StoreUnavailable):
                await self.do(name)
        self.store.error = None


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_after_a_few_failures_in_a_row_the_store_is_not_asked_any_more(bench: Bench) -> None:
    await bench.fail("create", FAILURES)
    asked = list(bench.store.asked)
    with pytest.raises(StoreUnavailable) as refused:
        await bench.do("create")
    assert refused.value.code == "store_away"
    with pytest.raises(StoreUnavailable):
        bench.breaker.check()
    assert bench.store.asked == asked
    assert await bench.do("read") == "read"  # reads have a circuit of their own
    assert bench.changes == [("writes", True)]


async def test_an_answer_in_between_keeps_the_circuit_closed_also_an_answer_that_refuses(bench: Bench) -> None:
    await bench.fail("create", FAILURES - 1)
    assert await bench.do("fork") == "fork"
    await bench.fail("create", FAILURES - 1)
    bench.store.error = NotFound("conversation", "x")
    with pytest.raises(NotFound):
        await bench.do("describe")
    await bench.fail("create", FAILURES - 1)
    assert await bench.do("create") == "create"
    bench.breaker.check()


async def test_a_full_disk_and_a_closed_store_say_so_at_once_and_open_nothing(bench: Bench) -> None:
    for error in (StoreUnavailable.disk_full("there", "no room"), StoreUnavailable.store_closed("there")):
        bench.store.error = error
        for _ in range(2 * FAILURES):
            with pytest.raises(StoreUnavailable) as raised:
                await bench.do("create")
            assert raised.value is error
    bench.breaker.check()


async def test_writes_of_turns_that_run_here_are_tried_though_the_circuit_is_open(bench: Bench) -> None:
    await bench.fail("begin", FAILURES)
    assert [await bench.do(name) for name in ("journal", "commit", "fail", "settle")][1] == "commit"
    with pytest.raises(StoreUnavailable):
        await bench.do("begin")


async def test_one_probe_at_a_time_finds_out_that_the_store_is_back(bench: Bench) -> None:
    await bench.fail("read", FAILURES)
    store = cast("Store", bench.store)
    bench.store.error = StoreUnavailable("there", "still away")
    probing = asyncio.create_task(bench.breaker.probe(store))
    try:
        waited = [await bench.pauses.get()]
        for _ in range(3):
            bench.end_pause()
            waited.append(await bench.pauses.get())
        assert waited == sorted(waited)  # less and less often
        assert waited[0] < waited[-1]
        assert bench.store.asked[FAILURES:] == ["pulse"] * 3
        bench.store.error = None
        bench.end_pause()
        await anyio.wait_all_tasks_blocked()
        assert bench.changes == [("reads", True), ("reads", False)]
        assert await bench.do("read") == "read"
        bench.breaker.check()
    finally:
        probing.cancel()


async def test_an_operation_that_hangs_opens_the_circuit_and_does_so_once() -> None:
    bench = Bench()
    bench.store.goes_on.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.do, "create")
        await anyio.wait_all_tasks_blocked()
        bench.now += SLOW + 1
        for _ in range(10):
            with pytest.raises(StoreUnavailable):
                await bench.do("create")
        assert bench.store.asked == ["create"]
        bench.breaker._circuits["writes"].close()  # as a probe would
        bench.breaker.check()  # what hung before does not count again
        bench.store.goes_on.set()
    assert bench.changes == [("writes", True), ("writes", False)]


async def test_what_may_take_its_time_opens_nothing() -> None:
    bench = Bench()
    bench.store.goes_on.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.do, "collect")
        await anyio.wait_all_tasks_blocked()
        bench.now += 3600
        bench.breaker.check()
        bench.store.goes_on.set()


async def test_only_so_many_operations_wait_for_the_store() -> None:
    bench = Bench(most=3)
    bench.store.goes_on.clear()
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(bench.do, "read")
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(StoreUnavailable) as refused:
            await bench.do("read")
        assert refused.value.code == "store_away"
        assert len(bench.store.asked) == 3
        bench.store.goes_on.set()
    assert await bench.do("read") == "read"


async def test_a_read_that_never_comes_back_is_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forkpoint.server.http.breaker.PATIENCE", 0.01)
    bench.store.goes_on.clear()
    with pytest.raises(StoreUnavailable) as refused:
        await bench.do("read")
    assert "did not answer within" in str(refused.value)


def test_every_operation_that_is_named_is_one_of_the_store() -> None:
    assert OPERATIONS >= READS | HELD | LONG
    assert not READS & LONG
    assert not READS & {"create", "begin", "commit", "note", "fork", "describe"}


# A real server on a file that another program has locked.


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Within it another program writes to a store's file, and does not end."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def until_ready(http: httpx2.Client) -> None:
    deadline = time.monotonic() + PATIENCE
    while http.get("/ready").status_code != 200:
        assert time.monotonic() < deadline, "the server did not recover"
        time.sleep(0.01)


def test_a_server_whose_file_is_locked_refuses_at_once_reads_on_and_recovers_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PATIENCE", 0.2)  # seconds that it waits for the lock
    file = tmp_path / "server.db"
    settings = ServerSettings(metrics="public")
    with Visits() as log, served(f"sqlite:///{file}", settings=settings) as server, server.client() as http:
        made = http.post("/api/conversations", json={}).json()["id"]

        def create(_: int) -> httpx2.Response:
            return http.post("/api/conversations", json={})

        with locked(file), ThreadPoolExecutor(FAILURES) as pool:
            failed = list(pool.map(create, range(FAILURES)))
            assert {answer.json()["error"]["code"] for answer in failed} <= {"store_unavailable", "store_away"}
            while (refused := create(0)).json()["error"]["code"] != "store_away":
                assert refused.status_code == 503
            for answer in (*failed, refused, http.get("/ready")):
                assert answer.status_code == 503
                assert int(answer.headers["retry-after"]) >= 1
            said = {"model": "echo", "messages": [{"role": "user", "content": "Hi"}]}
            chat = http.post("/v1/chat/completions", json=said, headers={"X-Conversation-Id": "new"})
            assert (chat.status_code, chat.headers["x-should-retry"]) == (503, "true")
            assert http.get(f"/api/conversations/{made}").status_code == 200
            assert http.get("/health").status_code == 200
            assert 'forkpoint_store_away{kind="writes"} 1.0' in http.get("/metrics").text
        until_ready(http)
        assert create(0).status_code == 201
        assert http.post(f"/api/conversations/{made}/turns", json={"message": "Hello"}).status_code == 200
        assert 'forkpoint_store_away{kind="writes"} 0.0' in http.get("/metrics").text
    assert sum("the store does not answer writes" in line for line in log.errors) == 1
