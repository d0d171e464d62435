"""What was erased, expired, deleted or held in one store is so in the store that imports it; and nothing comes back."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.store.test_erasure import SECRET, begin, erase, found_in, full
from tests.store.test_import import rows

from forkpoint.engine.exports.selection import Selection
from forkpoint.errors import Held, ImportRefused
from forkpoint.events import NewEvent, SubAgentFinished, SubAgentSpawned, Text, ToolCall, UserMessage
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import Lineage, NewConversation, NewFork, TurnError
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.conformance.base import create, fork_of, run, texts
from forkpoint.testing.conformance.evidence.copies import exported, imported
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


async def test_an_older_file_does_not_bring_back_what_was_erased_here(
    source: SqliteStore, target: SqliteStore, here: Path
) -> None:
    id, turn = await full(source)
    data = await exported(source)
    await imported(target, data)
    await erase(target, id, turn=turn)
    assert not (await imported(target, data)).changed
    await erase(target, id)
    assert not (await imported(target, data)).changed
    assert found_in(here) == []
    await check(target)


async def test_an_older_file_brings_nothing_new_into_a_family_of_which_something_was_erased(
    source: SqliteStore, target: SqliteStore, here: Path
) -> None:
    """A fork that only the file has may show the text in places that the erasure did not know."""
    id, turn = await full(source)
    whole = await exported(source)
    await imported(target, await exported(source, Selection("conversation", id)))
    await erase(target, id, turn=turn)
    for _ in range(2):
        with pytest.raises(ImportRefused, match="erased here"):
            await imported(target, whole)
        assert found_in(here) == []
        await check(target)
        await target.collect()


async def test_what_was_erased_in_another_store_is_erased_here_when_its_file_comes_back(
    source: SqliteStore, target: SqliteStore, here: Path
) -> None:
    id, turn = await full(target)
    await target.rename(id, SECRET)
    await imported(source, await exported(target))
    await erase(source, id, turn=turn)
    done = await imported(target, await exported(source))
    assert (done.changed, done.erased > 0) == (True, True)
    assert (await target.read(id)).name == SECRET
    await check(target)
    assert await target.state(id) == await source.state(id)
    assert await target.usage(id) == await source.usage(id)
    assert found_in(here, f'"I am {SECRET}"') == []
    await run(source, id, "on")
    data = await exported(source)
    assert id in (await imported(target, data)).grown
    assert not (await imported(target, data)).changed
    await run(target, id, "and back")
    assert id in (await imported(source, await exported(target))).grown
    await check(source)


async def test_an_erased_conversation_is_erased_here_when_its_file_comes_back(
    source: SqliteStore, target: SqliteStore, here: Path
) -> None:
    id, _ = await full(target)
    await target.rename(id, SECRET)
    await target.describe(id, title=SECRET, tags=(("who", SECRET),))
    await imported(source, await exported(target))
    await erase(source, id)
    await imported(target, await exported(source))
    assert found_in(here) == []
    await check(target)
    assert await target.state(id) == await source.state(id)


async def test_what_was_erased_in_the_source_after_an_import_has_to_be_erased_here(
    source: SqliteStore, target: SqliteStore, here: Path
) -> None:
    id, turn = await full(source)
    await imported(target, await exported(source))
    await erase(source, id, turn=turn)
    with pytest.raises(ImportRefused, match="erase the same here too"):
        await imported(target, await exported(source))
    await check(target)
    (receipt,) = (await source.erasures()).items
    assert await target.replay(receipt)
    assert found_in(here) == []
    await check(target)


@pytest.mark.parametrize("which", ["all", "one turn"])
async def test_what_only_this_store_made_of_erased_text_goes_too(
    source: SqliteStore, target: SqliteStore, here: Path, which: str
) -> None:
    id, turn = await full(target)
    await imported(source, await exported(target))
    fork = await target.fork(id, NewFork(id=new_id(), cache="{}", title=f"{SECRET} once more"))
    await target.fail(await begin(target, fork.id), TurnError("bad", f"no, {SECRET}"))
    await erase(source, id, turn=None if which == "all" else turn)
    assert (await imported(target, await exported(source))).erased
    assert found_in(here) == []
    await check(target)
    await exported(target)
    await run(target, fork.id, "on")
    await check(target)


async def test_a_file_of_a_fork_brings_the_erasures_of_its_source(
    source: SqliteStore, target: SqliteStore, here: Path
) -> None:
    id, turn = await full(target)
    fork = await target.fork(id, fork_of("fork"))
    await imported(source, await exported(target))
    await erase(source, id, turn=turn)
    await imported(target, await exported(source, Selection("conversation", fork.id)))
    assert found_in(here) == []
    await check(target)


async def test_an_erased_run_may_be_parted_by_an_import(source: SqliteStore, target: SqliteStore) -> None:
    root = await create(source, "root")
    await run(source, root.id, "one")
    fork = await source.fork(root.id, fork_of("fork"))
    await run(source, root.id, "two")
    await erase(source, root.id)
    await imported(target, await exported(source, Selection("conversation", fork.id)))
    await imported(target, await exported(source, Selection("conversation", root.id)))
    await check(target)
    async with await SqliteStore.open(None) as third:
        await imported(third, await exported(target))
        await check(third)


async def test_a_conversation_that_was_deleted_there_is_not_left_in_part(
    source: SqliteStore, target: SqliteStore
) -> None:
    root = await create(target, "root")
    await run(target, root.id, "one")
    fork = await target.fork(root.id, fork_of("fork"))
    await run(target, fork.id, "two")
    await imported(source, await exported(target))
    await source.delete(fork.id)
    with pytest.raises(ImportRefused, match="deleted"):
        await imported(target, await exported(source))
    await check(target)
