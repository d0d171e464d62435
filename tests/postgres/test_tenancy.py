"""Row-level security: the second lock on tenants (`?rls=on`), which the server itself guards."""

import psycopg
import pytest

from forkpoint.store.postgres.store import PostgresStore
from forkpoint.testing.conformance.base import create, run

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def address(postgres: str) -> str:
    """A database of a role that is no superuser: superusers see everything."""
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute("DROP ROLE IF EXISTS plain")
        db.execute("CREATE ROLE plain LOGIN")
        db.execute("GRANT ALL ON SCHEMA public TO plain")
    return postgres.replace("//postgres", "//plain")


async def test_a_transaction_sees_the_rows_of_its_tenant_and_of_nobody_else(address: str) -> None:
    async with await PostgresStore.open(f"{address}?rls=on", tenant="one") as store:
        made = await create(store)
        await run(store, made.id, "hello")
        other = store.within("two")
        hidden = await create(other)
        await run(other, hidden.id, "secret")
        assert [found.id for found in (await store.conversations()).items] == [made.id]
        assert (await store.verify()).ok
    with psycopg.connect(address) as db:
        assert db.execute("SELECT count(*) FROM event").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM event_0").fetchone() == (0,)
        for tenant, events in (("one", 2), ("two", 2), ("three", 0), ("*", 4)):
            with db.transaction():
                db.execute("SELECT set_config('forkpoint.tenant', %s, true)", [tenant])
                assert db.execute("SELECT count(*) FROM event").fetchone() == (events,)
        db.execute("SELECT set_config('forkpoint.tenant', 'one', false)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            db.execute("INSERT INTO garbage (tenant, segment, since) VALUES ('two', 1, 1)")


async def test_what_goes_over_all_tenants_sees_all_of_them(address: str) -> None:
    async with await PostgresStore.open(f"{address}?rls=on", tenant="one") as store:
        for tenant in ("one", "two"):
            branch = store.within(tenant)
            made = await create(branch)
            await run(branch, made.id, "hello")
            await branch.delete(made.id)
        anchor = await store.anchor(all_tenants=True)
        assert (await store.verify(anchors=[anchor])).ok
        collected = await store.collect(every_tenant=True)
        assert collected.events == 4
