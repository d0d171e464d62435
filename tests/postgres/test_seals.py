"""Seals in PostgreSQL: a record whose transaction commits late is sealed all the same, and nothing is sealed twice."""

import psycopg
import pytest

from forkpoint.store.postgres.store import PostgresStore
from forkpoint.store.tables.seals import sealing
from forkpoint.store.values import DEFAULT_TENANT
from forkpoint.testing.conformance.base import create, run

pytestmark = pytest.mark.anyio


async def test_a_seal_stops_before_the_record_of_a_transaction_that_stays_open(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "_PATIENCE", 0.01)
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        await run(store, made.id, "before")
        before = (await store.anchor()).count
        async with await psycopg.AsyncConnection.connect(postgres) as late:
            await insert_record(late, number=1)  # it has its id now, and is committed later
            await run(store, made.id, "meanwhile")
            assert (await store.anchor()).count == before  # the record of this turn has a higher id
            await late.commit()
        anchor = await store.anchor()
        assert anchor.count == before + 2
        inspected = await store.verify(anchors=[anchor])
        assert not [flaw for flaw in inspected.flaws if flaw.where.startswith("seal")]


async def test_a_seal_waits_for_a_transaction_that_ends_soon(postgres: str) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        await run(store, made.id, "before")
        late = await psycopg.AsyncConnection.connect(postgres)
        await insert_record(late, number=1)
        await run(store, made.id, "meanwhile")
        # The server ends it by itself, while the seal waits for it.
        await late.execute("SET LOCAL idle_in_transaction_session_timeout = '50ms'")
        anchor = await store.anchor()
        await late.close()
        assert anchor.count == 2  # both turns; the record that was undone has left a gap among the ids
        assert (await store.verify(anchors=[anchor])).ok


async def insert_record(db: psycopg.AsyncConnection, number: int) -> None:
    """Writes a record in a chain of its own, and does not commit it."""
    await db.execute(
        "INSERT INTO record (tenant, chain, number, kind, digest) VALUES (%s, '\\x7400', %s, 'charged', '\\x00')",
        [DEFAULT_TENANT, number],
    )
