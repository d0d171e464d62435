"""`verify` finds what somebody changed in the file behind the store's back."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from forkpoint.events import Usage
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import Verification
from forkpoint.testing.conformance.base import create, fork_of, run
from forkpoint.testing.samples import answers, calls, exchange, remembers, returns, says

pytestmark = pytest.mark.anyio

TAMPERED = {
    "a payload": "UPDATE event SET payload = replace(payload, 'one', 'two')",
    "an envelope": """UPDATE event SET envelope = replace(envelope, '"user"', '"system"')""",
    "a salt": "UPDATE event SET salt = zeroblob(16) WHERE id = (1 << 32) + 2",
    "a payload digest": "UPDATE event SET payload_digest = zeroblob(32) WHERE id = (1 << 32) + 2",
    "a chain digest": "UPDATE event SET chain_digest = zeroblob(32) WHERE id = (1 << 32) + 2",
    "whose an event is": "UPDATE event SET turn = (SELECT head_turn FROM conversation WHERE name = 'fork')",
    "an event, removed": "DELETE FROM event WHERE id = (1 << 32) + 2",
    "the last event, removed": "DELETE FROM event WHERE id = (SELECT max(id) FROM event WHERE id >> 32 = 1)",
    "a segment's base": "UPDATE segment SET base = base - 1 WHERE base IS NOT NULL",
    "the digest of a segment's base": "UPDATE segment SET base_digest = zeroblob(32) WHERE base IS NOT NULL",
    "a head": "UPDATE conversation SET head = head - 2 WHERE name = 'root'",
    "a head, into another family": (
        "UPDATE conversation SET head = (SELECT head FROM conversation WHERE name = 'stranger') WHERE name = 'root'"
    ),
    "a head's digest": "UPDATE conversation SET head_digest = zeroblob(32) WHERE name = 'root'",
    "what a path is said to have cost": """UPDATE conversation SET head_totals = '{"calls":1}' WHERE name = 'root'""",
    "what a turn cost": """UPDATE turn SET usage = '{"calls":1,"input":1}' WHERE usage <> '{}'""",
    "what turns cost in all": """UPDATE turn SET totals = '{"calls":9}' WHERE totals <> '{}'""",
    "the state that a turn left": """UPDATE turn SET state = replace(state, 'true', 'false') WHERE state IS NOT NULL""",
    "the calls that a turn left open": """UPDATE turn SET open_calls = '{"client":["c9"]}'""",
    "a result, made into another kind": "UPDATE event SET envelope = replace(envelope, 'tool_result', 'hook_run')",
    "a turn's cost, made unreadable": """UPDATE turn SET totals = 'rubbish' WHERE totals <> '{}'""",
    "a state, made unreadable": """UPDATE turn SET state = 'rubbish' WHERE state IS NOT NULL""",
    "a segment's base, moved into an exchange": "UPDATE segment SET base = (1 << 32) + 5 WHERE base IS NOT NULL",
    "a turn, removed": "DELETE FROM turn WHERE id = (SELECT head_turn FROM conversation WHERE name = 'root')",
}


async def build(path: Path) -> str:
    """A conversation with tools and state, a fork of it, and another family. Returns the first one's id."""
    async with await SqliteStore.open(path) as store:
        root = await create(store, "root")
        await run(store, root.id, [*exchange("one"), remembers("kept", "true")])
        await run(store, root.id, [says("look"), calls("c1", response=1), returns("c1"), answers("seen", response=2)])
        fork = await store.fork(root.id, fork_of("fork"))
        await run(store, fork.id, "in the fork")
        await run(store, (await create(store, "stranger")).id, "elsewhere", Usage())
        assert (await store.verify()).ok
        return root.id


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute(statement).rowcount > 0, "the statement changed nothing, so this proves nothing"


async def verified(path: Path, conversation: str | None = None, head_digest: bytes | None = None) -> Verification:
    async with await SqliteStore.open(path) as store:
        return await store.verify(conversation, head_digest=head_digest)


@pytest.mark.parametrize("what", TAMPERED)
async def test_a_change_is_found_and_named(tmp_path: Path, what: str) -> None:
    path = tmp_path / "store.db"
    await build(path)
    change(path, TAMPERED[what])
    found = await verified(path)
    assert not found.ok, f"nobody noticed that somebody changed {what}"
    assert all(flaw.where and flaw.what for flaw in found.flaws)


async def test_a_single_conversation_whose_path_is_broken_is_reported_and_not_raised(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    root = await build(path)
    change(path, TAMPERED["a head, into another family"])
    assert not (await verified(path, root)).ok


async def test_an_erased_payload_keeps_the_chain_verifiable(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    root = await build(path)
    change(path, "UPDATE event SET payload = NULL, salt = NULL WHERE id = (1 << 32) + 1")
    found = await verified(path)
    assert (found.ok, found.erased) == (True, 1), found.flaws
    assert (await verified(path, root)).ok


async def test_a_history_that_was_cut_off_is_found_with_a_digest_kept_outside(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    root = await build(path)
    async with await SqliteStore.open(path) as store:
        kept = (await store.read(root)).head.digest
        first = (await store.turns(root)).items[0]
        await store.rewind(root, fork_of("cut"), at=first.id)  # consistent in itself, and yet not what it was
    assert (await verified(path, root)).ok
    assert not (await verified(path, root, head_digest=kept)).ok
