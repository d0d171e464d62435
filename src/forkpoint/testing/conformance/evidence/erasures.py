"""Erasures: content goes for good, and the rest stays whole."""

import pytest

from forkpoint.errors import Busy, NotFound, NotResumable
from forkpoint.events import Condensation, Gone, NewEvent, Position
from forkpoint.history.state import fold
from forkpoint.ids import new_id
from forkpoint.store.erasure import Erasing, Receipt
from forkpoint.store.protocol import Store
from forkpoint.store.values import IdempotencyKey, Lineage, NewConversation, OpenTurn, TurnError
from forkpoint.testing.conformance.base import Conformance, begin, create, fork_of, run
from forkpoint.testing.samples import exchange, remembers, says


class ErasureConformance(Conformance):
    async def test_an_erased_turn_stays_in_place_without_its_content(self, store: Store) -> None:
        made = await create(store)
        first = await run(store, made.id, "one")
        await run(store, made.id, "two")
        fork = await store.fork(made.id, fork_of())
        count = await store.erasure_count()
        preview = await erase(store, made.id, turn=first.turn, dry_run=True)
        assert (preview.done, preview.events, preview.touched) == (False, 2, 2)
        assert not any(isinstance(event.body, Gone) for event in await store.events(made.id))
        receipt = await erase(store, made.id, turn=first.turn)
        assert (receipt.done, receipt.events, receipt.turns, receipt.touched) == (True, 2, (first.turn,), 2)
        for id in (made.id, fork.id):
            assert [isinstance(event.body, Gone) for event in await store.events(id)] == [True, True, False, False]
        assert (await store.turn(first.turn)).input is None
        assert (await store.erasure_count(), (await begin(store, made.id)).erasures) == (count + 1, count + 1)
        checked = await store.verify()
        assert (checked.ok, checked.erased) == (True, 2), checked.flaws

    async def test_a_turn_goes_as_a_whole_also_where_a_branch_has_only_a_part_of_it(self, store: Store) -> None:
        made = await create(store)
        done = await run(store, made.id, "one")
        part = await store.fork(made.id, fork_of(), at=done.first)
        assert (await erase(store, part.id, turn=done.turn)).events == 2
        assert [isinstance(event.body, Gone) for event in await store.events(made.id)] == [True, True]
        before = await store.fork(made.id, fork_of(), before=done.turn)
        with pytest.raises(NotFound):
            await erase(store, before.id, turn=done.turn)

    async def test_state_is_what_the_events_that_are_left_fold_to_in_every_branch(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, [*exchange("one"), remembers("a", "1")])
        second = await run(store, made.id, [*exchange("two"), remembers("a", '"secret"'), remembers("b", '"secret"')])
        fork = await store.fork(made.id, fork_of())
        inside = await store.fork(made.id, fork_of(), at=Position(second.last.segment, second.last.ordinal - 1))
        await run(store, made.id, [*exchange("three"), remembers("c", "3")])
        await run(store, fork.id, [*exchange("four"), remembers("b", "4")])
        await erase(store, made.id, turn=second.turn)
        for id, values in [(made.id, {"a": "1", "c": "3"}), (fork.id, {"a": "1", "b": "4"}), (inside.id, {"a": "1"})]:
            assert dict((await store.state(id)).values) == values
            assert await store.state(id) == fold(event.body for event in await store.events(id))
        assert (await store.verify()).ok

    async def test_a_summary_goes_with_what_it_sums_up_and_still_hides_it(self, store: Store) -> None:
        made = await create(store)
        first = await run(store, made.id, "one")
        await run(store, made.id, "two")
        note = await store.note(made.id, new_id(), [NewEvent(Condensation("it was one", 3))])
        kept = await erase(store, made.id, turn=first.turn, dry_run=True, keep_summaries=True)
        assert (kept.summaries, kept.summaries_kept, kept.events) == ((str(note.last),), True, 2)
        receipt = await erase(store, made.id, turn=first.turn)
        assert (receipt.summaries, receipt.summaries_kept, receipt.events) == ((str(note.last),), False, 3)
        assert (await store.events(made.id))[-1].body == Gone(kept_from=3)
        state = await store.state(made.id)
        assert (state.kept_from, state.summary) == (3, None)
        assert (await store.verify()).ok

    async def test_failed_tries_of_the_same_input_go_with_a_turn_and_cannot_be_resumed(self, store: Store) -> None:
        made = await create(store)
        failed = await asked(store, made.id, '"the secret"')
        failed = await store.journal(failed, [says("the secret")])
        await store.fail(failed, TurnError("bad", "it quotes the secret"))
        again = await asked(store, made.id, '"the secret"', retry_of=failed.id)
        done = await store.commit(again, exchange("the secret"))
        receipt = await erase(store, made.id, turn=done.turn)
        assert set(receipt.turns) == {failed.id, done.turn}
        turn = await store.turn(failed.id)
        assert (turn.outcome, turn.input, turn.error) == ("failed", None, None)
        assert [step.body for step in await store.steps(failed.id)] == [Gone()]
        with pytest.raises(NotResumable):
            await store.resume(failed.id)
        assert (await store.verify()).ok

    async def test_the_key_of_an_erased_turn_is_free_again(self, store: Store) -> None:
        made, key = await create(store), IdempotencyKey("my name is Ann", b"digest")
        first = await asked(store, made.id, '"hello Ann"', key=key)
        await store.commit(first, exchange("hello Ann"))
        await erase(store, made.id, turn=first.id)
        assert await store.made_with(key, "turn", made.id) is None
        with pytest.raises(NotFound):
            await erase(store, made.id, turn=new_id())

    async def test_a_running_turn_is_in_the_way_and_one_that_waits_is_discarded(self, store: Store) -> None:
        made = await create(store)
        first = await run(store, made.id, "one")
        running = await begin(store, made.id)
        assert (await erase(store, made.id, turn=first.turn, dry_run=True)).running == (running.id,)
        with pytest.raises(Busy):
            await erase(store, made.id, turn=first.turn)
        await store.wait(running, [says("two")])
        receipt = await erase(store, made.id, turn=first.turn)
        assert receipt.discarded == (running.id,)
        assert (await store.turn(running.id)).outcome == "cancelled"
        assert (await store.verify()).ok

    async def test_everything_in_a_conversation_goes_with_what_it_is_called(self, store: Store) -> None:
        new = NewConversation(id=new_id(), name="ann", title="Ann", tags=(("who", "Ann"),))
        made = await store.create(new)
        await run(store, made.id, "I am Ann")
        await store.change_approvals(made.id, '[{"arguments":"Ann"}]', if_approvals="[]")
        receipt = await erase(store, made.id)
        assert receipt.conversations == (made.id,)
        found = await store.read(made.id)
        assert (found.name, found.title, found.tags) == (made.id, None, ())
        assert await store.approvals(made.id) == "[]"
        await create(store, "ann")
        assert (await store.verify()).ok

    async def test_a_title_made_of_an_erased_message_goes_with_it_in_every_fork(self, store: Store) -> None:
        made = await store.create(NewConversation(id=new_id(), title="My name is Ann…"))
        first = await run(store, made.id, "My name is Ann, and I want to know")
        fork = await store.fork(made.id, fork_of())
        await store.describe(fork.id, title="About Ann")
        other = await store.fork(made.id, fork_of(), before=first.turn)
        await store.describe(other.id, title="Another matter")
        receipt = await erase(store, made.id, turn=first.turn)
        assert set(receipt.untitled) == {made.id, fork.id}
        titles = [(await store.read(id)).title for id in (made.id, fork.id, other.id)]
        assert titles == [None, None, "Another matter"]
        assert (await store.verify()).ok

    async def test_everything_in_a_family_goes_also_what_nobody_reaches(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one")
        fork = await store.fork(made.id, fork_of())
        await run(store, fork.id, "two")
        await store.delete(fork.id)
        families = (await store.families()).items
        assert families == (made.id,)
        receipt = await store.erase(new_id(), Erasing(family=made.id), reason="all of it")
        assert receipt.events == 4
        assert (await store.verify()).ok

    async def test_what_was_asked_beside_a_conversation_after_the_text_goes_too(self, store: Store) -> None:
        made = await create(store)
        before = await store.read(made.id)
        first = await run(store, made.id, "I am Ann")
        sides = []
        for at in (before.head.position, first.last):
            lineage = Lineage("side", made.id, at)
            side = await store.create(NewConversation(id=new_id(), family=made.id, lineage=lineage))
            await run(store, side.id, "Give it a title: I am Ann")
            sides.append(side.id)
        receipt = await erase(store, made.id, turn=first.turn)
        assert receipt.conversations == (sides[1],)
        gone = [isinstance((await store.events(id))[0].body, Gone) for id in sides]
        assert gone == [False, True]
        assert (await store.verify()).ok

    async def test_receipts_are_listed_and_replayed_once_in_an_earlier_copy(self, store: Store) -> None:
        made = await create(store)
        first = await run(store, made.id, "one")
        receipt = await erase(store, made.id, turn=first.turn)
        (listed,) = (await store.erasures()).items
        assert (listed.id, listed.family, listed.runs) == (receipt.id, made.id, receipt.runs)
        assert (await store.within("other").erasures()).items == ()
        assert not await store.replay(listed)

    async def test_an_erased_store_can_be_written_to_as_before(self, store: Store) -> None:
        made = await create(store)
        first = await run(store, made.id, [*exchange("one"), remembers("a", "1")])
        await erase(store, made.id, turn=first.turn)
        await erase(store, made.id)
        await run(store, made.id, "two")
        fork = await store.fork(made.id, fork_of(), at=first.turn)
        await run(store, fork.id, "three")
        turn = await begin(store, made.id)
        assert isinstance(turn, OpenTurn)
        await store.cancel(turn)
        await store.delete(made.id)
        await store.collect()
        assert (await store.verify()).ok


async def asked(
    store: Store, id: str, input: str, *, retry_of: str | None = None, key: IdempotencyKey | None = None
) -> OpenTurn:
    turn = await store.begin(id, new_id(), input=input, retry_of=retry_of, key=key)
    assert isinstance(turn, OpenTurn)
    return turn


async def erase(
    store: Store, id: str, *, turn: str | None = None, dry_run: bool = False, keep_summaries: bool = False
) -> Receipt:
    chosen = Erasing(conversations=(id,), turn=turn, keep_summaries=keep_summaries)
    return await store.erase(new_id(), chosen, reason="a test", dry_run=dry_run)
