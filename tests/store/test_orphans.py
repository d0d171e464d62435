"""A turn that somebody was promised reaches the disk before the promise; any other begin is not synced."""

from pathlib import Path

import pytest

from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import Database, connect
from forkpoint.store.values import NewConversation

pytestmark = pytest.mark.anyio


class Commits:
    """Notes of each COMMIT whether it was synced."""

    def __init__(self) -> None:
        self.synced: list[bool] = []

    def connect(self, path: str) -> Database:
        db, quick = connect(path), False

        def heard(statement: str) -> None:
            nonlocal quick
            quick = quick or statement == "PRAGMA synchronous = NORMAL"
            if statement == "COMMIT":
                self.synced.append(not quick)

        db.set_trace_callback(heard)
        return db


async def test_only_a_begin_that_is_acknowledged_is_synced_and_so_is_a_promise_that_comes_later(tmp_path: Path) -> None:
    commits = Commits()
    async with await SqliteStore.open(tmp_path / "store.db", connect=commits.connect) as store:
        made = [await store.create(NewConversation(id=new_id())) for _ in range(2)]
        commits.synced.clear()
        await store.begin(made[0].id, new_id(), accepted=True)
        assert commits.synced == [True]
        commits.synced.clear()
        turn = await store.begin(made[1].id, new_id())
        assert commits.synced == [False]
        commits.synced.clear()
        await store.accept(turn.id)
        assert commits.synced == [True]
