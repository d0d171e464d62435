"""Forks and rewinds: one row, full fidelity, full isolation."""

import pytest

from forkpoint.errors import AlreadyExists, BadPosition, Busy, KeyReused, NotFound, Stale
from forkpoint.events import Position, Usage
from forkpoint.ids import new_id
from forkpoint.store.protocol import Store
from forkpoint.store.values import Collected, IdempotencyKey, Lineage, NewConversation, Onto, TurnError
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.conformance.base import Conformance, begin, create, fork_of, run, texts
from forkpoint.testing.samples import answers, calls, exchange, remembers, returns, says, thinks


class ForkConformance(Conformance):
    async def test_a_fork_has_the_same_events_with_the_same_ids(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one")
        fork = await store.fork(made.id, fork_of("branch"))
        assert await store.events(fork.id) == await store.events(made.id)
        assert (fork.name, fork.family, fork.revision, fork.status) == ("branch", made.family, 0, "idle")
        assert (fork.lineage.kind, fork.lineage.source) == ("fork", made.id)
        assert fork.lineage.at == fork.head.position

    async def test_source_and_fork_go_their_own_ways(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, [*exchange("one"), remembers("k", "1")])
        fork = await store.fork(made.id, fork_of())
        await run(store, fork.id, [*exchange("in the fork"), remembers("k", "2")])
        before = await store.read(made.id)
        await run(store, made.id, "in the source")
        assert texts(await store.events(fork.id))[3:] == ["in the fork", "You said: in the fork", "state_change"]
        assert texts(await store.events(made.id))[3:] == ["in the source", "You said: in the source"]
        assert (await store.state(fork.id)).get("k") == "2"
        assert (await store.state(made.id)).get("k") == "1"
        after = await store.read(made.id)
        assert (after.settings, after.cache, after.title, after.tags) == (
            before.settings,
            before.cache,
            before.title,
            before.tags,
        )
        assert (await store.verify()).ok

    async def test_a_fork_takes_settings_of_today_and_tags_only_if_given(self, store: Store) -> None:
        made = await create(store)
        done = await run(store, made.id, "one")
        await store.note(made.id, new_id(), [says("note")], settings='{"a":9}')
        await store.describe(made.id, title="source", tags=(("a", "b"),))
        fork = await store.fork(made.id, fork_of(), at=done.turn)
        assert (fork.settings, fork.cache, fork.title, fork.tags) == ('{"a":9}', '{"key":"fork"}', None, ())

    async def test_a_fork_takes_approvals_of_today_and_nothing_else_brings_them_along(self, store: Store) -> None:
        made = await create(store)
        first = await run(store, made.id, "one")
        await run(store, made.id, "two")
        assert await store.change_approvals(made.id, '["a"]', if_approvals="[]")
        for fork in (await store.fork(made.id, fork_of()), await store.fork(made.id, fork_of(), at=first.turn)):
            assert await store.approvals(fork.id) == '["a"]'
            assert await store.change_approvals(fork.id, '["of the fork"]', if_approvals='["a"]')
        assert await store.approvals(made.id) == '["a"]'
        assert await store.change_approvals(made.id, "[]", if_approvals='["a"]')
        _, aside = await store.rewind(made.id, fork_of(), at=first.turn)
        assert aside is not None
        assert await store.approvals(made.id) == await store.approvals(aside.id) == "[]", "what was revoked stays so"
        assert await store.change_approvals(made.id, '["b"]', if_approvals="[]")
        lineage = Lineage("sub_agent", made.id)
        onto = Onto(made.id, first.last)
        child = await store.create(NewConversation(id=new_id(), family=made.family, lineage=lineage, onto=onto))
        assert await store.approvals(child.id) == "[]", "a sub-agent has none of its parent's"

    async def test_a_fork_of_an_empty_conversation_is_empty(self, store: Store) -> None:
        fork = await store.fork((await create(store)).id, fork_of())
        assert fork.head.position is None
        await run(store, fork.id, "first")
        assert len(await store.events(fork.id)) == 2

    async def test_a_fork_of_a_fork_of_a_fork_reads_the_whole_path(self, store: Store) -> None:
        current = (await create(store)).id
        for question in ("one", "two", "three", "four"):
            await run(store, current, question)
            current = (await store.fork(current, fork_of())).id
        asked = [text for text in texts(await store.events(current)) if not text.startswith("You")]
        assert asked == ["one", "two", "three", "four"]
        assert len(await store.path(current)) == 8

    async def test_a_fork_at_a_turn_or_event_has_the_state_and_totals_of_that_point(self, store: Store) -> None:
        made = await create(store)
        first = await run(store, made.id, [*exchange("one"), remembers("k", "1")], Usage(calls=1, input=1))
        second = await run(store, made.id, [*exchange("two"), remembers("k", "2")], Usage(calls=1, input=2))
        third = await run(store, made.id, "three", Usage(calls=1, input=4))
        for at, before, length, value, spent in (
            (first.turn, None, 3, "1", 1),
            (None, second.turn, 3, "1", 1),
            (second.turn, None, 6, "2", 3),
            (str(second.last), None, 6, "2", 3),
            (None, third.first, 6, "2", 3),
            (third.turn, None, 8, "2", 7),
            (None, first.turn, 0, None, 0),
        ):
            fork = await store.fork(made.id, fork_of(), at=at, before=before)
            assert len(await store.events(fork.id)) == length
            assert (await store.state(fork.id)).get("k") == value
            assert fork.head.totals.input == spent
            assert fork.spent == Usage()
            await run(store, fork.id, "on", Usage(calls=1, input=100))
            assert (await store.state(fork.id)).get("k") == value
            assert (await store.read(fork.id)).spent == Usage(calls=1, input=100)
        assert (await store.verify()).ok

    async def test_a_fork_in_the_middle_of_a_turn_has_the_state_of_that_point(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, [*exchange("one"), remembers("k", "0")])
        steps = [
            says("look"),
            remembers("k", "1"),
            calls("c1", response=1),
            returns("c1"),
            remembers("k", "2"),
            answers("done", response=2),
        ]
        done = await run(store, made.id, steps)
        after_result = Position(done.first.segment, done.first.ordinal + 3)
        fork = await store.fork(made.id, fork_of(), at=after_result)
        assert (await store.state(fork.id)).get("k") == "1"
        again = await store.fork(fork.id, fork_of())
        await run(store, again.id, "on")
        assert (await store.state(again.id)).get("k") == "1"
        later = await store.fork(again.id, fork_of())
        assert (await store.state(later.id)).get("k") == "1"
        assert (await store.state(made.id)).get("k") == "2"
        assert (await store.verify()).ok

    async def test_a_fork_inside_a_tool_exchange_or_a_response_is_refused_with_safe_places(self, store: Store) -> None:
        made = await create(store)
        steps = [says("look"), thinks("hm", response=1), calls("c1", response=1), calls("c2", response=1)]
        steps += [returns("c1"), returns("c2"), answers("done", response=2)]
        done = await run(store, made.id, steps)
        segment = done.first.segment
        for ordinal in (2, 3, 4, 5):
            with pytest.raises(BadPosition) as refused:
                await store.fork(made.id, fork_of(), at=Position(segment, ordinal))
            assert refused.value.nearest == (f"{segment}-1", f"{segment}-6")
        for ordinal in (1, 6, 7):
            fork = await store.fork(made.id, fork_of(), at=Position(segment, ordinal))
            assert len(await store.events(fork.id)) == ordinal

    async def test_a_place_off_the_path_is_refused(self, store: Store) -> None:
        made, other = await create(store), await create(store)
        await run(store, made.id, "one")
        elsewhere = await run(store, other.id, "elsewhere")
        for place in (elsewhere.turn, elsewhere.last, Position(10_000, 1), "rubbish", "1-"):
            with pytest.raises(BadPosition):
                await store.fork(made.id, fork_of(), at=place)
        with pytest.raises(NotFound):
            await store.fork(made.id, fork_of(), at=new_id())

    async def test_a_fork_onto_an_existing_name_is_refused(self, store: Store) -> None:
        made = await create(store, "source")
        with pytest.raises(AlreadyExists):
            await store.fork(made.id, fork_of("source"))
        assert len((await store.conversations()).items) == 1

    async def test_a_fork_does_not_wait_for_a_running_turn_and_sees_the_last_commit(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one")
        turn = await store.journal(await begin(store, made.id), [says("two")])
        fork = await store.fork(made.id, fork_of())
        assert len(await store.events(fork.id)) == 2
        await run(store, fork.id, "in the fork")
        await store.commit(turn, [answers("done")])
        assert texts(await store.events(made.id))[2:] == ["two", "done"]

    async def test_a_fork_with_an_open_client_call_answers_it_itself(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, [says("look"), calls("c1", client=True, response=1)])
        fork = await store.fork(made.id, fork_of())
        await run(store, fork.id, [returns("c1"), answers("seen", response=1)])
        assert (await store.read(made.id)).head.open_calls.client == ("c1",)
        assert (await store.verify()).ok

    @pytest.mark.parametrize("at_head", [True, False])
    async def test_a_fork_can_be_a_draft_until_its_first_turn_commits(self, store: Store, at_head: bool) -> None:
        made = await create(store)
        one = await run(store, made.id, "one")
        await run(store, made.id, "two")
        key = IdempotencyKey("draft", b"1")
        at = None if at_head else one.turn
        draft = await store.fork(made.id, fork_of("draft"), at=at, draft=True, key=key)
        assert (draft.draft, draft.lineage.kind, draft.head.ordinal) == (True, "fork", 4 if at_head else 2)
        assert await store.fork(made.id, fork_of(), at=at, draft=True, key=key) == draft
        assert await store.find("draft") == draft
        assert [record.id for record in (await store.conversations()).items] == [made.id]
        for place in (None, one.turn):
            with pytest.raises(NotFound):
                await store.fork(draft.id, fork_of(), at=place)
        with pytest.raises(NotFound):
            await store.rewind(draft.id, fork_of(), at=one.turn)
        await store.fail(await begin(store, draft.id), TurnError("x", "y"))
        assert (await store.read(draft.id)).draft
        await run(store, draft.id, "three")
        assert not (await store.read(draft.id)).draft
        assert len((await store.conversations()).items) == 2
        await store.fork(draft.id, fork_of())

    async def test_a_draft_of_a_fork_runs_out_and_costs_its_source_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        made = await create(store)
        await run(store, made.id, "one", Usage(calls=1, input=1))
        draft = await store.fork(made.id, fork_of("draft"), draft=True)
        await store.fail(await begin(store, draft.id), TurnError("x", "y"), usage=Usage(calls=1, input=2))
        open = await store.fork(made.id, fork_of(), draft=True)
        turn = await begin(store, open.id)
        clock.pass_by(400 * 24 * 3600)
        assert await store.collect() == Collected(drafts=1)
        with pytest.raises(NotFound):
            await store.find("draft")
        assert len(await store.events(made.id)) == 2
        assert await store.usage(made.id) == await store.usage() == Usage(calls=2, input=3)
        await store.commit(turn, exchange("slow"))
        assert (await store.verify()).ok

    async def test_the_same_key_makes_one_fork(self, store: Store) -> None:
        made = await create(store)
        key = IdempotencyKey("fork-1", b"body")
        first = await store.fork(made.id, fork_of(), key=key)
        assert await store.fork(made.id, fork_of(), key=key) == first
        with pytest.raises(KeyReused):
            await store.fork(made.id, fork_of(), key=IdempotencyKey("fork-1", b"other"))

    async def test_a_fork_decided_on_an_old_revision_is_refused(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one")
        with pytest.raises(Stale):
            await store.fork(made.id, fork_of(), if_revision=0)

    async def test_a_rewind_moves_the_head_back_and_sets_the_rest_aside(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, [*exchange("one"), remembers("k", "1")], Usage(calls=1, input=1))
        await run(store, made.id, [*exchange("two"), remembers("k", "2")], Usage(calls=1, input=2))
        whole = await store.events(made.id)
        aside = fork_of("aside")
        after, kept = await store.rewind(made.id, aside, at=one.turn)
        assert (after.revision, len(await store.events(made.id))) == (3, 3)
        assert (await store.state(made.id)).get("k") == "1"
        assert kept == await store.read(aside.id)
        assert await store.events(kept.id) == whole
        assert (kept.lineage.kind, kept.lineage.source, kept.lineage.at) == ("aside", made.id, one.last)
        await run(store, made.id, "another two", Usage(calls=1, input=4))
        await run(store, kept.id, "three", Usage(calls=1, input=8))
        assert texts(await store.events(made.id))[3:] == ["another two", "You said: another two"]
        assert (await store.read(made.id)).spent == Usage(calls=2, input=5)
        assert (await store.read(kept.id)).spent == Usage(calls=2, input=10)
        assert await store.usage(made.id) == Usage(calls=4, input=15)
        assert (await store.verify()).ok

    async def test_a_fork_rewound_to_before_it_began_counts_nothing_twice(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one", Usage(calls=1, input=1))
        await run(store, made.id, "two", Usage(calls=1, input=2))
        fork = await store.fork(made.id, fork_of())
        await run(store, fork.id, "three", Usage(calls=1, input=4))
        aside = fork_of()
        await store.rewind(fork.id, aside, at=one.turn)
        await run(store, fork.id, "four", Usage(calls=1, input=8))
        assert (await store.read(made.id)).spent.input == 3
        assert (await store.read(aside.id)).spent.input == 4
        assert (await store.read(fork.id)).spent.input == 8
        assert (await store.usage(made.id)).input == 15

    async def test_a_place_is_said_in_one_way_and_a_rewind_needs_one(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one")
        with pytest.raises(BadPosition):
            await store.fork(made.id, fork_of(), at=one.turn, before=one.turn)
        with pytest.raises(BadPosition):
            await store.rewind(made.id, fork_of())

    async def test_the_same_key_on_another_source_is_refused(self, store: Store) -> None:
        one, other = await create(store), await create(store)
        key = IdempotencyKey("fork-1", b"body")
        await store.fork(one.id, fork_of(), key=key)
        with pytest.raises(KeyReused):
            await store.fork(other.id, fork_of(), key=key)

    async def test_a_rewind_to_the_head_changes_nothing(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one")
        before = await store.read(made.id)
        assert await store.rewind(made.id, fork_of(), at=one.turn) == (before, None)
        assert len((await store.conversations()).items) == 1

    async def test_a_rewind_is_refused_while_a_turn_runs(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one")
        await begin(store, made.id)
        with pytest.raises(Busy):
            await store.rewind(made.id, fork_of(), before=one.turn)

    async def test_the_same_key_rewinds_once(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one")
        await run(store, made.id, "two")
        key = IdempotencyKey("rewind-1", b"body")
        first = await store.rewind(made.id, fork_of(), at=one.turn, key=key)
        assert await store.rewind(made.id, fork_of(), at=one.turn, key=key) == first
        assert len((await store.conversations()).items) == 2
        assert first[1] is not None
        await run(store, made.id, "another two")
        await run(store, first[1].id, "three")
        now, aside = await store.read(made.id), await store.read(first[1].id)
        again = await store.rewind(made.id, fork_of(), at=one.turn, if_revision=0, key=key)
        assert again == (now, aside), "a repeat moves nothing, whatever came after"

    async def test_a_rewind_is_not_repeated_because_its_branch_was_deleted(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one")
        await run(store, made.id, "two")
        key = IdempotencyKey("rewind-1", b"body")
        _, aside = await store.rewind(made.id, fork_of(), at=one.turn, key=key)
        assert aside is not None
        await store.delete(aside.id)
        await run(store, made.id, "another two")
        now = await store.read(made.id)
        assert await store.rewind(made.id, fork_of(), at=one.turn, key=key) == (now, None)

    async def test_a_rewind_to_the_head_is_done_once_too(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one")
        key = IdempotencyKey("rewind-1", b"body")
        await store.rewind(made.id, fork_of(), at=one.turn, key=key)
        await run(store, made.id, "two")
        now = await store.read(made.id)
        assert await store.rewind(made.id, fork_of(), at=one.turn, key=key) == (now, None)
        with pytest.raises(KeyReused):
            await store.rewind(made.id, fork_of(), at=one.turn, key=IdempotencyKey("rewind-1", b"another"))

    async def test_metrics_start_at_zero_or_are_carried_over(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one", Usage(calls=1, input=5))
        fresh = await store.fork(made.id, fork_of())
        carried = await store.fork(made.id, fork_of(carries_metrics=True))
        assert (fresh.spent.input, fresh.inherited.input) == (0, 5)
        assert carried.spent.input == 5
        assert (await store.usage(made.id)).input == 5
