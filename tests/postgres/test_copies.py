"""Copies of a store in PostgreSQL: dumps of the database, and what is exported and imported."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.postgres.fixtures import Databases
from tests.postgres.programs import run_program
from tests.postgres.room import room
from tests.store.support.machine import exported, told

from forkpoint.engine.exports.archive import import_archive
from forkpoint.events import Usage
from forkpoint.ids import new_id
from forkpoint.store.postgres.store import PostgresStore
from forkpoint.store.protocol import Store
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import TurnError
from forkpoint.testing.conformance.base import begin, create, fork_of, run, texts

pytestmark = pytest.mark.anyio


async def test_a_restored_dump_verifies_with_an_anchor_that_was_kept_outside(
    postgres: str, postgres_databases: Databases
) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await filled(store)
        anchor = await store.anchor()
        history = texts(await store.events(made))
    server = postgres_databases.server
    dump = room() / "dumps" / "store.dump"
    dump.parent.mkdir(mode=0o777, exist_ok=True)
    dump.parent.chmod(0o777)  # who runs the server's programs writes there
    run_program("pg_dump", "--format=custom", f"--file={dump}", f"--dbname={postgres}")
    with postgres_databases.fresh() as name:
        run_program("pg_restore", "--exit-on-error", f"--dbname={server.url(name)}", dump)
        async with await PostgresStore.open(server.url(name)) as restored:
            report = await restored.verify(anchors=[anchor])
            assert report.ok, report.flaws
            assert texts(await restored.events(made)) == history
            await run(restored, made, "and on")
            assert (await restored.verify(anchors=[anchor])).ok


async def test_a_dump_that_lacks_a_turn_does_not_verify_with_a_later_anchor(
    postgres: str, postgres_databases: Databases
) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await filled(store)
    with postgres_databases.fresh(template=postgres.rpartition("/")[2]) as older:
        async with await PostgresStore.open(postgres) as store:
            await run(store, made, "later")
            anchor = await store.anchor()
        async with await PostgresStore.open(postgres_databases.server.url(older)) as copy:
            assert not (await copy.verify(anchors=[anchor])).ok


async def test_from_sqlite_to_postgresql_and_back_nothing_changes(postgres: str, tmp_path: Path) -> None:
    async with (
        await SqliteStore.open(tmp_path / "first.db") as first,
        await PostgresStore.open(postgres) as second,
        await SqliteStore.open(tmp_path / "third.db") as third,
    ):
        made = await filled(first)
        files = []
        for source, target in ((first, second), (second, third)):
            files.append(await exported(source))
            await import_archive(target, pieces(b"".join(files[-1])), rename=False)
            report = await target.verify()
            assert report.ok, report.flaws
        files.append(await exported(third))
        assert told(files[0]) == told(files[1]) == told(files[2])
        assert await first.digests(made) == await second.digests(made) == await third.digests(made)
        assert await first.usage() == await second.usage() == await third.usage()


async def filled(store: Store) -> str:
    """Makes a family with all that a copy has to keep, and returns the id of its first conversation."""
    made = await create(store, "a-name")
    await run(store, made.id, "one")
    middle = await run(store, made.id, "two")
    await run(store, made.id, "three")
    fork = await store.fork(made.id, fork_of(), at=middle.last)
    await run(store, fork.id, "another way")
    await store.rewind(made.id, fork_of(), at=middle.last)
    await store.fail(await begin(store, made.id), TurnError("x", "y"), usage=Usage(calls=1))
    await store.charge(made.id, new_id(), Usage(calls=1))
    await store.describe(made.id, title="a title", tags=(("a", "b"),))
    await store.delete((await store.fork(made.id, fork_of())).id)
    return made.id


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data
