"""Turns: whole or not at all, fenced, resumable, counted once."""

from functools import partial

import pytest

from forkpoint.errors import (
    AlreadyExists,
    Busy,
    KeyReused,
    NotFound,
    NotResumable,
    NotWhole,
    Stale,
    TurnBehind,
    TurnLost,
    TurnOpen,
    Unpaired,
)
from forkpoint.events import NewEvent, Opaque, Text, ToolResult, Usage
from forkpoint.ids import new_id
from forkpoint.paging import every
from forkpoint.store.protocol import Store
from forkpoint.store.values import NewConversation, OpenTurn, TurnError
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.conformance.base import Conformance, begin, create, fork_of, run, texts
from forkpoint.testing.samples import answers, calls, exchange, remembers, returns, says, thinks


class TurnConformance(Conformance):
    async def test_a_committed_turn_is_history(self, store: Store) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        assert (await store.read(made.id)).status == "running"
        done = await store.commit(turn, exchange("hello"), usage=Usage(calls=1, input=7, output=3))
        after = await store.read(made.id)
        assert (after.status, after.revision, after.head) == ("idle", 1, done.head)
        events = await store.events(made.id)
        assert texts(events) == ["hello", "You said: hello"]
        assert [event.id for event in events] == [done.first, done.last]
        assert {event.turn for event in events} == {turn.id}
        record = await store.turn(turn.id)
        assert (record.outcome, record.usage.input, record.end) == ("committed", 7, done.last)

    async def test_nothing_of_a_running_turn_is_in_history(self, store: Store) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        turn = await store.journal(turn, [says("look"), calls("c1", response=1)])
        assert await store.events(made.id) == []
        assert (await store.read(made.id)).head.position is None
        assert [step.envelope.kind for step in await store.steps(turn.id)] == ["user_message", "tool_call"]

    async def test_journalled_steps_and_the_last_events_commit_in_order(self, store: Store) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        turn = await store.journal(turn, [says("look"), calls("c1", response=1), calls("c2", response=1)])
        turn = await store.journal(turn, [returns("c1", "one"), returns("c2", "two")])
        await store.commit(turn, [answers("both", response=2)])
        assert texts(await store.events(made.id)) == ["look", "tool_call", "tool_call", "one", "two", "both"]
        assert await store.steps(turn.id) == []

    @pytest.mark.parametrize("ending", ["failed", "cancelled"])
    async def test_a_turn_that_does_not_commit_changes_nothing(self, store: Store, ending: str) -> None:
        made = await create(store)
        await run(store, made.id, "one")
        before = await store.read(made.id)
        turn = await store.journal(await begin(store, made.id), [says("two"), remembers("k", "1")])
        if ending == "failed":
            record = await store.fail(turn, TurnError("overloaded", "try later"), usage=Usage(calls=1, input=5))
        else:
            record = await store.cancel(turn, usage=Usage(calls=1, input=5))
        after = await store.read(made.id)
        assert (after.head, after.revision, after.status) == (before.head, before.revision, "idle")
        assert texts(await store.events(made.id)) == ["one", "You said: one"]
        assert (record.outcome, record.usage.input, record.end) == (ending, 5, None)
        assert [step.envelope.kind for step in await store.steps(turn.id)] == ["user_message", "state_change"]
        assert (await store.state(made.id)).get("k") is None

    async def test_a_retry_starts_from_the_last_committed_head(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one")
        failed = await begin(store, made.id)
        await store.fail(failed, TurnError("timeout", "too slow"))
        again = await store.begin(made.id, new_id(), retry_of=failed.id)
        assert isinstance(again, OpenTurn)
        assert again.base == failed.base
        await store.commit(again, exchange("two"))
        assert texts(await store.events(made.id)) == ["one", "You said: one", "two", "You said: two"]
        assert (await store.turn(again.id)).retry_of == failed.id

    async def test_a_second_turn_is_refused_while_one_runs(self, store: Store) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        for supersede in (False, True):
            with pytest.raises(Busy):
                await store.begin(made.id, new_id(), supersede=supersede)
        with pytest.raises(Busy):
            await store.note(made.id, new_id(), [says("note")])
        with pytest.raises(Busy):
            await store.delete(made.id)
        await store.commit(turn, exchange("still works"))

    async def test_a_turn_commits_once(self, store: Store) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        await store.commit(turn, exchange("once"))
        for again in (
            lambda: store.commit(turn, exchange("twice")),
            lambda: store.journal(turn, [says("more")]),
            lambda: store.fail(turn, TurnError("late", "late")),
            lambda: store.cancel(turn),
            lambda: store.wait(turn),
        ):
            with pytest.raises(TurnLost):
                await again()
        assert texts(await store.events(made.id)) == ["once", "You said: once"]

    async def test_a_rename_does_not_disturb_a_running_turn(self, store: Store) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        await store.describe(made.id, title="renamed meanwhile", tags=(("a", "b"),))
        await store.commit(turn, exchange("paid for"))
        assert (await store.read(made.id)).title == "renamed meanwhile"

    async def test_a_turn_decided_on_an_old_revision_is_refused(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one")
        with pytest.raises(Stale):
            await store.begin(made.id, new_id(), if_revision=0)
        assert (await store.read(made.id)).status == "idle"
        turn = await store.begin(made.id, new_id(), if_revision=1)
        assert isinstance(turn, OpenTurn)

    async def test_a_turn_without_events_is_refused(self, store: Store) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        with pytest.raises(NotWhole):
            await store.commit(turn)
        with pytest.raises(NotWhole):
            await store.note((await create(store)).id, new_id(), [])
        await store.commit(turn, exchange("now"))

    async def test_empty_content_is_refused_and_the_turn_goes_on(self, store: Store) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        with pytest.raises(NotWhole):
            await store.commit(turn, [says("  ")])
        await store.commit(turn, exchange("whole"))
        assert (await store.verify()).ok

    async def test_a_call_without_its_result_is_refused(self, store: Store) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        with pytest.raises(Unpaired):
            await store.commit(turn, [says("look"), calls("c1", response=1)])
        turn = await store.journal(turn, [says("look"), calls("c1", response=1)])
        with pytest.raises(Unpaired):
            await store.commit(turn, [answers("done", response=2)])
        with pytest.raises(Unpaired):
            await store.commit(turn, [returns("c2")])
        await store.commit(turn, [returns("c1"), answers("done", response=2)])

    async def test_a_call_handed_to_the_client_may_be_open_at_the_head_until_the_next_turn(self, store: Store) -> None:
        made = await create(store)
        done = await run(store, made.id, [says("look"), calls("c1", client=True, response=1)])
        assert done.head.open_calls.client == ("c1",)
        turn = await begin(store, made.id)
        with pytest.raises(Unpaired):
            await store.commit(turn, exchange("never mind"))
        not_answered = NewEvent(ToolResult("c1", "look", (Text("not answered"),), "not_answered"))
        after = await store.commit(turn, [not_answered, *exchange("never mind")])
        assert not after.head.open_calls

    async def test_a_turn_that_waits_is_open_and_held_by_nobody(self, store: Store) -> None:
        made = await create(store)
        turn = await store.journal(await begin(store, made.id), [says("rm"), calls("c1", response=1)])
        waiting = await store.wait(turn, usage=Usage(calls=1, input=4))
        assert (waiting.outcome, waiting.usage.input) == ("awaiting_approval", 4)
        assert (await store.read(made.id)).status == "awaiting_approval"
        with pytest.raises(TurnOpen) as refused:
            await store.begin(made.id, new_id())
        assert refused.value.turn == turn.id
        with pytest.raises(TurnLost):
            await store.commit(turn, [returns("c1"), answers("done")])
        taken = await store.resume(turn.id)
        assert (taken.staged, taken.usage.input) == (2, 4)
        await store.commit(taken, [returns("c1"), answers("done", response=2)], usage=Usage(calls=1, input=6))
        assert (await store.turn(turn.id)).usage == Usage(calls=2, input=10)

    async def test_a_waiting_turn_can_be_discarded_or_superseded(self, store: Store) -> None:
        made = await create(store)
        first = await begin(store, made.id)
        await store.wait(first, [says("one")])
        assert (await store.discard(first.id)).outcome == "cancelled"
        second = await begin(store, made.id)
        await store.wait(second, [says("two")])
        third = await store.begin(made.id, new_id(), supersede=True)
        assert isinstance(third, OpenTurn)
        assert (await store.turn(second.id)).outcome == "cancelled"
        await store.commit(third, exchange("three"))

    async def test_a_failed_turn_is_resumed_after_its_last_step(self, store: Store) -> None:
        made = await create(store)
        turn = await store.journal(
            await begin(store, made.id), [says("go"), remembers("step", "1"), calls("c1", response=1), returns("c1")]
        )
        await store.fail(turn, TurnError("overloaded", "at step 31"), usage=Usage(calls=1, input=9))
        taken = await store.resume(turn.id)
        assert (taken.id, taken.staged, taken.token != turn.token) == (turn.id, 4, True)
        assert taken.state.get("step") == "1"
        done = await store.commit(taken, [answers("done", response=2)])
        assert (await store.state(made.id)).get("step") == "1"
        assert done.head.totals == Usage(calls=1, input=9)
        assert (await store.verify()).ok

    async def test_a_turn_is_not_resumed_once_the_conversation_went_on(self, store: Store) -> None:
        made = await create(store)
        failed = await begin(store, made.id)
        await store.fail(failed, TurnError("x", "y"))
        done = await run(store, made.id, "other")
        for turn in (failed.id, done.turn):
            with pytest.raises(NotResumable):
                await store.resume(turn)

    async def test_a_running_turn_is_neither_resumed_nor_discarded(self, store: Store) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        with pytest.raises(Busy):
            await store.resume(turn.id)
        with pytest.raises(Busy):
            await store.discard(turn.id)

    async def test_a_first_turn_that_fails_leaves_a_draft_that_nobody_sees(self, store: Store) -> None:
        new = NewConversation(id=new_id(), name="maybe")
        turn = await store.begin(new.id, new_id(), create=new)
        assert isinstance(turn, OpenTurn)
        await store.fail(turn, TurnError("x", "y"), usage=Usage(calls=1, input=5))
        draft = await store.find("maybe")
        assert draft.draft
        assert (await store.conversations()).items == ()
        with pytest.raises(NotFound):
            await store.fork(new.id, fork_of())
        assert (await store.turn(turn.id)).usage.input == 5
        again = await store.begin(new.id, new_id(), create=new)
        assert isinstance(again, OpenTurn)
        await store.commit(again, exchange("now"))
        assert [record.id for record in (await store.conversations()).items] == [new.id]
        assert await store.usage(new.id) == Usage(calls=1, input=5)

    async def test_a_first_turn_decided_on_a_later_revision_makes_nothing(self, store: Store) -> None:
        new = NewConversation(id=new_id(), name="maybe")
        with pytest.raises(Stale) as stale:
            await store.begin(new.id, new_id(), create=new, if_revision=3)
        assert (stale.value.expected, stale.value.actual) == (3, 0)
        with pytest.raises(NotFound):
            await store.read(new.id)
        assert isinstance(await store.begin(new.id, new_id(), create=new, if_revision=0), OpenTurn)

    async def test_a_draft_can_be_admitted_and_then_it_is_listed_and_can_be_forked(
        self, store: Store, clock: ManualClock
    ) -> None:
        new = NewConversation(id=new_id(), name="maybe")
        turn = await store.begin(new.id, new_id(), create=new)
        assert isinstance(turn, OpenTurn)
        await store.fail(turn, TurnError("x", "y"), usage=Usage(calls=1, input=5))
        admitted = await store.admit(new.id)
        assert (admitted.draft, admitted.revision, admitted.head.position) == (False, 0, None)
        assert await store.admit(new.id) == admitted
        assert [record.id for record in (await store.conversations()).items] == [new.id]
        fork = await store.fork(new.id, fork_of())
        assert (fork.head.position, fork.lineage.source) == (None, new.id)
        clock.pass_by(400 * 24 * 3600)
        assert (await store.collect()).drafts == 0
        with pytest.raises(NotFound):
            await store.admit(new_id())
        with pytest.raises(NotFound):
            await store.within("other").admit(new.id)

    async def test_a_turn_is_read_whole_with_its_events_or_its_steps(self, store: Store) -> None:
        made = await create(store)
        first = await run(store, made.id, "one")
        done = await run(store, made.id, "two")
        record, events = await store.whole_turn(done.turn)
        assert record == await store.turn(done.turn)
        assert list(events) == (await store.events(made.id))[-len(events) :]
        fork = await store.fork(made.id, fork_of(), at=first.turn)
        other = await run(store, fork.id, "three")
        assert list((await store.whole_turn(other.turn))[1]) == (await store.events(fork.id))[first.last.ordinal :]
        await store.rewind(made.id, fork_of(), at=first.turn)
        assert (await store.whole_turn(done.turn))[1] == events, "it was set aside, and is still the same turn"
        turn = await begin(store, made.id)
        turn = await store.journal(turn, [says("four")])
        record, steps = await store.whole_turn(turn.id)
        assert (record.outcome, list(steps)) == ("running", await store.steps(turn.id))
        with pytest.raises(NotFound):
            await store.whole_turn(new_id())
        with pytest.raises(NotFound):
            await store.within("other").whole_turn(done.turn)

    async def test_a_commit_may_bring_another_cache_identity(self, store: Store) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        await store.commit(turn, exchange("one"), cache='{"key":"another"}')
        after = await store.read(made.id)
        assert (after.cache, after.settings) == ('{"key":"another"}', made.settings)
        turn = await begin(store, made.id)
        with pytest.raises(NotWhole):
            await store.commit(turn, exchange("two"), cache="no JSON")
        await store.commit(turn, exchange("two"))
        assert (await store.read(made.id)).cache == '{"key":"another"}'

    async def test_turns_are_listed_in_order_with_tries_that_did_not_commit(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one")
        failed = await begin(store, made.id)
        await store.fail(failed, TurnError("x", "y"))
        two = await run(store, made.id, "two")
        three = await run(store, made.id, "three")
        running = await begin(store, made.id)
        expected = [one.turn, failed.id, two.turn, three.turn, running.id]
        assert [turn.id for turn in (await store.turns(made.id)).items] == expected
        assert [turn.id async for turn in every(partial(store.turns, made.id), limit=2)] == expected

    async def test_turns_can_be_listed_from_an_ordinal_on(self, store: Store) -> None:
        made = await create(store)
        await store.fail(await begin(store, made.id), TurnError("x", "y"))
        one = await run(store, made.id, "one")
        source = await store.fork(made.id, fork_of())
        two = await run(store, source.id, [*exchange("two"), *exchange("more")])
        fork = await store.fork(source.id, fork_of())
        failed = await begin(store, fork.id)
        await store.fail(failed, TurnError("x", "y"))
        note = await store.note(fork.id, new_id(), [says("three")])
        cancelled = await begin(store, fork.id)
        await store.cancel(cancelled)
        running = await begin(store, fork.id)
        for since, expected in (
            (-1, [one.turn, two.turn, failed.id, note.turn, cancelled.id, running.id]),
            (1, [two.turn, failed.id, note.turn, cancelled.id, running.id]),
            (2, [two.turn, failed.id, note.turn, cancelled.id, running.id]),
            (4, [failed.id, note.turn, cancelled.id, running.id]),
            (6, [failed.id, note.turn, cancelled.id, running.id]),
            (7, [cancelled.id, running.id]),
            (8, []),
            (1 << 70, []),
        ):
            assert [turn.id for turn in (await store.turns(fork.id, since=since)).items] == expected, f"since {since}"
            for limit in (1, 2, 3):
                assert await _pages(store, fork.id, since, limit) == expected, f"since {since}, {limit} at a time"

    async def test_the_tries_at_the_head_are_those_since_its_ordinal(self, store: Store) -> None:
        made = await create(store)
        first = await begin(store, made.id)
        await store.fail(first, TurnError("x", "y"))
        assert [turn.id for turn in (await store.turns(made.id, since=0)).items] == [first.id]
        done = await run(store, made.id, "one")
        assert (await store.turns(made.id, since=done.head.ordinal)).items == ()
        tries = []
        for _ in range(2):
            turn = await begin(store, made.id)
            tries.append(await store.cancel(turn))
        assert (await store.turns(made.id, since=done.head.ordinal)).items == tuple(tries)

    async def test_parallel_results_are_journalled_as_they_come_and_stand_in_call_order(self, store: Store) -> None:
        made = await create(store)
        turn = await store.journal(
            await begin(store, made.id), [says("look"), calls("c1", response=1), calls("c2", response=1)]
        )
        turn = await store.journal(turn, [returns("c2", "two")])
        turn = await store.journal(turn, [returns("c1", "one")])
        await store.commit(turn, [answers("both", response=2)])
        assert texts(await store.events(made.id))[3:] == ["one", "two", "both"]
        assert (await store.verify()).ok

    async def test_a_handle_that_missed_a_step_writes_nothing_until_it_is_refreshed(self, store: Store) -> None:
        made = await create(store)
        behind = await begin(store, made.id)
        await store.journal(behind, [says("look")], usage=Usage(calls=1, input=3))
        with pytest.raises(TurnBehind):
            await store.commit(behind, exchange("lost"))
        with pytest.raises(TurnBehind):
            await store.journal(behind, [says("again")])
        turn = await store.refresh(behind)
        assert (turn.staged, turn.usage.input) == (1, 3)
        await store.commit(turn, [answers("seen")])
        assert texts(await store.events(made.id)) == ["look", "seen"]
        assert await store.steps(turn.id) == []

    async def test_a_handle_that_missed_a_step_ends_its_turn_and_loses_no_cost(self, store: Store) -> None:
        made = await create(store)
        behind = await begin(store, made.id)
        await store.journal(behind, [says("look")], usage=Usage(calls=1, input=3))
        record = await store.fail(behind, TurnError("x", "y"), usage=Usage(calls=1, input=4))
        assert record.usage == Usage(calls=2, input=7)

    async def test_the_id_of_a_turn_is_used_once(self, store: Store) -> None:
        made, other = await create(store), await create(store)
        done = await run(store, made.id, "one")
        for conversation in (made.id, other.id):
            with pytest.raises(AlreadyExists):
                await store.begin(conversation, done.turn)
            assert (await store.read(conversation)).status == "idle"

    async def test_a_repeated_note_is_the_same_note(self, store: Store) -> None:
        made = await create(store)
        note = new_id()
        first = await store.note(made.id, note, [says("by hand")])
        assert await store.note(made.id, note, [says("by hand")]) == first
        with pytest.raises(KeyReused):
            await store.note(made.id, note, [says("something else")])
        assert len(await store.events(made.id)) == 1

    async def test_state_is_folded_along_the_path(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, [*exchange("one"), remembers("a", "1")])
        await run(store, made.id, "no change")
        await run(store, made.id, [*exchange("two"), remembers("b", '{"deep": [1, 2.50]}')])
        state = await store.state(made.id)
        assert state.values == (("a", "1"), ("b", '{"deep": [1, 2.50]}'))

    async def test_an_unknown_kind_of_event_survives_and_marks_the_state_partial(self, store: Store) -> None:
        made = await create(store)
        strange = Opaque("telepathy", '{"kind": "telepathy",  "n": 1.0}')
        await run(store, made.id, [*exchange("one"), NewEvent(strange)])
        assert (await store.events(made.id))[-1].body == strange
        assert (await store.state(made.id)).partial

    async def test_events_are_read_by_range_from_the_end_and_by_kind(self, store: Store) -> None:
        made = await create(store)
        for question in ("one", "two", "three"):
            await run(store, made.id, question)
        assert texts(await store.events(made.id, after=4)) == ["three", "You said: three"]
        assert texts(await store.events(made.id, after=1, limit=2)) == ["You said: one", "two"]
        assert texts(await store.events(made.id, kinds=["user_message"])) == ["one", "two", "three"]
        assert texts(await store.events(made.id, last=1)) == ["You said: three"]
        assert len(await store.events(made.id, last=100)) == 6
        assert texts(await store.events(made.id, last=3, limit=1)) == ["You said: two"]
        assert texts(await store.events(made.id, last=3, kinds=["user_message"])) == ["three"]
        assert await store.events(made.id, after=99) == []
        head = (await store.read(made.id)).head.position
        await run(store, made.id, "four")
        assert len(await store.events(made.id, at=head)) == 6
        assert texts(await store.events(made.id, at=head, last=1)) == ["You said: three"]

    async def test_content_comes_back_exactly(self, store: Store) -> None:
        made = await create(store)
        events = [says("ünïcode \u2028 \0 \U0001f600"), thinks("hm", response=1), *exchange("x")[1:]]
        await run(store, made.id, events)
        assert [event.body for event in await store.events(made.id)] == [event.body for event in events]


async def _pages(store: Store, conversation: str, since: int, limit: int) -> list[str]:
    """The ids of all turns since an ordinal, read a few at a time."""
    return [turn.id async for turn in every(partial(store.turns, conversation, since=since), limit=limit)]
