"""What was erased, expired, deleted or held in one store is so in the store that imports it; and nothing comes back."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.store.test_erasure import SECRET, begin, erase, found_in, full
from tests.store.test_import import rows

from forkpoint.errors import Held
from forkpoint.events import NewEvent, SubAgentFinished, SubAgentSpawned, Text, ToolCall, UserMessage
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import Lineage, NewConversation, TurnError
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.conformance.base import create, fork_of, run, texts
from forkpoint.testing.conformance.copies import exported, imported
from forkpoint.testing.samples import answers, calls, returns, says

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The folder of the store that imports."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.fixture
async def source(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with await SqliteStore.open(tmp_path / "source.db") as store:
        yield store


@pytest.fixture
async def target(here: Path) -> AsyncIterator[SqliteStore]:
    async with await SqliteStore.open(here / "store.db") as store:
        yield store


async def check(store: SqliteStore) -> None:
    checked = await store.verify()
    assert checked.ok, checked.flaws


async def team(store: SqliteStore) -> tuple[str, str, str]:
    """A conversation and a sub-agent that began with copies of its turn. Returns both, and the turn."""
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
    child = await store.create(NewConversation(id=new_id(), family=made.id, lineage=lineage, settings=settings), copies)
    task = await begin(store, child.id, f'"{SECRET}"')
    await store.commit(task, [says(SECRET), answers(f"done: {SECRET}", response=1)])
    told = [
        returns("c2"),
        NewEvent(SubAgentSpawned("c1", child.id, SECRET, turn=task.id)),
        NewEvent(SubAgentFinished("c1", child.id, "committed", task.id)),
        returns("c1", f"it says {SECRET}"),
        answers("ok", response=2),
    ]
    await store.commit(turn, told)
    return made.id, child.id, turn.id


async def test_erased_content_is_erased_where_it_comes_to(source: SqliteStore, target: SqliteStore, here: Path) -> None:
    id, turn = await full(source)
    await erase(source, id, turn=turn)
    await imported(target, await exported(source))
    await check(target)
    assert found_in(here) == []
    assert await target.usage(id) == await source.usage(id)
    assert await target.state(id) == await source.state(id)
    assert (await target.erasures()).items == (await source.erasures()).items
    await target.commit(await begin(target, id), [says("on"), answers("yes", response=1)])
    await check(target)
    await exported(target)


async def test_an_erased_conversation_and_a_deleted_source_come_too(
    source: SqliteStore, target: SqliteStore, here: Path
) -> None:
    id, _ = await full(source)
    fork = await source.fork(id, fork_of("fork"))
    await run(source, fork.id, "mine")
    await erase(source, id)
    await source.delete(id)
    await source.collect()
    await imported(target, await exported(source))
    await check(target)
    assert found_in(here) == []
    assert texts(await target.events(fork.id)) == texts(await source.events(fork.id))
    assert await target.usage(id) == await source.usage(id)


@pytest.mark.parametrize("erased", ["parent", "child"])
async def test_copies_in_sub_agents_go_with_what_they_repeat_in_the_store_that_imported_them(
    source: SqliteStore, target: SqliteStore, here: Path, erased: str
) -> None:
    made, child, turn = await team(source)
    await imported(target, await exported(source))
    copies = "SELECT count(*), count(DISTINCT source_turn) FROM copy"
    assert rows(here / "store.db", copies) == rows(here.parent / "source.db", copies) == [(4, 2)]
    if erased == "parent":
        await erase(target, made, turn=turn)
    else:
        await erase(target, child)
    assert found_in(here) == []
    await check(target)


async def test_a_family_of_every_kind_is_erased_in_the_store_that_imported_it(
    source: SqliteStore, target: SqliteStore, here: Path
) -> None:
    id, turn = await full(source)
    await source.rewind(id, fork_of("aside"), before=(await source.turns(id)).items[-1].id)
    side = NewConversation(
        id=new_id(), family=id, lineage=Lineage("side", id, at=(await source.read(id)).head.position)
    )
    await source.create(side)
    await run(source, side.id, f"what about {SECRET}?")
    await imported(target, await exported(source))
    await check(target)
    assert await target.usage(id) == await source.usage(id)
    await erase(target, id, turn=turn)
    assert found_in(here) == []
    await check(target)


async def test_a_held_family_is_held_where_it_comes_to(source: SqliteStore, target: SqliteStore) -> None:
    root = await create(source, "talk")
    await run(source, root.id, "one")
    await source.hold(root.id, new_id(), "a lawsuit")
    await source.hold(root.id, released := new_id(), "an audit")
    await source.release(root.id, released)
    await imported(target, await exported(source))
    await check(target)
    assert await target.holds(root.id) == await source.holds(root.id)
    with pytest.raises(Held):
        await target.delete(root.id)
    await target.release(root.id)
    await run(target, root.id, "two")
    await imported(source, await exported(target))
    assert await source.holds(root.id) == ()
    await check(source)


async def test_expired_tries_come_without_their_content(target: SqliteStore, here: Path) -> None:
    clock = ManualClock()
    async with await SqliteStore.open(None, clock=clock) as source:
        root = await create(source, "talk")
        await run(source, root.id, "one")
        turn = await source.journal(await begin(source, root.id, f'"{SECRET}"'), [says(SECRET)])
        await source.fail(turn, TurnError("bad", SECRET))
        await imported(target, await exported(source))
        clock.pass_by(400 * 86400)
        await source.collect()
        data = await exported(source)
    assert SECRET.encode() not in data
    async with await SqliteStore.open(None) as empty:
        await imported(empty, data)
        await check(empty)
        assert (await empty.turn(turn.id)).outcome == "failed"
