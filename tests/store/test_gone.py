"""What is deleted is gone: `grep` finds none of its words in any file of the store, and all words of what stays."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import Struct
from tests.store.support import dying_process
from tests.store.support.grep import found_in

from forkpoint.errors import NotFound
from forkpoint.events import NewEvent, Usage
from forkpoint.ids import id_to_bytes, new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import IdempotencyKey, Lineage, NewConversation, NewFork, OpenTurn, TurnError
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.samples import answers, calls, remembers, returns, says

pytestmark = pytest.mark.anyio

A_MONTH = 31 * 24 * 3600


class Told(Struct, frozen=True):
    """A conversation that was told to a store, and the words that it has."""

    id: str
    fork: str
    shared: set[str]  # which the fork has too
    own: set[str]
    tries: set[str]  # a part of its own: what failed and cancelled tries have


class Words:
    """Rare words, each used in one place."""

    def __init__(self) -> None:
        self.made: set[str] = set()

    def __call__(self, place: str) -> str:
        word = f"{place}{new_id().replace('-', '')}"
        self.made.add(word)
        return word


async def tell(store: SqliteStore, fork: str = "fork") -> Told:
    """A conversation with all that one can have, and a fork after its first turn."""
    word = Words()
    id = new_id()
    await store.create(
        NewConversation(id=id, name=word("name"), title=word("title"), tags=((word("tag"), word("value")),)),
        key=IdempotencyKey(word("createkey"), b"digest"),
    )
    tries = Words()
    about = word.made.copy()
    first = await turn(store, id, word, "shared")
    shared = word.made - about
    branch = NewFork(id=new_id(), cache="{}", name=fork)
    await store.fork(id, branch)
    await turn(store, id, word, "own")
    await store.note(id, new_id(), [remembers("noted", f'"{word("noted")}"')], settings=f'{{"x":"{word("setting")}"}}')
    await store.rewind(id, NewFork(id=new_id(), cache="{}", name=f"aside-{id}"), at=first)
    await turn(store, id, word, "again")
    for outcome in ("failed", "cancelled"):
        held = await begin(store, id, tries)
        held = await store.journal(held, [says(tries("step")), calls("c", tool=tries("tool"))])
        if outcome == "failed":
            await store.fail(held, TurnError("failed", tries("error")), usage=Usage(calls=1, input=3))
        else:
            await store.cancel(held)
    lineage = Lineage("sub_agent", id, None, first, "c1")
    child = await store.create(NewConversation(id=new_id(), family=id, lineage=lineage, title=word("childtitle")))
    await turn(store, child.id, word, "child")
    return Told(id, branch.id, shared, (word.made | tries.made) - shared, tries.made)


async def begin(store: SqliteStore, id: str, word: Words) -> OpenTurn:
    key = IdempotencyKey(word("key"), b"digest")
    held = await store.begin(id, new_id(), input=f'{{"text":"{word("input")}"}}', key=key)
    assert isinstance(held, OpenTurn)
    return held


async def turn(store: SqliteStore, id: str, word: Words, kind: str) -> str:
    """A turn with a tool call, short texts and long ones, and state."""
    held = await begin(store, id, word)
    staged: list[NewEvent] = [says(word(f"{kind}prompt")), calls("c1", response=1)]
    held = await store.journal(held, staged)
    long = f"{word(f'{kind}begin')} {'x' * 20_000} {word(f'{kind}end')}"
    rest = [
        returns("c1", long),
        remembers(kind, f'"{word(f"{kind}state")}"'),
        answers(word(f"{kind}answer"), response=2),
    ]
    return (await store.commit(held, rest)).turn


async def delete_all_but_the_fork(store: SqliteStore, told: Told) -> None:
    await store.delete(told.id)
    await store.delete((await store.find(f"aside-{told.id}")).id)


def records_with_content(path: Path, conversation: str) -> int:
    with closing(sqlite3.connect(path)) as db:
        chain = b"c" + id_to_bytes(conversation)
        kept = "SELECT count(*) FROM record WHERE chain = ? AND (body IS NOT NULL OR salt IS NOT NULL)"
        return int(db.execute(kept, (chain,)).fetchone()[0])


async def test_nothing_of_a_deleted_conversation_is_left_but_what_a_fork_shares(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with await SqliteStore.open(path) as store:
        told = await tell(store)
        assert found_in(path, told.own | told.shared) == told.own | told.shared, "the words were never on the disk"
        spent = await store.usage(told.id)
        await delete_all_but_the_fork(store, told)
        done = await store.collect()
        assert done.events > 0
        assert done.pending == ()
        assert found_in(path, told.own) == set()
        inputs = {word for word in told.shared if word.startswith(("key", "input"))}
        assert found_in(path, told.shared - inputs) == told.shared - inputs, "the fork lost what it shares"
        assert len(await store.events(told.fork)) == 5
        assert await store.usage(told.id) == spent
        assert (await store.verify()).ok
        await store.delete(told.fork)
        await store.collect()
        assert found_in(path, told.own | told.shared) == set()
        assert records_with_content(path, told.id) == 0
        assert (await store.verify()).ok


async def test_closing_a_store_removes_what_was_deleted(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with await SqliteStore.open(path) as store:
        told = await tell(store.within("somebody"))
        await delete_all_but_the_fork(store.within("somebody"), told)
    assert found_in(path, told.own) == set()


async def test_a_reader_holds_the_removal_up_and_that_is_said_until_it_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with await SqliteStore.open(path) as store:
        told = await tell(store)
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM conversation").fetchall()
            await delete_all_but_the_fork(store, told)
            done = await store.collect()
            assert [pending.what for pending in done.pending] == ["log"]
            assert found_in(path, told.own), "the log was emptied, so this proves nothing"
            assert [pending.what for pending in (await store.collect(dry_run=True)).pending] == ["log"]
        async with await SqliteStore.open(path) as another:
            assert (await another.collect()).pending == (), "another process does not know what is owed"
        assert found_in(path, told.own) == set()
        assert (await store.collect(dry_run=True)).pending == ()


def killed(path: Path, act: str, id: str, number: int) -> bool:
    """Runs a process that dies at a statement. False if it came to its end."""
    command = [sys.executable, dying_process.__file__, str(path), act, id, str(number)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


@pytest.mark.parametrize("number", [1, 12, 30])
async def test_a_process_that_is_killed_while_it_deletes_has_deleted_all_or_nothing(
    tmp_path: Path, number: int
) -> None:
    path = tmp_path / "store.db"
    async with await SqliteStore.open(path) as store:
        told = await tell(store)
    killed(path, "delete", told.id, number)
    async with await SqliteStore.open(path) as store:
        assert (await store.verify()).ok
        try:
            await store.read(told.id)
        except NotFound:
            pass
        else:
            assert found_in(path, told.own) == told.own, "it is there, and has lost something"
            await store.delete(told.id)
        await store.delete((await store.find(f"aside-{told.id}")).id)
    assert found_in(path, told.own) == set()


@pytest.mark.parametrize("number", [1, 3, 8, 16, 40, 80])
async def test_a_process_that_is_killed_while_it_collects_leaves_the_rest_to_the_next(
    tmp_path: Path, number: int
) -> None:
    path = tmp_path / "store.db"
    store = await SqliteStore.open(path)
    told = await tell(store)
    await delete_all_but_the_fork(store, told)
    await store._view.opened.close()  # without the collection
    killed(path, "collect", told.id, number)
    async with await SqliteStore.open(path) as store:
        assert (await store.verify()).ok
        assert len(await store.events(told.fork)) == 5
    assert found_in(path, told.own) == set()


async def test_failed_tries_lose_their_words_after_a_month_and_keep_their_cost(tmp_path: Path) -> None:
    path, clock = tmp_path / "store.db", ManualClock()
    async with await SqliteStore.open(path, clock=clock) as store:
        told = await tell(store)
        spent = await store.usage(told.id)
        assert (await store.collect()).tries == 0
        clock.pass_by(A_MONTH)
        assert (await store.collect(dry_run=True)).tries == 2
        assert (await store.collect()).tries == 2
        assert (await store.collect()).tries == 0
        assert found_in(path, told.tries) == set()
        stay = {word for word in told.own | told.shared if not word.startswith(("key", "createkey"))} - told.tries
        assert found_in(path, stay) == stay, "something else went with them"
        assert await store.usage(told.id) == spent
        tries = [one for one in (await store.turns(told.id)).items if one.outcome in ("failed", "cancelled")]
        assert [(one.input, one.error, one.usage.calls) for one in tries] == [(None, None, 1), (None, None, 0)]
        assert (await store.verify()).ok
