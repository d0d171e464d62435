"""Idempotency keys of turns, and what a key made: the store tells that without changing anything."""

import pytest

from forkpoint.errors import Busy, KeyReused, NotFound
from forkpoint.events import Usage
from forkpoint.ids import new_id
from forkpoint.store.protocol import Store
from forkpoint.store.values import IdempotencyKey, NewConversation, OpenTurn, StoredTurn, TurnError
from forkpoint.testing.conformance.base import Conformance, create, fork_of, run
from forkpoint.testing.samples import exchange

KEY = IdempotencyKey("request-1", b"body")


class KeyConformance(Conformance):
    async def test_the_same_key_runs_one_turn(self, store: Store) -> None:
        made = await create(store)
        turn = await store.begin(made.id, new_id(), key=KEY)
        assert isinstance(turn, OpenTurn)
        joined = await store.begin(made.id, new_id(), key=KEY)
        assert isinstance(joined, StoredTurn)
        assert (joined.id, joined.outcome) == (turn.id, "running")
        with pytest.raises(KeyReused):
            await store.begin(made.id, new_id(), key=IdempotencyKey(KEY.key, b"another body"))
        await store.commit(turn, exchange("once"))
        stored = await store.begin(made.id, new_id(), key=KEY)
        assert isinstance(stored, StoredTurn)
        assert (stored.id, stored.outcome) == (turn.id, "committed")

    @pytest.mark.parametrize("ending", ["failed", "cancelled"])
    async def test_a_turn_that_did_not_commit_frees_its_key(self, store: Store, ending: str) -> None:
        made = await create(store)
        turn = await store.begin(made.id, new_id(), key=KEY)
        assert isinstance(turn, OpenTurn)
        await (store.cancel(turn) if ending == "cancelled" else store.fail(turn, TurnError("x", "y")))
        again = await store.begin(made.id, new_id(), key=KEY)
        assert isinstance(again, OpenTurn)

    async def test_a_resumed_turn_has_its_key_again(self, store: Store) -> None:
        made = await create(store)
        turn = await store.begin(made.id, new_id(), key=KEY)
        assert isinstance(turn, OpenTurn)
        await store.fail(turn, TurnError("x", "y"))
        taken = await store.resume(turn.id)
        joined = await store.begin(made.id, new_id(), key=KEY)
        assert isinstance(joined, StoredTurn)
        await store.commit(taken, exchange("once"))
        stored = await store.begin(made.id, new_id(), key=KEY)
        assert (stored.id, len(await store.events(made.id))) == (turn.id, 2)

    async def test_a_turn_whose_key_went_to_another_try_is_not_resumed(self, store: Store) -> None:
        made = await create(store)
        first = await store.begin(made.id, new_id(), key=KEY)
        assert isinstance(first, OpenTurn)
        await store.fail(first, TurnError("x", "y"))
        second = await store.begin(made.id, new_id(), key=KEY)
        assert isinstance(second, OpenTurn)
        await store.fail(second, TurnError("x", "y"))
        third = await store.begin(made.id, new_id(), key=KEY)
        assert isinstance(third, OpenTurn)
        await store.cancel(third)
        await store.resume(second.id)
        with pytest.raises(Busy):
            await store.resume(first.id)

    async def test_the_same_key_on_another_conversation_is_refused(self, store: Store) -> None:
        one, other = await create(store), await create(store)
        await store.begin(one.id, new_id(), key=KEY)
        with pytest.raises(KeyReused):
            await store.begin(other.id, new_id(), key=KEY)

    async def test_a_free_key_has_made_nothing_and_is_free_after_the_question(self, store: Store) -> None:
        made = await create(store)
        pulse = await store.pulse()
        assert await store.made_with(KEY, "create") is None
        assert await store.made_with(KEY, "fork", made.id) is None
        assert await store.made_with(KEY, "turn", made.id) is None
        assert await store.pulse() == pulse, "asking what a key made must not commit anything"
        first = await store.create(NewConversation(id=new_id()), key=KEY)
        assert await store.made_with(KEY, "create") == first

    async def test_a_key_tells_the_conversation_that_it_made_as_it_is_now(self, store: Store) -> None:
        made = await store.create(NewConversation(id=new_id()), key=KEY)
        await run(store, made.id, "one")
        assert await store.made_with(KEY, "create") == await store.read(made.id)

    async def test_a_key_tells_the_fork_that_it_made_though_the_source_is_deleted(self, store: Store) -> None:
        source = await create(store)
        await run(store, source.id, "one")
        fork = await store.fork(source.id, fork_of(), key=KEY)
        await store.delete(source.id)
        assert await store.made_with(KEY, "fork", source.id) == fork

    async def test_a_key_tells_the_turn_that_it_began_until_that_ends_without_a_commit(self, store: Store) -> None:
        made = await create(store)
        turn = await store.begin(made.id, new_id(), key=KEY)
        assert isinstance(turn, OpenTurn)
        assert await store.made_with(KEY, "turn", made.id) == await store.turn(turn.id)
        await store.fail(turn, TurnError("x", "y"), usage=Usage(calls=1))
        assert await store.made_with(KEY, "turn", made.id) is None
        again = await store.begin(made.id, new_id(), key=KEY)
        assert isinstance(again, OpenTurn)
        await store.commit(again, exchange("one"))
        assert await store.made_with(KEY, "turn", made.id) == await store.turn(again.id)

    async def test_a_turn_is_found_by_its_key_wherever_it_runs_and_whatever_it_was_asked(self, store: Store) -> None:
        made = await create(store)
        turn = await store.begin(made.id, new_id(), key=KEY)
        assert isinstance(turn, OpenTurn)
        there = await store.turn(turn.id)
        assert await store.made_with(KEY, "turn") == there
        assert await store.made_with(IdempotencyKey(KEY.key, None), "turn", made.id) == there
        with pytest.raises(KeyReused):
            await store.made_with(IdempotencyKey(KEY.key, b"another body"), "turn")
        with pytest.raises(KeyReused):
            await store.made_with(IdempotencyKey(KEY.key, None), "create")

    async def test_a_retry_takes_over_the_keys_of_the_tries_before_it_that_are_free(self, store: Store) -> None:
        made, second, third = await create(store), IdempotencyKey("second", b"s"), IdempotencyKey("third", b"t")
        tries: list[str] = []
        for key in (KEY, second, third):
            turn = await store.begin(made.id, new_id(), key=key, retry_of=tries[-1] if tries else None)
            assert isinstance(turn, OpenTurn)
            await store.fail(turn, TurnError("x", "y"))
            tries.append(turn.id)
        assert await store.made_with(KEY, "turn") is None, "a retry that failed frees what it took over"
        other = await store.begin(made.id, new_id(), key=second)
        assert isinstance(other, OpenTurn)
        await store.commit(other, exchange("by itself"))
        retry = await store.begin(made.id, new_id(), retry_of=tries[-1])
        assert isinstance(retry, OpenTurn)
        await store.commit(retry, exchange("retried"))
        found = [await store.made_with(key, "turn", made.id) for key in (KEY, second, third)]
        assert found == [await store.turn(id) for id in (retry.id, other.id, retry.id)]

    async def test_a_retry_with_another_input_leaves_the_key_of_its_try_alone(self, store: Store) -> None:
        made = await create(store)
        first = await store.begin(made.id, new_id(), key=KEY, input='"go"')
        assert isinstance(first, OpenTurn)
        await store.fail(first, TurnError("x", "y"))
        other = await store.begin(made.id, new_id(), input='"something else"', retry_of=first.id)
        assert isinstance(other, OpenTurn)
        await store.commit(other, exchange("something else"))
        assert await store.made_with(KEY, "turn", made.id) is None

    async def test_the_keys_of_a_deleted_conversations_turns_are_free(self, store: Store) -> None:
        made, other = await create(store), await create(store)
        turn = await store.begin(made.id, new_id(), key=KEY)
        assert isinstance(turn, OpenTurn)
        await store.commit(turn, exchange("one"))
        await store.fork(made.id, fork_of(), key=IdempotencyKey("fork", b"f"))
        await store.delete(made.id)
        again = await store.begin(other.id, new_id(), key=IdempotencyKey(KEY.key, b"another body"))
        assert isinstance(again, OpenTurn), "nobody can be given the turn of the deleted conversation"
        assert await store.made_with(IdempotencyKey("fork", b"f"), "fork", made.id) is not None, "the fork is there"

    async def test_a_key_of_another_request_operation_or_source_is_refused(self, store: Store) -> None:
        made, other = await create(store), await create(store)
        await run(store, made.id, "one")
        await store.fork(made.id, fork_of(), key=KEY)
        with pytest.raises(KeyReused):
            await store.made_with(IdempotencyKey(KEY.key, b"another body"), "fork", made.id)
        with pytest.raises(KeyReused):
            await store.made_with(KEY, "turn", made.id)
        with pytest.raises(KeyReused):
            await store.made_with(KEY, "create")
        with pytest.raises(KeyReused):
            await store.made_with(KEY, "fork", other.id)
        with pytest.raises(NotFound):
            await store.made_with(KEY, "fork", "not an id")

    async def test_a_key_is_free_once_what_it_made_is_deleted(self, store: Store) -> None:
        made = await store.create(NewConversation(id=new_id()), key=KEY)
        await store.delete(made.id)
        assert await store.made_with(KEY, "create") is None

    async def test_a_key_is_of_one_tenant(self, store: Store) -> None:
        await store.create(NewConversation(id=new_id()), key=KEY)
        assert await store.within("other").made_with(KEY, "create") is None
