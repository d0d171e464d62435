"""Backups of a store in PostgreSQL: one command makes a file, and a new database is made of it."""

import os
from pathlib import Path

import pytest
from tests.postgres.fixtures import Databases
from tests.postgres.programs import programs

from forkpoint import AsyncConversations
from forkpoint.errors import CopyRefused
from forkpoint.ids import new_id
from forkpoint.store.erasure import Erasing, encode_receipt
from forkpoint.store.postgres.store import PostgresStore
from forkpoint.testing.conformance.base import create, run, texts

pytestmark = pytest.mark.anyio


@pytest.fixture
def programs_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{programs()}{os.pathsep}{os.environ['PATH']}")


async def test_a_backup_becomes_a_store_that_verifies_with_the_anchor_that_it_came_with(
    postgres: str, postgres_databases: Databases, tmp_path: Path, programs_on_path: None
) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        await run(store, made.id, "one")
        other = await create(store.within("other"))
        await run(store.within("other"), other.id, "two")
        backup = await store.backup(tmp_path / "store.dump")
        history, identity = texts(await store.events(made.id)), await store.identity()
    assert (backup.conversations, backup.events, backup.bytes) == (2, 4, (tmp_path / "store.dump").stat().st_size)
    assert backup.anchor is not None
    with postgres_databases.fresh() as name:
        url = postgres_databases.server.url(name)
        where = AsyncConversations(url)
        restored = await where.restore(tmp_path / "store.dump", forget_erasures=True)
        assert (restored.conversations, restored.events, restored.erasures) == (2, 4, 0)
        with pytest.raises(CopyRefused, match="a store is there already"):
            await where.restore(tmp_path / "store.dump", forget_erasures=True)
        async with await PostgresStore.open(url) as copy:
            assert texts(await copy.events(made.id)) == history
            assert await copy.identity() != identity
            assert (await copy.verify(anchors=[backup.anchor])).ok


async def test_what_was_erased_after_a_backup_is_erased_in_the_store_that_is_made_of_it(
    postgres: str, postgres_databases: Databases, tmp_path: Path, programs_on_path: None
) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        await run(store, made.id, "a secret")
        await store.backup(tmp_path / "store.dump")
        receipt = await store.erase(new_id(), Erasing(conversations=(made.id,)), reason="asked to")
    (tmp_path / "receipts").write_text(encode_receipt(receipt) + "\n")
    with postgres_databases.fresh() as name:
        url = postgres_databases.server.url(name)
        restored = await AsyncConversations(url).restore(tmp_path / "store.dump", erasures=tmp_path / "receipts")
        assert restored.erasures == 1
        async with await PostgresStore.open(url) as copy:
            assert "a secret" not in texts(await copy.events(made.id))


async def test_a_backup_is_for_its_owner_alone_and_replaces_nothing_unless_told_to(
    postgres: str, tmp_path: Path, programs_on_path: None
) -> None:
    async with await PostgresStore.open(postgres) as store:
        await store.backup(tmp_path / "store.dump")
        assert (tmp_path / "store.dump").stat().st_mode & 0o077 == 0
        with pytest.raises(CopyRefused, match="there already"):
            await store.backup(tmp_path / "store.dump")
        await store.backup(tmp_path / "store.dump", force=True)
        assert os.listdir(tmp_path) == ["store.dump"]


async def test_without_the_program_a_backup_names_the_command_to_run_and_no_password(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    async with await PostgresStore.open(postgres.replace("postgres@", "postgres:secret@")) as store:
        with pytest.raises(CopyRefused, match="pg_dump --format=custom --file=") as refused:
            await store.backup(tmp_path / "store.dump")
    assert "secret" not in str(refused.value)
    assert not os.listdir(tmp_path)
