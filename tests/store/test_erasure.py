"""What an erasure leaves in the files of a store: nothing of the text, whoever reads, forks or dies meanwhile."""

import random
import re
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import anyio
import pytest

from forkpoint.events import (
    AssistantMessage,
    Condensation,
    Gone,
    ModelCalled,
    NewEvent,
    SubAgentFinished,
    SubAgentSpawned,
    Text,
    ToolCall,
    Usage,
    UserMessage,
)
from forkpoint.ids import new_id
from forkpoint.store.erasure import Erasing, Receipt, decode_receipts, encode_receipt
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import connect
from forkpoint.store.sqlite.copies.restore import restore
from forkpoint.store.sqlite.files import make_tables
from forkpoint.store.tables.erasure.copied_events import adopt_copies
from forkpoint.store.values import IdempotencyKey, Lineage, NewConversation, NewFork, OpenTurn, TurnError
from forkpoint.testing.samples import answers, calls, exchange, remembers, returns, says

pytestmark = pytest.mark.anyio

SECRET = "Ann-Kathrin-4711"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store" / "x.db"


@pytest.fixture
async def store(file: Path) -> AsyncIterator[SqliteStore]:
    file.parent.mkdir()
    async with await SqliteStore.open(file) as store:
        yield store


def found_in(folder: Path, text: str = SECRET) -> list[str]:
    """The files below a folder that have the text."""
    return [path.name for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


async def begin(store: SqliteStore, id: str, input: str = '"x"', **more: object) -> OpenTurn:
    turn = await store.begin(id, new_id(), input=input, **more)  # type: ignore[arg-type]
    assert isinstance(turn, OpenTurn)
    return turn


async def erase(store: SqliteStore, id: str, *, turn: str | None = None) -> Receipt:
    return await store.erase(new_id(), Erasing(conversations=(id,), turn=turn), reason="a test")


async def full(store: SqliteStore) -> tuple[str, str]:
    """A family with the text in every place that can have it. Returns a conversation, and the turn it came with."""
    key = IdempotencyKey(f"key of {SECRET}", sha256(SECRET.encode()).digest())
    made = await store.create(NewConversation(id=new_id(), title=f"I am {SECRET}"))
    failed = await begin(store, made.id, f'"I am {SECRET}"', key=key)
    failed = await store.journal(failed, [says(f"I am {SECRET}"), answers(f"Hello {SECRET}")])
    await store.fail(failed, TurnError("bad", f"cannot say {SECRET}"))
    first = await begin(store, made.id, f'"I am {SECRET}"', retry_of=failed.id, key=key)
    told = [
        says(f"I am {SECRET}"),
        calls("c1", response=1),
        returns("c1", f"seen {SECRET}"),
        remembers("who", f'"{SECRET}"'),
        answers(f"Hello {SECRET}", response=2),
    ]
    await store.commit(first, told)
    fork = await store.fork(made.id, NewFork(id=new_id(), cache="{}", title=f"again: I am {SECRET}"))
    for branch in (made.id, fork.id):
        prefix = sha256(SECRET.encode()).hexdigest()
        asked = NewEvent(ModelCalled("m", "p", Usage(), prefix=prefix))
        await store.commit(await begin(store, branch), [*exchange("what now?"), asked, remembers("n", "1")])
        later = await begin(store, branch)
        await store.fail(later, TurnError("bad", f"the provider refused: {SECRET}"))
    await store.note(made.id, new_id(), [NewEvent(Condensation(f"{SECRET} said hello", 6))])
    return made.id, first.id


async def test_nothing_is_left_of_an_erased_turn_in_any_file(store: SqliteStore, file: Path) -> None:
    id, turn = await full(store)
    assert found_in(file.parent)
    receipt = await erase(store, id, turn=turn)
    assert receipt.pending == ()
    assert found_in(file.parent) == []
    checked = await store.verify()
    assert checked.ok, checked.flaws
    await store.commit(await begin(store, id), exchange("on"))
    assert (await store.verify()).ok


async def test_nothing_is_left_of_an_erased_conversation_in_any_file(store: SqliteStore, file: Path) -> None:
    id, _ = await full(store)
    await store.rename(id, SECRET)
    await store.describe(id, title=SECRET, tags=(("who", SECRET),))
    await erase(store, id)
    assert found_in(file.parent) == []
    assert (await store.verify()).ok


async def test_no_stored_digest_can_be_recomputed_from_the_text(store: SqliteStore, file: Path) -> None:
    id, _ = await full(store)
    texts = [
        SECRET,
        f"I am {SECRET}",
        f'"I am {SECRET}"',
        f"again: I am {SECRET}",
        f'{{"code":"bad","message":"cannot say {SECRET}"}}',
        f'{{"code":"bad","message":"the provider refused: {SECRET}"}}',
        f'{{"kind":"user_message","parts":[{{"type":"text","text":"I am {SECRET}"}}]}}',
    ]
    before = guessed(file, texts)
    assert before, "the test finds digests as long as the text is there"
    await erase(store, id)
    assert guessed(file, texts) == set()


def guessed(file: Path, texts: list[str]) -> set[str]:
    """Which of these texts can be confirmed by a digest in the file, with any 16 bytes in it as the salt, or none."""
    with closing(sqlite3.connect(file)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        cells = [cell for table in tables for row in db.execute(f'SELECT * FROM "{table}"') for cell in row]
    salts = {cell for cell in cells if isinstance(cell, bytes) and len(cell) == 16} | {b""}
    written = "\n".join(cell.hex() if isinstance(cell, bytes) else str(cell) for cell in cells)
    import base64

    def is_there(digest: bytes) -> bool:
        return digest.hex() in written or base64.b64encode(digest).decode() in written

    return {text for text in texts for salt in salts if is_there(sha256(salt + text.encode()).digest())}


async def test_a_reader_that_holds_the_log_up_is_said_and_the_text_goes_when_it_ends(
    store: SqliteStore, file: Path
) -> None:
    id, turn = await full(store)
    with closing(sqlite3.connect(file, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM event").fetchone()
        receipt = await erase(store, id, turn=turn)
        assert "log" in receipt.pending[0]
        assert found_in(file.parent)
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("SELECT cleared < removals, compacted < erasures FROM meta").fetchone() == (1, 1)
    await store.close()
    assert found_in(file.parent) == []


async def test_nothing_is_left_in_the_unused_parts_of_pages(store: SqliteStore, file: Path) -> None:
    """Rows that are written into the midst of others are moved between pages, and SQLite leaves copies behind."""
    sizes = random.Random(1)
    ids = [(await store.create(NewConversation(id=new_id()))).id for _ in range(10)]
    for _ in range(200):
        said = [f"{SECRET}{'x' * sizes.randrange(2000)}" for _ in range(3)]
        turn = await begin(store, sizes.choice(ids))
        await store.commit(turn, [says(said[0]), answers(said[1]), remembers("k", f'"{said[2]}"')])
    for id in ids:
        await store.erase(new_id(), Erasing(family=id), reason="a test", more_follow=True)
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
    assert found_in(file.parent), "SQLite has left nothing, so that this test shows nothing"
    await store.collect()
    assert found_in(file.parent) == []
    assert (await store.verify()).ok


async def test_copies_of_steps_in_a_sub_agent_go_with_the_steps_and_the_other_way_round(
    store: SqliteStore, file: Path
) -> None:
    for erased in ("parent", "child"):
        made = await store.create(NewConversation(id=new_id()))
        turn = await begin(store, made.id, f'"{SECRET}"')
        turn = await store.journal(turn, [says(SECRET), calls("c1", response=1), calls("c2", response=1)])
        copies = [
            NewEvent(UserMessage((Text(SECRET),)), origin=f"{turn.id}/0"),
            NewEvent(ToolCall("c1", "look", '{"at": 1}'), response=1, origin=f"{turn.id}/1"),
            returns("c1", "not here"),
        ]
        lineage = Lineage("sub_agent", made.id, turn=turn.id, call="c1")
        settings = f'{{"sub_agent":{{"task":"{SECRET}","path":"/root/a"}}}}'
        new = NewConversation(id=new_id(), family=made.id, lineage=lineage, settings=settings)
        child = await store.create(new, copies)
        task = await begin(store, child.id, f'"{SECRET}"')
        await store.commit(task, [says(SECRET), answers(f"done: {SECRET}", response=1)])
        told = [
            returns("c2"),
            NewEvent(SubAgentSpawned("c1", child.id, SECRET, turn=task.id)),
            NewEvent(SubAgentFinished("c1", child.id, "committed", task.id)),
            returns("c1", f"it says {SECRET}"),
            answers("ok", response=2),
        ]
        done = await store.commit(turn, told)
        if erased == "parent":
            await erase(store, made.id, turn=done.turn)
        else:
            await erase(store, child.id)
        assert found_in(file.parent) == [], erased
        assert (await store.verify()).ok
        left = [event.body for event in await store.events(made.id)]
        assert isinstance(left[0], Gone)
        assert isinstance(left[-1], Gone) == (erased == "parent")


async def test_a_sub_agents_answer_goes_with_the_result_that_repeats_it(store: SqliteStore, file: Path) -> None:
    made = await store.create(NewConversation(id=new_id()))
    turn = await begin(store, made.id)
    turn = await store.journal(turn, [says("go"), calls("c1", response=1)])
    lineage = Lineage("sub_agent", made.id, turn=turn.id, call="c1")
    child = await store.create(NewConversation(id=new_id(), family=made.id, lineage=lineage))
    task = await begin(store, child.id)
    await store.commit(task, [says("a task"), NewEvent(AssistantMessage((Text(SECRET),)), response=1)])
    heard = NewEvent(SubAgentFinished("c1", child.id, "committed", task.id))
    done = await store.commit(turn, [heard, returns("c1", SECRET), answers("ok", response=2)])
    (result,) = await store.events(made.id, kinds=["tool_result"])
    receipt = await store.erase(new_id(), Erasing(conversations=(made.id,), event=result.id), reason="a test")
    assert set(receipt.turns) == {done.turn, task.id}
    assert found_in(file.parent) == []
    assert (await store.verify()).ok


async def test_a_receipt_is_a_line_that_erases_the_same_in_an_earlier_copy(
    store: SqliteStore, file: Path, tmp_path: Path
) -> None:
    id, turn = await full(store)
    backup, copy = tmp_path / "backup.db", tmp_path / "copy" / "y.db"
    copy.parent.mkdir()
    await store.backup(backup)
    receipts = [await erase(store, id, turn=turn), await erase(store, id)]
    lines = "\n".join(map(encode_receipt, receipts))
    assert decode_receipts(lines) == receipts
    listed = (await store.erasures()).items
    assert [one.runs for one in listed] == [one.runs for one in receipts]
    (tmp_path / "receipts").write_text(lines)
    assert restore(backup, copy, erasures=tmp_path / "receipts").erasures == 2
    assert restore(copy, copy.parent / "again.db", erasures=tmp_path / "receipts").erasures == 0, "they are done"
    assert found_in(copy.parent) == []
    async with await SqliteStore.open(copy) as restored:
        checked = await restored.verify()
        assert checked.ok, checked.flaws
        assert [one.id for one in (await restored.erasures()).items] == [one.id for one in receipts]


PROGRAM = """
import os, signal, sys
import anyio
from forkpoint.ids import new_id
from forkpoint.store.erasure import Erasing
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import connect

for point in sys.argv[3:]:  # a child for each, which has nothing of this process but its modules
    if (child := os.fork()) == 0:
        at = int(point)
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
seen = 0
is_erasing = False

def watched(path):
    db = connect(path)
    def trace(statement):
        global seen
        if is_erasing and statement.split()[0] in ("UPDATE", "DELETE", "INSERT", "COMMIT", "PRAGMA"):
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)
    db.set_trace_callback(trace)
    return db

async def main():
    global is_erasing
    async with await SqliteStore.open(sys.argv[1].replace("POINT", str(at)), connect=watched) as store:
        is_erasing = True
        await store.erase(new_id(), Erasing(conversations=(sys.argv[2],)), reason="a test")
        is_erasing = False

anyio.run(main)
"""


async def test_killed_at_any_moment_it_happened_or_did_not(tmp_path: Path) -> None:
    file = tmp_path / "original" / "x.db"
    file.parent.mkdir()
    async with await SqliteStore.open(file) as store:
        id, _ = await full(store)
    points = ["1", "4", "12", "25", "40", *map(str, range(55, 75)), "500"]
    for point in points:
        copy = tmp_path / point / "x.db"
        copy.parent.mkdir()
        copy.write_bytes(file.read_bytes())
    given = [str(tmp_path / "POINT" / "x.db"), id, *points]
    ended = await anyio.run_process([sys.executable, "-c", PROGRAM, *given])
    killed, outcomes = list(map(int, ended.stdout.split())), set()
    assert set(killed) == {0, -signal.SIGKILL}
    for point in points:
        copy = tmp_path / point / "x.db"
        async with await SqliteStore.open(copy) as store:
            checked = await store.verify()
            assert checked.ok, checked.flaws
            done = bool((await store.erasures()).items)
            gone = [isinstance(event.body, Gone) for event in await store.events(id)]
            assert all(gone) if done else not any(gone)
        assert found_in(copy.parent) == ([] if done else ["x.db"])
        outcomes.add(done)
    assert outcomes == {True, False}


async def test_a_store_of_an_earlier_format_gets_the_table_of_copies(store: SqliteStore, file: Path) -> None:
    made = await store.create(NewConversation(id=new_id()))
    turn = await begin(store, made.id)
    await store.commit(turn, exchange("one"))
    copy = NewEvent(UserMessage((Text("one"),)), origin=f"{turn.id}/0")
    await store.create(NewConversation(id=new_id(), family=made.id), [copy])
    await store.close()
    with closing(connect(str(file))) as db:  # as the migration to format 10 does
        before = list(map(tuple, db.execute("SELECT * FROM copy")))
        db.execute("DELETE FROM copy")
        adopt_copies(db)
        assert len(before) == 1
        assert list(map(tuple, db.execute("SELECT * FROM copy"))) == before


def test_every_column_of_text_or_bytes_is_in_the_table_of_words(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data-model.md").read_text(encoding="utf-8")
    section = page.partition("## Where a person's words can be")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    said = {name for line in rows for name in re.findall(r"`(\w+\.\w+)`", line.split(" | ")[0])}
    with closing(connect(str(tmp_path / "x.db"))) as db:
        make_tables(db)
        columns = db.execute(
            "SELECT sqlite_master.name || '.' || column.name FROM sqlite_master, pragma_table_info(sqlite_master.name)"
            " AS column WHERE sqlite_master.type = 'table' AND column.type IN ('TEXT', 'BLOB', 'ANY', '')"
            " AND sqlite_master.name NOT LIKE 'sqlite_%'"
        ).fetchall()
    there = {name for (name,) in map(tuple, columns)}
    assert there - said == set(), "say in docs/data-model.md whether these hold a person's words, and who erases them"
    assert said - there == set(), "these columns are not there any more"


async def test_what_only_a_backup_has_goes_when_a_receipt_is_applied(
    store: SqliteStore, file: Path, tmp_path: Path
) -> None:
    """A title and a failed try that were no more when the text was erased."""
    made = await store.create(NewConversation(id=new_id(), title=f"I am {SECRET}"))
    done = await store.commit(await begin(store, made.id), exchange(f"I am {SECRET}"))
    fork = await store.fork(made.id, NewFork(id=new_id(), cache="{}", title=f"Once more: I am {SECRET}"))
    await store.fail(await begin(store, fork.id), TurnError("bad", f"cannot say {SECRET}"))
    await store.backup(tmp_path / "backup.db")
    await store.describe(made.id, title="Another title", tags=())
    await store.delete(fork.id)
    receipt = await erase(store, made.id, turn=done.turn)
    (tmp_path / "restored").mkdir()
    restored = tmp_path / "restored" / "x.db"
    (tmp_path / "receipts").write_text(encode_receipt(receipt))
    assert restore(tmp_path / "backup.db", restored, erasures=tmp_path / "receipts").erasures == 1
    assert found_in(restored.parent) == []
    async with await SqliteStore.open(restored) as again:
        assert (await again.verify()).flaws == ()
