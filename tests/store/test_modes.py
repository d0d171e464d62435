"""Who may read a store: its owner alone, unless somebody has opened it up."""
# ruff: noqa: ASYNC240 - nothing else runs on these loops, so blocking them holds nobody up

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import NewConversation
from forkpoint.testing.samples import exchange

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name == "nt", reason="Windows keeps rights in another way")]


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """The mode of each file below a folder; the name of a process's lock is left out."""
    found = {}
    for file in folder.rglob("*"):
        name = "lock of a process" if file.parent != folder else file.name
        found[name] = stat.S_IMODE(file.stat().st_mode)
    return found


async def used(path: Path) -> dict[str, int]:
    """The modes of all files of a store while a turn runs in it."""
    async with await SqliteStore.open(path) as store:
        conversation = await store.create(NewConversation(id=new_id()), exchange("hello"))
        await store.begin(conversation.id, new_id())
        return modes(path.parent)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o277], ids=oct)
async def test_all_files_of_a_new_store_are_for_its_owner_alone_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        found = await used(tmp_path / "store.db")
    assert found.pop("store.db-holders") == 0o700
    assert found.keys() == {"store.db", "store.db-wal", "store.db-shm", "store.db-write", "lock of a process"}
    assert set(found.values()) == {0o600}, {name: oct(mode) for name, mode in found.items()}


async def test_a_store_that_was_opened_up_to_a_group_stays_open_to_it(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with await SqliteStore.open(path):
        pass
    Path(f"{path}-write").unlink()
    path.chmod(0o660)
    with umask(0o077):
        found = await used(path)
    assert found.pop("store.db-holders") == 0o770
    assert set(found.values()) == {0o660}, {name: oct(mode) for name, mode in found.items()}
