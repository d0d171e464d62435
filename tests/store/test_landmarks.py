"""Landmarks in SQLite: an older store gets its landmarks once, and `verify` finds wrong ones."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from forkpoint.events import Condensation, NewEvent, SettingsChanged, SystemMessage, Text
from forkpoint.history.landmarks import LANDMARKS, landmarks_in
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import NewConversation, NewFork
from forkpoint.testing.samples import exchange

pytestmark = pytest.mark.anyio

SYSTEM = NewEvent(SystemMessage((Text("Be brief."),)))
CONDENSED = NewEvent(Condensation("They met.", 3))


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        yield db


async def made(path: Path) -> tuple[str, str]:
    """A conversation of two segments, as a program left it that knew no landmarks, and a fork that shares one."""
    root, fork = new_id(), new_id()
    async with await SqliteStore.open(path) as store:
        await store.create(NewConversation(id=root), [SYSTEM, *exchange("one"), CONDENSED])
        await store.fork(root, NewFork(id=fork, cache="{}"))
        await store.note(root, new_id(), [NewEvent(SettingsChanged("{}")), *exchange("two")])
        await store.note(fork, new_id(), [*exchange("three"), SYSTEM])
    with database(path) as db:
        db.execute("DELETE FROM landmark")
        db.execute("UPDATE segment SET landmarks = NULL")
    return root, fork


async def test_landmarks_of_an_old_store_are_found_and_written_down_once(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    root, fork = await made(path)
    async with await SqliteStore.open(path) as store:
        for id in (root, fork):
            assert await store.landmarks(id, LANDMARKS) == landmarks_in(await store.events(id))
    with database(path) as db:
        assert db.execute("SELECT count(*) FROM segment WHERE landmarks IS NULL").fetchone() == (0,)
        assert [kind for (kind,) in db.execute("SELECT kind FROM landmark ORDER BY id")] == [
            "system_message",
            "condensation",
            "settings_changed",
            "system_message",
        ]


async def test_a_commit_into_an_old_segment_and_a_look_at_it_later_agree(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    root, _ = await made(path)
    async with await SqliteStore.open(path) as store:
        await store.note(root, new_id(), [SYSTEM, *exchange("four")])  # writes its own, beside old events without any
        assert await store.landmarks(root, LANDMARKS) == landmarks_in(await store.events(root))
        await store.note(root, new_id(), [CONDENSED])
        assert await store.landmarks(root, LANDMARKS) == landmarks_in(await store.events(root))
        assert (await store.verify()).ok


async def test_events_of_an_old_store_are_found_by_their_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    root, _ = await made(path)
    async with await SqliteStore.open(path) as store:
        found = await store.events(root, kinds=("settings_changed",))
        assert [event.id.ordinal for event in found] == [5]


async def test_landmarks_that_cannot_be_written_down_are_found_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    root, _ = await made(path)
    with database(path) as db:
        db.execute("CREATE TRIGGER full BEFORE INSERT ON landmark BEGIN SELECT RAISE(ABORT, 'no room'); END")
    async with await SqliteStore.open(path) as store:
        assert await store.landmarks(root, LANDMARKS) == landmarks_in(await store.events(root))
        assert [event.id.ordinal for event in await store.events(root, kinds=("condensation",))] == [4]


TAMPERED = {
    "one is gone": "DELETE FROM landmark WHERE kind = 'condensation'",
    "one is of another kind": "UPDATE landmark SET kind = 'system_message' WHERE kind = 'condensation'",
    "one keeps something else": "UPDATE landmark SET kept_from = 1 WHERE kind = 'condensation'",
    "one has no event of its kind": "INSERT INTO landmark (id, kind) SELECT id + 1, kind FROM landmark LIMIT 1",
}


@pytest.mark.parametrize("what", TAMPERED)
async def test_verify_finds_landmarks_that_are_not_those_of_the_events(tmp_path: Path, what: str) -> None:
    path = tmp_path / "a.db"
    root = new_id()
    async with await SqliteStore.open(path) as store:
        await store.create(NewConversation(id=root), [SYSTEM, *exchange("one"), CONDENSED])
        assert (await store.verify()).ok
    with database(path) as db:
        assert db.execute(TAMPERED[what]).rowcount == 1
    async with await SqliteStore.open(path) as store:
        for conversation in (root, None):
            assert [flaw for flaw in (await store.verify(conversation)).flaws if "landmark" in flaw.what], what


async def test_an_erased_condensation_keeps_its_landmark(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    root = new_id()
    async with await SqliteStore.open(path) as store:
        await store.create(NewConversation(id=root), [SYSTEM, *exchange("one"), CONDENSED])
        before = await store.landmarks(root, LANDMARKS)
    with database(path) as db:
        db.execute("UPDATE event SET payload = NULL, salt = NULL WHERE id & 4294967295 = 4")
    async with await SqliteStore.open(path) as store:
        assert await store.landmarks(root, LANDMARKS) == before
        assert not [flaw for flaw in (await store.verify()).flaws if "landmark" in flaw.what]
