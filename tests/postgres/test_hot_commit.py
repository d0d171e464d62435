"""A commit in one statement: one round trip, all of it or nothing, whoever writes beside it."""

import anyio
import psycopg
import pytest
from tests.postgres.hot_support import contents, heard, someone_waits, threads_heard, two_stores

from forkpoint.errors import ForkpointError, TurnBehind, TurnLost, TurnSteered
from forkpoint.events import NewEvent, Usage
from forkpoint.ids import id_to_bytes, new_id
from forkpoint.store.postgres.hot.statement import compose
from forkpoint.store.postgres.store import PostgresStore
from forkpoint.store.values import TurnError
from forkpoint.testing.conformance.base import begin, create, fork_of, run, texts
from forkpoint.testing.samples import answers, exchange

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_turn_is_two_statements_and_no_transaction_of_several(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        await run(store, made.id, "first")
        said, transactions = heard(monkeypatch), threads_heard(monkeypatch)
        await run(store, made.id, "second")
        assert [text.split("(")[0].split()[1] for text in said] == ["taken", "held"], "the begin, and the commit"
        assert not transactions
        assert texts(await store.events(made.id)) == texts(await store.events(made.id, at=None))
        assert (await store.verify(made.id)).ok


async def test_steps_that_this_process_journalled_are_not_read_again(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        turn = await begin(store, made.id)
        transactions = threads_heard(monkeypatch)
        first, *rest = exchange("hi")
        turn = await store.journal(turn, [first])
        done = await store.commit(turn, rest)
        assert not transactions
        assert len(await store.events(made.id)) == done.last.ordinal == 2
        assert await store.steps(turn.id) == []
        assert (await store.verify(made.id)).ok


async def test_after_a_resume_the_steps_are_read_first(postgres: str) -> None:
    async with two_stores(postgres) as (one, other):
        made = await create(one)
        turn = await begin(one, made.id)
        first, *rest = exchange("hi")
        await one.journal(turn, [first])
        await one.close()
        resumed = await other.resume(turn.id)
        await other.commit(resumed, rest)
        assert len(await other.events(made.id)) == 2
        assert (await other.verify(made.id)).ok


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("UPDATE turn SET token = 'another'", TurnLost),
        ("UPDATE turn SET outcome = 'failed'", TurnLost),
        ("UPDATE turn SET staged = 1", TurnBehind),
        ("UPDATE turn SET steered = '[]'", TurnSteered),
        ("UPDATE conversation SET revision = revision + 1", ForkpointError),
        ("UPDATE conversation SET open_turn = NULL", ForkpointError),
        ("UPDATE turn SET token = 'another'; UPDATE conversation SET open_turn = NULL, revision = 7", TurnLost),
    ],
)
@pytest.mark.parametrize("when", ["before", "while it waits for the conversation", "while it waits for the turn"])
async def test_nothing_at_all_is_written_if_anything_has_changed(
    postgres: str, change: str, error: type[ForkpointError], when: str
) -> None:
    """Another session takes the turn over, or whatever else, and the commit comes before, or waits for its locks."""
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        await run(store, made.id, "before")
        turn = await begin(store, made.id)
        with psycopg.connect(postgres) as other:
            if when != "before":
                table = "conversation" if when.endswith("conversation") else "turn"
                other.execute(f"SELECT 1 FROM {table} FOR UPDATE".encode())

            async def commit() -> None:
                with pytest.raises(error):
                    await store.commit(turn, exchange("never"))

            async with anyio.create_task_group() as group:
                if when != "before":
                    group.start_soon(commit)
                    await someone_waits(postgres)
                for one in change.split("; "):
                    where = f"id = '\\x{id_to_bytes(turn.id if one.startswith('UPDATE turn') else made.id).hex()}'"
                    other.execute(f"{one} WHERE {where}".encode())
                other.commit()
                before = contents(postgres)
                if when == "before":
                    group.start_soon(commit)
        assert contents(postgres) == before


async def test_charges_and_names_beside_commits_refuse_nothing_and_leave_the_chain_whole(postgres: str) -> None:
    async with two_stores(postgres) as (one, other):
        made = await create(one)

        async def write() -> None:
            for number in range(15):
                await run(one, made.id, f"turn {number}")

        async def charge() -> None:
            for _ in range(15):
                await other.charge(made.id, new_id(), Usage(calls=1, input=5))

        async def rename() -> None:
            for number in range(15):
                await other.rename(made.id, f"name-{number}")

        async with anyio.create_task_group() as group:
            for work in (write, charge, rename):
                group.start_soon(work)
        assert (await one.verify(made.id)).ok
        assert (await one.read(made.id)).revision >= 15
        assert (await one.spent(made.id)).calls == 30


async def test_a_commit_that_waited_for_a_charge_follows_its_record(postgres: str) -> None:
    async with two_stores(postgres) as (one, other):
        made = await create(one)
        turn = await begin(one, made.id)
        with psycopg.connect(postgres) as held:
            held.execute("SELECT 1 FROM conversation FOR UPDATE")
            async with anyio.create_task_group() as group:
                group.start_soon(other.charge, made.id, new_id(), Usage(calls=1))
                await someone_waits(postgres)
                group.start_soon(one.commit, turn, exchange("hi"))
                await someone_waits(postgres, 2)
                held.rollback()
        assert (await one.verify(made.id)).ok
        assert (await one.read(made.id)).revision == 1


async def test_forks_of_the_head_and_collections_beside_commits(postgres: str) -> None:
    async with two_stores(postgres) as (one, other):
        made = await create(one)
        await run(one, made.id, "first")
        forks: list[str] = []

        async def write() -> None:
            for number in range(10):
                await run(one, made.id, f"turn {number}")

        async def fork() -> None:
            for _ in range(10):
                branch = await other.fork(made.id, fork_of())
                await run(other, branch.id, "beside")
                forks.append(branch.id)

        async def collect() -> None:
            for _ in range(5):
                await other.collect()

        async with anyio.create_task_group() as group:
            for work in (write, fork, collect):
                group.start_soon(work)
        for id in (made.id, *forks):
            assert (await one.verify(id)).ok
        assert len(await one.events(made.id)) == 22


async def test_the_first_commit_after_a_fork_opens_a_segment_and_admits_a_draft(postgres: str) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        await run(store, made.id, "first")
        branch = await store.fork(made.id, fork_of(), draft=True)
        done = await run(store, branch.id, "second")
        assert done.first.segment != (await store.read(made.id)).head.position.segment  # type: ignore[union-attr]
        assert not (await store.read(branch.id)).draft
        assert (await run(store, branch.id, "third")).first.segment == done.first.segment
        assert (await store.verify(branch.id)).ok


async def test_landmarks_and_copies_are_written_too(postgres: str) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        await run(store, made.id, "first")
        turn = await begin(store, made.id)
        copied = NewEvent(answers("again").body, origin=f"{turn.id}/0")
        await store.commit(turn, [*exchange("x")[:1], copied])
        with psycopg.connect(postgres) as db:
            assert db.execute("SELECT count(*) FROM copy").fetchone() == (1,)
        assert (await store.verify(made.id)).ok


async def test_a_commit_that_is_too_large_for_one_statement_is_a_transaction(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        turn = await begin(store, made.id)
        transactions = threads_heard(monkeypatch)
        await store.commit(turn, exchange("x" * (1 << 20)))
        assert transactions == ["BEGIN "]
        assert (await store.verify(made.id)).ok


async def test_commits_touch_no_index_of_their_conversation(postgres: str) -> None:
    """PostgreSQL then updates the row in its page, and an old version is reused at once."""
    async with await PostgresStore.open(postgres) as store:
        made = await create(store)
        for _ in range(100):
            await run(store, made.id, "hi")
        await store.fail(await begin(store, made.id), TurnError("x", "y"))
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute("SELECT pg_stat_force_next_flush()")
        found = db.execute(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'conversation'"
        ).fetchone()
    assert found is not None
    assert found[0] >= 200
    assert found[1] >= 0.95 * found[0] - 2


def test_the_parameters_of_rows_follow_those_of_the_statement() -> None:
    named = dict.fromkeys(("tenant", "turn", "token", "usage", "staged", "more", "steps"), 0)
    text, values = compose(
        "journal_at_once", {"journal_steps": [("a", "b", b"c", b"d"), ("e", "f", b"g", b"h")]}, named
    )
    assert values[-8:] == ["a", "b", b"c", b"d", "e", "f", b"g", b"h"]
    assert b"(1, $8::text, $9::text, $10::bytea, $11::bytea), (2, $12::text" in text
