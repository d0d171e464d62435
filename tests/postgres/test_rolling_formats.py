"""A newer program comes while an older one runs. What it adds disturbs nobody; what it tightens shuts the old one out.

The older program is the one of this tree. The newer one knows one more migration, then two.
"""

import pytest

from forkpoint.errors import StoreUnusable
from forkpoint.events import Usage
from forkpoint.ids import new_id
from forkpoint.store.postgres import schema
from forkpoint.store.postgres.store import PostgresStore
from forkpoint.store.sql import migrations
from forkpoint.store.values import NewConversation, OpenTurn
from forkpoint.testing.samples import exchange

pytestmark = pytest.mark.anyio

EXPAND = "ALTER TABLE conversation ADD COLUMN colour text"
CONTRACT = "UPDATE conversation SET colour = 'blue' WHERE colour IS NULL; UPDATE meta SET writable_from = 3"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def know(program: pytest.MonkeyPatch, *newer: str) -> None:
    """From now on a program that opens a store knows these migrations too."""
    scripts = [*migrations("postgres"), *newer]
    program.setattr(schema, "MIGRATIONS", scripts)
    program.setattr(schema, "FORMAT", len(scripts))


async def turn(store: PostgresStore, conversation: str) -> None:
    begun = await store.begin(conversation, new_id())
    assert isinstance(begun, OpenTurn)
    await store.commit(begun, exchange("hi"), usage=Usage())


async def test_old_and_new_programs_write_side_by_side_until_the_new_one_tightens(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = new_id()
    async with await PostgresStore.open(postgres) as old:
        await old.create(NewConversation(id=id, name="shared"))
        await turn(old, id)
        with monkeypatch.context() as program:
            know(program, EXPAND)
            async with await PostgresStore.open(postgres) as new:
                await turn(new, id)
                await turn(old, id)
                await turn(new, id)
        async with await PostgresStore.open(postgres) as again:  # the older program, started again
            await turn(again, id)
            assert not (await again.verify()).flaws
    with monkeypatch.context() as program:
        know(program, EXPAND, CONTRACT)
        async with await PostgresStore.open(postgres) as new:
            await turn(new, id)
            assert not (await new.verify()).flaws
    with pytest.raises(StoreUnusable, match="has format 3, which only a newer Forkpoint may use"):
        await PostgresStore.open(postgres)


async def test_a_migration_that_fails_leaves_the_store_as_it_was(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await PostgresStore.open(postgres) as old:
        await old.create(NewConversation(id=new_id(), name="shared"))
        with monkeypatch.context() as program:
            know(program, EXPAND, "SELECT 1 / 0")
            with pytest.raises(Exception, match="division by zero"):
                await PostgresStore.open(postgres)
        await turn(old, (await old.find("shared")).id)
