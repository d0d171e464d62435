"""Notes with keys, and what a caller reads of one path to write on another: digests, the state at a place, erasures."""

import pytest

from forkpoint.errors import BadPosition, KeyReused, NotFound, Stale
from forkpoint.events import Event, Usage
from forkpoint.ids import new_id
from forkpoint.store.erasure import Erasing
from forkpoint.store.protocol import Store
from forkpoint.store.values import IdempotencyKey, StoredTurn
from forkpoint.testing.conformance.base import Conformance, create, fork_of, run, texts
from forkpoint.testing.samples import answers, calls, exchange, remembers, returns, says

KEY = IdempotencyKey("request-1", b"body")


class NoteConformance(Conformance):
    async def test_the_same_key_writes_one_note_whatever_the_repeat_brings(self, store: Store) -> None:
        made = await create(store)
        first = await store.note(made.id, new_id(), [says("one")], usage=Usage(calls=1), key=KEY)
        await run(store, made.id, "meanwhile")
        again = await store.note(made.id, new_id(), [says("two")], usage=Usage(calls=1), if_revision=0, key=KEY)
        assert (again.turn, again.first, again.last) == (first.turn, first.first, first.last)
        assert texts(await store.events(made.id)) == ["one", "meanwhile", "You said: meanwhile"]
        assert (await store.usage(made.family)).calls == 2
        note = await store.made_with(KEY, "turn", made.id)
        assert isinstance(note, StoredTurn)
        assert (note.id, note.kind) == (first.turn, "note")

    async def test_the_key_of_a_note_is_taken_for_anything_else(self, store: Store) -> None:
        made, other = await create(store), await create(store)
        await store.note(made.id, new_id(), [says("one")], key=KEY)
        with pytest.raises(KeyReused):
            await store.note(made.id, new_id(), [says("one")], key=IdempotencyKey(KEY.key, b"another body"))
        with pytest.raises(KeyReused):
            await store.note(other.id, new_id(), [says("one")], key=KEY)
        with pytest.raises(KeyReused):
            await store.fork(made.id, fork_of(), key=KEY)
        with pytest.raises(KeyReused):
            await store.begin(made.id, new_id(), key=IdempotencyKey(KEY.key, b"a turn"))

    async def test_a_note_that_is_refused_leaves_its_key_free(self, store: Store) -> None:
        made = await create(store)
        with pytest.raises(Stale):
            await store.note(made.id, new_id(), [says("one")], if_revision=7, key=KEY)
        assert await store.made_with(KEY, "turn", made.id) is None
        assert (await store.note(made.id, new_id(), [says("one")], key=KEY)).revision == 1

    async def test_a_note_is_refused_if_content_was_erased_since_its_caller_read(self, store: Store) -> None:
        made = await create(store)
        done = await run(store, made.id, "gone")
        count = await store.erasure_count()
        await store.note(made.id, new_id(), [says("in time")], if_erasures=count)
        await store.erase(new_id(), Erasing(conversations=(made.id,), turn=done.turn), reason="a test")
        with pytest.raises(Stale):
            await store.note(made.id, new_id(), [says("too late")], if_erasures=count)
        await store.note(made.id, new_id(), [says("again")], if_erasures=await store.erasure_count())
        assert texts(await store.events(made.id))[-2:] == ["in time", "again"]

    async def test_digests_are_those_of_the_events_of_the_same_place(self, store: Store) -> None:
        made = await create(store)
        first = await run(store, made.id, "one")
        second = await run(store, made.id, "two")
        fork = await store.fork(made.id, fork_of(), at=first.turn)
        assert await store.digests(fork.id, after=2) == []
        done = await run(store, fork.id, "three")
        digests = await store.digests(fork.id)
        assert len(digests) == len(await store.events(fork.id)) == 4
        assert (digests[1], digests[3]) == (first.head.digest, done.head.digest)
        assert await store.digests(fork.id, after=1) == digests[1:]
        assert await store.digests(made.id, at=first.last) == digests[:2]
        with pytest.raises(NotFound):
            await store.digests(fork.id, at=second.last)

    async def test_the_state_at_a_place_is_the_state_of_a_fork_there(self, store: Store) -> None:
        made = await create(store)
        first = await run(store, made.id, [*exchange("one"), remembers("k", "1")])
        called = [calls("c", response=1), calls("d", response=1)]
        returned = [returns("c"), returns("d")]
        steps = [says("two"), *called, *returned, remembers("k", "2"), answers("done", response=2)]
        await run(store, made.id, steps)
        events: list[Event] = await store.events(made.id)
        assert (await store.state(made.id)).get("k") == "2"
        assert (await store.state(made.id, at=first.last)).get("k") == "1"
        refused = 0
        for event in events:
            is_response = event.id.ordinal == first.last.ordinal + 3  # its calls have no results yet
            try:
                fork = await store.fork(made.id, fork_of(), at=event.id, events=returned if is_response else ())
            except BadPosition:
                refused += 1
                with pytest.raises(BadPosition):
                    await store.state(made.id, at=event.id)
            else:
                assert await store.state(made.id, at=event.id) == await store.state(fork.id)
        assert refused == 2
        fork = await store.fork(made.id, fork_of(), at=first.turn)
        with pytest.raises(NotFound):
            await store.state(fork.id, at=events[-1].id)
