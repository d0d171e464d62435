"""An import that is killed, disturbed or refused leaves nothing in part, and can be repeated."""

import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.store.conftest import Watch

from forkpoint.engine.exports.archive import write_archive
from forkpoint.engine.exports.selection import Selection
from forkpoint.errors import AlreadyExists, BadExport, NotFound
from forkpoint.history.budgets import FIELDS
from forkpoint.history.exports.check import check
from forkpoint.history.exports.lines import (
    Chain,
    ConversationLine,
    EventLine,
    RecordLine,
    Segment,
    Spent,
    StepLine,
    TurnLine,
    decoded,
    parted,
)
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import Connect, Database, connect
from forkpoint.store.tables.transfer import intake
from forkpoint.testing.conformance.base import create, fork_of, run
from forkpoint.testing.conformance.evidence.copies import exported, family, imported

pytestmark = pytest.mark.anyio
needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither fork nor SIGKILL")


def rows(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(statement).fetchall()


def killed_import(path: Path, data: bytes, at: int) -> bool:
    """Imports in a child that is killed just before the statement with this number. Whether it was killed."""
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    said = 0

    class Deadly(Database):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            nonlocal said
            if not self.in_transaction and not sql.startswith(("BEGIN", "PRAGMA")):
                return super().execute(sql, parameters)
            said += not sql.startswith("PRAGMA") and counting
            if said == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().execute(sql, parameters)

    counting = False

    def connect_deadly(name: str) -> Database:
        db = connect(name)
        db.__class__ = Deadly
        return db

    async def run_it() -> None:
        nonlocal counting
        async with await SqliteStore.open(path, connect=connect_deadly) as store:
            counting = True
            await imported(store, data)
            counting = False

    try:
        anyio.run(run_it)
    finally:
        os._exit(0)


@needs_fork
def test_a_kill_at_any_statement_leaves_nothing_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "BATCH", 3)  # so that there are several transactions

    async def prepare() -> tuple[bytes, str]:
        async with await SqliteStore.open(tmp_path / "empty.db"):
            pass
        async with await SqliteStore.open(None) as store:
            root = await create(store, "talk")
            await run(store, root.id, "one")
            await run(store, root.id, "two")
            fork = await store.fork(root.id, fork_of("fork"))
            await run(store, fork.id, "three")
            return await exported(store), root.id

    async def look(path: Path) -> bool:
        """Whether the family is there: then whole. Repeats the import, and looks once more."""
        async with await SqliteStore.open(path) as store:
            assert (await store.verify()).ok
            is_there = bool((await store.families()).items)
            assert is_there == bool(rows(path, "SELECT 1 FROM conversation"))
            assert is_there == bool(rows(path, "SELECT 1 FROM record"))
            assert (await imported(store, data)).changed != is_there
            assert (await store.verify()).ok
            assert len(await store.events(root)) == 4
            await exported(store)
        for table in ("import", "import_segment"):
            assert not rows(path, f"SELECT * FROM {table}")
        assert rows(path, "SELECT count(*), count(DISTINCT chain_digest) FROM event") == [(6, 6)]
        return is_there

    data, root = anyio.run(prepare)
    seen, at, step = set(), 1, 2
    while True:
        path = tmp_path / f"{at}.db"
        shutil.copy(tmp_path / "empty.db", path)
        was_killed = killed_import(path, data, at)
        seen.add(anyio.run(look, path))
        if not was_killed:
            break
        at += step
    assert at > 30, "the import did not do much, so this proved little"
    assert seen == {True, False}


async def test_nothing_of_a_file_that_was_changed_comes_in(tmp_path: Path) -> None:
    async with await SqliteStore.open(None) as store:
        root = await family(store)
        data = await exported(store)
    async with await SqliteStore.open(tmp_path / "store.db") as store:
        with pytest.raises(BadExport) as refused:
            await imported(store, data.replace(b"You said: four", b"You said: more"))
        assert refused.value.line > 1
        with pytest.raises(BadExport, match="cut off"):
            await imported(store, data[:-10])
        with pytest.raises(BadExport):
            await imported(store, b"not an export\n")
        with pytest.raises(BadExport):
            await imported(store, b"")
        with pytest.raises(NotFound):
            await store.read(root.id)
    assert not rows(tmp_path / "store.db", "SELECT 1 FROM event")


async def test_others_can_write_to_the_family_while_it_is_exported_and_imported(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "one.db") as store, await SqliteStore.open(None) as other:
        root = await create(store, "talk")
        await run(store, root.id, "one")
        written = anyio.Event()

        async def write() -> None:
            for number in range(20):
                await run(store, root.id, f"more {number}")
                if number % 5 == 0:
                    await store.fork(root.id, fork_of())
            written.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            while not written.is_set():
                data = b"".join([chunk async for chunk in write_archive(store, Selection("family", root.id))])
                assert not check(data.splitlines(keepends=True)).flaws
                await imported(other, data)
        assert (await other.verify()).ok


async def test_two_who_import_the_same_file_at_once_bring_it_in_once(tmp_path: Path) -> None:
    async with await SqliteStore.open(None) as store:
        root = await family(store)
        data, spent = await exported(store), await store.usage(root.family)
    path = tmp_path / "store.db"
    async with await SqliteStore.open(path) as one, await SqliteStore.open(path) as two:
        done = []

        async def bring(store: SqliteStore) -> None:
            done.append((await imported(store, data)).changed)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bring, one)
            tasks.start_soon(bring, two)
        assert sorted(done) == [False, True]
        assert await one.usage(root.family) == spent
        assert (await two.verify()).ok
        await one.collect()
        assert (await two.verify()).ok


async def test_a_change_between_the_comparison_and_the_last_step_is_noticed(
    tmp_path: Path, watched: Callable[[Watch], Connect]
) -> None:
    """Somebody takes the name of a conversation while its events come in."""
    path = tmp_path / "store.db"
    begun: list[str] = []

    def watch(db: Database, sql: str, go: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
        if sql == "BEGIN IMMEDIATE" and rows(path, "SELECT 1 FROM import") and rows(path, "SELECT 1 FROM event"):
            begun.append(sql)
            with closing(sqlite3.connect(path, isolation_level=None)) as somebody:
                somebody.execute("UPDATE conversation SET name = 'talk'")
        return go()

    async with await SqliteStore.open(None) as source:
        await run(source, (await create(source, "talk")).id, "one")
        data = await exported(source)
    async with await SqliteStore.open(path, connect=watched(watch)) as store:
        await create(store, "somebody")
        with pytest.raises(AlreadyExists):
            await imported(store, data)
    assert begun, "nothing was changed in between, so this proved nothing"
    for table in ("event", "segment", "turn", "import", "import_segment"):
        assert not rows(path, f"SELECT * FROM {table}")


LEFT_BEHIND = {
    "conversation": {
        *("tenant", "family", "record_digest", "records"),  # the tenant is the importer's; the rest is in other lines
        "first_digest",  # follows from the birth and the source's digest
        "open_segment",  # the next commit opens one
    },
    "turn": {
        "tenant",
        "record",  # it is the record before the turn's line
        *("holder", "token", "cancel_asked", "budgeted", "since", "accepted", "takeovers"),  # of who runs it there
        "ran",  # its times say how long at most
        *("key", "request"),  # a promise of the store that was asked
    },
    "event": {"id"},
    "segment": {"id", "tenant", "family", "landmarks"},  # landmarks are found again when they are needed
    "step": {"turn"},
    "record": {"id", "tenant", "chain"},  # a chain's line comes before its records
    "chain": {"tenant"},
    "ledger": {"tenant", "family"},
    "hold": {"tenant", "family", "id", "reason", "by", "since"},  # the family's records say all of it
    "budget": {  # the family's records have the limits, and what was spent is counted anew
        *("id", "tenant", "family", "scope", "subject", "apart"),
        *(f"{what}_{unit}" for what in ("most", "spent", "reserved") for unit in FIELDS),
    },
    "copy": {"position", "source_turn", "source_step"},  # the envelopes and payloads of events say it
    "tag": {"tenant", "key", "value", "conversation", "used"},  # triggers write it
}
LINES = {
    "conversation": ConversationLine,
    "turn": TurnLine,
    "event": EventLine,
    "segment": Segment,
    "step": StepLine,
    "record": RecordLine,
    "chain": Chain,
    "ledger": Spent,
    "hold": RecordLine,
    "budget": RecordLine,
    "copy": EventLine,
    "tag": ConversationLine,
}
OF_THIS_STORE = {
    *("meta", "seal", "store_seal"),  # the store itself, and what it vouches for
    *("import", "import_segment"),  # what is coming in
    *("garbage", "pin"),  # what the collector needs
    "reservation",  # what is under way
    "holder",  # the processes that use it
    "idempotency",  # promises to whoever asked it
    "landmark",  # found again when they are needed
    "document",  # of whoever runs its servers
}


async def test_every_table_and_column_is_in_an_export_or_is_left_behind_on_purpose(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "store.db"):
        pass
    tables = {name for (name,) in rows(tmp_path / "store.db", "SELECT name FROM sqlite_master WHERE type = 'table'")}
    tables = {name for name in tables if not name.startswith("sqlite_")}
    assert tables == LINES.keys() | OF_THIS_STORE, "does an import write the new table? is it left behind on purpose?"
    for table, line in LINES.items():
        columns = {row[1] for row in rows(tmp_path / "store.db", f"PRAGMA table_info({table})")}
        missing = columns - set(line.__struct_fields__) - LEFT_BEHIND[table]
        assert not missing, f"an export loses {missing} of {table}; or is it left behind on purpose?"


async def test_lines_of_an_export_are_what_the_store_has_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with await SqliteStore.open(path) as store:
        root = await create(store, "talk")
        await run(store, root.id, 'Grüße, \u2028 "quoted" \\ and \U0001f600')
        data = await exported(store)
    lines = [decoded(parted(raw)[0]) for raw in data.splitlines(keepends=True)]
    told = [(line.envelope, line.payload) for line in lines if isinstance(line, EventLine)]
    assert told == rows(path, "SELECT envelope, payload FROM event ORDER BY id")
