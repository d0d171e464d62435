"""Messages for an open turn in a SQLite file: what `verify` finds, what erasing leaves, and what they cost others."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from forkpoint.errors import TooLarge
from forkpoint.events import Text, UserMessage
from forkpoint.ids import new_id
from forkpoint.store.erasure import Erasing
from forkpoint.store.sqlite import SqliteSettings, SqliteStore
from forkpoint.store.sqlite.connection import Database, connect
from forkpoint.store.values import IdempotencyKey, StoreLimits, TurnError
from forkpoint.testing.conformance.base import begin, create, run
from forkpoint.testing.conformance.steers import delivery, in_a_tool, steer
from forkpoint.testing.samples import answers, calls, exchange, returns, says

pytestmark = pytest.mark.anyio

FAILED = "(SELECT id FROM turn WHERE outcome = 'failed')"
WAITS = "(SELECT id FROM turn WHERE outcome = 'awaiting_approval')"
COMMITTED = "(SELECT id FROM turn WHERE outcome = 'committed')"

TAMPERED = {
    "the words of a try": f"UPDATE turn SET steered = replace(steered, 'in vain', 'as you wish') WHERE id = {FAILED}",
    "the words for one that waits": f"UPDATE turn SET steered = replace(steered, 'later', 'never') WHERE id = {WAITS}",
    "who sent a message": f"""UPDATE turn SET steered = replace(steered, 'ann', 'bob') WHERE id = {COMMITTED}""",
    "whether a message was delivered": (
        f"""UPDATE turn SET steered = replace(steered, ',"delivered":true', '') WHERE id = {COMMITTED}"""
    ),
    "a message, removed": f"UPDATE turn SET steered = NULL WHERE id = {FAILED}",
    "a message, added": f"""UPDATE turn SET steered = '[]' WHERE id = {COMMITTED}""",
    "the mark of a delivered message": """UPDATE event SET envelope = replace(envelope, '"steer"', '"strew"')""",
    "the record of a message": "UPDATE record SET body = replace(body, 'time', 'tide') WHERE kind = 'steered'",
}


async def filled(path: Path) -> None:
    async with await SqliteStore.open(path) as store:
        one, two, three = [await create(store) for _ in range(3)]
        turn = await in_a_tool(store, one.id)
        _, left = await store.steer(one.id, new_id(), UserMessage((Text("heard"),)), by="ann")
        turn = await store.journal(turn, [returns("c1"), delivery(left)])
        await store.commit(turn, [answers("yes", response=2)])
        failed = await in_a_tool(store, two.id)
        await steer(store, two.id, "in vain")
        await store.fail(failed, TurnError("broken", "the disk was full"))
        await store.wait(await begin(store, three.id), [says("look"), calls("c1", response=1)])
        await steer(store, three.id, "later")


@pytest.mark.parametrize("what", TAMPERED)
async def test_verify_finds_a_change_to_what_was_steered(tmp_path: Path, what: str) -> None:
    path = tmp_path / "store.db"
    await filled(path)
    async with await SqliteStore.open(path) as store:
        assert (await store.verify()).ok
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute(TAMPERED[what]).rowcount
    async with await SqliteStore.open(path) as store:
        assert not (await store.verify()).ok, what


async def test_erased_words_are_in_no_file_any_more(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with await SqliteStore.open(path) as store:
        made = await create(store)
        turn = await in_a_tool(store, made.id)
        _, left = await steer(store, made.id, "the delivered word", key=IdempotencyKey("the first key", b"1"))
        turn = await store.journal(turn, [returns("c1"), delivery(left)])
        await store.commit(turn, [answers("yes", response=2)])
        failed = await in_a_tool(store, made.id)
        await steer(store, made.id, "the waiting word", key=IdempotencyKey("the second key", b"1"))
        await store.cancel(failed)
        for id in (turn.id, failed.id):
            await store.erase(new_id(), Erasing(conversations=(made.id,), turn=id), reason="asked for")
        assert (await store.verify()).ok
        await store.collect(compact=True)
    for file in [one for one in tmp_path.iterdir() if one.is_file()]:  # noqa: ASYNC240 - nothing else runs here
        content = file.read_bytes()
        for words in (b"delivered word", b"waiting word", b"first key", b"second key"):
            assert words not in content, f"{words.decode()} is still in {file.name}"


async def test_a_turn_takes_so_many_messages_and_so_many_bytes() -> None:
    settings = SqliteSettings(limits=StoreLimits(steers=2, input=1000))
    async with await SqliteStore.open(None, settings=settings) as store:
        made = await create(store)
        turn = await begin(store, made.id)
        await steer(store, made.id, "one")
        with pytest.raises(TooLarge, match="1,000"):
            await steer(store, made.id, "x" * 1000)
        await steer(store, made.id, "two")
        with pytest.raises(TooLarge, match="messages"):
            await steer(store, made.id, "three")
        assert len((await store.turn(turn.id)).steered) == 2


async def test_a_turn_that_nobody_steers_says_nothing_more_to_the_disk() -> None:
    """Neither a statement nor a row: the commit compares one more column, and the journal hears of it by itself."""
    said: list[str] = []

    def listening(path: str) -> Database:
        db = connect(path)
        db.set_trace_callback(lambda statement: said.append(" ".join(statement.split())))
        return db

    async with await SqliteStore.open(None, connect=listening) as store:
        made = await create(store)
        await run(store, made.id, exchange("one"))
        said.clear()
        turn = await in_a_tool(store, made.id)
        await store.commit(await store.journal(turn, [returns("c1")]), [answers("done", response=2)])
        assert said
        about = [one for one in said if "steer" in one]
        assert all(one.startswith(("UPDATE turn SET usage", "UPDATE turn SET outcome = 'committed'")) for one in about)
        assert len(about) == 3, about
