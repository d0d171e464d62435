"""Turns that stand elsewhere than at the head: the head goes there with their commit, or stays where it is."""

import pytest
from msgspec.structs import replace

from forkpoint.errors import AlreadyExists, BadArgument, BadPosition, Busy, NotFound, NotResumable, Stale, TurnBehind
from forkpoint.events import Event, Position, Usage
from forkpoint.ids import new_id
from forkpoint.store.protocol import Store
from forkpoint.store.values import (
    Committed,
    IdempotencyKey,
    Lineage,
    NewConversation,
    NewFork,
    Onto,
    OpenTurn,
    StoredConversation,
    StoredTurn,
    TurnError,
)
from forkpoint.testing.conformance.base import Conformance, begin, create, fork_of, run, texts
from forkpoint.testing.samples import answers, calls, exchange, remembers, returns, says, thinks


def used(input: int) -> Usage:
    return Usage(calls=1, input=input)


async def stand(store: Store, conversation: str, onto: Onto, turn: str | None = None) -> OpenTurn:
    """Begins a turn elsewhere than at the head."""
    opened = await store.begin(conversation, turn or new_id(), onto=onto)
    assert isinstance(opened, OpenTurn)
    return opened


async def move(store: Store, conversation: str, onto: Onto, question: str, input: int) -> tuple[Committed, NewFork]:
    """A whole turn elsewhere, and what its commit was given to set aside."""
    aside = fork_of()
    turn = await stand(store, conversation, onto)
    return await store.commit(turn, exchange(question), usage=used(input), aside=aside), aside


async def seen(store: Store, id: str) -> tuple[StoredConversation, list[Event], object]:
    """All of a conversation that a turn which does not commit must leave alone."""
    record = await store.read(id)
    return replace(record, updated=0), await store.events(id), await store.state(id)


class ElsewhereConformance(Conformance):
    async def test_a_turn_on_an_earlier_place_sets_aside_what_stood_after_it(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, [*exchange("one"), remembers("k", "1")], used(1))
        two = await run(store, made.id, [*exchange("two"), remembers("k", "2")], used(2))
        whole = await store.events(made.id)
        aside = fork_of("kept", title="before")
        turn = await stand(store, made.id, Onto(made.id, one.last))
        assert (turn.base, turn.revision, turn.branch) == (one.head, 2, made.id)
        assert turn.state.get("k") == "1"
        turn = await store.journal(turn, [says("another two"), calls("c", response=1)], usage=used(4))
        done = await store.commit(turn, [returns("c"), answers("done", response=2)], usage=used(8), aside=aside)

        after = await store.read(made.id)
        assert (after.revision, after.head, after.status) == (3, done.head, "idle")
        assert (done.revision, done.aside, done.first.ordinal) == (3, aside.id, 4)
        assert texts(await store.events(made.id))[3:] == ["another two", "tool_call", "seen", "done"]
        assert (await store.state(made.id)).get("k") == "1"
        kept = await store.read(aside.id)
        assert (kept.name, kept.title, kept.draft, kept.head) == ("kept", "before", False, two.head)
        assert kept.lineage == Lineage("aside", made.id, one.last)
        assert await store.events(kept.id) == whole
        assert (await store.state(kept.id)).get("k") == "2"
        assert [turn.id for turn in (await store.turns(made.id)).items] == [one.turn, done.turn]
        assert [turn.id for turn in (await store.turns(kept.id)).items] == [one.turn, two.turn]
        assert await store.spent(made.id) == used(1) + used(4) + used(8)
        assert await store.spent(kept.id) == used(2)
        assert await store.usage(made.id) == await store.usage() == Usage(calls=4, input=15)
        await run(store, made.id, "on")
        await run(store, kept.id, "on here too")
        assert texts(await store.events(made.id))[-1] == "You said: on"
        assert (await store.verify()).ok

    async def test_a_turn_can_stand_at_the_root(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, [*exchange("one"), remembers("k", "1")], used(1))
        done, aside = await move(store, made.id, Onto(made.id, None), "from the start", 2)
        assert texts(await store.events(made.id)) == ["from the start", "You said: from the start"]
        assert (await store.turn(done.turn)).base is None
        assert (await store.state(made.id)).get("k") is None
        assert (await store.read(aside.id)).lineage == Lineage("aside", made.id, None)
        assert (await store.spent(made.id), await store.spent(aside.id)) == (used(2), used(1))
        assert (await store.verify()).ok

    async def test_a_turn_can_stand_on_another_branch(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one", used(1))
        fork = await store.fork(made.id, fork_of())
        await run(store, made.id, "two", used(2))
        three = await run(store, fork.id, [*exchange("three"), remembers("k", "3")], used(4))
        before = await seen(store, fork.id)
        done, aside = await move(store, made.id, Onto(fork.id, three.last), "four", 8)
        path = [one.turn, three.turn, done.turn]
        assert [turn.id for turn in (await store.turns(made.id)).items] == path
        assert list(dict.fromkeys(event.turn for event in await store.events(made.id))) == path
        assert (await store.state(made.id)).get("k") == "3"
        assert (await store.read(aside.id)).lineage == Lineage("aside", made.id, one.last)
        assert texts(await store.events(aside.id))[-1] == "You said: two"
        assert await seen(store, fork.id) == before, "the branch on which it stood is another"
        spent = {id: (await store.spent(id)).input for id in (made.id, aside.id, fork.id)}
        assert spent == {made.id: 8, aside.id: 3, fork.id: 4}
        assert (await store.read(made.id)).inherited == used(1) + used(4)
        assert await store.usage(made.id) == Usage(calls=4, input=15)
        await run(store, fork.id, "five")
        assert (await store.events(made.id))[-1].turn == done.turn
        assert (await store.verify()).ok

    async def test_a_head_that_is_on_the_new_path_needs_no_branch(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one", used(1))
        fork = await store.fork(made.id, fork_of())
        two = await run(store, fork.id, "two", used(2))
        done, aside = await move(store, made.id, Onto(fork.id, two.last), "three", 4)
        assert done.aside is None
        with pytest.raises(NotFound):
            await store.read(aside.id)
        assert len(await store.events(made.id)) == 6
        assert (await store.spent(made.id), await store.spent(fork.id)) == (used(1) + used(4), used(2))
        assert await store.usage(made.id) == Usage(calls=3, input=7)

    async def test_what_was_spent_is_counted_once_wherever_it_goes_from_there(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one", used(1))
        fork = await store.fork(made.id, fork_of())
        two = await run(store, fork.id, "two", used(2))
        three, _ = await move(store, made.id, Onto(fork.id, two.last), "three", 4)
        back, over, again = fork_of(), fork_of(), fork_of()
        await store.rewind(made.id, back, at=two.last)
        assert [(await store.spent(id)).input for id in (made.id, back.id, fork.id)] == [1, 4, 2]
        await store.rewind(made.id, over, at=one.last)
        turn = await stand(store, made.id, Onto(back.id, three.last))
        await store.commit(turn, exchange("four"), usage=used(8), aside=again)
        branches = (made.id, back.id, over.id, fork.id)
        spent = [await store.spent(id) for id in branches]
        assert min(usage.input for usage in spent) >= 0
        assert sum(spent, Usage()) == await store.usage(made.id) == Usage(calls=4, input=15)
        for id in branches:
            await store.delete(id)
        await store.collect()
        assert await store.usage(made.id) == Usage(calls=4, input=15)

    async def test_an_empty_conversation_of_the_family_can_begin_on_a_branch(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one", used(1))
        new = NewConversation(id=new_id(), family=made.id)
        turn = await store.begin(new.id, new_id(), create=new, onto=Onto(made.id, one.last))
        assert isinstance(turn, OpenTurn)
        done = await store.commit(turn, exchange("two"), usage=used(2))
        assert (done.aside, len(await store.events(new.id))) == (None, 4)
        assert (await store.spent(new.id), await store.spent(made.id)) == (used(2), used(1))

    async def test_a_turn_in_the_middle_of_a_turn_has_the_state_of_there(self, store: Store) -> None:
        made = await create(store)
        whole = [*exchange("one"), remembers("k", "1"), says("more"), remembers("k", "2")]
        done = await run(store, made.id, whole, used(1))
        place = Position(done.last.segment, 3)
        turn = await stand(store, made.id, Onto(made.id, place))
        assert turn.state.get("k") == "1"
        await store.commit(turn, exchange("instead"), usage=used(2), aside=fork_of())
        assert (await store.state(made.id)).get("k") == "1"
        assert (await store.spent(made.id)).input == 2
        assert (await store.usage(made.id)).input == 3
        assert (await store.verify()).ok

    async def test_a_turn_before_an_open_client_call_does_not_answer_it(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one")
        two = await run(store, made.id, [says("look"), calls("c1", client=True, response=1)])
        done, aside = await move(store, made.id, Onto(made.id, one.last), "never mind", 1)
        assert not done.head.open_calls
        assert (await store.read(aside.id)).head.open_calls.client == ("c1",)
        turn = await stand(store, made.id, Onto(aside.id, two.last))
        await store.commit(turn, [returns("c1"), answers("seen", response=1)], aside=fork_of())
        assert texts(await store.events(made.id))[-2:] == ["seen", "seen"]
        assert (await store.verify()).ok

    async def test_the_head_is_an_ordinary_place_whoever_names_it(self, store: Store) -> None:
        made = await create(store)
        for _ in range(2):
            turn = await stand(store, made.id, Onto(made.id, (await store.read(made.id)).head.position))
            assert turn.branch is None
            await store.commit(turn, exchange("on"))
        fork = await store.fork(made.id, fork_of())
        turn = await stand(store, made.id, Onto(fork.id, fork.head.position))
        assert (turn.branch, turn.base) == (None, fork.head)
        failed = await store.fail(turn, TurnError("x", "y"))
        await store.commit(await store.resume(failed.id), exchange("resumed"))

    async def test_only_a_safe_place_on_a_branch_of_the_family_will_do(self, store: Store) -> None:
        made, other = await create(store), await create(store)
        one = await run(store, made.id, [says("look"), thinks("hm", response=1), answers("seen", response=1)])
        foreign = await run(store, other.id, "elsewhere")
        fork = await store.fork(made.id, fork_of())
        two = await run(store, fork.id, "two")
        before = await seen(store, made.id)

        async def refused(error: type[Exception], branch: str, position: Position | None) -> None:
            with pytest.raises(error):
                await store.begin(made.id, new_id(), onto=Onto(branch, position))

        await refused(BadPosition, made.id, Position(one.last.segment, 2))
        await refused(BadPosition, made.id, two.last)
        await refused(BadPosition, made.id, foreign.last)
        await refused(BadPosition, fork.id, Position(two.last.segment, 99))
        for missing in (other.id, new_id(), "no-id", ""):
            for position in (foreign.last, one.last, None):
                await refused(NotFound, missing, position)
        draft = await store.fork(fork.id, fork_of(), draft=True)
        await refused(NotFound, draft.id, two.last)
        theirs = await store.within("other").create(NewConversation(id=new_id()))
        await refused(NotFound, theirs.id, None)
        assert await seen(store, made.id) == before
        await run(store, made.id, "the lock is free")

    async def test_lock_revision_and_key_are_the_conversations_own(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one")
        await run(store, made.id, "two")
        onto, key = Onto(made.id, one.last), IdempotencyKey("k", b"1")
        with pytest.raises(Stale):
            await store.begin(made.id, new_id(), onto=onto, if_revision=1)
        turn = await store.begin(made.id, new_id(), onto=onto, if_revision=2, key=key)
        assert isinstance(turn, OpenTurn)
        for more in (None, onto):
            with pytest.raises(Busy):
                await store.begin(made.id, new_id(), onto=more)
        with pytest.raises(Busy):
            await store.rewind(made.id, fork_of(), at=one.last)
        joined = await store.begin(made.id, new_id(), onto=onto, key=key)
        assert isinstance(joined, StoredTurn)
        assert (joined.id, joined.base, joined.outcome) == (turn.id, one.last, "running")
        fork = await store.fork(made.id, fork_of())
        assert len(await store.events(fork.id)) == 4, "a fork sees what is committed"
        await store.commit(turn, exchange("instead"), aside=fork_of())
        assert (await store.begin(made.id, new_id(), key=key)).id == turn.id

    @pytest.mark.parametrize("ending", ["failed", "cancelled", "discarded", "superseded"])
    async def test_a_turn_that_does_not_commit_leaves_everything_as_it_was(self, store: Store, ending: str) -> None:
        made = await create(store)
        one = await run(store, made.id, [*exchange("one"), remembers("k", "1")])
        await run(store, made.id, [*exchange("two"), remembers("k", "2")])
        before = await seen(store, made.id)
        turn = await stand(store, made.id, Onto(made.id, one.last))
        turn = await store.journal(turn, [says("three"), remembers("k", "3")], usage=used(3))
        match ending:
            case "failed":
                await store.fail(turn, TurnError("x", "y"))
            case "cancelled":
                await store.cancel(turn)
            case "discarded":
                await store.wait(turn)
                await store.discard(turn.id)
            case _:
                await store.wait(turn)
                again = await store.begin(made.id, new_id(), supersede=True)
                assert isinstance(again, OpenTurn)
                assert again.base == before[0].head
                await store.cancel(again)
        assert await seen(store, made.id) == before
        assert len((await store.conversations()).items) == 1
        record = await store.turn(turn.id)
        assert (record.base, record.totals) == (one.last, one.head.totals)
        assert await store.usage() == used(3) + used(10) + used(10)
        with pytest.raises(NotResumable):
            await store.resume(turn.id)
        await run(store, made.id, "on")
        assert (await store.verify()).ok

    async def test_a_turn_that_stood_elsewhere_is_sent_again_not_resumed(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one")
        await run(store, made.id, "two")
        turn = await stand(store, made.id, Onto(made.id, one.last))
        await store.wait(turn, [says("may I?")])
        with pytest.raises(NotResumable):
            await store.resume(turn.id)
        assert (await store.read(made.id)).status == "awaiting_approval"
        await store.discard(turn.id)
        await store.rewind(made.id, fork_of(), at=one.last)
        resumed = await store.resume(turn.id)  # the head is its base now
        assert (resumed.branch, resumed.base, resumed.staged) == (None, one.head, 1)
        assert (await store.commit(resumed, [answers("yes")])).aside is None
        assert (await store.verify()).ok

    async def test_a_handle_that_missed_a_step_is_refreshed_where_it_stands(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, [*exchange("one"), remembers("k", "1")])
        fork = await store.fork(made.id, fork_of())
        two = await run(store, fork.id, [*exchange("two"), remembers("j", "2")])
        await run(store, made.id, [*exchange("three"), remembers("k", "3")])
        behind = await stand(store, made.id, Onto(fork.id, two.last))
        ahead = await store.journal(behind, [says("look"), remembers("i", "1")], usage=used(1))
        with pytest.raises(TurnBehind):
            await store.commit(behind, exchange("late"), aside=fork_of())
        assert await store.refresh(behind) == await store.refresh(ahead) == ahead
        assert (ahead.base, ahead.branch, dict(ahead.state.values)) == (
            two.head,
            fork.id,
            {"k": "1", "j": "2", "i": "1"},
        )
        done = await store.commit(await store.refresh(behind), [answers("seen")], aside=fork_of())
        assert (await store.state(made.id)).get("i") == "1"
        assert (await store.read(done.aside or "")).lineage.at == one.last

    async def test_what_would_be_lost_without_a_branch_is_not_left(self, store: Store) -> None:
        made = await create(store, "taken")
        one = await run(store, made.id, "one")
        await run(store, made.id, "two")
        before = await seen(store, made.id)
        turn = await stand(store, made.id, Onto(made.id, one.last))
        with pytest.raises(BadArgument):
            await store.commit(turn, exchange("instead"))
        for aside in (fork_of("taken"), NewFork(id=made.id, cache="{}")):
            with pytest.raises(AlreadyExists):
                await store.commit(turn, exchange("instead"), aside=aside)
        assert (await store.turn(turn.id)).outcome == "running"
        assert (await store.events(made.id), len((await store.conversations()).items)) == (before[1], 1)
        await store.commit(turn, exchange("instead"), aside=fork_of())
        assert len((await store.conversations()).items) == 2

    async def test_an_ordinary_commit_sets_nothing_aside(self, store: Store) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        done = await store.commit(turn, exchange("one"), aside=fork_of())
        assert (turn.branch, done.aside) == (None, None)
        assert len((await store.conversations()).items) == 1

    async def test_a_commit_may_bring_other_settings_and_what_is_set_aside_keeps_its_own(self, store: Store) -> None:
        made = await create(store)
        one = await store.commit(await begin(store, made.id), exchange("one"), settings='{"a":2}')
        assert (await store.read(made.id)).settings == '{"a":2}'
        await run(store, made.id, "two")
        assert (await store.read(made.id)).settings == '{"a":2}'
        turn = await stand(store, made.id, Onto(made.id, one.last))
        done = await store.commit(turn, exchange("three"), settings='{"a":3}', cache='{"key":"3"}', aside=fork_of())
        after, kept = await store.read(made.id), await store.read(done.aside or "")
        assert (after.settings, after.cache) == ('{"a":3}', '{"key":"3"}')
        assert (kept.settings, kept.cache) == ('{"a":2}', '{"key":"fork"}')

    async def test_the_collector_leaves_what_an_open_turn_stands_on(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one", used(1))
        fork = await store.fork(made.id, fork_of())
        two = await run(store, fork.id, [*exchange("two"), remembers("k", "2")], used(2))
        await run(store, fork.id, "three", used(4))
        turn = await stand(store, made.id, Onto(fork.id, two.last))
        await store.delete(fork.id)
        expected = await store.collect(dry_run=True)
        assert (expected.events, expected.segments, expected.turns) == (2, 0, 1)
        assert await store.collect() == expected
        turn = await store.refresh(await store.journal(turn, [says("four")]))
        await store.commit(turn, [answers("still there")], usage=used(8), aside=fork_of())
        assert texts(await store.events(made.id))[2:] == [
            *("two", "You said: two", "state_change", "four", "still there")
        ]
        assert (await store.state(made.id)).get("k") == "2"
        assert await store.usage(made.id) == Usage(calls=4, input=15)
        assert (await store.verify()).ok

    async def test_what_only_a_failed_turn_stood_on_is_collected(self, store: Store) -> None:
        made = await create(store)
        fork = await store.fork(made.id, fork_of())
        two = await run(store, fork.id, "two", used(2))
        turn = await stand(store, made.id, Onto(fork.id, two.last))
        await store.fail(turn, TurnError("x", "y"), usage=used(4))
        await store.delete(fork.id)
        assert (await store.collect()).segments == 1
        assert [turn.id for turn in (await store.turns(made.id)).items] == [turn.id]
        await run(store, made.id, "one", used(1))
        assert await store.usage(made.id) == Usage(calls=3, input=7)
        assert (await store.verify()).ok
