"""Orphans: open turns whose process is gone are found, taken over by one process, and given up if they kill each."""

from functools import partial

import pytest

from forkpoint.errors import BadName, Busy, NotResumable, TurnLost
from forkpoint.history.budgets import Amount, Budget
from forkpoint.ids import new_id
from forkpoint.paging import every
from forkpoint.store.protocol import Store
from forkpoint.store.values import MOST_TAKEOVERS, NewConversation, OpenTurn, Orphan, StoredTurn
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.conformance.base import Opener, begin, create, run, texts
from forkpoint.testing.conformance.processes import A_LONG_TIME, ProcessConformance
from forkpoint.testing.samples import answers, calls, exchange, returns, says


async def accepted(store: Store, conversation: str) -> OpenTurn:
    """A new turn that somebody was promised."""
    turn = await store.begin(conversation, new_id(), accepted=True)
    assert isinstance(turn, OpenTurn)
    return turn


async def orphans(store: Store, *, accepted: bool = False) -> list[Orphan]:
    return list((await store.orphans(limit=1000, accepted=accepted)).items)


async def taken_over(store: Store, turn: str) -> OpenTurn:
    taken = await store.take_over(turn)
    assert isinstance(taken, OpenTurn)
    return taken


class OrphanConformance(ProcessConformance):
    async def test_a_turn_is_accepted_if_it_was_begun_so_or_made_so_later(self, store: Store) -> None:
        promised, plain = await accepted(store, (await create(store)).id), await begin(store, (await create(store)).id)
        assert ((await store.turn(promised.id)).accepted, (await store.turn(plain.id)).accepted) == (True, False)
        assert (await store.accept(plain.id)).accepted
        assert (await store.accept(plain.id)).outcome == "running"
        assert (await store.turn(plain.id)).accepted
        await store.commit(promised, exchange("hello"))
        assert (await store.accept(promised.id)).outcome == "committed"

    async def test_a_turn_that_has_ended_is_not_accepted_afterwards(self, store: Store) -> None:
        turn = await begin(store, (await create(store)).id)
        await store.cancel(turn)
        assert not (await store.accept(turn.id)).accepted

    async def test_only_open_turns_of_processes_that_are_gone_are_orphans(
        self, store: Store, other: Store, clock: ManualClock
    ) -> None:
        made = [await create(store) for _ in range(6)]
        promised = await accepted(store, made[0].id)
        plain = await begin(store, made[1].id)
        waits = await store.journal(await begin(store, made[2].id), [says("may I?"), calls("c1", response=1)])
        await store.wait(waits)
        await store.cancel(await begin(store, made[3].id))
        await run(store, made[4].id, "done")
        assert await orphans(other) == await orphans(store) == [], "its process lives"
        clock.pass_by(A_LONG_TIME)
        theirs = await accepted(other, made[5].id)
        found = await orphans(other)
        assert {one.id: one.accepted for one in found} == {promised.id: True, plain.id: False}
        assert {one.conversation for one in found} == {made[0].id, made[1].id}
        assert {(one.tenant, one.takeovers, one.is_cancel_asked) for one in found} == {(store.tenant, 0, False)}
        assert [one.id for one in await orphans(other, accepted=True)] == [promised.id]
        assert theirs.id not in {one.id for one in await orphans(store)}

    async def test_an_orphan_says_that_somebody_asked_to_cancel_it(
        self, store: Store, other: Store, clock: ManualClock
    ) -> None:
        turn = await accepted(store, (await create(store)).id)
        await other.ask_cancel(turn.id)
        clock.pass_by(A_LONG_TIME)
        assert [one.is_cancel_asked for one in await orphans(other)] == [True]

    async def test_orphans_of_all_tenants_come_in_pages(self, store: Store, other: Store, clock: ManualClock) -> None:
        begun: dict[str, str] = {}
        for tenant in ("tenant-b", store.tenant, "tenant-a"):
            within = store.within(tenant)
            for _ in range(3):
                begun[(await accepted(within, (await create(within)).id)).id] = tenant
        clock.pass_by(A_LONG_TIME)
        found = [one async for one in every(partial(other.orphans, every_tenant=True), limit=2)]
        assert {one.id: one.tenant for one in found} == begun
        assert len(found) == len(begun)
        assert {one.tenant for one in await orphans(other)} == {store.tenant}
        assert {one.tenant for one in await orphans(other.within("tenant-a"))} == {"tenant-a"}
        with pytest.raises(BadName):
            await other.orphans(cursor="nonsense")

    async def test_one_process_takes_an_orphan_over_and_its_old_one_writes_nothing_more(
        self, store: Store, other: Store, clock: ManualClock
    ) -> None:
        made = await create(store)
        turn = await store.journal(await accepted(store, made.id), [says("look"), calls("c1", response=1)])
        with pytest.raises(Busy):
            await other.take_over(turn.id)
        clock.pass_by(A_LONG_TIME)
        taken = await taken_over(other, turn.id)
        assert (taken.staged, taken.input, taken.by) == (turn.staged, turn.input, turn.by)
        with pytest.raises(Busy):
            await store.take_over(turn.id)
        with pytest.raises(TurnLost):
            await store.journal(turn, [returns("c1")])
        found = await store.turn(turn.id)
        assert (found.outcome, found.accepted, found.takeovers) == ("running", True, 1)
        assert await orphans(store) == await orphans(other) == []
        await other.commit(taken, [returns("c1"), answers("in time", response=2)])
        assert texts(await store.events(made.id))[-1] == "in time"
        with pytest.raises(NotResumable, match="no orphan"):
            await store.take_over(turn.id)
        assert (await store.verify()).ok

    async def test_only_what_no_process_runs_is_taken_over(
        self, store: Store, other: Store, clock: ManualClock
    ) -> None:
        waits = await store.journal(
            await accepted(store, (await create(store)).id), [says("may I?"), calls("c1", response=1)]
        )
        await store.wait(waits)
        failed = await accepted(store, (await create(store)).id)
        await store.cancel(failed)
        clock.pass_by(A_LONG_TIME)
        for turn in (waits, failed):
            with pytest.raises(NotResumable, match="no orphan"):
                await other.take_over(turn.id)
        assert (await other.turn(waits.id)).outcome == "awaiting_approval"

    async def test_a_turn_that_kills_each_process_is_given_up_and_says_why(
        self, store: Store, other: Store, clock: ManualClock
    ) -> None:
        made = await create(store)
        turn = await store.journal(await accepted(store, made.id), [says("die")])
        processes = [other, store]
        for number in range(MOST_TAKEOVERS):
            clock.pass_by(A_LONG_TIME)
            turn = await taken_over(processes[number % 2], turn.id)
        clock.pass_by(A_LONG_TIME)
        last, dead = processes[MOST_TAKEOVERS % 2], processes[(MOST_TAKEOVERS + 1) % 2]
        assert [one.takeovers for one in await orphans(last)] == [MOST_TAKEOVERS]
        given_up = await last.take_over(turn.id)
        assert isinstance(given_up, StoredTurn)
        assert (given_up.outcome, given_up.takeovers) == ("interrupted", MOST_TAKEOVERS + 1)
        assert given_up.error is not None
        assert (given_up.error.code, "3 others" in given_up.error.message) == ("given_up", True)
        assert await last.turn(turn.id) == await dead.turn(turn.id) == given_up
        assert await orphans(last) == await orphans(dead) == []
        with pytest.raises(NotResumable, match="no orphan"):
            await dead.take_over(turn.id)
        with pytest.raises(TurnLost):
            await dead.commit(turn, [answers("late")])
        assert (await last.read(made.id)).status == "interrupted"
        assert (await last.verify()).flaws == ()

        # Somebody who asks for it goes on with it, and it is as any other then.
        resumed = await last.resume(turn.id)
        found = await last.turn(turn.id)
        assert (found.outcome, found.error) == ("running", None)
        await last.commit(resumed, [answers("mended")])
        assert (await last.turn(turn.id)).error is None
        assert (await last.verify()).flaws == ()

    async def test_a_turn_that_was_given_up_can_be_discarded(
        self, store: Store, other: Store, clock: ManualClock
    ) -> None:
        made = await create(store)
        turn = await accepted(store, made.id)
        for number in range(MOST_TAKEOVERS + 1):
            clock.pass_by(A_LONG_TIME)
            await (other, store)[number % 2].take_over(turn.id)
        assert (await store.discard(turn.id)).outcome == "cancelled"
        assert (await store.turn(turn.id)).error is None
        await run(other, made.id, "next")
        assert (await other.verify()).ok

    async def test_taking_over_what_a_process_left_when_it_closed_the_store_does_not_count(
        self, store: Store, opener: Opener, clock: ManualClock
    ) -> None:
        if not store.capabilities.shared:
            pytest.skip("nobody else can see this store")
        made = await create(store)
        leaving = await opener(clock)
        turn = await accepted(leaving, made.id)
        for _ in range(MOST_TAKEOVERS + 2):
            await leaving.close()
            assert [one.takeovers for one in await orphans(store)] == [0]
            leaving = await opener(clock)
            turn = await taken_over(leaving, turn.id)
        await leaving.commit(turn, exchange("handed from one to the next"))
        await leaving.close()
        assert (await store.turn(turn.id)).takeovers == 0

    async def test_whoever_resumes_a_turn_does_not_count_as_a_take_over(
        self, store: Store, other: Store, clock: ManualClock
    ) -> None:
        turn = await accepted(store, (await create(store)).id)
        for number in range(MOST_TAKEOVERS + 2):
            clock.pass_by(A_LONG_TIME)
            await (other, store)[number % 2].resume(turn.id)
        found = await store.turn(turn.id)
        assert (found.takeovers, found.accepted) == (0, True)

    async def test_taking_over_gives_back_what_the_dead_process_had_reserved(
        self, store: Store, other: Store, clock: ManualClock
    ) -> None:
        made = await store.create(NewConversation(id=new_id(), budget=Budget(tokens=1000, turns=5)))
        turn = await accepted(store, made.id)
        await store.reserve(turn, Amount(tokens=900), Amount(tokens=900))
        [standing] = await other.budgets(made.id)
        assert standing.reserved.tokens == 900
        clock.pass_by(A_LONG_TIME)
        taken = await taken_over(other, turn.id)
        [standing] = await other.budgets(made.id)
        assert (standing.reserved.tokens, standing.reserved.turns) == (0, 1), "the turn itself still counts"
        await other.reserve(taken, Amount(tokens=900), Amount(tokens=900))
        await other.commit(taken, exchange("hello"))
        [standing] = await store.budgets(made.id)
        assert (standing.reserved.tokens, standing.reserved.turns) == (0, 0)

    async def test_giving_up_gives_back_what_the_dead_process_had_reserved(
        self, store: Store, other: Store, clock: ManualClock
    ) -> None:
        made = await store.create(NewConversation(id=new_id(), budget=Budget(tokens=1000)))
        turn: OpenTurn | StoredTurn = await accepted(store, made.id)
        for number in range(MOST_TAKEOVERS + 1):
            if isinstance(turn, OpenTurn):
                await (store, other)[number % 2].reserve(turn, Amount(tokens=900), Amount(tokens=900))
            clock.pass_by(A_LONG_TIME)
            turn = await (other, store)[number % 2].take_over(turn.id)
        [standing] = await other.budgets(made.id)
        assert standing.reserved.tokens == 0
