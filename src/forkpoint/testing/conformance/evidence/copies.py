"""What every store promises of exports and imports."""

from collections.abc import AsyncIterator
from typing import cast

import pytest

from forkpoint.backend.results import ImportReport
from forkpoint.engine.exports.archive import import_archive, write_archive
from forkpoint.engine.exports.selection import Selection
from forkpoint.errors import AlreadyExists, ImportRefused, NotFound, TurnOpen
from forkpoint.events import Usage
from forkpoint.history.exports.check import check
from forkpoint.ids import new_id
from forkpoint.store.protocol import Store
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import Lineage, NewConversation, OpenTurn, StoredConversation, TurnError
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.conformance.base import Conformance, begin, create, fork_of, run, texts
from forkpoint.testing.samples import calls, remembers, returns, says

TRIED = Usage(calls=1, input=3)


async def exported(store: Store, selection: Selection = Selection("all")) -> bytes:
    data = b"".join([chunk async for chunk in write_archive(store, selection)])
    flaws = check(data.splitlines(keepends=True)).flaws
    assert not flaws, flaws
    return data


async def imported(store: Store, data: bytes, *, rename: bool = False) -> ImportReport:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 1000):
            yield data[start : start + 1000]

    return await import_archive(store, pieces(), rename=rename)


async def family(store: Store) -> StoredConversation:
    """A root with a failed try, state, a deleted fork, a fork of that, a sub-agent, a charge, and something aside."""
    root = await create(store, "root")
    await run(store, root.id, "one")
    turn = await store.journal(await begin(store, root.id), [says("try"), calls("c", response=1)], usage=TRIED)
    await store.fail(turn, TurnError("broken", "the disk was full"))
    await run(store, root.id, [says("two"), remembers("k", '"v"')])
    fork = await store.fork(root.id, fork_of("fork"))
    await run(store, fork.id, "three")
    leaf = await store.fork(fork.id, fork_of("leaf"))
    await run(store, leaf.id, "four")
    await store.delete(fork.id)
    child = NewConversation(id=new_id(), name="child", family=root.family, lineage=Lineage("sub_agent", root.id))
    await store.create(child)
    await run(store, child.id, "a task")
    await store.charge(root.id, new_id(), Usage(calls=1, output=5))
    last = (await store.turns(root.id)).items[-1]
    await store.rewind(root.id, fork_of("aside"), before=last.id)
    await store.describe(root.id, title="A title", tags=(("team", "build"),))
    return await store.read(root.id)


class CopyConformance(Conformance):
    """Exports and imports. ``another`` is a second store, empty: of SQLite, whatever the first one is."""

    @pytest.fixture
    async def another(self, clock: ManualClock) -> AsyncIterator[Store]:
        async with await SqliteStore.open(None, clock=clock) as another:
            yield another

    async def test_a_family_is_the_same_in_another_store(self, store: Store, another: Store) -> None:
        root = await family(store)
        await imported(another, await exported(store, Selection("family", root.id)))
        assert (await another.verify()).ok
        assert await another.usage(root.family) == await store.usage(root.family)
        for name in ("root", "leaf", "aside", "child"):
            ours, theirs = await store.find(name), await another.find(name)
            assert texts(await another.events(ours.id)) == texts(await store.events(ours.id))
            assert theirs.head.digest == ours.head.digest
            assert (theirs.id, theirs.title, theirs.tags, theirs.settings) == (
                ours.id,
                ours.title,
                ours.tags,
                ours.settings,
            )
            assert await another.spent(ours.id) == await store.spent(ours.id)
            assert await another.state(ours.id) == await store.state(ours.id)

    async def test_a_failed_try_comes_with_its_steps_and_can_be_resumed(self, store: Store, another: Store) -> None:
        root = await create(store)
        await run(store, root.id, "one")
        turn = await store.journal(await begin(store, root.id), [says("x"), calls("c", response=1)], usage=TRIED)
        await store.fail(turn, TurnError("broken", "why"))
        await imported(another, await exported(store))
        found = await another.turn(turn.id)
        assert (found.outcome, found.error, found.usage) == ("failed", TurnError("broken", "why"), TRIED)
        resumed = await another.resume(turn.id)
        await another.commit(resumed, [returns("c")])
        assert len(await another.events(root.id)) == 5
        assert (await another.verify()).ok

    async def test_an_open_turn_is_interrupted_where_it_comes_to(self, store: Store, another: Store) -> None:
        root = await create(store)
        turn = await store.journal(await begin(store, root.id), [says("x")], usage=TRIED)
        await imported(another, await exported(store))
        assert (await another.read(root.id)).status == "interrupted"
        await another.commit(await another.resume(turn.id), [says("y")])
        assert (await another.verify()).ok

    async def test_the_same_file_again_changes_nothing(self, store: Store, another: Store) -> None:
        root = await family(store)
        data = await exported(store)
        assert (await imported(another, data)).changed
        before = await another.usage(root.family), await another.pulse()
        again = await imported(another, data)
        assert not again.changed
        assert again.same == 4
        assert (await another.usage(root.family), await another.pulse()) == before
        home = await imported(store, data)
        assert not home.changed

    async def test_a_conversation_goes_on_in_another_store_and_comes_back(self, store: Store, another: Store) -> None:
        root = await create(store, "talk")
        await run(store, root.id, "here")
        await imported(another, await exported(store, Selection("conversation", root.id)))
        await run(another, root.id, "there")
        fork = await another.fork(root.id, fork_of("fork"))
        await run(another, fork.id, "in a fork")
        done = await imported(store, await exported(another, Selection("family", root.id)))
        assert (done.grown, done.new) == ((root.id,), (fork.id,))
        assert texts(await store.events(fork.id))[::2] == ["here", "there", "in a fork"]
        assert (await store.verify()).ok
        await run(store, root.id, "here again")
        done = await imported(another, await exported(store, Selection("family", root.id)))
        assert root.id in done.grown
        assert (await another.verify()).ok
        assert await another.usage(root.family) == await store.usage(root.family)

    async def test_a_single_conversation_comes_without_its_source(self, store: Store, another: Store) -> None:
        root = await create(store, "root")
        await run(store, root.id, "shared")
        fork = await store.fork(root.id, fork_of("fork"))
        await run(store, fork.id, "own")
        await imported(another, await exported(store, Selection("conversation", fork.id)))
        with pytest.raises(NotFound):
            await another.read(root.id)
        assert texts(await another.events(fork.id))[::2] == ["shared", "own"]
        assert await another.usage(root.family) == await store.spent(fork.id)
        assert (await another.verify()).ok
        done = await imported(another, await exported(store, Selection("conversation", root.id)))
        assert (done.new, done.events) == ((root.id,), 0), "the events that both share are there once"
        assert await another.usage(root.family) == await store.usage(root.family)
        assert (await another.verify()).ok
        await exported(another)

    async def test_a_conversation_that_went_two_ways_is_refused(self, store: Store, another: Store) -> None:
        root = await create(store, "talk")
        await run(store, root.id, "here")
        await imported(another, await exported(store))
        await run(store, root.id, "one way")
        await run(another, root.id, "another way")
        before = await another.read(root.id)
        with pytest.raises(ImportRefused, match="another way"):
            await imported(another, await exported(store))
        assert await another.read(root.id) == before
        assert (await another.verify()).ok

    async def test_a_conversation_that_was_deleted_here_does_not_come_back(self, store: Store, another: Store) -> None:
        root = await create(store, "talk")
        await run(store, root.id, "here")
        data = await exported(store)
        await imported(another, data)
        await another.delete(root.id)
        with pytest.raises(ImportRefused, match="deleted here"):
            await imported(another, data)

    async def test_a_name_that_is_taken_is_refused_or_changed(self, store: Store, another: Store) -> None:
        root = await create(store, "talk")
        await run(store, root.id, "here")
        await create(another, "talk")
        data = await exported(store)
        with pytest.raises(AlreadyExists):
            await imported(another, data)
        with pytest.raises(NotFound):
            await another.read(root.id)
        done = await imported(another, data, rename=True)
        assert done.renamed == {root.id: "talk-2"}
        assert (await another.read(root.id)).name == "talk-2"
        assert not (await imported(another, data, rename=True)).changed
        await exported(another)

    async def test_a_conversation_with_an_open_turn_does_not_go_on(self, store: Store, another: Store) -> None:
        root = await create(store, "talk")
        await imported(another, await exported(store))
        await run(store, root.id, "here")
        await another.wait(cast("OpenTurn", await another.begin(root.id, new_id())), [says("x")])
        with pytest.raises((TurnOpen, ImportRefused)):
            await imported(another, await exported(store))

    async def test_a_file_comes_to_the_tenant_who_imports_it(self, store: Store, another: Store) -> None:
        root = await family(store)
        data = await exported(store)
        theirs = another.within("somebody")
        await imported(theirs, data)
        assert (await theirs.read(root.id)).tenant == "somebody"
        assert (await theirs.verify()).ok
        with pytest.raises(NotFound):
            await another.read(root.id)
        with pytest.raises(ImportRefused, match="another tenant"):
            await imported(another, data)
        await exported(theirs)

    async def test_conversations_are_selected_by_their_tags(self, store: Store, another: Store) -> None:
        root = await family(store)
        await run(store, (await create(store, "else")).id, "something else")
        done = await imported(another, await exported(store, Selection("tags", None, (("team", "build"),))))
        children = [found.id for found in (await store.conversations(parent=root.id)).items]
        assert set(done.new) == {root.id, *children}, "its sub-agents come with it"

    async def test_what_was_exported_is_on_record(self, store: Store) -> None:
        root = await create(store, "talk")
        one = await exported(store, Selection("conversation", root.id))
        assert one.count(b'"kind":"exported"') == 1
        assert (await exported(store, Selection("conversation", root.id))).count(b'"kind":"exported"') == 2

    async def test_a_fork_inside_a_turn_comes_with_the_part_that_it_has(self, store: Store, another: Store) -> None:
        root = await create(store, "talk")
        await run(store, root.id, [says("one"), remembers("k", "1"), says("two"), remembers("k", "2")])
        path = await store.path(root.id)
        fork = await store.fork(root.id, fork_of("fork"), at=path.at(2))
        await run(store, fork.id, "on")
        await imported(another, await exported(store, Selection("conversation", fork.id)))
        assert await another.state(fork.id) == await store.state(fork.id)
        assert texts(await another.events(fork.id)) == texts(await store.events(fork.id))
        assert (await another.verify()).ok

    async def test_nothing_that_is_being_imported_is_collected(self, store: Store, another: Store) -> None:
        root = await family(store)
        data = await exported(store)

        async def pieces() -> AsyncIterator[bytes]:
            yield data
            await another.collect()

        await import_archive(another, pieces(), rename=False)
        await another.collect()
        assert (await another.verify()).ok
        assert texts(await another.events(root.id)) == texts(await store.events(root.id))

    async def test_a_hold_is_not_released_by_an_import(self, store: Store, another: Store) -> None:
        root = await create(store, "talk")
        hold = await store.hold(root.id, new_id(), "case 17")
        await imported(another, await exported(store, Selection("conversation", root.id)))
        await another.release(root.id)
        await run(another, root.id, "on")
        data = await exported(another, Selection("family", root.id))
        with pytest.raises(ImportRefused, match="release it here first"):
            await imported(store, data)
        assert await store.holds(root.id) == (hold,)
        assert (await store.verify()).ok
