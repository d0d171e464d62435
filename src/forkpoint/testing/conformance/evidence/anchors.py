"""Anchors: they name all that was recorded, are chained, and find out whoever rewrote it."""

import anyio
import pytest
from msgspec.structs import replace

from forkpoint.events import Usage
from forkpoint.history.anchors import Anchor
from forkpoint.ids import new_id
from forkpoint.store.protocol import Store
from forkpoint.store.values import Onto
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.conformance.base import Conformance, create, fork_of, run
from forkpoint.testing.samples import says


class AnchorConformance(Conformance):
    async def test_an_anchor_of_nothing_has_number_0_and_verifies(self, store: Store) -> None:
        anchor = await store.anchor()
        assert (anchor.tenant, anchor.number, anchor.count) == (store.tenant, 0, 0)
        assert (await store.anchor(all_tenants=True)).number == 0
        await run(store, (await create(store)).id, "one")
        assert (await store.verify(anchors=[anchor])).ok

    async def test_anchors_are_chained_and_each_verifies_for_good(self, store: Store, clock: ManualClock) -> None:
        made = await create(store)
        anchors: list[Anchor] = []
        for text in ("one", "two", "three"):
            clock.pass_by(60)
            await run(store, made.id, text)
            anchors.append(await store.anchor())
        assert [anchor.number for anchor in anchors] == [1, 2, 3]
        assert [anchor.previous for anchor in anchors[1:]] == [anchor.digest for anchor in anchors[:-1]]
        assert anchors[0].count < anchors[1].count < anchors[2].count
        assert anchors[0].time < anchors[1].time
        found = await store.verify(anchors=anchors)
        assert (found.ok, found.seals, found.remarks) == (True, 3, ()), found.flaws

    async def test_if_nothing_is_new_the_anchor_is_the_same(self, store: Store, clock: ManualClock) -> None:
        await run(store, (await create(store)).id, "one")
        anchor, whole = await store.anchor(), await store.anchor(all_tenants=True)
        clock.pass_by(60)
        assert await store.anchor() == anchor
        assert await store.anchor(all_tenants=True) == whole

    async def test_whatever_is_recorded_makes_a_new_anchor(self, store: Store) -> None:
        made = await create(store, "mine")
        await run(store, made.id, "one")
        last = await store.anchor()

        async def charge() -> None:
            await store.charge(None, new_id(), Usage(calls=1))

        async def remove() -> None:
            await store.delete(fork.id)

        fork = await store.fork(made.id, fork_of())
        for change in (
            lambda: store.rename(made.id, "yours"),
            lambda: store.describe(made.id, title="A title"),
            charge,
            remove,
        ):
            await change()
            anchor = await store.anchor()
            assert anchor.number == last.number + 1
            last = anchor
        assert (await store.verify(anchors=[last])).ok

    async def test_a_tenant_has_its_own_anchors_and_cannot_use_those_of_another(self, store: Store) -> None:
        other = store.within("other")
        await run(store, (await create(store)).id, "one")
        mine = await store.anchor()
        assert (await other.anchor()).count == 0
        await run(other, (await create(other)).id, "two")
        theirs = await other.anchor()
        assert theirs.tenant == "other"
        assert await store.anchor() == mine
        assert (await store.verify(anchors=[mine])).ok
        assert (await other.verify(anchors=[theirs])).ok
        assert not (await store.verify(anchors=[theirs])).ok

    async def test_the_anchor_of_the_whole_store_covers_all_tenants(self, store: Store) -> None:
        anchors = []
        for tenant in ("b", "a", "c", "a"):
            its = store.within(tenant)
            await run(its, (await create(its)).id, "one")
            anchors.append(await store.anchor(all_tenants=True))
        assert [anchor.tenant for anchor in anchors] == [None] * 4
        assert [anchor.number for anchor in anchors] == [1, 2, 3, 4]
        assert anchors[3].previous == anchors[2].digest
        counts = [(await store.within(tenant).anchor()).count for tenant in "abc"]
        assert anchors[3].count == sum(counts)
        found = await store.verify(anchors=anchors)
        assert (found.ok, found.seals) == (True, 8), found.flaws

    async def test_an_anchor_that_the_store_does_not_know_is_a_flaw(self, store: Store) -> None:
        await run(store, (await create(store)).id, "one")
        anchor, whole = await store.anchor(), await store.anchor(all_tenants=True)
        for forged in (
            replace(anchor, digest="0" * 64),
            replace(anchor, count=anchor.count + 1),
            replace(anchor, time=anchor.time + 1),
            replace(anchor, previous="0" * 63 + "1"),
            replace(anchor, number=7),
            replace(anchor, store="0" * 32),
            replace(anchor, number=0),
            replace(whole, digest="0" * 64),
            replace(whole, number=7),
        ):
            assert not (await store.verify(anchors=[forged])).ok, forged

    async def test_what_is_older_than_an_anchor_need_not_be_looked_at(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one")
        anchor, whole = await store.anchor(), await store.anchor(all_tenants=True)
        await run(store, made.id, "two")
        await store.anchor()
        await run(store, (await create(store)).id, "three")
        for since in (anchor, whole):
            found = await store.verify(since=since)
            assert (found.ok, found.since) == (True, 1), found.flaws
        assert not (await store.verify(since=replace(anchor, digest="0" * 64))).ok

    @pytest.mark.parametrize("way", ["a fork", "a rewind", "an open turn"])
    async def test_the_rest_of_a_newer_turn_may_be_collected_if_a_path_leads_into_its_middle(
        self, store: Store, way: str
    ) -> None:
        made = await create(store)
        await run(store, made.id, "one")
        anchor = await store.anchor()
        doomed = await store.fork(made.id, fork_of())
        note = await store.note(doomed.id, new_id(), [says("1"), says("2"), says("3")])
        middle = replace(note.first, ordinal=note.first.ordinal + 1)
        match way:
            case "a fork":
                await store.fork(doomed.id, fork_of(), at=middle)
            case "a rewind":
                _, aside = await store.rewind(doomed.id, fork_of(), at=middle)
                assert aside is not None
                doomed = aside
            case _:
                other = await store.fork(made.id, fork_of())
                await run(store, other.id, "two")
                await store.begin(other.id, new_id(), onto=Onto(doomed.id, middle))
        await store.delete(doomed.id)
        assert (await store.collect()).events == 1
        everything, since = await store.verify(), await store.verify(since=anchor)
        assert (everything.flaws, since.flaws) == ((), ())

    async def test_several_may_ask_for_an_anchor_at_once_while_others_write(self, store: Store, second: Store) -> None:
        """No seal is made twice, none is left out, and each caller's anchor covers what was there before its call."""
        anchors: list[Anchor] = []

        async def write(its: Store) -> None:
            made = await create(its)
            for number in range(8):
                await run(its, made.id, str(number))

        async def ask(its: Store) -> None:
            for _ in range(6):
                anchors.append(await its.anchor())
                await its.anchor(all_tenants=True)

        async with anyio.create_task_group() as tasks:
            for its in (store, second):
                tasks.start_soon(write, its)
                tasks.start_soon(ask, its)
        last, whole = await store.anchor(), await second.anchor(all_tenants=True)
        found = await store.verify(anchors=[*anchors, last, whole])
        assert found.ok, found.flaws
        assert len({anchor.number for anchor in anchors}) == len(set(anchors))
