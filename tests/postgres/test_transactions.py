"""Transactions: one snapshot for a read, one try more where another came between, a cancellation that waits."""

import asyncio
import re
import threading
from pathlib import Path
from typing import Any, get_args

import anyio
import psycopg
import pytest
from tests.postgres.fixtures import Databases

from forkpoint.errors import AlreadyExists, StoreUnusable
from forkpoint.ids import new_id
from forkpoint.store.postgres.session.connections import Kind
from forkpoint.store.postgres.session.link import Link
from forkpoint.store.postgres.store import PostgresStore
from forkpoint.store.values import IdempotencyKey, NewConversation
from forkpoint.testing.conformance.base import create, run

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_read_sees_one_snapshot(postgres: str) -> None:
    async with await PostgresStore.open(postgres) as store:
        view = store._view
        with psycopg.connect(postgres, autocommit=True) as other:

            def read(db: Any, scope: Any) -> tuple[int, int]:
                before = db.run("read_format").fetchone()["format"]
                other.execute("UPDATE meta SET format = 7")
                return before, db.run("read_format").fetchone()["format"]

            assert await view.read(read) == (1, 1)


async def test_a_deadlock_is_no_error_for_anybody(postgres: str) -> None:
    """Each of two writes locks what the other wants next."""
    async with await PostgresStore.open(postgres) as store:
        one, two = await create(store), await create(store)
        tries = 0
        met = [False, False]

        def crossing(first: str, second: str, which: int) -> Any:
            def operation(db: Any, scope: Any) -> None:
                nonlocal tries
                tries += 1
                for place, id in enumerate((first, second)):
                    db.run(
                        "change_approvals",
                        {"id": bytes.fromhex(id.replace("-", "")), "approvals": "[1]", "before": "[]", "now": 1},
                    )
                    met[which] = True
                    while not place and not all(met):
                        pass

            return operation

        view = store._view

        async def write(first: str, second: str, which: int) -> None:
            await view.write("x", "", crossing(first, second, which), landed=lambda db, scope: True)

        async with anyio.create_task_group() as group:
            group.start_soon(write, one.id, two.id, 0)
            group.start_soon(write, two.id, one.id, 1)
        assert tries == 3


async def test_the_same_request_sent_twice_at_once_makes_one_conversation(postgres: str) -> None:
    key = IdempotencyKey("key", b"request")
    made: list[str] = []
    async with await PostgresStore.open(postgres) as store:

        async def send() -> None:
            made.append((await store.create(NewConversation(id=new_id(), name="one"), key=key)).id)

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(send)
        assert len(set(made)) == 1
        with pytest.raises(AlreadyExists):
            await store.create(NewConversation(id=new_id(), name="one"))


async def test_a_write_that_was_sent_is_done_although_its_task_is_cancelled(postgres: str) -> None:
    async with await PostgresStore.open(postgres) as store:
        new = NewConversation(id=new_id())
        began = asyncio.Event()
        loop = asyncio.get_running_loop()

        def operation(db: Any, scope: Any) -> None:
            loop.call_soon_threadsafe(began.set)
            store._view.opened.say_alive(db)

        view = store._view
        task = asyncio.create_task(view.write("x", "", operation, landed=lambda db, scope: True))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with psycopg.connect(postgres) as db:
            assert db.execute("SELECT count(*) FROM holder").fetchone() == (1,)
        await store.create(new)


async def test_a_server_that_was_restarted_is_found_again(postgres_databases: Databases, postgres: str) -> None:
    """As if it were: all its sessions are ended."""
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        name = postgres.rpartition("/")[2]
        await store.pulse()
        postgres_databases.server.execute(end, name)
        assert (await store.read(made.id)).id == made.id
        postgres_databases.server.execute(end, name)
        await run(store, made.id, "hello")
        postgres_databases.server.execute(end, name)
        await store.pulse()


async def test_a_transaction_that_fails_leaves_nothing_behind(postgres: str) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)

        def operation(db: Any, scope: Any) -> None:
            store._view.opened.say_alive(db)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await store._view.write("x", "", operation, landed=lambda db, scope: True)
        with psycopg.connect(postgres) as db:
            assert db.execute("SELECT count(*) FROM holder").fetchone() == (0,)
        await run(store, made.id, "hello")


async def test_more_tasks_than_connections_wait_for_their_turn(postgres: str) -> None:
    async with await PostgresStore.open(f"{postgres}?pool=2") as store:
        made = [await create(store) for _ in range(12)]
        async with anyio.create_task_group() as group:
            for one in made:
                group.start_soon(run, store, one.id, "hello")
        assert set((await store.revisions([one.id for one in made])).values()) == {1}
        with psycopg.connect(postgres) as db:
            ours = "application_name = 'forkpoint' AND datname = current_database()"
            row = db.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {ours}".encode()).fetchone()
            assert row is not None
            assert row[0] <= 4, "two, one for heartbeats, one for the pulse"


async def test_a_pooler_that_was_not_named_is_named_by_the_error(pgbouncer: str, postgres: str) -> None:
    with pytest.raises(StoreUnusable, match="pooler=transaction"):
        await PostgresStore.open(pgbouncer)


async def test_a_store_works_through_a_pooler_that_gives_each_transaction_another_session(pgbouncer: str) -> None:
    async with await PostgresStore.open(f"{pgbouncer}?pooler=transaction") as store:
        made = [await create(store) for _ in range(8)]
        async with anyio.create_task_group() as group:
            for one in made:
                group.start_soon(run, store, one.id, "hello")
        for _ in range(8):
            async with anyio.create_task_group() as group:
                for one in made:
                    group.start_soon(store.read, one.id)


async def test_a_process_has_as_many_connections_at_most_as_the_page_on_scale_says(postgres: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    apart = re.search(r"connections = nodes \* \(pool \+ (\d+)\)", page)
    assert apart is not None
    kinds: tuple[Kind, ...] = get_args(Kind)
    entered, leave = threading.Semaphore(0), threading.Event()

    def work(link: Link) -> None:
        entered.release()
        leave.wait(30)

    async with await PostgresStore.open(f"{postgres}?pool=2") as store:
        await store.pulse()
        connections = store._view.opened.connections
        async with anyio.create_task_group() as tasks:
            for kind in kinds * 10:
                tasks.start_soon(connections.run, work, kind)
            limit = connections._threads
            for _ in range(int(limit.total_tokens)):
                assert await asyncio.to_thread(entered.acquire, timeout=20)
            with psycopg.connect(postgres) as db:
                name = "datname = current_database() AND application_name = 'forkpoint'"
                found = db.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {name}").fetchone()
            leave.set()
        assert found == (2 + int(apart[1]),)
