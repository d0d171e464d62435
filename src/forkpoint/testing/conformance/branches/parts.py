"""Parts of turns: what a path has that ends in the middle of one, what it cost, and forks that answer open calls."""

from functools import partial

import pytest

from forkpoint.errors import BadPosition, KeyReused, NotFound, Stale, Unpaired
from forkpoint.events import NewEvent, ResultSubstituted, Usage
from forkpoint.ids import new_id
from forkpoint.paging import every
from forkpoint.store.erasure import Erasing
from forkpoint.store.protocol import Store
from forkpoint.store.values import Committed, IdempotencyKey, StoredTurn
from forkpoint.testing.conformance.base import Conformance, create, fork_of, run, texts
from forkpoint.testing.samples import answers, called, calls, remembers, returns, says

FIRST, SECOND = Usage(calls=1, input=10, output=1), Usage(calls=1, input=20, output=2)
BESIDE = Usage(output=5)  # of a turn, in no call of a model


async def stepped(store: Store, conversation: str) -> Committed:
    """A turn of nine events: a message, a call of a model that asks for two tools, and another with the answer."""
    events = [
        says("Why?"),
        called(FIRST),
        calls("a", response=1),
        calls("b", response=1),
        returns("a"),
        remembers("seen", "1"),
        returns("b"),
        called(SECOND),
        answers("So.", response=2),
    ]
    return await run(store, conversation, events, FIRST + SECOND + BESIDE)


class PartConformance(Conformance):
    async def test_a_path_that_ends_in_a_turn_has_cost_what_was_called_until_there(self, store: Store) -> None:
        made = await create(store)
        before = await run(store, made.id, "one")
        await stepped(store, made.id)
        path = await store.path(made.id)
        base = before.head.totals
        for taken, cost in {1: base, 2: base + FIRST, 7: base + FIRST, 8: base + FIRST + SECOND}.items():
            fork = await store.fork(made.id, fork_of(), at=path.at(2 + taken))
            assert (fork.head.totals, fork.inherited, fork.spent) == (cost, cost, Usage())
            *_, half = (await store.turns(fork.id)).items
            newest = await store.turns(fork.id, limit=1, newest_first=True)
            assert newest.items == (half,), "newest first it is the same part"
            assert (half.partial, half.end, half.usage) == (True, path.at(2 + taken), Usage())
            assert list((await store.whole_turn(half.id, upto=half.end))[1]) == (await store.events(fork.id))[2:]
            done = await run(store, fork.id, "on", Usage(input=3))
            assert done.head.totals == cost + Usage(input=3)
            in_order = (await store.turns(fork.id)).items
            assert [turn.partial for turn in in_order] == [False, True, False]
            back = every(partial(store.turns, fork.id, newest_first=True), limit=1)
            assert [turn async for turn in back] == [*reversed(in_order)]
        assert (await store.verify()).ok

    async def test_a_rewind_into_a_turn_divides_its_cost(self, store: Store) -> None:
        made = await create(store)
        await stepped(store, made.id)
        spent = await store.usage(made.family)
        path = await store.path(made.id)
        now, aside = await store.rewind(made.id, fork_of(), at=path.at(7))
        assert aside is not None
        assert (now.spent, aside.spent, aside.inherited) == (FIRST, SECOND + BESIDE, FIRST)
        assert [turn.usage for turn in (await store.turns(made.id)).items] == [FIRST]
        assert await store.usage(made.family) == spent
        deeper, second = await store.rewind(aside.id, fork_of(), at=path.at(8))
        assert second is not None
        assert (deeper.spent, second.spent) == (SECOND, BESIDE)
        assert [turn.usage for turn in (await store.turns(deeper.id)).items] == [SECOND]
        assert await store.usage(made.family) == spent
        assert (await store.verify()).ok

    async def test_a_part_of_a_turn_is_found_by_the_turn(self, store: Store) -> None:
        made = await create(store)
        first = await run(store, made.id, "one")
        turn = await stepped(store, made.id)
        cut = (await store.path(made.id)).at(9)
        half = await store.fork(made.id, fork_of(), at=cut)
        assert (await store.fork(half.id, fork_of(), at=turn.turn)).head.position == cut
        assert (await store.fork(half.id, fork_of(), before=turn.turn)).head.position == first.last
        short = await store.fork(made.id, fork_of(), at=first.turn)
        with pytest.raises(BadPosition):
            await store.fork(short.id, fork_of(), at=turn.turn)

    async def test_pages_of_turns_have_a_part_in_its_place(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one")
        await stepped(store, made.id)
        fork = await store.fork(made.id, fork_of(), at=(await store.path(made.id)).at(9))
        for word in ("two", "three"):
            await run(store, fork.id, word)
        whole = (await store.turns(fork.id)).items
        assert [turn.partial for turn in whole] == [False, True, False, False]
        for limit in (1, 2, 3):
            found: list[StoredTurn] = []
            cursor = None
            while True:
                page = await store.turns(fork.id, cursor=cursor, limit=limit)
                found += page.items
                if (cursor := page.next) is None:
                    break
            assert tuple(found) == whole

    async def test_a_part_costs_what_it_cost_after_its_calls_were_erased(self, store: Store) -> None:
        made = await create(store)
        turn = await stepped(store, made.id)
        cut = (await store.path(made.id)).at(7)
        fork = await store.fork(made.id, fork_of(), at=cut)
        await run(store, fork.id, "on")
        _, aside = await store.rewind(made.id, fork_of(), at=cut)
        assert aside is not None
        await store.erase(new_id(), Erasing(conversations=(aside.id,), turn=turn.turn), reason="a request")
        assert (await store.read(made.id)).spent == FIRST
        assert (await store.read(fork.id)).inherited == FIRST
        assert (await store.verify()).ok
        back, _ = await store.rewind(fork.id, fork_of(), at=cut)
        assert (back.head.totals, back.spent) == (FIRST, Usage()), "what went on from there knows what it had cost"
        later = await store.fork(made.id, fork_of())
        assert later.inherited == FIRST
        assert (await store.verify()).ok

    async def test_the_rest_of_a_part_can_be_collected(self, store: Store) -> None:
        anchor = await store.anchor()
        made = await create(store)
        await stepped(store, made.id)
        path = await store.path(made.id)
        fork = await store.fork(made.id, fork_of(), at=path.at(7))
        answered = await store.fork(made.id, fork_of(), at=path.at(4), events=[returns("a", "x"), returns("b", "y")])
        await store.delete(made.id)
        assert (await store.collect()).events == 2
        (half,) = (await store.turns(fork.id)).items
        assert (half.partial, len((await store.whole_turn(half.id, upto=half.end))[1])) == (True, 7)
        await store.delete(fork.id)
        assert (await store.collect()).events == 3
        assert texts(await store.events(answered.id))[-2:] == ["x", "y"]
        with pytest.raises(BadPosition):
            await store.fork(answered.id, fork_of(), at=path.at(4))
        assert (await store.verify()).ok
        assert (await store.verify(since=anchor)).ok

    async def test_a_fork_with_events_begins_with_a_note_of_them(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one")
        fork = await store.fork(made.id, fork_of(), events=[remembers("k", "2")], by="ann")
        assert texts(await store.events(fork.id))[2:] == ["state_change"]
        assert ((await store.state(fork.id)).get("k"), (await store.state(made.id)).get("k")) == ("2", None)
        note = (await store.turns(fork.id)).items[-1]
        assert (note.kind, note.conversation, note.by, note.usage) == ("note", fork.id, "ann", Usage())
        assert (fork.revision, fork.lineage.at) == (1, (await store.read(made.id)).head.position)
        assert (await store.verify()).ok

    async def test_a_fork_may_end_after_calls_if_its_note_answers_all_of_them(self, store: Store) -> None:
        made = await create(store)
        await stepped(store, made.id)
        path = await store.path(made.id)
        told = NewEvent(ResultSubstituted("b", "look", "turn/6", "00"))
        events = [returns("a", "x"), told, returns("b", "y")]
        fork = await store.fork(made.id, fork_of(), at=path.at(4), events=events)
        assert texts(await store.events(fork.id))[4:] == ["x", "result_substituted", "y"]
        assert (fork.head.totals, fork.inherited, bool(fork.head.open_calls)) == (FIRST, FIRST, False)
        assert (await store.state(fork.id)).get("seen") is None
        done = await run(store, fork.id, [answers("Else.", response=1)])
        assert [turn.partial for turn in (await store.turns(fork.id)).items] == [True, False, False]
        again = await store.fork(fork.id, fork_of(), before=done.turn)
        assert again.head.position == fork.head.position
        assert (await store.verify()).ok

    async def test_a_rewind_with_events_goes_on_with_a_note_of_them(self, store: Store) -> None:
        made = await create(store)
        before = await run(store, made.id, "one")
        await stepped(store, made.id)
        events = [says("Why?"), calls("a", response=1), returns("a")]
        key = IdempotencyKey("k", b"digest")
        now, aside = await store.rewind(made.id, fork_of(), at=before.turn, events=events, key=key, by="ann")
        assert aside is not None
        assert [event.kind for event in await store.events(made.id)][2:] == ["user_message", "tool_call", "tool_result"]
        assert len(await store.events(aside.id)) == 11, "what stood there is set aside"
        note = (await store.turns(made.id)).items[-1]
        assert (note.kind, note.by, note.usage) == ("note", "ann", Usage())
        assert (now.revision, now.head.totals) == (4, before.head.totals)
        again, same = await store.rewind(made.id, fork_of(), at=before.turn, events=events, key=key, by="ann")
        assert (again.revision, None if same is None else same.id) == (4, aside.id), "once for each key"
        assert (await store.verify()).ok

    async def test_a_rewind_whose_note_is_refused_moves_nothing(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one")
        await run(store, made.id, "two")
        with pytest.raises(Unpaired):
            await store.rewind(made.id, aside := fork_of(), at=one.turn, events=[returns("a")])
        assert (await store.read(made.id)).revision == 2
        with pytest.raises(NotFound):
            await store.read(aside.id)

    @pytest.mark.parametrize("answered", [("a",), ("b", "a"), (), ("a", "b", "c")])
    async def test_a_note_that_does_not_answer_the_calls_makes_no_fork(
        self, store: Store, answered: tuple[str, ...]
    ) -> None:
        made = await create(store)
        await stepped(store, made.id)
        place = (await store.path(made.id)).at(4)
        new = fork_of()
        events = [*(returns(call) for call in answered), remembers("k", "1")]
        if answered == ("b", "a"):  # in whatever order they come, they stand in the order of their calls
            fork = await store.fork(made.id, new, at=place, events=events)
            assert [event.envelope.call_id for event in await store.events(fork.id)][4:] == ["a", "b", None]
            return
        with pytest.raises(Unpaired):
            await store.fork(made.id, new, at=place, events=events)
        with pytest.raises(NotFound):
            await store.read(new.id)

    async def test_a_place_inside_a_response_or_between_results_is_refused_whatever_follows(self, store: Store) -> None:
        made = await create(store)
        await stepped(store, made.id)
        path = await store.path(made.id)
        for ordinal in (3, 5, 6):
            with pytest.raises(BadPosition):
                await store.fork(made.id, fork_of(), at=path.at(ordinal), events=[returns("a"), returns("b")])
        with pytest.raises(BadPosition):
            await store.fork(made.id, fork_of(), at=path.at(4))

    async def test_the_same_key_makes_one_fork_with_one_note(self, store: Store) -> None:
        made = await create(store)
        await stepped(store, made.id)
        place = (await store.path(made.id)).at(4)
        events = [returns("a", "x"), returns("b", "y")]
        key = IdempotencyKey("k", b"digest")
        fork = await store.fork(made.id, fork_of(), at=place, events=events, key=key)
        await run(store, fork.id, [answers("Else.", response=1)])
        again = await store.fork(made.id, fork_of(), at=place, events=events, key=key)
        assert (again.id, len(await store.events(fork.id))) == (fork.id, 7)
        with pytest.raises(KeyReused):
            await store.fork(made.id, fork_of(), at=place, events=events, key=IdempotencyKey("k", b"other"))
        with pytest.raises(Stale):
            await store.fork(made.id, fork_of(), at=place, events=events, if_revision=99)

    async def test_the_digest_of_an_event_is_there_after_its_content(self, store: Store) -> None:
        made = await create(store)
        turn = await stepped(store, made.id)
        place = (await store.path(made.id)).at(5)
        assert place is not None
        (digest,) = await store.digests(made.id, at=place, after=4)
        await store.erase(new_id(), Erasing(conversations=(made.id,), turn=turn.turn), reason="a request")
        assert (len(digest), await store.digests(made.id, at=place, after=4)) == (32, [digest])
        other = await create(store)
        with pytest.raises(NotFound):
            await store.digests(other.id, at=place)
        with pytest.raises(NotFound):
            await store.within("other").digests(made.id, at=place)
