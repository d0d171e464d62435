"""Collecting and erasing in PostgreSQL: removed text leaves the tables as soon as nobody can read it any more."""

import re

import psycopg
import pytest

from forkpoint.ids import new_id
from forkpoint.store.erasure import Erasing
from forkpoint.store.postgres.care import vacuum
from forkpoint.store.postgres.store import PostgresStore
from forkpoint.testing.conformance.base import create, run

pytestmark = pytest.mark.anyio

SECRET = "a word that nobody may find again"


async def test_an_erased_text_is_in_no_row_of_a_table_dead_or_alive(postgres: str) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        await run(store, made.id, SECRET)
        receipt = await store.erase(new_id(), Erasing(conversations=(made.id,)), reason="asked to")
        assert receipt.pending == ()
        assert receipt.out_of_reach == vacuum.OUT_OF_REACH
        assert await dead_rows(postgres) == 0


async def test_a_transaction_that_may_still_read_keeps_an_erased_text_and_the_receipt_says_so(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum, "_PATIENCE", 0.01)
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        await run(store, made.id, SECRET)
        async with await psycopg.AsyncConnection.connect(postgres) as reader:
            await reader.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            await reader.execute("SELECT count(*) FROM event")
            receipt = await store.erase(new_id(), Erasing(conversations=(made.id,)), reason="asked to")
            assert receipt.pending == (vacuum.DEAD_ROWS,)
            collected = await store.collect()
            assert [pending.what for pending in collected.pending] == ["log"]
            assert await dead_rows(postgres) > 0
            await reader.rollback()
        assert (await store.collect()).pending == ()
        assert await dead_rows(postgres) == 0


async def dead_rows(postgres: str) -> int:
    """How many dead rows of events the server finds: those that it removes now, and those that it cannot remove."""
    told: list[str] = []
    async with await psycopg.AsyncConnection.connect(postgres, autocommit=True) as db:
        db.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
        await db.execute("VACUUM (VERBOSE) event")
    found = re.findall(r"tuples: (\d+) removed, \d+ remain, (\d+) are dead", "".join(told))
    assert found, told
    return sum(int(number) for pair in found for number in pair)
