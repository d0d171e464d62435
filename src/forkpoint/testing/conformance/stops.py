"""Stopping turns: whoever wants one cancelled asks its process, which looks, and hears of turns that it has lost."""

import os
import socket

import pytest

from forkpoint.errors import Busy, NotFound
from forkpoint.ids import new_id
from forkpoint.store.protocol import Store
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.conformance.base import Conformance, begin, create, run
from forkpoint.testing.samples import answers, calls, exchange, says

A_LONG_TIME = 3600


class StopConformance(Conformance):
    async def test_a_process_hears_which_of_its_turns_somebody_asked_to_cancel(
        self, store: Store, second: Store
    ) -> None:
        held = [await begin(store, (await create(store)).id) for _ in range(20)]
        assert await store.stops(held) == {}
        for turn in (held[3], held[17]):
            asked = await second.ask_cancel(turn.id)
            assert (asked.id, asked.outcome) == (turn.id, "running"), "asking ends nothing"
            await second.ask_cancel(turn.id)  # once more has no other effect
        assert await store.stops(held) == {held[3].id: "cancel", held[17].id: "cancel"}
        assert await store.stops([]) == {}
        assert (await store.cancel(held[3])).outcome == "cancelled"
        assert (await second.turn(held[3].id)).outcome == "cancelled"

    async def test_a_turn_with_steps_is_stopped_by_any_of_its_handles(self, store: Store, second: Store) -> None:
        first = await begin(store, (await create(store)).id)
        later = await store.journal(first, [says("look"), calls("c1", response=1)])
        await second.ask_cancel(first.id)
        assert await store.stops([first]) == await store.stops([later]) == {first.id: "cancel"}

    async def test_a_cancel_that_comes_too_late_changes_nothing(self, store: Store, second: Store) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        await second.ask_cancel(turn.id)
        await store.commit(turn, exchange("in time"))  # its process had not looked yet
        asked = await second.ask_cancel(turn.id)
        assert asked.outcome == "committed"
        assert await second.turn(turn.id) == asked
        await run(store, made.id, "the next")
        assert (await store.verify()).ok

    async def test_a_turn_that_waits_is_left_alone_and_runs_on_once_it_is_resumed(
        self, store: Store, second: Store
    ) -> None:
        turn = await begin(store, (await create(store)).id)
        waits = await store.wait(turn, [says("look"), calls("c1", response=1)])
        assert (await second.ask_cancel(turn.id)).outcome == "awaiting_approval"
        assert await store.turn(turn.id) == waits
        assert await store.stops([await store.resume(turn.id)]) == {}

    async def test_who_resumes_a_turn_was_not_asked_to_cancel_it(
        self, store: Store, second: Store, clock: ManualClock
    ) -> None:
        if second is store:
            pytest.skip("nobody else can see this store")
        turn = await begin(store, (await create(store)).id)
        await second.ask_cancel(turn.id)
        clock.pass_by(A_LONG_TIME)
        taken = await second.resume(turn.id)
        assert await second.stops([taken]) == {}
        assert await store.stops([turn]) == {turn.id: "lost"}
        await store.ask_cancel(turn.id)
        assert await second.stops([taken]) == {turn.id: "cancel"}
        assert await store.stops([turn]) == {turn.id: "lost"}, "what another is asked is not this process's to do"

    async def test_a_process_hears_which_of_its_turns_it_has_lost(
        self, store: Store, second: Store, clock: ManualClock
    ) -> None:
        if second is store:
            pytest.skip("nobody else can see this store")
        made = [await create(store) for _ in range(4)]
        discarded, superseded, deleted, kept = [await begin(store, one.id) for one in made]
        clock.pass_by(A_LONG_TIME)
        await second.discard(discarded.id)
        await second.begin(superseded.conversation, new_id(), supersede=True)
        await second.delete(deleted.conversation)
        lost = dict.fromkeys((discarded.id, superseded.id, deleted.id), "lost")
        assert await store.stops([discarded, superseded, deleted, kept]) == lost
        await store.commit(kept, exchange("nobody took it"))
        assert await store.stops([kept]) == {kept.id: "lost"}, "it is over"

    async def test_nobody_can_ask_for_a_turn_of_another_tenant(self, store: Store) -> None:
        turn, stranger = await begin(store, (await create(store)).id), store.within("stranger")
        for id in (turn.id, new_id(), "no id"):
            with pytest.raises(NotFound):
                await stranger.ask_cancel(id)
        assert await store.stops([turn]) == {}
        assert await stranger.stops([turn]) == {turn.id: "lost"}
        await store.commit(turn, [says("hi"), answers("hello")])

    async def test_whoever_is_refused_hears_where_the_turn_runs_and_since_when(
        self, store: Store, second: Store, clock: ManualClock
    ) -> None:
        made = await create(store)
        clock.pass_by(5)
        turn = await begin(store, made.id)
        clock.pass_by(5)
        for refused in (
            lambda: second.begin(made.id, new_id()),
            lambda: second.begin(made.id, new_id(), supersede=True),
            lambda: second.resume(turn.id),
            lambda: second.discard(turn.id),
            lambda: second.delete(made.id),
            lambda: second.note(made.id, new_id(), [says("a note")]),
        ):
            with pytest.raises(Busy) as busy:
                await refused()
            said = busy.value
            assert (said.conversation, said.turn) == (made.id, turn.id)
            assert (said.host, said.process, said.since) == (socket.gethostname(), os.getpid(), turn.started)
            assert f"process {os.getpid()} on host {socket.gethostname()} since " in str(said)
        running = await second.turn(turn.id)
        assert running.held_by is not None
        assert running.held_by.since == turn.started
        await store.commit(turn, exchange("done"))
        assert (await second.turn(turn.id)).held_by is None
