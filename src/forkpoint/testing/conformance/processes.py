"""Several processes on one store: fenced, known dead, taken over."""

from collections.abc import AsyncIterator

import pytest

from forkpoint.errors import Busy, NotResumable, TurnLost, TurnOpen
from forkpoint.events import Usage
from forkpoint.ids import new_id
from forkpoint.store.protocol import Store
from forkpoint.store.values import IdempotencyKey, Onto, OpenTurn, StoredTurn, TurnError
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.conformance.base import Conformance, Opener, begin, create, fork_of, run, texts
from forkpoint.testing.samples import answers, calls, exchange, returns, says

A_LONG_TIME = 3600


class ProcessConformance(Conformance):
    @pytest.fixture
    async def other(self, store: Store, opener: Opener, clock: ManualClock) -> AsyncIterator[Store]:
        """The same data, as another process would open it."""
        if not store.capabilities.shared:
            pytest.skip("nobody else can see this store")
        opened = await opener(clock)
        yield opened
        await opened.close()

    async def test_what_one_commits_the_other_reads(self, store: Store, other: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one")
        assert texts(await other.events(made.id)) == ["one", "You said: one"]
        await run(other, made.id, "two")
        assert len(await store.events(made.id)) == 4

    async def test_what_one_makes_with_a_key_the_other_finds_by_it_at_once(self, store: Store, other: Store) -> None:
        made, key = await create(store), IdempotencyKey("turn-1", b"body")
        assert await other.made_with(key, "turn", made.id) is None
        turn = await store.begin(made.id, new_id(), key=key)
        found = await other.made_with(key, "turn", made.id)
        assert isinstance(found, StoredTurn)
        assert (found.id, found.outcome) == (turn.id, "running")

    async def test_of_two_writers_one_wins(self, store: Store, other: Store) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        with pytest.raises(Busy):
            await begin(other, made.id)
        assert (await other.read(made.id)).status == "running"
        await store.commit(turn, exchange("mine"))
        await run(other, made.id, "theirs")

    async def test_a_silent_process_loses_its_turn_to_one_that_takes_it_over(
        self, store: Store, other: Store, clock: ManualClock
    ) -> None:
        made = await create(store)
        turn = await store.journal(await begin(store, made.id), [says("look"), calls("c1", response=1)])
        clock.pass_by(A_LONG_TIME)
        assert (await other.read(made.id)).status == "interrupted"
        assert (await other.turn(turn.id)).outcome == "interrupted"
        with pytest.raises(TurnOpen):
            await other.begin(made.id, new_id())
        taken = await other.resume(turn.id)
        for late in (
            lambda: store.journal(turn, [returns("c1")]),
            lambda: store.commit(turn, [returns("c1"), answers("late")]),
            lambda: store.fail(turn, TurnError("late", "late")),
            lambda: store.cancel(turn),
        ):
            with pytest.raises(TurnLost):
                await late()
        await other.commit(taken, [returns("c1"), answers("in time", response=2)])
        assert texts(await store.events(made.id))[-1] == "in time"
        assert (await store.verify()).ok

    async def test_a_turn_that_stood_elsewhere_is_not_taken_over_but_discarded(
        self, store: Store, other: Store, clock: ManualClock
    ) -> None:
        made = await create(store)
        one = await run(store, made.id, "one")
        await run(store, made.id, "two")
        turn = await store.begin(made.id, new_id(), onto=Onto(made.id, one.last))
        assert isinstance(turn, OpenTurn)
        clock.pass_by(A_LONG_TIME)
        with pytest.raises(NotResumable, match="send it again"):
            await other.resume(turn.id)
        assert (await other.turn(turn.id)).outcome == "interrupted"
        assert (await other.discard(turn.id)).outcome == "cancelled"
        with pytest.raises(TurnLost):
            await store.commit(turn, exchange("late"), aside=fork_of())
        await run(other, made.id, "three")
        assert len(await store.events(made.id)) == 6
        assert len((await store.conversations()).items) == 1

    async def test_a_late_commit_is_accepted_as_long_as_nobody_took_over(
        self, store: Store, other: Store, clock: ManualClock
    ) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        clock.pass_by(A_LONG_TIME)
        assert (await other.read(made.id)).status == "interrupted"
        await store.commit(turn, exchange("late but whole"))
        assert (await other.read(made.id)).status == "idle"

    async def test_a_process_that_begins_a_turn_is_alive_and_keeps_its_others(
        self, store: Store, other: Store, clock: ManualClock
    ) -> None:
        made, second = await create(store), await create(store)
        turn = await begin(store, made.id)
        clock.pass_by(A_LONG_TIME)
        await begin(store, second.id)
        with pytest.raises(Busy):
            await other.resume(turn.id)

    async def test_an_interrupted_turn_can_be_superseded(self, store: Store, other: Store, clock: ManualClock) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        clock.pass_by(A_LONG_TIME)
        fresh = await other.begin(made.id, new_id(), supersede=True)
        with pytest.raises(TurnLost):
            await store.commit(turn, exchange("too late"))
        assert (await other.turn(turn.id)).outcome == "cancelled"
        assert fresh.id != turn.id

    async def test_turns_of_a_store_that_was_closed_are_interrupted(
        self, store: Store, opener: Opener, clock: ManualClock
    ) -> None:
        if not store.capabilities.shared:
            pytest.skip("nobody else can see this store")
        made = await create(store)
        leaving = await opener(clock)
        turn = await leaving.journal(await begin(leaving, made.id), [says("unfinished")])
        await leaving.close()
        assert (await store.turn(turn.id)).outcome == "interrupted"
        taken = await store.resume(turn.id)
        await store.commit(taken, [answers("finished")])

    async def test_a_fork_by_another_process_sees_only_what_is_committed(self, store: Store, other: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one")
        turn = await store.journal(await begin(store, made.id), [says("two")])
        fork = await other.fork(made.id, fork_of())
        assert len(await other.events(fork.id)) == 2
        await store.commit(turn, [answers("done")])
        assert len(await other.events(fork.id)) == 2

    async def test_another_process_charges_while_a_turn_runs(self, store: Store, other: Store) -> None:
        made, id, usage = await create(store), new_id(), Usage(calls=1, input=3)
        turn = await begin(store, made.id)
        for process in (other, store, other):
            await process.charge(made.id, id, usage)
        await store.commit(turn, exchange("mine"), usage=usage)
        assert await store.spent(made.id) == await other.spent(made.id) == usage + usage

    async def test_what_one_commits_changes_the_pulse_of_the_other(self, store: Store, other: Store) -> None:
        made = await create(store)
        for mine, theirs in ((store, other), (other, store)):
            pulse = await theirs.pulse()
            assert await theirs.pulse() == pulse
            turn = await begin(mine, made.id)
            begun = await theirs.pulse()
            assert begun != pulse, "a turn that another has begun"
            await mine.commit(turn, exchange("hello"))
            committed = await theirs.pulse()
            assert committed != begun
            revision = (await mine.read(made.id)).revision
            assert await theirs.revisions([made.id]) == {made.id: revision}
            assert await theirs.pulse() == committed

    async def test_everything_is_there_after_reopening(self, store: Store, opener: Opener, clock: ManualClock) -> None:
        if not store.capabilities.durable:
            pytest.skip("this store ends with its process")
        made = await create(store, "kept")
        await run(store, made.id, "one")
        fork = await store.fork(made.id, fork_of("branch", tags=(("a", "b"),), title="t"))
        await store.charge(made.id, new_id(), Usage(calls=1, input=3))

        async def everything(store: Store) -> list[object]:
            records = [await store.read(made.id), await store.read(fork.id)]
            return [records, await store.events(fork.id), await store.spent(made.id)]

        expected = await everything(store)
        await store.close()
        again = await opener(clock)
        try:
            assert await everything(again) == expected
        finally:
            await again.close()
