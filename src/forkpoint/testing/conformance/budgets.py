"""Budgets: what may be spent, what was, and what calls under way may still cost."""

import pytest

from forkpoint.errors import BudgetExceeded, NotFound, TurnLost
from forkpoint.events import Usage
from forkpoint.history.budgets import Amount, Budget, BudgetStanding, Figures
from forkpoint.ids import new_id
from forkpoint.store.protocol import Store
from forkpoint.store.values import Lineage, NewConversation, OpenTurn, TurnError
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.conformance.base import Conformance, Opener, begin, create, fork_of, run
from forkpoint.testing.samples import answers, calls, exchange, returns, says

TEN = Usage(calls=1, input=8, output=2, nanodollars=10)
CALL = Amount(100, 100)


async def budget_of(store: Store, conversation: str, scope: str = "family") -> BudgetStanding:
    return next(one for one in await store.budgets(conversation) if one.scope == scope)


async def spent_of(store: Store, conversation: str, scope: str = "family") -> tuple[int | None, int | None]:
    """The tokens and turns that are spent."""
    found = await budget_of(store, conversation, scope)
    return found.spent.tokens, found.spent.turns


def in_seconds(figures: Figures) -> float:
    """Seconds to the millisecond: a test's clock moves a little with each reading."""
    return abs(round(figures.seconds or 0, 3))


class BudgetConformance(Conformance):
    async def test_a_budget_counts_all_that_was_ever_spent_there(self, store: Store) -> None:
        made = await create(store)
        assert await store.budgets(made.id) == ()
        await run(store, made.id, "one", TEN)
        failed = await begin(store, made.id)
        await store.fail(failed, TurnError("x", "y"), usage=TEN)
        await store.charge(made.id, new_id(), TEN)
        fork = await store.fork(made.id, fork_of())
        await run(store, fork.id, "two", TEN)
        gone = await store.fork(made.id, fork_of())
        await run(store, gone.id, "three", TEN)
        await store.delete(gone.id)
        (family,) = await store.set_budget(made.id, Budget(tokens=100, turns=9), scope="family")
        assert (family.spent.tokens, family.left.tokens, family.spent.turns) == (50, 50, 3)
        own, _ = await store.set_budget(made.id, Budget(tokens=60))
        assert (own.conversation, own.spent.tokens, own.left.tokens, own.spent.turns) == (made.id, 30, 30, 2)
        assert (await store.verify()).flaws == ()

    async def test_what_is_spent_afterwards_is_counted_wherever_it_is_recorded(self, store: Store) -> None:
        made = await create(store)
        await store.set_budget(made.id, Budget(tokens=1000), scope="family")
        await run(store, made.id, "one", TEN)
        turn = await begin(store, made.id)
        turn = await store.journal(turn, [says("two"), calls("c")], usage=TEN)
        assert await spent_of(store, made.id) == (20, 2), "a turn is one of the turns once it has asked a model"
        turn = await store.journal(turn, [returns("c")], usage=TEN)
        await store.commit(turn, [answers("done", response=2)], usage=TEN)
        for end in ("fail", "cancel", "wait"):
            turn = await begin(store, made.id)
            if end == "fail":
                await store.fail(turn, TurnError("x", "y"), usage=TEN)
            elif end == "cancel":
                await store.cancel(turn, usage=TEN)
            else:
                turn = await store.journal(turn, [says("three"), calls("d")])
                parked = await store.wait(turn, usage=TEN)
        await store.discard(parked.id)
        await store.charge(made.id, new_id(), TEN)
        await store.note(made.id, new_id(), exchange("note"), usage=TEN)
        assert await spent_of(store, made.id) == (90, 5)
        assert await store.usage(made.family) == Usage(calls=9, input=72, output=18, nanodollars=90)
        assert (await store.verify()).flaws == ()

    async def test_a_turn_that_asks_nobody_is_none_of_the_turns_and_a_resumed_one_counts_once(
        self, store: Store
    ) -> None:
        made = await create(store)
        await store.set_budget(made.id, Budget(turns=1))
        turn = await begin(store, made.id)
        assert (await budget_of(store, made.id, "conversation")).reserved.turns == 1
        await store.cancel(turn)
        turn = await begin(store, made.id)
        await store.fail(turn, TurnError("x", "y"), usage=TEN)
        resumed = await store.resume(turn.id)
        await store.commit(resumed, exchange("one"), usage=TEN)
        assert await spent_of(store, made.id, "conversation") == (20, 1)
        with pytest.raises(BudgetExceeded) as refused:
            await begin(store, made.id)
        assert (refused.value.what, refused.value.limit, refused.value.spent) == ("turns", "1", "1")
        assert (await store.read(made.id)).open_turn is None

    async def test_nothing_begins_where_nothing_is_left(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one", TEN)
        await store.set_budget(made.id, Budget(tokens=10))
        with pytest.raises(BudgetExceeded):
            await begin(store, made.id)
        draft = NewConversation(id=new_id(), budget=Budget(dollars=0))
        with pytest.raises(BudgetExceeded):
            await store.begin(draft.id, new_id(), create=draft)
        with pytest.raises(NotFound):
            await store.read(draft.id)
        await store.set_budget(made.id, None)
        await run(store, made.id, "two", TEN)

    async def test_a_call_reserves_its_worst_case_in_every_budget_or_in_none(self, store: Store) -> None:
        made = await create(store)
        await store.set_budget(made.id, Budget(tokens=250))
        await store.set_budget(made.id, Budget(tokens=150), scope="family")
        turn = await begin(store, made.id)
        assert await store.reserve(turn, CALL, CALL) == CALL
        fork = await store.fork(made.id, fork_of())
        other = await begin(store, fork.id)
        with pytest.raises(BudgetExceeded) as refused:
            await store.reserve(other, CALL, CALL)
        assert (refused.value.whose, refused.value.needed) == (f"family {made.family}", "100")
        assert (refused.value.spent, refused.value.reserved) == ("0", "100")
        assert (await budget_of(store, fork.id)).left.tokens == 50
        less = await store.reserve(other, CALL, Amount(20, 20))
        assert less == Amount(50, 50), "as much as fits, if that is enough"
        await store.cancel(other)
        await store.reserve(turn, CALL, CALL)  # in place of the one before
        await store.journal(turn, [says("one"), calls("c")], usage=TEN)
        family = await budget_of(store, made.id)
        assert (family.spent.tokens, family.reserved.tokens, family.left.tokens) == (10, 0, 140)
        assert (await budget_of(store, made.id, "conversation")).left.tokens == 240

    async def test_what_is_reserved_stays_while_a_model_is_asked(self, store: Store) -> None:
        made = await create(store)
        await store.set_budget(made.id, Budget(tokens=250))
        turn = await begin(store, made.id)
        await store.reserve(turn, CALL, CALL)
        turn = await store.journal(turn, [says("one")], calling=True)
        assert (await budget_of(store, made.id, "conversation")).reserved.tokens == 100
        await store.journal(turn, [answers("two", response=1)])
        assert (await budget_of(store, made.id, "conversation")).reserved.tokens == 0

    async def test_a_call_outside_of_turns_is_given_back_by_its_charge_or_note(self, store: Store) -> None:
        made = await create(store)
        await store.set_budget(made.id, Budget(tokens=150))
        charge, note, nothing = new_id(), new_id(), new_id()
        await store.reserve_beside(made.id, charge, CALL, CALL)
        with pytest.raises(BudgetExceeded):
            await store.reserve_beside(made.id, note, CALL, CALL)
        await store.charge(made.id, charge, TEN)
        await store.reserve_beside(made.id, note, CALL, CALL)
        await store.note(made.id, note, exchange("note"), usage=TEN)
        await store.reserve_beside(made.id, nothing, CALL, CALL)
        await store.give_back(nothing)
        found = await budget_of(store, made.id, "conversation")
        assert (found.spent.tokens, found.reserved.tokens) == (20, 0)

    async def test_a_model_without_a_price_is_refused_where_dollars_are_limited(self, store: Store) -> None:
        made = await create(store)
        await store.set_budget(made.id, Budget(tokens=1000))
        turn, unknown = await begin(store, made.id), Amount(None, 10)
        await store.reserve(turn, unknown, unknown)
        await store.set_budget(made.id, Budget(dollars=1), scope="family")
        with pytest.raises(BudgetExceeded) as refused:
            await store.reserve(turn, unknown, unknown, model="openai/x")
        assert refused.value.code == "budget_unpriced"
        assert "openai/x" in str(refused.value)

    async def test_a_provider_that_bills_more_than_the_worst_case_is_counted_as_it_bills(self, store: Store) -> None:
        made = await create(store)
        await store.set_budget(made.id, Budget(tokens=100))
        turn = await begin(store, made.id)
        await store.reserve(turn, CALL, CALL)
        await store.commit(turn, exchange("one"), usage=Usage(calls=1, input=180))
        found = await budget_of(store, made.id, "conversation")
        assert (found.spent.tokens, found.left.tokens, found.reserved.tokens) == (180, -80, 0)
        assert (await store.verify()).flaws == ()

    async def test_a_budget_that_is_set_while_a_turn_runs_counts_what_the_turn_spends(
        self, store: Store, clock: ManualClock
    ) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        other = await begin(store, (await store.fork(made.id, fork_of())).id)
        turn = await store.journal(turn, [says("one"), calls("c")], usage=TEN)
        clock.pass_by(3)
        await store.set_budget(made.id, Budget(tokens=1000, seconds=100), scope="family")
        assert not turn.budgeted
        turn = await store.journal(turn, [returns("c")], usage=TEN)
        assert turn.budgeted
        clock.pass_by(1)
        await store.commit(turn, [answers("done", response=2)], usage=TEN)
        await store.commit(other, exchange("two"), usage=TEN)
        found = await budget_of(store, made.id)
        assert (found.spent.tokens, found.spent.turns, in_seconds(found.spent)) == (40, 2, 8)
        assert (await store.verify()).flaws == ()

    async def test_time_is_reserved_in_slices_and_only_what_was_used_is_spent(
        self, store: Store, clock: ManualClock
    ) -> None:
        made = await create(store)
        await store.set_budget(made.id, Budget(seconds=70))
        turn = await begin(store, made.id)
        assert turn.slice == 30_000_000
        clock.pass_by(30)
        assert await store.renew(turn) == (30_000_000, None)
        clock.pass_by(30)
        slice, why = await store.renew(turn)
        assert why is None
        assert slice is not None
        assert 9_900_000 < slice <= 10_000_000, "the rest"
        clock.pass_by(10)
        slice, why = await store.renew(turn)
        assert slice == 0
        assert why is not None
        assert (why.what, why.limit) == ("seconds", "70")
        await store.fail(turn, TurnError("x", "y"))
        found = await budget_of(store, made.id, "conversation")
        assert (in_seconds(found.spent), found.reserved.seconds, in_seconds(found.left)) == (70, 0, 0)
        with pytest.raises(BudgetExceeded):
            await store.resume(turn.id)
        await store.set_budget(made.id, Budget(seconds=100))
        resumed = await store.resume(turn.id)
        clock.pass_by(4)
        await store.commit(resumed, exchange("one"))
        assert in_seconds((await budget_of(store, made.id, "conversation")).spent) == 74
        assert (await store.verify()).flaws == ()

    async def test_time_in_which_a_turn_waits_for_somebody_is_not_counted(
        self, store: Store, clock: ManualClock
    ) -> None:
        made = await create(store)
        await store.set_budget(made.id, Budget(seconds=70))
        turn = await begin(store, made.id)
        clock.pass_by(2)
        turn = await store.journal(turn, [says("one"), calls("c")])
        await store.wait(turn)
        clock.pass_by(3600)
        turn = await store.resume(turn.id)
        clock.pass_by(2)
        await store.cancel(turn)
        assert in_seconds((await budget_of(store, made.id, "conversation")).spent) == 4

    async def test_a_conversations_budget_covers_what_works_beneath_it(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one", TEN)
        await store.set_budget(made.id, Budget(tokens=1000))
        child = await store.create(
            NewConversation(id=new_id(), family=made.family, lineage=Lineage("sub_agent", made.id))
        )
        beneath = await store.create(
            NewConversation(id=new_id(), family=made.family, lineage=Lineage("sub_agent", child.id))
        )
        side = await store.create(NewConversation(id=new_id(), family=made.family, lineage=Lineage("side", made.id)))
        fork = await store.fork(made.id, fork_of())
        for one in (child, beneath, side, fork):
            await run(store, one.id, "more", TEN)
        assert await spent_of(store, made.id, "conversation") == (40, 4)
        assert await store.budgets(fork.id) == ()
        own, above = await store.set_budget(beneath.id, Budget(tokens=50))
        assert (own.spent.tokens, above.conversation) == (10, made.id)
        await store.delete(child.id)
        assert await spent_of(store, made.id, "conversation") == (40, 4), "what it spent stays counted"
        assert (await store.verify()).flaws == ()

    async def test_a_rewind_frees_nothing_of_a_budget(self, store: Store) -> None:
        made = await create(store)
        await store.set_budget(made.id, Budget(tokens=1000))
        first = await run(store, made.id, "one", TEN)
        await run(store, made.id, "two", TEN)
        _, aside = await store.rewind(made.id, fork_of(), at=first.turn)
        assert aside is not None
        assert await spent_of(store, made.id, "conversation") == (20, 2)
        await run(store, aside.id, "three", TEN)
        assert await spent_of(store, made.id, "conversation") == (30, 3), "what was set aside is still its own"
        again = await store.set_budget(made.id, None)
        assert again == ()
        await store.set_budget(made.id, Budget(tokens=1000))
        assert await spent_of(store, made.id, "conversation") == (30, 3), "counted anew, it is the same"
        assert (await store.verify()).flaws == ()

    async def test_a_fork_or_sub_agent_with_a_budget_of_its_own_does_not_draw_from_the_familys(
        self, store: Store
    ) -> None:
        made = await create(store)
        await store.set_budget(made.id, Budget(tokens=1000), scope="family")
        await store.set_budget(made.id, Budget(tokens=1000))
        fork = await store.fork(made.id, fork_of(budget=Budget(tokens=50)))
        lineage = Lineage("sub_agent", made.id)
        new = NewConversation(id=new_id(), family=made.family, lineage=lineage, budget=Budget(tokens=60))
        child = await store.create(new)
        beneath = await store.create(
            NewConversation(id=new_id(), family=made.family, lineage=Lineage("sub_agent", child.id))
        )
        for one in (made, fork, child, beneath):
            await run(store, one.id, "more", TEN)
        (alone,) = await store.budgets(fork.id)
        assert (alone.apart, alone.spent.tokens) == (True, 10)
        assert await spent_of(store, beneath.id, "conversation") == (20, 2)
        assert await spent_of(store, made.id) == await spent_of(store, made.id, "conversation") == (10, 1)
        further = await store.fork(fork.id, fork_of())
        (shared,) = await store.budgets(further.id)
        assert shared.scope == "family", "a fork of it draws from the family's again"
        assert (await store.verify()).flaws == ()
        await store.delete(fork.id)
        assert await spent_of(store, made.id) == (10, 1), "what it spent is still not the family's"
        assert (await store.verify()).flaws == ()
        await store.set_budget(child.id, None)
        assert await spent_of(store, made.id) == (30, 3), "without it, what it spent is the family's"
        assert (await store.verify()).flaws == ()

    async def test_a_new_conversation_has_its_budgets_before_anything_is_spent(self, store: Store) -> None:
        new = NewConversation(id=new_id(), budget=Budget(tokens=50), family_budget=Budget(tokens=90))
        turn = await store.begin(new.id, new_id(), create=new)
        assert isinstance(turn, OpenTurn)
        assert turn.budgeted
        assert [one.limits.tokens for one in await store.budgets(new.id)] == [50, 90]

    async def test_a_budget_is_recorded_with_who_set_it(self, store: Store) -> None:
        made = await create(store)
        before = (await store.anchor()).count
        await store.set_budget(made.id, Budget(tokens=50))
        await store.set_budget(made.id, Budget(tokens=70))
        await store.set_budget(made.id, None)
        await store.set_budget(made.id, None)  # it has no budget, so nothing is recorded
        assert (await store.anchor()).count == before + 3
        assert (await store.verify()).flaws == ()

    async def test_another_tenant_knows_nothing_of_a_budget(self, store: Store) -> None:
        made = await create(store)
        await store.set_budget(made.id, Budget(tokens=50))
        other = store.within("other")
        for call in (other.budgets(made.id), other.set_budget(made.id, None)):
            with pytest.raises(NotFound):
                await call
        with pytest.raises(NotFound):
            await other.reserve_beside(made.id, new_id(), CALL, CALL)

    async def test_whoever_has_lost_a_turn_reserves_nothing(
        self, store: Store, second: Store, clock: ManualClock
    ) -> None:
        if second is store:
            pytest.skip("nobody else can see this store")
        made = await create(store)
        await store.set_budget(made.id, Budget(tokens=250, turns=1))
        turn = await begin(store, made.id)
        await store.reserve(turn, CALL, CALL)
        clock.pass_by(3600)
        taken = await second.resume(turn.id)
        found = await budget_of(second, made.id, "conversation")
        assert (found.reserved.tokens, found.reserved.turns) == (0, 1), "what the silent process had reserved is free"
        for late in (store.reserve(turn, CALL, CALL), store.renew(turn)):
            with pytest.raises(TurnLost):
                await late
        await second.commit(taken, exchange("one"), usage=TEN)
        assert await spent_of(store, made.id, "conversation") == (10, 1)

    async def test_what_a_dead_process_had_reserved_is_free(
        self, store: Store, opener: Opener, clock: ManualClock
    ) -> None:
        if not store.capabilities.shared:
            pytest.skip("nobody else can see this store")
        made = await create(store)
        await store.set_budget(made.id, Budget(tokens=150), scope="family")
        fork = await store.fork(made.id, fork_of())
        dead = await opener(clock)
        turn = await begin(dead, made.id)
        await dead.reserve(turn, CALL, CALL)
        await dead.reserve_beside(made.id, new_id(), Amount(50, 50), Amount(50, 50))
        alive = await begin(store, fork.id)
        with pytest.raises(BudgetExceeded):
            await store.reserve(alive, CALL, CALL)
        await dead.close()
        assert (await budget_of(store, made.id)).reserved.tokens == 0
        assert await store.reserve(alive, CALL, CALL) == CALL
        await store.commit(alive, exchange("one"), usage=TEN)
        assert (await store.verify()).flaws == ()
