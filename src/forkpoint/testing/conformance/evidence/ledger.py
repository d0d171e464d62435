"""What was spent: charged beside history, shown for a branch, and counted once in its family."""

import pytest

from forkpoint.errors import BadName, KeyReused, NotFound
from forkpoint.events import Usage
from forkpoint.ids import new_id
from forkpoint.store.protocol import Store
from forkpoint.store.values import Lineage, NewConversation, OpenTurn, TurnError
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.conformance.base import Conformance, begin, create, fork_of, run
from forkpoint.testing.samples import answers, says

A_MONTH = 31 * 24 * 3600
ASIDE = Usage(calls=1, input=100, nanodollars=7)


def used(input: int) -> Usage:
    return Usage(calls=1, input=input)


class LedgerConformance(Conformance):
    async def test_a_charge_is_counted_and_nothing_else_changes(self, store: Store, clock: ManualClock) -> None:
        made = await create(store)
        await run(store, made.id, "one", used(1))
        before, turns = await store.read(made.id), await store.turns(made.id)
        clock.pass_by(1)
        await store.charge(made.id, new_id(), ASIDE)
        assert await store.read(made.id) == before
        assert await store.turns(made.id) == turns
        assert await store.spent(made.id) == used(1) + ASIDE
        assert await store.usage(made.family) == used(1) + ASIDE
        assert (await store.verify()).ok

    async def test_the_same_charge_again_has_no_further_effect(self, store: Store) -> None:
        made = await create(store)
        once, another = new_id(), new_id()
        for id in (once, once, another, once):
            await store.charge(made.id, id, ASIDE)
        assert await store.spent(made.id) == ASIDE + ASIDE
        assert await store.usage(made.family) == ASIDE + ASIDE

    async def test_the_id_of_a_charge_names_no_other_one(self, store: Store) -> None:
        made, other = await create(store), await create(store)
        id = new_id()
        await store.charge(made.id, id, ASIDE)
        for conversation, usage in ((made.id, used(5)), (other.id, ASIDE)):
            with pytest.raises(KeyReused):
                await store.charge(conversation, id, usage)
        assert await store.spent(made.id) == ASIDE
        assert await store.spent(other.id) == Usage()

    @pytest.mark.parametrize("id", ["", "no-id", "x" * 1000])
    async def test_a_charge_needs_an_id(self, store: Store, id: str) -> None:
        made = await create(store)
        with pytest.raises(BadName, check=BadName.bad_id.made):
            await store.charge(made.id, id, ASIDE)
        assert await store.spent(made.id) == Usage()

    async def test_nothing_is_charged_to_what_does_not_exist(self, store: Store) -> None:
        gone = await create(store)
        await store.delete(gone.id)
        for missing in (new_id(), "no-id", "", gone.id):
            with pytest.raises(NotFound):
                await store.charge(missing, new_id(), ASIDE)
            with pytest.raises(NotFound):
                await store.spent(missing)
        assert await store.usage(gone.family) == Usage()

    async def test_a_charge_does_not_disturb_a_running_turn(self, store: Store) -> None:
        made = await create(store)
        turn = await store.journal(await begin(store, made.id), [says("look")], usage=used(1))
        await store.charge(made.id, new_id(), ASIDE)
        record = await store.read(made.id)
        assert (record.status, record.open_turn, record.revision) == ("running", turn.id, 0)
        await store.commit(turn, [answers("seen")], usage=used(2))
        assert (await store.read(made.id)).spent == used(1) + used(2)
        assert await store.spent(made.id) == used(1) + used(2) + ASIDE

    async def test_what_a_branch_has_spent_has_its_open_and_failed_tries(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one", used(1))
        await store.fail(await begin(store, made.id), TurnError("x", "y"), usage=used(2))
        await store.cancel(await begin(store, made.id), usage=used(4))
        running = await store.journal(await begin(store, made.id), [says("look")], usage=used(8))
        assert await store.spent(made.id) == Usage(calls=4, input=15)
        await store.wait(running, usage=used(16))
        assert await store.spent(made.id) == Usage(calls=5, input=31)
        assert (await store.read(made.id)).spent == used(1)
        assert await store.usage(made.family) == Usage(calls=5, input=31)

    async def test_a_draft_can_be_charged_and_stays_one(self, store: Store, clock: ManualClock) -> None:
        new = NewConversation(id=new_id())
        turn = await store.begin(new.id, new_id(), create=new)
        assert isinstance(turn, OpenTurn)
        await store.fail(turn, TurnError("x", "y"), usage=used(1))
        await store.charge(new.id, new_id(), ASIDE)
        assert (await store.read(new.id)).draft
        assert (await store.conversations()).items == ()
        assert await store.spent(new.id) == used(1) + ASIDE
        clock.pass_by(A_MONTH)
        assert (await store.collect()).drafts == 1
        assert await store.usage(new.id) == used(1) + ASIDE

    async def test_a_fork_has_spent_nothing_of_what_its_source_had(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one", used(1))
        await store.charge(made.id, new_id(), ASIDE)
        fork = await store.fork(made.id, fork_of())
        carried = await store.fork(made.id, fork_of(carries_metrics=True))
        assert await store.spent(fork.id) == await store.spent(carried.id) == Usage()
        assert fork.inherited == used(1)
        await store.charge(fork.id, new_id(), used(10))
        await run(store, fork.id, "two", used(2))
        assert await store.spent(fork.id) == used(10) + used(2)
        assert await store.spent(made.id) == used(1) + ASIDE
        assert await store.usage(made.family) == used(1) + ASIDE + used(10) + used(2)

    async def test_a_charge_stays_with_its_conversation_when_that_is_rewound(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one", used(1))
        await run(store, made.id, "two", used(2))
        await store.charge(made.id, new_id(), ASIDE)
        aside = fork_of()
        await store.rewind(made.id, aside, at=one.turn)
        assert await store.spent(made.id) == used(1) + ASIDE
        assert await store.spent(aside.id) == used(2)
        assert await store.usage(made.family) == used(1) + used(2) + ASIDE

    async def test_what_was_charged_is_counted_once_after_deletion_too(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one", used(1))
        fork = await store.fork(made.id, fork_of())
        await store.charge(made.id, new_id(), ASIDE)
        await store.charge(fork.id, new_id(), used(10))
        lineage = Lineage("sub_agent", made.id, None, new_id(), "c1")
        child = await store.create(NewConversation(id=new_id(), family=made.family, lineage=lineage))
        await store.charge(child.id, new_id(), used(20))
        total = used(1) + ASIDE + used(10) + used(20)
        assert await store.usage(made.family) == total
        await store.delete(made.id)
        await store.collect()
        assert await store.usage(made.family) == total
        assert await store.spent(fork.id) == used(10)
        await store.delete(fork.id)
        assert await store.usage(made.family) == total

    async def test_an_id_used_again_after_deletion_starts_with_nothing_spent(self, store: Store) -> None:
        id, charge = new_id(), new_id()
        for times in range(1, 4):
            await store.create(NewConversation(id=id))
            assert await store.spent(id) == Usage()
            await store.charge(id, charge, ASIDE)  # the same one: it was counted the first time
            await store.charge(id, new_id(), used(1))
            assert await store.usage(id) == Usage(calls=times, input=times) + ASIDE
            await store.delete(id)

    async def test_what_is_spent_beside_any_conversation_is_the_tenants(self, store: Store) -> None:
        made, once = await create(store), new_id()
        await run(store, made.id, "one", used(1))
        assert await store.spent(None) == Usage()
        for id in (once, once, new_id()):
            await store.charge(None, id, ASIDE)
        assert await store.spent(None) == ASIDE + ASIDE
        assert await store.spent(made.id) == await store.usage(made.family) == used(1)
        assert await store.usage() == used(1) + ASIDE + ASIDE
        for conversation, usage in ((made.id, ASIDE), (None, used(5))):
            with pytest.raises(KeyReused):
                await store.charge(conversation, once, usage)
        with pytest.raises(BadName, check=BadName.bad_id.made):
            await store.charge(None, "no-id", ASIDE)
        theirs = store.within("other")
        assert await theirs.spent(None) == await theirs.usage() == Usage()
        await theirs.charge(None, once, used(1))
        assert await theirs.spent(None) == await theirs.usage() == used(1)
        assert await store.spent(None) == ASIDE + ASIDE

    async def test_all_that_a_tenant_ever_spent_has_each_token_once(self, store: Store, clock: ManualClock) -> None:
        made, other = await create(store), await create(store)
        one = await run(store, made.id, "one", used(1))
        await run(store, made.id, "two", used(2))
        await store.fork(made.id, fork_of())
        carried = await store.fork(made.id, fork_of(carries_metrics=True))
        await run(store, carried.id, "three", used(4))
        await store.rewind(made.id, fork_of(), at=one.turn)
        await store.fail(await begin(store, made.id), TurnError("x", "y"), usage=used(8))
        await store.cancel(await begin(store, other.id), usage=used(16))
        await store.charge(other.id, new_id(), used(32))
        await store.charge(None, new_id(), used(64))
        running = await store.journal(await begin(store, made.id), [says("look")], usage=used(128))
        waiting = await store.journal(await begin(store, other.id), [says("look")], usage=used(256))
        await store.wait(waiting)
        new = NewConversation(id=new_id())
        drafted = await store.begin(new.id, new_id(), create=new)
        assert isinstance(drafted, OpenTurn)
        await store.fail(drafted, TurnError("x", "y"), usage=used(512))
        total = Usage(calls=10, input=1023)
        assert await store.usage() == total
        await store.commit(running, [answers("seen")])
        for gone in (made.id, other.id, carried.id):
            await store.delete(gone)
            assert await store.usage() == total
        clock.pass_by(A_MONTH)
        assert (await store.collect()).drafts == 1
        assert await store.usage() == total

    async def test_tenants_charge_apart_even_under_the_same_ids(self, store: Store) -> None:
        mine, id = await create(store), new_id()
        theirs = store.within("other")
        with pytest.raises(NotFound):
            await theirs.charge(mine.id, id, ASIDE)
        with pytest.raises(NotFound):
            await theirs.spent(mine.id)
        await store.charge(mine.id, id, ASIDE)
        twin = await theirs.create(NewConversation(id=mine.id))
        await theirs.charge(twin.id, id, used(1))
        assert await store.spent(mine.id) == await store.usage(mine.id) == ASIDE
        assert await theirs.spent(twin.id) == await theirs.usage(twin.id) == used(1)
        await theirs.delete(twin.id)
        assert await store.spent(mine.id) == ASIDE
